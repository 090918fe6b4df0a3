package cli

import (
	"context"
	"errors"
	"strings"

	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

// A parkedCommand is dibs parked: it shows parked messages, and has them redriven or dropped.
type parkedCommand struct {
	List    parkedListCommand    `cmd:"" default:"withargs" help:"Print parked messages and their errors."`
	Show    parkedShowCommand    `cmd:"" help:"Print one parked message in full."`
	Redrive parkedRedriveCommand `cmd:"" help:"Have the consumer deliver parked messages again."`
	Drop    parkedDropCommand    `cmd:"" help:"Forget parked messages without handling them."`
}

type parkedListCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category that the consumers read. Defaults to all."`
	Name     *string               `arg:"" optional:"" help:"The consumer's name. Defaults to all of the category."`
}

// parkedStates are those of messages that are parked, are to be redriven, or are to be parked.
var parkedStates = []queue.State{queue.Dead, queue.Later, queue.Held, queue.Out, queue.Suspended}

func (c *parkedListCommand) Run(ctx context.Context, a *app) error {
	of := aConsumer{Category: c.Category}
	if c.Name != nil {
		of.Name = *c.Name
		if err := consumers.CheckConsumer(c.Category, of.Name); err != nil {
			return err
		}
	}
	return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
		printed := false
		a.out.table(append([]string{"consumer"}, itemColumns...)...)
		for _, s := range all {
			name := s.Name[strings.LastIndexByte(s.Name, ':')+1:]
			if !s.Parked || of.Category != "" && s.Category != of.Category || of.Name != "" && name != of.Name {
				continue
			}
			q, err := queueOf(store, s)
			if err != nil {
				return err
			}
			for _, state := range parkedStates {
				for item, err := range itemsOf(ctx, q, state, 0, queuing.MaxItems) {
					if err != nil {
						return err
					}
					object := append(fields{"category", s.Category, "consumer", name, "queue", s.Name}, wholeItem(item, messageOf(item, headOf))...)
					a.out.row(object, append([]any{name}, a.itemCells(item)...)...)
					printed = true
				}
			}
		}
		if !printed {
			return a.nothingParked(ctx, store, of)
		}
		return nil
	})
}

// nothingParked says so. A consumer or category that there is not is an error: it has
// nothing parked because its name was misspelt.
func (a *app) nothingParked(ctx context.Context, store *messagestore.Store, of aConsumer) error {
	by := ""
	switch {
	case of.Name != "":
		if _, err := of.status(ctx, store); is[*consumers.UnknownConsumerError](err) {
			return err
		}
		by = " by " + of.Name + " of " + string(of.Category)
	case of.Category != "":
		if err := operate.RequireCategory(ctx, store, of.Category); err != nil {
			return err
		}
		by = " by consumers of " + string(of.Category)
	}
	a.nothing("nothing is parked%s", by)
	return nil
}

// parked calls a function with the queue of a consumer's parked messages. Without one, nothing is
// parked, which is an error for a message that is named.
func (c aConsumer) parked(a *app, named bool) withQueue {
	return func(ctx context.Context, f func(q *queue.Queue) error) error {
		return a.withConsumer(ctx, c, func(store *messagestore.Store, target *consumers.Target) error {
			q, err := target.Parked()
			if err != nil {
				return err
			}
			_, err = q.Status(ctx)
			switch {
			case errors.Is(err, messagestore.ErrNotFound) && named:
				return notFound("%s of %s has parked no message", c.Name, c.Category)
			case errors.Is(err, messagestore.ErrNotFound):
				return a.nothingParked(ctx, store, c)
			case err != nil:
				return err
			}
			return f(q)
		})
	}
}

type parkedShowCommand struct {
	aConsumer
	Position position `arg:"" help:"The position of the message, as dibs parked list prints it."`
	Data     bool     `help:"Print the message's data and metadata too."`
}

func (c *parkedShowCommand) Run(ctx context.Context, a *app) error {
	return a.showItem(ctx, c.parked(a, true), c.Position, c.Data)
}

type parkedRedriveCommand struct {
	aConsumer
	someItems
}

func (c *parkedRedriveCommand) Run(ctx context.Context, a *app) error {
	if len(c.Positions) == 0 && !c.set() {
		c.All = true
	}
	return c.run(ctx, a, c.parked(a, len(c.Positions) > 0), operate.Retry, "retried", "later, suspended or dead", (*queue.Queue).Retry)
}

type parkedDropCommand struct {
	aConsumer
	someItems
}

func (c *parkedDropCommand) Run(ctx context.Context, a *app) error {
	if c.Reason == "" {
		return usage("give --reason: why, for the message's log")
	}
	return c.run(ctx, a, c.parked(a, len(c.Positions) > 0), operate.Drop, "dropped", "parked", (*queue.Queue).Drop)
}
