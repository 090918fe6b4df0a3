package saga_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// A disposed is how a saga is after one of its functions had a disposition.
type disposed struct {
	state saga.State
	why   string // for which it is suspended
	did   string
}

// wrappings are ways in which an error comes around a disposition.
var wrappings = map[string]func(error) error{
	"wrapped": func(err error) error { return fmt.Errorf("book: %w", err) },
	"joined":  func(err error) error { return errors.Join(errors.New("the receipt is lost"), err) },
}

// pause is longer than the first pauses of a policy.
const pause = 2 * time.Minute

// dispositions are what the function under test returns: a RetryAfter three times, and any other once.
var dispositions = map[string]error{
	"Park":       handler.Park(errDown),
	"RetryAfter": handler.RetryAfter(pause, errDown),
	"Skip":       handler.Skip("it is not needed"),
	"Refuse":     handler.Refuse(errDown),
}

// times returns how often the function under test fails.
func times(name string) int {
	if name == "RetryAfter" {
		return 3
	}
	return 1
}

// failsWith has the calls of a function fail with a disposition, and behind a RetryAfter one without any.
func failsWith(w *world, what, name string, err error) {
	w.on(what, func(_ context.Context, call int) error {
		switch {
		case call <= times(name):
			return err
		case name == "RetryAfter" && call == times(name)+1:
			return errDown
		}
		return nil
	})
}

