package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type parkedCommand struct {
	List    parkedListCommand    `cmd:"" default:"withargs" help:"Print parked messages and their errors."`
	Show    parkedShowCommand    `cmd:"" help:"Print one parked message in full."`
	Redrive parkedRedriveCommand `cmd:"" help:"Have the consumer deliver parked messages again."`
	Drop    parkedDropCommand    `cmd:"" help:"Forget parked messages without handling them."`
}

// Help is printed below the command's usage.
func (parkedCommand) Help() string {
	return `The parked messages of consumer mail of category account are the items of the queue account:parked:mail. These are short names for dibs queue jobs, show, retry and drop.`
}

type parkedListCommand struct {
	Category string `arg:"" optional:"" help:"The category that the consumers read. Defaults to all."`
	Name     string `arg:"" optional:"" help:"The consumer's name. Defaults to all of the category."`
}

// Help is printed below the command's usage.
func (parkedListCommand) Help() string {
	return `A line for each message: its consumer, and then as dibs queue jobs has it. A message that is dead is parked, one that is suspended is to be parked, and others are to be redriven. It never prints data, but a handler's error may quote some.

Example:

    dibs parked list account:command accounts`
}

// A parkedLine is how a parked message is printed as JSON.
type parkedLine struct {
	Category messagestore.Category `json:"category"`
	Consumer string                `json:"consumer"`
	Queue    string                `json:"queue"`
	itemLine
}

// parkedStates are those of messages that are parked, are to be redriven, or are to be parked.
var parkedStates = []queue.State{queue.Dead, queue.Later, queue.Held, queue.Out, queue.Suspended}

// Run prints them.
func (c *parkedListCommand) Run(ctx context.Context, a *app) error {
	if c.Category != "" {
		_, err := toCategory(c.Category)
		if c.Name != "" {
			_, err = parseConsumer(c.Category, c.Name)
		}
		if err != nil {
			return err
		}
	}
	return a.withQueues(ctx, func(store *messagestore.Store, all []queue.Status) error {
		printed := false
		for _, s := range all {
			name := s.Name[strings.LastIndexByte(s.Name, ':')+1:]
			if !s.Parked || c.Category != "" && string(s.Category) != c.Category || c.Name != "" && name != c.Name {
				continue
			}
			q, err := queue.New(store, s.Category, &queue.Config{Name: s.Name})
			if err != nil {
				return err
			}
			for _, state := range parkedStates {
				for item, err := range itemsOf(ctx, q, state) {
					if err == nil {
						err = a.printParked(s, name, item, !printed)
					}
					if err != nil {
						return err
					}
					printed = true
				}
			}
		}
		if !printed {
			return a.nothingParked(ctx, store, messagestore.Category(c.Category), c.Name)
		}
		return nil
	})
}

func (a *app) printParked(s queue.Status, name string, item queue.Item, first bool) error {
	if a.JSON {
		l := parkedLine{s.Category, name, s.Name, toItemLine(item)}
		if l.Message != nil {
			l.Message.Data, l.Message.Metadata = nil, nil
		}
		return a.out.object(l)
	}
	if first {
		if err := a.out.row(append([]cell{{text: "consumer"}}, itemHeader...)...); err != nil {
			return err
		}
	}
	return a.out.row(append([]cell{{text: visible(name)}}, itemCells(item)...)...)
}

// nothingParked says so. A consumer or category that there is not is an error: it has
// nothing parked because its name was misspelt.
func (a *app) nothingParked(ctx context.Context, store *messagestore.Store, category messagestore.Category, name string) error {
	by := ""
	switch {
	case name != "":
		if _, err := statusOf(ctx, store, category, name); isUnknownConsumer(err) {
			return err
		}
		by = fmt.Sprintf(" by %s of %s", visible(name), visible(string(category)))
	case category != "":
		if err := requireCategory(ctx, store, category); err != nil {
			return err
		}
		by = " by consumers of " + visible(string(category))
	}
	a.nothing("nothing is parked%s", by)
	return nil
}

