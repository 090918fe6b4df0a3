package unit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// ErrStale is returned by a function that finds that a row has moved on since it was read: the
// transaction is rolled back, and the function called again in a new one, up to five times. It may
// be wrapped.
var ErrStale error = &messagestore.RetryableError{Cause: errors.New("a row has moved on since it was read")}

// Config changes how a [Unit] works. A nil *Config is a good one.
type Config struct {
	// OnResult is called with the result of each command and request, before it is acted on. It is
	// called from several goroutines.
	//
	// Defaults to nothing.
	OnResult func(ctx context.Context, result reservation.Result)

	// Logger receives a debug event for each result, and a warning for each key that is reused,
	// of names and numbers, never of content.
	//
	// Defaults to silence.
	Logger logger.Logger
}

// A Unit carries out commands and requests, each once, in transactions of type Tx: pgx.Tx or
// *sql.Tx. It is safe for concurrent use.
type Unit[Tx any] struct {
	txs    *messagestore.TxStore[Tx]
	inbox  messagestore.Category
	config Config
}

// New returns a unit of the given name, whose inbox is the category name:inbox. The error matches
// [messagestore.ErrInvalid].
func New[Tx any](txs *messagestore.TxStore[Tx], name messagestore.Category, config *Config) (*Unit[Tx], error) {
	u := &Unit[Tx]{txs: txs, inbox: name.WithType("inbox")}
	if config != nil {
		u.config = *config
	}
	if txs == nil {
		return nil, fmt.Errorf("unit: %w", messagestore.NewInvalidError("store", nil, "it is nil"))
	}
	if err := u.inbox.Validate(); err != nil {
		return nil, fmt.Errorf("unit: %w", err)
	}
	return u, nil
}

// Done is the result of a function that has done its work.
type Done struct {
	// Answer is recorded with the reservation, as JSON, and returned to every copy of the
	// command or request. Nil is none.
	Answer any

	// Writes are committed with the function's SQL.
	Writes []messagestore.StreamWrite
}

// Handle returns a function that handles each key's command once, with f in a transaction. The
// reserver is over the unit's store, and names the reservation as for [reservation.Inline]: a handler
// may change from one to the other.
//
// A command whose key is taken is not handled again. An error of f rolls back, and is returned,
// unless another command has taken the key by then. A key that was reused is a
// [*reservation.KeyReusedError].
func Handle[Tx any, T messagestore.Body](
	u *Unit[Tx], once *reservation.Reserver, key func(T) string,
	f func(ctx context.Context, tx Tx, m handler.Message[T]) (Done, error),
) handler.Func[T] {
	if err := missing(u, once, key == nil, f == nil); err != nil {
		return handler.Invalid[T](err) // a mistake that the mux reports
	}
	return func(ctx context.Context, m handler.Message[T]) error {
		c, err := reservation.NewClaim(ctx, once, m, key)
		if c == nil || err != nil {
			return err
		}
		result, err := transact(ctx, u, attempt{
			stream: c.Stream(),
			met:    func(first *messagestore.Message) (reservation.Result, error) { return c.Met(ctx, first) },
			won:    func(w messagestore.Written) reservation.Result { return c.Won(ctx, w) },
			with: func(done Done) ([]messagestore.StreamWrite, error) {
				writes := done.Writes
				if done.Answer != nil {
					writes = append([]messagestore.StreamWrite{reservation.Answer(done.Answer)}, writes...)
				}
				return c.With(writes...)
			},
		}, func(ctx context.Context, tx Tx) (Done, error) { return f(ctx, tx, m) })
		if err != nil {
			return err
		}
		return u.tell(ctx, result).Err()
	}
}

// missing returns which argument of Handle is nil or wrong, or nil.
func missing[Tx any](u *Unit[Tx], once *reservation.Reserver, noKey, noFunction bool) error {
	var wrong []error
	add := func(field, rule string) { wrong = append(wrong, messagestore.NewInvalidError(field, nil, rule)) }
	if u == nil {
		add("Handle's unit", "it is nil")
	}
	switch {
	case once == nil:
		add("Handle's reserver", "it is nil")
	case once.Validate() != nil:
		wrong = append(wrong, once.Validate())
	case u != nil && !once.Over(u.txs.Store) && !once.Over(u.txs):
		add("Handle's reserver", "it is over another store than the unit")
	case once.Expires():
		add("Handle's reserver", "its keys expire, and those of a unit are taken for ever")
	}
	if noKey {
		add("Handle's key", "it is nil")
	}
	if noFunction {
		add("Handle's function", "it is nil")
	}
	return errors.Join(wrong...)
}

// A Message is a request from outside.
type Message struct {
	// ID is the idempotence key, which the sender chose. It may hold any text.
	ID string

	// Source is the purpose of the request, such as "POST /transfers". A key is reused if
	// it comes with another.
	Source string

	// Data is compared, as JSON, and not kept.
	Data json.RawMessage
}

// Received is the message of a request in the inbox.
type Received struct {
	Source string          `json:"source"`
	Digest string          `json:"digest"` // of source and data
	Answer json.RawMessage `json:"answer,omitempty"`
}

// MessageType returns "Received".
func (Received) MessageType() string { return "Received" }

// A Result is the answer to a request.
type Result struct {
	Outcome reservation.Outcome

	// Answer is what f returned, or had returned for the request that was first: the
	// same to all copies. It is nil if the key was reused.
	Answer json.RawMessage

	// Winner is the message in the inbox; of a request that was carried out now, without its data.
	Winner *messagestore.Message
}

