package reservation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
)

// claimOf returns the claim of the command m with its effect, as Inline and Transact make it. Without an
// error, todo is false if m is a reservation whose effect is written already.
func claimOf[T messagestore.Body](ctx context.Context, r *Reserver, m handler.Message[T], key func(T) string) (c claim, todo bool, err error) {
	if err := r.serves(ctx, m.Message); err != nil {
		return claim{}, false, err
	}
	if r.has(m.Stream.Category()) && r.isCopy(m.Message) && isHandled(m.Message) {
		return claim{}, false, r.ofOther(ctx, m.Message) // its consumer is there for the copies of Copy
	}
	if c, err = r.copyOf(ctx, m.Message, key(m.Body), digestOf(m)); err != nil {
		return claim{}, false, fmt.Errorf("reserve for %s: %w", m, err)
	}
	c.body.Metadata.Local[handledProperty] = true
	return c, true, nil
}

// with returns the claim with an answer, nil for none, and a note of the writes of its effect. It leaves c as it is.
func (c claim) with(answer json.RawMessage, writes []messagestore.StreamWrite) claim {
	local := maps.Clone(c.body.Metadata.Local)
	if answer != nil {
		local[answerProperty] = string(answer)
	}
	var streams []any // as a store returns them
	for _, w := range writes {
		if name := any(string(w.Stream)); len(w.Bodies) > 0 && !slices.Contains(streams, name) {
			streams = append(streams, name)
		}
	}
	if len(streams) > 0 {
		local[eventsProperty] = streams
	}
	c.body.Metadata.Local = local
	return c
}

// Answer returns a value among the writes of a function that [Inline], [Transact] or package inbox calls: v is
// recorded with the reservation, as JSON, and [Result].Answer has it for every copy of the command. It is no write of
// its own, and a second one is refused.
func Answer(v any) messagestore.StreamWrite { return keys.Answer(v) }

// answerOf returns the answer that is recorded with a reservation, or nil.
func answerOf(winner *messagestore.Message) json.RawMessage {
	if text := winner.Metadata.Local.Get(answerProperty); text != "" {
		return json.RawMessage(text)
	}
	return nil
}

// Err returns the error with which a handler answers its consumer: nil for a reservation and a
// duplicate, and a [*KeyReusedError].
func (r Result) Err() error {
	if r.Outcome == KeyReused {
		return &KeyReusedError{r.Key, r.Stream, r.Winner}
	}
	return nil
}
