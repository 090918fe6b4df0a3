package saga

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A life is the work of one process on one saga, in one turn, until the saga waits, is suspended or
// ends.
//
// Its state consists of the messages that were read and the events since. Events are noted as they
// happen, and written together with the next event that must be stored first. All is written at the
// version that was read: if a message came from outside meanwhile, the life reads it and decides
// again; if another run has written, the life ends.
type life struct {
	*core
	*state
	stream  messagestore.StreamName
	cause   *messagestore.Message       // the reason to go on
	version messagestore.Version        // that was read, or written
	seen    messagestore.GlobalPosition // of the message at the version
	waits   bool                        // there is nothing to do now
	next    time.Time                   // when there will be without a message, zero for never
	clock   *sample                     // of this life; nil for none yet
	guessed bool                        // nobody has looked for messages after the first, and nothing is written yet
	begun   bool                        // by this process, and no other can have gone on with it

	// held returns nil while this process still owns the turn. It is called before each function of
	// a step; a nil held means always.
	held func(ctx context.Context) error

	noted []messagestore.Body // folded, and not written yet
}

// goOn goes on with a saga until it has to wait. Its first message is m. If fresh is true, there is
// most likely no other message.
func (c *core) goOn(ctx context.Context, m *messagestore.Message, fresh bool, held func(ctx context.Context) error) (*life, error) {
	l := newLife(c, m, held)
	if err := named(m.Stream); err != nil {
		return l, err
	}
	known, err := l.recall(ctx, fresh)
	if err == nil && !known {
		l = newLife(c, m, held)
		err = l.begin(ctx, fresh)
	}
	if err != nil {
		return l, err
	}
	for {
		err := l.advance(ctx)
		if stuck, is := errors.AsType[*suspension](err); is {
			err = l.suspend(ctx, stuck.suspendedEvent)
		}
		switch {
		case l.guessed && (errors.Is(err, errMoved) || err == nil && l.waits):
			l = newLife(c, m, held)
			if _, err := l.read(ctx); err != nil {
				return l, err
			}
		case errors.Is(err, errLate):
		case errors.Is(err, errMoved):
			if err := l.takeIn(ctx); err != nil {
				return l, err
			}
		case err != nil:
			return l, err
		case l.waits:
			if again, err := l.setsBack(ctx); err != nil || !again {
				return l, err
			}
		}
	}
}

func newLife(c *core, m *messagestore.Message, held func(ctx context.Context) error) *life {
	return &life{core: c, state: newState(), stream: m.Stream, cause: m, version: messagestore.NoStream, held: held}
}

// recall starts from the state that the process knows of the saga, and reads the messages since. It
// reports whether it is the same saga.
func (l *life) recall(ctx context.Context, fresh bool) (is bool, err error) {
	known := l.kept.take(l.cause)
	if known == nil {
		return false, nil
	}
	if known.state == nil {
		if err := l.take(l.cause); err != nil {
			return false, &malformedError{err}
		}
		known.state, known.version, known.seen = l.state, l.cause.Position, l.cause.GlobalPosition
	}
	l.state, l.version, l.seen = known.state, known.version, known.seen
	if fresh && known.begun {
		l.guessed, l.begun = true, true
		return true, nil
	}
	for m, err := range l.store.ReadStream(ctx, l.stream, known.version) {
		if err != nil {
			return false, err
		}
		if !is {
			if is = m.Position == known.version && m.GlobalPosition == known.seen; !is {
				return false, nil
			}
			continue
		}
		if err := l.take(m); err != nil {
			return false, &malformedError{err}
		}
		l.version, l.seen = m.Position, m.GlobalPosition
	}
	return is, nil
}

// begin reads the state of the saga. A new saga usually has only its first message, so begin does
// not look for others: the first write, before which nothing is done, shows whether there are any.
func (l *life) begin(ctx context.Context, fresh bool) error {
	m := l.cause
	if !fresh || m.Type != typeStarted || m.Position != 0 {
		_, err := l.read(ctx)
		return err
	}
	if err := l.take(m); err != nil {
		return &malformedError{err}
	}
	l.version, l.seen, l.guessed = m.Position, m.GlobalPosition, true
	return nil
}

