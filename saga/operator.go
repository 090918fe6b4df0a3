package saga

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// A StateError says that a saga is in no state for a change. Nothing was written.
type StateError struct {
	Doing  string // the change: cancel, resume, resolve, retry or park
	Stream messagestore.StreamName
	State  State
	Rule   string // what the change needs
}

// Error names the saga and its state.
func (e *StateError) Error() string {
	return fmt.Sprintf("%s %s, which is %s: %s. Nothing was written", e.Doing, e.Stream, e.State, e.Rule)
}

// A Story is how far a saga is, as an operator sees it.
type Story struct {
	ID         string
	Stream     messagestore.StreamName
	Version    messagestore.Version // of its last message
	State      State
	Definition string
	Release    int       // the version of the definition
	Started    time.Time // by the clock of the store
	Changed    time.Time // the time of its last message
	Deadline   time.Time // zero for none
	Reason     string    // why it is or was undone
	Parked     *Parked   // nil if it is not parked
	Steps      []StepStatus

	// Waits is what the saga waits for: a reply, a time, the next attempt of a step. It is "" for a saga that goes
	// on, is parked or has ended.
	Waits string
}

// Step returns the step that began last, "" for none.
func (s Story) Step() string {
	if len(s.Steps) == 0 {
		return ""
	}
	return s.Steps[len(s.Steps)-1].Step
}

// An Operator shows and changes the sagas of a category without their definition. Each change is one message, at the
// version of the saga that was read: if the saga moved on meanwhile, the error is a
// [*messagestore.VersionConflictError], and nothing was written. Its methods are safe for concurrent use. There is
// nothing to close.
type Operator struct {
	core *core
	by   string
}

// NewOperator returns an operator of the sagas of a category, such as booking:saga. The name by stays in each saga
// that the operator changes: it is 1 to 500 bytes of visible text. The error matches [messagestore.ErrInvalid].
func NewOperator(store Store, category messagestore.Category, by string) (*Operator, error) {
	wrong := []error{category.Validate(), checkText("operator", by)}
	if v := reflect.ValueOf(store); store == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		wrong = append(wrong, invalid("store", nil, "it is nil"))
	}
	if wrong[0] == nil && !slices.Contains(category.Types(), "saga") {
		wrong = append(wrong, invalid("category", string(category), fmt.Sprintf("it is not one of sagas, like %s", category.WithType("saga"))))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("operator of sagas: %w", err)
	}
	return &Operator{&core{store: store, name: category.Entity(), category: category}, by}, nil
}

// checkText refuses a text that a person could not read later.
func checkText(field, text string) error {
	rule := keys.Rule(text)
	switch {
	case rule != "":
	case len(text) > maxText:
		rule = fmt.Sprintf("it has at most %d bytes", maxText)
	case strings.ContainsFunc(text, unicode.IsControl):
		rule = "it holds a control character"
	}
	if rule != "" {
		return invalid(field, text, rule)
	}
	return nil
}

// Show returns the story of one saga. The error matches [messagestore.ErrNotFound] if there is none.
func (o *Operator) Show(ctx context.Context, id string) (Story, error) {
	l, first, err := o.core.look(ctx, id)
	if err != nil {
		return Story{}, o.core.fail("show", id, err)
	}
	last, err := o.core.store.Last(ctx, l.stream)
	if err != nil {
		return Story{}, o.core.fail("show", id, err)
	}
	return l.story(first.Time, last.Time), nil
}

// List returns the stories of all sagas of the category for which wanted returns true, in the order of their
// starts. It reads the whole category, and holds the sagas that have not ended in memory. It leaves out a stream
// that holds no saga, and its error names that stream.
func (o *Operator) List(ctx context.Context, wanted func(Story) bool) ([]Story, error) {
	reader := &listing{core: o.core, all: map[messagestore.StreamName]*listed{}}
	from := messagestore.GlobalPosition(0)
	for {
		page, err := o.core.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: o.core.category, From: from, Limit: messagestore.MaxReadMessages})
		if err != nil {
			return nil, fmt.Errorf("list the sagas of %s: %w", o.core.category, err)
		}
		for _, m := range page.Messages {
			reader.take(m)
		}
		if !page.More {
			break
		}
		from = page.Next
	}
	var stories []Story
	for _, stream := range reader.order {
		if one := reader.all[stream]; one.wrong == nil && wanted(one.told()) {
			stories = append(stories, one.told())
		}
	}
	return stories, errors.Join(reader.wrong...)
}