// aConsumer names one, whose parked messages are the items of a queue.
type aConsumer struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
}

// with calls a function with the queue of the consumer's parked messages. Without one, nothing is
// parked, which is an error for a message that is named.
func (c aConsumer) with(a *app, named bool) withQueue {
	return func(ctx context.Context, _ string, f func(store *messagestore.Store, q *queue.Queue) error) error {
		category, err := parseConsumer(c.Category, c.Name)
		if err != nil {
			return err
		}
		return a.withStore(ctx, 100, func(store *messagestore.Store) error {
			q, err := operate.Consumer(store, category, c.Name).Parked()
			if err != nil {
				return err
			}
			_, err = q.Status(ctx)
			switch {
			case errors.Is(err, messagestore.ErrNotFound) && named:
				return notFound("%s of %s has parked no message", visible(c.Name), visible(c.Category))
			case errors.Is(err, messagestore.ErrNotFound):
				return a.nothingParked(ctx, store, category, c.Name)
			case err != nil:
				return err
			}
			return f(store, q)
		})
	}
}

type parkedShowCommand struct {
	aConsumer
	Position int64 `arg:"" help:"The position of the message, as dibs parked list prints it."`
	Data     bool  `help:"Print the message's data and metadata too."`
}

// Help is printed below the command's usage.
func (parkedShowCommand) Help() string {
	return `As dibs queue show, but data belongs to the service's users, so it is printed only with --data. Below the error of a panic is its stack.

Example:

    dibs parked show account mail 4711`
}

// Run prints it.
func (c *parkedShowCommand) Run(ctx context.Context, a *app) error {
	return showItem(ctx, a, c.with(a, true), "", c.Position, c.Data)
}

type parkedRedriveCommand struct {
	aConsumer
	Positions []int64 `arg:"" optional:"" help:"The positions of the messages, as dibs parked list prints them. Defaults to all that are parked."`
	Reason    string  `placeholder:"TEXT" help:"Why, for the message's log."`
}

// Help is printed below the command's usage.
func (parkedRedriveCommand) Help() string {
	return `The handler is in the service: the running consumer finds the messages within 5 seconds, or a stopped one at its next start, and delivers each once more, as it was, those of a stream in order, and never together with another of its cardinal id. A message that fails again is parked again, with the new error. It is not written to its category again, which other consumers read too. Later messages of its stream were handled before it.

Examples:

    dibs parked redrive account mail
    dibs parked redrive account mail 4711 --reason "the bank is back"`
}

// Run has them redriven.
func (c *parkedRedriveCommand) Run(ctx context.Context, a *app) error {
	retry := queueRetryCommand{queueItems: queueItems{Positions: c.Positions, Reason: c.Reason}, AllDead: len(c.Positions) == 0}
	return retry.run(ctx, a, c.with(a, len(c.Positions) > 0))
}

type parkedDropCommand struct {
	aConsumer
	Positions []int64 `arg:"" optional:"" help:"The positions of the messages, as dibs parked list prints them."`
	Reason    string  `required:"" placeholder:"TEXT" help:"Why, for the message's log: up to 255 bytes."`
}

// Help is printed below the command's usage.
func (parkedDropCommand) Help() string {
	return `The messages are not handled, and no longer redriven. They stay in their streams, and dibs explain tells the reason. A trim may then remove them. For a message that is to be parked the request is withdrawn.

Example:

    dibs parked drop account mail 4711 --reason 'refunded by hand'`
}

// Run drops them.
func (c *parkedDropCommand) Run(ctx context.Context, a *app) error {
	items := queueItems{Positions: c.Positions, Reason: c.Reason}
	return items.run(ctx, a, c.with(a, true), "dropped", "parked", (*queue.Queue).Drop)
}