// read adds the messages after the version to the state, and reports whether a runner wrote any of
// them.
func (l *life) read(ctx context.Context) (byRunner bool, err error) {
	for m, err := range l.store.ReadStream(ctx, l.stream, l.version+1) {
		if err != nil {
			return false, err
		}
		if err := l.take(m); err != nil {
			return false, &malformedError{err}
		}
		l.version, l.seen = m.Position, m.GlobalPosition
		byRunner = byRunner || !slices.Contains(outsideTypes, m.Type)
	}
	return byRunner, nil
}

// takeIn reads the messages from outside since the version.
func (l *life) takeIn(ctx context.Context) error {
	switch byRunner, err := l.read(ctx); {
	case err != nil:
		return err
	case byRunner:
		return errFenced
	}
	return nil
}

// advance does the next thing. It returns nil with waits set when the saga has to wait or has
// ended.
func (l *life) advance(ctx context.Context) error {
	if l.waits = false; l.started == nil {
		return &malformedError{fmt.Errorf("%s has no saga", l.stream)}
	}
	if err := l.write(ctx); err != nil { // events noted before a message came in between
		return err
	}
	l.next = time.Time{}
	switch {
	case l.ended != "":
		l.waits = true
		return nil
	case l.guessed && l.started.Version > l.config.Version:
		return errMoved // it may have ended
	case l.later != "" || l.started.Version > l.config.Version:
		return l.postpone(ctx)
	case l.compensating != nil && l.suspended != nil:
		l.waits = true
		return nil
	case l.compensating != nil:
		return l.compensate(ctx)
	}
	reason := l.back()
	if reason == "" {
		late, err := l.late(ctx)
		if err != nil {
			return err
		}
		if late {
			reason = "the deadline is over"
		}
	}
	switch {
	case reason != "":
		return l.write(ctx, compensatingEvent{Reason: reason})
	case l.suspended != nil:
		l.waits = true
		return nil
	}
	return l.forward(ctx)
}

// late reports whether the saga has to be undone because of its deadline.
func (l *life) late(ctx context.Context) (bool, error) {
	if l.deadline.IsZero() || l.pivoted() {
		return false, nil
	}
	return l.over(ctx, l.deadline)
}

// A saga of a later release comes back after minLaterPause, and after twice as long each time that
// the same process meets it again. So in a rolling deploy a process that knows its release gets it
// soon.
const (
	minLaterPause = 250 * time.Millisecond
	maxLaterPause = 5 * time.Second
)

// postpone leaves a saga of a later release to a process of that release.
func (l *life) postpone(ctx context.Context) error {
	l.waits, l.lacks = true, fmt.Sprintf("a process of version %d", l.started.Version)
	if l.started.Version <= l.config.Version {
		l.lacks = fmt.Sprintf("a process of a later release, which knows the message %s", l.later)
	}
	times := l.laters.count(l.stream, true)
	log := l.config.Logger
	event := log.Debug()
	if times == 1 {
		event = log.Warn()
	}
	event.Str("saga", string(l.stream)).Int("version", l.started.Version).Str("type", l.later).Msg("a saga of a later release waits")
	return l.waitFor(ctx, min(minLaterPause<<min(times-1, 10), maxLaterPause))
}

// suspend records that the saga is suspended, unless it already is. If the noted events cannot be
// written, they are left out: the reason explains it.
func (l *life) suspend(ctx context.Context, p suspendedEvent) error {
	if l.suspended != nil {
		l.waits = true
		return nil
	}
	log := l.config.Logger
	log.Warn().Str("saga", string(l.stream)).Str("why", p.Why).Str("step", p.Step).Msg("a saga is suspended")
	err := l.write(ctx, p)
	if errors.Is(err, messagestore.ErrInvalid) {
		l.noted = nil
		err = l.write(ctx, p)
	}
	if err == nil {
		l.suspends.Add(1)
	}
	return err
}

