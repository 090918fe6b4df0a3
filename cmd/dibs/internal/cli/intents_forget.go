package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

type intentsForgetCommand struct {
	Category string `arg:"" help:"The category of the intents, like payment:intent."`
	Before   string `required:"" placeholder:"DATE" help:"Remove those confirmed before it, like 2026-11-21 (of UTC) or 2026-11-21T10:00:00Z."`
	Reason   string `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun   bool   `help:"Remove nothing, and print the effect."`
	Yes      bool   `help:"Do not ask."`
}

// Help is printed below the command's usage.
func (intentsForgetCommand) Help() string {
	return `All messages of an intent that was confirmed before that time are removed, its key and its result with them. There is no tombstone: the next request for the key is carried out again.

It is for a category whose first manager declared how long keys live (KeyLife); another one is refused, and so is a time within the life of the keys. What was removed is recorded, in payment:intent+life-forgotten for payment:intent, as numbers without names. Intents that are held, lapsed, released or deleted stay, and so does the one with the last message of the category.

Examples:

    dibs intents forget payment:intent --before 2026-01-01 --dry-run
    dibs intents forget payment:intent --before 2026-01-01 --reason age --yes`
}

// Run forgets.
func (c *intentsForgetCommand) Run(ctx context.Context, a *app) error {
	category, err := messagestore.ParseCategory(c.Category)
	if err != nil {
		return err
	}
	before, err := time.Parse(time.DateOnly, c.Before)
	if err != nil {
		if before, err = time.Parse(time.RFC3339Nano, c.Before); err != nil {
			return usage("--before=%.80q: it is like 2026-11-21, or 2026-11-21T10:00:00Z", c.Before)
		}
	}
	if !c.Yes && !c.DryRun && !isTerminal(a.stdin) {
		return usage("there is no terminal to confirm on: give --yes to forget intents of %s, or --dry-run", visible(c.Category))
	}
	return a.withPostgres(ctx, "intents forget", func(conn *pgx.Conn) error {
		adm := admin.New(conn, a.postgresConfig())
		options := &admin.ForgetOptions{Reason: c.Reason, DryRun: true}
		store := messagestore.New(postgres.New(conn, a.postgresConfig()), quietly)
		if err := requireCategory(ctx, store, category); err != nil {
			return err
		}
		planned := admin.Forgotten{}
		if c.DryRun || !c.Yes {
			if planned, err = adm.ForgetIntents(ctx, category, before, options); err != nil || c.DryRun || planned.Intents == 0 {
				return c.print(a, planned, err)
			}
		}
		a.warnOfReaders(ctx, store, category)
		if !c.Yes {
			question := fmt.Sprintf("forget %s of %s, keys and results? They do not come back. Type yes: ", number(planned.Intents, "intent", "intents"), visible(c.Category))
			if err := a.confirm(ctx, question, "nothing was removed"); err != nil {
				return err
			}
		}
		meter := &removalMeter{app: a, progress: progress{every: 2 * time.Second, now: time.Now}}
		meter.start()
		options.DryRun, options.OnProgress = false, meter.removed
		forgotten, err := adm.ForgetIntents(ctx, category, before, options)
		if err != nil && forgotten.Intents > 0 && !a.JSON {
			a.warn("dibs: %s removed before this error: run it again to go on\n", number(forgotten.Intents, "intent was", "intents were"))
		}
		return c.print(a, forgotten, err)
	})
}

// A forgetLine is how a removal of intents is printed as JSON.
type forgetLine struct {
	Category messagestore.Category `json:"category"`
	Intents  int64                 `json:"intents"`
	Messages int64                 `json:"messages"`
	DryRun   bool                  `json:"dryRun,omitempty"`
}

func (c *intentsForgetCommand) print(a *app, f admin.Forgotten, err error) error {
	if err != nil {
		return err
	}
	if a.JSON {
		return a.out.object(forgetLine{messagestore.Category(c.Category), f.Intents, f.Messages, c.DryRun})
	}
	verb := "forgot"
	if c.DryRun {
		verb = "would forget"
	}
	return a.out.line("%s %s of %s, with %s", verb, number(f.Intents, "intent", "intents"), visible(c.Category), number(f.Messages, "message", "messages"))
}
