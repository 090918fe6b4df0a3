package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type Fax struct{}

func (Fax) MessageType() string { return "Fax" }

// An item without a handler stays, with the reason, until a process knows its type; others flow.
func TestAnItemOfAnUnknownTypeStays(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		var handled seen
		stop := working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			return nil
		}, &queue.WorkConfig{PollInterval: time.Minute})
		unknown, err := q.Insert(t.Context(), Fax{}, nil)
		require.NoError(t, err)
		insert(t, q, Send{To: "ann"}, nil)
		time.Sleep(24 * time.Hour)
		require.Equal(t, []string{"ann"}, handled.list())
		of := item(t, q, unknown.Position)
		require.Contains(t, []queue.State{queue.Later, queue.Out}, of.State)
		require.Zero(t, of.Failures)
		require.Regexp(t, "^f+$", whats(of))
		require.Contains(t, of.Log[0].Text, "unknown message type")
		require.LessOrEqual(t, len(of.Log), 70, "it is not asked for all the time")
		require.NoError(t, stop())

		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[Fax]) error { handled.add("fax"); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		require.NoError(t, q.Work(ctx, mux, nil))
		require.Equal(t, []string{"ann", "fax"}, handled.list())
	})
}

func TestAnItemThatCannotBeDecodedIsDead(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		working(t, q, func(context.Context, handler.Message[Send]) error { return nil }, nil)
		at, err := q.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte(`{"to":5}`)}, nil)
		require.NoError(t, err)
		time.Sleep(time.Second)
		of := item(t, q, at.Position)
		require.Equal(t, queue.Dead, of.State)
		require.Equal(t, "x", whats(of))
		require.Contains(t, of.Error, "to")
	})
}

// The bound is of all processes together.
func TestMaxOutBoundsAllProcesses(t *testing.T) {
	bubble(t, &queue.Config{MaxOut: 3, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		other := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", &queue.Config{MaxOut: 3, Logger: logger.Silent()}))
		var out, most, handled atomic.Int64
		for _, one := range []*queue.Queue{q, other} {
			working(t, one, func(context.Context, handler.Message[Send]) error {
				most.Store(max(most.Load(), out.Add(1)))
				time.Sleep(100 * time.Millisecond)
				out.Add(-1)
				handled.Add(1)
				return nil
			}, nil)
		}
		for range 30 {
			insert(t, q, Send{}, nil)
		}
		time.Sleep(time.Minute)
		require.EqualValues(t, 30, handled.Load())
		require.EqualValues(t, 3, most.Load())
	})
}

// Burst at once, and then Rate in a second.
func TestARateBoundsDeliveries(t *testing.T) {
	config := queue.Config{Rate: 2, Burst: 5, Logger: logger.Silent()}
	bubble(t, &config, func(t *testing.T, q *queue.Queue, driver *cut) {
		var handled atomic.Int64
		for range 20 {
			insert(t, q, Send{}, nil)
		}
		for _, one := range []*queue.Queue{q, testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", &config))} {
			working(t, one, func(context.Context, handler.Message[Send]) error { handled.Add(1); return nil }, nil)
		}
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 5, handled.Load())
		for n := int64(1); n <= 15; n++ {
			time.Sleep(500 * time.Millisecond)
			require.InDelta(t, 5+n, handled.Load(), 1)
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 20, handled.Load())
	})
}

func TestADeadItemHoldsItsKeyOrNot(t *testing.T) {
	for _, when := range []queue.WhenDead{queue.GoOn, queue.Hold} {
		t.Run(fmt.Sprint(when), func(t *testing.T) {
			bubble(t, &queue.Config{WhenDead: when, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *cut) {
				var handled seen
				var mended atomic.Bool
				working(t, q, func(_ context.Context, m handler.Message[Send]) error {
					handled.add(fmt.Sprint(m.Body.N))
					if m.Body.N == 1 && !mended.Load() {
						return handler.Park(errors.New("no such address"))
					}
					return nil
				}, nil)
				first := insert(t, q, Send{N: 1}, &queue.InsertOpts{Key: "ann"})
				second := insert(t, q, Send{N: 2}, &queue.InsertOpts{Key: "ann"})
				time.Sleep(time.Hour)
				of := item(t, q, first.Position)
				require.Equal(t, queue.Dead, of.State)
				require.Equal(t, when == queue.Hold, of.Closed)
				if when == queue.GoOn {
					require.Equal(t, []string{"1", "2"}, handled.list())
					return
				}
				require.Equal(t, []string{"1"}, handled.list())
				require.Equal(t, queue.Held, item(t, q, second.Position).State)
				mended.Store(true)
				changed, err := q.Retry(t.Context(), "address added", first.Position)
				require.NoError(t, err)
				require.Len(t, changed, 1)
				time.Sleep(time.Minute)
				require.Equal(t, []string{"1", "1", "2"}, handled.list())
			})
		})
	}
}

