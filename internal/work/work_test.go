package work

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A process may be stopped between the moment when a delivery is given to a goroutine and the call of the handler.
func TestADeliveryWhoseLeaseEndsBeforeItsGoroutineRunsIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, late := range []bool{false, true} {
			const length = 10 * time.Second
			called := false
			w := &worker{
				Source: Source{Logger: logger.Silent()}, counts: &Counts{}, notes: &Notes{}, wakes: make(chan struct{}, 1),
				dispatch: newDispatch(),
				config: Config{
					MaxWorkers: 1, Prefetch: 1, Lease: length,
					Handle: func(context.Context, *Delivery) error { called = true; return nil },
					// Of one that fails every error: a saga's finish does.
					Finish: func(_ *Delivery, err error, _ bool) queuing.Finish {
						if err != nil {
							return queuing.Finish{Kind: queuing.Retry}
						}
						return queuing.Finish{Kind: queuing.Complete}
					},
				},
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			f := &Delivery{Item: queuing.Taking{Message: &messagestore.Message{GlobalPosition: 1}}, of: w, cancel: cancel, until: time.Now().Add(length)}
			w.deliveries[f.ID()] = f
			w.ready = append(w.ready, f)
			w.mu.Lock()
			require.Same(t, f, w.nextReady())
			w.mu.Unlock()
			if late {
				time.Sleep(length)
			}
			require.True(t, w.deliver(ctx, f))

			require.Equal(t, !late, called)
			require.Len(t, w.pending, 1)
			if late {
				require.Equal(t, queuing.Unhandled, w.pending[0].Kind)
			}
		}
	})
}

// A handler that goes on after its completion was committed keeps no session alive, and asks for none.
func TestWhatWasCommittedIsNamedByNoFurtherExtension(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const length = 10 * time.Second
		w := &worker{
			Source: Source{Logger: logger.Silent()}, counts: &Counts{}, wakes: make(chan struct{}, 1), dispatch: newDispatch(),
			lease: lease{session: 1}, config: Config{Lease: length},
		}
		f := &Delivery{Item: queuing.Taking{Message: &messagestore.Message{GlobalPosition: 1}}, of: w, cancel: func(error) { t.Error("its context ended") }, until: time.Now().Add(length)}
		f.Committed.Store(true)
		w.deliveries[f.ID()] = f
		time.Sleep(length)
		require.Equal(t, length/20, w.beatPause())

		named := []queuing.Delivery{f.ID()}
		w.extended(queuing.Extension{Session: 1, Deliveries: named}, time.Now(), named, nil)
		require.Zero(t, w.until())
		require.Equal(t, length/3, w.beatPause())
	})
}

// Of parked messages a slot has one taker, so it stands in no line, in which others would wait for it.
func TestATakeOfSlotsStandsInNoLine(t *testing.T) {
	t.Parallel()
	for slots, waits := range map[uint32]bool{0: true, 1: false} {
		w := &worker{Source: Source{Slots: slots}, looks: looks{look: true}}
		take := w.asks(nil, 1)
		require.Equal(t, slots, take.Slots)
		require.Equal(t, waits, take.Wait > 0)
	}
}

// Where each take has a session of its own, an extension names the session of each delivery, and one take's lease says
// nothing about what earlier takes have out.
func TestEachTakeMayHaveASessionOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const length = 10 * time.Second
		handled, ended := make(chan int64, 10), make(chan error, 10)
		w := &worker{
			Source: Source{Logger: logger.Silent()}, counts: &Counts{}, notes: &Notes{}, wakes: make(chan struct{}, 1), dispatch: newDispatch(), lease: newLease(),
			config: Config{
				MaxWorkers: 10, Prefetch: 10, Lease: length,
				Handle: func(ctx context.Context, d *Delivery) error {
					handled <- d.Item.Session
					<-ctx.Done()
					ended <- context.Cause(ctx)
					return nil
				},
				Finish: func(*Delivery, error, bool) queuing.Finish { return queuing.Finish{Kind: queuing.Complete} },
			},
		}
		begin := func(position messagestore.GlobalPosition, session int64, since time.Time) {
			w.begin(t.Context(), since, w.session, []queuing.Taking{{Message: &messagestore.Message{GlobalPosition: position}, Session: session}})
			synctest.Wait()
		}
		begin(1, 11, time.Now())
		require.EqualValues(t, 11, <-handled)
		time.Sleep(length / 2)
		begin(2, 12, time.Now())
		require.EqualValues(t, 12, <-handled)
		require.Equal(t, time.Now().Add(length/2), w.until(), "the first one's lease, which is whole")
		require.Equal(t, length*3/10, w.beatPause())

		begin(3, 13, time.Now().Add(-length*95/100)) // what waited at the server
		require.Empty(t, handled, "nobody knows whether it is the worker's")
		require.Len(t, w.beats, 1)
		two, three := queuing.Delivery{Position: 2}, queuing.Delivery{Position: 3}
		w.extended(queuing.Extension{Session: w.session, Deliveries: []queuing.Delivery{{Position: 1}, two, three}}, time.Now(), []queuing.Delivery{{Position: 1}}, nil)
		synctest.Wait()
		require.EqualValues(t, 13, <-handled)
		require.ErrorIs(t, <-ended, ErrLost)
		require.Empty(t, ended, "only the first one is lost")

		var sessions []int64
		for _, f := range w.deliveries {
			sessions = f.own(sessions)
			require.Equal(t, f.Item.Session, f.Sessions()[0])
		}
		require.ElementsMatch(t, []int64{12, 13}, sessions[len(sessions)-2:])
		w.mu.Lock()
		for _, f := range w.deliveries {
			f.cancel(nil)
		}
		w.mu.Unlock()
		synctest.Wait()
		require.Len(t, w.pending, 2)
		for _, e := range w.asks(w.pending, 0).Finishes {
			require.Equal(t, 10+int64(e.Position), e.Session)
		}
		close(w.over)
	})
}
