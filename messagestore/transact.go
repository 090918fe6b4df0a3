package messagestore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
)

// A TransactDriver is a driver that can run a function in a transaction of its database library's
// type Tx, and append messages before it commits. Only drivers of this module can be
// TransactDrivers, because RetryableError is in an internal package. RunTransact of package
// storetest tests them.
type TransactDriver[Tx any] interface {
	Driver

	// Transact begins a transaction and reads the first message of the stream that first names. It
	// calls f once with that message, which is nil if the stream is empty or first is "". Then it
	// does the appends that f returns, by the rules of AppendAll, and commits. Append and COMMIT
	// are one round trip, if the database has round trips.
	//
	//   - If f returns an error, Transact rolls back and returns that error, in a
	//     [*calling.RetryableError] if it is a failure of the database and running f again may
	//     succeed.
	//   - If f was called and the connection was lost before the transaction had begun, the error
	//     is a [*calling.RetryableError] with NotBegun set, whatever f returned.
	//   - If f panics, Transact rolls back and panics again.
	//   - If f returns no appends, the transaction is committed without messages.
	//   - If the append is refused, Transact rolls back and returns the [*VersionConflictError] or
	//     [*IDConflictError].
	//   - If all messages are recorded already, an earlier call has committed: Transact rolls back
	//     and returns where they are, with Duplicate set.
	//   - If f committed or rolled back the transaction, Transact commits nothing more, and the
	//     error matches [ErrTransactionEnded].
	//   - A serialization failure or a deadlock, in the append or in COMMIT, is a
	//     [*calling.RetryableError].
	//   - If the answer to COMMIT is lost, the error is an [*OutcomeUnknownError]. Find resolves it
	//     like Append's: it waits for the commit, or prevents it.
	//
	// After any other error nothing is or will be committed. A driver over a transaction returns
	// [ErrNotSupported]. If f is nil, Transact only reports whether the driver supports it: it
	// returns nil or [ErrNotSupported] without a round trip.
	Transact(ctx context.Context, first StreamName, f func(ctx context.Context, tx Tx, begun *Message) ([]Append, error)) ([]Written, error)
}

// ErrTransactionEnded is returned when the function of [TxStore.Transact] committed or rolled back
// the transaction itself. No message was written. Drivers refuse a call of Commit or Rollback if
// their library allows that, and then nothing is committed. They can only detect a COMMIT that runs
// as a statement, and then the function's own SQL may be committed.
var ErrTransactionEnded = errors.New("the function ended the transaction that it was given")

// A TxStore is a [Store] that can write in one transaction with the caller's own SQL. Tx is the
// transaction's type in the database library: pgx.Tx or *sql.Tx. A TxStore is safe for concurrent
// use.
type TxStore[Tx any] struct {
	*Store
	driver TransactDriver[Tx]
}

// Transactional returns a store that runs transactions of type Tx, over the same driver. The error
// matches [ErrNotSupported] if the driver has transactions of another type, or is itself over a
// transaction.
func Transactional[Tx any](store *Store) (*TxStore[Tx], error) {
	used, err := store.use(context.Background())
	if err != nil {
		return nil, fmt.Errorf("transactions of type %v: %w", reflect.TypeFor[Tx](), err)
	}
	driver, ok := used.(TransactDriver[Tx])
	if !ok {
		return nil, fmt.Errorf("transactions of type %v: %w", reflect.TypeFor[Tx](), ErrNotSupported)
	}
	if _, err := driver.Transact(context.Background(), "", nil); err != nil {
		return nil, fmt.Errorf("transactions of type %v: %w", reflect.TypeFor[Tx](), err)
	}
	return &TxStore[Tx]{store, driver}, nil
}

// transactAttempts is how often [TxStore.Transact] calls its function at most.
const transactAttempts = 5

// The pauses of [TxStore.Transact] before it calls its function again.
const (
	minTransactBackoff = 10 * time.Millisecond
	maxTransactBackoff = 100 * time.Millisecond
)

// Transact begins a transaction, calls f in it, writes the result of f as [Store.WriteStreams]
// does, and commits: f's own SQL and the messages are committed together, or neither is.
//
// Transact calls f again, in a new transaction, after a version conflict, a serialization failure,
// a deadlock, or a connection that was lost before the transaction began. It calls f up to five
// times, with a growing pause between, and then returns the last error. It returns the conflict of
// a [StreamWrite.Final] write at once. So f, and its effects outside tx, may happen more than once.
// If f returns any other error, Transact rolls back and returns that error.
//
// Do not commit or roll back tx in f: see [ErrTransactionEnded]. You may use savepoints. Do not
// write through the store in f, but return the writes: a write through the store is another
// transaction, which on SQLite waits for this one, and on PostgreSQL takes another connection of
// the pool. A read through the store with f's context sees committed messages; on PostgreSQL it
// uses the transaction's connection.
//
// If the answer to COMMIT is lost, Transact finds out by the ids of the messages whether it
// happened, and calls f again only if it did not. If f returns no writes, its SQL is committed
// alone, and a lost answer stays unknown: [Store.Resolve] cannot tell either. The same holds if f
// returns only checks (writes without bodies), which Transact allows. If the ids of all messages
// that f returns are recorded already, an earlier call has committed them: Transact rolls back and
// returns where they are, with [Written.Duplicate] set.
func (s *TxStore[Tx]) Transact(ctx context.Context, f func(ctx context.Context, tx Tx) ([]StreamWrite, error)) ([]Written, error) {
	if f == nil {
		return nil, fmt.Errorf("transact: %w", NewInvalidError("function", nil, "must not be nil"))
	}
	return s.transact(ctx, "", func(ctx context.Context, tx Tx, _ *Message) ([]StreamWrite, error) { return f(ctx, tx) })
}

