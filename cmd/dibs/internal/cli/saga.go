package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/saga"
)

type sagaCommand struct {
	Ls      sagaLsCommand      `cmd:"" default:"withargs" help:"Print the sagas of a category that have not ended."`
	Show    sagaShowCommand    `cmd:"" help:"Print one saga: its state, its steps, and its history."`
	Cancel  sagaCancelCommand  `cmd:"" help:"Undo a saga."`
	Resume  sagaResumeCommand  `cmd:"" help:"Go on with a suspended saga."`
	Retry   sagaRetryCommand   `cmd:"" help:"Have a step that waits for its next attempt be attempted now."`
	Suspend sagaSuspendCommand `cmd:"" help:"Have a saga do nothing more until it is resumed or cancelled."`
	Signal  sagaSignalCommand  `cmd:"" help:"Pass over a signal whose value does not fit."`
	Resolve sagaResolveCommand `cmd:"" help:"End a suspended saga behind a pivot, of which a person has done the rest."`
}

type sagaStatus = saga.Status[json.RawMessage]

// withSagas calls f twice: over an empty store in memory, with a nil store beside it, which tells whether the arguments
// are valid before there is a connection, and then over the store.
func (a *app) withSagas(ctx context.Context, category, by string, f func(*saga.Operator, *messagestore.Store) error) error {
	by = cmp.Or(by, a.getenv("USER"), "operator")
	dry, err := messagestore.New(memory.New(), nil)
	if err != nil {
		return err
	}
	o, err := saga.NewOperator(dry, messagestore.Category(category), by)
	if err == nil {
		err = f(o, nil)
	}
	if wrong, is := errors.AsType[*messagestore.InvalidError](err); is {
		return wrong
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		o, err := saga.NewOperator(store, messagestore.Category(category), by)
		if err != nil {
			return err
		}
		if err = f(o, store); errors.Is(err, messagestore.ErrNotFound) {
			return &hintedError{err, "see the sagas with: dibs saga ls " + category}
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
	Category string `arg:"" optional:"" help:"The category of the sagas, like booking:saga. Defaults to all."`
	State    string `default:"open" enum:"open,running,compensating,suspended,dead,ended,completed,compensated,resolved" placeholder:"STATE" help:"Print those that are open, which is the default, running, compensating, suspended, dead, ended, completed, compensated or resolved."`
	Due      bool   `help:"Print, of these, those whose next turn is due, and that no process has yet."`
	Limit    int    `default:"1000" placeholder:"N" help:"Print at most N, those started first. Defaults to 1000."`
}

// Help is printed below the command's usage.
func (sagaLsCommand) Help() string {
	return `A line for each saga, in the order of the starts: its state, its id, its age by the store's clock, the step at which it is, and what it waits for or why it is suspended. A dead saga is suspended too: its turns failed, or ended with their process, 20 times in a row, and only resume and cancel bring it back. Those that have ended come in the order of their ends, behind the others. A stream that holds no saga is named on the standard error after the others, and the exit code is 1.

Examples:

    dibs saga
    dibs saga ls booking:saga
    dibs saga ls booking:saga --state suspended --json
    dibs saga ls booking:saga --due`
}

// Run prints them.
func (c *sagaLsCommand) Run(ctx context.Context, a *app) error {
	if c.Limit < 1 {
		return usage("--limit=%d: it is at least 1", c.Limit)
	}
	if c.Category == "" {
		return a.inEach(ctx, "saga", func(category string) error {
			one := *c
			one.Category = category
			return one.Run(ctx, a)
		})
	}
	return a.withSagas(ctx, c.Category, "", func(o *saga.Operator, store *messagestore.Store) error {
		var now time.Time
		if store != nil {
			var err error
			if now, err = store.Now(ctx); err != nil {
				return err
			}
		}
		var all []sagaStatus
		var wrong error
		more := false
		for s, err := range o.List(ctx, sagaStates[c.State]...) {
			switch {
			case err != nil:
				wrong = errors.Join(wrong, err)
				continue
			case c.State == "dead" && s.Suspended != "dead", c.Due && (s.Due.IsZero() || s.Due.After(now)):
				continue
			}
			if more = len(all) == c.Limit; more {
				break
			}
			all = append(all, s)
		}
		if store == nil || wrong != nil && len(all) == 0 {
			return wrong
		}
		if len(all) == 0 {
			if err := requireCategory(ctx, store, messagestore.Category(c.Category)); err != nil {
				return err
			}
		}
		return errors.Join(c.print(a, all, now, more), wrong)
	})
}

func (c *sagaLsCommand) print(a *app, all []sagaStatus, now time.Time, more bool) error {
	for n, s := range all {
		if a.JSON {
			if err := a.out.object(toSagaLine(s, now)); err != nil {
				return err
			}
			continue
		}
		if n == 0 {
			if err := a.out.row(cell{text: "state"}, cell{text: "id"}, cell{text: "age", right: true}, cell{text: "step"}, cell{text: ""}); err != nil {
				return err
			}
		}
		err := a.out.row(cell{text: string(s.State), style: sagaStyles[s.State]}, cell{text: shorten(visible(s.ID)), style: bold},
			cell{text: sagaAge(s, now).String(), right: true}, cell{text: orDash(visible(s.Step))}, cell{text: visible(sagaNote(s))})
		if err != nil {
			return err
		}
	}
	switch {
	case a.JSON:
	case more:
		a.warn("dibs: the first %s; --limit prints more\n", counted(int64(len(all)), "saga"))
	case len(all) == 0:
		words := c.State
		if c.Due {
			words += " and due"
		}
		a.nothing("no saga of %s is %s", visible(c.Category), words)
	}
	return nil
}

var sagaStyles = map[saga.State]style{saga.StateSuspended: red, saga.StateCompensating: yellow, saga.StateCompleted: green}

func sagaAge(s sagaStatus, now time.Time) time.Duration {
	return max(now.Sub(s.Started), 0).Truncate(100 * time.Millisecond)
}

// sagaNote says why a saga is where it is.
func sagaNote(s sagaStatus) string {
	switch {
	case s.Suspended != "":
		return s.Suspended + ": " + shorten(s.Reason)
	case s.Waits != "":
		return "waits for " + s.Waits
	}
	return shorten(s.Reason)
}

// A sagaLine is how a saga is printed as JSON.
type sagaLine struct {
	Stream     messagestore.StreamName `json:"stream"`
	ID         string                  `json:"id"`
	State      saga.State              `json:"state"`
	Version    messagestore.Version    `json:"version"`
	Definition string                  `json:"definition"`
	Release    int                     `json:"definitionVersion"`
	Age        float64                 `json:"ageSeconds"`
	Started    string                  `json:"started"`
	Deadline   string                  `json:"deadline,omitempty"`
	Waits      string                  `json:"waits,omitempty"`
	Reason     string                  `json:"reason,omitempty"`
	Suspended  string                  `json:"suspended,omitempty"` // the kind of the reason
	By         string                  `json:"by,omitempty"`        // the operator that suspended it
	Step       string                  `json:"step,omitempty"`
	Attempt    int                     `json:"attempt,omitempty"`
	Error      string                  `json:"error,omitempty"`       // of the last attempt at the step that failed
	Next       string                  `json:"nextAttempt,omitempty"` // at the step
	Due        string                  `json:"due,omitempty"`         // the next turn by itself
	Steps      []sagaStep              `json:"steps"`
}

type sagaStep struct {
	Step     string `json:"step"`
	Attempts int    `json:"attempts"`
	State    string `json:"state"`           // began, done, failed or undone
	Error    string `json:"error,omitempty"` // of the last attempt that failed
	Next     string `json:"next,omitempty"`  // attempt
}

func toSagaStep(s saga.StepStatus) sagaStep {
	state := "began"
	switch {
	case s.Undone:
		state = "undone"
	case s.Failed != "":
		state = "failed"
	case s.Done:
		state = "done"
	}
	return sagaStep{s.Step, s.Attempts, state, s.Error, timeOrNone(s.Next, "")}
}

func toSagaLine(s sagaStatus, now time.Time) sagaLine {
	steps := []sagaStep{}
	for _, one := range s.Steps {
		steps = append(steps, toSagaStep(one))
	}
	return sagaLine{
		s.Stream, s.ID, s.State, s.Version, s.Definition, s.Release, now.Sub(s.Started).Seconds(), timeOrNone(s.Started, ""),
		timeOrNone(s.Deadline, ""), s.Waits, s.Reason, s.Suspended, s.By, s.Step, s.Attempt, s.Error, timeOrNone(s.Next, ""),
		timeOrNone(s.Due, ""), steps,
	}
}

// sagaArgs name a saga.
type sagaArgs struct {
	Category string `arg:"" help:"The category of the saga, like booking:saga."`
	ID       string `arg:"" help:"The saga's id, as it was started with."`
}

// notFound returns err, or that the category is not there in place of the saga.
func (c *sagaArgs) notFound(ctx context.Context, store *messagestore.Store, err error) error {
	if store == nil || !errors.Is(err, messagestore.ErrNotFound) {
		return err
	}
	return cmp.Or(requireCategory(ctx, store, messagestore.Category(c.Category)), err)
}

type sagaShowCommand struct {
	sagaArgs
}

// Help is printed below the command's usage.
func (sagaShowCommand) Help() string {
	return `It prints the state, each step with its attempts, and then each message of the saga in words, as dibs explain does. With --json the first line is the state with the steps, and the others are the messages, as dibs stream prints them.

Example:

    dibs saga show booking:saga 7`
}

// Run prints it.
func (c *sagaShowCommand) Run(ctx context.Context, a *app) error {
	return a.withSagas(ctx, c.Category, "", func(o *saga.Operator, store *messagestore.Store) error {
		s, err := o.Status(ctx, c.ID)
		if err != nil {
			return c.notFound(ctx, store, err)
		}
		now, err := store.Now(ctx)
		if err == nil {
			err = c.printState(a, s, now)
		}
		if err != nil {
			return err
		}
		for entry, err := range o.History(ctx, c.ID) {
			m := entry.Message
			if err == nil && a.JSON {
				err = a.out.object(toRecord(m))
			} else if err == nil {
				err = a.out.row(cell{text: timeText(m.Time), style: dim}, cell{text: strconv.FormatInt(int64(m.Position), 10), right: true},
					cell{text: visible(m.Type), style: bold}, cell{text: entryText(entry)})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *sagaShowCommand) printState(a *app, s sagaStatus, now time.Time) error {
	if a.JSON {
		return a.out.object(toSagaLine(s, now))
	}
	if err := a.out.line("%s", a.out.styled(visible(string(s.Stream)), bold)); err != nil {
		return err
	}
	rows := [][2]string{
		{"state", string(s.State)},
		{"definition", fmt.Sprintf("%s, version %d", visible(s.Definition), s.Release)},
		{"age", sagaAge(s, now).String()},
		{"deadline", timeOrNone(s.Deadline, "")},
		{"why", visible(sagaNote(s))},
		{"due", timeOrNone(s.Due, "")},
	}
	rows = append(rows, [2]string{"by", visible(s.By)})
	for _, one := range s.Steps {
		step := toSagaStep(one)
		note := step.State + ", " + number(int64(step.Attempts), "attempt", "attempts")
		if step.Error != "" {
			note += ": " + shorten(step.Error)
		}
		if step.Next != "" {
			note += "; the next at " + step.Next
		}
		rows = append(rows, [2]string{"step " + visible(step.Step), visible(note)})
	}
	for _, row := range rows {
		if row[1] == "" {
			continue
		}
		if err := a.out.row(cell{text: row[0], style: dim}, cell{text: row[1]}); err != nil {
			return err
		}
	}
	return a.out.line("")
}

// sagaChange is a change of one saga.
type sagaChange struct {
	sagaArgs

	Reason string `required:"" placeholder:"TEXT" help:"The reason, which stays in the saga: at most 500 bytes."`
	By     string `placeholder:"NAME" help:"The operator's name, which stays too. Defaults to $USER, or else operator."`
}

// A changedLine is how a change is printed as JSON.
type changedLine struct {
	Stream messagestore.StreamName `json:"stream"`
	Did    string                  `json:"did"`
	Was    saga.State              `json:"was"`
}

func (c *sagaChange) run(ctx context.Context, a *app, doing string, call func(*saga.Operator) (sagaStatus, error)) error {
	return a.withSagas(ctx, c.Category, c.By, func(o *saga.Operator, store *messagestore.Store) error {
		was, err := call(o)
		switch {
		case err != nil:
			return c.notFound(ctx, store, err)
		case a.JSON:
			return a.out.object(changedLine{was.Stream, doing, was.State})
		}
		return a.out.line("%s of %s is recorded; it was %s", doing, visible(string(was.Stream)), was.State)
	})
}

type sagaCancelCommand struct{ sagaChange }

// Help is printed below the command's usage.
func (sagaCancelCommand) Help() string {
	return `The steps that began are undone, the last first, also those of a suspended saga. A saga that has ended, or is behind a pivot, is refused.

Example:

    dibs saga cancel booking:saga 7 --reason 'the customer called'`
}

// Run cancels it.
func (c *sagaCancelCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "cancel", func(o *saga.Operator) (sagaStatus, error) { return o.Cancel(ctx, c.ID, c.Reason) })
}

type sagaResumeCommand struct{ sagaChange }

// Help is printed below the command's usage.
func (sagaResumeCommand) Help() string {
	return `The step that failed has all its attempts again, and a dead saga its turns. A saga that is not suspended is refused.

Example:

    dibs saga resume booking:saga 7 --reason 'the hotel is back'`
}

// Run resumes it.
func (c *sagaResumeCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "resume", func(o *saga.Operator) (sagaStatus, error) { return o.Resume(ctx, c.ID, c.Reason) })
}

type sagaSignalCommand struct {
	sagaChange

	Skip bool `required:"" help:"Pass over the signal for which the saga is suspended."`
}

// Help is printed below the command's usage.
func (sagaSignalCommand) Help() string {
	return `A saga whose function receives a signal with a value of another type is suspended. With --skip it goes on, and its function receives the next signal of that name. A saga that is suspended for anything else is refused.

Example:

    dibs saga signal booking:saga 7 --skip --reason 'it is a number'`
}

// Run passes over it.
func (c *sagaSignalCommand) Run(ctx context.Context, a *app) error {
	if !c.Skip {
		return usage("--skip=false: the command does nothing else")
	}
	return c.run(ctx, a, "skip a signal", func(o *saga.Operator) (sagaStatus, error) { return o.SkipSignal(ctx, c.ID, c.Reason) })
}

type sagaResolveCommand struct{ sagaChange }

// Help is printed below the command's usage.
func (sagaResolveCommand) Help() string {
	return `The saga ends as it is: nothing is done or undone any more. A saga that is not suspended, or that can be undone, is refused.

Example:

    dibs saga resolve booking:saga 7 --reason 'the letter went out by hand'`
}

// Run resolves it.
func (c *sagaResolveCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "resolve", func(o *saga.Operator) (sagaStatus, error) { return o.Resolve(ctx, c.ID, c.Reason) })
}

type sagaRetryCommand struct{ sagaChange }

// Help is printed below the command's usage.
func (sagaRetryCommand) Help() string {
	return `A step, or an undo, that failed and waits for its next attempt is attempted at once, and has all its attempts again. A saga in which none waits so is refused.

Example:

    dibs saga retry booking:saga 7 --reason 'the hotel is back'`
}

// Run retries it.
func (c *sagaRetryCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "retry", func(o *saga.Operator) (sagaStatus, error) { return o.Retry(ctx, c.ID, c.Reason) })
}

type sagaSuspendCommand struct{ sagaChange }

// Help is printed below the command's usage.
func (sagaSuspendCommand) Help() string {
	return `No step of the saga begins, and none is undone, until it is resumed or cancelled. An attempt that is under way may still have its effect outside; after a resume the step begins again, with the same key. A saga that has ended or is suspended is refused.

Example:

    dibs saga suspend booking:saga 7 --reason 'the airline is on strike'`
}

// Run parks it.
func (c *sagaSuspendCommand) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "suspend", func(o *saga.Operator) (sagaStatus, error) { return o.Suspend(ctx, c.ID, c.Reason) })
}
