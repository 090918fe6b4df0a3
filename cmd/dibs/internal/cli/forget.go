package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

type forgetCommand struct {
	Category  string        `arg:"" help:"The category of the inbox, like payments:inbox."`
	OlderThan time.Duration `required:"" placeholder:"AGE" help:"Remove requests that are older, at least 24h, like 720h."`
	Reason    string        `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun    bool          `help:"Remove nothing, and print the effect."`
	Yes       bool          `help:"Do not ask."`
}

// Help is printed below the command's usage.
func (forgetCommand) Help() string {
	return `All messages of a request that was received, and undone, longer ago than that are removed, its key and its answer with them. There is no tombstone: a copy of the request that comes later is carried out again, so the age is how long a copy is recognised.

It is for a category whose last type is inbox, as package unit writes; another one is refused, and so is an age of less than a day. What was removed is recorded, in payments:inbox+forgotten-1 for payments:inbox, as numbers without names. The request with the last message of the category stays.

Examples:

    dibs forget payments:inbox --older-than 720h --dry-run
    dibs forget payments:inbox --older-than 720h --reason age --yes`
}

// Run forgets.
func (c *forgetCommand) Run(ctx context.Context, a *app) error {
	category, err := messagestore.ParseCategory(c.Category)
	if err != nil {
		return err
	}
	options := &retention.ForgetOptions{Reason: c.Reason, DryRun: true}
	if err := options.ValidateInbox(category, c.OlderThan); err != nil {
		return err
	}
	if !c.Yes && !c.DryRun && !isTerminal(a.stdin) {
		return usage("there is no terminal to confirm on: give --yes to forget requests of %s, or --dry-run", visible(c.Category))
	}
	return a.withKeeper(ctx, "forget", func(k keeper, store *messagestore.Store) error {
		if err := requireCategory(ctx, store, category); err != nil {
			return err
		}
		if c.DryRun || !c.Yes {
			planned, err := k.ForgetInbox(ctx, category, c.OlderThan, options)
			if err != nil || c.DryRun || planned.Requests == 0 {
				return c.print(a, planned, err)
			}
			question := fmt.Sprintf("forget %s of %s, keys and answers? They do not come back. Type yes: ", number(planned.Requests, "request", "requests"), visible(c.Category))
			if err := a.confirm(ctx, question, "nothing was removed"); err != nil {
				return err
			}
		}
		a.warnOfReaders(ctx, store, category)
		meter := &removalMeter{app: a, progress: progress{every: 2 * time.Second, now: time.Now}}
		meter.start()
		options.DryRun, options.OnProgress = false, meter.removed
		forgotten, err := k.ForgetInbox(ctx, category, c.OlderThan, options)
		if err != nil && forgotten.Requests > 0 && !a.JSON {
			a.warn("dibs: %s removed before this error: run it again to go on\n", number(forgotten.Requests, "request was", "requests were"))
		}
		return c.print(a, forgotten, err)
	})
}

// A forgetRequestsLine is how a removal of requests is printed as JSON.
type forgetRequestsLine struct {
	Category messagestore.Category `json:"category"`
	Requests int64                 `json:"requests"`
	Messages int64                 `json:"messages"`
	DryRun   bool                  `json:"dryRun,omitempty"`
}

func (c *forgetCommand) print(a *app, f retention.ForgottenRequests, err error) error {
	if err != nil {
		return err
	}
	if a.JSON {
		return a.out.object(forgetRequestsLine{messagestore.Category(c.Category), f.Requests, f.Messages, c.DryRun})
	}
	verb := "forgot"
	if c.DryRun {
		verb = "would forget"
	}
	return a.out.line("%s %s of %s, with %s", verb, number(f.Requests, "request", "requests"), visible(c.Category), number(f.Messages, "message", "messages"))
}
