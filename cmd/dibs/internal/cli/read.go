package cli

import (
	"context"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// A streamCommand is dibs stream: it prints the messages of a stream. The commands for categories,
// and dibs tail, are below.
type streamCommand struct {
	Stream    messagestore.StreamName `arg:"" help:"Name of the stream, like account-123."`
	From      *messagestore.Version   `placeholder:"N" help:"Position of the first to print. Defaults to 0, or the last with --backwards."`
	Backwards bool                    `help:"From the last to the first."`
	Limit     *bound                  `placeholder:"N" help:"Print at most N messages. Defaults to all."`
}

func (c *streamCommand) Run(ctx context.Context, a *app) error {
	most, batch := limitOf(c.Limit)
	return a.withStore(ctx, batch, func(store *messagestore.Store) error {
		from, read := messagestore.Version(0), store.ReadStream
		if c.Backwards {
			from, read = messagestore.EndOfStream, store.ReadStreamBackwards
		}
		if c.From != nil {
			from = *c.From
		}
		return a.printAll(read(ctx, c.Stream, from), most, a.inStream, fmt.Sprintf("%s has no messages", c.Stream))
	})
}

// categoryFlags narrow a category.
type categoryFlags struct {
	Type        []string `sep:"none" placeholder:"TYPE" help:"Print only messages of this type. May be repeated."`
	Correlation string   `placeholder:"CATEGORY" help:"Print only messages whose correlation stream is in this category."`
	Member      *int     `placeholder:"N" help:"Print only the messages of this member of a consumer group, from 0. Needs --size."`
	Size        *int     `placeholder:"N" help:"The consumer group's number of members. Needs --member."`
	Limit       *bound   `placeholder:"N" help:"Print at most N messages. Defaults to all."`
}

func (c *categoryFlags) filter() (messagestore.Filter, error) {
	f := messagestore.Filter{Types: c.Type, Correlation: messagestore.Category(c.Correlation)}
	if (c.Member == nil) != (c.Size == nil) {
		return f, usage("--member and --size go together")
	}
	if c.Size != nil {
		if *c.Size < 1 {
			return f, usage("--size=%d: must be at least 1", *c.Size)
		}
		f.GroupMember, f.GroupSize = *c.Member, *c.Size
	}
	return f, f.Validate()
}

type categoryCommand struct {
	Category messagestore.Category       `arg:"" help:"Name of the category, like account or account:command."`
	From     messagestore.GlobalPosition `placeholder:"N" help:"Global position of the first to print. Defaults to the start."`
	categoryFlags
}

func (c *categoryCommand) Run(ctx context.Context, a *app) error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	most, batch := limitOf(c.Limit)
	return a.withStore(ctx, batch, func(store *messagestore.Store) error {
		messages := store.ReadCategory(ctx, c.Category, c.From, filter)
		return a.printAll(messages, most, a.inCategory, fmt.Sprintf("%s has no such messages", c.Category))
	})
}

// printAll prints messages, and tells a person if there are none.
func (a *app) printAll(messages iter.Seq2[*messagestore.Message, error], most int, print func(*messagestore.Message), none string) error {
	found := false
	for m, err := range messages {
		if err != nil {
			return err
		}
		found = true
		print(m)
		if most--; most == 0 {
			return nil
		}
	}
	if !found {
		a.nothing("%s", none)
	}
	return nil
}

func (a *app) inStream(m *messagestore.Message) {
	a.out.row(recordOf(m), m.Time, m.Position, in(bold, m.Type), dataText(m.Data))
}

func (a *app) inCategory(m *messagestore.Message) {
	a.out.row(recordOf(m), m.Time, m.GlobalPosition, place(m), in(bold, m.Type), dataText(m.Data))
}

// place names where m is: "account-123@4".
func place(m *messagestore.Message) string { return placeOf(m.Stream, m.Position) }

func placeOf(stream messagestore.StreamName, position messagestore.Version) string {
	return fmt.Sprintf("%s@%d", visible(string(stream)), position)
}

// limitOf returns how many messages to print, and how many to ask the store for at once.
func limitOf(given *bound) (most, batch int) {
	if given == nil {
		return math.MaxInt, 1000
	}
	return int(*given), min(int(*given), 1000)
}

type tailCommand struct {
	Category messagestore.Category        `arg:"" help:"Name of the category, like account or account:command."`
	From     *messagestore.GlobalPosition `placeholder:"N" help:"Global position of the first to print. Defaults to new messages only."`
	categoryFlags
	Interval time.Duration `default:"500ms" placeholder:"DURATION" help:"Interval between two looks, from 10ms to 1h. Defaults to 500ms."`
}

func (c *tailCommand) Run(ctx context.Context, a *app) error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	if c.Interval < 10*time.Millisecond || c.Interval > time.Hour {
		return usage("--interval=%v: must be between 10ms and 1h", c.Interval)
	}
	most, batch := limitOf(c.Limit)
	return a.withStore(ctx, batch, func(store *messagestore.Store) error {
		q := messagestore.CategoryQuery{Category: c.Category, Limit: batch, Filter: filter}
		if c.From != nil {
			q.From = *c.From
		} else if q.From, err = store.End(ctx, c.Category); err != nil {
			return err
		}
		err := a.follow(ctx, store, &q, most, c.Interval)
		if err != nil && a.out.err == nil {
			a.nothing("dibs: continue with --from %d", q.From)
		}
		return err
	})
}

// follow prints the messages that q selects, and moves its start on, until ctx ends.
func (a *app) follow(ctx context.Context, store *messagestore.Store, q *messagestore.CategoryQuery, most int, interval time.Duration) error {
	bell, stop := store.Watch(q.Category, interval)
	defer stop()
	for {
		page, err := store.ReadCategoryPage(ctx, *q)
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			a.inCategory(m)
			q.From = m.GlobalPosition.Next()
			if most--; most == 0 {
				return nil
			}
		}
		if err := a.out.flush(); err != nil {
			return err
		}
		q.From = page.Next
		if page.More {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-bell:
		}
	}
}
