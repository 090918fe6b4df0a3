package saga_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// flood sends a saga signals that it does not receive until they are refused, and returns how many it took.
func flood(t *testing.T, store *messagestore.Store, s *saga.Saga[trip, string], most int) (n int) {
	t.Helper()
	for ; n < most; n++ {
		if _, err := store.WriteStreams(t.Context(), s.Signal("7", "other", n)); err != nil {
			require.True(t, saga.IsFull(err), "%v", err)
			return n
		}
	}
	return n
}

// A saga that has so many signals that it takes no more is undone by its deadline and by a cancel, and goes through its steps.
func TestAFloodOfSignalsTakesNothingFromASaga(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end   func(t *testing.T, s *saga.Saga[trip, string])
		state saga.State
	}{
		"its deadline": {func(*testing.T, *saga.Saga[trip, string]) { time.Sleep(2 * time.Hour) }, saga.StateCompensated},
		"a cancel": {func(t *testing.T, s *saga.Saga[trip, string]) {
			_, err := s.Cancel(t.Context(), "7", "the customer called")
			require.NoError(t, err)
		}, saga.StateCompensated},
		"its end": {func(t *testing.T, s *saga.Saga[trip, string]) {}, saga.StateCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				flight, hotel := w.step("flight", nil), w.step("hotel", nil)
				s := newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
					if _, err := flight.Do(r, in); err != nil {
						return "", err
					}
					if err := r.Sleep("day", time.Hour*3/2); err != nil {
						return "", err
					}
					_, err := hotel.Do(r, in)
					return "done", err
				}, saga.Steps{flight, hotel}, &saga.Config{Deadline: map[bool]time.Duration{true: time.Hour}[name == "its deadline"]})
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})
				time.Sleep(time.Second)

				n := flood(t, store, s, 25_000)
				require.Greater(t, n, 9_000)
				require.Less(t, n, 20_000)
				test.end(t, s)

				require.Equal(t, test.state, waitFor(t, s, "7").State)
				require.NotContains(t, events(t, store, "7"), "Suspended")
			})
		})
	}
}

// A saga of a store that took more signals than that, from a writer of another kind, does not write for ever either.
func TestASagaWithMoreSignalsThanItTakesIsUndone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		s := travel(t, store, w, &saga.Config{Deadline: time.Hour})
		begin(t, s, "7", trip{"LIS"})
		for range 30 {
			var many []messagestore.Body
			for i := range 1000 {
				many = append(many, saga.SignalledEvent{Name: "other", Value: json.RawMessage(fmt.Sprint(i))})
			}
			write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, many...))
		}
		w.fails("book hotel", 1, refusal("full"))
		defer running(t, s)()
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
		require.Equal(t, "book flight, book hotel, cancel hotel?, cancel flight", w.did())
	})
}

// What cannot be recorded, whatever it is, is told once. Signals and turns behind it change nothing.
func TestASagaIsSuspendedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		car, hotel := rental(&saga.StepConfig{Timeout: 240 * time.Hour}), w.step("hotel", nil)
		s := newSaga(t, store, func(s *saga.Run, in trip) (rented, error) {
			if _, err := hotel.Do(s, in); err != nil {
				return rented{}, err
			}
			return car.Do(s, in)
		}, saga.Steps{car, hotel}, &saga.Config{Deadline: time.Hour, PollInterval: time.Second})
		begin(t, s, "7", trip{"LIS"})
		for range 30 { // by no runner: there is no room for the undo either
			var many []messagestore.Body
			for range 1000 {
				many = append(many, saga.FailedEvent{Step: "nothing"})
			}
			write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, many...))
		}
		defer running(t, s)()

		time.Sleep(2 * time.Hour)
		_, err := s.Cancel(t.Context(), "7", "the customer called")
		require.NoError(t, err)
		for range 5 {
			time.Sleep(time.Hour)
			write(t, store, messagestore.To("booking:saga-7", messagestore.AnyVersion, saga.SignalledEvent{Name: "other", Value: json.RawMessage("1")}))
		}
		synctest.Wait()

		all := events(t, store, "7")
		n := 0
		for i, e := range all {
			if e == "Suspended" {
				n++
				require.NotEqual(t, "Suspended", all[i-1], "twice in a row")
			}
		}
		require.LessOrEqual(t, n, 2, "one before the cancel, which takes that back, and one behind it")
		require.Equal(t, saga.StateSuspended, waitFor(t, s, "7").State)
	})
}

