package cli

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

type streamCommand struct {
	Stream    string `arg:"" help:"Name of the stream, like account-123."`
	From      *int64 `placeholder:"N" help:"Position of the first to print. Defaults to 0, or the last with --backwards."`
	Backwards bool   `help:"From the last to the first."`
	Limit     *int   `placeholder:"N" help:"Print at most N messages. Defaults to all."`
}

// Help is printed below the command's usage.
func (streamCommand) Help() string {
	return "Example:\n\n    dibs stream account-123 --backwards --limit 5"
}

// Run prints the stream.
func (c *streamCommand) Run(ctx context.Context, a *app) error {
	stream, err := parseStream(c.Stream, "to print every stream of the category: dibs category ")
	if err != nil {
		return err
	}
	limit, err := newLimit(c.Limit)
	if err != nil {
		return err
	}
	return a.withStore(ctx, limit.batch(), func(store *messagestore.Store) error {
		var messages iter.Seq2[*messagestore.Message, error]
		if c.Backwards {
			messages = store.ReadStreamBackwards(ctx, stream, version(c.From, messagestore.EndOfStream))
		} else {
			messages = store.ReadStream(ctx, stream, version(c.From, 0))
		}
		return a.printAll(messages, limit, a.inStream, fmt.Sprintf("%s has no messages", stream))
	})
}

func version(given *int64, otherwise messagestore.Version) messagestore.Version {
	if given == nil {
		return otherwise
	}
	return messagestore.Version(*given)
}

// categoryFlags narrow a category.
type categoryFlags struct {
	Type        []string `sep:"none" placeholder:"TYPE" help:"Print only messages of this type. May be repeated."`
	Correlation string   `placeholder:"CATEGORY" help:"Print only messages whose correlation stream is in this category."`
	Member      *int     `placeholder:"N" help:"Print only the messages of this member of a consumer group, from 0. Needs --size."`
	Size        *int     `placeholder:"N" help:"The consumer group's number of members. Needs --member."`
	Limit       *int     `placeholder:"N" help:"Print at most N messages. Defaults to all."`
}

func (c *categoryFlags) filter() (messagestore.Filter, error) {
	f := messagestore.Filter{Types: c.Type, Correlation: messagestore.Category(c.Correlation)}
	if (c.Member == nil) != (c.Size == nil) {
		return f, usage("--member and --size go together")
	}
	if c.Size != nil {
		if *c.Size < 1 {
			return f, usage("--size=%d: a group has at least one member", *c.Size)
		}
		f.GroupMember, f.GroupSize = *c.Member, *c.Size
	}
	return f, f.Validate()
}

type categoryCommand struct {
	Category string `arg:"" help:"Name of the category, like account or account:command."`
	From     int64  `placeholder:"N" help:"Global position of the first to print. Defaults to the start."`
	categoryFlags
}

// Help is printed below the command's usage.
func (categoryCommand) Help() string {
	return "Example:\n\n    dibs category account:command --type Deposit --limit 10"
}

// Run prints the category.
func (c *categoryCommand) Run(ctx context.Context, a *app) error {
	category, err := parseCategory(c.Category, "to print the stream: dibs stream ")
	if err != nil {
		return err
	}
	filter, err := c.filter()
	if err != nil {
		return err
	}
	limit, err := newLimit(c.Limit)
	if err != nil {
		return err
	}
	return a.withStore(ctx, limit.batch(), func(store *messagestore.Store) error {
		messages := store.ReadCategory(ctx, category, messagestore.GlobalPosition(c.From), filter)
		return a.printAll(messages, limit, a.inCategory, fmt.Sprintf("%s has no such messages", category))
	})
}

// printAll prints messages, and tells a person if there are none.
func (a *app) printAll(messages iter.Seq2[*messagestore.Message, error], limit *limit, row func(*messagestore.Message) []cell, none string) error {
	found := false
	for m, err := range messages {
		if err != nil {
			return err
		}
		found = true
		if err := a.print(m, row); err != nil {
			return err
		}
		if limit.reached() {
			return nil
		}
	}
	if !found {
		a.nothing("%s", none)
	}
	return nil
}