// note adds an event to the state, to be written with the next one.
func (l *life) note(event messagestore.Body) {
	l.fold(event)
	l.noted = append(l.noted, event)
}

// write stores the noted events and the given ones, and then adds the given ones to the state.
func (l *life) write(ctx context.Context, events ...messagestore.Body) error {
	return l.writeBeside(ctx, events, nil)
}

// writeBeside is write with additional writes to other streams. A definite error caused by those is
// a [*besideError].
func (l *life) writeBeside(ctx context.Context, events []messagestore.Body, beside []messagestore.StreamWrite) error {
	if len(l.noted)+len(events) == 0 {
		return nil
	}
	writes, err := l.writes(events, beside)
	if err != nil {
		return err
	}
	before := time.Now()
	written, err := l.store.WriteStreams(ctx, writes...)
	if err != nil {
		err = l.moved(err)
		_, isSuspended := last(events).(suspendedEvent)
		if errors.Is(err, messagestore.ErrInvalid) && !isSuspended {
			return suspend(whyInvalid, "", err)
		}
		if len(beside) > 0 && !errors.Is(err, errMoved) && !isOutage(err) {
			return &besideError{err}
		}
		return err
	}
	if !written[0].Duplicate { // its time is the time of the write
		l.clock = &sample{written[0].Time, before, time.Now()}
		l.sample.Store(l.clock)
	}
	l.wrote(written[0], events)
	return nil
}

// writes returns the write of the noted events and the given ones, at the saga's version, followed
// by the other writes.
func (l *life) writes(events []messagestore.Body, beside []messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	all := slices.Concat(l.noted, events)
	_, isSuspended := last(events).(suspendedEvent)
	most := maxEvents
	if l.compensating != nil || slices.ContainsFunc(events, func(b messagestore.Body) bool { return b.MessageType() == typeCompensating }) {
		most *= 2
	}
	if l.own+len(events) > most && !isSuspended { // noted events are counted already
		return nil, suspend(whyTooLong, "", fmt.Errorf("a saga has at most %d messages of its own", most))
	}
	for i, b := range all {
		all[i] = l.follow(b)
	}
	return merge([]messagestore.StreamWrite{{Stream: l.stream, Expected: l.version, Bodies: all, Final: true}}, beside)
}

// merge adds writes. Writes to the same stream become one.
func merge(writes, more []messagestore.StreamWrite) ([]messagestore.StreamWrite, error) {
	for _, w := range more {
		i := slices.IndexFunc(writes, func(other messagestore.StreamWrite) bool { return other.Stream == w.Stream })
		switch {
		case i < 0:
			writes = append(writes, w)
		case writes[i].Expected == messagestore.AnyVersion && w.Expected == messagestore.AnyVersion:
			writes[i].Bodies = slices.Concat(writes[i].Bodies, w.Bodies)
		default:
			return nil, suspend(whyInvalid, "", invalid("command", string(w.Stream), "must not be one of two to one stream in one write, at expected versions"))
		}
	}
	return writes, nil
}

// wrote updates the life after a successful write.
func (l *life) wrote(w messagestore.Written, events []messagestore.Body) {
	l.version, l.seen, l.noted, l.guessed = w.Version, w.GlobalPosition, nil, false
	l.shows(w.Time)
	for _, event := range events {
		l.fold(event)
	}
}

// moved returns errMoved for a conflict in the saga's stream, and any other error unchanged.
func (l *life) moved(err error) error {
	if conflict, is := errors.AsType[*messagestore.VersionConflictError](err); is && conflict.Stream == l.stream {
		return errMoved
	}
	return err
}

