package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// ErrStale is returned by a function that finds that a row has moved on since it was read: the
// transaction is rolled back, and the function called again in a new one, up to five times. It may
// be wrapped.
var ErrStale error = &messagestore.RetryableError{Cause: errors.New("a row has moved on since it was read")}

// Config changes how a [Inbox] works. A nil *Config is a good one.
type Config struct {
	// OnResult is called with the result of each command and request, before it is acted on. It is
	// called from several goroutines.
	//
	// Defaults to nothing.
	OnResult func(ctx context.Context, result reservation.Result)

	// Logger receives a debug event for each result, and a warning for each key that is reused,
	// of names and numbers, never of content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// An Inbox carries out commands and requests, each once, in transactions of type Tx: pgx.Tx or
// *sql.Tx. It is safe for concurrent use.
type Inbox[Tx any] struct {
	txs    *messagestore.TxStore[Tx]
	inbox  messagestore.Category
	config Config
}

// New returns the inbox of the given name: the category name:inbox. The error matches
// [messagestore.ErrInvalid].
func New[Tx any](txs *messagestore.TxStore[Tx], name messagestore.Category, config *Config) (*Inbox[Tx], error) {
	b := &Inbox[Tx]{txs: txs, inbox: name.WithType("inbox")}
	if config != nil {
		b.config = *config
	}
	if txs == nil || txs.Store == nil {
		return nil, fmt.Errorf("inbox: %w", messagestore.NewInvalidError("store", nil, "it is nil"))
	}
	if err := b.inbox.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return b, nil
}

// Done is the result of a function that has done its work.
type Done struct {
	// Answer is recorded with the reservation, as JSON, and returned to every copy of the
	// command or request. Nil is none. A second answer, among Writes, is refused.
	Answer any

	// Writes are committed with the function's SQL. None is to the inbox itself. One of them may be a
	// [reservation.Answer].
	Writes []messagestore.StreamWrite
}

// Handle returns a function that handles each key's command once, with f in a transaction. The
// reserver is over the inbox's store, and names the reservation as for [reservation.Inline]: a handler
// may change from one to the other.
//
// A command whose key is taken is not handled again. An error of f rolls back, and is returned,
// unless another command has taken the key by then. A key that was reused is a
// [*reservation.KeyReusedError].
func Handle[Tx any, T messagestore.Body](
	b *Inbox[Tx], once *reservation.Reserver, key func(T) string,
	f func(ctx context.Context, tx Tx, m handler.Message[T]) (Done, error),
) handler.Func[T] {
	if err := missing(b, once, key == nil, f == nil); err != nil {
		return handler.Invalid[T](err) // a mistake that the mux reports
	}
	return handler.Checked(func(ctx context.Context, m handler.Message[T]) error {
		c, err := reservation.NewClaim(ctx, once, m, key)
		if c == nil || err != nil {
			return err
		}
		result, err := transact(ctx, b, attempt{
			stream: c.Stream(),
			begin:  free,
			met:    c.Met,
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
		return b.tell(ctx, result).Err()
	}, once.Check)
}

// missing returns which argument of Handle is nil or wrong, or nil.
func missing[Tx any](b *Inbox[Tx], once *reservation.Reserver, noKey, noFunction bool) error {
	var wrong []error
	add := func(field, rule string) { wrong = append(wrong, messagestore.NewInvalidError(field, nil, rule)) }
	if b == nil {
		add("Handle's inbox", "it is nil")
	}
	switch {
	case once == nil:
		add("Handle's reserver", "it is nil")
	case once.Validate() != nil:
		wrong = append(wrong, once.Validate())
	case b != nil && !once.Over(b.txs.Store) && !once.Over(b.txs):
		add("Handle's reserver", "it is over another store than the inbox")
	}
	if noKey {
		add("Handle's key", "it is nil")
	}
	if noFunction {
		add("Handle's function", "it is nil")
	}
	return errors.Join(wrong...)
}

// A Request is a request from outside.
type Request struct {
	// ID is the idempotence key, which the sender chose. It may hold any text.
	ID string

	// Source is the purpose of the request, such as "POST /transfers": up to [MaxSourceBytes] of text.
	// A key is reused if it comes with another.
	Source string

	// Data is compared, as JSON, up to [messagestore.MaxMessageBytes]. It is kept only if the key was
	// reused, with the record of that.
	Data json.RawMessage
}

// MaxSourceBytes bounds [Request.Source].
const MaxSourceBytes = 255

// Received is the message of a request in the inbox: the first of its stream.
type Received struct {
	Source string          `json:"source"`
	Digest string          `json:"digest"` // of source and data
	Answer json.RawMessage `json:"answer,omitempty"`
	Wrote  Wrote           `json:"wrote,omitempty"`
}

// Wrote has the ids of the messages that were committed with a message of the inbox, by stream.
type Wrote map[messagestore.StreamName][]uuid.UUID

// MessageType returns "Received".
func (Received) MessageType() string { return "Received" }

// Undone is the message of an undo in the inbox: the first of its stream, or behind Received.
type Undone struct {
	Source string          `json:"source"`           // of the undo
	Answer json.RawMessage `json:"answer,omitempty"` // of the undo
	Wrote  Wrote           `json:"wrote,omitempty"`
}

// MessageType returns "Undone".
func (Undone) MessageType() string { return "Undone" }

// Refused records a request whose key was used for another. It is in the category name:inbox+refused,
// in the stream of the key, once for all requests with the same source and data.
type Refused struct {
	Source string          `json:"source"`
	Digest string          `json:"digest"`
	Error  string          `json:"error"`
	Data   json.RawMessage `json:"data,omitempty"` // none if a message could not hold it
}

// MessageType returns "Refused".
func (Refused) MessageType() string { return "Refused" }

// A Result is the answer to a request.
type Result struct {
	Outcome reservation.Outcome

	// Answer is what f returned, or had returned for the request that was first: the
	// same to all copies. It is nil if the key was reused, and if nothing was done.
	Answer json.RawMessage

	// Winner is the message in the inbox that decided; of a request that was carried out now, without
	// its data.
	Winner *messagestore.Message
}

// Receive carries out a request once, with f in a transaction. The outcome is
//
//   - Reserved if f was committed now,
//   - Duplicate if the request was carried out before,
//   - KeyReused if its key was used for another request, which is recorded as [Refused],
//   - Undone if the request was undone: before it came, and then f is not called and never
//     was, or after it was carried out.
//
// With each of them the request is settled and may be acknowledged; with an error it may not.
//
// The key is reserved by the first message of the stream name:inbox-ID. An error of f rolls
// back and is returned, unless the request was settled meanwhile. An error that matches
// [messagestore.ErrOutcomeUnknown] says that the store did not answer; Receive again tells. A
// request that cannot be is refused with an error that matches [messagestore.ErrInvalid].
// A stream that begins with another message, or was deleted, is a [*reservation.NoReservationError]: the
// request is neither carried out nor answered.
func (b *Inbox[Tx]) Receive(ctx context.Context, m Request, f func(ctx context.Context, tx Tx) (Done, error)) (Result, error) {
	fail := func(err error) (Result, error) { return Result{}, fmt.Errorf("receive: %w", err) }
	stream, content, err := b.check(m, f == nil)
	if err != nil {
		return fail(err)
	}
	digest := digestOf(m.Source, content)
	id := uuid.Must(uuid.NewV7()) // of this attempt: a lost COMMIT is found by it
	var answer json.RawMessage
	result, err := transact(ctx, b, attempt{
		stream: stream,
		begin:  free,
		met: func(ctx context.Context, first *messagestore.Message) (reservation.Result, error) {
			answer = nil // not that of a transaction that was rolled back
			result := reservation.Result{Key: m.ID, Stream: stream, Winner: first}
			if first.Type == (Undone{}).MessageType() {
				result.Outcome = reservation.Undone
				return result, nil
			}
			var r Received
			if first.Type != r.MessageType() || json.Unmarshal(first.Data, &r) != nil || r.Digest == "" {
				return reservation.Result{}, &reservation.NoReservationError{Stream: stream, First: first}
			}
			if r.Digest != digest {
				result.Outcome = reservation.KeyReused
				return result, nil
			}
			if answer = r.Answer; first.ID == id {
				result.Outcome = reservation.Reserved
				return result, nil
			}
			undone, err := b.undone(ctx, stream)
			switch {
			case err != nil:
				return reservation.Result{}, err
			case undone != nil:
				result.Outcome, result.Winner = reservation.Undone, undone
			default:
				result.Outcome = reservation.Duplicate
			}
			return result, nil
		},
		won: won(m.ID, stream, id, Received{}.MessageType(), reservation.Reserved),
		with: func(done Done) (_ []messagestore.StreamWrite, err error) {
			var writes []messagestore.StreamWrite
			if answer, writes, err = parts(done); err != nil {
				return nil, err
			}
			return inFront(stream, messagestore.NoStream, id, Received{m.Source, digest, answer, identified(writes)}, writes), nil
		},
	}, f)
	if err == nil && result.Outcome == reservation.KeyReused {
		err = b.refuse(ctx, m, digest)
	}
	if err != nil {
		return fail(err)
	}
	b.tell(ctx, result)
	return Result{result.Outcome, answer, result.Winner}, nil
}

// Undo gives back the effect of the request with m's ID, once, with f in a transaction. If the request
// was carried out, f is called, and [Undone] is committed with its SQL and writes. If it has not come
// yet, Undone is written without a call of f, and a request that comes later is not carried out.
//
// The outcome is Undone if that happened now, and Duplicate, with the first answer, if it happened
// before. The Source of m is recorded, and its Data is not looked at: an undo names a key. Errors are
// those of [Inbox.Receive].
func (b *Inbox[Tx]) Undo(ctx context.Context, m Request, f func(ctx context.Context, tx Tx) (Done, error)) (Result, error) {
	fail := func(err error) (Result, error) { return Result{}, fmt.Errorf("undo: %w", err) }
	stream, _, err := b.check(Request{ID: m.ID, Source: m.Source}, f == nil)
	if err != nil {
		return fail(err)
	}
	id := uuid.Must(uuid.NewV7())
	version := messagestore.NoStream // at which Undone is written
	var answer json.RawMessage
	result, err := transact(ctx, b, attempt{
		stream: stream,
		begin: func(ctx context.Context, first *messagestore.Message) (calls bool, err error) {
			if version = messagestore.NoStream; first == nil {
				return false, nil
			}
			if first.Type != (Received{}).MessageType() {
				return false, errTaken
			}
			undone, err := b.undone(ctx, stream)
			if undone != nil {
				return false, errTaken
			}
			version = 0
			return true, err
		},
		met: func(ctx context.Context, first *messagestore.Message) (reservation.Result, error) {
			undone := first
			switch first.Type {
			case Received{}.MessageType():
				var err error
				if undone, err = b.undone(ctx, stream); undone == nil {
					return reservation.Result{}, err
				}
			case Undone{}.MessageType():
			default:
				return reservation.Result{}, &reservation.NoReservationError{Stream: stream, First: first}
			}
			var body Undone
			if err := json.Unmarshal(undone.Data, &body); err != nil {
				return reservation.Result{}, fmt.Errorf("read %s: %w", undone, err)
			}
			answer = body.Answer
			outcome := reservation.Duplicate
			if undone.ID == id {
				outcome = reservation.Undone
			}
			return reservation.Result{Outcome: outcome, Key: m.ID, Stream: stream, Winner: undone}, nil
		},
		won: won(m.ID, stream, id, Undone{}.MessageType(), reservation.Undone),
		with: func(done Done) (_ []messagestore.StreamWrite, err error) {
			var writes []messagestore.StreamWrite
			if answer, writes, err = parts(done); err != nil {
				return nil, err
			}
			return inFront(stream, version, id, Undone{m.Source, answer, identified(writes)}, writes), nil
		},
	}, f)
	if err != nil {
		return fail(err)
	}
	b.tell(ctx, result)
	return Result{result.Outcome, answer, result.Winner}, nil
}

// undone returns the message behind the first of a stream of the inbox, if it is an undo.
func (b *Inbox[Tx]) undone(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	for m, err := range b.txs.ReadStream(ctx, stream, 1) {
		if err != nil || m.Type != (Undone{}).MessageType() {
			return nil, err
		}
		return m, nil
	}
	return nil, nil
}

// refuse records a request whose key was used for another.
func (b *Inbox[Tx]) refuse(ctx context.Context, m Request, digest string) error {
	stream, err := streamOf(b.inbox.WithType("refused"), m.ID)
	if err != nil {
		return err
	}
	body := Refused{m.Source, digest, "the key was first used for another request", m.Data}
	envelope := messagestore.Envelope{ID: uuid.NewSHA1(uuid.NameSpaceOID, []byte("dibs refused "+string(stream)+" "+digest)), Body: body}
	_, err = b.txs.Write(ctx, stream, messagestore.AnyVersion, envelope)
	if errors.Is(err, messagestore.ErrInvalid) { // such as U+0000 in the data
		body.Data = nil
		envelope.Body = body
		_, err = b.txs.Write(ctx, stream, messagestore.AnyVersion, envelope)
	}
	if err != nil {
		return fmt.Errorf("record the reuse of a key: %w", err)
	}
	return nil
}

// check returns the stream of a request and the form in which its data are compared: the
// canonical one, if it is that of no other value.
func (b *Inbox[Tx]) check(m Request, noFunction bool) (stream messagestore.StreamName, content []byte, err error) {
	if noFunction {
		return "", nil, messagestore.NewInvalidError("function", nil, "it is nil")
	}
	if stream, err = b.Stream(m.ID); err != nil {
		return "", nil, err
	}
	switch {
	case len(m.Source) > MaxSourceBytes:
		return "", nil, messagestore.NewInvalidError("source", m.Source, fmt.Sprintf("at most %d bytes", MaxSourceBytes))
	case !utf8.ValidString(m.Source) || strings.ContainsRune(m.Source, 0):
		return "", nil, messagestore.NewInvalidError("source", m.Source, "not valid UTF-8, or with a character U+0000")
	case len(m.Data) > messagestore.MaxMessageBytes:
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), fmt.Sprintf("too long: at most %d bytes", messagestore.MaxMessageBytes))
	case !utf8.Valid(m.Data):
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), "not valid UTF-8")
	}
	data := m.Data
	if len(data) == 0 {
		data = json.RawMessage("null")
	}
	c, err := keys.Canonical(data)
	if err != nil {
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), fmt.Sprintf("it is no JSON: %v", err))
	}
	if c.Ambiguous {
		return stream, data, nil // another value may have the same form
	}
	return stream, c.Canonical, nil
}

