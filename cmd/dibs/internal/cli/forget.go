package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

type forgetCommand struct {
	Category  string        `arg:"" help:"The category of the keys: an inbox like payments:inbox, the items of queues, intents, or the reservations of a reserver."`
	OlderThan time.Duration `required:"" placeholder:"AGE" help:"Remove keys that are older, like 720h: at least their KeyLife, and 24h for an inbox and for items."`
	Reason    string        `placeholder:"TEXT" help:"The reason, which is recorded and stays."`
	DryRun    bool          `help:"Remove nothing, and print the effect."`
	Yes       bool          `help:"Do not ask."`
}

// Help is printed below the command's usage.
func (forgetCommand) Help() string {
	return `All messages of a key that is older than that are removed, the answer or the result with them. There is no tombstone: a request with the key that comes later is carried out again, so the age is how long a copy is recognised.

It is for four kinds of categories, and any other is refused:

- an inbox, like payments:inbox, as package inbox writes it: requests that were received, and undone, longer ago than that. The age is at least 24h.

- a category that queues read: items that every queue has finished, with their logs, as whole streams. The age is at least 24h. A relay is such a queue: what it has sent goes. A category with snapshots is refused, since its streams are entities; do not forget one whose streams are entities without snapshots.

- intents, like payment:intent, if the first manager declared how long keys live (KeyLife): intents that were confirmed longer ago. Intents that are held, lapsed or released stay.

- the reservations of a reserver, like account:command+reservation+accounts, if it declared a KeyLife too: reservations of handled commands. A reservation stays as long as a consumer of account:command has yet to pass a command that may have its key, a copy has yet to be delivered, or the copy or a message of the command's stream is parked, or is another open item of a queue.

An age of less than the KeyLife is refused. What was removed is recorded, in payment:intent+forgotten-1 for payment:intent, as numbers without names. Keys that were deleted stay, and so does the one with the last message of the category.

Examples:

    dibs forget payments:inbox --older-than 720h --dry-run
    dibs forget payment:intent --older-than 8760h --reason age --yes
    dibs forget account:command+reservation+accounts --older-than 720h --yes`
}

// Run forgets.
func (c *forgetCommand) Run(ctx context.Context, a *app) error {
	category, err := toCategory(c.Category)
	if err != nil {
		return err
	}
	options := &retention.ForgetOptions{Reason: c.Reason, DryRun: true}
	if err := options.Validate(category, c.OlderThan); err != nil {
		return err
	}
	if !c.Yes && !c.DryRun && !isTerminal(a.stdin) {
		return usage("there is no terminal to confirm on: give --yes to forget keys of %s, or --dry-run", visible(c.Category))
	}
	return a.withKeeper(ctx, "forget", func(k keeper, store *messagestore.Store) error {
		if err := requireCategory(ctx, store, category); err != nil {
			return err
		}
		if err := refuseEntities(ctx, store, category); err != nil {
			return err
		}
		if c.DryRun || !c.Yes {
			planned, err := k.Forget(ctx, category, c.OlderThan, options)
			if err != nil || c.DryRun || planned.Keys == 0 {
				return c.print(a, planned, err)
			}
			question := fmt.Sprintf("forget %s of %s, with answers and results? They do not come back. Type yes: ", number(planned.Keys, "key", "keys"), visible(c.Category))
			if err := a.confirm(ctx, question, "nothing was removed"); err != nil {
				return err
			}
		}
		a.warnOfReaders(ctx, store, category)
		meter := &removalMeter{app: a, progress: progress{every: 2 * time.Second, now: time.Now}}
		meter.start()
		options.DryRun, options.OnProgress = false, meter.removed
		forgotten, err := k.Forget(ctx, category, c.OlderThan, options)
		if err != nil && forgotten.Keys > 0 && !a.JSON {
			a.warn("dibs: %s removed before this error: run it again to go on\n", number(forgotten.Keys, "key was", "keys were"))
		}
		return c.print(a, forgotten, err)
	})
}

// refuseEntities returns an error for a category with snapshots: an entity is folded from each of its streams, whatever
// queue or relay has finished with them.
func refuseEntities(ctx context.Context, store *messagestore.Store, category messagestore.Category) error {
	has, err := hasSnapshots(ctx, store, category)
	if err != nil || !has {
		return err
	}
	return &hintedError{
		messagestore.NewInvalidError("category", string(category), "it has snapshots, so its streams are entities, which are never forgotten"),
		"shorten them with dibs trim, or remove one with dibs delete",
	}
}

// A forgetLine is how a removal of keys is printed as JSON.
type forgetLine struct {
	Category  messagestore.Category `json:"category"`
	Keys      int64                 `json:"keys"`
	Messages  int64                 `json:"messages"`
	Unhandled time.Time             `json:"unhandled,omitzero"`
	DryRun    bool                  `json:"dryRun,omitempty"`
}

func (c *forgetCommand) print(a *app, f retention.Forgotten, err error) error {
	if err != nil {
		return err
	}
	if a.JSON {
		return a.out.object(forgetLine{messagestore.Category(c.Category), f.Keys, f.Messages, f.Unhandled, c.DryRun})
	}
	verb := "forgot"
	if c.DryRun {
		verb = "would forget"
	}
	if !f.Unhandled.IsZero() {
		a.warn("dibs: a consumer has yet to pass a command of %s: keys that are younger than %v before then stay\n", f.Unhandled.UTC().Format(time.RFC3339), c.OlderThan)
	}
	return a.out.line("%s %s of %s, with %s", verb, number(f.Keys, "key", "keys"), visible(c.Category), number(f.Messages, "message", "messages"))
}