// A function passes over a signal whose value does not fit, which its error names.
func TestAFunctionPassesOverASignalThatDoesNotFit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		s := newSaga(t, store, func(r *saga.Run, _ trip) (string, error) {
			for {
				value, err := saga.Receive[string](r, "approved", time.Hour)
				if _, unfit := err.(*saga.SignalError); !unfit { //nolint:errorlint // as it comes
					return value, err
				}
				if !strings.Contains(err.Error(), "approved") {
					return "", err
				}
			}
		}, nil, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		for _, value := range []any{7, map[string]int{"a": 1}, "yes"} {
			time.Sleep(time.Minute)
			write(t, store, s.Signal("7", "approved", value))
		}
		status := waitFor(t, s, "7")
		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, "yes", status.Out)
	})
}

// An operator passes over a signal whose value does not fit; a function that refuses it is undone.
func TestAnOperatorPassesOverASignalThatDoesNotFit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		s := approvals(t, store, newWorld())
		o, err := saga.NewOperatorOver(store, s.Category(), "ann")
		require.NoError(t, err)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		_, err = o.SkipSignal(t.Context(), "7", "not yet")
		require.ErrorAs(t, err, new(*saga.StateError))
		for _, value := range []any{"one, ", 7, []int{8}} {
			write(t, store, s.Signal("7", "approved", value))
		}
		for range 2 {
			time.Sleep(time.Minute)
			status := waitFor(t, s, "7")
			require.Equal(t, "invalid", status.Suspended)
			require.Equal(t, "approved+2", status.Step)
			_, err = o.SkipSignal(t.Context(), "7", "the old client sends a number")
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		status, err := s.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, "the signal approved+2", status.Waits)
		write(t, store, s.Signal("7", "approved", "two"))
		require.Equal(t, "one, two", waitFor(t, s, "7").Out)
		found, err := o.Verify(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, found.Violations)
	})
}

// A function that refuses the signal has the saga undone.
func TestASignalThatDoesNotFitMayBeRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		s := newSaga(t, store, func(r *saga.Run, _ trip) (string, error) {
			value, err := saga.Receive[string](r, "approved", time.Hour)
			if _, unfit := err.(*saga.SignalError); unfit { //nolint:errorlint // as it comes
				err = handler.Refuse(err)
			}
			return value, err
		}, nil, nil)
		defer running(t, s)()
		begin(t, s, "7", trip{"LIS"})
		write(t, store, s.Signal("7", "approved", 7))
		require.Equal(t, saga.StateCompensated, waitFor(t, s, "7").State)
	})
}

