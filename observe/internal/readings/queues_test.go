package readings

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A driver counts the calls of Queues, and fails as it is told.
type driver struct {
	*memory.Driver
	calls  int
	err    error
	silent bool
}

func (d *driver) Queues(ctx context.Context) ([]queuing.Status, error) {
	d.calls++
	if d.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(time.Second)
	return []queuing.Status{{Queue: queuing.Queue{Name: "mail"}, Dead: int64(d.calls)}}, d.err
}

func TestTheStoreIsAskedOnceInAnInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{Driver: memory.New()}
		r := testkit.Must(NewQueueReader(testkit.Must(messagestore.New(d, nil))))
		var readers sync.WaitGroup
		for range 5 {
			readers.Go(func() {
				all, err := r.Read(t.Context())
				if err != nil || len(all) != 1 || all[0].Dead != 1 {
					t.Errorf("a reader beside others has %v, %v", all, err)
				}
			})
		}
		readers.Wait()
		time.Sleep(Interval - time.Nanosecond)
		all, err := r.Read(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, all[0].Dead)
		require.Equal(t, 1, d.calls)

		time.Sleep(time.Nanosecond)
		all, err = r.Read(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, all[0].Dead)
	})
}

func TestAnErrorLeavesNoNumbersAndIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{Driver: memory.New()}
		r := testkit.Must(NewQueueReader(testkit.Must(messagestore.New(d, nil))))
		_, err := r.Read(t.Context())
		require.NoError(t, err)
		time.Sleep(Interval)
		d.err = errors.New("no store")
		for range 2 {
			all, err := r.Read(t.Context())
			require.ErrorIs(t, err, d.err)
			require.Empty(t, all)
		}
		require.Equal(t, 2, d.calls)

		time.Sleep(Interval)
		d.err = nil
		all, err := r.Read(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
	})
}

func TestAReadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &driver{Driver: memory.New(), silent: true}
		r := testkit.Must(NewQueueReader(testkit.Must(messagestore.New(d, nil))))
		start := time.Now()
		_, err := r.Read(context.Background())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, Timeout, time.Since(start))

		time.Sleep(Interval) // a caller whose time ends does not wait for another's read
		go func() { _, _ = r.Read(context.Background()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = r.Read(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		time.Sleep(Timeout)
		require.Equal(t, 2, d.calls)
	})
}

// Each number is another, so that none can stand for another.
func TestEachGaugeIsOfItsOwnNumber(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	s := queuing.Status{Out: 1, Later: 2, Held: 4, Suspended: 8, Dead: 16, Due: 32, Sessions: 64, Time: now, Oldest: now.Add(-1500 * time.Millisecond), Waiting: true}
	values := map[string]float64{}
	for _, g := range QueueGauges {
		values[g.Name] = g.Of(s)
	}
	require.Equal(t, map[string]float64{
		"open": 15, "waiting": 1, "out": 1, "later": 2, "held": 4, "suspended": 8, "dead": 16, "due": 32, "sessions": 64, "oldest_seconds": 1.5, "paused": 0,
	}, values)
	for _, g := range QueueGauges {
		switch g.Name {
		case "paused":
			require.InDelta(t, 1, g.Of(queuing.Status{Paused: true}), 0)
		default:
			require.Zero(t, g.Of(queuing.Status{Time: now}), g.Name)
		}
	}
}

// memory.Driver keeps queues; a driver of messages alone does not.
type plain struct{ messagestore.Driver }

func TestMistakesAreTold(t *testing.T) {
	t.Parallel()
	_, err := NewQueueReader(nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = NewQueueReader(&messagestore.Store{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = NewQueueReader(testkit.Must(messagestore.New(plain{memory.New()}, nil)))
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}
