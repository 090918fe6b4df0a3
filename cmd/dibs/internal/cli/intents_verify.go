package cli

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/cmd/dibs/internal/intents"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

type intentsVerifyCommand struct {
	Category      string `arg:"" help:"The category of the intents, like payment:intent."`
	MaxViolations int    `default:"100" placeholder:"N" help:"List at most N violations of one rule. Defaults to 100."`
}

// Help is printed below the command's usage.
func (intentsVerifyCommand) Help() string {
	return `Reads all messages of the category, and prints each that breaks a rule: a step that may not follow the one before it, or that follows a result; a token that does not rise; attempts that do not count up; a grant whose session, content or TTL changes; a line that is out of order. Holders continue meanwhile, and raise no alarm. Ends with 1 if there is a violation. dibs verify checks what holds for every stream.

A lease that was taken before its end by the store's clock is counted, and is no violation: the clock may have been set back, and it decides nothing.

Example:

    dibs intents verify payment:intent`
}

// Run verifies.
func (c *intentsVerifyCommand) Run(ctx context.Context, a *app) error {
	category, err := toCategory(c.Category)
	if err != nil {
		return err
	}
	if c.MaxViolations < 1 {
		return usage("--max-violations=%d: it is at least 1", c.MaxViolations)
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		listed := map[string]int{}
		total, more := 0, false
		var printed error
		checker := &intents.Checker{Found: func(v intents.Violation) {
			if listed[v.Rule]++; listed[v.Rule] > c.MaxViolations || printed != nil {
				more = true
				return
			}
			total++
			printed = a.printViolation(retention.Violation{
				Rule: v.Rule, Category: category, Stream: v.Place.Stream, Position: v.Place.Position,
				GlobalPosition: v.Place.GlobalPosition, Expected: v.Expected, Found: v.Found,
			})
		}}
		meter := progress{every: 2 * time.Second, now: time.Now}
		meter.start()
		for m, err := range store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
			if err != nil {
				return err
			}
			if checker.Next(m); printed != nil {
				return printed
			}
			if meter.due() && !a.JSON {
				a.warn("dibs: looked at %d messages of %s\n", checker.Messages, category)
			}
		}
		if checker.Messages == 0 {
			return &noCategoryError{category}
		}
		if err := c.print(a, checker, total, more); err != nil {
			return err
		}
		return violations(total, more)
	})
}

// An intentsCheckedLine is the last line of JSON.
type intentsCheckedLine struct {
	Checked struct {
		Intents  int64 `json:"intents"`
		Done     int64 `json:"done"`
		Messages int64 `json:"messages"`
	} `json:"checked"`
	TakenEarly int64 `json:"takenEarly"`
	Violations int   `json:"violations"`
	More       bool  `json:"more,omitempty"`
}

func (c *intentsVerifyCommand) print(a *app, checked *intents.Checker, total int, more bool) error {
	if a.JSON {
		l := intentsCheckedLine{TakenEarly: checked.Early, Violations: total, More: more}
		l.Checked.Intents, l.Checked.Done, l.Checked.Messages = checked.Intents(), checked.Done(), checked.Messages
		return a.out.object(l)
	}
	err := a.out.line("looked at %s, %d of them done, in %s", number(checked.Intents(), "intent", "intents"), checked.Done(), number(checked.Messages, "message", "messages"))
	if err == nil && checked.Early > 0 {
		err = a.out.line("%s taken before the end of the one before, by the store's clock: was it set back?", number(checked.Early, "lease was", "leases were"))
	}
	if err == nil && total == 0 {
		err = a.out.line("%s", a.out.styled("no violation", green))
	}
	return err
}
