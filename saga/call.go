package saga

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A Status is how far a saga is.
type Status[Out any] struct {
	ID         string
	Stream     messagestore.StreamName
	Version    messagestore.Version // of its last message
	State      State
	Definition string    // the name of the saga's definition
	Release    int       // its version
	Started    time.Time // by the store's clock, as all times are
	Changed    time.Time // the time of its last message
	Deadline   time.Time // zero for none

	// Out is the value that the function returned, once the saga has completed.
	Out Out

	// Reason is why the saga is suspended, or else why it is or was undone. It is "" for any other.
	Reason string

	// Suspended says in short why the saga is suspended. It is "" if the saga is not suspended.
	//
	//   - "failed": a step failed, or the function did after a pivot
	//   - "undo failed": an undo was refused, or failed too often
	//   - "diverged": the function skips a recorded step, gives it other input, or has something of
	//     another kind under its name
	//   - "step missing": a step that began is not in the definition
	//   - "no version": the definition has no function for the saga's version
	//   - "invalid": the function makes a mistake, such as a step twice
	//   - "panic": the function panicked, or ended its goroutine
	//   - "too long": the saga has 10,000 messages of its own, not counting messages from outside
	//   - "step not ended": the function returned before one of its steps had ended
	//   - "operator": an [Operator] suspended it
	//   - "stuck": the function called no step for ten seconds, and did not return
	//   - "dead": its turns failed, or ended with their process, 20 times in a row. Neither a
	//     message nor the deadline brings it back; Resume and Cancel do. Begin does not report
	//     this.
	Suspended string

	// By is the name of the operator that suspended the saga, "" if none did.
	By string

	// Step is the step at which the saga is: the step that it does, waits for, undoes or is
	// suspended for. After the saga's end it is the last step that began; it is "" if none has
	// begun.
	Step string

	// Attempt is the number of the current attempt at Step, or of the last one. If Step is being
	// undone, it counts the attempts at the undo.
	Attempt int

	// Error is the error of the last attempt at Step that failed, "" if none has. Next is the time
	// of the next attempt by the store's clock, or zero.
	Error string
	Next  time.Time

	// Due is when the saga has its next turn without a message, zero for never. Begin and Wait do
	// not set it.
	Due time.Time

	// Waits says in words why the saga waits: for a reply, a signal, a time, the next attempt of a
	// step, or a process of a later version where only earlier ones run. It is "" for a saga that
	// does not wait, is suspended or has ended.
	Waits string

	Steps []StepStatus // that began, in their order
}

// A StepStatus says how far a step has got.
type StepStatus struct {
	Step     string
	Attempts int
	Done     bool
	Failed   string // why, once it has failed for good
	Undone   bool
	Error    string    // of the last failed attempt to do or undo the step
	Next     time.Time // when it is attempted again, by the store's clock; zero for no such time
}

// IsOver reports whether the saga has ended.
func (s Status[Out]) IsOver() bool {
	return s.State == StateCompleted || s.State == StateCompensated || s.State == StateResolved
}

// Start returns the write that starts a saga, for you to write together with your own messages. It
// is the first write of the saga's stream, so it is a version conflict if the saga was started
// before. The id may be any visible text. If the id or the input is invalid, the store refuses the
// write with an error that matches [messagestore.ErrInvalid].
func (s *Saga[In, Out]) Start(id string, in In) messagestore.StreamWrite {
	started, err := s.core.start(id, in)
	return messagestore.To(s.core.category.Stream(id), messagestore.NoStream, outsider(started, err))
}

func (c *core) start(id string, in any) (startedEvent, error) {
	input, err := encode("input", in)
	if err == nil {
		err = checkID(id)
	}
	return startedEvent{Definition: c.name, Version: c.config.Version, Input: input, DeadlineMillis: c.config.Deadline.Milliseconds()}, err
}

// checkID refuses an id that cannot be seen, before it is part of a name.
func checkID(id string) error {
	rule := keys.Rule(id)
	if rule == "" && strings.ContainsFunc(id, unicode.IsControl) {
		rule = "must not contain a control character"
	}
	if rule != "" {
		return invalid("saga id", id, rule)
	}
	return nil
}

