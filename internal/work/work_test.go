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
				dispatch: newDispatch(), lease: lease{until: time.Now().Add(length)},
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
			f := &Delivery{Item: queuing.Taking{Message: &messagestore.Message{GlobalPosition: 1}}, of: w, cancel: cancel}
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
			lease: lease{session: 1, until: time.Now().Add(length)}, config: Config{Lease: length},
		}
		f := &Delivery{Item: queuing.Taking{Message: &messagestore.Message{GlobalPosition: 1}}, of: w, cancel: func(error) { t.Error("its context ended") }}
		f.Committed.Store(true)
		w.deliveries[f.ID()] = f
		time.Sleep(length)
		require.Equal(t, length/20, w.beatPause())

		named := []queuing.Delivery{f.ID()}
		w.extended(queuing.Extension{Session: 1, Deliveries: named}, time.Now(), named, nil)
		require.False(t, w.holds())
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
