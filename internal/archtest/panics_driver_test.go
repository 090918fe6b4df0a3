package archtest

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

// A breaking driver panics in one call, and in no other.
type breaking struct {
	*memory.Driver

	call  atomic.Pointer[string]
	broke atomic.Int64
}

func (d *breaking) breaks(call string) { d.call.Store(&call) }

func (d *breaking) at(calls ...string) {
	for _, call := range calls {
		if c := d.call.Load(); c != nil && *c == call {
			d.broke.Add(1)
			panic("broken: " + call)
		}
	}
}

// appends breaks a write to a category, or to a checkpoint.
func (d *breaking) appends(all ...messagestore.Append) {
	for _, a := range all {
		for _, r := range a.Records {
			d.at("append " + r.Type)
		}
	}
}

func (d *breaking) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	d.appends(a)
	return d.Driver.Append(ctx, a)
}

func (d *breaking) AppendAll(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, error) {
	d.appends(all...)
	return d.Driver.AppendAll(ctx, all)
}

func (d *breaking) TryAppend(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	d.appends(all...)
	return d.Driver.TryAppend(ctx, all)
}

func (d *breaking) Heads(ctx context.Context, categories []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	d.at("heads")
	return d.Driver.Heads(ctx, categories)
}

// Listen implements [messagestore.Driver].
func (d *breaking) Listen(ctx context.Context, _ func(messagestore.Category, messagestore.GlobalPosition)) error {
	d.at("listen")
	<-ctx.Done()
	return ctx.Err()
}

func (d *breaking) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	d.at("read " + string(q.Category))
	return d.Driver.ReadCategory(ctx, q)
}

func (d *breaking) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	d.at("extend")
	return d.Driver.QueueExtend(ctx, e)
}

func (d *breaking) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	d.at("park")
	return d.Driver.QueuePark(ctx, p)
}

func (d *breaking) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	d.at("ready")
	return d.Driver.QueueReady(ctx, q)
}

func (d *breaking) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	d.at("take")
	return d.Driver.QueueTake(ctx, t)
}

func (d *breaking) QueueItems(ctx context.Context, l queuing.List) ([]queuing.Item, error) {
	d.at("items")
	return d.Driver.QueueItems(ctx, l)
}

func (d *breaking) QueueStatus(ctx context.Context, q queuing.Queue) (queuing.Status, error) {
	d.at("status")
	return d.Driver.QueueStatus(ctx, q)
}

