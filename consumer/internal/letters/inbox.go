package letters

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/retry"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// An Inbox follows the requests to redrive and to park, for one member of a consumer. It is not
// safe for concurrent use.
type Inbox struct {
	letters *Letters
	config  InboxConfig

	known   bool
	version messagestore.Version // of the stream of requests, when it was read
	next    messagestore.Version // all requests before it are settled, and that is stored
	end     messagestore.Version // the position after the last request that was read
	open    []Request            // from next on, not known to be settled
}

// An InboxConfig tells which messages are a member's, and which of them are finished.
type InboxConfig struct {
	Mine   func(messagestore.StreamName) bool                              // the member has the stream
	Passed func(messagestore.StreamName, messagestore.GlobalPosition) bool // a message of its own is behind its checkpoint
	Void   func(Asked)                                                     // a message that was to be parked is finished
}

// An Asked is a message that is to be parked.
type Asked struct {
	ID             uuid.UUID
	Stream         messagestore.StreamName
	Position       messagestore.Version
	GlobalPosition messagestore.GlobalPosition
	Reason         string
}

// Inbox returns the requests that a member carries out.
func (l *Letters) Inbox(config InboxConfig) *Inbox { return &Inbox{letters: l, config: config} }

// Empty reports whether the last look found no request that is not settled.
func (in *Inbox) Empty() bool { return len(in.open) == 0 }

// maxOfLane bounds the redrives of one cardinal id that a run has: a message that fails again and again keeps those
// behind it in its lane, and not those of other lanes.
const maxOfLane = 4

// Look returns up to room redrives that are not settled, except those for the messages in
// busy, each with its cardinal id while the run has it, and all messages that are to be parked, and stores how
// far the requests are settled. With those in busy there are maxOfLane of a cardinal id.
func (in *Inbox) Look(ctx context.Context, busy map[uuid.UUID]string, room int) (due []Request, parks map[uuid.UUID]Asked, err error) {
	l := in.letters
	version, err := l.store.Version(ctx, l.consumer.Requests())
	if err != nil || version == messagestore.NoStream {
		return nil, nil, err
	}
	if !in.known || version > in.version {
		noted, err := l.settledBefore(ctx) // possibly by another member
		if err != nil {
			return nil, nil, err
		}
		if in.next = max(in.next, noted); !in.known {
			in.known, in.version = true, in.next-1
		}
		in.open = slices.DeleteFunc(in.open, func(q Request) bool { return q.position < in.next })
	}
	if version > in.version {
		more, version, err := l.readRequests(ctx, in.version+1)
		if err != nil {
			return nil, nil, err
		}
		in.open, in.version = append(in.open, more...), version
		if n := len(more); n > 0 {
			in.end = more[n-1].position + 1
		}
	}

	lanes := map[string]int{}
	for _, lane := range busy {
		if lane != "" {
			lanes[lane]++
		}
	}
	var open []Request
	for i, q := range in.open {
		mine := in.config.Mine(q.Stream)
		if q.park != nil {
			passed := false
			if mine { // and otherwise its member stores that it is settled
				if passed, err = in.passed(ctx, q.park); err != nil {
					in.open = append(open, in.open[i:]...)
					return due, nil, err
				}
			}
			if mine && !passed {
				if parks == nil {
					parks = map[uuid.UUID]Asked{}
				}
				parks[q.MessageID] = q.park.asked()
			}
			if !passed {
				open = append(open, q)
			}
			continue
		}
		_, isBusy := busy[q.MessageID]
		lane := q.Stream.CardinalID()
		// A request of another member is looked at only if no open one is before it.
		if isBusy && mine || !mine && len(open) > 0 || mine && (len(due) == room || lanes[lane] >= maxOfLane) {
			open = append(open, q)
			continue
		}
		redrive, err := l.Begin(ctx, q)
		if err != nil {
			in.open = append(open, in.open[i:]...)
			return due, nil, err
		}
		if redrive == nil {
			continue
		}
		open = append(open, q)
		if mine {
			due = append(due, q)
			busy[q.MessageID] = lane // there may be a second request for it
			lanes[lane]++
		}
	}
	in.open = open
	settled := in.version + 1
	if len(open) > 0 {
		settled = open[0].position
	}
	if settled > in.next && in.end > in.next { // otherwise only notes follow the last request
		err = in.noteSettled(ctx, settled)
	}
	return due, parks, err
}

