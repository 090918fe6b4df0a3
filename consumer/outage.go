package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/text"
)

// An activity is a kind of call that a consumer makes at its store.
type activity string

const (
	starting      activity = "start"
	reading       activity = "read"
	checkpointing activity = "checkpoint"
	looking       activity = "look at parked messages"
	parking       activity = "park"
	redriving     activity = "redrive"
)

// The pauses after errors of the store. A server that was killed is back within a second,
// so a consumer is idle for at most maxStoreBackoff longer. A server that stays away gets
// at most two calls a second from each consumer.
const (
	minStoreBackoff = 50 * time.Millisecond
	maxStoreBackoff = time.Second
)

// by names the consumer for the outage of its store.
func (c *Consumer) by() string { return string(c.id.Ledger()) }

// storeFailed counts an error that may heal, and returns how long to wait. The first error of an
// outage is logged, for all callers of the store, and later ones at growing intervals.
func (c *Consumer) storeFailed(at activity, err error, failures int) time.Duration {
	wait := outage.Pause(failures, minStoreBackoff, maxStoreBackoff)
	c.counts.storeErrors.Add(1)
	c.outage.Failed(outage.Key{By: c.by(), To: string(at)}, c.config.Logger, "consumer", c.id.Name,
		"category", string(c.id.Category), "to", string(at), "failures", failures, "wait", wait, "error", text.Log(err))
	return wait
}

// storeWorks ends an outage, if there is one and nothing else fails. A start begins a run, so a
// failure in an earlier run does not count any more.
func (c *Consumer) storeWorks(at activity) {
	if at == starting {
		c.outage.Begins(c.by())
		return
	}
	c.outage.Works(outage.Key{By: c.by(), To: string(at)})
}

// A probe is the last check whether the store answers.
type probe struct {
	mu   sync.Mutex
	at   time.Time
	away bool
}

// probeInterval is the shortest time between two checks: handlers that fail together check once.
const probeInterval = 100 * time.Millisecond

// storeIsAway reports whether the consumer's store does not answer, after a handler has failed.
// Such a failure is then caused by the store and not by the message. An error with a disposition,
// or a lasting error, always counts as the handler's.
func (r *run) storeIsAway(ctx context.Context, it *item, err error) bool {
	if r.catchUp || it.Value.parking || calling.DispositionOf(err) != nil || lasts(err) {
		return false
	}
	p := &r.probe
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || time.Since(p.at) >= probeInterval {
		bounded, cancel := context.WithTimeout(calling.Upkeep(ctx), checkpoint.CallTimeout)
		_, failed := r.store.Now(bounded)
		cancel()
		p.at, p.away = time.Now(), failed != nil && ctx.Err() == nil && heals(failed)
	}
	return p.away
}
