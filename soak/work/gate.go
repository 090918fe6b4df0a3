package work

import (
	"context"
	"math/rand/v2"
	"time"
)

// How long a gate asks the store for an answer, and how often.
const (
	pingWithin = 500 * time.Millisecond
	pingEvery  = 100 * time.Millisecond // about
	pingFor    = 2 * time.Second        // and then everybody tries again by himself
)

// A gate holds up callers after a failed call, until the store answers one of them. A recovering
// server starts a process for each client that connects, and fifty clients that connect all the
// time take the processor time that it needs to recover.
type gate struct {
	ping func(context.Context) error
	turn chan struct{} // has room for one value; the caller that has put it there asks
	open time.Time     // when the question was asked that ended the last wait
}

func newGate(ping func(context.Context) error) *gate {
	return &gate{ping: ping, turn: make(chan struct{}, 1)}
}

// wait returns once the store has answered a question that was asked after failed.
func (g *gate) wait(ctx context.Context, failed time.Time) {
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	for began := time.Now(); ctx.Err() == nil && !g.open.After(failed); {
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, pingWithin)
		err := g.ping(limited)
		cancel()
		if err == nil || time.Since(began) > pingFor {
			g.open = asked
			return
		}
		again := time.NewTimer(pingEvery/2 + rand.N(pingEvery))
		select {
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}
