package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/disposition"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/panics"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// A Run is one run of a saga's function. The function calls steps with it, from its own goroutine, and
// keeps it no longer than it runs.
type Run struct {
	ctx     context.Context //nolint:containedctx // a run is one call, and the function has it in place of a context
	life    *life
	reached map[string]bool // steps, values and sleeps
	open    map[string]bool // by Go, and not joined
	stop    error           // why the run has ended
	busy    atomic.Bool     // a step runs
	nested  atomic.Bool     // a step was called in a step
}

// Context returns the context of the run, for reads that the function makes. It is done when the process stops.
func (r *Run) Context() context.Context { return r.ctx }

// ID returns the id of the saga.
func (r *Run) ID() string { return r.life.stream.CardinalID() }

// A one is one call of a step in a run.
type one struct {
	of      *definition
	input   json.RawMessage
	refused error                              // why it cannot be called
	take    func(output json.RawMessage) error // keeps the output
	err     error                              // of the step, once it has failed

	// One of these.
	do       func(ctx context.Context) (json.RawMessage, error)
	command  func(ctx context.Context) (messagestore.StreamWrite, error)
	transact func(ctx context.Context, l *life, began event.Began) error
}

// A Joint is a [*Going].
type Joint interface{ joint() *one }

// A Going is a step that is done side by side with others.
type Going[Out any] struct {
	one one
	out Out
}

func (g *Going[Out]) joint() *one {
	if g == nil {
		return nil
	}
	return &g.one
}

// Out returns the output, the zero value before [Run.Join] and if the step failed.
func (g *Going[Out]) Out() Out { return g.out }

// Err returns the [*StepError] of the step after [Run.Join], nil if it has not failed.
func (g *Going[Out]) Err() error { return g.one.err }

// reach notes that the function has come to a step.
func reach[Out any](r *Run, of *definition, in any) *Going[Out] {
	g := &Going[Out]{one: one{of: of}}
	g.one.take = func(output json.RawMessage) error { return json.Unmarshal(output, &g.out) }
	if r == nil || r.stop != nil || r.busy.Load() {
		return g // Join refuses it
	}
	g.one.refused = r.name(of.name)
	switch defined := r.life.defined[of.name]; {
	case g.one.refused != nil:
	case defined == nil || defined.definition() != of:
		g.one.refused = invalid("step", of.name, "it is not among the saga's steps")
	default:
		g.one.input, g.one.refused = encode("input of "+of.name, in)
		r.open[of.name] = true
	}
	return g
}

// name takes a name, once in a run.
func (r *Run) name(name string) error {
	if r.reached[name] {
		return invalid("step", name, "it is in one run twice")
	}
	r.reached[name] = true
	return nil
}

// Join does the steps side by side that were returned by Go. They begin in one write. When all have ended it
// returns nil, or the [*StepError] of the first that failed; as soon as one has failed it does not wait for
// replies and for the next attempts of the others. An error that matches [ErrPaused] says that the saga waits.
func (r *Run) Join(steps ...Joint) error {
	if r == nil {
		return invalid("run", nil, "it is nil")
	}
	if !r.busy.CompareAndSwap(false, true) {
		r.nested.Store(true)
		return invalid("step", nil, "it was called in a step")
	}
	defer r.busy.Store(false)
	if r.stop != nil {
		return r.stop
	}
	all := make([]*one, len(steps))
	for i, s := range steps {
		switch {
		case s == nil || s.joint() == nil:
			return r.ends(park(event.WhyInvalid, "", invalid("step", nil, "Join was given one that is nil")))
		case s.joint().refused != nil:
			return r.ends(park(event.WhyInvalid, s.joint().of.name, s.joint().refused))
		}
		all[i] = s.joint()
		if !r.open[all[i].of.name] {
			return r.ends(park(event.WhyInvalid, all[i].of.name, invalid("step", all[i].of.name, "it is joined twice")))
		}
		delete(r.open, all[i].of.name)
	}
	return r.ends(r.join(all))
}

// ends ends the run because of an error, unless that is a step's.
func (r *Run) ends(err error) error {
	_, failed := errors.AsType[*StepError](err)
	_, stuck := errors.AsType[*parking](err)
	switch {
	case err == nil || failed:
		return err
	case stuck || errors.Is(err, ErrPaused):
		r.stop = err
	default:
		r.stop = fmt.Errorf("%w: %w", errStopped, err)
	}
	return r.stop
}

