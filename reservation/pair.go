package reservation

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// A Pair is the two consumers that a category of its own for reservations takes: one
// reads the commands and reserves, the other reads what is reserved and handles it.
// There is nothing to close.
type Pair struct {
	commands, reserved *consumer.Consumer
}

// NewPair returns the consumers of [Config.From] and [Config.Category] of r, both
// with the same name, handler and config, group and all. The handler is a mux whose
// functions are made by [Copy]; one that is not, is called with what the first
// consumer reads.
func NewPair(store consumer.Store, r *Reserver, name string, h consumer.Handler, config *consumer.Config) (*Pair, error) {
	if r == nil || r.config.Category == "" {
		return nil, fmt.Errorf("new pair: %w", messagestore.NewInvalidError(messagestore.ErrInvalidConfig, "reserver", nil, "it has no category of its own, so that one consumer does"))
	}
	commands, err := consumer.New(store, r.config.From, name, h, config)
	if err != nil {
		return nil, fmt.Errorf("new pair: %w", err)
	}
	reserved, err := consumer.New(store, r.config.Category, name, h, config)
	if err != nil {
		return nil, fmt.Errorf("new pair: %w", err)
	}
	return &Pair{commands, reserved}, nil
}

// Run runs both until ctx is done, as [consumer.Consumer.Run] does. If one ends with
// an error, the other is stopped, and the error is returned.
func (p *Pair) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, c := range []*consumer.Consumer{p.commands, p.reserved} {
		both.Go(func() {
			defer cancel()
			errs[i] = c.Run(ctx)
		})
	}
	both.Wait()
	return errors.Join(errs...)
}

// CatchUp handles messages until none are left in either category, as
// [consumer.Consumer.CatchUp] does.
func (p *Pair) CatchUp(ctx context.Context) error {
	for {
		if err := p.commands.CatchUp(ctx); err != nil {
			return err
		}
		before := taken(p.reserved)
		if err := p.reserved.CatchUp(ctx); err != nil {
			return err
		}
		if taken(p.reserved) == before { // so nobody can have written another command
			return nil
		}
	}
}

// taken counts the messages that c is done with.
func taken(c *consumer.Consumer) int64 {
	stats := c.Stats()
	return stats.Handled + stats.Parked
}