// Begin starts a saga, or attaches to the saga that was started with this id and the same input. It
// returns the current status and does not wait. If the saga was started with another input, the
// error is a [*reservation.KeyReusedError].
func (s *Saga[In, Out]) Begin(ctx context.Context, id string, in In) (Status[Out], error) {
	fail := func(err error) (Status[Out], error) { return Status[Out]{}, s.core.fail("begin", id, err) }
	started, err := s.core.start(id, in)
	if err != nil {
		return fail(err)
	}
	l, err := s.core.begin(ctx, id, started)
	switch {
	case err == nil:
		return statusOf[Out](id, l)
	case !errors.Is(err, messagestore.ErrVersionConflict):
		return fail(err)
	}
	l, first, err := s.core.look(ctx, id)
	if err != nil {
		return fail(err)
	}
	if !exactjson.Equal(l.started.Input, started.Input) {
		return fail(&reservation.KeyReusedError{Key: id, Stream: l.stream, Winner: first})
	}
	return statusOf[Out](id, l)
}

// begin writes the first message of a saga, and tells the runner.
func (c *core) begin(ctx context.Context, id string, started startedEvent) (*life, error) {
	stream := c.category.Stream(id)
	one := c.kept.begin(stream)
	m := messagestore.Envelope{Body: started}
	if one != nil {
		m.ID = one.id
	}
	written, err := c.store.WriteStreams(queuing.WithStop(ctx, c.source.Pokes.Stop()), messagestore.To(stream, messagestore.NoStream, m))
	if err != nil {
		c.kept.forget(one)
		return nil, err
	}
	l := &life{core: c, state: newState(), stream: stream, version: written[0].Version, seen: written[0].GlobalPosition}
	l.starts(started, written[0].Time)
	status := *l
	status.state = newState()
	status.starts(started, written[0].Time)
	c.kept.began(one, l)
	c.source.Pokes.Poke(l.seen)
	return &status, nil
}

// outside writes a message from outside of the runner, and wakes this process's runner.
func (c *core) outside(ctx context.Context, write messagestore.StreamWrite) error {
	written, err := c.store.WriteStreams(ctx, write)
	if err == nil {
		c.source.Pokes.Poke(written[0].GlobalPosition)
	}
	return err
}

// Status returns how far a saga is. The error matches [messagestore.ErrNotFound] if the saga does
// not exist.
func (s *Saga[In, Out]) Status(ctx context.Context, id string) (Status[Out], error) {
	return status[Out](ctx, s.core, id)
}

func status[Out any](ctx context.Context, c *core, id string) (Status[Out], error) {
	l, err := c.lookAlso(ctx, id)
	if err != nil {
		return Status[Out]{}, c.fail("show", id, err)
	}
	return statusOf[Out](id, l)
}

// Wait returns the status of a saga once it has ended or is suspended. It notices a saga that is
// dead in the queue within two seconds, or within a minute if the saga dies while Wait runs. If ctx
// is done first, Wait returns the context's error. The error matches [messagestore.ErrNotFound] if
// the saga does not exist.
func (s *Saga[In, Out]) Wait(ctx context.Context, id string) (Status[Out], error) {
	fail := func(err error) (Status[Out], error) { return Status[Out]{}, s.core.fail("wait", id, err) }
	if err := checkID(id); err != nil {
		return fail(err)
	}
	w := s.core.wakeups.NewWaiter()
	defer w.Leave()
	stream := s.core.category.Stream(id)
	w.On(stream) // an end between the first look and this would be missed
	if first, known := s.core.kept.open(stream); known {
		w.Again(first)
		if err := waitAtMost(ctx, w, lookAfter); err != nil {
			return fail(err)
		}
	}
	for dead := false; ; {
		if l, is := w.Told().(*life); is {
			return statusOf[Out](id, l)
		}
		l, first, err := s.core.look(ctx, id)
		if err == nil && dead {
			err = s.core.meetItem(ctx, l, first)
		}
		if err != nil {
			return fail(err)
		}
		status, err := statusOf[Out](id, l)
		if status.IsOver() {
			s.core.kept.drop(stream)
		}
		if err != nil || status.IsOver() || status.State == StateSuspended {
			return status, err
		}
		w.From(first.GlobalPosition)
		if dead, err = s.core.awaitNews(ctx, w, first); err != nil {
			return fail(err)
		}
	}
}

