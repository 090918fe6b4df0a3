package consumer

import (
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/messagestore"
)

// said has the warnings that a consumer has logged. Each is logged once.
type said struct {
	empty  bool // the category has no message
	filter bool // no message passes the filter
	few    bool // the store has fewer connections than messages are in flight
}

// sayNothing warns, at the end of the category, if the category has no message, or if none of its
// messages passes the filter: a name may be misspelt.
func (r *run) sayNothing(page messagestore.CategoryPage) {
	whole := !r.checkpoints.place.Leased() || r.checkpoints.place.SlotCount() == checkpoint.Slots
	switch filtered := r.config.OnlyKnown || r.config.Correlation != ""; {
	case page.More || r.from > 0 || r.took:
	case page.Next == 0:
		if !r.said.empty {
			r.said.empty = true
			r.config.Logger.Warn().Str("consumer", r.id.Name).Str("category", string(r.id.Category)).
				Msg("the category has no message yet: is its name right?")
		}
	case filtered && whole && !r.said.filter:
		r.said.filter = true
		event := r.config.Logger.Warn().Str("consumer", r.id.Name).Str("category", string(r.id.Category))
		if known := r.known(); len(known) > 0 {
			event.Strs("types", known[:min(len(known), 10)])
		}
		if r.config.Correlation != "" {
			event.Str("correlation", string(r.config.Correlation))
		}
		event.Msg("the category has messages, and none passes the consumer's filter: are its names right?")
	}
}

// sayFewConnections warns if Concurrency is above the number of the store's connections: handlers
// that use one each would wait for each other.
func (c *Consumer) sayFewConnections() {
	if n := c.store.Connections(); !c.said.few && n > 0 && n < c.config.Concurrency {
		c.said.few = true
		c.config.Logger.Warn().Str("consumer", c.id.Name).Str("category", string(c.id.Category)).Int("concurrency", c.config.Concurrency).Int("connections", n).
			Msg("Concurrency is greater than the number of connections in the store's pool: handlers that use one each wait for each other")
	}
}