func (r *Run) join(all []*one) error {
	var todo []*one
	for _, c := range all {
		switch began := r.life.byName[c.of.name]; {
		case began == nil:
			todo = append(todo, c)
		case !exactjson.Equal(began.Input, c.input):
			return park(event.WhyDiverged, c.of.name, fmt.Errorf("%s began with another input than the function wants now", c.of.name))
		case !began.settled() && !began.retrying && (c.command == nil || began.again || began.unsent):
			todo = append(todo, c)
		}
	}
	waits, err := r.settle(all)
	if err != nil {
		return err
	}
	if len(todo) > 0 {
		if err := r.mayBegin(todo[0].of.name); err != nil {
			return err
		}
		if err := r.do(todo); err != nil {
			return err
		}
		if r.nested.Load() {
			return park(event.WhyInvalid, "", invalid("step", nil, "one was called in a step"))
		}
		if waits, err = r.settle(all); err != nil {
			return err
		}
	}
	if waits {
		return ErrPaused
	}
	return nil
}

// settle gives each step its recorded outcome. It returns the first failure, and whether a step is waited for.
func (r *Run) settle(all []*one) (waits bool, failure error) {
	for _, c := range all {
		began := r.life.byName[c.of.name]
		switch {
		case began == nil || !began.settled():
			waits = true
		case began.failed != nil:
			c.err = &StepError{Step: c.of.name, Reason: began.failed.Error, Refused: began.failed.Refused}
			if failure == nil {
				failure = c.err
			}
			if c.of.then == Park && !began.failed.Refused {
				return false, park(event.WhyFailed, c.of.name, c.err)
			}
		default:
			if err := c.take(began.output); err != nil {
				return false, park(event.WhyInvalid, c.of.name, fmt.Errorf("its recorded output does not fit: %w", err))
			}
		}
	}
	return waits, failure
}

// mayBegin returns nil if the function has reached all that is recorded: else it is another function, and does
// nothing.
func (r *Run) mayBegin(wanted string) error {
	if name := r.unreached(); name != "" {
		return park(event.WhyDiverged, name, fmt.Errorf("%s began, and the function wants %s without it", name, wanted))
	}
	return nil
}

func (r *Run) unreached() string {
	for _, began := range r.life.steps {
		if !r.reached[began.Step] {
			return began.Step
		}
	}
	for name := range r.life.values {
		if !r.reached[name] {
			return name
		}
	}
	for name := range r.life.sleeps {
		if !r.reached[name] {
			return name
		}
	}
	return ""
}

