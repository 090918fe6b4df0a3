package consumer

import (
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/messagestore"
)

// slowAfter is how long a handler may have a message before that is logged. It is logged again at
// twice the time, and so on. slowLook is how often the run looks for such messages.
const (
	slowAfter = time.Minute
	slowLook  = 15 * time.Second
)

// A slowItem is an item that was in flight at every look since a time.
type slowItem struct {
	attempts int
	since    time.Time
	say      time.Time
}

// A slowWatch finds handlers that do not return. It looks at the items in flight now and then, so
// that a message that is handled costs nothing. It belongs to the run's loop.
type slowWatch struct {
	at    time.Time // of the next look
	items map[*item]slowItem
}

// lookAtHandlers logs messages if their handlers have not returned for long.
func (r *run) lookAtHandlers(now time.Time) {
	if now.Before(r.slow.at) {
		return
	}
	r.slow.at = now.Add(slowLook)
	items := map[*item]slowItem{}
	for _, it := range r.lanes.Items() {
		s, known := r.slow.items[it]
		if !known || s.attempts != it.Value.attempts {
			s = slowItem{attempts: it.Value.attempts, since: now, say: now.Add(slowAfter)}
		}
		if lasted := now.Sub(s.since); !now.Before(s.say) {
			s.say = now.Add(lasted)
			if m := r.progress.message(it); m != nil {
				r.logHandler(m, lasted)
			}
		}
		items[it] = s
	}
	r.slow.items = items
}

func (r *run) logHandler(m *messagestore.Message, lasted time.Duration) {
	r.about(r.config.Logger.Warn(), m).Str("for", outage.Roughly(lasted)).Msg("handler has not returned: messages of its cardinal id wait")
}
