// Package outage handles the time in which a store, or another server, fails. It says how long to
// wait before a failed operation is repeated ([Pause]), and logs an outage once for all callers of
// a process: a line at its beginning, a line at its end, and further lines after 1, 2, 4 … minutes.
package outage

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/logger"
)

const (
	// reminderAfter is how long an outage lasts before it is logged again. It is logged again at
	// twice that time, and so on.
	reminderAfter = time.Minute

	// settled is how long a store must work before another failure counts as a new outage. After a
	// restart, one caller may succeed before the next one finds its connection broken. An idle
	// caller looks every 10 s.
	settled = 10 * time.Second
)

// A Key names a caller, and its operation at the store.
type Key struct{ By, To string }

// An Outage is the time from the first error of a store until every operation that failed has
// succeeded again: a server that answers reads and refuses writes is not back. Its methods are safe
// for concurrent use. The zero value stands for a store that works.
type Outage struct {
	some atomic.Bool // an operation fails; otherwise a success costs nothing

	mu      sync.Mutex
	failing map[Key]struct{}
	began   time.Time
	last    time.Time // error
	errors  int
	said    bool
	remind  time.Time
	ended   time.Time     // of the last outage with a logged end
	log     logger.Logger // the logger that logged the beginning
	about   []any         // the fields of the caller for that line
}

// OfStore returns the outage that all callers of a store share, or nil. Package messagestore, whose
// stores have one, sets it.
var OfStore = func(store any) *Outage { return nil }

// Of returns the outage that all callers of a store share. If the store has none, Of returns a new
// one.
func Of(store any) *Outage {
	if shared := OfStore(store); shared != nil {
		return shared
	}
	return &Outage{}
}

// Failed records an error of a caller, and logs it if it is the first. A caller without a logger
// leaves that to the next. If all failed callers have ended and no other caller has succeeded
// since, an error more than a minute later begins another outage. The fields in about are for the
// caller's log lines, each a name and a value. The line at the outage's end has them too, and
// another goroutine may log that, so the values must not change later.
func (o *Outage) Failed(key Key, log logger.Logger, about ...any) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.some.Load() || len(o.failing) == 0 && now.Sub(o.last) >= reminderAfter {
		o.failing = map[Key]struct{}{}
		o.began, o.errors, o.said = now, 0, false
		o.some.Store(true)
	}
	o.failing[key] = struct{}{}
	o.last = now
	o.errors++
	lasted := now.Sub(o.began)
	event, what := log.Warn(), "store failed: trying again"
	switch {
	case event == nil:
	case !o.said && now.Sub(o.ended) >= settled:
		o.said, o.log, o.about = true, log, about
		o.remind = o.began.Add(max(lasted, reminderAfter))
	case o.said && !now.Before(o.remind):
		o.remind = now.Add(max(lasted, reminderAfter))
		event, what = event.Str("for", Roughly(lasted)), "store still fails"
	default:
		event, what = log.Debug(), "store failed again"
	}
	event.Fields(withUnits(about)).Msg(what)
}

// Works records the success of a caller's operation. It ends the outage if nothing else fails.
func (o *Outage) Works(key Key) { o.works(func(k Key) bool { return k == key }) }

// Begins records that a caller has started again at a working store: its earlier failures do not
// count any more.
func (o *Outage) Begins(by string) { o.works(func(k Key) bool { return k.By == by }) }

// Ends removes a caller that makes no more calls. It does not end an outage: only another caller's
// success shows that the store works.
func (o *Outage) Ends(by string) {
	if !o.some.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.failing, func(k Key, _ struct{}) bool { return k.By == by })
}

func (o *Outage) works(what func(Key) bool) {
	if !o.some.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if maps.DeleteFunc(o.failing, func(k Key, _ struct{}) bool { return what(k) }); len(o.failing) > 0 {
		return
	}
	if over := o.some.Swap(false); over && o.said {
		o.ended = time.Now()
		o.log.Warn().Str("after", Roughly(o.ended.Sub(o.began))).Int("errors", o.errors).Fields(withUnits(o.about)).Msg("store is back")
	}
}

// withUnits turns durations into texts, because the logger would write numbers.
func withUnits(about []any) []any {
	texts := slices.Clone(about)
	for i, value := range texts {
		if d, is := value.(time.Duration); is {
			texts[i] = d.Round(time.Millisecond).String()
		}
	}
	return texts
}

// Roughly returns a duration for a person: 5.2s, 1h3m.
func Roughly(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
