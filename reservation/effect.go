package reservation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
)

// awaitInterval is how often Await looks for writes of other processes that its store did not
// report.
const awaitInterval = 100 * time.Millisecond

// An Effect is the result of a command.
type Effect struct {
	// Done says that the command was handled: by [Inline] or [Transact], as soon as the reservation
	// exists; by [Copy], once a message has the copy as its cause.
	Done bool

	// Result has the reservation. Its Winner is nil if no command with the key was reserved or sent
	// yet.
	Result

	// Events are the messages caused by the command or its copy, by stream, in their order.
	Events []*messagestore.Message
}

// Outcome returns the result of the command with a key in the stream source: the answer that its
// handler stored, and its events. It does not wait: if the command was not handled yet, the effect
// is not Done, and there is no error.
//
// It looks for events in the streams that [Inline] or [Transact] wrote together with the
// reservation, and in the given streams, which [Copy] needs. In each it reads the messages later
// than the command. If a name or the key is invalid, the error matches [messagestore.ErrInvalid],
// and nothing is read.
func (r *Reserver) Outcome(ctx context.Context, source messagestore.StreamName, key string, in ...messagestore.StreamName) (Effect, error) {
	stream, err := r.effectOf(source, key, in)
	if err != nil {
		return Effect{}, fmt.Errorf("outcome: %w", err)
	}
	effect := Effect{Result: Result{Key: key, Stream: stream}}
	result, err := r.Lookup(ctx, source, key)
	switch {
	case errors.Is(err, messagestore.ErrNotFound):
		return effect, nil
	case err != nil:
		return Effect{}, fmt.Errorf("outcome: %w", err)
	}
	effect.Result, effect.Done = result, result.Deleted || isHandled(result.Winner)
	if result.Deleted {
		return effect, nil
	}
	streams := slices.Clone(in)
	for _, name := range WrittenWith(result.Winner) {
		if !slices.Contains(streams, name) {
			streams = append(streams, name)
		}
	}
	for _, name := range streams {
		events, err := waiting.FollowersIn(ctx, r.store, name, result.Winner.Metadata.CausationGlobalPosition, ledTo(result.Winner))
		if err != nil {
			return Effect{}, fmt.Errorf("outcome of %s: %w", stream, err)
		}
		effect.Events = append(effect.Events, events...)
	}
	effect.Done = effect.Done || len(effect.Events) > 0
	return effect, nil
}

// Await is [Reserver.Outcome], but waits until the command is Done. It reads again when something
// was written to the category of the reservation or of a given stream. If ctx ends first, it
// returns the last effect with the error of ctx.
func (r *Reserver) Await(ctx context.Context, source messagestore.StreamName, key string, in ...messagestore.StreamName) (Effect, error) {
	stream, err := r.effectOf(source, key, in)
	if err != nil {
		return Effect{}, fmt.Errorf("await: %w", err)
	}
	changed, stop := waiting.WatchStreams(r.store, awaitInterval, append([]messagestore.StreamName{stream}, in...)...)
	defer stop()
	for {
		effect, err := r.Outcome(ctx, source, key, in...)
		if err != nil || effect.Done {
			return effect, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return effect, fmt.Errorf("await %s: %w", stream, ctx.Err())
		}
	}
}

// effectOf returns the reservation stream of a key. It refuses invalid names of streams with
// events.
func (r *Reserver) effectOf(source messagestore.StreamName, key string, in []messagestore.StreamName) (messagestore.StreamName, error) {
	stream, err := r.Stream(source, key)
	for _, name := range in {
		if err == nil {
			err = name.Validate()
		}
	}
	return stream, err
}

// WrittenWith returns the streams that [Inline] or [Transact] wrote together with a reservation. It
// returns nil if there are none, and if winner is another message or nil.
func WrittenWith(winner *messagestore.Message) []messagestore.StreamName {
	if winner == nil {
		return nil
	}
	names, _ := winner.Metadata.Local[eventsProperty].([]any)
	var streams []messagestore.StreamName
	for _, name := range names {
		if text, ok := name.(string); ok && messagestore.StreamName(text).Validate() == nil {
			streams = append(streams, messagestore.StreamName(text))
		}
	}
	return streams
}

// ledTo returns a function that reports whether a message has the winner or its command as its
// cause.
func ledTo(winner *messagestore.Message) func(*messagestore.Message) bool {
	command := winner.Metadata
	return func(m *messagestore.Message) bool {
		cause, at := m.Metadata.CausationStream, m.Metadata.CausationPosition
		return cause == winner.Stream && at == winner.Position ||
			cause == command.CausationStream && at == command.CausationPosition && m.Stream != winner.Stream
	}
}