// ListOpen is [Operator.List] of the sagas that have not ended. It asks the queue of the sagas for them, and reads their
// streams alone, however many have ended. The error matches [messagestore.ErrNotSupported] for a store whose driver keeps
// no queues.
func (o *Operator) ListOpen(ctx context.Context, wanted func(Story) bool) ([]Story, error) {
	fail := func(err error) ([]Story, error) {
		return nil, fmt.Errorf("list the open sagas of %s: %w", o.core.category, err)
	}
	if ctx == nil {
		return fail(invalid("context", nil, "it is nil"))
	}
	open, err := o.core.open(ctx)
	if err != nil {
		return fail(err)
	}
	var stories []Story
	var wrong []error
	for _, m := range open {
		l := newLife(o.core, m)
		last, err := l.readAll(ctx)
		if _, isMalformed := errors.AsType[*malformedError](err); isMalformed {
			wrong = append(wrong, err)
			continue
		}
		if err != nil {
			return fail(err)
		}
		if story := l.story(m.Time, last); l.ended == "" && wanted(story) {
			stories = append(stories, story)
		}
	}
	return stories, errors.Join(wrong...)
}

// open returns the first messages of the sagas that have not ended, in order, and those that no runner has met.
func (c *core) open(ctx context.Context) ([]*messagestore.Message, error) {
	used, err := c.store.Driver()
	if err != nil {
		return nil, err
	}
	driver, is := used.(queuing.Driver)
	if !is {
		return nil, fmt.Errorf("%w: the store's driver keeps no queues", messagestore.ErrNotSupported)
	}
	all := map[messagestore.GlobalPosition]*messagestore.Message{}
	// A saga that goes on meanwhile goes to a state that is asked for later, or comes to it in the end.
	for _, state := range []queuing.State{queuing.Waiting, queuing.Out, queuing.Later, queuing.Suspended, queuing.Dead, queuing.Out} {
		for from := messagestore.GlobalPosition(0); ; {
			items, err := driver.QueueItems(ctx, queuing.List{Queue: queueOf(c.category), State: state, From: from, Limit: queuing.MaxItems})
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				if item.Message != nil && item.Message.Position == 0 {
					all[item.Position] = item.Message
				}
				from = item.Position.Next()
			}
			if len(items) < queuing.MaxItems {
				break
			}
		}
	}
	var open []*messagestore.Message
	for _, position := range slices.Sorted(maps.Keys(all)) {
		open = append(open, all[position])
	}
	return open, nil
}

// readAll folds the whole stream, and returns the time of its last message.
func (l *life) readAll(ctx context.Context) (last time.Time, err error) {
	for m, err := range l.store.ReadStream(ctx, l.stream, 0) {
		if err != nil {
			return last, err
		}
		if err := l.take(m); err != nil {
			return last, &malformedError{err}
		}
		l.version, last = m.Position, m.Time
	}
	if l.started == nil {
		return last, &malformedError{fmt.Errorf("%s has no saga", l.stream)}
	}
	return last, nil
}

// A listing folds the messages of a category.
type listing struct {
	*core

	all   map[messagestore.StreamName]*listed
	order []messagestore.StreamName
	wrong []error
}

// A listed is a saga of a listing.
type listed struct {
	life     *life
	story    Story // of a saga that has ended; its life is dropped
	from, to time.Time
	wrong    error
}

func (l *listing) take(m *messagestore.Message) {
	one := l.all[m.Stream]
	if one == nil {
		one = &listed{life: &life{core: l.core, state: newState(), stream: m.Stream, version: messagestore.NoStream}, from: m.Time}
		l.all[m.Stream] = one
		l.order = append(l.order, m.Stream)
	}
	switch {
	case one.wrong != nil:
		return
	case one.life == nil: // it has ended: what comes later changes nothing
		one.story.Version, one.story.Changed = m.Position, m.Time
		return
	}
	if one.wrong = one.life.take(m); one.wrong != nil {
		l.wrong = append(l.wrong, one.wrong)
		return
	}
	one.life.version, one.to = m.Position, m.Time
	if one.life.ended != "" {
		one.story, one.life = one.life.story(one.from, one.to), nil
	}
}

func (l *listed) told() Story {
	if l.life == nil {
		return l.story
	}
	return l.life.story(l.from, l.to)
}

func (l *life) story(from, to time.Time) Story {
	s := Story{
		ID: l.stream.CardinalID(), Stream: l.stream, Version: l.version, State: l.state.state(), Started: from, Changed: to,
		Deadline: l.deadline, Parked: (*Parked)(l.parked), Steps: l.statuses(), Waits: l.waitsFor(),
	}
	if l.started != nil {
		s.Definition, s.Release = l.started.Definition, l.started.Version
	}
	if l.compensating != nil {
		s.Reason = l.compensating.Reason
	}
	return s
}