// do begins the steps in one write, and does them side by side; those in a transaction come afterwards, one by one.
func (r *Run) do(all []*one) error {
	l := r.life
	var events []messagestore.Body
	var beside []messagestore.StreamWrite
	for _, c := range all {
		if c.transact != nil {
			continue
		}
		began := r.begins(c)
		events = append(events, began)
		if c.command == nil {
			continue
		}
		failed, writes, err := r.asks(c, began)
		if err != nil {
			return err
		}
		if failed != nil {
			events = append(events, *failed)
		}
		beside = append(beside, writes...)
	}
	if len(events) > 0 {
		if err := l.writeBeside(r.ctx, events, beside); err != nil {
			return err
		}
	}
	if err := r.call(all); err != nil {
		return err
	}
	for _, c := range all {
		if c.transact != nil {
			if err := r.transact(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// begins returns the event with which a step begins, or begins again.
func (r *Run) begins(c *one) event.Began {
	b := event.Began{Step: c.of.name, Attempt: 1, Kind: c.of.kind, Pivot: c.of.pivot, Input: c.input}
	if before := r.life.byName[c.of.name]; before != nil {
		b.Attempt, b.Input = before.attempts+1, nil
	}
	return b
}

// asks returns the command of a step, and the alarm for its reply; or the event of a command that was not made, and the
// alarm for the next attempt.
func (r *Run) asks(c *one, began event.Began) (*event.Failed, []messagestore.StreamWrite, error) {
	var command messagestore.StreamWrite
	err := r.life.attempt(r.ctx, c.of, func(ctx context.Context) (err error) {
		command, err = c.command(ctx)
		return err
	})
	switch {
	case r.ctx.Err() != nil:
		return nil, nil, r.ctx.Err()
	case err != nil && disposition.Of(err) == nil:
		return nil, nil, park(event.WhyFailed, c.of.name, fmt.Errorf("make its command: %w", err))
	case err != nil:
		failed, beside, err := r.failed(c, r.beginning(began), err)
		return &failed, beside, err
	}
	alarm, err := r.life.alarm(time.Now().Add(c.of.wait), event.Rang{For: event.RangTimeout, Step: c.of.name, Attempt: began.Attempt})
	return nil, append(r.life.correlated(command, c.of.name), alarm), err
}

// call calls the functions of steps side by side, and notes their outcomes. An outcome is written at once while
// others run. If that is refused, the contexts of the others are cancelled.
func (r *Run) call(all []*one) error {
	type outcome struct {
		*one
		output json.RawMessage
		err    error
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	outcomes := make(chan outcome)
	running := 0
	for _, c := range all {
		if c.do == nil {
			continue
		}
		running++
		go func() {
			o := outcome{one: c}
			defer func() { outcomes <- o }()
			o.err = r.life.attempt(ctx, c.of, func(ctx context.Context) (err error) {
				o.output, err = c.do(ctx)
				return err
			})
		}()
	}
	var ended error
	for ; running > 0; running-- {
		o := <-outcomes
		if ended != nil {
			continue
		}
		if ended = r.noteOutcome(o.one, o.output, o.err); ended == nil && running > 1 {
			ended = r.life.write(r.ctx)
		}
		if ended != nil {
			cancel()
		}
	}
	return ended
}

// noteOutcome notes the end of an attempt. An error ends the run.
func (r *Run) noteOutcome(c *one, output json.RawMessage, err error) error {
	l := r.life
	if err == nil {
		l.note(event.Done{Step: c.of.name, Output: output})
		return nil
	}
	failed, beside, err := r.failed(c, l.byName[c.of.name], err)
	if err == nil {
		l.note(failed, beside...)
	}
	return err
}

// failed returns the event of an attempt that failed, or an error that ends the run.
func (r *Run) failed(c *one, before *step, err error) (event.Failed, []messagestore.StreamWrite, error) {
	f := event.Failed{Step: c.of.name, Attempt: 1, Error: textOf(err)}
	failures := 1
	if before != nil {
		f.Attempt, failures = before.attempts, before.failures+1
	}
	found := disposition.Of(err)
	stuck, isStuck := errors.AsType[*parking](err)
	switch {
	case isStuck:
		return f, nil, stuck
	case r.ctx.Err() != nil:
		return f, nil, r.ctx.Err() // the process stops: it is no failure of the step
	case found.Asks(disposition.Park):
		return f, nil, park(event.WhyFailed, c.of.name, err)
	case found.Asks(disposition.Skip):
		return f, nil, skipped(c.of.name, err)
	case found.Asks(disposition.Refuse):
		f.Refused = true
		return f, nil, nil
	case found.Asks(disposition.Retry):
		f.Asked = true
	case failures >= c.of.retry.Attempts:
		return f, nil, nil
	}
	at := c.of.retry.retryAt(failures)
	if f.Asked {
		at = askedAt(found)
	}
	alarm, err := r.life.alarm(at, event.Rang{For: event.RangRetry, Step: c.of.name, Attempt: f.Attempt})
	f.RetryAt = at.UnixMicro()
	return f, []messagestore.StreamWrite{alarm}, err
}

// beginning returns the step of an attempt whose beginning is recorded with its end.
func (r *Run) beginning(began event.Began) *step {
	before := &step{attempts: began.Attempt}
	if known := r.life.byName[began.Step]; known != nil {
		before.failures = known.failures
	}
	return before
}

// transact does a step in a transaction that records it. A failure is recorded with its beginning.
func (r *Run) transact(c *one) error {
	began := r.begins(c)
	err := r.life.attempt(r.ctx, c.of, func(ctx context.Context) error { return c.transact(ctx, r.life, began) })
	if err == nil {
		return nil
	}
	if ofStore, is := errors.AsType[*storeError](err); is {
		return ofStore.error
	}
	failed, beside, err := r.failed(c, r.beginning(began), err)
	if err != nil {
		return err
	}
	return r.life.writeBeside(r.ctx, []messagestore.Body{began, failed}, beside)
}

// Sleep waits for d, once: 1 ms to 10 years. The name is one of the run's, as a step's is. No goroutine
// waits: the error matches [ErrPaused] until the time has come.
func (r *Run) Sleep(name string, d time.Duration) error {
	if r.stop != nil || r.busy.Load() {
		return r.Join()
	}
	l := r.life
	over, known := l.sleeps[name]
	err := r.name(name)
	switch {
	case err != nil:
		return r.ends(park(event.WhyInvalid, name, err))
	case define(name, "", false, false).invalid != nil:
		return r.ends(park(event.WhyInvalid, name, define(name, "", false, false).invalid))
	case d < time.Millisecond || d > maxWait:
		return r.ends(park(event.WhyInvalid, name, invalid("time to sleep", d.String(), fmt.Sprintf("it is from 1ms to %v", maxWait))))
	case over:
		return nil
	case known:
		return r.ends(ErrPaused)
	}
	if err := r.mayBegin(name); err != nil {
		return r.ends(err)
	}
	until := time.Now().Add(d)
	alarm, err := l.alarm(until, event.Rang{For: event.RangSleep, Step: name})
	if err != nil {
		return r.ends(err)
	}
	l.note(event.Waiting{Name: name, Until: until.UnixMicro()}, alarm)
	return r.ends(ErrPaused)
}

// Value returns the value of f. The first recorded run computes it, and all later runs get the same: a
// time, a random number, the result of a read. It is stored with the next step that begins. The name
// must be unique within the run, as a step's. The function has to return the error.
func Value[T any](r *Run, name string, f func() T) (T, error) {
	var value T
	if r == nil || r.stop != nil || r.busy.Load() {
		return value, r.Join()
	}
	err := r.name(name)
	if err == nil {
		err = define(name, "", f == nil, false).invalid
	}
	if err != nil {
		return value, r.ends(park(event.WhyInvalid, name, err))
	}
	raw, known := r.life.values[name]
	if !known {
		if raw, err = encode("value "+name, f()); err != nil {
			return value, r.ends(park(event.WhyInvalid, name, err))
		}
		r.life.note(event.Valued{Name: name, Value: raw})
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return value, r.ends(park(event.WhyInvalid, name, fmt.Errorf("value %s does not fit: %w", name, err)))
	}
	return value, nil
}

// forward runs the function.
func (l *life) forward(ctx context.Context) error {
	f := l.functions[l.started.Version]
	if f == nil {
		return park(event.WhyVersion, "", fmt.Errorf("the definition has no function for version %d", l.started.Version))
	}
	r := &Run{ctx: ctx, life: l, reached: map[string]bool{}, open: map[string]bool{}}
	var output json.RawMessage
	err := l.safely("", func() (err error) {
		output, err = f(r, l.started.Input)
		return err
	})
	_, panicked := err.(*panics.Error) //nolint:errorlint // safely makes it, and nothing wraps it
	_, stuck := errors.AsType[*parking](r.stop)
	_, unfit := errors.AsType[*parking](err)
	switch {
	case stuck:
		return r.stop
	case errors.Is(r.stop, ErrPaused):
		l.waits = true
		return l.write(ctx)
	case r.stop != nil:
		return r.stop
	case ctx.Err() != nil:
		return ctx.Err()
	case panicked:
		return park(event.WhyPanic, "", err)
	case unfit:
		return err
	}
	return l.end(ctx, r, output, err)
}

// end records the end of a function that returned.
func (l *life) end(ctx context.Context, r *Run, output json.RawMessage, err error) error {
	if name := r.unreached(); name != "" {
		return park(event.WhyDiverged, name, fmt.Errorf("%s began, and the function returns without it", name))
	}
	for name := range r.open {
		return park(event.WhyInvalid, name, invalid("step", name, "Go was called, and not Join"))
	}
	found := disposition.Of(err)
	switch {
	case err == nil:
		for _, began := range l.steps {
			if !began.settled() {
				return park(event.WhyUnended, began.Step, errors.New("the function returned before the step had ended"))
			}
		}
		return l.write(ctx, event.Completed{Output: output})
	case found.Asks(disposition.Skip):
		return skipped("", err)
	case found.Asks(disposition.Retry):
		return l.runAgain(ctx, askedAt(found))
	case found.Asks(disposition.Park) || l.pivoted():
		name := ""
		if failed, is := errors.AsType[*StepError](err); is {
			name = failed.Step
		}
		return park(event.WhyFailed, name, err)
	}
	return l.write(ctx, event.Compensating{Reason: textOf(err)})
}

// runAgain has the function run again at a time, or earlier if the saga goes on for another reason.
func (l *life) runAgain(ctx context.Context, at time.Time) error {
	if int(l.version)+1 >= maxEvents {
		return park(event.WhyTooLong, "", fmt.Errorf("a saga has at most %d messages", maxEvents))
	}
	l.waits = true
	if l.guessed && len(l.noted) == 0 {
		return nil // it is read, and then run again
	}
	if err := l.write(ctx); err != nil {
		return err
	}
	alarm, err := l.alarm(at, event.Rang{For: event.RangLater})
	if err == nil {
		_, err = l.store.WriteStreams(ctx, alarm)
	}
	return err
}
