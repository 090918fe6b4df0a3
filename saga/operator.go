package saga

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A StateError says that the state of a saga does not allow a change. Nothing was written.
type StateError struct {
	Doing  string // the change: cancel, resume, resolve, retry or suspend
	Stream messagestore.StreamName
	State  State
	Rule   string // what the change needs
}

// Error names the saga and its state.
func (e *StateError) Error() string {
	return fmt.Sprintf("%s %s, which is %s: %s. Nothing was written", e.Doing, e.Stream, e.State, e.Rule)
}

// An Operator shows and changes the sagas of a category without their definition. Each change is
// one message, written at the version that was read: if the saga moved on meanwhile, the error is a
// [*messagestore.VersionConflictError], and nothing was written. Its methods are safe for
// concurrent use. There is nothing to close.
type Operator struct {
	core *core
	by   string
}

// NewOperator returns an operator of the sagas of a category, such as booking:saga. The name by is
// stored in each saga that the operator changes: it is 1 to 500 bytes of visible text. The error
// matches [messagestore.ErrInvalid].
func NewOperator(store *messagestore.Store, category messagestore.Category, by string) (*Operator, error) {
	return newOperator(store, category, by)
}

func newOperator(store store, category messagestore.Category, by string) (*Operator, error) {
	wrong := []error{category.Validate(), checkText("operator", by)}
	if v := reflect.ValueOf(store); store == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		wrong = append(wrong, invalid("store", nil, "must not be nil"))
	}
	if wrong[0] == nil && !slices.Contains(category.Types(), "saga") {
		wrong = append(wrong, invalid("category", string(category), fmt.Sprintf("must be a category of sagas, like %s", category.WithType("saga"))))
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
		rule = fmt.Sprintf("must be at most %d bytes", maxText)
	case strings.ContainsFunc(text, unicode.IsControl):
		rule = "must not contain a control character"
	}
	if rule != "" {
		return invalid(field, text, rule)
	}
	return nil
}

// Status returns how far a saga is. The error matches [messagestore.ErrNotFound] if the saga does
// not exist.
func (o *Operator) Status(ctx context.Context, id string) (Status[json.RawMessage], error) {
	return status[json.RawMessage](ctx, o.core, id)
}

// List is [Saga.List].
func (o *Operator) List(ctx context.Context, states ...State) iter.Seq2[Status[json.RawMessage], error] {
	return list[json.RawMessage](ctx, o.core, states)
}

// List returns the sagas of the category in the given states; without states it returns those that
// have not ended. Sagas that have not ended come first, in the order of their starts, and ended
// ones follow, in the order of their ends.
//
// List finds open sagas through their queue, so the cost does not grow with the number of ended
// ones. If you only ask for suspended sagas, it reads only suspended and dead items: then a saga
// that an operator has suspended is listed once a runner has met it. To find ended sagas, List
// reads the ends in the category. A stream that does not hold a saga is an error that names the
// stream, and the list goes on; after any other error it ends. The error matches
// [messagestore.ErrNotSupported] if the store's driver keeps no queues, and
// [messagestore.ErrInvalid] for an unknown state.
func (s *Saga[In, Out]) List(ctx context.Context, states ...State) iter.Seq2[Status[Out], error] {
	return list[Out](ctx, s.core, states)
}

func list[Out any](ctx context.Context, c *core, states []State) iter.Seq2[Status[Out], error] {
	if len(states) == 0 {
		states = unended
	}
	return func(yield func(Status[Out], error) bool) {
		for l, err := range c.list(ctx, states) {
			status := Status[Out]{}
			if err == nil {
				status, err = statusOf[Out](l.stream.CardinalID(), l)
			}
			if err != nil {
				err = fmt.Errorf("list the sagas of %s: %w", c.category, err)
			}
			if !yield(status, err) {
				return
			}
		}
	}
}

// unended are the states of a saga that has not ended, and allStates are all states.
var (
	unended   = []State{StateRunning, StateCompensating, StateSuspended}
	allStates = append(unended[:3:3], StateCompleted, StateCompensated, StateResolved)
)

