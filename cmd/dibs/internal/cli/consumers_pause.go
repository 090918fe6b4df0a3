package cli

import (
	"context"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
)

// A pausedConsumer is the consumer that a command pauses, or has go on.
type pausedConsumer struct {
	Category string `arg:"" help:"The category that the consumer reads."`
	Name     string `arg:"" help:"The consumer's name."`
}

type consumersPauseCommand struct{ pausedConsumer }

// Help is printed below the command's usage.
func (consumersPauseCommand) Help() string {
	return `Running members find out within 10 s: they finish the messages that they have in flight, and take no others. Their processes go on, and keep their leases. A pause outlives restarts, resets and new members, and ends with dibs consumers resume; no message is lost or handled twice by the pause itself. Messages that wait for a retry, and requested redrives, wait too.

A consumer that is paused before it is reset handles nothing from its old position.

Example:

    dibs consumers pause account:command accounts
    dibs consumers reset account:command accounts --start --yes
    dibs consumers resume account:command accounts`
}

// Run pauses.
func (c *consumersPauseCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, (*operate.Target).Pause, "paused", "was paused before")
}

type consumersResumeCommand struct{ pausedConsumer }

// Help is printed below the command's usage.
func (consumersResumeCommand) Help() string {
	return `Running members find out within 10 s, and go on where they were paused.

Example:

    dibs consumers resume account:command accounts`
}

// Run resumes.
func (c *consumersResumeCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, (*operate.Target).Resume, "resumed", "was not paused")
}

// A pauseLine is how a pause is printed as JSON.
type pauseLine struct {
	Category messagestore.Category `json:"category"`
	Consumer string                `json:"consumer"`
	Changed  bool                  `json:"changed"` // by this command
	PausedAt string                `json:"pausedAt,omitempty"`
}

func (c *pausedConsumer) run(ctx context.Context, a *app, do func(*operate.Target, context.Context) (bool, error), did, before string) error {
	category, err := parseConsumer(c.Category, c.Name)
	if err != nil {
		return err
	}
	return a.withStore(ctx, 100, func(store *messagestore.Store) error {
		if _, err := statusOf(ctx, store, category, c.Name); err != nil {
			return err
		}
		changed, err := do(operate.Consumer(store, category, c.Name), ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			now, err := statusOf(ctx, store, category, c.Name)
			if err != nil {
				return err
			}
			return a.out.object(pauseLine{Category: category, Consumer: c.Name, Changed: changed, PausedAt: timeOrNone(now.PausedAt, "")})
		}
		if !changed {
			return a.out.line("%s of %s %s: nothing was changed", visible(c.Name), visible(string(category)), before)
		}
		return a.out.line("%s of %s is %s: members that run find out within 10 s", visible(c.Name), visible(string(category)), did)
	})
}