// Stream returns the stream of the inbox that a request's key is reserved in. The error matches
// [reservation.ErrInvalidKey].
func (b *Inbox[Tx]) Stream(id string) (messagestore.StreamName, error) { return streamOf(b.inbox, id) }

func streamOf(category messagestore.Category, id string) (messagestore.StreamName, error) {
	if rule := keys.Rule(id); rule != "" {
		return "", keys.Invalid("idempotence key", id, rule)
	}
	room := messagestore.MaxNameBytes - len(category) - len("-")
	part, ok := keys.Encode(id, room)
	if !ok {
		return "", keys.Invalid("idempotence key", id, keys.TooLong(room))
	}
	return messagestore.StreamName(string(category) + "-" + part), nil
}

func digestOf(purpose string, content []byte) string {
	source := sha256.Sum256([]byte(purpose))
	sum := sha256.Sum256(append(source[:], content...))
	return hex.EncodeToString(sum[:])
}

// parts returns the answer of a function as JSON, nil for none, and its writes without it.
func parts(done Done) (answer json.RawMessage, writes []messagestore.StreamWrite, err error) {
	value, given := done.Answer, done.Answer != nil
	for _, w := range done.Writes {
		another, ok := reservation.AnswerIn(w)
		switch {
		case ok && given:
			return nil, nil, messagestore.NewInvalidError("answer", nil, "there is more than one")
		case ok:
			value, given = another, true
		default:
			writes = append(writes, w)
		}
	}
	if !given {
		return nil, writes, nil
	}
	if answer, err = exactjson.Marshal(value); err != nil {
		return nil, nil, messagestore.NewInvalidError("answer", nil, fmt.Sprintf("it does not encode: %v", err))
	}
	return answer, writes, nil
}