// follow sets the message that caused this turn as the cause of body.
func (l *life) follow(body messagestore.Body) messagestore.Envelope {
	e, is := body.(messagestore.Envelope)
	if !is {
		e = messagestore.Envelope{Body: body}
	}
	e.Metadata.CausationStream, e.Metadata.CausationPosition, e.Metadata.CausationGlobalPosition = l.cause.Stream, l.cause.Position, l.cause.GlobalPosition
	return e
}

// The properties of a command that name the step of the saga that sent it, and the number of the
// attempt.
const (
	stepProperty    = "sagaStep"
	attemptProperty = "sagaAttempt"
)

// correlated returns the command of an attempt at a step, with the saga's stream as its
// correlation. It returns nil if the command has no stream.
func (l *life) correlated(command messagestore.StreamWrite, step string, attempt int) []messagestore.StreamWrite {
	if command.Stream == "" {
		return nil
	}
	bodies := slices.Clone(command.Bodies)
	for i, b := range bodies {
		e := l.follow(b)
		e.Metadata.CorrelationStream = l.stream
		e.Metadata.Properties = maps.Clone(e.Metadata.Properties)
		if e.Metadata.Properties == nil {
			e.Metadata.Properties = messagestore.Properties{}
		}
		e.Metadata.Properties[stepProperty] = step
		if attempt > 1 {
			e.Metadata.Properties[attemptProperty] = strconv.Itoa(attempt)
		}
		bodies[i] = e
	}
	command.Bodies = bodies
	return []messagestore.StreamWrite{command}
}

func (l *life) withKey(ctx context.Context, step string) context.Context {
	return calling.WithCaller(ctx, func(c *calling.Caller) { c.Step = &stepCall{key: string(l.stream) + "+" + step} })
}

// stepGrace is how long after its time-out a function of a step may take to return.
const stepGrace = 5 * time.Second

// attempt calls f for a step, within its timeout, and turns a panic into an error. A function that
// does not return within its timeout and the grace is abandoned: it keeps running and its results
// are dropped, so f must not share anything with the life.
//
// The error is a [*storeError] if f was not called because this process has lost the turn.
func attempt[T any](ctx context.Context, l *life, of *definition, f func(context.Context) (T, error)) (T, error) {
	if err := l.mayCall(ctx); err != nil {
		return *new(T), &storeError{err}
	}
	ctx, cancel := context.WithTimeout(l.withKey(ctx, of.name), of.timeout)
	defer cancel()
	out, began := new(T), time.Now()
	done := calling.Go(func() (err error) {
		*out, err = f(ctx)
		return err
	})
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		grace := time.NewTimer(stepGrace)
		defer grace.Stop()
		select {
		case err = <-done:
		case <-grace.C:
			took := time.Since(began).Round(time.Millisecond)
			l.abandoned(of.name, took)
			return *new(T), fmt.Errorf("abandoned: it did not return within %v", took)
		}
	}
	l.logStack(of.name, err)
	return *out, err
}

// mayCall returns nil if a function of a step may be called, and the reason otherwise.
func (l *life) mayCall(ctx context.Context) error {
	if ctx.Err() != nil || l.held == nil {
		return ctx.Err()
	}
	return l.held(ctx)
}

// abandoned counts and logs a function that is left running: a step's, or the saga's if step is "".
func (l *life) abandoned(step string, took time.Duration) {
	l.counts.Abandoned.Add(1)
	l.config.Logger.Error().Str("saga", string(l.stream)).Str("step", step).Stringer("after", took).Msg("a function of a saga is abandoned: it goes on by itself")
}

// logStack logs the stack of a function that panicked or ended its goroutine: a step's, or the
// saga's if step is "". No message of the saga has the stack.
func (l *life) logStack(step string, err error) {
	if stack := calling.Stack(err); stack != "" {
		l.config.Logger.Warn().Str("saga", string(l.stream)).Str("step", step).Str(logger.Stack, stack).Msg("a function of a saga did not return")
	}
}

func last(all []messagestore.Body) messagestore.Body {
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// A malformedError says that a stream does not hold a saga.
type malformedError struct{ error }

func (e *malformedError) Unwrap() error { return e.error }
