package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// A Run is one run of a saga's function. The function calls steps with it, from its own goroutine,
// and must not keep it after it returns.
type Run struct {
	ctx     context.Context //nolint:containedctx // a run is one call, and the function has it in place of a context
	life    *life
	reached map[string]bool // steps, values, sleeps and signals
	heard   map[string]int  // how often a signal was received, by its name
	open    []*one          // by Go, and not joined
	stop    error           // why the run has ended

	mu     sync.Mutex
	busy   bool      // a step runs
	nested bool      // a step was called in a step
	left   bool      // the function is abandoned
	idle   time.Time // since when no step runs
}

// enter begins a part of the run in which no step may be called and only the caller may use the
// run's life.
func (r *Run) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.left:
		return fmt.Errorf("%w: its function was abandoned", errStopped)
	case r.busy:
		r.nested = true
		return invalid("step", nil, "must not be called in another step")
	}
	r.busy = true
	return nil
}

// exit ends the part that enter began.
func (r *Run) exit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy, r.idle = false, time.Now()
}

// isBusy reports whether a step runs, or the function is abandoned.
func (r *Run) isBusy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy || r.left
}

// Context returns the context of the run, for reads that the function makes. It is done when the
// process stops.
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
	transact func(ctx context.Context, l *life, began beganEvent) error
}

// A Future is a step that is done side by side with others, by [Run.Join].
type Future[Out any] struct {
	one one
	out Out
}

// Out returns the output, the zero value before [Run.Join] and if the step failed.
func (f *Future[Out]) Out() Out { return f.out }

// Err returns the [*StepError] of the step after [Run.Join], nil if it has not failed.
func (f *Future[Out]) Err() error { return f.one.err }

// reach notes that the function has come to a step.
func reach[Out any](r *Run, of *definition, in any) *Future[Out] {
	f := &Future[Out]{one: one{of: of}}
	f.one.take = func(output json.RawMessage) error { return json.Unmarshal(output, &f.out) }
	if r == nil || r.isBusy() || r.stop != nil {
		return f // what joins it refuses it
	}
	f.one.refused = r.name(of.name, kinds[of.kind])
	switch defined := r.life.defined[of.root().name]; {
	case f.one.refused != nil:
	case of.base != nil && of.invalid != nil:
		f.one.refused = of.invalid
	case defined == nil || defined.definition() != of.root():
		f.one.refused = invalid("step", of.name, "must be one of the saga's steps")
	default:
		f.one.input, f.one.refused = encode("input of "+of.name, in)
	}
	r.open = append(r.open, &f.one)
	return f
}

// name reserves a name in this run. A name may be used once in a run, and must be recorded as the
// same kind or not at all.
func (r *Run) name(name, kind string) error {
	if r.reached[name] {
		return invalid("step", name, "must not be called twice in one run")
	}
	r.reached[name] = true
	if before := r.life.kindOf(name); before != "" && before != kind {
		return suspend(whyDiverged, name, fmt.Errorf("%s is recorded as %s, and the function has %s of this name now", name, before, kind))
	}
	return nil
}

// Join does all steps that Go has returned since the last Join, side by side. They begin in one
// write. When all have ended it returns nil, or the [*StepError] of the first that failed; as soon
// as one has failed, Join stops waiting for replies to the others and for further attempts at them.
// An error that matches [ErrWaiting] says that the saga waits.
func (r *Run) Join() error {
	return r.joined(nil)
}