// A thing of each kind that is recorded is found out where the function has one of another kind of its name now.
func TestAKindThatHasChangedIsFoundOut(t *testing.T) {
	t.Parallel()
	do := map[string]func(r *saga.Run, w *kinds) error{
		"a step":   func(r *saga.Run, w *kinds) error { _, err := w.step.Do(r, trip{"LIS"}); return err },
		"an ask":   func(r *saga.Run, w *kinds) error { _, err := w.ask.Do(r, trip{"LIS"}); return err },
		"a tx":     func(r *saga.Run, w *kinds) error { _, err := w.tx.Do(r, trip{"LIS"}); return err },
		"a sleep":  func(r *saga.Run, _ *kinds) error { return r.Sleep("x", time.Minute) },
		"a signal": func(r *saga.Run, _ *kinds) error { _, err := saga.Receive[string](r, "x", time.Minute); return err },
		"a value": func(r *saga.Run, _ *kinds) error {
			_, err := saga.Value(r, "x", func() string { return "x" })
			return err
		},
	}
	for was, before := range do {
		for is, after := range do {
			t.Run(was+" that is "+is, func(t *testing.T) {
				t.Parallel()
				th := onSQLite(t)
				w := newKinds(th)
				function := func(first func(*saga.Run, *kinds) error) func(r *saga.Run, in trip) (string, error) {
					return func(r *saga.Run, _ trip) (string, error) {
						if err := first(r, w); err != nil {
							return "", err
						}
						if _, err := saga.Receive[string](r, "never", time.Hour); err != nil {
							return "", err
						}
						return "", nil
					}
				}
				old := newSaga(t, th.txs.Store, function(before), w.steps(was), nil)
				stop := running(t, old)
				begin(t, old, "7", trip{"LIS"})
				awaitEvents(t, th.txs.Store, "7", 2)
				stop()

				changed := newSaga(t, th.txs.Store, function(after), w.steps(is), nil)
				write(t, th.txs.Store, changed.Signal("7", "other", 1)) // has it go on
				defer running(t, changed)()
				if was == is {
					awaitEvents(t, th.txs.Store, "7", 3)
					require.NotContains(t, events(t, th.txs.Store, "7"), "Suspended x")
					return
				}
				status := waitInTime(t, changed, "7")
				require.Equal(t, "diverged", status.Suspended, status.Reason)
			})
		}
	}
}

// A saga of a later version is soon gone on with by a process that may, and says what it waits for.
func TestASagaOfALaterVersionWaitsForSecondsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, w := newStore(), newWorld()
		flight := w.step("flight", nil)
		book := func(s *saga.Run, in trip) (ticket, error) { return flight.Do(s, in) }
		one := newSaga(t, store, book, saga.Steps{flight}, nil)
		two := newSaga(t, store, book, saga.Steps{flight}, &saga.Config{Version: 2, Earlier: map[int]any{1: book}})
		defer running(t, one)()
		begin(t, two, "7", trip{"LIS"})
		time.Sleep(time.Minute)
		status, err := two.Status(t.Context(), "7")
		require.NoError(t, err)
		require.Equal(t, saga.StateRunning, status.State)
		require.Equal(t, "a process of version 2", status.Waits)

		// Each five seconds either of the two processes takes the saga, so it waits for chance only
		// once in a million runs.
		const chance = 2 * time.Minute
		stop := running(t, two)
		began := time.Now()
		require.Equal(t, "flight to LIS", waitFor(t, two, "7").Out.Reference)
		require.LessOrEqual(t, time.Since(began), chance)
		began = time.Now()
		for i := range 50 {
			begin(t, two, fmt.Sprint(i+10), trip{"LIS"})
		}
		var took []time.Duration
		for i := range 50 {
			require.Equal(t, saga.StateCompleted, waitFor(t, two, fmt.Sprint(i+10)).State)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		require.Less(t, took[len(took)/2], 30*time.Second)
		require.Less(t, took[len(took)-1], chance)
		stop()
	})
}

// A kinds has a step of each kind, all of the name x.
type kinds struct {
	step *saga.Step[trip, ticket]
	ask  *saga.Ask[trip, ticket]
	tx   *saga.TxStep[*sql.Tx, trip, ticket]
}

func newKinds(th *theatre[*sql.Tx]) *kinds {
	return &kinds{
		step: saga.NewStep("x", func(context.Context, trip) (ticket, error) { return ticket{"x"}, nil }, nil, nil),
		ask:  saga.NewAsk[trip, ticket]("x", func(context.Context, trip) (messagestore.StreamWrite, error) { return messagestore.StreamWrite{}, nil }, nil, nil),
		tx:   saga.NewTxStep("x", th.txs, func(context.Context, *sql.Tx, trip) (ticket, error) { return ticket{"x"}, nil }, nil, nil),
	}
}

func (k *kinds) steps(kind string) saga.Steps {
	switch kind {
	case "an ask":
		return saga.Steps{k.ask}
	case "a tx":
		return saga.Steps{k.tx}
	}
	return saga.Steps{k.step}
}

func awaitEvents(t *testing.T, store saga.Store, id string, n int) {
	t.Helper()
	testkit.Await(t, "events of the saga", func() (bool, any) { all := events(t, store, id); return len(all) >= n, all })
}