// identified gives each message of writes without an id one, and returns the ids.
func identified(writes []messagestore.StreamWrite) Wrote {
	wrote := Wrote{}
	for i := range writes {
		w := &writes[i]
		w.Bodies = slices.Clone(w.Bodies)
		for j, body := range w.Bodies {
			if body == nil {
				continue // the store refuses it
			}
			e := messagestore.Envelope{Body: body}
			switch own := body.(type) {
			case messagestore.Envelope:
				e = own
			case *messagestore.Envelope:
				if own != nil {
					e = *own
				}
			}
			if e.ID == uuid.Nil {
				e.ID = uuid.Must(uuid.NewV7())
			}
			w.Bodies[j] = e
			wrote[w.Stream] = append(wrote[w.Stream], e.ID)
		}
	}
	return wrote
}

// inFront returns the writes of a function behind the message of the inbox.
func inFront(
	stream messagestore.StreamName, version messagestore.Version, id uuid.UUID, body messagestore.Body, writes []messagestore.StreamWrite,
) []messagestore.StreamWrite {
	write := messagestore.To(stream, version, messagestore.Envelope{ID: id, Body: body})
	return append([]messagestore.StreamWrite{write}, writes...)
}

// won returns the function that says what was committed now.
func won(
	key string, stream messagestore.StreamName, id uuid.UUID, messageType string, outcome reservation.Outcome,
) func(messagestore.Written) reservation.Result {
	return func(w messagestore.Written) reservation.Result {
		winner := &messagestore.Message{ID: id, Stream: stream, Position: w.Version, GlobalPosition: w.GlobalPosition, Time: w.Time, Type: messageType}
		return reservation.Result{Outcome: outcome, Key: key, Stream: stream, Winner: winner}
	}
}