// list returns the sagas that are in these states.
func (c *core) list(ctx context.Context, states []State) iter.Seq2[*life, error] {
	fail := func(err error) iter.Seq2[*life, error] {
		return func(yield func(*life, error) bool) { yield(nil, err) }
	}
	var open, ended []State
	for _, state := range states {
		switch {
		case !slices.Contains(allStates, state):
			return fail(invalid("state", string(state), fmt.Sprintf("must be one of %v", allStates)))
		case slices.Contains(unended, state):
			open = append(open, state)
		default:
			ended = append(ended, state)
		}
	}
	return func(yield func(*life, error) bool) {
		if len(open) > 0 && !c.listOpen(ctx, open, yield) || len(ended) == 0 {
			return
		}
		c.listEnded(ctx, ended, yield)
	}
}

// endTypes are the types of the messages with which a saga ends.
var endTypes = map[State]string{StateCompleted: typeCompleted, StateCompensated: typeCompensated, StateResolved: typeResolved}

// firstEnds is how many ends are read first, because a caller may stop early. Each further page is
// larger.
const firstEnds = 100

// listEnded reads the ends in the category, and reports whether to go on.
func (c *core) listEnded(ctx context.Context, states []State, yield func(*life, error) bool) bool {
	query := messagestore.CategoryQuery{Category: c.category, Limit: firstEnds}
	for _, state := range states {
		query.Filter.Types = append(query.Filter.Types, endTypes[state])
	}
	for more := true; more; query.Limit = min(10*query.Limit, messagestore.MaxReadMessages) {
		page, err := c.store.ReadCategoryPage(ctx, query)
		if err != nil {
			return yield(nil, err)
		}
		for _, m := range page.Messages {
			l, err := c.listed(ctx, m.Stream)
			if err == nil && !slices.Contains(states, l.state.state()) {
				continue // a resolution that ended nothing
			}
			if !yield(l, err) || isBad(err) {
				return false
			}
		}
		query.From, more = page.Next, page.More
	}
	return true
}

// isBad reports whether an error of a listing concerns more than one stream.
func isBad(err error) bool {
	_, isMalformed := errors.AsType[*malformedError](err)
	return err != nil && !isMalformed
}

// named returns a [*malformedError] if no saga can have the name: another client of message-db may
// have written to such a stream.
func named(stream messagestore.StreamName) error {
	if err := stream.Validate(); err != nil {
		return &malformedError{errors.New("a stream has no saga: " + err.Error())}
	}
	return nil
}

// listed reads the saga of a stream for a listing.
func (c *core) listed(ctx context.Context, stream messagestore.StreamName) (*life, error) {
	if err := named(stream); err != nil {
		return nil, err
	}
	l, _, err := c.lookAt(ctx, stream)
	if errors.Is(err, errNoSaga) {
		err = &malformedError{fmt.Errorf("%s has no saga", stream)}
	}
	return l, err
}

// listOpen asks the queue for the sagas that have not ended, and reports whether to go on.
func (c *core) listOpen(ctx context.Context, states []State, yield func(*life, error) bool) bool {
	items, err := c.open(ctx, states)
	if err != nil {
		yield(nil, err)
		return false
	}
	for _, item := range items {
		l, err := c.listed(ctx, item.Message.Stream)
		if err == nil {
			if l.meet(item); !slices.Contains(states, l.state.state()) {
				continue
			}
		}
		if !yield(l, err) || isBad(err) {
			return false
		}
	}
	return true
}