func (a *app) print(m *messagestore.Message, row func(*messagestore.Message) []cell) error {
	if a.JSON {
		return a.out.object(toRecord(m))
	}
	return a.out.row(row(m)...)
}

func (a *app) inStream(m *messagestore.Message) []cell {
	return []cell{
		{text: timeText(m.Time), style: dim},
		{text: strconv.FormatInt(int64(m.Position), 10), right: true},
		{text: visible(m.Type), style: bold},
		{text: dataText(m.Data)},
	}
}

func (a *app) inCategory(m *messagestore.Message) []cell {
	return []cell{
		{text: timeText(m.Time), style: dim},
		{text: strconv.FormatInt(int64(m.GlobalPosition), 10), right: true},
		{text: place(m)},
		{text: visible(m.Type), style: bold},
		{text: dataText(m.Data)},
	}
}

// place names where m is: "account-123@4".
func place(m *messagestore.Message) string { return placeOf(m.Stream, m.Position) }

func placeOf(stream messagestore.StreamName, position messagestore.Version) string {
	return fmt.Sprintf("%s@%d", visible(string(stream)), position)
}

// A limit counts down the messages to print.
type limit struct {
	bounded bool
	left    int
}

func newLimit(given *int) (*limit, error) {
	if given == nil {
		return &limit{}, nil
	}
	if *given < 1 {
		return nil, usage("--limit=%d: it is at least 1", *given)
	}
	return &limit{true, *given}, nil
}

// batch is how many messages to ask the store for at once.
func (l *limit) batch() int {
	if l.bounded {
		return min(l.left, 1000)
	}
	return 1000
}

// reached counts one message and reports whether it was the last.
func (l *limit) reached() bool {
	l.left--
	return l.bounded && l.left == 0
}

type tailCommand struct {
	Category string `arg:"" help:"Name of the category, like account or account:command."`
	From     *int64 `placeholder:"N" help:"Global position of the first to print. Defaults to new messages only."`
	categoryFlags
	Interval time.Duration `default:"500ms" placeholder:"DURATION" help:"Interval between two looks, from 10ms to 1h. Defaults to 500ms."`
}

// Help is printed below the command's usage.
func (tailCommand) Help() string {
	return "Ctrl-C ends it, and it prints the position to continue from.\n\nExample:\n\n    dibs tail account:command"
}

// Run prints messages until ctx ends.
func (c *tailCommand) Run(ctx context.Context, a *app) error {
	category, err := parseCategory(c.Category, "to print the messages that the stream has: dibs stream ")
	if err != nil {
		return err
	}
	filter, err := c.filter()
	if err != nil {
		return err
	}
	limit, err := newLimit(c.Limit)
	if err != nil {
		return err
	}
	if c.Interval < 10*time.Millisecond || c.Interval > time.Hour {
		return usage("--interval=%v: it is between 10ms and 1h", c.Interval)
	}
	return a.withStore(ctx, limit.batch(), func(store *messagestore.Store) error {
		q := messagestore.CategoryQuery{Category: category, Limit: limit.batch(), Filter: filter}
		if c.From != nil {
			q.From = messagestore.GlobalPosition(*c.From)
		} else if q.From, err = store.End(ctx, category); err != nil {
			return err
		}
		err := a.follow(ctx, store, &q, limit, c.Interval)
		if err != nil && !closed(err) && !a.JSON {
			a.warn("dibs: continue with --from %d\n", q.From)
		}
		return err
	})
}

// follow prints the messages that q selects, and moves its start on, until ctx ends.
func (a *app) follow(ctx context.Context, store *messagestore.Store, q *messagestore.CategoryQuery, limit *limit, interval time.Duration) error {
	bell, stop := store.Watch(q.Category, interval)
	defer stop()
	for {
		page, err := store.ReadCategoryPage(ctx, *q)
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			if err := a.print(m, a.inCategory); err != nil {
				return err
			}
			q.From = m.GlobalPosition.Next()
			if limit.reached() {
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
