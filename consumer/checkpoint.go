package consumer

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
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
}

// A checked is the result of a write or a check.
type checked struct {
	saved
	onlyChecked bool
	err         error
}

func newCheckpointer(place *checkpoint.Place, config *Config) *checkpointer {
	return &checkpointer{config: config, place: place, results: make(chan checked, 1), checkedAt: time.Now()}
}

// writeDue returns when a checkpoint is due, if the position has moved.
func (c *checkpointer) writeDue(p *progress) (due time.Time, moved bool) {
	if c.busy {
		return time.Time{}, false
	}
	due, moved = p.due(c.config.CheckpointInterval, c.config.PollInterval)
	return later(due, c.retryAt), moved
}

// checkDue returns when a check is due, if the run is at work: a message whose handler
// runs for long, or fails again and again, keeps the position where it is. With many
// messages behind it, or with redrives, the run does not read either.
func (c *checkpointer) checkDue(atWork bool) (due time.Time, is bool) {
	return later(c.checkedAt.Add(headInterval), c.retryAt), atWork && !c.busy
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// start writes a checkpoint or checks, if one is due. A write goes on when the run stops; a
// check ends with reads.
func (c *checkpointer) start(reads, work context.Context, r *run, atWork bool, now time.Time) {
	due, moved := c.writeDue(r.progress)
	check, isDue := c.checkDue(atWork)
	write := moved && !now.Before(due)
	if !write && (!isDue || now.Before(check)) {
		return
	}
	c.busy = true
	next, read := checked{saved: r.progress.position(), onlyChecked: !write}, r.reader.mark
	ctx := reads
	if write {
		ctx = work
	}
	r.wg.Go(func() {
		next.err = c.run(ctx, next, read)
		c.results <- next
	})
}

func (c *checkpointer) run(ctx context.Context, next checked, read messagestore.Mark) error {
	ctx, cancel := context.WithTimeout(ctx, checkpoint.CallTimeout)
	defer cancel()
	if next.onlyChecked {
		return c.place.Check(ctx, read)
	}
	return c.place.Write(ctx, next.Checkpoint, read)
}

// took takes a result in.
func (c *checkpointer) took(result checked) {
	c.busy = false
	if result.err == nil {
		c.checkedAt, c.failures, c.retryAt = time.Now(), 0, time.Time{}
	}
}

// failed has the next attempt wait.
func (c *checkpointer) failed(wait func(failures int) time.Duration) {
	c.failures++
	c.retryAt = time.Now().Add(wait(c.failures))
}
