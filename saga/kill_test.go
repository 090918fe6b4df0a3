package saga_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

var errKilled = errors.New("the process was killed")

// A process is a store as one process has it, which may be killed: from then on nothing gets through.
type process struct {
	*messagestore.Store
	cancel context.CancelFunc

	mu      sync.Mutex
	dead    bool
	passed  int
	killAt  int    // the boundary at which it is killed, from 1; 0 for none
	reached string // the boundary
}

// boundary reports whether the process may go on. It is killed at the boundary that is chosen.
func (p *process) boundary(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false
	}
	if p.passed++; p.passed == p.killAt {
		p.dead, p.reached = true, what
		p.cancel()
	}
	return !p.dead
}

func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

func (p *process) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if !p.alive() {
		return messagestore.Written{}, errKilled
	}
	return p.Store.Write(ctx, stream, expected, bodies...)
}

func (p *process) WriteStreams(ctx context.Context, writes ...messagestore.StreamWrite) ([]messagestore.Written, error) {
	what := string(writes[0].Stream) + " " + writes[0].Bodies[len(writes[0].Bodies)-1].MessageType()
	if !p.boundary("before " + what) {
		return nil, errKilled
	}
	written, err := p.Store.WriteStreams(context.WithoutCancel(ctx), writes...)
	if !p.boundary("after " + what) {
		return nil, errKilled
	}
	return written, err
}

func (p *process) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	if !p.alive() {
		return func(yield func(*messagestore.Message, error) bool) { yield(nil, errKilled) }
	}
	return p.Store.ReadStream(ctx, stream, from)
}

// through makes each call of the world a boundary on both of its sides.
func (p *process) through(w *world) {
	for _, what := range []string{"book flight", "book hotel", "book car", "book taxi", "cancel flight", "cancel hotel", "cancel car", "cancel taxi"} {
		fault := w.faults[what]
		w.on(what, func(ctx context.Context, call int) error {
			verb, step, _ := strings.Cut(what, " ")
			if all := events(failNow{}, p.Store, "7"); verb == "book" && !slices.Contains(all, "Began "+step) || verb == "cancel" && !slices.Contains(all, "Compensating") {
				w.mu.Lock()
				w.unrecorded = append(w.unrecorded, what)
				w.mu.Unlock()
			}
			if !p.boundary("in " + what) {
				return errKilled
			}
			var err error
			if fault != nil {
				err = fault(ctx, call)
			}
			if !p.boundary("after " + what) {
				return errKilled
			}
			return err
		})
	}
}

// failNow fails a test from outside of its goroutine.
type failNow struct{}

func (failNow) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (failNow) FailNow()                          { panic("the test fails") }

// journey is a saga with all that one can do: side by side, a value, a sleep, and steps in a row.
func journey(t require.TestingT, store saga.Store, w *world) *saga.Saga[trip, itinerary] {
	flight, hotel, car, taxi := w.step("flight", nil), w.step("hotel", nil), w.step("car", nil), w.step("taxi", nil)
	book := func(s *saga.Run, in trip) (out itinerary, err error) {
		f, h := flight.Go(s, in), hotel.Go(s, in)
		if err := s.Join(); err != nil {
			return out, err
		}
		to, err := saga.Value(s, "destination", func() string { return in.To })
		if err != nil {
			return out, err
		}
		if err := s.Sleep("night", 5*time.Second); err != nil {
			return out, err
		}
		if out.Car, err = car.Do(s, trip{to}); err != nil {
			return out, err
		}
		out.Flight, out.Hotel = f.Out(), h.Out()
		_, err = taxi.Do(s, in)
		return out, err
	}
	return newSaga(t, store, book, saga.Steps{flight, hotel, car, taxi}, nil)
}