// TransactFrom is [TxStore.Transact] for a function that needs the first message of a stream. The
// argument first names the stream. Transact reads the message at the beginning of the transaction,
// without another round trip, and passes it to f; it is nil if the stream is empty.
func (s *TxStore[Tx]) TransactFrom(
	ctx context.Context, first StreamName,
	f func(ctx context.Context, tx Tx, begun *Message) ([]StreamWrite, error),
) ([]Written, error) {
	if f == nil {
		return nil, fmt.Errorf("transact: %w", NewInvalidError("function", nil, "must not be nil"))
	}
	if err := first.Validate(); err != nil {
		return nil, fmt.Errorf("transact: %w", err)
	}
	return s.transact(ctx, first, f)
}

func (s *TxStore[Tx]) transact(
	ctx context.Context, first StreamName,
	f func(ctx context.Context, tx Tx, begun *Message) ([]StreamWrite, error),
) ([]Written, error) {
	if ctx == nil {
		return nil, fmt.Errorf("transact: %w", NewInvalidError("context", nil, "must not be nil"))
	}
	for attempt := 1; ; attempt++ {
		written, again, err := s.transactOnce(ctx, first, f)
		if err == nil || !again || attempt == transactAttempts {
			return written, err
		}
		s.config.Logger.Debug().Str("error", text.Log(err)).Str("stream", string(first)).Int("attempt", attempt).Msg("transact again")
		if ended := outage.Wait(ctx, outage.Pause(attempt, minTransactBackoff, maxTransactBackoff)); ended != nil {
			return nil, fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// transactOnce calls f at most once, and reports whether it may be called again.
func (s *TxStore[Tx]) transactOnce(
	ctx context.Context, first StreamName,
	f func(ctx context.Context, tx Tx, begun *Message) ([]StreamWrite, error),
) (written []Written, again bool, err error) {
	var appends []Append
	var writes []StreamWrite
	var refused, invalid error // refused is f's error, invalid is that of its result
	written, err = s.driver.Transact(ctx, first, func(ctx context.Context, tx Tx, begun *Message) ([]Append, error) {
		ctx = calling.WithCaller(ctx, func(c *calling.Caller) { c.Transaction = true })
		if writes, refused = f(ctx, tx, begun); refused != nil {
			return nil, refused
		}
		if len(writes) > 0 {
			appends, invalid = encodeAll(writes)
		}
		return appends, invalid
	})
	if err == nil {
		s.wake(ctx, written, false)
		return written, false, nil
	}
	retry, retryable := errors.AsType[*calling.RetryableError](err)
	unknown, lost := errors.AsType[*OutcomeUnknownError](err)
	switch {
	case errors.Is(err, ErrTransactionEnded):
		return nil, false, fmt.Errorf("transact: %w", err)
	case retryable && retry.NotBegun:
		return nil, true, fmt.Errorf("transact: %w", err)
	case refused != nil:
		return nil, retryable, refused
	case invalid != nil:
		return nil, false, fmt.Errorf("transact: %w", invalid)
	case lost:
		return s.resolveTransaction(ctx, &OutcomeUnknownError{Writes: appends, Cause: unknown.Cause})
	default:
		return nil, retryable || errors.Is(err, ErrVersionConflict) && !isFinal(writes, err), streamsError("transact", err)
	}
}

// isFinal reports whether err is the version conflict of a final write.
func isFinal(writes []StreamWrite, err error) bool {
	conflict, ok := errors.AsType[*VersionConflictError](err)
	return ok && slices.ContainsFunc(writes, func(w StreamWrite) bool { return w.Final && w.Stream == conflict.Stream })
}

// resolveTransaction finds out by its messages whether a transaction was committed.
func (s *Store) resolveTransaction(ctx context.Context, unknown *OutcomeUnknownError) (written []Written, again bool, err error) {
	err = fmt.Errorf("transact: %w", unknown)
	if len(unknown.Writes) == 0 || ctx.Err() != nil {
		return nil, false, err
	}
	s.config.Logger.Warn().Str("error", text.Log(unknown.Cause)).Str("stream", string(unknown.Writes[0].Stream)).Msg("outcome unknown")
	found, resolveErr := s.Resolve(ctx, unknown)
	conflict, used := errors.AsType[*IDConflictError](resolveErr)
	switch {
	case resolveErr == nil:
		s.wake(ctx, found, false)
		return found, false, nil
	case used:
		return nil, false, fmt.Errorf("transact: %w", conflict)
	case errors.Is(resolveErr, ErrNotWritten):
		return nil, true, fmt.Errorf("transact: %w: %w", ErrNotWritten, unknown.Cause)
	default:
		return nil, false, err
	}
}
