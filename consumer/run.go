package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of the end of a run.
const (
	// stopTimeout bounds the last write of a checkpoint.
	stopTimeout = 5 * time.Second

	// cancelTimeout is how long a handler has to return after its context is cancelled.
	cancelTimeout = time.Second
)

// A run is one life of a consumer. Its parts are a reader, lanes with workers, a checkpointer, and
// the requested redrives. One goroutine, the loop, decides; workers take items and report progress
// on their own, so a message that is handled costs the loop nothing.
type run struct {
	// Set by newRun, and never changed.
	*Consumer
	catchUp bool
	from    messagestore.GlobalPosition // where it began
	wakes   chan struct{}               // any goroutine sends: the loop has something to do

	// For any goroutine: each has its own lock, or is atomic.
	lanes    *lanes[delivery]
	progress *progress
	failures failures
	parks    atomic.Pointer[map[messagestore.GlobalPosition]asked] // set by the loop, for workers: messages to park
	over     atomic.Pointer[time.Time]                             // set by the loop, for workers: when to stop beginning items, zero for never

	// For the loop. Each part has at most one goroutine at the store, which sends its result to the
	// loop. Until then that goroutine alone uses the fields named in the part's own comment.
	wg          sync.WaitGroup // of these goroutines
	reader      *reader
	checkpoints *checkpointer
	redrives    *redrives
	handover    handover
	resumed     time.Time // after a time without a lease, or after a pause by an operator
	slow        slowWatch
	took        bool // this run has taken a message
	stays       bool // in its group after the run's end
	stopping    bool
	fatal       error
}

func newRun(c *Consumer, p *checkpoint.Place, catchUp bool) *run {
	progress := newProgress(p, &c.config)
	r := &run{
		Consumer:    c,
		catchUp:     catchUp,
		wakes:       make(chan struct{}, 1),
		progress:    progress,
		reader:      newReader(c, p),
		from:        p.Position,
		checkpoints: newCheckpointer(p, &c.config),
		redrives:    newRedrives(),
	}
	config := lanesConfig[delivery]{Workers: c.config.Concurrency, Key: cardinalID, Work: r.work, Wake: r.wake}
	if c.config.Concurrency == 1 {
		config.Key = nil // in order of the category
	}
	r.lanes = newLanes(config)
	over := r.checkpoints.group.Over // the loop changes the field
	r.over.Store(&over)
	r.setLimit(0)
	return r
}

// setLimit bounds the messages that may be taken, by the number that the checkpoint has passed: the
// consumer never gets further ahead of the checkpoint than a crash may redeliver, even if a message
// is slow or the store accepts no checkpoint for long.
func (r *run) setLimit(passed int64) {
	r.lanes.Limit(passed + int64(r.config.CheckpointMessages) + int64(r.config.BatchSize))
}

// watch subscribes to wake-ups for messages, and for the checkpoints of other members. A run that
// catches up does not wait, so it needs none.
func (r *run) watch() (messages, group <-chan messagestore.GlobalPosition, stop func()) {
	if r.catchUp {
		return nil, nil, func() {}
	}
	messages, stopMessages := r.store.Watch(r.id.Category, r.config.PollInterval)
	stopGroup := func() {}
	if r.checkpoints.place.Leased() {
		group, stopGroup = r.store.Watch(checkpoint.Positions(r.id.Category), lookInterval)
	}
	return messages, group, func() {
		stopMessages()
		stopGroup()
	}
}

// loop runs until ctx is done, an error is fatal or, when catching up, nothing is left.
func (r *run) loop(ctx context.Context) error {
	messages, group, unwatch := r.watch()
	defer unwatch()
	reads, cancelReads := context.WithCancel(ctx)
	defer cancelReads()
	work, cancelWork := context.WithCancel(r.forHandlers(context.WithoutCancel(ctx)))
	defer cancelWork()
	timer := time.NewTimer(0)
	defer timer.Stop()

	stop := ctx.Done()
	var deadline time.Time // of the messages in flight, once the run stops
	cancelled, abandoned := false, false
	for {
		if stop != nil && ctx.Err() != nil { // before it decides on what handlers gave back because of that
			r.stop()
			stop = nil
		}
		r.decide(work)
		now := time.Now()
		if !r.stopping {
			timer.Reset(r.begin(reads, work, now).Sub(now))
		} else {
			if deadline.IsZero() {
				cancelReads()
				deadline = now.Add(r.config.Grace)
			}
			if !now.Before(deadline) {
				if !abandoned && cancelled {
					close(r.redrives.left)
				}
				abandoned = cancelled
				cancelWork()
				cancelled = true
				deadline = now.Add(cancelTimeout)
			}
			if (abandoned || r.lanes.InFlight() == 0) && !r.reader.busy && !r.redrives.busy() && !r.checkpoints.busy {
				break
			}
			timer.Reset(deadline.Sub(now))
		}

		select {
		case <-stop:
			r.stop()
			stop = nil
		case <-r.wakes:
		case p := <-r.reader.pages:
			r.readPage(reads, p)
		case found := <-r.redrives.looks:
			r.endLook(reads, found)
		case err := <-r.redrives.ends:
			r.endRedrives(reads, err)
		case result := <-r.checkpoints.results:
			r.checkpointed(reads, result)
		case head := <-messages:
			r.reader.wake(head)
		case head := <-group:
			r.checkpoints.wake(head)
		case <-timer.C:
		}
	}
	if err := r.leave(); err != nil {
		r.stays = true                      // others wait until the lease is over
		r.fatal = errors.Join(r.fatal, err) // a handler goes on, besides the error that ended the run
	} else {
		r.lanes.Wait()
		r.wg.Wait()
	}
	return r.finish(ctx)
}

