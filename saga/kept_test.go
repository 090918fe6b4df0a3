package saga_test

import (
	"context"
	"encoding/json"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
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
			saga.BeganEvent{Step: "flight", Attempt: 1, Input: input}, saga.DoneEvent{Step: "flight", Output: json.RawMessage(`{"reference": "one"}`)}))
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

// A caller that believes its saga to be open looks after a second, also if it hears of nothing.
func TestACallerThatHearsOfNothingLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		here, there := plainly(t, &deafStore{Store: store}, w), plainly(t, store, w)
		begin(t, here, "7", trip{"LIS"})
		stop := running(t, there)
		require.Equal(t, saga.StateCompleted, waitFor(t, there, "7").State)
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		status, err := here.Wait(ctx, "7")
		require.NoError(t, err)
		require.Equal(t, saga.StateCompleted, status.State)
	})
}

func TestWhatAProcessKeepsOfItsSagasIsBounded(t *testing.T) {
	t.Parallel()
	s := plainly(t, newStore(), newWorld())
	for i := range 100 {
		begin(t, s, strings.Repeat("7", i+1), trip{strings.Repeat("x", 200<<10)})
	}
	require.LessOrEqual(t, saga.KeptBytes(s), saga.MaxKeptBytes)
	require.Greater(t, saga.KeptBytes(s), saga.MaxKeptBytes/2)
}

// What a process begins has its turn at once. The runner's own messages, and those of others, are looked at with pauses.
func TestASagaThatBeginsInTheProcessOfItsRunnerGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := plainly(t, store, w)
		defer running(t, s)()
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			began := time.Now()
			begin(t, s, id, trip{"LIS"})
			waitFor(t, s, id)
			require.Zero(t, time.Since(began), id)
		}
		time.Sleep(4 * time.Millisecond) // the end of the last is reported, and that was a look
		began := time.Now()
		write(t, store, s.Start("6", trip{"LIS"}))
		waitFor(t, s, "6")
		require.LessOrEqual(t, time.Since(began), 20*time.Millisecond)
	})
}

// A hooked store has a saga's turn before or after a write, once, and before its writer is told.
type hooked struct {
	*tally
	before func() error
	after  func(m *messagestore.Message) error
}

func (s *hooked) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	before, after := s.before, s.after
	s.before, s.after = nil, nil
	if before != nil {
		if err := before(); err != nil {
			return nil, err
		}
	}
	written, err := s.tally.WriteStreams(ctx, writes...)
	if err == nil && after != nil {
		var m *messagestore.Message
		if m, err = s.Last(ctx, writes[0].Stream); err == nil {
			err = after(m)
		}
	}
	return written, err
}

// A take that goes with the write of a saga's first message may be told before Begin is.
func TestAFirstTurnThatComesBeforeBeginIsToldReadsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := &hooked{tally: &tally{Store: newStore()}}, newWorld()
		s := plainly(t, store, w)
		store.after = func(m *messagestore.Message) error { return s.Turn(t.Context(), m, 0) }
		begin(t, s, "7", trip{"LIS"})
		require.Zero(t, store.reads.Load())
		require.Equal(t, int64(4), store.writes.Load())
		require.Equal(t, "book flight, book hotel, book car", w.did())
		require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
	})
}

// What another process has begun under the id may have had turns.
func TestAFirstTurnOfWhatAnotherProcessHasBegunReadsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := &hooked{tally: &tally{Store: newStore()}}, newWorld()
		there, here := plainly(t, store.Store, w), plainly(t, store, w)
		begin(t, there, "7", trip{"LIS"})
		write(t, store.Store, messagestore.To(here.Category().Stream("7"), 0,
			saga.BeganEvent{Step: "flight", Attempt: 1, Input: json.RawMessage(`{"to": "LIS"}`)},
			saga.DoneEvent{Step: "flight", Output: json.RawMessage(`{"reference": "one"}`)}))
		m := firstOf(t, store, "7")
		store.before = func() error { return here.Turn(t.Context(), m, 0) }
		begin(t, here, "7", trip{"LIS"})
		require.Equal(t, "book hotel, book car", w.did())
	})
}

// A slow store takes its time for each take, and counts them, and the reads of the category.
type slow struct {
	*messagestore.Store
	driver       *slowDriver
	pages, takes atomic.Int64
}

type slowDriver struct {
	queuing.Driver
	of *slow
}

func newSlow() *slow {
	d := memory.New()
	s := &slow{Store: testkit.Must(messagestore.New(d, nil))}
	s.driver = &slowDriver{d, s}
	return s
}

func (s *slow) Driver() (messagestore.Driver, error) { return s.driver, nil }

func (s *slow) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.pages.Add(1)
	return s.Store.ReadCategoryPage(ctx, q)
}

func (d *slowDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	d.of.takes.Add(1)
	time.Sleep(5 * time.Millisecond)
	return d.Driver.QueueTake(ctx, t)
}

// What a process does itself it need not look for: where all is slow, it looks for the rest as much later.
func TestAProcessThatIsSlowLooksSeldomForWhatOthersDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newSlow(), newWorld()
		for _, name := range []string{"book flight", "book hotel", "book car"} {
			w.on(name, func(context.Context, int) error {
				time.Sleep(10 * time.Millisecond)
				return nil
			})
		}
		s := plainly(t, store, w)
		defer running(t, s)()
		begin(t, s, "1", trip{"LIS"})
		waitFor(t, s, "1")
		time.Sleep(time.Second)
		takes, pages := store.takes.Load(), store.pages.Load()
		begin(t, s, "2", trip{"LIS"})
		waitFor(t, s, "2")
		require.Equal(t, takes+1, store.takes.Load())
		require.Equal(t, pages, store.pages.Load())
	})
}
