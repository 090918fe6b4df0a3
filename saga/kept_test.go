package saga_test

import (
	"context"
	"encoding/json"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// plain is a step without an undo.
func (w *world) plain(name string) *saga.Step[trip, ticket] {
	return saga.NewStep(name, func(ctx context.Context, in trip) (ticket, error) {
		return ticket{name + " to " + in.To}, w.call(ctx, "book "+name, "")
	}, nil, nil)
}

// plainly is a saga of three steps without an undo.
func plainly(t require.TestingT, store saga.Store, w *world) *saga.Saga[trip, string] {
	steps := []*saga.Step[trip, ticket]{w.plain("flight"), w.plain("hotel"), w.plain("car")}
	return newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
		for _, step := range steps {
			if _, err := step.Do(r, in); err != nil {
				return "", err
			}
		}
		return in.To, nil
	}, saga.Steps{steps[0], steps[1], steps[2]}, nil)
}

// A tally counts the calls of a store that read or write a stream.
type tally struct {
	*messagestore.Store
	reads, writes atomic.Int64
}

func (c *tally) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	c.reads.Add(1)
	return c.Store.ReadStream(ctx, stream, from)
}

func (c *tally) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	c.writes.Add(1)
	return c.Store.WriteStreams(ctx, writes...)
}

// A saga that begins and ends in one process is not read, and each step but the last is recorded with the beginning of the next.
func TestASagaOfOneProcessIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tally{Store: newStore()}
		s := plainly(t, store, newWorld())
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		status := waitFor(t, s, "7")
		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, "LIS", status.Out)
		require.Equal(t, messagestore.Version(7), status.Version)
		require.Zero(t, store.reads.Load())
		require.Equal(t, int64(4), store.writes.Load(), "its start, two steps each with the beginning of the next, and its end")
		require.Equal(t, []string{
			"Started", "Began flight", "Done flight", "Began hotel", "Done hotel", "Began car", "Done car", "Completed",
		}, events(t, store.Store, "7"))
		shown, err := s.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, shown, status)
	})
}

// A step that succeeded is recorded before the next begins, whether or not there is anything to undo.
func TestAStepWithoutAnUndoIsRecordedBeforeTheNextBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		var seen []string
		w.on("book hotel", func(context.Context, int) error {
			seen = events(t, store, "7")
			return nil
		})
		s := plainly(t, store, w)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		waitFor(t, s, "7")
		require.Equal(t, []string{"Started", "Began flight", "Done flight", "Began hotel"}, seen)
	})
}

// A saga whose queue has not met it yet may have had turns: in a store that was put back, or before there was a queue.
func TestAStepOfAnEarlierTurnIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := plainly(t, store, w)
		input := json.RawMessage(`{"to": "LIS"}`)
		write(t, store, s.Start("7", trip{"LIS"}))
		write(t, store, messagestore.To(s.Category().Stream("7"), 0,
			event.Began{Step: "flight", Attempt: 1, Input: input}, event.Done{Step: "flight", Output: json.RawMessage(`{"reference": "one"}`)}))
		defer running(t, s)()
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
		require.Equal(t, "book hotel, book car", w.did())
	})
}

// firstOf returns the message that a saga began with.
func firstOf(t require.TestingT, store saga.Store, id string) *messagestore.Message {
	for m, err := range store.ReadStream(context.Background(), messagestore.Category("booking:saga").Stream(id), 0) {
		require.NoError(t, err)
		return m
	}
	return nil
}

// Where two processes have turns of a saga, what the first knows is behind.
func TestAProcessReadsWhatAnotherHasDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		one, two := withCar(t, store, w, nil), withCar(t, store, w, nil)
		begin(t, one, "7", trip{"LIS"})
		m := firstOf(t, store, "7")
		require.ErrorContains(t, one.Turn(t.Context(), m, 0), "waits")
		write(t, store, one.Reply("7", "car", rented{"one"}))
		require.NoError(t, two.Turn(t.Context(), m, 0))
		require.NoError(t, one.Turn(t.Context(), m, 0), "it has ended")
		require.Equal(t, "book hotel", w.did())
	})
}

// A swapped store is another one from some time on.
type swapped struct{ *messagestore.Store }

// A store that was put back has another saga in the place of the one that a process knows.
func TestAProcessForgetsASagaThatIsAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after, w := newStore(), newStore(), newWorld()
		store := &swapped{before}
		s := withCar(t, store, w, nil)
		begin(t, s, "7", trip{"LIS"})
		require.ErrorContains(t, s.Turn(t.Context(), firstOf(t, before, "7"), 0), "waits")

		other := withCar(t, after, w, nil)
		begin(t, other, "7", trip{"OPO"})
		m := firstOf(t, after, "7")
		require.Equal(t, firstOf(t, before, "7").GlobalPosition, m.GlobalPosition)
		begin(t, other, "8", trip{"OPO"})
		require.ErrorContains(t, other.Turn(t.Context(), m, 0), "waits")
		write(t, after, s.Reply("7", "car", rented{"one"}))
		store.Store = after
		require.NoError(t, s.Turn(t.Context(), m, 0))
		status, err := s.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, "hotel to OPO", status.Out.Hotel.Reference)
	})
}