// waitsFor says what the saga waits for, "" for nothing.
func (s *state) waitsFor() string {
	if s.ended != "" || s.parked != nil {
		return ""
	}
	var all []string
	for _, one := range s.steps {
		switch {
		case s.compensating != nil:
			if !one.undoAt.IsZero() {
				all = append(all, "the next attempt to undo "+one.Step)
			}
		case !one.retryAt.IsZero():
			all = append(all, "the next attempt of "+one.Step)
		case one.Kind == event.KindAsk && !one.settled() && !one.again && !one.unsent:
			all = append(all, "a reply to "+one.Step)
		}
	}
	if s.asleep != "" {
		all = append(all, "the end of the sleep "+s.asleep)
	}
	return strings.Join(all, ", ")
}

// pauses reports whether an attempt waits for its time.
func (s *state) pauses() bool {
	return slices.ContainsFunc(s.steps, func(one *step) bool { return !one.retryAt.IsZero() || !one.undoAt.IsZero() })
}

// Cancel asks to undo a saga, for a reason of 1 to 500 bytes. A saga that has ended, is undone already or is behind a
// pivot is refused with a [*StateError]. It returns the story of before.
func (o *Operator) Cancel(ctx context.Context, id, reason string) (Story, error) {
	return o.change(ctx, "cancel", id, reason, event.CancelRequested{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.compensating != nil && l.parked != nil:
			return "it is being undone already; resume it"
		case l.compensating != nil || l.cancel != nil && !l.pivoted():
			return "it is being undone already"
		case l.pivoted():
			return "a step is done behind which there is no way back"
		}
		return ""
	})
}

// Resume goes on with a parked saga, for a reason of 1 to 500 bytes. The step that failed has all its attempts again. A
// saga that is not parked is refused with a [*StateError]. It returns the story of before.
func (o *Operator) Resume(ctx context.Context, id, reason string) (Story, error) {
	return o.change(ctx, "resume", id, reason, event.Resumed{Reason: reason, By: o.by}, func(l *life) string {
		if l.parked == nil {
			return "only a parked saga is resumed"
		}
		return ""
	})
}

// Resolve ends a parked saga behind a pivot, of which a person has done the rest, for a reason of 1 to 500 bytes. Nothing is
// done or undone any more. A saga that is not parked, or that can be undone, is refused with a [*StateError]. It returns
// the story of before.
func (o *Operator) Resolve(ctx context.Context, id, reason string) (Story, error) {
	return o.change(ctx, "resolve", id, reason, event.Resolved{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.parked == nil:
			return "only a parked saga is resolved"
		case !l.pivoted():
			return "it can be undone: cancel it"
		}
		return ""
	})
}

// Retry has a step, or an undo, that waits for its next attempt be attempted now, for a reason of 1 to 500 bytes. It has
// all its attempts again. A saga in which none waits so is refused with a [*StateError]. It returns the story of before.
func (o *Operator) Retry(ctx context.Context, id, reason string) (Story, error) {
	return o.change(ctx, "retry", id, reason, event.Resumed{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.parked != nil:
			return "resume it"
		case !l.pauses():
			return "no step of it waits for its next attempt"
		}
		return ""
	})
}

// Park has a saga do nothing more until it is resumed or cancelled, for a reason of 1 to 500 bytes. A step that runs
// just now has its context cancelled when the runner next writes, and begins again after a resume, with the same key. A
// saga that has ended or is parked is refused with a [*StateError]. It returns the story of before.
func (o *Operator) Park(ctx context.Context, id, reason string) (Story, error) {
	return o.change(ctx, "park", id, reason, event.Parked{Why: event.WhyOperator, Reason: reason, By: o.by}, func(l *life) string {
		if l.parked != nil {
			return "it is parked already"
		}
		return ""
	})
}

// change appends body at the version that was read, unless rule returns why not.
func (o *Operator) change(ctx context.Context, doing string, id, reason string, body messagestore.Body, rule func(*life) string) (Story, error) {
	fail := func(err error) (Story, error) { return Story{}, o.core.fail(doing, id, err) }
	if err := checkText("reason", reason); err != nil {
		return fail(err)
	}
	l, first, err := o.core.look(ctx, id)
	if err != nil {
		return fail(err)
	}
	var broken string
	switch {
	case l.ended != "":
		broken = "it has ended"
	case l.later != "":
		broken = fmt.Sprintf("its message of the type %s is of a later release; use that release", l.later)
	default:
		broken = rule(l)
	}
	if broken != "" {
		return Story{}, &StateError{doing, l.stream, l.state.state(), broken}
	}
	if _, err := o.core.store.WriteStreams(ctx, messagestore.To(l.stream, l.version, body)); err != nil {
		return fail(err)
	}
	return l.story(first.Time, time.Time{}), nil
}
