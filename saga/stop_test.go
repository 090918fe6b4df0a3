package saga_test

import (
	"context"
	"errors"
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

// An awayDriver is one whose queues may be away.
type awayDriver struct {
	*memory.Driver

	away atomic.Bool
}

func (d *awayDriver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if d.away.Load() {
		return queuing.Taken{}, errDown
	}
	return d.Driver.QueueTake(ctx, t)
}

func (d *awayDriver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if d.away.Load() {
		return nil, errDown
	}
	return d.Driver.QueueExtend(ctx, e)
}

// A process that has lost its saga, since it could not extend its lease, calls no step, command or undo of it.
func TestNoStepOfASagaThatIsLostIsCalled(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"step", "ask"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := &awayDriver{Driver: memory.New()}
				store := testkit.Must(messagestore.New(driver, nil))
				var vain, calls, runs atomic.Int64
				called := func(ctx context.Context) {
					calls.Add(1)
					if ctx.Err() != nil || driver.away.Load() {
						vain.Add(1)
					}
				}
				flight := saga.NewStep("flight", func(ctx context.Context, _ trip) (ticket, error) { called(ctx); return ticket{}, nil }, nil, nil)
				car := saga.NewAsk[trip, ticket]("car", func(ctx context.Context, _ trip) (messagestore.StreamWrite, error) {
					called(ctx)
					return messagestore.StreamWrite{}, nil
				}, nil, nil)
				s := newSaga(t, store, func(r *saga.Run, in trip) (ticket, error) {
					if runs.Add(1) == 1 {
						driver.away.Store(true)
						time.Sleep(5 * time.Second)
						time.AfterFunc(time.Second, func() { driver.away.Store(false) })
					}
					if kind == "ask" {
						return car.Do(r, in)
					}
					return flight.Do(r, in)
				}, saga.Steps{flight, car}, &saga.Config{Lease: 2 * time.Second})
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})
				time.Sleep(time.Minute)

				require.Zero(t, vain.Load(), "calls of what was another's")
				require.EqualValues(t, 1, calls.Load())
				status, err := s.Status(t.Context(), "7")
				require.NoError(t, err)
				require.Empty(t, status.Suspended)
			})
		})
	}
}

// What a step returns after the stop has ended its context is no failure; that it is done is recorded.
func TestAStepThatEndsBehindAStop(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err   error
		calls int
	}{
		"it is done": {nil, 1}, "an error of another process": {errors.New("signal: killed"), 2}, "a refusal": {refusal("full"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, w := newStore(), newWorld()
				s := travelWith(t, store, w, nil, &saga.StepConfig{Timeout: time.Minute, Retry: saga.Retry{MaxAttempts: 1}})
				w.on("book flight", func(ctx context.Context, call int) error {
					if call > 1 {
						return nil
					}
					<-ctx.Done()
					return test.err
				})
				stop := running(t, s)
				begin(t, s, "7", trip{"LIS"})
				time.Sleep(time.Second)
				stop()
				require.NotContains(t, strings.Join(events(t, store, "7"), ", "), "Failed")

				defer running(t, s)()
				require.Equal(t, saga.StateCompleted, waitFor(t, s, "7").State)
				w.mu.Lock()
				defer w.mu.Unlock()
				require.Equal(t, test.calls, w.calls["book flight"])
			})
		})
	}
}
