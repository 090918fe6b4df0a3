package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// When a sink counts as out, and the pauses of a relay then.
const (
	// outAfter is how many different messages must fail, with none taken in between, until the sink
	// counts as out. Fewer may be messages that no sink would take.
	outAfter = 8

	// While the sink is out, all workers wait between their attempts: minPause at first, and twice
	// as long each time.
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second

	// sayAgain is the time after which a lasting state is logged again.
	sayAgain = 10 * time.Minute
)

// A health is the state of the sink as a relay's process knows it. While the sink is out, attempts
// are rare and do not count.
type health struct {
	log  logger.Logger
	name string // of the relay

	mu      sync.Mutex
	failing map[messagestore.GlobalPosition]bool // since the last message that was taken, up to outAfter
	since   time.Time                            // when the first of them failed
	pauses  int
	next    time.Time     // of the next attempts
	back    chan struct{} // closed when the sink takes a message; nil while it is not out
	said    time.Time     // when the log last said that it is out
	gone    time.Time     // when the log last said that the URL is gone
}

// wait returns when an attempt may be made.
func (h *health) wait(ctx context.Context) {
	h.mu.Lock()
	back, pause := h.back, time.Until(h.next)
	h.mu.Unlock()
	if back == nil || pause <= 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-back:
	case <-timer.C:
	}
}

// took notes that the sink has taken a message.
func (h *health) took() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.failing) == 0 {
		return
	}
	if h.back != nil {
		close(h.back)
		h.back = nil
		h.log.Info().Str("queue", h.name).Stringer("after", time.Since(h.since).Round(time.Millisecond)).Msg("the sink takes messages again")
	}
	clear(h.failing)
	h.pauses, h.said, h.gone = 0, time.Time{}, time.Time{}
}

// failed records a failed attempt, and reports whether it counts. If it does not, it returns how
// long the message waits: as long as the sink has been out, so that others have their turn, and no
// message waits much longer than it had to.
func (h *health) failed(m *messagestore.Message, err error) (counts bool, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if len(h.failing) == 0 {
		h.failing, h.since = map[messagestore.GlobalPosition]bool{}, now
	}
	if isGone(err) && now.Sub(h.gone) >= sayAgain {
		h.gone = now
		h.log.Error().Str("queue", h.name).Str("error", text.Log(err)).Msg("the URL of the sink is gone: it takes nothing there until the URL is mended")
	}
	if h.back == nil {
		if h.failing[m.GlobalPosition] = true; len(h.failing) < outAfter {
			return true, 0
		}
		h.back = make(chan struct{})
	}
	if !now.Before(h.next) { // the first of this round
		h.pauses++
		h.next = now.Add(outage.Pause(h.pauses, minPause, maxPause))
	}
	if now.Sub(h.said) >= sayAgain {
		h.said = now
		h.log.Error().Str("queue", h.name).Stringer("for", now.Sub(h.since).Round(time.Millisecond)).Str("error", text.Log(err)).Msg("the sink is out: it takes no message, and none is given up")
	}
	wait = min(max(now.Sub(h.since), minBackoff), maxOutBackoff)
	return false, outage.Pause(1, wait, wait)
}

// outSince returns when the first of the failures happened that show that the sink is out, and the
// zero time while it is not out.
func (h *health) outSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.back == nil {
		return time.Time{}
	}
	return h.since
}