// The rows of a saga in the table of package handler: flight is booked, and then the function under test has the
// disposition. Behind three of RetryAfter one failure counts, of two attempts that the policy has.
func TestDispositions(t *testing.T) {
	t.Parallel()
	twice := &saga.StepConfig{Retry: saga.Retry{MaxAttempts: 2}, Undo: saga.Retry{MaxAttempts: 2}} // would try again after Refuse
	policies := map[string]*saga.StepConfig{"Park": twice, "RetryAfter": twice, "Skip": twice, "Refuse": twice}

	for place, test := range map[string]struct {
		saga func(t *testing.T, store *messagestore.Store, w *world, name string, err error) *saga.Saga[trip, ticket]
		want map[string]disposed
	}{
		"step": {
			func(t *testing.T, store *messagestore.Store, w *world, name string, err error) *saga.Saga[trip, ticket] {
				t.Helper()
				failsWith(w, "book hotel", name, err)
				return inARow(t, store, w.step("flight", nil), w.step("hotel", policies[name]))
			},
			map[string]disposed{
				"Park":       {saga.StateSuspended, "failed", "book flight, book hotel"},
				"RetryAfter": {saga.StateCompleted, "", "book flight, book hotel, book hotel, book hotel, book hotel, book hotel"},
				"Skip":       {saga.StateSuspended, "invalid", "book flight, book hotel"},
				"Refuse":     {saga.StateCompensated, "", "book flight, book hotel, cancel hotel?, cancel flight"},
			},
		},
		"undo": {
			func(t *testing.T, store *messagestore.Store, w *world, name string, err error) *saga.Saga[trip, ticket] {
				t.Helper()
				w.fails("book hotel", 1, handler.Refuse(errors.New("full")))
				failsWith(w, "cancel flight", name, err)
				return inARow(t, store, w.step("flight", policies[name]), w.step("hotel", nil))
			},
			map[string]disposed{
				"Park":       {saga.StateSuspended, "undo failed", "book flight, book hotel, cancel hotel?, cancel flight"},
				"RetryAfter": {saga.StateCompensated, "", "book flight, book hotel, cancel hotel?, cancel flight, cancel flight, cancel flight, cancel flight, cancel flight"},
				"Skip":       {saga.StateSuspended, "invalid", "book flight, book hotel, cancel hotel?, cancel flight"},
				"Refuse":     {saga.StateSuspended, "undo failed", "book flight, book hotel, cancel hotel?, cancel flight"},
			},
		},
		"function": {
			func(t *testing.T, store *messagestore.Store, w *world, name string, err error) *saga.Saga[trip, ticket] {
				t.Helper()
				flight, runs := w.step("flight", nil), 0
				return newSaga(t, store, func(s *saga.Run, in trip) (ticket, error) {
					out, waits := flight.Do(s, in)
					if waits != nil {
						return out, waits
					}
					if runs++; runs <= times(name) {
						return out, err
					}
					return out, nil
				}, saga.Steps{flight}, nil)
			},
			map[string]disposed{
				"Park":       {saga.StateSuspended, "failed", "book flight"},
				"RetryAfter": {saga.StateCompleted, "", "book flight"},
				"Skip":       {saga.StateSuspended, "invalid", "book flight"},
				"Refuse":     {saga.StateCompensated, "", "book flight, cancel flight"},
			},
		},
		"function without a step": {
			func(t *testing.T, store *messagestore.Store, _ *world, name string, err error) *saga.Saga[trip, ticket] {
				t.Helper()
				began := time.Now()
				return newSaga(t, store, func(*saga.Run, trip) (ticket, error) {
					if name != "RetryAfter" || time.Since(began) < time.Duration(times(name))*pause {
						return ticket{}, err
					}
					return ticket{}, nil
				}, nil, nil)
			},
			map[string]disposed{
				"Park":       {saga.StateSuspended, "failed", ""},
				"RetryAfter": {saga.StateCompleted, "", ""},
				"Skip":       {saga.StateSuspended, "invalid", ""},
				"Refuse":     {saga.StateCompensated, "", ""},
			},
		},
		"command": {
			func(t *testing.T, store *messagestore.Store, w *world, name string, err error) *saga.Saga[trip, ticket] {
				t.Helper()
				w.fails("ask", times(name), err)
				car := saga.NewAsk("car", func(ctx context.Context, in trip) (messagestore.StreamWrite, error) {
					err := w.call(ctx, "ask", "")
					return messagestore.To("car:command-1", messagestore.AnyVersion, rent{in.To}), err
				}, func(ctx context.Context, _ trip, out *ticket) (messagestore.StreamWrite, error) {
					return messagestore.StreamWrite{}, w.call(ctx, fmt.Sprint("take back ", out), "")
				}, nil)
				flight := w.step("flight", nil)
				s := newSaga(t, store, func(s *saga.Run, in trip) (ticket, error) {
					if out, err := flight.Do(s, in); err != nil {
						return out, err
					}
					return car.Do(s, in)
				}, saga.Steps{flight, car}, nil)
				if name == "RetryAfter" { // the reply comes when the command is there
					answer := func(ctx context.Context, _ *messagestore.Message) error {
						_, err := store.WriteStreams(ctx, s.Reply("7", "car", ticket{"red"}))
						return err
					}
					cars := testkit.Must(consumer.New(store, "car:command", "cars", handler.HandlerFunc(answer), &consumer.Config{Logger: silent, Start: consumer.FromStart()}))
					t.Cleanup(running(t, cars))
				}
				return s
			},
			map[string]disposed{
				"Park":       {saga.StateSuspended, "failed", "book flight, ask"},
				"RetryAfter": {saga.StateCompleted, "", "book flight, ask, ask, ask, ask"},
				"Skip":       {saga.StateSuspended, "invalid", "book flight, ask"},
				"Refuse":     {saga.StateCompensated, "", "book flight, ask, take back <nil>, cancel flight"},
			},
		},
	} {
		for name, disposition := range dispositions {
			for how, wrap := range wrappings {
				t.Run(fmt.Sprint(place, " ", name, " ", how), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						store, w := newStore(), newWorld()
						s := test.saga(t, store, w, name, wrap(disposition))
						defer running(t, s)()
						before := time.Now()

						begin(t, s, "7", trip{"LIS"})
						status := waitFor(t, s, "7")

						want := test.want[name]
						require.Equal(t, want.state, status.State, "%+v", status)
						require.Equal(t, want.did, w.did())
						if want.why != "" {
							require.Equal(t, want.why, status.Suspended)
						}
						took := time.Duration(0)
						if name == "RetryAfter" {
							took = 3 * pause
						}
						require.Equal(t, took, time.Since(before).Truncate(time.Minute))
					})
				})
			}
		}
	}
}

