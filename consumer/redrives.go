package consumer

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// maxRedrives bounds the messages that a run has in its lanes to be redriven.
const maxRedrives = 100

// redriveRest is how often a run looks for requests though the store's bell does not
// ring for them.
const redriveRest = time.Minute

// redrives is what a run was asked to redrive.
type redrives struct {
	at       time.Time // when to look for requests
	lookedAt time.Time
	busy     bool
	failures int // in a row
	ids      map[uuid.UUID]struct{}
	notYet   map[uuid.UUID]time.Time // what another has claimed: when to try

	seen seenRequests // belongs to the goroutine that looks, while there is one
}

// seenRequests is how far the stream of requests is known.
type seenRequests struct {
	known   bool
	version messagestore.Version // of the stream, when it was read
	next    messagestore.Version // before it all are settled, and that is noted
	end     messagestore.Version // behind the last request that was read
	open    []request            // from next on, not known to be settled
}

// never is longer than any run catches up.
const never = 10_000 * time.Hour

// A look is what a look for requests has found.
type look struct {
	due []request // to be redriven by this member
	err error
}

// quiet reports whether nothing is to be redriven, as far as is known.
func (r *redrives) quiet(now time.Time) bool { return !r.busy && len(r.ids) == 0 && now.Before(r.at) }

// ring has the run look for requests, no sooner after the last look than it has to:
// the bell rings for every message that is parked, too.
func (r *redrives) ring(interval time.Duration) {
	if at := r.lookedAt.Add(interval); at.Before(r.at) {
		r.at = at
	}
}

// startLook looks for what is to be redriven.
func (r *run) startLook(ctx context.Context, now time.Time) {
	if r.redrives.busy || now.Before(r.redrives.at) {
		return
	}
	r.redrives.busy = true
	left := maps.Clone(r.redrives.ids)
	maps.DeleteFunc(r.redrives.notYet, func(_ uuid.UUID, at time.Time) bool { return !now.Before(at) })
	for id := range r.redrives.notYet {
		left[id] = struct{}{}
	}
	room := maxRedrives - len(r.redrives.ids)
	r.wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		due, err := r.lookForRequests(ctx, &r.redrives.seen, left, room)
		r.looks <- look{due, err}
	})
}

// lookForRequests returns up to room requests for this member that there is something
// to do for, but for those of the ids left out, and notes what is settled.
func (c *Consumer) lookForRequests(ctx context.Context, seen *seenRequests, left map[uuid.UUID]struct{}, room int) ([]request, error) {
	version, err := c.store.Version(ctx, c.requests())
	if err != nil || version == messagestore.NoStream {
		return nil, err
	}
	if !seen.known || version > seen.version {
		noted, err := c.settledBefore(ctx) // by another, it may be
		if err != nil {
			return nil, err
		}
		if seen.next = max(seen.next, noted); !seen.known {
			seen.known, seen.version = true, seen.next-1
		}
	}
	if version > seen.version {
		more, version, err := c.readRequests(ctx, seen.version+1)
		if err != nil {
			return nil, err
		}
		seen.open, seen.version = append(seen.open, more...), version
		if n := len(more); n > 0 {
			seen.end = more[n-1].position + 1
		}
	}

	var due, open []request
	for i, q := range seen.open {
		mine := q.Stream.GroupMember(c.config.groupSize()) == c.config.GroupMember
		_, isLeft := left[q.MessageID]
		// What is another member's is looked at when nothing before it is open.
		if isLeft && mine || !mine && len(open) > 0 || mine && len(due) == room {
			open = append(open, q)
			continue
		}
		l, err := c.readLetter(ctx, c.deadLetter(q.MessageID))
		if err != nil {
			seen.open = append(open, seen.open[i:]...)
			return due, err
		}
		if !l.wanted(q.redriveRequested) {
			continue
		}
		open = append(open, q)
		if mine {
			due = append(due, q)
			left[q.MessageID] = struct{}{} // it may be asked for twice
		}
	}
	seen.open = open
	settled := seen.version + 1
	if len(open) > 0 {
		settled = open[0].position
	}
	if settled > seen.next && seen.end > seen.next { // what follows the last request are notes
		err = c.noteSettled(ctx, seen, settled)
	}
	return due, err
}

