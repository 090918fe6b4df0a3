package consumer

import (
	"sync"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/text"
	"github.com/dibs-go/dibs/internal/backoff"
)

// An activity is one of the things that a consumer does at its store.
type activity string

const (
	starting      activity = "start"
	reading       activity = "read"
	checkpointing activity = "checkpoint"
	looking       activity = "look for requests"
	parking       activity = "park"
	redriving     activity = "redrive"
)

// reminderAfter is how long an outage lasts before it is logged once more, and then at twice the
// time, and so on.
const reminderAfter = time.Minute

// An outage is the time in which the store fails at something that the consumer does. It is over
// when all that failed works again: a server that answers reads and refuses writes is not back.
// Its methods are safe for concurrent use.
type outage struct {
	mu      sync.Mutex
	began   time.Time
	errors  int
	remind  time.Time
	failing map[activity]struct{}
}

// fails takes in an error. It reports whether the outage is to be logged, and since when it
// lasts if that was done before.
func (o *outage) fails(at activity, now time.Time) (say bool, lasted time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 {
		o.failing = map[activity]struct{}{}
		o.began, o.errors, o.remind = now, 0, now.Add(reminderAfter)
	}
	o.failing[at] = struct{}{}
	o.errors++
	if lasted = now.Sub(o.began); o.errors == 1 || !now.Before(o.remind) {
		o.remind = now.Add(max(lasted, reminderAfter))
		return true, lasted
	}
	return false, lasted
}

// works takes in a success, and reports whether the outage is over by it. A start is that of a
// run, so a failure in the run before does not count any more.
func (o *outage) works(at activity, now time.Time) (over bool, lasted time.Duration, errors int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 {
		return false, 0, 0
	}
	if delete(o.failing, at); at == starting {
		clear(o.failing)
	}
	return len(o.failing) == 0, now.Sub(o.began), o.errors
}

// ends forgets an outage at the end of Run.
func (o *outage) ends() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.failing)
}

// The pauses after errors of the store. A server that was killed is back within a second,
// so a consumer is idle for at most maxStoreBackoff longer. A server that stays away gets
// at most two calls a second from each consumer.
const (
	minStoreBackoff = 50 * time.Millisecond
	maxStoreBackoff = time.Second
)

// storeFailed counts an error that may heal, and returns how long to wait. The first error of an
// outage is logged, and later ones at growing intervals.
func (c *Consumer) storeFailed(at activity, err error, failures int) time.Duration {
	wait := backoff.After(failures, minStoreBackoff, maxStoreBackoff)
	c.counts.storeErrors.Add(1)
	event, what := c.config.Logger.Debug(), "store failed again"
	switch say, lasted := c.outage.fails(at, time.Now()); {
	case say && lasted == 0:
		event, what = c.config.Logger.Warn(), "store failed: trying again"
	case say:
		event, what = c.config.Logger.Warn().Str("for", roughly(lasted)), "store still fails"
	}
	event.Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Str("to", string(at)).
		Int("failures", failures).Dur("wait", wait).Str("error", text.Of(err)).Msg(what)
	return wait
}

// storeWorks ends an outage, if there is one and nothing else fails.
func (c *Consumer) storeWorks(at activity) {
	if over, lasted, errors := c.outage.works(at, time.Now()); over {
		c.config.Logger.Warn().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).
			Str("after", roughly(lasted)).Int("errors", errors).Msg("store is back")
	}
}

// roughly returns a duration for a person: 5.2s, 1h3m.
func roughly(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
