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

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// Config changes how an [Inbox] works. Nil means all defaults.
type Config struct {
	// OnResult is called with the result of each request, before Receive or Undo returns it. It is
	// called from several goroutines.
	//
	// Defaults to nothing.
	OnResult func(ctx context.Context, result reservation.Result)

	// Logger receives a debug event for each result, and a warning for each reused key. Its entries
	// have names and numbers, never content.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// An Inbox carries out requests, each once, in transactions of type Tx: pgx.Tx or
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
		return nil, fmt.Errorf("inbox: %w", messagestore.NewInvalidError("store", nil, "must not be nil"))
	}
	if err := b.inbox.Validate(); err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return b, nil
}

// A Request is a request from outside.
type Request struct {
	// ID is the idempotence key, which the sender chose. It may hold any text.
	ID string

	// Source is the purpose of the request, such as "POST /transfers": up to [MaxSourceBytes] of
	// text. The same key with another source counts as reused.
	Source string

	// Data is compared, as JSON, up to [messagestore.MaxMessageBytes]. It is stored only if the key
	// was reused, in the record of that.
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

// Undone is the message of an undo in the inbox: the first of its stream, or the one after
// Received.
type Undone struct {
	Source string          `json:"source"`           // of the undo
	Answer json.RawMessage `json:"answer,omitempty"` // of the undo
	Wrote  Wrote           `json:"wrote,omitempty"`
}

// MessageType returns "Undone".
func (Undone) MessageType() string { return "Undone" }

// Refused records a request that is not carried out, because its key was used for another request
// or [Inbox.Refuse] was called. It is in the category name:inbox+refused, in a stream named after
// the key, or after the digest if the key is invalid. All requests with the same source and data
// are recorded once.
type Refused struct {
	Source string          `json:"source"`
	Digest string          `json:"digest"`
	Error  string          `json:"error"`
	Key    string          `json:"key,omitempty"`  // the text of the key, if the stream's name does not have it
	Data   json.RawMessage `json:"data,omitempty"` // if the data are JSON that a message can hold
	Raw    []byte          `json:"raw,omitempty"`  // otherwise; only from Refuse
	Part   int             `json:"part,omitempty"` // if the data are in several messages: which of them, from 1
	Parts  int             `json:"parts,omitempty"`
}

// MessageType returns "Refused".
func (Refused) MessageType() string { return "Refused" }

// Receive carries out a request once, with f in a transaction. The outcome is
//
//   - Reserved if f was committed now,
//   - Duplicate if the request was carried out before,
//   - KeyReused if its key was used for another request, which is recorded as [Refused],
//   - Undone if the request was undone: before it came, in which case f is not called and never
//     was, or after it was carried out.
//
// With each of these outcomes the request is settled and may be acknowledged; after an error it may
// not.
//
// The key is reserved by the first message of the stream name:inbox-ID. An error of f rolls back
// and is returned, unless the request was settled meanwhile. An error that matches
// [messagestore.ErrOutcomeUnknown] says that the store did not answer; call Receive again to find
// out. If the request is invalid, the error matches [messagestore.ErrInvalid]. If the stream begins
// with another message, or was deleted, the error is a [*reservation.NoReservationError]: the
// request is neither carried out nor answered.
func (b *Inbox[Tx]) Receive(ctx context.Context, m Request, f func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error)) (reservation.Result, error) {
	fail := func(err error) (reservation.Result, error) {
		return reservation.Result{}, fmt.Errorf("receive: %w", err)
	}
	stream, content, err := b.check(m, f == nil)
	if err != nil {
		return fail(err)
	}
	digest := digestOf(m.Source, content)
	result, err := keys.Transact(ctx, b.txs, request[Tx]{b, m, stream, digest, uuid.Must(uuid.NewV7())}, f)
	if err == nil && result.Outcome == reservation.KeyReused {
		err = b.refuse(ctx, m, digest)
	}
	if err != nil {
		return fail(err)
	}
	b.tell(ctx, result)
	return result, nil
}

// Undo gives back the effect of the request with m's ID, once, with f in a transaction. If the
// request was carried out, f is called, and [Undone] is committed with its SQL and writes. If it
// has not come yet, Undone is written without a call of f, and a request that comes later is not
// carried out.
//
// The outcome is Undone if that happened now, and Duplicate, with the first answer, if it happened
// before. The Source of m is recorded. Its Data is ignored, because the key alone names the
// request. It returns the same errors as [Inbox.Receive].
func (b *Inbox[Tx]) Undo(ctx context.Context, m Request, f func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error)) (reservation.Result, error) {
	fail := func(err error) (reservation.Result, error) { return reservation.Result{}, fmt.Errorf("undo: %w", err) }
	stream, _, err := b.check(Request{ID: m.ID, Source: m.Source}, f == nil)
	if err != nil {
		return fail(err)
	}
	result, err := keys.Transact(ctx, b.txs, undo[Tx]{b, m, stream, uuid.Must(uuid.NewV7())}, f)
	if err != nil {
		return fail(err)
	}
	b.tell(ctx, result)
	return result, nil
}

// undone returns the message after the first of an inbox stream, if it is an undo.
func (b *Inbox[Tx]) undone(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	for m, err := range b.txs.ReadStream(ctx, stream, 1) {
		if err != nil || m.Type != (Undone{}).MessageType() {
			return nil, err
		}
		return m, nil
	}
	return nil, nil
}