// Goroutines of the library call the driver, which may panic. No process ends by that: the call has the panic as its error, or what
// is done in the background is done again.
func TestADriverThatPanicsEndsNoProcess(t *testing.T) {
	t.Parallel()
	type scene struct {
		*testing.T
		*breaking

		store *messagestore.Store
	}
	failing := func(context.Context, handler.Message[held]) error { return handler.Park(errNoRoom) }
	for name, test := range map[string]func(s *scene){
		"a look at heads": func(s *scene) {
			bell, stop := s.store.Watch(seats, time.Second)
			defer stop()
			s.breaks("heads")
			<-bell // the waiter looks for itself
		},
		"a driver that listens": func(s *scene) {
			s.breaks("listen")
			bell, stop := s.store.Watch(seats, time.Second)
			defer stop()
			time.Sleep(time.Second)
			write(s.T, s.store, "seat-1", held{})
			<-bell
		},
		"a message that is parked": func(s *scene) {
			write(s.T, s.store, "seat-1", held{})
			mux := handler.New()
			handler.On(mux, failing)
			s.breaks("park")
			c := testkit.Must(consumer.New(s.store, seats, "seats", mux, &consumer.Config{Logger: logger.Silent()}))
			ends(s.T, c.Run, func() { s.breaks("") })
		},
		"a look at parked messages": func(s *scene) {
			s.breaks("ready")
			mux := handler.New()
			handler.On(mux, failing)
			ends(s.T, testkit.Must(consumer.New(s.store, seats, "seats", mux, &consumer.Config{Logger: logger.Silent()})).Run, func() { s.breaks("") })
		},
		"a message that is redriven": func(s *scene) {
			write(s.T, s.store, "seat-1", held{})
			mux := handler.New()
			handler.On(mux, failing)
			c := testkit.Must(consumer.New(s.store, seats, "seats", mux, &consumer.Config{Logger: logger.Silent()}))
			require.NoError(s, c.CatchUp(s.Context()))
			_, err := testkit.Must(operate.Consumer(s.store, seats, "seats").Parked()).Retry(s.Context(), "", 1)
			require.NoError(s, err)
			s.breaks("take")
			ends(s.T, c.Run, func() { s.breaks("") })
			require.EqualValues(s, 2, c.Stats().Failed)
		},
		"a checkpoint": func(s *scene) {
			write(s.T, s.store, "seat-1", held{})
			mux := handler.New()
			handler.On(mux, func(context.Context, handler.Message[held]) error { s.breaks("append Recorded"); return nil })
			c := testkit.Must(consumer.New(s.store, seats, "seats", mux, &consumer.Config{Logger: logger.Silent()}))
			ends(s.T, c.Run, func() { s.breaks("") })
		},
		"the extension of a session": func(s *scene) {
			write(s.T, s.store, "seat-1", held{})
			mux := handler.New()
			lost := make(chan error, 10)
			handler.On(mux, func(ctx context.Context, _ handler.Message[held]) error {
				if s.broke.Load() > 0 {
					return nil
				}
				<-ctx.Done()
				lost <- context.Cause(ctx)
				return nil
			})
			s.breaks("extend")
			q := testkit.Must(queue.New(s.store, seats, &queue.Config{Logger: logger.Silent()}))
			ends(s.T, func(ctx context.Context) error { return q.Work(ctx, mux, nil) }, func() {
				require.ErrorIs(s, <-lost, queue.ErrLost)
				s.breaks("")
			})
		},
		"a list of what is held": func(s *scene) {
			for range 100 {
				write(s.T, s.store, "seat-1", held{})
			}
			s.breaks("items")
			r := testkit.Must(outbox.New(s.store, seats, "seats", aSink(func() {}), &outbox.Config{Logger: logger.Silent()}))
			require.NoError(s, r.CatchUp(s.Context()))
			require.EqualValues(s, 100, r.Stats().Sent)
		},
		"a relay that catches up": func(s *scene) {
			s.breaks("status")
			r := testkit.Must(outbox.New(s.store, seats, "seats", aSink(func() {}), &outbox.Config{Logger: logger.Silent()}))
			require.NotNil(s, calling.PanicOf(r.CatchUp(s.Context())))
		},
		"a tick": func(s *scene) {
			c := testkit.Must(cron.New(s.store, "tick", &cron.Config{Logger: logger.Silent()}))
			require.NoError(s, c.Set(s.Context(), cron.Schedule{Name: "noon", Spec: "* * * * *", Body: held{}}))
			s.breaks("append Held")
			ends(s.T, c.Run, func() { s.breaks("") })
		},
		"the heartbeat of a lease": func(s *scene) {
			m := testkit.Must(intent.New(s.store, "seat:intent", &intent.Config{Logger: logger.Silent()}))
			answer, err := m.Reserve(s.Context(), intent.Request{Key: "1", Session: "1", Content: "1"})
			require.NoError(s, err)
			s.breaks("append Extended")
			work, stop := answer.Lease.Keep(s.Context())
			defer stop()
			<-work.Done()
			require.ErrorIs(s, context.Cause(work), intent.ErrLeaseLost)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &breaking{Driver: memory.New()}
				s := &scene{t, d, testkit.Must(messagestore.New(d, &messagestore.Config{Logger: logger.Silent()}))}
				defer s.store.Close()
				test(s)
				require.Positive(t, d.broke.Load(), strings.ToLower(name)+" has not panicked")
			})
		})
	}
}

// ends runs a part until some time after its call has panicked, and wants it to end well, or with the panic.
func ends(t *testing.T, run func(context.Context) error, mend func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- calling.Call(func() error { return run(ctx) }) }() // Run may panic as its caller's
	time.Sleep(2 * time.Minute)
	mend()
	time.Sleep(2 * time.Minute)
	stop()
	if err := <-ended; err != nil {
		require.NotNil(t, calling.PanicOf(err), "%v", err)
	}
}
