package cli

import (
	"context"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

type consumersParkCommand struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
	Reason   string `required:"" placeholder:"TEXT" help:"The reason, which its item keeps: up to 255 bytes of visible text."`
	Position *int64 `placeholder:"P" help:"The message's global position. Defaults to the first message that is not finished."`
	DryRun   bool   `help:"Print the message, and do nothing."`
}

// Help is printed below the command's usage.
func (consumersParkCommand) Help() string {
	return `It makes the message a suspended item of the queue of parked messages. A running consumer parks it in place of its next retry; a stopped one parks it when it is started next, before the handler sees it. Nothing is passed over without a record: the message is then listed by dibs parked, to be redriven or dropped. A message that is handled meanwhile is not parked.

The error with which a consumer stops has the position in its log line, as globalPosition. Without --position the message is the first that is not finished. If the replicas are at several messages, the command prints them and parks none: say which by --position. A consumer that reads only some types is stuck at a message of those: give its position.

Example:

    dibs consumers park account mail --reason 'no such address' --dry-run`
}

// A parkLine is how a request to park is printed as JSON.
type parkLine struct {
	Category  messagestore.Category `json:"category"`
	Consumer  string                `json:"consumer"`
	Reason    string                `json:"reason"`
	Requested bool                  `json:"requested"` // by this command, or would be
	DryRun    bool                  `json:"dryRun,omitempty"`
	Message   record                `json:"message"`
}

// Run asks for it.
func (c *consumersParkCommand) Run(ctx context.Context, a *app) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		if _, err := statusOf(ctx, store, category, c.Name); err != nil {
			return err
		}
		m, err := c.which(ctx, a, store, category)
		if err != nil || m == nil {
			return err
		}
		l := parkLine{Category: category, Consumer: c.Name, Reason: c.Reason, Requested: true, DryRun: c.DryRun, Message: toRecord(m)}
		l.Message.Data, l.Message.Metadata = nil, nil
		if !c.DryRun {
			if l.Requested, err = operate.Consumer(store, category, c.Name).Park(ctx, m, c.Reason); err != nil {
				return err
			}
		}
		if a.JSON {
			return a.out.object(l)
		}
		what := "asked " + visible(c.Name) + " to park"
		switch {
		case c.DryRun:
			what = "would ask " + visible(c.Name) + " to park"
		case !l.Requested:
			what = "parked, or asked for, already:"
		}
		return a.out.line("%s %s %s, %s, at %d of %s", what, visible(m.Type), placeOf(m.Stream, m.Position), m.ID, m.GlobalPosition, visible(string(category)))
	})
}

// which returns the message to park. It is nil if there is none, which was said.
func (c *consumersParkCommand) which(ctx context.Context, a *app, store *messagestore.Store, category messagestore.Category) (*messagestore.Message, error) {
	if c.Position != nil {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, From: messagestore.GlobalPosition(*c.Position), Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(page.Messages) == 0 || page.Messages[0].GlobalPosition != messagestore.GlobalPosition(*c.Position) {
			return nil, usage("--position=%d: category %s has no message there", *c.Position, visible(string(category)))
		}
		return page.Messages[0], nil
	}
	next, err := operate.Consumer(store, category, c.Name).Next(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(next) == 1:
		return next[0], nil
	case len(next) == 0:
		a.nothing("%s of %s has handled every message", visible(c.Name), visible(string(category)))
		return nil, nil
	}
	if !a.JSON {
		for _, m := range next {
			if err := a.out.line("%d  %s  %s", m.GlobalPosition, placeOf(m.Stream, m.Position), visible(m.Type)); err != nil {
				return nil, err
			}
		}
	}
	return nil, usage("%s of %s is at %d messages: give the --position of one", visible(c.Name), visible(string(category)), len(next))
}
