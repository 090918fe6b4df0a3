package consumer

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// A checkpointer writes the checkpoints of a run, and checks between them that the run may
// go on. It belongs to the run's loop. At most one write or check has a goroutine.
type checkpointer struct {
	config *Config
	place  *checkpoint.Place // belongs to the goroutine that writes, while there is one

	busy      bool
	results   chan checked
	checkedAt time.Time // when the run was last seen to be the owner
	failures  int       // in a row
	retryAt   time.Time // after a failure

	group    checkpoint.View             // as it is known
	heard    messagestore.GlobalPosition // of a message that another member may have written
	deaf     bool                        // the store's driver cannot report one
	lookedAt time.Time
	metAt    time.Time // when a resting member last began to read the state again
}

// lookInterval is the shortest time between two looks at the group's state.
const lookInterval = time.Second

// A checked is the result of a write, a look or a check.
type checked struct {
	saved
	action action
	group  checkpoint.View
	err    error
}

// An action is the work that a checkpointer does at the store.
type action int

const (
	writes action = iota + 1 // a checkpoint
	notes                    // the failing messages, in a checkpoint without another reason
	looks                    // at the group
	meets                    // at the group's state again
	checks                   // that the run may go on
)

// stores reports whether the action writes a checkpoint.
func (a action) stores() bool { return a == writes || a == notes }

func newCheckpointer(place *checkpoint.Place, config *Config) *checkpointer {
	now := time.Now()
	return &checkpointer{config: config, place: place, results: make(chan checked, 1), checkedAt: now, group: place.View(now), lookedAt: now}
}

// writeDue returns when a checkpoint is due: because the position has moved, to extend the member's
// lease, or to remove a member that is gone.
func (c *checkpointer) writeDue(p *progress) (due time.Time, is bool) {
	if c.busy {
		return time.Time{}, false
	}
	due, is = p.due(c.config.CheckpointInterval, c.config.PollInterval)
	if at := c.group.Next(); !at.IsZero() && (!is || at.Before(due)) {
		due, is = at, true
	}
	return later(due, c.retryAt), is
}

// noteDue returns when a checkpoint is due because of failing messages alone.
func (c *checkpointer) noteDue(p *progress) (due time.Time, is bool) {
	due, is = p.failingDue()
	return later(due, c.retryAt), is && !c.busy
}

// wake has the checkpointer look at the group's state, unless the wake-up was caused by a write of
// its own. A driver that cannot report positions wakes it again and again; then it looks a few
// times per lease.
func (c *checkpointer) wake(head messagestore.GlobalPosition) {
	c.heard = max(c.heard, head)
	c.deaf = head == 0
}

// meetDue returns when a resting member has to read the group's state again. It must do so if it
// has messages, or is about to get some, and no write has shown that it is still alone. Failed
// writes do not delay it.
func (c *checkpointer) meetDue(needed bool) (due time.Time, is bool) {
	return later(c.group.Look, c.metAt.Add(min(lookInterval, c.config.Lease/8))), needed && !c.group.Look.IsZero() && !c.busy
}

// lookDue returns when a look at the group is due.
func (c *checkpointer) lookDue() (due time.Time, is bool) {
	after, is := lookInterval, c.heard > c.group.Written
	if !is && c.deaf {
		after, is = max(lookInterval, c.config.Lease/4), true
	}
	return later(c.lookedAt.Add(after), c.retryAt), is && !c.busy && c.place.Leased()
}

// checkDue returns when a check is due, if the run is at work. A message whose handler runs long,
// or fails again and again, keeps the position in place, and with many messages behind it, or with
// redrives, the run does not read either. After a failure a check is always due, because otherwise
// nothing would show that the store is back.
func (c *checkpointer) checkDue(atWork bool) (due time.Time, is bool) {
	if c.failures > 0 {
		return c.retryAt, !c.busy
	}
	return later(c.checkedAt.Add(headInterval), c.retryAt), atWork && !c.busy
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// start writes a checkpoint or checks, if one is due. The write of a position continues when the
// run stops; a check ends with reads, and so does a write that only stores failing messages,
// because finish repeats it.
func (c *checkpointer) start(reads, work context.Context, r *run, atWork, needed bool, now time.Time) {
	isDue := func(due time.Time, is bool) bool { return is && !now.Before(due) }
	var next checked
	ctx, read := reads, r.reader.mark
	switch {
	case isDue(c.writeDue(r.progress)):
		next.action, ctx = writes, work
	case isDue(c.noteDue(r.progress)):
		next.action = notes
	case isDue(c.lookDue()):
		next.action = looks
	case isDue(c.meetDue(needed)):
		next.action = meets
	case isDue(c.checkDue(atWork)):
		next.action = checks
	default:
		return
	}
	if next.action.stores() {
		next.saved = r.progress.toStore()
	}
	switch next.action {
	case checks:
	case meets:
		c.metAt = now
	default:
		c.heard, c.lookedAt = 0, now
	}
	c.busy = true
	r.wg.Go(func() {
		next.err = calling.Call(func() error { return c.run(ctx, next, read) })
		next.group = c.place.View(time.Now())
		stream, version := c.place.Stream, c.place.Version()
		c.results <- next
		if next.action.stores() && next.err == nil {
			_ = calling.Call(func() error { r.trim(reads, stream, version); return nil }) // the next one trims more
		}
	})
}

func (c *checkpointer) run(ctx context.Context, next checked, read messagestore.Mark) error {
	ctx, cancel := context.WithTimeout(calling.Upkeep(ctx), checkpoint.CallTimeout)
	defer cancel()
	switch next.action {
	case looks:
		return c.place.Look(ctx)
	case meets:
		return c.place.Meet(ctx, read)
	case checks:
		return c.place.Check(ctx, read)
	}
	return c.place.Write(ctx, next.Checkpoint, next.failing, read, false)
}

// took handles a result.
func (c *checkpointer) took(result checked) {
	c.busy = false
	c.group = result.group
	if result.err != nil || result.action == meets {
		return
	}
	c.failures, c.retryAt = 0, time.Time{}
	if result.action != looks {
		c.checkedAt = time.Now()
	}
}

// failed delays the next attempt.
func (c *checkpointer) failed(wait func(failures int) time.Duration) {
	c.failures++
	c.retryAt = time.Now().Add(wait(c.failures))
}
