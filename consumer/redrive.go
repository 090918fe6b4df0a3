package consumer

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/internal/letters"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// maxRedrives bounds the requested redrives that a run has in its lanes.
const maxRedrives = 100

// redriveRest is how often a run looks for requests without a wake-up.
const redriveRest = time.Minute

// errLeaseOver is of a redrive that was not begun.
var errLeaseOver = errors.New("the member's lease may be over")

// never is longer than any run catches up.
const never = 10_000 * time.Hour

// Redrives are the requested redrives of a run. They belong to the run's loop.
type redrives struct {
	inbox    *letters.Inbox // belongs to the goroutine that looks, while there is one
	looks    chan look
	looked   bool      // the first look has ended, so a message that is to be parked is known
	at       time.Time // when to look for requests
	lookedAt time.Time
	busy     bool
	failures int                     // in a row
	ids      map[uuid.UUID]string    // each with its cardinal id
	failed   map[uuid.UUID]time.Time // by the store: when to try again
}

// A look is the result of a look for requests.
type look struct {
	due   []letters.Request
	parks map[uuid.UUID]letters.Asked
	err   error
}

func newRedrives(c *Consumer, place *checkpoint.Place, progress *progress) *redrives {
	r := &redrives{
		looks:  make(chan look, 1),
		ids:    map[uuid.UUID]string{},
		failed: map[uuid.UUID]time.Time{},
	}
	r.inbox = c.letters.Inbox(letters.InboxConfig{
		Mine: func(stream messagestore.StreamName) bool { return place.MySlot(stream) },
		Passed: func(stream messagestore.StreamName, at messagestore.GlobalPosition) bool {
			return !place.Mine(stream, at) || at < progress.checkpoint()
		},
		Void: func(asked letters.Asked) {
			c.config.Logger.Warn().Str("consumer", c.id.Name).Str("stream", string(asked.Stream)).Int64("position", int64(asked.Position)).
				Str("id", asked.ID.String()).Str("reason", text.Shorten(asked.Reason)).
				Msg("not parked, as an operator has asked: the message was finished before")
		},
	})
	return r
}

// quiet reports whether no redrive is requested, as far as is known.
func (r *redrives) quiet(now time.Time) bool { return !r.busy && len(r.ids) == 0 && now.Before(r.at) }

// wake has the run look for requests, but not sooner than an interval after the last look:
// each parked message causes a wake-up, too.
func (r *redrives) wake(interval time.Duration) {
	if at := r.lookedAt.Add(interval); at.Before(r.at) {
		r.at = at
	}
}

// start looks for requests, if it is time.
func (r *redrives) start(ctx context.Context, run func(func()), now time.Time) {
	if r.busy || now.Before(r.at) {
		return
	}
	r.busy = true
	busy := maps.Clone(r.ids)
	maps.DeleteFunc(r.failed, func(_ uuid.UUID, at time.Time) bool { return !now.Before(at) })
	for id := range r.failed {
		busy[id] = "" // it is in no lane
	}
	room := maxRedrives - len(r.ids)
	run(func() {
		ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
		defer cancel()
		due, parks, err := r.inbox.Look(ctx, busy, room)
		r.looks <- look{due, parks, err}
	})
}

// endLook takes in the result of a look.
func (r *run) endLook(ctx context.Context, found look) {
	now := time.Now()
	r.redrives.busy = false
	r.redrives.looked = true
	r.redrives.lookedAt = now
	r.redrives.at = now.Add(r.config.RedriveInterval)
	if r.redrives.inbox.Empty() {
		r.redrives.at = now.Add(max(r.config.RedriveInterval, redriveRest))
	}
	if r.catchUp { // it looks once, and again after a redrive
		r.redrives.at = now.Add(never)
		r.reader.at = time.Time{}
	}
	switch {
	case ctx.Err() != nil || r.stopping:
		return
	case found.err == nil:
		r.redrives.failures = 0
		r.storeWorks(looking)
		r.parks.Store(&found.parks)
	case r.catchUp || !heals(found.err):
		r.fail(found.err)
		return
	default:
		r.redrives.failures++
		r.redrives.at = now.Add(r.storeFailed(looking, found.err, r.redrives.failures))
	}
	r.lanes.Add(func(yield func(*item) bool) {
		for _, q := range found.due {
			r.redrives.ids[q.MessageID] = q.Stream.CardinalID()
			if !yield(&item{Value: delivery{message: &messagestore.Message{ID: q.MessageID, Stream: q.Stream}, request: &q}, Number: -1}) {
				return
			}
		}
	})
}