// begin begins everything that is due, and returns when something is due next.
func (r *run) begin(reads, work context.Context, now time.Time) time.Time {
	if r.handOver(now) {
		return now // the run stops
	}
	r.lanes.Dispatch(reads, work, now)
	length, room := r.progress.length()
	more := r.wantsMore(length, room)
	if !r.reader.busy && more && r.redrives.looked && !now.Before(r.reader.at) {
		r.reader.start(reads, r.wg.Go, length == 0 && r.redrives.quiet(now), now)
	}
	if !r.handover.paused {
		r.redrives.start(reads, r, now)
	}
	atWork := length > 0 || r.redrives.working
	r.checkpoints.start(reads, work, r, atWork || r.handover.asked, r.awaits(atWork), now)
	if atWork {
		r.lookAtHandlers(now)
	}
	return r.nextWake(now, more, atWork)
}

// wantsMore reports whether there is room for another batch, and a use for it. At the end of the
// category a batch has the messages written since the last read. There it waits until the workers
// are about to run out: the batch grows while they are busy; otherwise each message would need a
// read of its own.
func (r *run) wantsMore(length int, room bool) bool {
	enough := r.lanes.Enough()
	if r.reader.atEnd && (r.catchUp && length > 0 || enough) {
		return false // messages that handlers write are read when those in flight are finished
	}
	return room
}

// nextWake returns when something is due if nothing happens before.
func (r *run) nextWake(now time.Time, more, atWork bool) time.Time {
	wake := now.Add(time.Hour)
	sooner := func(t time.Time, ok bool) {
		if ok && t.Before(wake) {
			wake = t
		}
	}
	sooner(r.lanes.NextDue())
	sooner(r.reader.at, !r.reader.busy && more && r.redrives.looked)
	sooner(r.redrives.at, !r.redrives.looking && !r.handover.paused)
	sooner(r.checkpoints.lookDue())
	sooner(r.checkpoints.meetDue(r.awaits(atWork)))
	sooner(r.nextStep())
	sooner(r.checkpoints.writeDue(r.progress))
	sooner(r.checkpoints.noteDue(r.progress))
	sooner(r.checkpoints.checkDue(atWork || r.handover.asked))
	sooner(r.slow.at, atWork)
	return wake
}

// awaits reports whether a message may be about to begin.
func (r *run) awaits(atWork bool) bool { return atWork || r.reader.busy && r.reader.called }

// readPage handles the result of a read, and decides when to read on.
func (r *run) readPage(ctx context.Context, p page) {
	now := time.Now()
	r.reader.busy, r.reader.called = false, false
	switch {
	case p.err == nil:
	case ctx.Err() != nil: // the run stops
		return
	case r.catchUp || !heals(p.err):
		r.fail(p.err)
		return
	default:
		r.reader.failed(p.err, now, func(failures int) time.Duration { return r.storeFailed(reading, p.err, failures) })
		return
	}
	r.storeWorks(reading)
	missed := r.reader.took(p, now)
	r.takeIn(p.CategoryPage)
	r.sayNothing(p.CategoryPage)

	switch {
	case p.More:
		r.reader.at = now
	case r.catchUp && len(p.Messages) > 0:
		r.reader.at = now
	case r.catchUp:
		r.reader.at = now
		if !r.redrives.quiet(now) {
			r.reader.at = now.Add(never) // until the redrives are done
		}
		if p.idle {
			r.stop()
		}
	case missed:
		r.reader.at = now
	default:
		r.reader.rest(now, len(p.Messages) > 0)
	}
}