// open returns the items of the sagas that may be in these states, in order, and the items that no
// runner has met.
func (c *core) open(ctx context.Context, states []State) ([]queuing.Item, error) {
	driver, err := queuing.Of(c.store)
	if err != nil {
		return nil, err
	}
	// A saga that moves on meanwhile goes to a state that is read later, or reaches one in the end.
	in := []queuing.State{queuing.Waiting, queuing.Out, queuing.Later, queuing.Suspended, queuing.Dead, queuing.Out}
	if !slices.ContainsFunc(states, func(state State) bool { return state != StateSuspended }) {
		in = []queuing.State{queuing.Suspended, queuing.Dead} // and not all that no runner has met
	}
	all := map[messagestore.GlobalPosition]queuing.Item{}
	for _, state := range in {
		for from := messagestore.GlobalPosition(0); ; {
			items, err := driver.QueueItems(ctx, queuing.List{Queue: queueOf(c.category), State: state, From: from, Limit: queuing.MaxItems})
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				if item.Message != nil && item.Message.Position == 0 {
					all[item.Position] = item
				}
				from = item.Position.Next()
			}
			if len(items) == 0 {
				break
			}
		}
	}
	var open []queuing.Item
	for _, position := range slices.Sorted(maps.Keys(all)) {
		open = append(open, all[position])
	}
	return open, nil
}

// meet adds the facts from the saga's item in the queue: when its next turn is, and whether it is
// dead.
func (l *life) meet(item queuing.Item) {
	if !item.Due.IsZero() && item.Due.Before(l.changedAt.Add(2*maxWait)) { // else nothing but a message brings the saga back
		l.due = item.Due
	}
	if item.State != queuing.Dead {
		if waits, is := strings.CutPrefix(item.Error, "waits for "); is && item.Failures == 0 {
			l.lacks = waits
		}
		return
	}
	if l.buried = true; l.suspended == nil {
		l.suspended = &suspendedEvent{Why: whyDead, Reason: cmp.Or(item.Error, "its process ended in its turns")}
	}
}

// lookAlso reads a saga and, if it has not ended, its item.
func (c *core) lookAlso(ctx context.Context, id string) (*life, error) {
	l, first, err := c.look(ctx, id)
	if err == nil {
		err = c.meetItem(ctx, l, first)
	}
	return l, err
}

// meetItem reads the saga's item and adds its facts, if the saga has not ended.
func (c *core) meetItem(ctx context.Context, l *life, first *messagestore.Message) error {
	if l.ended != "" {
		return nil
	}
	driver, err := queuing.Of(c.store)
	if err != nil {
		return err
	}
	l.item = first.GlobalPosition
	item, err := driver.QueueItem(ctx, queueOf(c.category), l.item)
	if err == nil {
		l.meet(item)
	} else if errors.Is(err, messagestore.ErrNotFound) {
		err = nil // no runner has met it, or it ends just now
	}
	return err
}

// exhume revives a dead saga.
func (l *life) exhume(ctx context.Context, reason string) error {
	if !l.buried {
		return nil
	}
	driver, err := queuing.Of(l.store)
	if err == nil {
		_, err = driver.QueueChange(ctx, queuing.Change{
			Queue: queueOf(l.category), Action: queuing.RetryNow, Positions: []messagestore.GlobalPosition{l.item}, Reason: reason,
		})
	}
	return err
}

// waitsFor says in words why the saga waits, "" if it does not.
func (s *state) waitsFor() string {
	if s.ended != "" || s.suspended != nil {
		return ""
	}
	if s.lacks != "" {
		return s.lacks
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
		case one.Kind == kindAsk && !one.settled() && !one.again && !one.unsent:
			all = append(all, "a reply to "+one.Step)
		}
	}
	if s.hears != "" {
		all = append(all, "the signal "+s.hears)
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

// Cancel asks to undo a saga, with a reason of 1 to 500 bytes. If the saga has ended, is being
// undone already or is past a pivot, the error is a [*StateError]. Cancel returns the status before
// the change.
func (o *Operator) Cancel(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	return o.change(ctx, "cancel", id, reason, cancelRequestedEvent{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.compensating != nil && l.suspended != nil:
			return "it is being undone already; resume it"
		case l.compensating != nil || l.cancel != nil && !l.pivoted():
			return "it is being undone already"
		case l.pivoted():
			return "a pivot is done, so it cannot be undone"
		}
		return ""
	})
}

