package work

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// When a consumer is far behind, and how often that is looked at.
const (
	farBehind = 1000        // messages that a consumer has left to do
	paceEvery = time.Second // its lag is looked at
)

// keepPace has the writers of this process write seldom while a consumer is far behind.
func (c *client) keepPace(ctx context.Context) {
	ticker := time.NewTicker(paceEvery)
	defer ticker.Stop()
	categories := []messagestore.Category{Orders, Payments}
	for i := range c.task.Load.Categories {
		categories = append(categories, Events(i))
	}
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, paceEvery)
		behind := false
		for _, category := range categories {
			statuses, err := operate.Consumers(limited, c.store.Store, category) // or else it is tried again
			for _, s := range statuses {
				behind = behind || err == nil && s.Lag > farBehind
			}
		}
		cancel()
		c.behind.Store(behind)
	}
}