// A process that is killed at any boundary leaves a saga with which another goes on: before and after each
// write, and before and after each effect.
func TestASagaGoesOnAfterAKillAtAnyBoundary(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world){
		"completes":     func(*world) {},
		"is refused":    func(w *world) { w.fails("book taxi", 99, refusal("no taxi")) },
		"side refused":  func(w *world) { w.fails("book hotel", 99, refusal("no room")) },
		"fails":         func(w *world) { w.fails("book car", 99, errDown); w.fails("cancel hotel", 2, errDown) },
		"is once tried": func(w *world) { w.fails("book hotel", 1, errDown) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			boundaries := 0
			for killAt, more := 1, true; more; killAt++ {
				synctest.Test(t, func(t *testing.T) { more = killed(t, prepare, killAt) })
				boundaries++
			}
			require.Greater(t, boundaries, 10)
		})
	}
}

// killed runs a saga in a process that is killed at a boundary, and then in another. It reports whether there is
// such a boundary.
func killed(t *testing.T, prepare func(w *world), killAt int) bool {
	store, w := newStore(), newWorld()
	prepare(w)
	begin(t, journey(t, store, w), "7", trip{"LIS"})

	ctx, cancel := context.WithCancel(t.Context())
	first := &process{Store: store, cancel: cancel, killAt: killAt}
	first.through(w)
	ended := make(chan struct{})
	one, watcher := journey(t, first, w), journey(t, store, w)
	go func() {
		defer close(ended)
		_ = one.Run(ctx) // it is killed
	}()
	over := make(chan struct{})
	waiting, stopWaiting := context.WithCancel(t.Context())
	go func() {
		defer close(over)
		_, _ = watcher.Wait(waiting, "7")
		cancel()
	}()
	<-ended
	stopWaiting()
	<-over

	second := &process{Store: store, cancel: func() {}}
	w.mu.Lock()
	w.faults = map[string]func(context.Context, int) error{}
	w.mu.Unlock()
	prepare(w)
	s := journey(t, second, w)
	stop := running(t, s)
	defer stop()
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Hour)
	defer cancel()
	status, err := s.Wait(ctx, "7")

	require.NoError(t, err, "killed %s: %v; %s", first.reached, events(t, store, "7"), w.did())
	require.True(t, status.IsOver(), "killed %s: %v", first.reached, status)
	checkHistory(t, events(t, store, "7"), w, "killed "+first.reached)
	return first.reached != ""
}

// checkHistory checks the promises G1 and G6 on the events of a saga that has ended, and on the calls of its steps.
func checkHistory(t require.TestingT, all []string, w *world, when string) {
	when += ": " + strings.Join(all, ", ") + "; " + w.did()
	begun, ended := checkEvents(t, all, when)

	// In the world: nothing is done that has not begun, nothing is done behind the first undo, and the first undo of
	// each comes in reverse.
	w.mu.Lock()
	defer w.mu.Unlock()
	var cancelled []string
	for _, call := range w.log {
		what, step, _ := strings.Cut(strings.TrimSuffix(call, "?"), " ")
		require.Contains(t, begun, step, when)
		if what == "cancel" {
			if !slices.Contains(cancelled, step) {
				cancelled = append(cancelled, step)
			}
		} else {
			require.Empty(t, cancelled, when)
		}
	}
	if slices.Reverse(cancelled); ended == "Compensated" {
		require.Equal(t, begun, cancelled, when)
	} else {
		require.Empty(t, cancelled, when)
	}
	require.Empty(t, w.unrecorded, "%s: it was done before it was recorded", when)
	for what, keys := range w.keys {
		require.Len(t, keys, 1, "%s: the keys of %s", when, what)
	}
}

// checkEvents checks them on the events, and returns the steps that began and the end.
func checkEvents(t require.TestingT, all []string, when string) (begun []string, ended string) {
	var undone []string
	compensating := false
	for _, event := range all {
		kind, step, _ := strings.Cut(event, " ")
		switch kind {
		case "Began":
			require.False(t, compensating, when)
			if !slices.Contains(begun, step) {
				begun = append(begun, step)
			}
		case "Compensating":
			compensating = true
		case "Undone":
			require.True(t, compensating, when)
			undone = append(undone, step)
		case "Completed", "Compensated":
			require.Empty(t, ended, when)
			ended = kind
		}
	}
	require.NotEmpty(t, ended, when)
	if slices.Reverse(undone); ended == "Compensated" {
		require.Equal(t, begun, undone, when)
	} else {
		require.Empty(t, undone, when)
	}
	return begun, ended
}

