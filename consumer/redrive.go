package consumer

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of the work on parked messages.
const (
	// maxRedrives bounds the parked messages that a run has in its lanes.
	maxRedrives = 100

	// maxKills is how many processes may die while they redrive a message before it is dead again.
	maxKills = 20

	// never is longer than any run catches up.
	never = 10_000 * time.Hour
)

// errNotRedriven gives an item back: its handler was not called, or had not finished when the run
// ended.
var errNotRedriven = errors.New("the consumer stops")

// redrives is a run's work on the queue of the consumer's parked messages. It looks there for
// messages to park, and for items that an operator has offered again. A worker of the queue takes
// those and puts them through the lanes of the run; it lives until it finds no more. The redrives
// belong to the run's loop.
type redrives struct {
	looks    chan look
	ends     chan error                       // of the worker
	bell     chan messagestore.GlobalPosition // the worker has something to take
	left     chan struct{}                    // closed when the run stops waiting for handlers
	looked   bool                             // the first look has ended, so the requests to park are known
	looking  bool
	working  bool
	at       time.Time // when to look
	failures int       // in a row
	parked   map[messagestore.GlobalPosition]asked
	counts   work.Counts
}

// An asked is an operator's request to park a message.
type asked struct {
	reason string
	parked bool // by an earlier run with a checkpoint before the message
}

// A look is the result of a look at the queue.
type look struct {
	parks map[messagestore.GlobalPosition]asked
	ready bool // there may be an item to take
	err   error
}

// A redrive is a parked message that is delivered again.
type redrive struct {
	onLost func(f func()) (stop func() bool) // calls f when the run loses the item
	begun  atomic.Bool                       // the handler has begun, or the item was given back before
	done   chan error                        // the handler's result
}

func newRedrives() *redrives {
	return &redrives{
		looks: make(chan look, 1), ends: make(chan error, 1), bell: make(chan messagestore.GlobalPosition, 1), left: make(chan struct{}),
	}
}

// busy reports whether a goroutine is at work.
func (r *redrives) busy() bool { return r.looking || r.working }

// quiet reports whether nothing is being redriven, as far as is known.
func (r *redrives) quiet(now time.Time) bool { return !r.busy() && now.Before(r.at) }

// start looks at the queue, if it is time.
func (r *redrives) start(ctx context.Context, run *run, now time.Time) {
	if r.looking || now.Before(r.at) {
		return
	}
	r.looking = true
	first := !r.looked
	run.wg.Go(func() {
		var found look
		found.err = calling.Call(func() (err error) {
			ctx, cancel := context.WithTimeout(calling.Upkeep(ctx), checkpoint.CallTimeout)
			defer cancel()
			found, err = run.look(ctx, first)
			return err
		})
		r.looks <- found
	})
}

// look reads the messages to park, and whether there is an item to take.
func (r *run) look(ctx context.Context, first bool) (found look, err error) {
	queues, err := queuing.Of(r.store)
	if errors.Is(err, messagestore.ErrNotSupported) {
		return look{}, nil
	}
	if err != nil {
		return look{}, err
	}
	found.parks = map[messagestore.GlobalPosition]asked{}
	if first { // what was parked because an operator has asked, before a run ended at once
		err := r.each(ctx, queues, queuing.Dead, r.from, func(item queuing.Item) error {
			if reason, is := strings.CutPrefix(item.Error, checkpoint.ByOperator); is {
				found.parks[item.Position] = asked{reason, true}
			}
			return nil
		})
		if err != nil {
			return look{}, err
		}
	}
	ready, err := queues.QueueReady(ctx, r.id.Parked())
	if found.ready = ready.Ready && ready.Parked; err != nil || !ready.Asked {
		return found, err
	}
	err = r.each(ctx, queues, queuing.Suspended, 0, func(item queuing.Item) error {
		if r.checkpoints.place.Mine(item.Message.Stream, item.Position) && item.Position >= r.progress.checkpoint() {
			found.parks[item.Position] = asked{reason: item.Error}
			return nil
		}
		return r.void(ctx, queues, item)
	})
	return found, err
}

// each calls f with the items in a state that are in the run's slots.
func (r *run) each(ctx context.Context, queues queuing.Driver, state queuing.State, from messagestore.GlobalPosition, f func(queuing.Item) error) error {
	for {
		items, err := queues.QueueItems(ctx, queuing.List{Queue: r.id.Parked(), State: state, From: from, Limit: queuing.MaxItems})
		if err != nil || len(items) == 0 {
			return err
		}
		for _, item := range items {
			from = item.Position.Next()
			if item.Message == nil || !r.checkpoints.place.MySlot(item.Message.Stream) {
				continue
			}
			if err := f(item); err != nil {
				return err
			}
		}
	}
}

// void withdraws the request to park a message that is finished.
func (r *run) void(ctx context.Context, queues queuing.Driver, item queuing.Item) error {
	is, err := queues.QueuePark(ctx, queuing.Parking{
		Queue: r.id.Parked(), Position: item.Position, Error: "the message was finished before", Finished: true,
	})
	if is {
		r.about(r.config.Logger.Warn(), item.Message).Str("reason", text.Shorten(item.Error)).
			Msg("not parked, as an operator has asked: the message was finished before")
	}
	return err
}

