package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/saga"
)

// A sagaCommand is dibs saga: it shows sagas, and cancels, resumes, retries, suspends and resolves
// them.
type sagaCommand struct {
	Ls      sagaLsCommand     `cmd:"" default:"withargs" help:"Print the sagas of a category that have not ended."`
	Show    sagaShowCommand   `cmd:"" help:"Print one saga: its state, its steps, and its history."`
	Cancel  sagaChange        `cmd:"" help:"Undo a saga."`
	Resume  sagaChange        `cmd:"" help:"Go on with a suspended saga."`
	Retry   sagaChange        `cmd:"" help:"Have a step that waits for its next attempt be attempted now."`
	Suspend sagaChange        `cmd:"" help:"Have a saga do nothing more until it is resumed or cancelled."`
	Signal  sagaSignalCommand `cmd:"" help:"Pass over a signal whose value does not fit."`
	Resolve sagaChange        `cmd:"" help:"End a suspended saga behind a pivot, of which a person has done the rest."`
}

// withSagas calls f twice, as tried does.
func (a *app) withSagas(ctx context.Context, category messagestore.Category, by string, f func(*saga.Operator, *messagestore.Store) error) error {
	return a.tried(ctx, func(store *messagestore.Store, dry bool) error {
		o, err := saga.NewOperator(store, category, cmp.Or(by, a.getenv("USER"), "operator"))
		if err != nil {
			return err
		}
		if dry {
			return f(o, nil)
		}
		if err = notFoundIn(ctx, store, category, f(o, store)); errors.Is(err, messagestore.ErrNotFound) {
			return hinted(err, "see the sagas with: dibs saga ls "+string(category))
		}
		return err
	})
}

// sagaStates are the words of dibs saga ls --state.
var sagaStates = map[string][]saga.State{
	"open":         nil, // those that have not ended
	"running":      {saga.StateRunning},
	"compensating": {saga.StateCompensating},
	"suspended":    {saga.StateSuspended},
	"dead":         {saga.StateSuspended},
	"ended":        {saga.StateCompleted, saga.StateCompensated, saga.StateResolved},
	"completed":    {saga.StateCompleted},
	"compensated":  {saga.StateCompensated},
	"resolved":     {saga.StateResolved},
}

type sagaLsCommand struct {
	Category messagestore.Category `arg:"" optional:"" help:"The category of the sagas, like booking:saga. Defaults to all."`
	State    string                `default:"open" enum:"open,running,compensating,suspended,dead,ended,completed,compensated,resolved" placeholder:"STATE" help:"Print those that are open, which is the default, running, compensating, suspended, dead, ended, completed, compensated or resolved."`
	Due      bool                  `help:"Print, of these, those whose next turn is due, and that no process has yet."`
	Limit    bound                 `default:"1000" placeholder:"N" help:"Print at most N, those started first. Defaults to 1000."`
}