// Receive carries out a request once, with f in a transaction. The outcome is Reserved if f was
// committed now, Duplicate if the request was carried out before, and KeyReused if its key was
// used for another.
//
// The key is reserved by the first message of the stream name:inbox-ID. An error of f rolls
// back and is returned, unless the request was carried out meanwhile. An error that matches
// [messagestore.ErrOutcomeUnknown] says that the store did not answer; Receive again tells. A
// request that cannot be is refused with an error that matches [messagestore.ErrInvalid].
// A stream that begins with another message is a [*reservation.NoReservationError].
func (u *Unit[Tx]) Receive(ctx context.Context, m Message, f func(ctx context.Context, tx Tx) (Done, error)) (Result, error) {
	fail := func(err error) (Result, error) { return Result{}, fmt.Errorf("receive: %w", err) }
	stream, err := u.Stream(m.ID)
	if err != nil {
		return fail(err)
	}
	digest, err := digestOf(m)
	if err != nil {
		return fail(messagestore.NewInvalidError("data", m.Data, "it is no JSON"))
	}
	id := uuid.Must(uuid.NewV7()) // of this attempt: a lost COMMIT is found by it
	var answer json.RawMessage
	result, err := transact(ctx, u, attempt{
		stream: stream,
		met: func(first *messagestore.Message) (reservation.Result, error) {
			var r Received
			if first.Type != r.MessageType() || json.Unmarshal(first.Data, &r) != nil || r.Digest == "" {
				return reservation.Result{}, &reservation.NoReservationError{Stream: stream, First: first}
			}
			outcome := reservation.KeyReused
			switch {
			case first.ID == id:
				outcome = reservation.Reserved
			case r.Digest == digest:
				outcome = reservation.Duplicate
			}
			if outcome != reservation.KeyReused {
				answer = r.Answer
			}
			return reservation.Result{Outcome: outcome, Key: m.ID, Stream: stream, Winner: first}, nil
		},
		won: func(w messagestore.Written) reservation.Result {
			winner := &messagestore.Message{
				ID: id, Stream: stream, GlobalPosition: w.GlobalPosition, Time: w.Time, Type: Received{}.MessageType(),
			}
			return reservation.Result{Outcome: reservation.Reserved, Key: m.ID, Stream: stream, Winner: winner}
		},
		with: func(done Done) ([]messagestore.StreamWrite, error) {
			answer = nil
			if done.Answer != nil {
				if answer, err = json.Marshal(done.Answer); err != nil {
					return nil, fmt.Errorf("receive: encode answer: %w", err)
				}
			}
			received := messagestore.Envelope{ID: id, Body: Received{m.Source, digest, answer}}
			return append([]messagestore.StreamWrite{messagestore.To(stream, messagestore.NoStream, received)}, done.Writes...), nil
		},
	}, f)
	if err != nil {
		return Result{}, err
	}
	u.tell(ctx, result)
	return Result{result.Outcome, answer, result.Winner}, nil
}

// Stream returns the stream of the inbox that a request's key is reserved in. The error matches
// [reservation.ErrInvalidKey].
func (u *Unit[Tx]) Stream(id string) (messagestore.StreamName, error) {
	if rule := keys.Rule(id); rule != "" {
		return "", keys.Invalid("idempotence key", id, rule)
	}
	room := messagestore.MaxNameBytes - len(u.inbox) - len("-")
	part, ok := keys.Encode(id, room)
	if !ok {
		return "", keys.Invalid("idempotence key", id, keys.TooLong(room))
	}
	return messagestore.StreamName(string(u.inbox) + "-" + part), nil
}

func digestOf(m Message) (string, error) {
	data := m.Data
	if len(data) == 0 {
		data = json.RawMessage("null")
	}
	c, err := keys.Canonical(data)
	if err != nil {
		return "", err
	}
	source := sha256.Sum256([]byte(m.Source))
	sum := sha256.Sum256(append(source[:], c.Canonical...))
	return hex.EncodeToString(sum[:]), nil
}

// An attempt says how a key is reserved, and how its reservation is read.
type attempt struct {
	stream messagestore.StreamName
	met    func(first *messagestore.Message) (reservation.Result, error)
	won    func(written messagestore.Written) reservation.Result
	with   func(done Done) ([]messagestore.StreamWrite, error)
}

// errTaken ends a transaction whose key is taken.
var errTaken = errors.New("the key is taken")

// transact calls f in a transaction and commits it with the reservation, if the key is free. The
// stream of the key decides, whatever the error is: another transaction may have been first
// while this one failed.
func transact[Tx any](
	ctx context.Context, u *Unit[Tx], a attempt, f func(ctx context.Context, tx Tx) (Done, error),
) (reservation.Result, error) {
	var taken *messagestore.Message
	written, err := u.txs.Transact(ctx, a.stream, func(ctx context.Context, tx Tx, begun *messagestore.Message) ([]messagestore.StreamWrite, error) {
		if taken = begun; begun != nil {
			return nil, errTaken
		}
		done, err := f(ctx, tx)
		if err != nil {
			return nil, err
		}
		return a.with(done)
	})
	switch {
	case err == nil && !written[0].Duplicate:
		return a.won(written[0]), nil
	case taken == nil:
		for first, readErr := range u.txs.ReadStream(ctx, a.stream, 0) {
			if readErr == nil {
				taken = first
			}
			break
		}
	}
	if taken == nil {
		return reservation.Result{}, err
	}
	return a.met(taken)
}

// tell reports a result.
func (u *Unit[Tx]) tell(ctx context.Context, result reservation.Result) reservation.Result {
	begin := u.config.Logger.Debug
	if result.Outcome == reservation.KeyReused {
		begin = u.config.Logger.Warn
	}
	begin().Str("outcome", result.Outcome.String()).Str("reservation", string(result.Stream)).Msg("unit")
	if u.config.OnResult != nil {
		u.config.OnResult(ctx, result)
	}
	return result
}