// An attempt says how a key is reserved or undone, and how its stream is read.
type attempt struct {
	stream messagestore.StreamName

	// begin is told the first message of the stream, nil for none, and says whether the function is
	// to be called. It returns errTaken if there is nothing to do.
	begin func(ctx context.Context, first *messagestore.Message) (calls bool, err error)

	// met returns the result of a stream that begins with first. An outcome of 0 says that the
	// stream decides nothing.
	met  func(ctx context.Context, first *messagestore.Message) (reservation.Result, error)
	won  func(written messagestore.Written) reservation.Result
	with func(done Done) ([]messagestore.StreamWrite, error)
}

// errTaken ends a transaction whose key is taken.
var errTaken = errors.New("the key is taken")

// free has the function called if the key is free.
func free(_ context.Context, first *messagestore.Message) (calls bool, err error) {
	if first != nil {
		return false, errTaken
	}
	return true, nil
}

// transact calls f in a transaction and commits it with the message of the key, if begin says so. The
// stream of the key decides, whatever the error is: another transaction may have been first
// while this one failed.
func transact[Tx any](
	ctx context.Context, b *Inbox[Tx], a attempt, f func(ctx context.Context, tx Tx) (Done, error),
) (reservation.Result, error) {
	var first *messagestore.Message
	written, err := b.txs.Transact(ctx, a.stream, func(ctx context.Context, tx Tx, begun *messagestore.Message) ([]messagestore.StreamWrite, error) {
		first = begun
		calls, err := a.begin(ctx, begun)
		if err != nil {
			return nil, err
		}
		var done Done
		if calls {
			if done, err = f(ctx, tx); err != nil {
				return nil, err
			}
		}
		for _, w := range done.Writes {
			if w.Stream.Category() == b.inbox {
				return nil, messagestore.NewInvalidError("writes", string(w.Stream), "the stream is in the inbox itself")
			}
		}
		return a.with(done)
	})
	switch {
	case err == nil && !written[0].Duplicate:
		return a.won(written[0]), nil
	case first == nil:
		for m, readErr := range b.txs.ReadStream(ctx, a.stream, 0) {
			if readErr == nil {
				first = m
			}
			break
		}
	}
	if first == nil {
		return reservation.Result{}, err
	}
	result, metErr := a.met(ctx, first)
	switch {
	case metErr != nil && errors.Is(err, messagestore.ErrOutcomeUnknown):
		return reservation.Result{}, errors.Join(err, metErr)
	case metErr != nil:
		return reservation.Result{}, metErr
	case result.Outcome == 0:
		return reservation.Result{}, err
	}
	return result, nil
}

// tell reports a result.
func (b *Inbox[Tx]) tell(ctx context.Context, result reservation.Result) reservation.Result {
	begin := b.config.Logger.Debug
	if result.Outcome == reservation.KeyReused {
		begin = b.config.Logger.Warn
	}
	begin().Str("outcome", result.Outcome.String()).Str("reservation", string(result.Stream)).Msg("inbox")
	if b.config.OnResult != nil {
		b.config.OnResult(ctx, result)
	}
	return result
}
