package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// errUnfair ends a run if its member has slots to give up, or free ones to take. The next run
// begins with the member's share.
var errUnfair = errors.New("the member's share of the category has changed")

// A handover ends a run at a moment when no message is in flight: it takes no further messages, and
// if those in flight take long, it lets the run go on and tries again later. So a handler that runs
// long delays the handover, and not the messages behind it.
type handover struct {
	paused bool      // no message is taken, and the queue of parked messages is not checked
	held   bool      // no message is begun
	away   bool      // held because of the lease or an operator, and not only for the slots
	asked  bool      // an operator asked for a pause
	draws  bool      // the run is coming to an end
	until  time.Time // when it changes its mind
}

// handOver pauses the run while its lease may be over or an operator wants it, and ends the run
// when the member's share of the slots has changed. It reports whether the run has ended.
func (r *run) handOver(now time.Time) (ended bool) {
	h, group := &r.handover, &r.checkpoints.group
	if asked := r.checkpoints.place.Paused(); asked != h.asked {
		h.asked = asked
		r.sayPaused(asked)
	}
	if h.asked && r.catchUp {
		r.fail(ErrPaused)
		return true
	}
	switch {
	case !group.Unfair:
		*h = handover{paused: h.paused, held: h.held, away: h.away, asked: h.asked}
	case !now.Before(h.until):
		h.draws, h.until = !h.draws, now.Add(r.config.Grace)
	}
	over := r.leaseOver(now)
	h.paused = h.draws || h.asked || over && group.Look.IsZero()
	h.away = h.away || over || h.asked
	if hold := h.paused || over; hold != h.held {
		h.held = hold
		r.lanes.Pause(hold)
		if !hold && h.away {
			h.away, r.resumed = false, now
		}
	}
	if h.draws && r.lanes.InFlight() == 0 && !r.checkpoints.busy {
		r.stays = true
		r.fail(errUnfair)
		return true
	}
	return false
}

// leaseOver reports whether the member's lease may be over. It uses the process's monotonic clock,
// which goes on while the process is stopped, so a worker may call it before the loop has noticed a
// stop. (On Linux that clock stands still while the machine sleeps.)
func (r *run) leaseOver(now time.Time) bool {
	over := r.over.Load()
	return !over.IsZero() && !now.Before(*over)
}

func (r *run) sayPaused(paused bool) {
	event, text := r.config.Logger.Warn(), "consumer is paused, as an operator has asked: dibs consumers resume lets it go on"
	if !paused {
		event, text = r.config.Logger.Info(), "consumer is no longer paused"
	}
	event.Str("consumer", r.id.Name).Str("category", string(r.id.Category)).Msg(text)
}

// nextStep returns when handOver has something to do.
func (r *run) nextStep() (at time.Time, is bool) {
	at = r.checkpoints.group.Over
	if r.checkpoints.group.Unfair && (at.IsZero() || r.handover.until.Before(at)) {
		at = r.handover.until
	}
	return at, !at.IsZero() && time.Now().Before(at)
}

// leaveGroup gives up the seat of a member that has nothing to checkpoint, so that others take its
// slots at once. If that fails, they take them after the lease.
func (c *Consumer) leaveGroup(ctx context.Context, p *checkpoint.Place) {
	ctx, cancel := context.WithTimeout(calling.Upkeep(context.WithoutCancel(ctx)), stopTimeout)
	defer cancel()
	if err := p.Leave(ctx); err != nil {
		c.couldNotLeave(err)
	}
}

// couldNotLeave logs an error of a leave, unless the group has gone on without the member.
func (c *Consumer) couldNotLeave(err error) {
	if !errors.Is(err, ErrConsumerFenced) {
		c.config.Logger.Warn().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Str("error", text.Log(err)).Msg("replica could not leave")
	}
}

// A standby is a member that waits for something to handle.
type standby struct {
	*Consumer
	bell  <-chan messagestore.GlobalPosition
	end   func()
	place *checkpoint.Place // the place joined last
}

// wait waits until p's group may have something to handle.
func (s *standby) wait(ctx context.Context, p *checkpoint.Place) {
	if s.bell == nil {
		s.bell, s.end = s.store.Watch(checkpoint.Positions(s.id.Category), lookInterval)
		s.config.Logger.Info().Str("consumer", s.id.Name).Str("category", string(s.id.Category)).Msg("consumer stands by")
	}
	s.place = p
	for {
		group := p.View(time.Now())
		if group.Unfair {
			return
		}
		timer := time.NewTimer(min(time.Until(group.Next()), headInterval))
		var head messagestore.GlobalPosition
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			return
		case head = <-s.bell:
			timer.Stop()
		}
		if head == 0 || head > group.Written {
			look, cancel := context.WithTimeout(calling.Upkeep(ctx), checkpoint.CallTimeout)
			err := p.Look(look)
			cancel()
			if err != nil {
				return // to join again
			}
		}
	}
}

// stop ends the watch.
func (s *standby) stop() {
	if s.end != nil {
		s.end()
	}
}