// endLook handles the result of a look.
func (r *run) endLook(ctx context.Context, found look) {
	now, s := time.Now(), r.redrives
	s.looking = false
	first := !s.looked
	s.looked = true
	s.at = now.Add(r.config.RedriveInterval)
	if r.catchUp { // it looks once
		s.at = now.Add(never)
		r.reader.at = time.Time{}
	}
	switch {
	case ctx.Err() != nil || r.stopping:
		return
	case found.err == nil:
		s.failures = 0
		r.storeWorks(looking)
	case r.catchUp || !heals(found.err):
		r.fail(found.err)
		return
	default:
		s.looked = !first
		s.failures++
		s.at = now.Add(r.storeFailed(looking, found.err, s.failures))
		return
	}
	if first {
		s.parked = found.parks
	}
	for at, a := range s.parked {
		if a.parked && at >= r.progress.checkpoint() {
			found.parks[at] = a
		}
	}
	r.parks.Store(&found.parks)
	switch {
	case !found.ready:
	case !s.working:
		s.working = true
		r.wg.Go(func() { s.ends <- calling.Call(func() error { return r.workOff(ctx) }) })
	default:
		select {
		case s.bell <- 0:
		default:
		}
	}
}

// workOff redrives the offered items, until there are no more.
func (r *run) workOff(ctx context.Context) error {
	queues, err := queuing.Of(r.store)
	if err != nil {
		return err
	}
	return work.Run(ctx, work.Source{
		Watch: func(messagestore.Category, time.Duration) (<-chan messagestore.GlobalPosition, func()) {
			return r.redrives.bell, func() {}
		},
		Outage: r.outage,
		Driver: queues,
		Queue:  r.id.Parked(),
		Slots:  r.checkpoints.place.Slots(),
		Policy: work.Always(queuing.Policy{MaxFailures: maxKills}),
		Logger: r.config.Logger,
	}, work.Config{
		MaxWorkers: maxRedrives, Prefetch: maxRedrives,
		Grace: r.config.Grace, Lease: r.config.Lease, PollInterval: time.Hour,
		Once: true, Hasty: r.catchUp,
		Handle: func(lost context.Context, d *work.Delivery) error { return r.enqueue(ctx, lost, d.Item.Message) },
		Finish: func(_ *work.Delivery, err error, _ bool) queuing.Finish {
			switch {
			case err == nil || calling.DispositionOf(err).Asks(calling.Skip):
				return queuing.Finish{Kind: queuing.Complete}
			case err == errNotRedriven: //nolint:errorlint // as it was returned
				return queuing.Finish{Kind: queuing.Unhandled}
			}
			return queuing.Finish{Kind: queuing.Bury, Error: whyParked(err)}
		},
	}, &r.redrives.counts)
}

// enqueue puts a message into its lane, and waits until it was handled.
func (r *run) enqueue(told, lost context.Context, m *messagestore.Message) error {
	q := &redrive{onLost: func(f func()) func() bool { return context.AfterFunc(lost, f) }, done: make(chan error, 1)}
	r.lanes.Add(func(yield func(*item) bool) {
		yield(&item{Value: delivery{message: m, redrive: q}, Number: -1})
	})
	r.wake()
	select {
	case err := <-q.done:
		return err
	case <-lost.Done():
	case <-told.Done():
	}
	if q.begun.CompareAndSwap(false, true) {
		return errNotRedriven
	}
	select {
	case err := <-q.done:
		return err
	case <-r.redrives.left:
		return errNotRedriven
	}
}

// redrive delivers a parked message, unless its item was given back meanwhile. It runs in a
// worker's goroutine.
func (r *run) redrive(work context.Context, it *item) (finished bool) {
	q, m := it.Value.redrive, it.Value.message
	if !q.begun.CompareAndSwap(false, true) {
		return true
	}
	ctx, cancel := context.WithCancel(work)
	defer cancel()
	defer q.onLost(cancel)()
	err := calling.Call(func() error { return r.handler.Handle(ctx, m) }) // it may end its goroutine
	disposed := calling.DispositionOf(err)
	if ctx.Err() != nil && err != nil && (disposed == nil || disposed.Kind == calling.Retry) {
		q.done <- errNotRedriven // the message is not at fault
		return true
	}
	switch {
	case err == nil:
		r.counts.handled.Add(1)
		r.about(r.config.Logger.Info(), m).Msg("message redriven")
	case disposed.Asks(calling.Skip):
		r.counts.skipped.Add(1)
	default:
		r.counts.failed.Add(1)
	}
	r.counts.retried.Add(1)
	r.progress.worked()
	q.done <- err
	return true
}

// endRedrives handles the end of the worker.
func (r *run) endRedrives(ctx context.Context, err error) {
	now, s := time.Now(), r.redrives
	s.working = false
	if r.catchUp {
		r.reader.at = time.Time{}
	}
	switch {
	case err == nil:
		s.failures = 0
		r.storeWorks(redriving)
	case ctx.Err() != nil:
		r.config.Logger.Warn().Str("consumer", r.id.Name).Str("category", string(r.id.Category)).Str("error", text.Log(err)).
			Msg("the end of a redrive was not stored: the message may be redriven again")
	case r.catchUp || !heals(err):
		r.fail(err)
	default:
		s.failures++
		s.at = now.Add(r.storeFailed(redriving, err, s.failures))
	}
}
