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

// claimOf returns the claim of the command m with its effect, for Inline and Transact. Without an
// error, todo is false if m is a reservation whose effect is already written.
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

// with returns a copy of the claim with an answer, or nil for no answer, and a note of the streams
// that its effect writes to.
func (c claim) with(answer json.RawMessage, writes []messagestore.StreamWrite) claim {
	local := maps.Clone(c.body.Metadata.Local)
	if answer != nil {
		local[answerProperty] = string(answer)
	}
	var streams []any // in the type that a store returns
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

// Answer returns a value that a function for [Inline], [Transact] or package inbox can add to its
// writes: v is stored with the reservation, as JSON, and [Result].Answer has it for every copy of
// the command. It writes no message. A second answer is refused.
func Answer(v any) messagestore.StreamWrite { return keys.Answer(v) }

// answerOf returns the answer stored with a reservation, or nil.
func answerOf(winner *messagestore.Message) json.RawMessage {
	if text := winner.Metadata.Local.Get(answerProperty); text != "" {
		return json.RawMessage(text)
	}
	return nil
}

// Err returns the error that a handler returns for this result: a [*KeyReusedError] for a reused
// key, and nil for every other outcome.
func (r Result) Err() error {
	if r.Outcome == KeyReused {
		return &KeyReusedError{r.Key, r.Stream, r.Winner}
	}
	return nil
}
