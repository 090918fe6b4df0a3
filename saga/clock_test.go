package saga_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
)

const night = 10 * time.Minute

// waits are sagas that wait for a night, each in one way, and how each ends.
var waits = []struct {
	name string
	make func(t *testing.T, store *messagestore.Store, w *world) *saga.Saga[trip, int]
	ends saga.State
}{
	{"a sleep", func(t *testing.T, store *messagestore.Store, _ *world) *saga.Saga[trip, int] {
		return newSaga(t, store, func(r *saga.Run, _ trip) (int, error) { return 1, r.Sleep("night", night) }, nil, nil)
	}, saga.StateCompleted},
	{"a signal", func(t *testing.T, store *messagestore.Store, _ *world) *saga.Saga[trip, int] {
		return newSaga(t, store, func(r *saga.Run, _ trip) (int, error) { return saga.Receive[int](r, "approval", night) }, nil, nil)
	}, saga.StateCompensated},
	{"a deadline", func(t *testing.T, store *messagestore.Store, w *world) *saga.Saga[trip, int] {
		flight := w.step("flight", nil)
		return newSaga(t, store, func(r *saga.Run, in trip) (int, error) {
			if _, err := flight.Do(r, in); err != nil {
				return 0, err
			}
			return 1, r.Sleep("year", 365*24*time.Hour)
		}, saga.Steps{flight}, &saga.Config{Deadline: night})
	}, saga.StateCompensated},
	{"another attempt", func(t *testing.T, store *messagestore.Store, w *world) *saga.Saga[trip, int] {
		flight := w.step("flight", &saga.StepConfig{Retry: saga.Retry{MinBackoff: night, MaxBackoff: night}})
		w.fails("book flight", 1, errDown)
		return newSaga(t, store, func(r *saga.Run, in trip) (int, error) {
			_, err := flight.Do(r, in)
			return 1, err
		}, saga.Steps{flight}, nil)
	}, saga.StateCompleted},
	{"another attempt to undo", func(t *testing.T, store *messagestore.Store, w *world) *saga.Saga[trip, int] {
		flight := w.step("flight", &saga.StepConfig{Undo: saga.Retry{MinBackoff: night, MaxBackoff: night}})
		w.fails("cancel flight", 1, errDown)
		return newSaga(t, store, func(r *saga.Run, in trip) (int, error) {
			if _, err := flight.Do(r, in); err != nil {
				return 0, err
			}
			return 0, errDown
		}, saga.Steps{flight}, nil)
	}, saga.StateCompensated},
	{"a reply", func(t *testing.T, store *messagestore.Store, _ *world) *saga.Saga[trip, int] {
		car := rental(&saga.StepConfig{Timeout: night})
		return newSaga(t, store, func(r *saga.Run, in trip) (int, error) {
			_, err := car.Do(r, in)
			return 1, err
		}, saga.Steps{car}, nil)
	}, saga.StateCompensated},
}

// A saga that begins to wait while the store's clock is wrong waits for as long as it should, whether a process runs when the clock
// is right again, whether it was suspended meanwhile, and whatever comes in between.
func TestAClockThatWasAheadHoldsUpNoSaga(t *testing.T) {
	t.Parallel()
	year2099 := 73 * 365 * 24 * time.Hour
	jumps := []struct{ wrong, right time.Duration }{{time.Hour, 0}, {0, -time.Hour}, {time.Minute, 0}, {24 * time.Hour, 0}, {year2099, 0}}
	if !testkit.Long() {
		jumps = jumps[:2]
	}
	for _, jump := range jumps {
		for _, of := range waits {
			for _, during := range []string{"a process runs", "another process runs then", "signals come"} {
				t.Run(fmt.Sprintf("from %v to %v, %s, %s", jump.wrong, jump.right, of.name, during), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						var ahead atomic.Int64
						ahead.Store(int64(jump.wrong))
						clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
						store, w := testkit.Must(messagestore.New(memory.NewWithClock(clock), nil)), newWorld()
						s := of.make(t, store, w)
						stop := running(t, s)
						began := time.Now()
						begin(t, s, "7", trip{"LIS"})

						time.Sleep(2 * time.Second)
						if during == "another process runs then" {
							stop()
						}
						ahead.Store(int64(jump.right))
						if during == "another process runs then" {
							s = of.make(t, store, w)
							stop = running(t, s)
						}
						for range 3 {
							time.Sleep(2 * time.Minute)
							if during == "signals come" {
								write(t, store, s.Signal("7", "weather", "rain"))
							}
						}
						status := waitFor(t, s, "7")
						took := time.Since(began)
						stop()

						require.Equal(t, of.ends, status.State)
						require.Greater(t, took, night/2-time.Second, "of the pause before an attempt up to a half is left out")
						if of.name == "a sleep" {
							require.GreaterOrEqual(t, took, night)
						}
						require.Less(t, took, night+5*time.Second)
						verified, err := testkit.Must(saga.NewOperatorOver(store, "booking:saga", "ann")).Verify(context.Background(), nil)
						require.NoError(t, err)
						require.Empty(t, verified.Violations)
					})
				})
			}
		}
	}
}

// A lateDriver is one whose writes of what begins are three seconds on their way.
type lateDriver struct{ *memory.Driver }

func (d lateDriver) AppendAll(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, error) {
	if kind := all[0].Records[0].Type; kind == "Began" || kind == "Compensating" {
		time.Sleep(3 * time.Second)
	}
	return d.Driver.AppendAll(ctx, all)
}

// The clock of a store that is slow was not ahead: a time that it may have shown is none that it has shown.
func TestAStoreThatIsSlowHadNoClockThatWasAhead(t *testing.T) {
	t.Parallel()
	for _, of := range waits {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := memory.New()
				store, w := testkit.Must(messagestore.New(driver, nil)), newWorld()
				s := of.make(t, testkit.Must(messagestore.New(lateDriver{driver}, nil)), w)
				defer running(t, s)()
				begin(t, s, "7", trip{"LIS"})
				time.Sleep(3 * time.Second)
				for range 40 {
					time.Sleep(500 * time.Millisecond)
					write(t, store, s.Signal("7", "weather", "rain"))
				}
				require.Equal(t, of.ends, waitFor(t, s, "7").State)
				for m, err := range store.ReadStream(t.Context(), "booking:saga-7", 0) {
					require.NoError(t, err)
					require.NotEqual(t, "SetBack", m.Type, string(m.Data))
				}
			})
		})
	}
}
