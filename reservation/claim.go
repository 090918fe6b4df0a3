package reservation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// A Claim is an attempt to reserve a command's key together with the command's effect, in steps:
// [Inline] and package inbox are made of it. It is of one delivery, and not for concurrent use.
type Claim struct {
	claim
	reserver *Reserver
	plain    messagestore.Properties // of the reservation, without the additions of With
}

// NewClaim returns the claim of the command m. It is nil, and nothing is to be done, if m is a
// reservation of which the effect is written already.
func NewClaim[T messagestore.Body](ctx context.Context, r *Reserver, m handler.Message[T], key func(T) string) (*Claim, error) {
	switch {
	case r == nil:
		return nil, messagestore.NewInvalidError("reserver", nil, "it is nil")
	case key == nil:
		return nil, messagestore.NewInvalidError("key", nil, "there is no function for it")
	}
	if err := r.serves(ctx, m.Message); err != nil {
		return nil, err
	}
	if r.has(m.Stream.Category()) && r.isCopy(m.Message) && isHandled(m.Message) {
		return nil, r.ofOther(ctx, m.Message) // its consumer is there for the copies of Copy
	}
	c, err := r.copyOf(ctx, m.Message, key(m.Body), digestOf(m))
	if err != nil {
		return nil, fmt.Errorf("reserve for %s: %w", m, err)
	}
	c.body.Metadata.Local[handledProperty] = true
	return &Claim{c, r, c.body.Metadata.Local}, nil
}

// Stream returns the stream that the key is reserved in.
func (c *Claim) Stream() messagestore.StreamName { return c.stream }

// With returns the reservation, and behind it the writes of the effect, which are one write
// together. An [Answer] among them goes into the reservation. It may be called again, for another
// attempt.
func (c *Claim) With(writes ...messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	local := maps.Clone(c.plain)
	all := make([]messagestore.StreamWrite, 1, len(writes)+1)
	var streams []string
	for _, w := range writes {
		value, ok := AnswerIn(w)
		switch {
		case ok && local[answerProperty] != nil:
			return nil, messagestore.NewInvalidError("answer", nil, "there is more than one")
		case ok:
			data, err := exactjson.Marshal(value)
			if err != nil {
				return nil, fmt.Errorf("reserve %s: %w", c.stream, messagestore.NewInvalidError("answer", nil, fmt.Sprintf("it does not encode: %v", err)))
			}
			local[answerProperty] = string(data)
		default:
			all = append(all, w)
			if name := string(w.Stream); len(w.Bodies) > 0 && !slices.Contains(streams, name) {
				streams = append(streams, name)
			}
		}
	}
	if len(streams) > 0 {
		local[eventsProperty] = streams
	}
	c.body.Metadata.Local = local
	all[0] = c.write()
	return all, nil
}

// Won returns the result of the claim that was written.
func (c *Claim) Won(ctx context.Context, written messagestore.Written) Result {
	return c.reserver.won(ctx, c.claim, written)
}

// Met returns the result of the claim on a stream that begins with first. The error is a
// [*NoReservationError] or an [*OtherConsumerError].
func (c *Claim) Met(ctx context.Context, first *messagestore.Message) (Result, error) {
	return c.reserver.compare(ctx, c.claim, first)
}

// Look returns the result of the claim if its stream has begun.
func (c *Claim) Look(ctx context.Context) (result Result, taken bool, err error) {
	return c.reserver.taken(ctx, c.claim)
}

// Answer returns a value among the writes of a handler that [Inline] calls, or package inbox: v is
// recorded with the reservation, as JSON, and [Result.Answer] returns it to every copy of the
// command. It is no write of its own.
func Answer(v any) messagestore.StreamWrite {
	return messagestore.StreamWrite{Bodies: []messagestore.Body{answer{v}}}
}

// An answer is the only body of a write that [Answer] returned.
type answer struct{ value any }

// MessageType is that of no message.
func (answer) MessageType() string { return "answer" }

// AnswerIn returns the value of which w is the [Answer], and false if w is a write of its own. Package
// inbox takes answers out with it.
func AnswerIn(w messagestore.StreamWrite) (value any, ok bool) {
	if w.Stream != "" || len(w.Bodies) != 1 {
		return nil, false
	}
	a, ok := w.Bodies[0].(answer)
	return a.value, ok
}

// Answer returns the value that the handler recorded by [Answer], or nil.
func (r Result) Answer() json.RawMessage {
	if r.Winner == nil {
		return nil
	}
	text := r.Winner.Metadata.Local.Get(answerProperty)
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// Err returns the error with which a handler answers its consumer: nil for a reservation and a
// duplicate, and a [*KeyReusedError].
func (r Result) Err() error {
	if r.Outcome == KeyReused {
		return &KeyReusedError{r.Key, r.Stream, r.Winner}
	}
	return nil
}