func (c *sagaLsCommand) Run(ctx context.Context, a *app) error {
	if c.Category == "" {
		return a.inEach(ctx, "saga", func(category messagestore.Category) error {
			one := *c
			one.Category = category
			return one.Run(ctx, a)
		})
	}
	return a.withSagas(ctx, c.Category, "", func(o *saga.Operator, store *messagestore.Store) error {
		if store == nil {
			for _, err := range o.List(ctx) {
				return err
			}
			return nil
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		var wrong error
		n, more := 0, false
		a.out.table("state", "id", ">age", "step", "")
		for s, err := range o.List(ctx, sagaStates[c.State]...) {
			switch {
			case err != nil:
				wrong = errors.Join(wrong, err)
				continue
			case c.State == "dead" && s.Suspended != "dead", c.Due && (s.Due.IsZero() || s.Due.After(now)):
				continue
			}
			if more = n == int(c.Limit); more {
				break
			}
			n++
			a.out.row(sagaFields(s, now), in(sagaStyles[s.State], s.State), in(bold, shorten(visible(s.ID))), sagaAge(s, now), s.Step, a.out.cause(operate.SagaText(s)))
		}
		switch {
		case more:
			a.nothing("dibs: the first %s; --limit prints more", text.Number(n, "saga"))
		case n == 0 && wrong == nil:
			due := ""
			if c.Due {
				due = " and due"
			}
			if err := operate.RequireCategory(ctx, store, c.Category); err != nil {
				return err
			}
			a.nothing("no saga of %s is %s%s", c.Category, c.State, due)
		}
		return wrong
	})
}

var sagaStyles = map[saga.State]style{
	saga.StateRunning: cyan, saga.StateCompensating: yellow, saga.StateSuspended: red,
	saga.StateCompleted: green, saga.StateCompensated: green, saga.StateResolved: green,
}

func sagaAge(s operate.Saga, now time.Time) string {
	return max(now.Sub(s.Started), 0).Truncate(100 * time.Millisecond).String()
}

// stepState is the state of a step in a word.
func stepState(s saga.StepStatus) string {
	switch {
	case s.Undone:
		return "undone"
	case s.Failed != "":
		return "failed"
	case s.Done:
		return "done"
	}
	return "began"
}

// sagaFields are how a saga is printed as JSON. The error is that of the last attempt at the step that failed, and due its next
// turn by itself.
func sagaFields(s operate.Saga, now time.Time) fields {
	steps := []fields{}
	for _, one := range s.Steps {
		steps = append(steps, fields{"step", one.Step, "attempts", one.Attempts, "state", stepState(one), "error?", one.Error, "next?", one.Next})
	}
	return fields{
		"stream", s.Stream, "id", s.ID, "state", s.State, "version", s.Version, "definition", s.Definition, "definitionVersion", s.Release,
		"ageSeconds", now.Sub(s.Started).Seconds(), "started", s.Started, "deadline?", s.Deadline, "waits?", s.Waits, "reason?", s.Reason,
		"suspended?", s.Suspended, "by?", s.By, "step?", s.Step, "attempt?", s.Attempt, "error?", s.Error, "nextAttempt?", s.Next, "due?", s.Due,
		"steps", steps,
	}
}

// aSaga names one.
type aSaga struct {
	Category messagestore.Category `arg:"" help:"The category of the saga, like booking:saga."`
	ID       string                `arg:"" help:"The saga's id, as it was started with."`
}

type sagaShowCommand struct{ aSaga }

func (c *sagaShowCommand) Run(ctx context.Context, a *app) error {
	return a.withSagas(ctx, c.Category, "", func(o *saga.Operator, store *messagestore.Store) error {
		s, err := o.Status(ctx, c.ID)
		if err != nil {
			return err
		}
		now, err := store.Now(ctx)
		if err != nil {
			return err
		}
		a.out.object(sagaFields(s, now))
		a.out.title(string(s.Stream))
		a.out.facts("state", in(sagaStyles[s.State], s.State), "definition", fmt.Sprintf("%s, version %d", s.Definition, s.Release), "age", sagaAge(s, now),
			"deadline", s.Deadline, "why", operate.SagaText(s), "due", s.Due, "by", s.By)
		for _, one := range s.Steps {
			note := stepState(one) + ", " + text.Number(one.Attempts, "attempt")
			if one.Error != "" {
				note += ": " + a.out.cause(one.Error)
			}
			if !one.Next.IsZero() {
				note += "; the next at " + text.Time(one.Next)
			}
			a.out.facts("step "+one.Step, note)
		}
		a.out.line("")
		for entry, err := range o.History(ctx, c.ID) {
			if err != nil {
				return err
			}
			m := entry.Message
			a.out.row(recordOf(m), m.Time, m.Position, in(bold, m.Type), withData(entry.Text, entry.Value))
		}
		return nil
	})
}

// sagaChange is a change of one saga, or of all that match.
type sagaChange struct {
	Category messagestore.Category `arg:"" help:"The category of the saga, like booking:saga."`
	ID       string                `arg:"" optional:"" help:"The saga's id, as it was started with."`

	Reason string `placeholder:"TEXT" help:"The reason, which stays in the saga: at most 500 bytes. Needed, but for --dry-run."`
	By     string `placeholder:"NAME" help:"The operator's name, which stays too. Defaults to $USER, or else operator."`

	All        bool          `help:"All sagas in the state."`
	State      string        `placeholder:"STATE" enum:"running,compensating,suspended,open," default:"" help:"Those that are running, compensating, suspended or open, which is all of these. Defaults to suspended for resume and resolve, and to open for others."`
	Error      string        `placeholder:"TEXT" help:"Those whose reason, or the error of whose step, has this text."`
	Like       string        `placeholder:"ERROR" help:"Those whose reason or error is this one, but for words with a digit."`
	Definition string        `placeholder:"NAME" help:"Those of this definition."`
	OlderThan  time.Duration `placeholder:"DURATION" help:"Those that were started longer ago, like 36h."`
	DryRun     bool          `help:"Change nothing: print how many there are, by error."`
	Rate       float64       `placeholder:"N" help:"Change at most N sagas a second."`
}

func (c *sagaChange) many() bool {
	return c.All || c.State != "" || c.Error != "" || c.Like != "" || c.Definition != "" || c.OlderThan != 0
}

// runMany changes the sagas that match, or prints how many there are.
func (c *sagaChange) runMany(ctx context.Context, a *app, doing string) error {
	state := c.State
	switch {
	case state == "open", state == "" && doing != "resume" && doing != "resolve":
		state = ""
	case state == "":
		state = string(saga.StateSuspended)
	}
	f := operate.SagaFilter{State: saga.State(state), Error: c.Error, Like: c.Like, Definition: c.Definition}
	return a.withSagas(ctx, c.Category, c.By, func(o *saga.Operator, store *messagestore.Store) error {
		if store == nil {
			return nil
		}
		if c.OlderThan != 0 {
			now, err := store.Now(ctx)
			if err != nil {
				return err
			}
			f.StartedBefore = now.Add(-c.OlderThan)
		}
		if c.DryRun {
			groups, err := operate.SagaGroups(operate.Sagas(ctx, o, f))
			if err != nil {
				return err
			}
			return a.printGroups("saga", fields{"category", c.Category}, groups)
		}
		progress := a.progress()
		changed, err := operate.ChangeSagas(ctx, o, sagaChanges[doing], f, &operate.ChangeOpts{Reason: c.Reason, Rate: c.Rate, Progress: func(changed int) {
			progress.tell("%s of %s so far", doing, text.Number(changed, "saga"))
		}})
		if err != nil && changed > 0 {
			err = fmt.Errorf("%s of %s is recorded; run it again for the others: %w", doing, text.Number(changed, "saga"), err)
		}
		if err != nil {
			return err
		}
		return a.out.tell(fields{"category", c.Category, "did", doing, "count", changed}, "%s of %s is recorded", doing, text.Number(changed, "saga"))
	})
}

// sagaChanges are the changes, by their commands.
var sagaChanges = map[string]func(o *saga.Operator, ctx context.Context, id, reason string) (operate.Saga, error){
	"cancel": (*saga.Operator).Cancel, "resume": (*saga.Operator).Resume, "retry": (*saga.Operator).Retry, "suspend": (*saga.Operator).Suspend,
	"resolve": (*saga.Operator).Resolve, "skip a signal": (*saga.Operator).SkipSignal,
}

// Run makes the change that the command is.
func (c *sagaChange) Run(ctx context.Context, a *app, command *kong.Context) error {
	return c.run(ctx, a, command.Selected().Name)
}

func (c *sagaChange) run(ctx context.Context, a *app, doing string) error {
	switch {
	case c.Reason == "" && !c.DryRun:
		return usage("give --reason: why, for the saga's history")
	case c.ID != "" && (c.many() || c.DryRun || c.Rate != 0):
		return usage("give either an id, or what the sagas have in common")
	case c.many():
		return c.runMany(ctx, a, doing)
	case c.ID == "":
		return usage("which saga? Give its id, or --all, --state, --error, --like, --definition or --older-than")
	}
	return a.withSagas(ctx, c.Category, c.By, func(o *saga.Operator, _ *messagestore.Store) error {
		was, err := sagaChanges[doing](o, ctx, c.ID, c.Reason)
		if err != nil {
			return err
		}
		return a.out.tell(fields{"stream", was.Stream, "did", doing, "was", was.State}, "%s of %s is recorded; it was %s", doing, was.Stream, was.State)
	})
}

type sagaSignalCommand struct {
	sagaChange

	Skip bool `required:"" help:"Pass over the signal for which the saga is suspended."`
}

func (c *sagaSignalCommand) Run(ctx context.Context, a *app) error {
	if !c.Skip {
		return usage("--skip=false: the command does nothing else")
	}
	return c.run(ctx, a, "skip a signal")
}
