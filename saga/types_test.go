package saga_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// A release is a definition of a saga over a store.
type release func(t *testing.T, store saga.Store) *saga.Saga[trip, string]

// releaseOf is a saga that does a step, and then waits for a signal.
func releaseOf[Out any](do func(r *saga.Run, in trip) (Out, error), steps saga.Steps) release {
	return func(t *testing.T, store saga.Store) *saga.Saga[trip, string] {
		t.Helper()
		return newSaga(t, store, func(r *saga.Run, in trip) (string, error) {
			if _, err := do(r, in); err != nil {
				return "", err
			}
			_, err := saga.Receive[string](r, "approved", time.Hour)
			return "", err
		}, steps, nil)
	}
}

// called is a release whose step is a call with an output.
func called[Out any](out Out) release {
	step := saga.NewStep("flight", func(context.Context, trip) (Out, error) { return out, nil }, func(context.Context, trip, *Out) error { return nil }, soon)
	return releaseOf(step.Do, saga.Steps{step})
}

// asked is a release whose step is an ask of that name.
func asked[Out any]() release {
	ask := saga.NewAsk("flight", func(context.Context, trip) (messagestore.StreamWrite, error) { return messagestore.StreamWrite{}, nil },
		func(context.Context, trip, *Out) (messagestore.StreamWrite, error) {
			return messagestore.StreamWrite{}, nil
		}, soon)
	return releaseOf(ask.Do, saga.Steps{ask})
}

// A release has another type of output for a step whose output is recorded. Where that does not decode, the saga is suspended with
// the step's name, whether it goes on or is undone; with the type put back it goes on.
func TestAnOutputOfAnotherTypeIsFoundOutWhereItDoesNotDecode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		was, is release
		replied bool
	}{
		"a step": {
			called(ticket{"7"}), called(7), false,
		},
		"an ask": {
			asked[ticket](), asked[[]string](), true,
		},
	} {
		for _, undone := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					was := c.was(t, store)
					begin(t, was, "7", trip{"LIS"})
					stop := running(t, was)
					if c.replied {
						synctest.Wait()
						write(t, store, was.Reply("7", "flight", ticket{"7"}))
					}
					time.Sleep(time.Minute)
					stop()

					is := c.is(t, store)
					if undone {
						_, err := is.Cancel(t.Context(), "7", "not wanted")
						require.NoError(t, err)
					} else {
						write(t, store, is.Signal("7", "approved", "yes"))
					}
					stop = running(t, is)
					status := waitFor(t, is, "7")
					stop()
					require.Equal(t, "invalid", status.Suspended, status.Reason)
					require.Equal(t, "flight", status.Step)
					require.Contains(t, status.Reason, "output")
					require.Contains(t, status.Reason, "cannot unmarshal")

					defer running(t, was)()
					_, err := was.Resume(t.Context(), "7", "put back")
					require.NoError(t, err)
					want := saga.StateCompleted
					if undone {
						want = saga.StateCompensated
					}
					require.Equal(t, want, waitFor(t, was, "7").State)
				})
			})
		}
	}
}

// A step that began as one kind is not undone as another, whose undo would be called with what that never recorded.
func TestAStepIsNotUndoneAsAnotherKind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		was, is release
		want    string
	}{
		"a step that is an ask": {
			called(ticket{"7"}),
			asked[ticket](),
			"undo flight: it began as a Step, and is an Ask now",
		},
		"an ask that is a step": {
			asked[ticket](),
			called(ticket{"7"}),
			"undo flight: it began as an Ask, and is a Step now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				was := c.was(t, store)
				begin(t, was, "7", trip{"LIS"})
				stop := running(t, was)
				time.Sleep(time.Minute)
				stop()
				_, err := was.Cancel(t.Context(), "7", "not wanted")
				require.NoError(t, err)

				is := c.is(t, store)
				stop = running(t, is)
				status := waitFor(t, is, "7")
				stop()
				require.Equal(t, "diverged", status.Suspended, status.Reason)
				require.Contains(t, status.Reason, c.want)
				require.NotContains(t, events(t, store, "7"), "Undone flight")

				defer running(t, was)()
				_, err = was.Resume(t.Context(), "7", "put back")
				require.NoError(t, err)
				require.Equal(t, saga.StateCompensated, waitFor(t, was, "7").State)
			})
		})
	}
}
