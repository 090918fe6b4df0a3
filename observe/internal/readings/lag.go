// Package readings reads, for both exporters, how far behind the consumers of a process are, and
// how the queues of a store stand.
package readings

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// A Lag is how far a consumer is behind, with all of its replicas.
type Lag struct {
	Consumer *consumer.Consumer
	Messages int64   // up to operate.MaxLag
	Seconds  float64 // the age of the oldest of them, by the store's clock
	Parked   int     // messages, those to be redriven among them
	Members  int     // replicas that have joined
	Gone     int     // replicas that have been silent for longer than their lease
}

// LagOf reads the lag of consumers, with one read for each category.
func LagOf(ctx context.Context, store *messagestore.Store, consumers []*consumer.Consumer) ([]Lag, error) {
	now, err := store.Now(ctx)
	if err != nil {
		return nil, err
	}
	read := map[messagestore.Category][]operate.Status{}
	var all []Lag
	for _, c := range consumers {
		states, ok := read[c.Category()]
		if !ok {
			if states, err = operate.Consumers(ctx, store, c.Category()); err != nil {
				return nil, err
			}
			read[c.Category()] = states
		}
		l := Lag{Consumer: c}
		for _, s := range states {
			if s.Name == c.Name() && !s.Foreign {
				l.add(s, now)
			}
		}
		all = append(all, l)
	}
	return all, nil
}

func (l *Lag) add(s operate.Status, now time.Time) {
	l.Parked, l.Members, l.Messages = s.Parked, len(s.Replicas), s.Lag
	if !s.Oldest.IsZero() {
		l.Seconds = max(0, now.Sub(s.Oldest).Seconds())
	}
	if len(s.Replicas) == 0 {
		return
	}
	l.Messages = 0
	for _, r := range s.Replicas {
		l.Messages += r.Lag
		if r.Gone {
			l.Gone++
		}
	}
	if s.Free > 0 { // their messages are no replica's
		l.Messages = max(l.Messages, s.Lag)
	}
}