// Two processes have one saga at the same time, as after a pause: the late one meets a conflict, has the context of its
// other step cancelled, and begins nothing more.
func TestOfTwoProcessesWithOneSagaTheLateOneBeginsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		paused, cancelled := make(chan struct{}), make(chan error, 1)
		late := make(chan struct{})
		w.on("book flight", func(_ context.Context, call int) error {
			if call == 1 {
				close(paused)
				<-late // the process stands still
			}
			return nil
		})
		w.on("book hotel", func(ctx context.Context, call int) error {
			if call == 1 { // until its context is cancelled
				<-ctx.Done()
				cancelled <- context.Cause(ctx)
				return ctx.Err()
			}
			return nil
		})
		flight, hotel, car := w.step("flight", &saga.StepConfig{Timeout: time.Minute}), w.step("hotel", &saga.StepConfig{Timeout: time.Minute}), w.step("car", nil)
		book := func(s *saga.Run, in trip) (itinerary, error) {
			f, h := flight.Go(s, in), hotel.Go(s, in)
			if err := s.Join(); err != nil {
				return itinerary{}, err
			}
			c, err := car.Do(s, in)
			return itinerary{f.Out(), h.Out(), c}, err
		}
		steps := saga.Steps{flight, hotel, car}
		one, two := newSaga(t, store, book, steps, nil), newSaga(t, store, book, steps, nil)
		begin(t, one, "7", trip{"LIS"})
		started := first(t, store, "booking:saga-7")

		fenced := make(chan error, 1)
		go func() { fenced <- saga.GoOn(t.Context(), one, started) }()
		<-paused
		synctest.Wait() // both steps of the first run
		require.NoError(t, saga.GoOn(t.Context(), two, started))
		before := events(t, store, "7")
		close(late)

		require.ErrorIs(t, <-fenced, saga.ErrFenced)
		require.ErrorIs(t, <-cancelled, context.Canceled)
		require.Equal(t, before, events(t, store, "7"))
		require.Equal(t, "Completed", before[len(before)-1])
		require.Equal(t, 1, w.calls["book car"])
		for _, what := range []string{"book flight", "book hotel"} {
			require.Equal(t, 2, w.calls[what])
			require.Equal(t, 1, w.keysOf(what), "both have one key")
		}
	})
}

// Late results of a process whose saga another one undoes are ignored, and its step is undone though its outcome is not known.
func TestAStepOfUnknownOutcomeIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		paused, late := make(chan struct{}), make(chan struct{})
		w.on("book car", func(context.Context, int) error {
			close(paused)
			<-late
			return nil
		})
		one, two := travel(t, store, w, nil), travel(t, store, w, nil)
		begin(t, one, "7", trip{"LIS"})
		started := first(t, store, "booking:saga-7")
		fenced := make(chan error, 1)
		go func() { fenced <- saga.GoOn(t.Context(), one, started) }()
		<-paused
		_, err := two.Cancel(t.Context(), "7", "the customer called")
		require.NoError(t, err)
		require.NoError(t, saga.GoOn(t.Context(), two, started))
		close(late)

		require.ErrorIs(t, <-fenced, saga.ErrFenced)
		require.Equal(t, "book flight, book hotel, book car, cancel car?, cancel hotel, cancel flight", w.did())
		checkHistory(t, events(t, store, "7"), w, "late")
	})
}

func first(t require.TestingT, store *messagestore.Store, stream messagestore.StreamName) *messagestore.Message {
	for m, err := range store.ReadStream(context.Background(), stream, 0) {
		require.NoError(t, err)
		return m
	}
	require.Fail(t, "the stream is empty")
	return nil
}
