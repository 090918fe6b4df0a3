package cases

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// dibsConcurrent is the name of a consumer of more than one message at a time.
const dibsConcurrent = "Dibs, 8 at a time"

// consume returns the case of a consumer that has a long way to go.
func (r *rows) consume() []measure.Case {
	return []measure.Case{{
		Name:  "consume/backlog",
		Shows: "A consumer with a trivial handler and a backlog, in order for each stream",
		Setup: r.setup,
		Contenders: []measure.Contender{
			{Name: dibs, Run: r.consumer(1)},
			{Name: dibsConcurrent, Run: r.consumer(8)},
		},
		Goals: []measure.Goal{
			{Metric: measure.Rate, Of: dibs, AtLeast: 80_000},
			{Metric: measure.Rate, Of: dibsConcurrent, AtLeast: 80_000},
		},
	}}
}

// consumer delivers all rows to a handler that only checks their order, with the given concurrency.
func (r *rows) consumer(concurrency int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		if err := onServer(ctx, cell); err != nil {
			return err
		}
		store, err := openDibsStore(ctx, r.inDibs)
		if err != nil {
			return err
		}
		defer store.close()
		order := newOrder(r.streams)
		c, err := consumer.New(store, rowsCategory, consumerName(fmt.Sprint("c", concurrency), cell), order, &consumer.Config{Concurrency: concurrency})
		if err != nil {
			return err
		}
		err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
			err := c.CatchUp(ctx)
			return c.Stats().Handled, err
		})
		return errors.Join(err, cell.Check("messages in order", order.handled(), r.count), cell.Check("messages handled", c.Stats().Handled, r.count))
	}
}

// consumerName returns a name that no consumer has had, so that it begins at the
// beginning.
func consumerName(prefix string, cell *measure.Cell) string {
	return fmt.Sprintf("%sx%x", prefix, cell.Seed)
}

// An order is a handler that checks that the messages of each stream come in order. A consumer may
// call it concurrently.
type order struct {
	next map[messagestore.StreamName]*messagestore.Version
}

func newOrder(streams []messagestore.StreamName) *order {
	o := &order{make(map[messagestore.StreamName]*messagestore.Version, len(streams))}
	for _, stream := range streams {
		o.next[stream] = new(messagestore.Version)
	}
	return o
}

// Handle refuses a message that is not the next of its stream.
func (o *order) Handle(_ context.Context, m *messagestore.Message) error {
	next, known := o.next[m.Stream]
	if !known || m.Position != *next {
		return fmt.Errorf("%s: out of order", m)
	}
	*next++
	return nil
}

// handled returns how many messages there were. Nobody may call Handle meanwhile.
func (o *order) handled() (n int64) {
	for _, next := range o.next {
		n += int64(*next)
	}
	return n
}