// refuse records a request after its key was used for another one.
func (b *Inbox[Tx]) refuse(ctx context.Context, m Request, digest string) error {
	stream, err := streamOf(b.inbox.WithType("refused"), m.ID)
	if err != nil {
		return err
	}
	body := Refused{Source: m.Source, Digest: digest, Error: "the key was first used for another request", Data: m.Data}
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

// partBytes bounds [Refused.Raw], so that the message can hold it in base64.
const partBytes = 512 << 10

// Refuse records a request that is not carried out, as [Refused], with its unchanged data: any
// bytes, of any length. After that you may acknowledge to a broker a message that no inbox accepts,
// or that its function has refused. The ID and the Source of m may be anything. The key stays free.
//
// The same request is recorded once, with the first reason.
func (b *Inbox[Tx]) Refuse(ctx context.Context, m Request, reason error) error {
	fail := func(err error) error { return fmt.Errorf("refuse: %w", err) }
	if reason == nil {
		return fail(messagestore.NewInvalidError("reason", nil, "must not be nil"))
	}
	body := Refused{Source: shorten(m.Source, MaxSourceBytes), Digest: digestOf(m.Source, m.Data), Error: text.Of(reason)}
	category := b.inbox.WithType("refused")
	stream, err := streamOf(category, m.ID)
	if err != nil {
		body.Key = shorten(m.ID, text.Max)
		body.Digest = digestOf(m.ID, []byte(body.Digest))
		stream = category.Stream(body.Digest)
	}
	if len(m.Data) > 0 {
		body.Data = m.Data
	}
	write := func() error {
		id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "dibs refused by a caller %s %s %d", stream, body.Digest, body.Part))
		_, err := b.txs.Write(ctx, stream, messagestore.AnyVersion, messagestore.Envelope{ID: id, Body: body})
		if errors.Is(err, messagestore.ErrIDConflict) { // it was recorded for another reason
			return nil
		}
		return err
	}
	switch err := write(); {
	case err == nil:
		return nil
	case !errors.Is(err, messagestore.ErrInvalid):
		return fail(err)
	}
	// The data are not JSON, are too long, or have a character that the store does not take.
	body.Data = nil
	body.Parts = (len(m.Data) + partBytes - 1) / partBytes
	for part := range slices.Chunk(m.Data, partBytes) {
		body.Part, body.Raw = body.Part+1, part
		if err := write(); err != nil {
			return fail(err)
		}
	}
	return nil
}

// shorten returns valid text of at most the given number of bytes, plus a mark.
func shorten(s string, most int) string { return text.Shorten(s[:min(len(s), most)]) }

// check returns the stream of a request and the form in which its data are compared: the canonical
// form, if no other value has the same one.
func (b *Inbox[Tx]) check(m Request, noFunction bool) (stream messagestore.StreamName, content []byte, err error) {
	if noFunction {
		return "", nil, messagestore.NewInvalidError("function", nil, "must not be nil")
	}
	if stream, err = b.Stream(m.ID); err != nil {
		return "", nil, err
	}
	switch {
	case len(m.Source) > MaxSourceBytes:
		return "", nil, messagestore.NewInvalidError("source", m.Source, fmt.Sprintf("must be at most %d bytes", MaxSourceBytes))
	case !utf8.ValidString(m.Source) || strings.ContainsRune(m.Source, 0):
		return "", nil, messagestore.NewInvalidError("source", m.Source, "must be valid UTF-8 without U+0000")
	case len(m.Data) > messagestore.MaxMessageBytes:
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), fmt.Sprintf("must be at most %d bytes", messagestore.MaxMessageBytes))
	case !utf8.Valid(m.Data):
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), "must be valid UTF-8")
	}
	data := m.Data
	if len(data) == 0 {
		data = json.RawMessage("null")
	}
	c, err := keys.Canonical(data)
	if err != nil {
		return "", nil, messagestore.NewInvalidError("data", []byte(m.Data), fmt.Sprintf("must be JSON: %v", err))
	}
	if c.Ambiguous {
		return stream, data, nil // another value may have the same form
	}
	return stream, c.Canonical, nil
}

// Stream returns the stream of the inbox that reserves a request's key. The error matches
// [reservation.ErrInvalidKey].
func (b *Inbox[Tx]) Stream(id string) (messagestore.StreamName, error) { return streamOf(b.inbox, id) }

func streamOf(category messagestore.Category, id string) (messagestore.StreamName, error) {
	if rule := keys.Rule(id); rule != "" {
		return "", keys.Invalid("idempotence key", id, rule)
	}
	room := text.MaxNameBytes - len(category) - len("-")
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

// identified gives an id to each message of writes without one, and returns all ids.
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

// inFront returns the message of the inbox, followed by the writes of a function.
func inFront(
	stream messagestore.StreamName, version messagestore.Version, id uuid.UUID, body messagestore.Body, writes []messagestore.StreamWrite,
) []messagestore.StreamWrite {
	write := messagestore.To(stream, version, messagestore.Envelope{ID: id, Body: body})
	return append([]messagestore.StreamWrite{write}, writes...)
}

// tell reports a result.
func (b *Inbox[Tx]) tell(ctx context.Context, result reservation.Result) {
	begin, what := b.config.Logger.Debug, "request"
	if result.Outcome == reservation.KeyReused {
		begin, what = b.config.Logger.Warn, "key reused: the request is refused"
	}
	begin().Str("outcome", result.Outcome.String()).Str("reservation", string(result.Stream)).Msg(what)
	if b.config.OnResult != nil {
		b.config.OnResult(ctx, result)
	}
}