// redrive delivers a parked message, unless the request is settled, and stores the outcome.
// It runs in a worker's goroutine.
func (r *run) redrive(work context.Context, q *letters.Request) error {
	redrive, m, err := r.beginRedrive(work, q)
	if err != nil || redrive == nil {
		return err
	}
	var failure error
	if m != nil {
		if r.leaseOver(time.Now()) {
			return errLeaseOver
		}
		failure = r.deliverApart(work, m)
	}
	disposed := disposition.Of(failure)
	switch skips := disposed.Asks(disposition.Skip); {
	case m == nil:
		redrive.Deleted()
	case failure == nil:
		redrive.Succeeded()
	case skips:
		redrive.Skipped(text.Of(failure))
	case work.Err() != nil && (disposed == nil || disposed.Kind == disposition.Retry):
		return work.Err() // the request stays open
	default:
		redrive.Failed(failure, panics.Stack(failure))
	}
	if err := r.settle(work, redrive); err != nil {
		return err
	}
	r.countRedrive(redrive, m, failure, disposed)
	return nil
}

// beginRedrive reads the letter and the message. The redrive is nil if the request is
// settled, and the message is nil if its stream was deleted. If the message was removed in
// another way, the letter stays open with an error that says so.
func (r *run) beginRedrive(work context.Context, q *letters.Request) (*letters.Redrive, *messagestore.Message, error) {
	ctx, cancel := context.WithTimeout(work, checkpoint.CallTimeout)
	defer cancel()
	if err := r.checkpoints.place.Check(ctx, messagestore.Mark{}); err != nil {
		return nil, nil, err // the run is fenced
	}
	redrive, err := r.letters.Begin(ctx, *q)
	if err != nil || redrive == nil {
		return nil, nil, err
	}
	m, err := redrive.Message(ctx)
	if isNotFound(err) {
		redrive.Failed(err, "")
		if err := r.settle(work, redrive); err != nil {
			return nil, nil, err
		}
		r.logRedrive(r.config.Logger.Warn().Str("error", text.Log(err)), redrive, "redrive failed")
		return nil, nil, nil
	}
	return redrive, m, err
}

// deliverApart calls the handler in a goroutine of its own, which it may end.
func (r *run) deliverApart(work context.Context, m *messagestore.Message) error {
	return panics.Call(func() error { return r.handler.Handle(work, m) })
}

// settle stores the outcome of a redrive. While the store fails it tries again, because a
// message that was handled should not be redelivered. When the run stops, it has half of
// cancelTimeout left.
func (r *run) settle(work context.Context, redrive *letters.Redrive) error {
	tries, cancel := context.WithCancel(context.WithoutCancel(work))
	defer cancel()
	defer context.AfterFunc(work, func() { time.AfterFunc(cancelTimeout/2, cancel) })()
	for failures := 1; ; failures++ {
		try, cancelTry := context.WithTimeout(tries, checkpoint.CallTimeout)
		err := redrive.Settle(try)
		cancelTry()
		if err == nil || r.catchUp || !heals(err) || tries.Err() != nil {
			return err
		}
		if backoff.Wait(tries, r.storeFailed(redriving, err, failures)) != nil {
			return err
		}
	}
}

func (r *run) countRedrive(redrive *letters.Redrive, m *messagestore.Message, failure error, disposed *disposition.Error) {
	if m == nil {
		r.counts.tombstones.Add(1)
		r.logRedrive(r.config.Logger.Warn(), redrive, "not redriven: the stream was deleted")
		return
	}
	r.counts.retried.Add(1)
	log, what := r.config.Logger.Info(), "message redriven"
	switch {
	case failure == nil:
		r.counts.handled.Add(1)
	case disposed.Asks(disposition.Skip):
		r.counts.skipped.Add(1)
		log, what = r.config.Logger.Warn().Str("reason", text.Log(failure)), "message skipped"
	default:
		r.counts.failed.Add(1)
		log, what = r.config.Logger.Warn().Str("error", text.Log(failure)), "redrive failed"
		logStack(log, failure)
	}
	r.logRedrive(log, redrive, what)
}

func (r *run) logRedrive(event *logger.Event, redrive *letters.Redrive, what string) {
	r.about(event, &messagestore.Message{
		ID: redrive.ID, Type: redrive.Type, Stream: redrive.Stream, Position: redrive.Position, GlobalPosition: redrive.GlobalPosition,
	}).Int("attempt", redrive.Attempts+1).Str("deadLetter", string(redrive.DeadLetter)).Msg(what)
}

// redriven takes in the result of a redrive.
func (r *run) redriven(work context.Context, f failure) {
	now := time.Now()
	id := f.item.Value.request.MessageID
	r.progress.worked()
	r.lanes.Finish(f.item)
	delete(r.redrives.ids, id)
	if r.catchUp {
		r.reader.at = time.Time{}
	}
	switch {
	case f.err == nil:
		r.storeWorks(redriving)
		r.redrives.at = now // to store that it is settled
	case work.Err() != nil: // the run stops
	case errors.Is(f.err, errLeaseOver):
		r.redrives.at = now // when the lease is extended
	case r.catchUp || !heals(f.err):
		r.fail(f.err)
	default:
		r.redrives.failures++
		r.redrives.failed[id] = now.Add(r.storeFailed(redriving, f.err, r.redrives.failures))
	}
}