// noteSettled writes how far the requests are settled, for the next to start. If
// somebody else wrote to the stream meanwhile, the next look does.
func (c *Consumer) noteSettled(ctx context.Context, seen *seenRequests, settled messagestore.Version) error {
	written, err := c.store.Write(ctx, c.requests(), seen.version, redrivesSettled{settled})
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return nil
	}
	if err == nil {
		seen.next, seen.version = settled, written.Version
	}
	return err
}

// endLook takes in what a look has found.
func (r *run) endLook(ctx context.Context, found look) {
	now := time.Now()
	r.redrives.busy = false
	r.redrives.lookedAt = now
	r.redrives.at = now.Add(r.config.RedriveInterval)
	if len(r.redrives.seen.open) == 0 {
		r.redrives.at = now.Add(max(r.config.RedriveInterval, redriveRest))
	}
	if r.catchUp { // which looks once, and after what it has redriven
		r.redrives.at = now.Add(never)
		r.reader.at = time.Time{}
	}
	switch {
	case ctx.Err() != nil || r.stopping:
		return
	case found.err == nil:
		r.redrives.failures = 0
	case r.catchUp || !heals(found.err):
		r.fail(found.err)
		return
	default:
		r.redrives.failures++
		r.redrives.at = now.Add(r.storeFailed(found.err, r.redrives.failures))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range found.due {
		r.redrives.ids[q.MessageID] = struct{}{}
		r.lanes.add(&item{message: &messagestore.Message{ID: q.MessageID, Stream: q.Stream}, number: -1, request: &q})
	}
}

// redriveRequest redrives a message that was asked for, unless that is settled. Left
// says that there is still something to do: another has claimed it, who may not live.
func (r *run) redriveRequest(work context.Context, q *request) (left bool, err error) {
	l, err := r.readWanted(work, q)
	if err != nil || l == nil {
		return false, err
	}
	// The run leaves behind what takes longer to stop.
	if _, err = r.redriveLetter(work, r.deadLetter(q.MessageID), l, cancelTimeout/2); err != nil {
		return false, err
	}
	l, err = r.readWanted(work, q)
	return l != nil, err
}

// readWanted returns the dead letter that a request is about, or nil if there is
// nothing left to do for it.
func (r *run) readWanted(work context.Context, q *request) (*deadLetter, error) {
	ctx, cancel := context.WithTimeout(work, storeTimeout)
	defer cancel()
	l, err := r.readLetter(ctx, r.deadLetter(q.MessageID))
	if err != nil || !l.wanted(q.redriveRequested) {
		return nil, err
	}
	return l, nil
}

// redriven takes back a message that was in hand to be redriven.
func (r *run) redriven(work context.Context, res result) {
	now := time.Now()
	id := res.item.request.MessageID
	leftBehind := errors.Is(res.err, ErrGraceExceeded)
	if leftBehind {
		r.fail(res.err) // before the lane is open to the next message
	}
	r.mu.Lock()
	r.workedAt = now
	r.lanes.finish(res.item)
	r.held--
	r.mu.Unlock()
	delete(r.redrives.ids, id)
	if r.catchUp {
		r.reader.at = time.Time{}
	}
	switch {
	case res.err == nil && !res.left:
		r.redrives.at = now // to note that it is settled
	case res.err == nil:
		r.redrives.notYet[id] = now.Add(redriveClaim / 4)
	case leftBehind, work.Err() != nil: // the run stops
	case r.catchUp || !heals(res.err):
		r.fail(res.err)
	default:
		r.redrives.failures++
		r.redrives.notYet[id] = now.Add(r.storeFailed(res.err, r.redrives.failures))
	}
}