// Resume lets a suspended saga go on, with a reason of 1 to 500 bytes. The step that failed has all
// its attempts again. If the saga is not suspended, the error is a [*StateError]. Resume returns
// the status before the change.
func (o *Operator) Resume(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	return o.change(ctx, "resume", id, reason, resumedEvent{Reason: reason, By: o.by}, func(l *life) string {
		if l.suspended == nil {
			return "only a suspended saga can be resumed"
		}
		return ""
	})
}

// SkipSignal skips a signal, with a reason of 1 to 500 bytes. The saga must be suspended because
// the signal's value does not fit. The saga goes on, and its function receives the next signal of
// the name instead. If the saga is not suspended for a signal, the error is a [*StateError].
// SkipSignal returns the status before the change.
func (o *Operator) SkipSignal(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	resumed := resumedEvent{Reason: reason, By: o.by}
	return o.change(ctx, "skip the signal of", id, reason, &resumed, func(l *life) string {
		if l.suspended == nil || l.suspended.Why != whyInvalid {
			return "it is suspended for no signal"
		}
		if received, is := l.received[l.suspended.Step]; !is || received.Late {
			return "it is suspended for no signal"
		}
		resumed.Skip = l.suspended.Step
		return ""
	})
}

// Resolve ends a suspended saga past a pivot when a person has done the rest, with a reason of 1 to
// 500 bytes. Nothing more is done or undone. If the saga is not suspended, or can still be undone,
// the error is a [*StateError]. Resolve returns the status before the change.
func (o *Operator) Resolve(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	return o.change(ctx, "resolve", id, reason, resolvedEvent{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.suspended == nil:
			return "only a suspended saga can be resolved"
		case l.suspended.Why == whyDead:
			return "it is dead: resume it"
		case !l.pivoted():
			return "it can be undone: cancel it"
		}
		return ""
	})
}

// Retry starts the next attempt of a step or an undo now, instead of after its pause, with a reason
// of 1 to 500 bytes. It has all its attempts again. If no step waits for its next attempt, the
// error is a [*StateError]. Retry returns the status before the change.
func (o *Operator) Retry(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	return o.change(ctx, "retry", id, reason, resumedEvent{Reason: reason, By: o.by}, func(l *life) string {
		switch {
		case l.suspended != nil:
			return "resume it"
		case !l.pauses():
			return "no step of it waits for its next attempt"
		}
		return ""
	})
}

// Suspend stops a saga until it is resumed or cancelled, with a reason of 1 to 500 bytes. If a step
// is running, its context is cancelled when the runner next writes, and the step begins again after
// a resume, with the same key. If the saga has ended or is suspended, the error is a [*StateError].
// Suspend returns the status before the change.
func (o *Operator) Suspend(ctx context.Context, id, reason string) (Status[json.RawMessage], error) {
	return o.change(ctx, "suspend", id, reason, suspendedEvent{Why: whyOperator, Reason: reason, By: o.by}, func(l *life) string {
		if l.suspended != nil {
			return "it is suspended already"
		}
		return ""
	})
}

// change appends body at the version that was read, unless rule returns a reason against it.
func (o *Operator) change(ctx context.Context, doing string, id, reason string, body messagestore.Body, rule func(*life) string) (Status[json.RawMessage], error) {
	fail := func(err error) (Status[json.RawMessage], error) {
		return Status[json.RawMessage]{}, o.core.fail(doing, id, err)
	}
	if err := checkText("reason", reason); err != nil {
		return fail(err)
	}
	l, err := o.core.lookAlso(ctx, id)
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
		return Status[json.RawMessage]{}, &StateError{doing, l.stream, l.state.state(), broken}
	}
	if err := o.core.outside(ctx, messagestore.To(l.stream, l.version, body)); err != nil {
		return fail(err)
	}
	if err := l.exhume(ctx, reason); err != nil {
		return fail(fmt.Errorf("it is recorded, and the saga is dead still: %w", err))
	}
	return statusOf[json.RawMessage](id, l)
}
