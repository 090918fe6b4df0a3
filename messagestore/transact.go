package messagestore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
)

// A TransactDriver can run a function in a transaction of its own, of the type Tx of its
// database library, and append messages before it commits. Only the drivers of this module are
// ones: a RetryableError is of an internal package. Package storetest has their tests:
// RunTransact.
type TransactDriver[Tx any] interface {
	Driver

	// Transact begins a transaction, reads the first message of the stream first in it, calls f
	// once, adds the appends of f as AppendAll does, and commits. The message is nil if the
	// stream is empty or first is "". Append and COMMIT are one round trip where the database
	// has round trips.
	//
	//   - If f returns an error, Transact rolls back and returns that error; in a
	//     [*failure.RetryableError] if it is a failure of the database that running f again may not
	//     meet.
	//   - If f was called and the transaction had not begun when its connection was lost, the
	//     error is a [*failure.RetryableError] with NotBegun set, whatever f returned.
	//   - If f panics, Transact rolls back, and the panic goes on.
	//   - If f returns no appends, the transaction is committed without messages.
	//   - If the append is refused, Transact rolls back and returns the
	//     [*VersionConflictError] or [*IDConflictError].
	//   - If all messages are recorded already, an earlier call has committed: Transact
	//     rolls back and returns where they are, with Duplicate set.
	//   - If f committed or rolled back the transaction, Transact commits nothing more, and
	//     the error matches [ErrTransactionEnded].
	//   - A serialization failure or a deadlock, in the append or in COMMIT, is a
	//     [*failure.RetryableError].
	//   - If the answer to COMMIT is lost, the error is an [*OutcomeUnknownError]. Find
	//     resolves it as it does for Append: it waits for such a commit, or keeps it from
	//     happening.
	//
	// Every other error means that nothing is or will be committed. A driver that is opened
	// over a transaction returns [ErrNotSupported]. With f nil, Transact only says whether
	// the driver can: it returns nil or [ErrNotSupported] without a round trip.
	Transact(ctx context.Context, first StreamName, f func(ctx context.Context, tx Tx, begun *Message) ([]Append, error)) ([]Written, error)
}

// ErrTransactionEnded is matched by the error of a [TxStore.Transact] whose function
// committed or rolled back the transaction by itself. No message was written. Drivers refuse
// such a call where their library lets them, and then nothing at all is committed; a
// statement of the text COMMIT they only find out, and then the function's own SQL may be
// committed.
var ErrTransactionEnded = errors.New("the function ended the transaction that it was given")

// A TxStore is a [Store] that can write in one transaction with the caller's own SQL. Tx is
// the transaction's type in the database library: pgx.Tx or *sql.Tx. It is safe for
// concurrent use.
type TxStore[Tx any] struct {
	*Store
	driver TransactDriver[Tx]
}

// Transactional returns a store that runs transactions of type Tx, over the same driver. The error
// matches [ErrNotSupported] if its driver has none of that type, or is opened over a transaction
// itself.
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

// transactAttempts bounds how often [TxStore.Transact] calls its function.
const transactAttempts = 5

// The pauses of [TxStore.Transact] before it calls its function again.
const (
	minTransactBackoff = 10 * time.Millisecond
	maxTransactBackoff = 100 * time.Millisecond
)

// Transact begins a transaction, calls f in it, writes the result of f as [Store.WriteStreams]
// does, and commits: f's own SQL and the messages happen together, or neither does.
//
// After a definite failure that may not come again, which is a version conflict, a serialization
// failure, a deadlock, or a connection that was lost before the transaction began, Transact calls f
// again in a new transaction, up to five times and a little later each time, and then returns the
// last error; the conflict of a write that is [StreamWrite.Final] it returns at once. So f may run
// more than once, and its effects outside tx may happen more than once. Another error of f rolls
// back and is returned as it is.
//
// The transaction is not f's to commit or roll back: see [ErrTransactionEnded]. Savepoints are. A
// write by f through the store, and not through its result, is another transaction: on SQLite it
// waits for this one, and on PostgreSQL it takes another connection of the pool. A read through the
// store with f's context is of committed messages; on PostgreSQL it goes by the transaction's
// connection.
//
// If the answer to COMMIT is lost, Transact finds out by the ids of the messages whether it
// happened, and calls f again only if it did not. If f returns no writes, its SQL is committed
// alone, and a lost answer stays unknown: nothing shows whether it was committed, and
// [Store.Resolve] cannot tell either. The same holds if f returns only checks, writes without
// bodies, which need no message beside them here. If all messages that f returns are recorded
// already, by their ids, an earlier call has committed them: Transact rolls back and returns where
// they are, with [Written.Duplicate] set.
func (s *TxStore[Tx]) Transact(ctx context.Context, f func(ctx context.Context, tx Tx) ([]StreamWrite, error)) ([]Written, error) {
	if f == nil {
		return nil, fmt.Errorf("transact: %w", NewInvalidError("function", nil, "it is nil"))
	}
	return s.transact(ctx, "", func(ctx context.Context, tx Tx, _ *Message) ([]StreamWrite, error) { return f(ctx, tx) })
}

// TransactFrom is [TxStore.Transact] with the first message of the stream first, which it reads in
// the transaction, without a call of its own: begun is nil if there is none.
func (s *TxStore[Tx]) TransactFrom(
	ctx context.Context, first StreamName,
	f func(ctx context.Context, tx Tx, begun *Message) ([]StreamWrite, error),
) ([]Written, error) {
	if f == nil {
		return nil, fmt.Errorf("transact: %w", NewInvalidError("function", nil, "it is nil"))
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
		return nil, fmt.Errorf("transact: %w", NewInvalidError("context", nil, "it is nil"))
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
	var refused, invalid error // of f, and of its result
	written, err = s.driver.Transact(ctx, first, func(ctx context.Context, tx Tx, begun *Message) ([]Append, error) {
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
	retry, retryable := errors.AsType[*failure.RetryableError](err)
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

// isFinal reports whether err is the conflict of a write that is final.
func isFinal(writes []StreamWrite, err error) bool {
	conflict, ok := errors.AsType[*VersionConflictError](err)
	return ok && slices.ContainsFunc(writes, func(w StreamWrite) bool { return w.Final && w.Stream == conflict.Stream })
}

// resolveTransaction finds out by the messages of a transaction whether it was committed.
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