// inARow is a saga of two steps, one after the other.
func inARow(t *testing.T, store *messagestore.Store, first, second *saga.Step[trip, ticket]) *saga.Saga[trip, ticket] {
	t.Helper()
	return newSaga(t, store, func(s *saga.Run, in trip) (ticket, error) {
		if out, err := first.Do(s, in); err != nil {
			return out, err
		}
		return second.Do(s, in)
	}, saga.Steps{first, second}, nil)
}

// In a transaction nothing is done by an attempt that failed, and nothing undone.
func TestDispositionsOfATransaction(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		disposed

		rows int
	}{
		"Park":       {disposed{saga.StateSuspended, "failed", "take"}, 0},
		"RetryAfter": {disposed{saga.StateCompleted, "", "take, take, take, take"}, 1},
		"Skip":       {disposed{saga.StateSuspended, "invalid", "take"}, 0},
		"Refuse":     {disposed{saga.StateCompensated, "", "take"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := onSQLite(t)
			err := dispositions[name]
			if name == "RetryAfter" {
				err = handler.RetryAfter(time.Millisecond, errDown)
			}
			th.w.fails("take", times(name), fmt.Errorf("take: %w", err))
			seats := th.seats()
			s := newSaga(t, th.txs, seats.Do, saga.Steps{seats}, nil)
			defer running(t, s)()

			begin(t, s, "7", trip{"LIS"})
			status := waitInTime(t, s, "7")

			require.Equal(t, want.state, status.State, "%+v", status)
			require.Equal(t, want.did, th.w.did())
			if want.why != "" {
				require.Equal(t, want.why, status.Suspended)
			}
			rows, _ := th.taken(t)
			require.Equal(t, want.rows, rows)
		})
	}
}

// The function of Answer refuses the step; for the other dispositions it is a handler as any other.
func TestDispositionsOfAnAnswer(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		state           saga.State
		parked, skipped int64
	}{
		"Park":       {saga.StateRunning, 1, 0},
		"RetryAfter": {saga.StateCompleted, 0, 0},
		"Skip":       {saga.StateRunning, 0, 1},
		"Refuse":     {saga.StateCompensated, 0, 0},
	} {
		for how, wrap := range wrappings {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store, w := newStore(), newWorld()
					s := withCar(t, store, w, &saga.StepConfig{Timeout: 1000 * time.Hour})
					defer running(t, s)()
					calls := 0
					mux := handler.New()
					mux.IgnoreUnknown()
					handler.Register(mux, saga.Answer(s, "car", func(_ context.Context, m handler.Message[rent]) (rented, error) {
						if calls++; calls <= times(name) {
							return rented{}, wrap(dispositions[name])
						}
						return rented{m.Body.City}, nil
					}))
					config := &consumer.Config{Logger: silent, Start: consumer.FromStart(), Correlation: s.Category(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}}
					answers := testkit.Must(consumer.New(store, "car:command", "answers", mux, config))
					defer running(t, answers)()

					begin(t, s, "7", trip{"LIS"})
					time.Sleep(4 * pause)

					status, err := s.Status(t.Context(), "7")
					require.NoError(t, err)
					require.Equal(t, want.state, status.State)
					require.Equal(t, want.parked, answers.Stats().Parked)
					require.Equal(t, want.skipped, answers.Stats().Skipped)
				})
			})
		}
	}
}

// Each attempt is recorded, so one that a function asks for at once does not come at once.
func TestAnAttemptThatIsAskedForAtOnceWaitsForASecond(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"book hotel", "cancel flight"} {
		for _, asked := range []time.Duration{0, -time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				w.fails(what, 5, handler.RetryAfter(asked, errDown))
				if what == "cancel flight" {
					w.fails("book hotel", 9, refusal("full"))
				}
				s := travelWith(t, store, w, nil, nil)
				defer running(t, s)()
				began := time.Now()
				begin(t, s, "7", trip{"LIS"})
				waitFor(t, s, "7")
				require.GreaterOrEqual(t, time.Since(began), 5*time.Second)
				require.Equal(t, 6, w.calls[what])
			})
		}
	}
}
