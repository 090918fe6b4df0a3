package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/operate"
)

// A forgetCommand is dibs forget: it removes the old keys of a category.
type forgetCommand struct {
	Category  messagestore.Category `arg:"" help:"The category of the keys: an inbox like payments:inbox, the items of queues, intents, or the reservations of a reserver."`
	OlderThan time.Duration         `required:"" placeholder:"AGE" help:"Remove keys that are older, like 720h: at least their KeyLife, and 24h for an inbox and for items."`
	Reason    string                `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun    bool                  `help:"Remove nothing, and print the effect."`
	Yes       bool                  `help:"Do not ask."`
}

func (c *forgetCommand) Run(ctx context.Context, a *app) error {
	options := &retention.ForgetOptions{Reason: c.Reason, DryRun: true}
	if err := options.Validate(c.Category, c.OlderThan); err != nil {
		return err
	}
	if err := a.canAsk(c.Yes || c.DryRun, fmt.Sprintf("give --yes to forget keys of %s, or --dry-run", c.Category)); err != nil {
		return err
	}
	return a.withKeeper(ctx, "forget", func(k keeper, store *messagestore.Store) error {
		if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
			return err
		}
		if err := c.refuseEntities(ctx, store); err != nil {
			return err
		}
		if c.DryRun || !c.Yes {
			planned, err := k.Forget(ctx, c.Category, c.OlderThan, options)
			if err != nil || c.DryRun || planned.Keys == 0 {
				return c.print(a, planned, err)
			}
			question := fmt.Sprintf("forget %s of %s, with answers and results? They do not come back.", text.Number(planned.Keys, "key"), c.Category)
			if err := a.confirm(ctx, c.Yes, question, "nothing was removed"); err != nil {
				return err
			}
		}
		a.warnOfReaders(ctx, store, c.Category)
		options.DryRun, options.OnProgress = false, a.removed()
		forgotten, err := k.Forget(ctx, c.Category, c.OlderThan, options)
		if err != nil && forgotten.Keys > 0 {
			a.nothing("dibs: %s removed before this error: run it again to go on", text.Number(forgotten.Keys, "key was|keys were"))
		}
		return c.print(a, forgotten, err)
	})
}

// removed returns a function that tells a person how far a removal is.
func (a *app) removed() func(n int64) {
	progress, total := a.progress(), int64(0)
	return func(n int64) {
		total += n
		progress.tell("%s removed so far", text.Number(total, "message"))
	}
}

// refuseEntities returns an error for a category with snapshots: an entity is folded from each of its streams, whatever
// queue or relay has finished with them.
func (c *forgetCommand) refuseEntities(ctx context.Context, store *messagestore.Store) error {
	has, err := hasSnapshots(ctx, store, c.Category)
	if err != nil || !has {
		return err
	}
	return hinted(messagestore.NewInvalidError("category", string(c.Category), "must not have snapshots: its streams are entities, which are never forgotten"),
		"shorten them with dibs trim, or remove one with dibs delete")
}

func (c *forgetCommand) print(a *app, f retention.Forgotten, err error) error {
	if err != nil {
		return err
	}
	verb := "forgot"
	if c.DryRun {
		verb = "would forget"
	}
	if !f.Unhandled.IsZero() {
		a.nothing("dibs: a consumer has yet to pass a command of %s: keys that are younger than %v before then stay", f.Unhandled.UTC().Format(time.RFC3339), c.OlderThan)
	}
	return a.out.tell(fields{"category", c.Category, "keys", f.Keys, "messages", f.Messages, "unhandled?", f.Unhandled, "dryRun?", c.DryRun},
		"%s %s of %s, with %s", verb, text.Number(f.Keys, "key"), c.Category, text.Number(f.Messages, "message"))
}