// awaitNews waits until there may be something new in a saga's stream, or until its item is dead,
// which no message reports.
func (c *core) awaitNews(ctx context.Context, w *waiting.Waiter, first *messagestore.Message) (dead bool, err error) {
	driver, err := queuing.Of(c.store)
	for times := 1; err == nil && !dead; times++ {
		timer := time.NewTimer(outage.Pause(times, lookAfter, maxLookAfter))
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-w.Bell():
			timer.Stop()
			return false, nil
		case <-timer.C:
			item, failure := driver.QueueItem(ctx, queueOf(c.category), first.GlobalPosition)
			dead = failure == nil && item.State == queuing.Dead // an error is none of the saga: it is asked again
		}
		timer.Stop()
	}
	return dead, err
}

// lookAfter is how long a caller that waits trusts what the process knows about a saga. After that
// it reads the saga, less and less often, at intervals of up to maxLookAfter.
const (
	lookAfter    = time.Second
	maxLookAfter = time.Minute
)

// waitAtMost waits until there may be something new, for at most the given time.
func waitAtMost(ctx context.Context, w *waiting.Waiter, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.Bell():
	case <-timer.C:
	}
	return nil
}

// Cancel asks to undo a saga. The reason is recorded. The saga is undone as soon as the current
// attempts have ended, even if it is suspended; a saga past a pivot goes on. Cancel writes nothing
// to a saga that has ended. It returns the status before the change.
func (s *Saga[In, Out]) Cancel(ctx context.Context, id, reason string) (Status[Out], error) {
	return change[Out](ctx, s.core, "cancel", id, cancelRequestedEvent{Reason: shorten(reason)}, func(l *life) bool { return l.ended == "" })
}

// Resume lets a suspended saga go on. The reason is recorded. The step that failed has all its
// attempts again. Resume writes nothing to a saga that is not suspended. It returns the status
// before the change.
func (s *Saga[In, Out]) Resume(ctx context.Context, id, reason string) (Status[Out], error) {
	return change[Out](ctx, s.core, "resume", id, resumedEvent{Reason: shorten(reason)}, func(l *life) bool {
		return l.state.state() == StateSuspended
	})
}

// Resolve ends a suspended saga past a pivot when a person has done the rest, and gives a reason.
// Nothing more is done or undone. Resolve writes nothing to a saga that is not suspended or is
// dead, nor if the saga can still be undone: cancel it. It returns the status before the change.
func (s *Saga[In, Out]) Resolve(ctx context.Context, id, reason string) (Status[Out], error) {
	return change[Out](ctx, s.core, "resolve", id, resolvedEvent{Reason: shorten(reason)}, func(l *life) bool {
		return l.state.state() == StateSuspended && l.suspended.Why != whyDead && l.pivoted()
	})
}

// change writes a message to a saga if may allows it, revives a dead saga, and returns the status
// before the change.
func change[Out any](ctx context.Context, c *core, doing, id string, body messagestore.Body, may func(*life) bool) (Status[Out], error) {
	l, err := c.lookAlso(ctx, id)
	if err != nil {
		return Status[Out]{}, c.fail(doing, id, err)
	}
	status, err := statusOf[Out](id, l)
	if err != nil || !may(l) {
		return status, err
	}
	if err := c.outside(ctx, c.from(id, body, nil)); err != nil {
		return status, c.fail(doing, id, err)
	}
	if err := l.exhume(ctx, doing); err != nil {
		return status, c.fail(doing, id, err)
	}
	return status, nil
}

func (c *core) fail(doing, id string, err error) error {
	return fmt.Errorf("%s saga %.80q of %s: %w", doing, id, c.name, err)
}

// look reads a saga.
func (c *core) look(ctx context.Context, id string) (*life, *messagestore.Message, error) {
	if err := checkID(id); err != nil {
		return nil, nil, err
	}
	return c.lookAt(ctx, c.category.Stream(id))
}

