package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

const (
	// storeTimeout bounds one call of the store, so that a connection whose other end
	// is gone does not hold the consumer up for the minutes that TCP waits.
	storeTimeout = 15 * time.Second

	// stopTimeout bounds the last recording of the position.
	stopTimeout = 5 * time.Second

	// cancelTimeout is how long a handler has to notice that its context is done.
	cancelTimeout = time.Second
)

// A run is one life of a consumer. Loop reads, records and decides what becomes of a
// message that failed; at most one read, one recording and one look for requests have
// goroutines of their own, and report to it. Workers take the messages and put them
// down by themselves, so that a message that is handled costs loop nothing.
type run struct {
	*Consumer
	catchUp bool
	wg      sync.WaitGroup
	wakes   chan struct{} // loop has something to do

	// What follows is guarded by mu.

	window   window
	room     int  // how many messages there may be when the next are read
	enough   bool // loop knows that the workers have enough
	lanes    *lanes
	held     int      // messages in hand, or failed and not decided on
	returned []result // what loop has to decide on
	workers  []*worker
	idle     int       // workers that wait
	handed   sync.Cond // for them
	saved    recordedPosition
	movedAt  time.Time // when the position moved away from what is recorded, zero for not
	workedAt time.Time // when the last message that was there was finished
	stopping bool      // set by loop alone
	over     bool      // nobody waits for what is in hand

	// The rest belongs to loop.

	reader   reader
	pages    chan page
	redrives redrives
	looks    chan look

	place     *place // belongs to the goroutine that records, while there is one
	recording bool
	records   chan recordedPosition
	checkedAt time.Time // when the run was last seen to be the one to record
	failures  int       // to record or to see that, in a row
	retryAt   time.Time // when to try again after one

	fatal error
}

type recordedPosition struct {
	recorded
	passed  int64 // how many messages are behind it
	checked bool  // instead of recorded
	err     error
}

func newRun(c *Consumer, p *place, catchUp bool) *run {
	r := &run{
		Consumer: c,
		catchUp:  catchUp,
		wakes:    make(chan struct{}, 1),
		window:   window{position: p.recorded},
		lanes:    newLanes(c.config.Concurrency == 1),
		saved:    recordedPosition{recorded: p.recorded},
		room:     c.config.BatchSize,
		reader:   reader{next: p.Position, mark: p.mark, limit: c.config.BatchSize, fit: firstBatch},
		pages:    make(chan page, 1),
		redrives: redrives{ids: map[uuid.UUID]struct{}{}, notYet: map[uuid.UUID]time.Time{}},
		looks:    make(chan look, 1),
		place:    p,
		records:  make(chan recordedPosition, 1),

		checkedAt: time.Now(),
	}
	r.handed.L = &r.mu
	return r
}

// watch has the run told of messages and of requests to redrive. To catch up needs no
// telling: it does not wait.
func (r *run) watch() (messages, requests <-chan messagestore.GlobalPosition, stop func()) {
	if r.catchUp {
		return nil, nil, func() {}
	}
	messages, stopMessages := r.store.Watch(r.category, r.config.PollInterval)
	requests, stopRequests := r.store.Watch(r.requests().Category(), r.config.RedriveInterval)
	return messages, requests, func() {
		stopMessages()
		stopRequests()
	}
}

// loop runs until ctx is done, something is fatal or, to catch up, nothing is left.
func (r *run) loop(ctx context.Context) error {
	messages, requests, unwatch := r.watch()
	defer unwatch()
	reads, cancelReads := context.WithCancel(ctx)
	defer cancelReads()
	work, cancelWork := context.WithCancel(r.named(context.WithoutCancel(ctx)))
	defer cancelWork()
	timer := time.NewTimer(0)
	defer timer.Stop()

	stop := ctx.Done()
	var deadline time.Time // of what is in hand, once the run stops
	cancelled, abandoned := false, false
	for {
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
				abandoned = cancelled
				cancelWork()
				cancelled = true
				deadline = now.Add(cancelTimeout)
			}
			if (abandoned || !r.holds()) && !r.reader.busy && !r.redrives.busy && !r.recording {
				break
			}
			timer.Reset(deadline.Sub(now))
		}

		select {
		case <-stop:
			r.stop()
			stop = nil
		case <-r.wakes:
		case p := <-r.pages:
			r.readPage(reads, p)
		case found := <-r.looks:
			r.endLook(reads, found)
		case saved := <-r.records:
			r.endRecording(reads, saved)
		case head := <-messages:
			r.reader.wake(head)
		case <-requests:
			r.redrives.ring(r.config.RedriveInterval)
		case <-timer.C:
		}
	}
	if err := r.leave(); err != nil {
		r.fatal = errors.Join(r.fatal, err) // whatever ended the run, a handler goes on
	} else {
		r.wg.Wait()
	}
	return r.finish(ctx)
}

// begin begins what there is to do, and returns when there will be something if
// nothing happens before.
func (r *run) begin(reads, work context.Context, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handOver(reads, work, now)
	r.startRead(reads, now)
	r.startLook(reads, now)
	r.startRecording(reads, work, now)
	return r.nextWake(now)
}

func (r *run) holds() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held > 0
}

// stop has the workers take nothing more.
func (r *run) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = true
	r.handed.Broadcast()
}