// A call waits while the queue is paused, and is served after.
func TestAPausedQueueDeliversNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		var handled seen
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			return nil
		}, nil)
		require.NoError(t, q.Pause(t.Context()))
		insert(t, q, Send{To: "ann"}, nil)
		jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute})
		require.NoError(t, err)
		require.Empty(t, jobs)
		require.Empty(t, handled.list())
		status, err := q.Status(t.Context())
		require.NoError(t, err)
		require.True(t, status.Paused)
		require.NoError(t, q.Resume(t.Context()))
		time.Sleep(time.Second)
		require.Equal(t, []string{"ann"}, handled.list())
	})
}

func TestAnItemThatIsCancelledBeforeItIsTakenIsNeverDelivered(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		var handled seen
		at := insert(t, q, Send{To: "ann"}, &queue.InsertOpts{Key: "k"})
		insert(t, q, Send{To: "bob"}, &queue.InsertOpts{Key: "k"})
		changed, err := q.Cancel(t.Context(), "sent twice", at.Position)
		require.NoError(t, err)
		require.Len(t, changed, 1)
		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			return nil
		}, nil)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"bob"}, handled.list())
		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
	})
}

func TestAHandlerMayPutItsItemOff(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		began := time.Now()
		var after seen
		working(t, q, func(context.Context, handler.Message[Send]) error {
			after.add(time.Since(began).Round(time.Second).String())
			if len(after.list()) < 3 {
				return handler.RetryAfter(time.Hour, errors.New("closed"))
			}
			return nil
		}, nil)
		at := insert(t, q, Send{}, nil)
		time.Sleep(5 * time.Hour)
		require.Equal(t, []string{"0s", "1h0m0s", "2h0m0s"}, after.list())
		of := item(t, q, at.Position)
		require.Equal(t, "ff", whats(of))
		require.Contains(t, of.Log[0].Text, "closed")
	})
}

// A failed item comes again after a time that doubles, within bounds.
func TestFailuresAreBackedOffFrom(t *testing.T) {
	bubble(t, &queue.Config{MaxFailures: 6, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *cut) {
		deliveries := make(chan time.Time, 9)
		working(t, q, func(context.Context, handler.Message[Send]) error {
			deliveries <- time.Now()
			return errors.New("no")
		}, &queue.WorkConfig{MinBackoff: time.Second, MaxBackoff: 8 * time.Second})
		insert(t, q, Send{}, nil)
		time.Sleep(time.Hour)
		require.Len(t, deliveries, 6)
		last := <-deliveries
		for i, most := range []time.Duration{1, 2, 4, 8, 8} {
			next := <-deliveries
			pause := next.Sub(last)
			last = next
			require.LessOrEqual(t, pause, most*time.Second+200*time.Millisecond, i)
			require.GreaterOrEqual(t, pause, most*time.Second/2, i)
		}
	})
}

func TestOneProcessWorksOnceAtATime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[Send]) error { return nil })
		stop := working(t, q, func(context.Context, handler.Message[Send]) error { return nil }, nil)
		synctest.Wait()
		require.ErrorIs(t, q.Work(t.Context(), mux, nil), queue.ErrWorking)
		require.NoError(t, stop())
		ended, end := context.WithCancel(t.Context())
		end()
		require.NoError(t, q.Work(ended, mux, nil))
	})
}

// A caller that waits longer is served first, though the other asks more often; a dead one costs a short time.
func TestCallersAreServedInTheirOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		got := make(chan string, 4)
		for _, name := range []string{"first", "second", "third"} {
			go func() {
				jobs, err := q.Receive(context.Background(), 1, &queue.ReceiveOpts{Wait: 10 * time.Minute})
				if err == nil && len(jobs) == 1 {
					got <- name
					_ = jobs[0].Complete(context.Background())
				}
			}()
			time.Sleep(time.Second)
		}
		for _, want := range []string{"first", "second", "third"} {
			insert(t, q, Send{}, nil)
			require.Equal(t, want, <-got)
		}
	})
}
