package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/saga"
)

// A verifyCommand is dibs verify: it checks the invariants of a store, and prints what violates
// them.
type verifyCommand struct {
	Categories    []messagestore.Category `arg:"" optional:"" name:"category" help:"Look at these categories only."`
	MaxViolations bound                   `default:"100" placeholder:"N" help:"List at most N violations of one rule, for each category."`
	Amcheck       bool                    `help:"Check the indexes with PostgreSQL's extension amcheck too."`
	Progress      bool                    `help:"Print progress on stderr. Defaults to true on a terminal."`
}

func (c *verifyCommand) Run(ctx context.Context, a *app) error {
	return a.withKeeper(ctx, "verify", func(k keeper, store *messagestore.Store) error {
		config := &retention.VerifyConfig{Categories: c.Categories, MaxViolations: int(c.MaxViolations), Amcheck: c.Amcheck}
		if c.Progress || isTerminal(a.stderr) {
			began := time.Now()
			config.OnProgress = func(category messagestore.Category, done, total int64) {
				a.warn("%s", progressText(category, done, total, time.Since(began)))
			}
		}
		var found *retention.Verification
		err := a.patiently("verifying", func() (err error) {
			found, err = k.Verify(ctx, config)
			return err
		})
		for _, category := range c.Categories {
			err = notFoundIn(ctx, store, category, err)
		}
		if err == nil {
			err = c.sagas(ctx, a, store, config, found)
		}
		if err != nil {
			return err
		}
		return a.printVerification(found)
	})
}

// sagas adds what the sagas' own rules find.
func (c *verifyCommand) sagas(ctx context.Context, a *app, store *messagestore.Store, config *retention.VerifyConfig, found *retention.Verification) error {
	categories := c.Categories
	if len(categories) == 0 {
		var err error
		if categories, err = store.Categories(ctx, "saga"); err != nil {
			return err
		}
	}
	for _, category := range categories {
		if !slices.Contains(category.Types(), "saga") {
			continue
		}
		o, err := saga.NewOperator(store, category, "dibs verify")
		if err != nil {
			return err
		}
		var more *retention.Verification
		err = a.patiently("verifying the sagas", func() (err error) {
			more, err = o.Verify(ctx, config)
			return err
		})
		if err != nil {
			return err
		}
		found.Violations = append(found.Violations, more.Violations...)
		found.Checked.Sagas += more.Checked.Sagas
		found.More = found.More || more.More
	}
	return nil
}

// progressText names the next part of the work, the share done, and the time that the rest
// may take.
func progressText(category messagestore.Category, done, total int64, elapsed time.Duration) string {
	if category == "" {
		return fmt.Sprintf("verify: the table, of about %s", text.Number(total/2, "message"))
	}
	text := fmt.Sprintf("verify: %s, %d%% done", category, 100*done/max(total, 1))
	if done > 0 {
		left := time.Duration(float64(elapsed) / float64(done) * float64(max(total-done, 0)))
		text += fmt.Sprintf(", about %s to go", left.Round(time.Second))
	}
	return text
}

func (a *app) printVerification(found *retention.Verification) error {
	for _, v := range found.Violations {
		a.printViolation(v)
	}
	n, c := len(found.Violations), found.Checked
	a.out.object(fields{"checked", c, "violations", n, "more?", found.More, "notChecked", found.NotChecked})
	// Of nothing, nothing is wrong.
	a.out.line("looked at %s", strings.Join([]string{
		text.Number(c.Categories, "category|categories"), text.Number(c.Streams, "stream"), text.Number(c.Messages, "message"),
		text.Number(c.Consumers, "consumer"), text.Number(c.Positions, "position of theirs|positions of theirs"),
		text.Number(c.Reservations, "reservation"),
		text.Number(c.Queues, "queue"), text.Number(c.Sagas, "saga"), text.Number(c.Erased, "erased stream"),
	}, ", "))
	for _, text := range found.NotChecked {
		a.out.line("not looked at: %s", text)
	}
	return a.violations(n, found.More)
}

// violations says that there is none, or returns the error that n violations are.
func (a *app) violations(n int, more bool) error {
	switch {
	case more:
		return fmt.Errorf("%d violations, and more that are not listed", n)
	case n > 0:
		return errors.New(text.Number(n, "violation"))
	}
	a.out.row(nil, in(green, "no violation"))
	return nil
}

func (a *app) printViolation(v retention.Violation) {
	where, global := string(v.Category), ""
	if v.Stream != "" {
		where = placeOf(v.Stream, v.Position)
	}
	if v.GlobalPosition > 0 {
		global = fmt.Sprint(v.GlobalPosition)
	}
	a.out.row(fields{
		"violation", v.Rule, "category?", v.Category, "stream?", v.Stream, "position?", known(v.Stream != "", v.Position),
		"globalPosition?", v.GlobalPosition, "expected", v.Expected, "found", v.Found,
	}, in(red, v.Rule), cell{text: global, right: true}, where, "expected "+v.Expected+", found "+v.Found)
}

type intentsVerifyCommand struct {
	Category      messagestore.Category `arg:"" help:"The category of the intents, like payment:intent."`
	MaxViolations bound                 `default:"100" placeholder:"N" help:"List at most N violations of one rule. Defaults to 100."`
}

func (c *intentsVerifyCommand) Run(ctx context.Context, a *app) error {
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		listed := map[string]int{}
		total, more := 0, false
		checker := &intentlog.Checker{Found: func(v intentlog.Violation, at messagestore.Mark) {
			if listed[v.Rule]++; listed[v.Rule] > int(c.MaxViolations) {
				more = true
				return
			}
			total++
			a.printViolation(retention.Violation{
				Rule: v.Rule, Category: c.Category, Stream: at.Stream, Position: at.Position,
				GlobalPosition: at.GlobalPosition, Expected: v.Expected, Found: v.Found,
			})
		}}
		progress := a.progress()
		for m, err := range store.ReadCategory(ctx, c.Category, 0, messagestore.Filter{}) {
			if err != nil {
				return err
			}
			checker.Next(m)
			progress.tell("looked at %d messages of %s", checker.Messages, c.Category)
		}
		if checker.Messages == 0 {
			return operate.RequireCategory(ctx, store, c.Category)
		}
		a.out.object(fields{
			"checked",
			fields{"intents", checker.Intents(), "done", checker.Done(), "messages", checker.Messages},
			"takenEarly", checker.Early, "violations", total, "more?", more,
		})
		a.out.line("looked at %s, %d of them done, in %s", text.Number(checker.Intents(), "intent"), checker.Done(), text.Number(checker.Messages, "message"))
		if checker.Early > 0 {
			a.out.line("%s taken before the end of the one before, by the store's clock: was it set back?", text.Number(checker.Early, "lease was|leases were"))
		}
		return a.violations(total, more)
	})
}