// fail ends the run with err, if nothing has ended it before.
func (r *run) fail(err error) {
	if r.fatal == nil {
		r.fatal = err
	}
	r.stop()
}

// nextWake returns when there is something to do if nothing happens before.
func (r *run) nextWake(now time.Time) time.Time {
	wake := now.Add(time.Hour)
	sooner := func(t time.Time, ok bool) {
		if ok && t.Before(wake) {
			wake = t
		}
	}
	sooner(r.lanes.nextDue())
	sooner(r.reader.at, !r.reader.busy && r.wantsMore())
	sooner(r.redrives.at, !r.redrives.busy)
	sooner(r.recordingDue())
	sooner(r.checkDue())
	return wake
}

// recordingDue returns when the position is to be recorded, if it has moved.
func (r *run) recordingDue() (due time.Time, moved bool) {
	if r.recording || r.movedAt.IsZero() {
		return time.Time{}, false
	}
	due = r.movedAt.Add(r.config.PositionEvery)
	handled := r.window.passed - r.saved.passed
	switch {
	case handled >= int64(r.config.PositionInterval):
		due = r.movedAt
	case handled > 0 && r.window.length == 0: // nothing to do
		if idle := r.workedAt.Add(r.config.PollInterval); idle.Before(due) {
			due = idle
		}
	}
	if due.Before(r.retryAt) {
		due = r.retryAt
	}
	return due, true
}

// checkDue returns when to see whether the run may go on, if it is at work: a message that
// is handled for long, or again and again, keeps the position where it is, and with others
// behind it the run from reading, as do many that are redriven.
func (r *run) checkDue() (due time.Time, atWork bool) {
	due = r.checkedAt.Add(headInterval)
	if due.Before(r.retryAt) {
		due = r.retryAt
	}
	return due, r.window.length+len(r.redrives.ids) > 0 && !r.recording
}

// startRecording records the position if that is due, or only sees whether the run may.
func (r *run) startRecording(reads, work context.Context, now time.Time) {
	due, moved := r.recordingDue()
	check, atWork := r.checkDue()
	record := moved && !now.Before(due)
	if !record && (!atWork || now.Before(check)) {
		return
	}
	r.recording = true
	next, read := recordedPosition{recorded: r.window.position, passed: r.window.passed, checked: !record}, r.reader.mark
	ctx := reads
	if record {
		ctx = work // is done though the run stops
	}
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		if record {
			next.err = r.recordPosition(ctx, r.place, next.recorded, read)
		} else {
			next.err = r.check(ctx, r.place, read)
		}
		r.records <- next
	})
}

func (r *run) endRecording(reads context.Context, saved recordedPosition) {
	r.recording = false
	if saved.err == nil {
		r.checkedAt, r.failures, r.retryAt = time.Now(), 0, time.Time{}
	}
	switch {
	case saved.err == nil && saved.checked:
	case saved.checked && reads.Err() != nil && heals(saved.err): // the run stops
	case saved.err == nil:
		r.save(saved)
	case r.stopping && heals(saved.err):
		// finish tries once more.
	case r.catchUp || !heals(saved.err):
		r.fail(saved.err)
	default:
		r.failures++
		r.retryAt = time.Now().Add(r.storeFailed(saved.err, r.failures))
	}
}

func (r *run) save(saved recordedPosition) {
	r.mu.Lock()
	r.saved = saved
	r.movedAt = time.Time{}
	r.moved()
	r.stats.Position = saved.Position
	r.mu.Unlock()
	r.config.Logger.Debug().Str("positions", string(r.place.stream)).Int64("position", int64(saved.Position)).Msg("position recorded")
}

// moved notes that the position is not what is recorded, and reports whether it was
// until now. The caller holds mu.
func (r *run) moved() bool {
	if !r.movedAt.IsZero() || r.window.position.Position == r.saved.Position {
		return false
	}
	r.movedAt = time.Now()
	return true
}

// lost reports whether the position is not this run's to record any more. What a
// handler failed with says nothing of that: it may be of another consumer.
func (r *run) lost() bool {
	if ofHandler(r.fatal) {
		return false
	}
	return errors.Is(r.fatal, errEpoch) || errors.Is(r.fatal, ErrConsumerFenced) || errors.Is(r.fatal, ErrPositionAhead) || errors.Is(r.fatal, ErrPositionCorrupt)
}

// ofHandler reports whether a handler failed with err. It is to be asked before err is
// looked into any further: what is in it may panic.
func ofHandler(err error) bool {
	_, is := errors.AsType[*MessageError](err)
	return is
}

// finish records the position for the last time.
func (r *run) finish(ctx context.Context) error {
	if r.lost() {
		return r.fatal
	}
	if r.recording || r.window.position.Position == r.saved.Position && r.place.unsettled == nil {
		return r.fatal
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := r.recordPosition(ctx, r.place, r.window.position, r.reader.mark)
		if err == nil {
			r.save(recordedPosition{recorded: r.window.position, passed: r.window.passed})
			return r.fatal
		}
		if ctx.Err() != nil || !heals(err) || r.catchUp {
			return errors.Join(r.fatal, err)
		}
		wait := time.NewTimer(r.storeFailed(err, failures))
		select {
		case <-ctx.Done():
			wait.Stop()
			return errors.Join(r.fatal, fmt.Errorf("%w; tried for %v", err, stopTimeout))
		case <-wait.C:
		}
	}
}
