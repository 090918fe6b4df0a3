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

// A run is one life of a consumer. Its fields belong to the goroutine of loop. The
// handlers, and at most one read and one recording, have goroutines of their own
// and report to it.
type run struct {
	*Consumer
	catchUp bool

	window window
	lanes  *lanes
	held   map[*item]struct{} // in hand
	ended  chan result
	wg     sync.WaitGroup

	reader reader
	pages  chan page

	redrives redrives
	looks    chan look

	place     *place // belongs to the goroutine that records, while there is one
	recording bool
	records   chan recordedPosition
	saved     recordedPosition // the last one recorded
	movedAt   time.Time        // when the position moved away from it, zero for not
	workedAt  time.Time        // when a message was last finished
	failures  int              // of recordings, in a row
	retryAt   time.Time        // when to record again after one

	stopping bool
	fatal    error
}

type recordedPosition struct {
	position messagestore.GlobalPosition
	passed   int64 // how many messages are behind it
	err      error
}

func newRun(c *Consumer, p *place, catchUp bool) *run {
	return &run{
		Consumer: c,
		catchUp:  catchUp,
		window:   window{position: p.position},
		lanes:    newLanes(c.config.Concurrency == 1),
		held:     map[*item]struct{}{},
		ended:    make(chan result, c.config.Concurrency),
		reader:   reader{next: p.position, limit: c.config.BatchSize},
		pages:    make(chan page, 1),
		redrives: redrives{ids: map[uuid.UUID]struct{}{}, notYet: map[uuid.UUID]time.Time{}},
		looks:    make(chan look, 1),
		place:    p,
		records:  make(chan recordedPosition, 1),
		saved:    recordedPosition{position: p.position},
	}
}

// loop runs until ctx is done, something is fatal or, to catch up, nothing is left.
func (r *run) loop(ctx context.Context) error {
	var bell <-chan messagestore.GlobalPosition
	if !r.catchUp { // which does not wait
		var unwatch func()
		bell, unwatch = r.store.Watch(r.category, r.config.PollInterval)
		defer unwatch()
	}
	reads, cancelReads := context.WithCancel(ctx)
	defer cancelReads()
	work, cancelWork := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWork()
	timer := time.NewTimer(0)
	defer timer.Stop()

	stop := ctx.Done()
	var deadline time.Time // of what is in hand, once the run stops
	cancelled, abandoned := false, false
	for {
		now := time.Now()
		if !r.stopping {
			r.handOver(work, now)
			r.startRead(reads, now)
			r.startLook(reads, now)
			r.startRecording(work, now)
			timer.Reset(r.nextWake(now).Sub(now))
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
			if (len(r.held) == 0 || abandoned) && !r.reader.busy && !r.redrives.busy && !r.recording {
				break
			}
			timer.Reset(deadline.Sub(now))
		}

		ringing := bell
		if r.reader.busy {
			ringing = nil // it is heard after the read, which may have what it rings for
		}
		select {
		case <-stop:
			r.stopping, stop = true, nil
		case res := <-r.ended:
			r.handBack(work, res)
		case p := <-r.pages:
			r.readPage(reads, p)
		case found := <-r.looks:
			r.endLook(reads, found)
		case saved := <-r.records:
			r.endRecording(saved)
		case head := <-ringing:
			r.reader.wake(head)
		case <-timer.C:
		}
	}
	if len(r.held) > 0 {
		r.fail(r.graceExceeded())
	} else {
		r.wg.Wait()
	}
	return r.finish(ctx)
}

// fail ends the run with err, if nothing has ended it before.
func (r *run) fail(err error) {
	r.stopping = true
	if r.fatal == nil {
		r.fatal = err
	}
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
	case handled > 0 && len(r.window.items) == 0: // nothing to do
		if idle := r.workedAt.Add(r.config.PollInterval); idle.Before(due) {
			due = idle
		}
	}
	if due.Before(r.retryAt) {
		due = r.retryAt
	}
	return due, true
}

func (r *run) startRecording(ctx context.Context, now time.Time) {
	due, moved := r.recordingDue()
	if !moved || now.Before(due) {
		return
	}
	r.recording = true
	next := recordedPosition{position: r.window.position, passed: r.window.passed}
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		next.err = r.recordPosition(ctx, r.place, next.position)
		r.records <- next
	})
}

func (r *run) endRecording(saved recordedPosition) {
	r.recording = false
	switch {
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
	r.saved = saved
	r.failures, r.retryAt = 0, time.Time{}
	r.movedAt = time.Time{}
	r.moved()
	r.count(func(s *Stats) { s.Position = saved.position })
	r.config.Logger.Debug().Str("positions", string(r.place.stream)).Int64("position", int64(saved.position)).Msg("position recorded")
}

// moved notes that the position is not what is recorded.
func (r *run) moved() {
	if r.movedAt.IsZero() && r.window.position != r.saved.position {
		r.movedAt = time.Now()
	}
}

// lost reports whether the position is not this run's to record any more. What a
// handler failed with says nothing of that: it may be of another consumer.
func (r *run) lost() bool {
	if _, handlers := errors.AsType[*MessageError](r.fatal); handlers {
		return false
	}
	return errors.Is(r.fatal, ErrConsumerFenced) || errors.Is(r.fatal, ErrPositionAhead) || errors.Is(r.fatal, ErrPositionCorrupt)
}

// finish records the position for the last time.
func (r *run) finish(ctx context.Context) error {
	if r.lost() {
		return r.fatal
	}
	if r.recording || r.window.position == r.saved.position && r.place.unsettled == nil {
		return r.fatal
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := r.recordPosition(ctx, r.place, r.window.position)
		if err == nil {
			r.save(recordedPosition{position: r.window.position, passed: r.window.passed})
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