// passed reports whether a message that is to be parked is behind the checkpoint. Until then the
// request counts, also if the message is parked: after a crash it is read again.
func (in *Inbox) passed(ctx context.Context, q *parkRequested) (bool, error) {
	if !in.config.Passed(q.Stream, q.GlobalPosition) {
		return false, nil
	}
	version, err := in.letters.store.Version(ctx, in.letters.consumer.DeadLetter(q.MessageID))
	if err == nil && version <= q.Letter {
		in.config.Void(q.asked())
	}
	return err == nil, err
}

func (q *parkRequested) asked() Asked {
	return Asked{ID: q.MessageID, Stream: q.Stream, Position: q.Position, GlobalPosition: q.GlobalPosition, Reason: q.Reason}
}

// noteSettled stores how far the requests are settled, for the next start. After a write of
// another process the next look does it.
func (in *Inbox) noteSettled(ctx context.Context, settled messagestore.Version) error {
	written, err := in.letters.store.Write(ctx, in.letters.consumer.Requests(), in.version, redrivesSettled{settled})
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return nil
	}
	if err == nil {
		in.next, in.version = settled, written.Version
	}
	return err
}

// A Redrive is the delivery that a request asks for.
type Redrive struct {
	*Letter
	letters *Letters
	version messagestore.Version
	outcome *messagestore.Envelope // with one id, however often it is written

	attempts retry.Outcome // to write it
}

// Begin returns the redrive that a request asks for, or nil if the request is settled.
func (l *Letters) Begin(ctx context.Context, q Request) (*Redrive, error) {
	s, err := l.read(ctx, l.consumer.DeadLetter(q.MessageID))
	if err != nil || !s.open || s.outcome != q.Parked {
		return nil, err
	}
	return &Redrive{Letter: &s.Letter, letters: l, version: s.version}, nil
}

// Message reads the message. It is nil, without an error, if its stream was deleted since:
// then it is not to be delivered.
func (r *Redrive) Message(ctx context.Context) (*messagestore.Message, error) {
	m, err := r.letters.Message(ctx, &r.Entry)
	if errors.Is(err, messagestore.ErrNotFound) {
		deleted, readErr := r.deleted(ctx)
		if deleted || readErr != nil {
			return nil, readErr
		}
	}
	return m, err
}

// deleted reports whether the stream of a message that is not in its place was deleted, not
// trimmed.
func (r *Redrive) deleted(ctx context.Context) (bool, error) {
	last, err := r.letters.store.Last(ctx, r.Stream)
	switch {
	case errors.Is(err, messagestore.ErrNotFound), errors.Is(err, messagestore.ErrInvalid):
		return false, nil // ErrInvalid: another client gave the stream its name
	case err != nil:
		return false, err
	case last.IsTombstone():
		return last.Position > r.Position, nil
	}
	// The stream may have been written to again after the tombstone.
	for next, err := range r.letters.store.ReadStream(ctx, r.Stream, r.Position) {
		return err == nil && next.IsTombstone(), err
	}
	return false, nil
}

// Succeeded closes the letter.
func (r *Redrive) Succeeded() { r.settle(redriven{Attempts: r.Attempts + 1}) }

// Skipped closes the letter of a message that the handler skipped.
func (r *Redrive) Skipped(reason string) {
	r.settle(redriven{Attempts: r.Attempts + 1, Skipped: text.Shorten(reason)})
}

// Deleted closes the letter of a message whose stream was deleted.
func (r *Redrive) Deleted() { r.settle(redriven{Attempts: r.Attempts, Deleted: true}) }

// Failed leaves the letter open, with one attempt more, another error, and the stack if it was a
// panic.
func (r *Redrive) Failed(err error, stack string) {
	r.settle(parked{
		Consumer: r.letters.consumer.Name, MessageID: r.ID, Type: r.Type, Stream: r.Stream, Position: r.Position, GlobalPosition: r.GlobalPosition,
		Error: text.Of(err), Stack: stack, Attempts: r.Attempts + 1, FirstFailedAt: r.FirstFailedAt,
	})
}

func (r *Redrive) settle(body messagestore.Body) {
	e := about(&messagestore.Message{Stream: r.Stream, Position: r.Position, GlobalPosition: r.GlobalPosition}, body)
	r.outcome = &e
}

// Settle stores the outcome that was chosen. It may be repeated after an error. If another
// process has settled the request meanwhile, that outcome stands.
func (r *Redrive) Settle(ctx context.Context) error {
	if r.outcome.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		r.outcome.ID = id
	}
	_, err := r.letters.write(ctx, r.DeadLetter, r.version, *r.outcome)
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return nil
	}
	return r.attempts.Of(err)
}