// joined does the open step only, or all open steps if that is nil.
func (r *Run) joined(only *one) error {
	if r == nil {
		return invalid("run", nil, "must not be nil")
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.exit()
	if r.stop != nil {
		return r.stop
	}
	all := r.open
	if r.open = nil; only != nil {
		r.open = slices.DeleteFunc(all, func(c *one) bool { return c == only })
		all = []*one{only}
	}
	for _, c := range all {
		if c.refused != nil {
			return r.ends(suspend(whyInvalid, c.of.name, c.refused))
		}
	}
	return r.ends(r.join(all))
}

// ends ends the run because of an error, unless that is a [*StepError].
func (r *Run) ends(err error) error {
	_, failed := errors.AsType[*StepError](err)
	_, stuck := errors.AsType[*suspension](err)
	switch {
	case err == nil || failed:
		return err
	case stuck || errors.Is(err, ErrWaiting):
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
			return suspend(whyDiverged, c.of.name, fmt.Errorf("%s began with another input than the function wants now", c.of.name))
		case began.settled():
		case !began.retryAt.IsZero():
			due, err := r.life.over(r.ctx, began.retryAt)
			if err != nil {
				return err
			}
			if due {
				todo = append(todo, c)
			}
		case c.command == nil || began.again || began.unsent:
			todo = append(todo, c)
		default:
			if err := r.awaitReply(began); err != nil {
				return err
			}
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
		if late, err := r.life.late(r.ctx); err != nil || late {
			return cmp.Or(err, errLate)
		}
		if err := r.do(todo); err != nil {
			return err
		}
		if r.isNested() {
			return suspend(whyInvalid, "", invalid("step", nil, "must not be called in another step"))
		}
		if waits, err = r.settle(all); err != nil {
			return err
		}
	}
	if waits {
		return ErrWaiting
	}
	return nil
}

func (r *Run) isNested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nested
}

// awaitReply records that the time for the reply to an ask has passed, if it has. If a reply came
// in time, that write is a version conflict.
func (r *Run) awaitReply(began *step) error {
	if began.replyBy.IsZero() {
		return nil
	}
	late, err := r.life.over(r.ctx, began.replyBy)
	if err != nil || !late {
		return err
	}
	return r.life.write(r.ctx, failedEvent{Step: began.Step, Attempt: began.attempts, Error: noReply})
}

// settle gives each step its recorded outcome. It returns the first failure, and whether the run
// waits for a step.
func (r *Run) settle(all []*one) (waits bool, failure error) {
	for _, c := range all {
		began := r.life.byName[c.of.name]
		switch {
		case began == nil:
			waits = true
		case !began.settled():
			waits = true
			if r.life.waitUntil(began.retryAt); began.retryAt.IsZero() {
				r.life.waitUntil(began.replyBy)
			}
		case began.failed != nil:
			c.err = &StepError{Step: c.of.name, Reason: began.failed.Error, Refused: began.failed.Refused}
			if failure == nil {
				failure = c.err
			}
			if c.of.suspend && !began.failed.Refused {
				return false, suspend(whyFailed, c.of.name, c.err)
			}
		default:
			if err := c.take(began.output); err != nil {
				return false, suspend(whyInvalid, c.of.name, fmt.Errorf("its recorded output does not fit: %w", err))
			}
		}
	}
	return waits, failure
}

