package consumer

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/internal/letters"
	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/messagestore"
)

// isBlocked reports whether a message is not delivered because its cardinal id is blocked, and notes it.
func (r *run) isBlocked(it *item) bool {
	if r.blocked == nil {
		return false
	}
	d := &it.Value
	first, parked := r.blocked.By(d.message)
	if first == nil && !parked {
		return false
	}
	d.parking, d.behind, d.alreadyParked = true, first, parked
	if d.firstFailed.IsZero() {
		d.firstFailed = time.Now()
	}
	return true
}

// block notes that a message is parked. The letter is nil if it was parked before.
func (r *run) block(ctx context.Context, m *messagestore.Message, letter *letters.Letter) error {
	switch {
	case r.blocked == nil:
		return nil
	case letter == nil:
		return r.blocked.Refresh(ctx, m.ID)
	}
	r.blocked.Add(letter)
	return nil
}

// readBlocked reads on in the dead letters, if the consumer parks in order.
func (r *redrives) readBlocked(ctx context.Context) error {
	if r.blocked == nil {
		return nil
	}
	read := func() (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
		defer cancel()
		return r.blocked.Read(ctx)
	}
	for {
		if more, err := read(); err != nil || !more {
			return err
		}
	}
}

// inOrder returns the redrives that may begin, one of a cardinal id: requested redrives, and
// redrives of messages that are unblocked since.
func (r *run) inOrder(found look) (first []letters.Request) {
	if !found.knows {
		return nil
	}
	due := found.due
	for _, p := range r.blocked.Waiting() {
		if r.redrives.mine(p.Stream) {
			due = append(due, p.Request())
		}
	}
	now := time.Now()
	for _, q := range due {
		key := q.Stream.CardinalID()
		_, busy := r.redrives.keys[key]
		if busy || now.Before(r.redrives.failed[q.MessageID]) {
			continue
		}
		r.redrives.keys[key] = struct{}{}
		first = append(first, q)
	}
	return first
}

// An againError is the error of a redrive that is to be tried again.
type againError struct{ after time.Duration }

func (*againError) Error() string { return "redriven again" }

// redriveInOrder redrives the first parked message of a cardinal id, if the request is for it, and
// then the messages that are parked behind it, until one of them fails for good. New messages of
// the cardinal id wait in its lane meanwhile. A failure is retried by the error policy.
func (r *run) redriveInOrder(work context.Context, it *item) error {
	d := &it.Value
	for {
		first := r.blocked.First(cardinalID(d))
		if first == nil || !first.Behind && !first.Is(*d.request) {
			return nil
		}
		if d.redriven == nil || d.redriven.at != first.GlobalPosition {
			r.redriveEnded(d)
			d.redriven = &redriven{at: first.GlobalPosition}
		}
		if err := r.redriveFirst(work, d, first); err != nil {
			return err
		}
		r.redriveEnded(d)
		if r.halted.Load() {
			return nil
		}
	}
}

// again reports whether a message is redriven again after a failure, and when.
func (d *redriven) again(failure error, disposed *disposition.Error, retry *Retry) (after time.Duration, is bool) {
	switch {
	case disposed.Asks(disposition.Retry):
		d.failingSince = time.Time{}
		return disposed.After, true
	case disposed != nil || lasts(failure):
		return 0, false
	}
	now := time.Now()
	if d.failingSince.IsZero() {
		d.failingSince = now
	}
	d.attempts++
	return retry.pause(d.attempts, d.failingSince, now)
}

// redriveEnded forgets the failures of the message that was redriven last.
func (r *run) redriveEnded(d *delivery) {
	if d.redriven != nil && r.progress.redriveEnded(d.redriven.at) {
		r.wake()
	}
	d.redriven = nil
}

func (r *run) redriveFirst(work context.Context, d *delivery, first *letters.Letter) error {
	defer r.blocked.Writing(first.ID)()
	q := first.Request()
	err := r.redrive(work, &q, func(failure error, disposed *disposition.Error) (time.Duration, bool) {
		after, again := d.redriven.again(failure, disposed, &r.config.Errors.Retry)
		if again {
			r.progress.redriveFailed(first, failure)
		}
		return after, again
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(work, checkpoint.CallTimeout)
	defer cancel()
	return r.blocked.Refresh(ctx, first.ID)
}