// lookAt reads the saga of a stream. The error is a [*malformedError] if the stream holds none.
func (c *core) lookAt(ctx context.Context, stream messagestore.StreamName) (*life, *messagestore.Message, error) {
	l := &life{core: c, state: newState(), stream: stream, version: messagestore.NoStream}
	var first *messagestore.Message
	for m, err := range c.store.ReadStream(ctx, l.stream, 0) {
		if err != nil {
			return nil, nil, err
		}
		if err := l.take(m); err != nil {
			return nil, nil, &malformedError{err}
		}
		if l.version, l.seen = m.Position, m.GlobalPosition; first == nil {
			first = m
		}
	}
	if l.started == nil {
		return nil, nil, errNoSaga
	}
	return l, first, nil
}

func statusOf[Out any](id string, l *life) (Status[Out], error) {
	status := Status[Out]{
		ID: id, Stream: l.stream, Version: l.version, State: l.state.state(), Started: l.startedAt, Changed: l.changedAt, Deadline: l.deadline,
		Due: l.due, Step: l.step(), Waits: l.waitsFor(), Steps: l.statuses(),
	}
	for _, one := range status.Steps {
		if one.Step == status.Step {
			status.Attempt, status.Error, status.Next = one.Attempts, one.Error, one.Next
		}
	}
	if one := l.byName[status.Step]; one != nil && l.compensating != nil && l.ended == "" {
		status.Attempt = one.undoAttempts
		if status.State == StateCompensating && one.undoAt.IsZero() {
			status.Attempt++ // under way
		}
	}
	if l.started != nil {
		status.Definition, status.Release = l.started.Definition, l.started.Version
	}
	if l.compensating != nil {
		status.Reason = l.compensating.Reason
	}
	if status.State == StateSuspended {
		status.Suspended, status.Reason, status.By = l.suspended.Why, l.suspended.Reason, l.suspended.By
	}
	if l.ended == StateCompleted {
		if err := json.Unmarshal(l.output, &status.Out); err != nil {
			return status, l.fail("show", id, fmt.Errorf("its output: %w", err))
		}
	}
	return status, nil
}

// step returns the name of the step at which the saga is, "" for none.
func (s *state) step() string {
	if s.state() == StateSuspended && s.suspended.Step != "" {
		return s.suspended.Step
	}
	for _, one := range slices.Backward(s.steps) {
		if s.ended != "" || s.compensating != nil && !one.undone || s.compensating == nil && !one.settled() {
			return one.Step
		}
	}
	if len(s.steps) == 0 {
		return ""
	}
	return s.steps[len(s.steps)-1].Step
}

func (s *state) statuses() []StepStatus {
	var all []StepStatus
	for _, one := range s.steps {
		status := StepStatus{Step: one.Step, Attempts: one.attempts, Done: one.done, Undone: one.undone, Error: one.err, Next: one.retryAt}
		if s.compensating != nil {
			status.Next = one.undoAt
		}
		if one.failed != nil {
			status.Failed = one.failed.Error
		}
		all = append(all, status)
	}
	return all
}

// from returns the write of a message from outside, which goes behind all messages that the saga
// has, if there is such a saga. Programs may send any number of signals and replies, so a saga
// takes only so many of these.
func (c *core) from(id string, body messagestore.Body, err error) messagestore.StreamWrite {
	if err == nil {
		err = checkID(id)
	}
	expected := messagestore.StreamExists
	switch body.(type) {
	case signalledEvent, repliedEvent:
		expected = messagestore.StreamExists.Below(maxVersion)
	}
	return messagestore.StreamWrite{Stream: c.category.Stream(id), Expected: expected, Bodies: []messagestore.Body{outsider(body, err)}}
}

// IsFull reports whether a [Saga.Signal] or [Saga.Reply] was refused because the saga has 20,000
// messages.
func IsFull(err error) bool {
	conflict, is := errors.AsType[*messagestore.VersionConflictError](err)
	return is && conflict.Expected == messagestore.StreamExists.Below(maxVersion) && conflict.Actual >= maxVersion
}

// outsider returns body. If err is set, it returns a body that no store encodes, with err as the
// reason.
func outsider(body messagestore.Body, err error) messagestore.Body {
	if err != nil {
		return refused{body.MessageType(), err}
	}
	return body
}

// A refused is a body that cannot be written.
type refused struct {
	name string
	err  error
}

// MessageType implements [messagestore.Body].
func (r refused) MessageType() string { return r.name }

// MarshalJSON implements [json.Marshaler].
func (r refused) MarshalJSON() ([]byte, error) { return nil, r.err }