// takeIn puts a page of messages into the lanes.
func (r *run) takeIn(page messagestore.CategoryPage) {
	r.took = r.took || len(page.Messages) > 0
	items, tombstones := r.progress.add(page, r.reader.batch())
	r.counts.tombstones.Add(int64(tombstones))
	r.lanes.Add(func(yield func(*item) bool) {
		for i := range items {
			if !items[i].Value.finished && !yield(&items[i]) {
				return
			}
		}
	})
	if !page.More && page.Next > 0 {
		r.counts.head.Store(int64(page.Next - 1))
	} else if n := len(page.Messages); n > 0 {
		r.counts.head.Store(max(r.counts.head.Load(), int64(page.Messages[n-1].GlobalPosition)))
	}
}

// checkpointed handles the result of a write or a check.
func (r *run) checkpointed(reads context.Context, result checked) {
	r.checkpoints.took(result)
	r.over.Store(&result.group.Over)
	if result.err == nil && result.action != meets {
		r.storeWorks(checkpointing)
	}
	switch {
	case result.err == nil && !result.action.stores():
	case !result.action.stores() && reads.Err() != nil && heals(result.err): // the run stops
	case result.err == nil:
		r.save(result.saved)
	case result.action == notes && !ends(result.err) && (r.catchUp || !heals(result.err)):
		r.progress.failingNotStored() // they are for operators, and end no run
		r.failingNotStored(result.err)
	case r.stopping && heals(result.err):
		// finish tries once more.
	case r.catchUp || !heals(result.err):
		r.fail(result.err)
	default:
		r.checkpoints.failed(func(failures int) time.Duration { return r.storeFailed(checkpointing, result.err, failures) })
	}
}

func (r *run) save(s saved) {
	r.progress.save(s)
	r.setLimit(s.passed)
	r.counts.position.Store(int64(s.Position))
	r.config.Logger.Debug().Str("positions", string(r.checkpoints.place.Stream)).Int64("position", int64(s.Position)).Msg("checkpoint")
}

// stop keeps the workers from taking further messages.
func (r *run) stop() {
	r.stopping = true
	r.lanes.Stop()
}

// fail ends the run with err, if nothing has ended it before.
func (r *run) fail(err error) {
	if r.fatal == nil {
		r.fatal = err
	}
	r.stop()
}

// lost reports whether this run may not write checkpoints any more. A handler's error does not show
// that: it may come from another consumer.
func (r *run) lost() bool {
	return !ofHandler(r.fatal) && ends(r.fatal)
}

// ends reports whether an error of the store means that a run may not write checkpoints any more.
func ends(err error) bool {
	for _, lost := range []error{checkpoint.ErrEpoch, ErrConsumerFenced, ErrPositionAhead, ErrPositionCorrupt} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return false
}

// ofHandler reports whether err is a handler's failure. Call it before errors.Is: the methods of a
// handler's error may panic.
func ofHandler(err error) bool {
	_, is := errors.AsType[*MessageError](err)
	return is
}

// finish writes the last checkpoint.
func (r *run) finish(ctx context.Context) error {
	if r.lost() {
		return r.fatal
	}
	place, at := r.checkpoints.place, r.progress.toStore()
	if r.checkpoints.busy {
		return r.fatal
	}
	if at.Position == r.progress.saved.Position {
		r.endInPlace(ctx, at)
		return r.fatal
	}
	ctx, cancel := context.WithTimeout(calling.Upkeep(context.WithoutCancel(ctx)), stopTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := place.Write(ctx, at.Checkpoint, at.failing, r.reader.mark, !r.stays)
		if err == nil {
			r.save(at)
			r.storeWorks(checkpointing)
			return r.fatal
		}
		if ctx.Err() != nil || !heals(err) || r.catchUp {
			return errors.Join(r.fatal, err)
		}
		if outage.Wait(ctx, r.storeFailed(checkpointing, err, failures)) != nil {
			return errors.Join(r.fatal, fmt.Errorf("%w; tried for %v", err, stopTimeout))
		}
	}
}

// endInPlace ends a run at an unchanged position. It stores the failing messages, unless they are
// stored already, and leaves the group. It ignores errors, because they cause no redelivery.
func (r *run) endInPlace(ctx context.Context, at saved) {
	place := r.checkpoints.place
	if _, changed := r.progress.failingDue(); !changed && !place.Unsettled() {
		if !r.stays {
			r.leaveGroup(ctx, place)
		}
		return
	}
	ctx, cancel := context.WithTimeout(calling.Upkeep(context.WithoutCancel(ctx)), stopTimeout)
	defer cancel()
	switch err := place.Put(ctx, at.Checkpoint, at.failing, !r.stays); {
	case err == nil:
	case r.stays || !place.Leased():
		r.failingNotStored(err)
	default:
		r.couldNotLeave(err)
	}
}

// failingNotStored logs that a checkpoint with only the failing messages was not written.
func (r *run) failingNotStored(err error) {
	r.config.Logger.Debug().Str("positions", string(r.checkpoints.place.Stream)).Str("error", text.Log(err)).Msg("failing messages are not stored")
}
