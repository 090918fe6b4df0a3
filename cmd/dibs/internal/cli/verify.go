package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/saga"
)

type verifyCommand struct {
	Categories    []messagestore.Category `arg:"" optional:"" name:"category" help:"Look at these categories only."`
	MaxViolations int                     `default:"100" placeholder:"N" help:"List at most N violations of one rule, for each category."`
	Amcheck       bool                    `help:"Check the indexes with PostgreSQL's extension amcheck too."`
	Progress      bool                    `help:"Print progress on stderr. Defaults to true on a terminal."`
}

// Help is printed below the command's usage.
func (verifyCommand) Help() string {
	return `Checks a store in use, as of one moment, and prints violations: positions that are not dense or not in order, ids that come twice, keys with two winners, consumers ahead of their category, open items of queues that nothing bears out, sagas that went on behind their end or that nothing brings another turn. Writers continue meanwhile, and raise no alarm. Ends with 1 if there is a violation.

Example:

    dibs verify
    dibs verify account account:command`
}

// Run verifies.
func (c *verifyCommand) Run(ctx context.Context, a *app) error {
	if c.MaxViolations < 1 {
		return usage("--max-violations=%d: it is at least 1", c.MaxViolations)
	}
	return a.withKeeper(ctx, "verify", func(k keeper, store *messagestore.Store) error {
		config := &retention.VerifyConfig{Categories: c.Categories, MaxViolations: c.MaxViolations, Amcheck: c.Amcheck}
		if c.Progress || isTerminal(a.stderr) {
			began := time.Now()
			config.OnProgress = func(category messagestore.Category, done, total int64) {
				a.warn("%s\n", progressText(category, done, total, time.Since(began)))
			}
		}
		var found *retention.Verification
		err := a.patiently("verifying", func() error {
			var err error
			found, err = k.Verify(ctx, config)
			return err
		})
		if errors.Is(err, messagestore.ErrNotFound) {
			for _, category := range c.Categories {
				if missing := requireCategory(ctx, store, category); missing != nil {
					return missing
				}
			}
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
		if !isSagas(category) {
			continue
		}
		o, err := saga.NewOperator(store, category, "dibs verify")
		if err != nil {
			return err
		}
		var more *retention.Verification
		err = a.patiently("verifying the sagas", func() error {
			var err error
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
		return fmt.Sprintf("verify: the table, of about %s", counted(total/2, "message"))
	}
	text := fmt.Sprintf("verify: %s, %d%% done", visible(string(category)), 100*done/max(total, 1))
	if done > 0 {
		left := time.Duration(float64(elapsed) / float64(done) * float64(max(total-done, 0)))
		text += fmt.Sprintf(", about %s to go", left.Round(time.Second))
	}
	return text
}

// A violationLine is how a violation is printed as JSON.
type violationLine struct {
	Violation      string                      `json:"violation"` // the rule
	Category       messagestore.Category       `json:"category,omitempty"`
	Stream         messagestore.StreamName     `json:"stream,omitempty"`
	Position       *messagestore.Version       `json:"position,omitempty"`
	GlobalPosition messagestore.GlobalPosition `json:"globalPosition,omitempty"`
	Expected       string                      `json:"expected"`
	Found          string                      `json:"found"`
}

// A verificationLine is the last line of JSON.
type verificationLine struct {
	Checked    retention.Checked `json:"checked"`
	Violations int               `json:"violations"`
	More       bool              `json:"more,omitempty"`
	NotChecked []string          `json:"notChecked"`
}

func (a *app) printVerification(found *retention.Verification) error {
	for _, v := range found.Violations {
		if err := a.printViolation(v); err != nil {
			return err
		}
	}
	if a.JSON {
		if err := a.out.object(verificationLine{found.Checked, len(found.Violations), found.More, found.NotChecked}); err != nil {
			return err
		}
	} else if err := a.printChecked(found); err != nil {
		return err
	}
	return violations(len(found.Violations), found.More)
}

// violations returns the error that n violations are.
func violations(n int, more bool) error {
	switch {
	case more:
		return fmt.Errorf("%d violations, and more that are not listed", n)
	case n == 1:
		return fmt.Errorf("1 violation")
	case n > 1:
		return fmt.Errorf("%d violations", n)
	}
	return nil
}

func (a *app) printViolation(v retention.Violation) error {
	if a.JSON {
		l := violationLine{
			Violation: v.Rule, Category: v.Category, Stream: v.Stream, GlobalPosition: v.GlobalPosition, Expected: v.Expected, Found: v.Found,
		}
		if v.Stream != "" {
			l.Position = &v.Position
		}
		return a.out.object(l)
	}
	where := visible(string(v.Category))
	if v.Stream != "" {
		where = visible(fmt.Sprintf("%s@%d", v.Stream, v.Position))
	}
	global := ""
	if v.GlobalPosition > 0 {
		global = fmt.Sprint(v.GlobalPosition)
	}
	return a.out.row(cell{text: v.Rule, style: red}, cell{text: global, right: true}, cell{text: where},
		cell{text: visible("expected " + v.Expected + ", found " + v.Found)})
}

// printChecked says how much there was to look at: of nothing, nothing is wrong.
func (a *app) printChecked(found *retention.Verification) error {
	c := found.Checked
	if err := a.out.line("looked at %s", strings.Join([]string{
		number(c.Categories, "category", "categories"), number(c.Streams, "stream", "streams"), number(c.Messages, "message", "messages"),
		number(c.Consumers, "consumer", "consumers"), number(c.Positions, "position of theirs", "positions of theirs"),
		number(c.Reservations, "reservation", "reservations"),
		number(c.Queues, "queue", "queues"), number(c.Sagas, "saga", "sagas"), number(c.Erased, "erased stream", "erased streams"),
	}, ", ")); err != nil {
		return err
	}
	for _, text := range found.NotChecked {
		if err := a.out.line("not looked at: %s", text); err != nil {
			return err
		}
	}
	if len(found.Violations) == 0 {
		return a.out.line("%s", a.out.styled("no violation", green))
	}
	return nil
}

func number(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