// mayBegin returns nil if the function has reached all that is recorded. Otherwise the function has
// changed, and must not do anything.
func (r *Run) mayBegin(wanted string) error {
	if name := r.unreached(); name != "" {
		return suspend(whyDiverged, name, fmt.Errorf("%s began, and the function wants %s without it", name, wanted))
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
	for name := range r.life.receiveBy {
		if !r.reached[name] {
			return name
		}
	}
	for name := range r.life.received {
		if !r.reached[name] {
			return name
		}
	}
	return ""
}

// do begins the steps in one write, and does them side by side. Steps in a transaction follow, one
// by one.
func (r *Run) do(all []*one) error {
	var begun []asked
	for _, c := range all {
		if c.transact != nil {
			continue
		}
		a := asked{one: c, began: r.begins(c)}
		if c.command != nil {
			if err := r.asks(&a); err != nil {
				return err
			}
		}
		begun = append(begun, a)
	}
	switch {
	case len(begun) == 0:
	case r.leavesNothing(begun):
		if r.life.guessed && !r.life.begun {
			return errMoved // it is read first: an earlier turn may have done these
		}
		for _, a := range begun {
			r.life.note(a.began)
		}
	default:
		if err := r.begin(begun); err != nil {
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

// leavesNothing reports whether the steps may record their beginning together with their end: no
// step has anything to undo if that write is lost, and nothing has to be recorded before.
func (r *Run) leavesNothing(all []asked) bool {
	return len(r.life.noted) == 0 && !slices.ContainsFunc(all, func(a asked) bool { return !a.of.root().nothing || a.of.pivot })
}

// begins returns the event with which a step begins, or begins again.
func (r *Run) begins(c *one) beganEvent {
	b := beganEvent{Step: c.of.name, Attempt: 1, Kind: c.of.kind, Pivot: c.of.pivot, Input: c.input}
	if before := r.life.byName[c.of.name]; before != nil {
		b.Attempt, b.Input = before.attempts+1, nil
	}
	return b
}

// An asked is the beginning of a step, with the writes that go with it.
type asked struct {
	*one
	began  beganEvent
	writes []messagestore.StreamWrite // the command
	failed *failedEvent               // instead of the command
}

// begin begins steps in one write, with the commands of the asks. If the store refuses a command,
// the attempt of its step has failed.
func (r *Run) begin(all []asked) error {
	for {
		var events []messagestore.Body
		var beside []messagestore.StreamWrite
		for _, a := range all {
			if events = append(events, a.began); a.failed != nil {
				events = append(events, *a.failed)
			}
			beside = append(beside, a.writes...)
		}
		err := r.life.writeBeside(r.ctx, events, beside)
		refused, is := errors.AsType[*besideError](err)
		if !is {
			return err
		}
		conflict, isConflict := errors.AsType[*messagestore.VersionConflictError](refused.error)
		for i := range all {
			a := &all[i]
			if len(a.writes) == 0 || isConflict && a.writes[0].Stream != conflict.Stream {
				continue
			}
			failed, err := r.failed(a.one, r.beginning(a.began), refused.error)
			if err != nil {
				return err
			}
			a.failed, a.writes = &failed, nil
		}
	}
}

// asks makes the command of a step, or notes that it was not made.
func (r *Run) asks(a *asked) error {
	now, reached, err := r.life.soon(r.ctx)
	if err != nil {
		return err
	}
	command, err := attempt(r.ctx, r.life, a.of, a.command)
	switch {
	case isStore(err):
		return err
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case err != nil && calling.DispositionOf(err) == nil:
		return suspend(whyFailed, a.of.name, fmt.Errorf("make its command: %w", err))
	case err != nil:
		failed, err := r.failed(a.one, r.beginning(a.began), err)
		a.failed = &failed
		return err
	}
	a.began.ReplyBy, a.began.At = now.Add(a.of.wait).UnixMicro(), reached.UnixMicro()
	a.writes = r.life.correlated(command, a.of.name, a.began.Attempt)
	return nil
}

// call calls the functions of steps side by side, and notes their outcomes. While others run, an
// outcome is written at once. If that write is refused, the contexts of the others are cancelled.
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
			o.err = calling.Call(func() (err error) {
				o.output, err = attempt(ctx, r.life, c.of, c.do)
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
		l.note(doneEvent{Step: c.of.name, Output: output})
		return nil
	}
	failed, err := r.failed(c, l.byName[c.of.name], err)
	if err == nil {
		l.note(failed)
	}
	return err
}

// failed returns the event of an attempt that failed, or an error that ends the run.
func (r *Run) failed(c *one, before *step, err error) (failedEvent, error) {
	f := failedEvent{Step: c.of.name, Attempt: 1, Error: textOf(err)}
	failures := 1
	if before != nil {
		f.Attempt, failures = before.attempts, before.failures+1
	}
	found := calling.DispositionOf(err)
	stuck, isStuck := errors.AsType[*suspension](err)
	switch {
	case isStuck:
		return f, stuck
	case isStore(err):
		return f, err
	case r.ctx.Err() != nil:
		return f, r.ctx.Err() // the process stops: it is no failure of the step, whatever the error
	case found.Asks(calling.Park):
		return f, suspend(whyFailed, c.of.name, err)
	case found.Asks(calling.Skip):
		return f, skipped(c.of.name, err)
	case found.Asks(calling.Refuse):
		f.Refused = true
		return f, nil
	case found.Asks(calling.Retry):
		f.Asked = true
	case failures >= c.of.retry.MaxAttempts:
		return f, nil
	}
	pause := c.of.retry.pause(failures)
	if f.Asked {
		pause = askedPause(found)
	}
	now, reached, err := r.life.soon(r.ctx)
	f.RetryAt, f.At = now.Add(pause).UnixMicro(), reached.UnixMicro()
	return f, err
}

// beginning returns the step of an attempt that records its beginning together with its end.
func (r *Run) beginning(began beganEvent) *step {
	before := &step{attempts: began.Attempt}
	if known := r.life.byName[began.Step]; known != nil {
		before.failures = known.failures
	}
	return before
}

// transact does a step in a transaction that records it. A failure is recorded together with the
// step's beginning.
func (r *Run) transact(c *one) error {
	began := r.begins(c)
	err := c.transact(r.ctx, r.life, began)
	if err == nil {
		return nil
	}
	if ofStore, is := errors.AsType[*storeError](err); is {
		return ofStore.error
	}
	failed, err := r.failed(c, r.beginning(began), err)
	if err != nil {
		return err
	}
	return r.life.write(r.ctx, began, failed)
}

// Sleep waits for d, once: 1 ms to 10 years. Like a step's, the name must be unique within the run.
// No goroutine waits: the error matches [ErrWaiting] until the time has come by the store's clock.
func (r *Run) Sleep(name string, d time.Duration) error {
	if r == nil {
		return r.Join()
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.exit()
	if r.stop != nil {
		return r.stop
	}
	return r.ends(r.sleep(name, d))
}

func (r *Run) sleep(name string, d time.Duration) error {
	l := r.life
	until, known := l.sleeps[name]
	err := r.name(name, kindSleep)
	switch {
	case err != nil:
		return suspend(whyInvalid, name, err)
	case define(name, "", false).invalid != nil:
		return suspend(whyInvalid, name, define(name, "", false).invalid)
	case d < time.Millisecond || d > maxWait:
		return suspend(whyInvalid, name, invalid("time to sleep", d.String(), fmt.Sprintf("must be between 1ms and %v", maxWait)))
	case known:
		over, err := l.over(r.ctx, until)
		if err != nil || over {
			return err
		}
		return ErrWaiting
	}
	if err := r.mayBegin(name); err != nil {
		return err
	}
	now, reached, err := l.soon(r.ctx)
	if err != nil {
		return err
	}
	until = now.Add(d)
	l.note(waitingEvent{Name: name, Until: until.UnixMicro(), At: reached.UnixMicro()})
	l.waitUntil(until)
	return ErrWaiting
}

// Value returns the value of f. The first run that is recorded calls f, and all later runs get the
// same value: a time, a random number, the result of a read. It is stored with the next step that
// begins. Like a step's, the name must be unique within the run. The function has to return the
// error.
func Value[T any](r *Run, name string, f func() T) (T, error) {
	var value T
	if r == nil {
		return value, r.Join()
	}
	if err := r.enter(); err != nil {
		return value, err
	}
	raw, err := r.valued(name, f == nil)
	r.exit()
	if err != nil {
		return value, err
	}
	if raw == nil {
		computed := f() // the function's own time
		if err := r.enter(); err != nil {
			return value, err
		}
		raw, err = encode("value "+name, computed)
		if err == nil {
			r.life.note(valuedEvent{Name: name, Value: raw})
		} else {
			err = r.ends(suspend(whyInvalid, name, err))
		}
		if r.exit(); err != nil {
			return value, err
		}
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		if busy := r.enter(); busy != nil {
			return value, busy
		}
		defer r.exit()
		return value, r.ends(suspend(whyInvalid, name, fmt.Errorf("value %s does not fit: %w", name, err)))
	}
	return value, nil
}

// valued returns the recorded value of a name, nil if it has none.
func (r *Run) valued(name string, noFunction bool) (json.RawMessage, error) {
	if r.stop != nil {
		return nil, r.stop
	}
	err := r.name(name, kindValue)
	if err == nil {
		err = define(name, "", noFunction).invalid
	}
	if err != nil {
		return nil, r.ends(suspend(whyInvalid, name, err))
	}
	return r.life.values[name], nil
}

// patience is how long the function of a saga may only compute.
const patience = 10 * time.Second

// errStuck is the error of a function that is abandoned.
var errStuck = fmt.Errorf("the function has called no step for %v, and has not returned", patience)

// run runs the function until it returns, or is abandoned because it does not.
func (r *Run) run(f func(r *Run, input json.RawMessage) (json.RawMessage, error), input json.RawMessage) (json.RawMessage, error) {
	r.idle = time.Now()
	var output json.RawMessage
	done := calling.Go(func() (err error) {
		output, err = f(r, input)
		return err
	})
	for left := patience; ; {
		timer := time.NewTimer(left)
		select {
		case err := <-done:
			timer.Stop()
			return output, err
		case <-timer.C:
		}
		if left = r.abandon(); left <= 0 {
			r.life.abandoned("", patience)
			return nil, errStuck
		}
	}
}

// abandon abandons the function if no step has run for some time, and returns 0. Otherwise it
// returns how long to wait before the next check.
func (r *Run) abandon() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy {
		return patience
	}
	left := patience - time.Since(r.idle)
	r.left = left <= 0
	return left
}

// forward runs the function.
func (l *life) forward(ctx context.Context) error {
	f := l.functions[l.started.Version]
	if f == nil {
		return suspend(whyVersion, "", fmt.Errorf("the definition has no function for version %d", l.started.Version))
	}
	r := &Run{ctx: ctx, life: l, reached: map[string]bool{}, heard: map[string]int{}}
	output, err := r.run(f, l.started.Input)
	if errors.Is(err, errStuck) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return suspend(whyStuck, "", errStuck)
	}
	l.logStack("", err)
	_, panicked := err.(*calling.PanicError) //nolint:errorlint // the run makes it, and nothing wraps it
	_, stuck := errors.AsType[*suspension](r.stop)
	_, unfit := errors.AsType[*suspension](err)
	switch {
	case stuck:
		return r.stop
	case errors.Is(r.stop, ErrWaiting):
		l.waits = true
		return l.write(ctx)
	case r.stop != nil:
		return r.stop
	case ctx.Err() != nil:
		return ctx.Err()
	case panicked:
		return suspend(whyPanic, "", err)
	case unfit:
		return err
	}
	return l.end(ctx, r, output, err)
}

// end records the end of a function that returned.
func (l *life) end(ctx context.Context, r *Run, output json.RawMessage, err error) error {
	if name := r.unreached(); name != "" {
		return suspend(whyDiverged, name, fmt.Errorf("%s began, and the function returns without it", name))
	}
	for _, c := range r.open {
		return suspend(whyInvalid, c.of.name, cmp.Or(c.refused, invalid("step", c.of.name, "must be joined: Go was called without Join")))
	}
	found := calling.DispositionOf(err)
	unfit, isUnfit := errors.AsType[*SignalError](err)
	switch {
	case found == nil && isUnfit:
		return suspend(whyInvalid, unfit.numbered, err)
	case err == nil:
		for _, began := range l.steps {
			if !began.settled() {
				return suspend(whyUnended, began.Step, errors.New("the function returned before the step had ended"))
			}
		}
		return l.write(ctx, completedEvent{Output: output})
	case found.Asks(calling.Skip):
		return skipped("", err)
	case found.Asks(calling.Retry):
		return l.runAgain(ctx, askedPause(found))
	case found.Asks(calling.Park) || l.pivoted():
		name := ""
		if failed, is := errors.AsType[*StepError](err); is {
			name = failed.Step
		}
		return suspend(whyFailed, name, err)
	}
	return l.write(ctx, compensatingEvent{Reason: textOf(err)})
}

// runAgain has the function run again after a pause, or earlier if something else gives the saga a
// turn.
func (l *life) runAgain(ctx context.Context, pause time.Duration) error {
	if l.own >= maxEvents {
		return suspend(whyTooLong, "", fmt.Errorf("a saga has at most %d messages of its own", maxEvents))
	}
	l.waits = true
	if l.guessed && len(l.noted) == 0 {
		return nil // it is read, and then run again
	}
	if err := l.write(ctx); err != nil {
		return err
	}
	return l.waitFor(ctx, pause)
}
