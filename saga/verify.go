package saga

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Verify reads all sagas of the category, and reports violations of the rule saga of
// [retention.Violation]:
//
//   - in each saga, the first message that no runner writes at that place
//   - a saga that has not ended and will have no further turn
//   - a saga that has ended while its item stays open
//
// Runners may go on meanwhile without a false alarm. Verify ignores messages after one of a later
// release, and streams whose beginning was trimmed.
//
// It uses MaxViolations and OnProgress of config. It reads each message of the category once and
// keeps about 200 bytes for each saga, and more for each that has not ended. The error matches
// [messagestore.ErrNotSupported] if the store's driver keeps no queues.
func (o *Operator) Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error) {
	v := &verifier{core: o.core, most: config.Most(), sagas: map[messagestore.StreamName]*checked{}}
	err := config.Validate()
	if err == nil {
		if config != nil && config.OnProgress != nil {
			config.OnProgress(o.core.category, 0, 0)
		}
		err = v.run(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("verify the sagas of %s: %w", o.core.category, err)
	}
	return &v.found, nil
}

type verifier struct {
	*core
	most  int
	found retention.Verification
	sagas map[messagestore.StreamName]*checked
}

// A checked holds the facts about a saga from the part of its stream that was read.
type checked struct {
	state *state // nil once nothing more is looked at
	at    messagestore.Version
	wrote uint64 // a sum of the message before, if a runner wrote it; else 0
	first messagestore.GlobalPosition
	last  messagestore.GlobalPosition // up to the end, if it has ended
}

func (v *verifier) run(ctx context.Context) error {
	query := messagestore.CategoryQuery{Category: v.category, Limit: messagestore.MaxReadMessages}
	for more := true; more; {
		page, err := v.store.ReadCategoryPage(ctx, query)
		if err != nil {
			return err
		}
		for _, m := range page.Messages {
			v.next(m)
		}
		query.From, more = page.Next, page.More
	}
	return v.queue(ctx)
}

func (v *verifier) violation(stream messagestore.StreamName, at messagestore.Version, global messagestore.GlobalPosition, expected, found string) {
	if len(v.found.Violations) == v.most {
		v.found.More = true
		return
	}
	v.found.Violations = append(v.found.Violations, retention.Violation{
		Rule: "saga", Category: v.category, Stream: stream, Position: at, GlobalPosition: global, Expected: expected, Found: found,
	})
}

// next handles the next message of the category.
func (v *verifier) next(m *messagestore.Message) {
	one := v.sagas[m.Stream]
	switch {
	case one == nil || m.Position == 0: // a name that was erased may come again
		one = &checked{state: newState(), at: -1, first: m.GlobalPosition}
		v.sagas[m.Stream] = one
		v.found.Checked.Sagas++
	case one.state == nil:
		return
	}
	if m.IsTombstone() || m.Position != one.at+1 { // what was before is deleted, or trimmed
		one.state = nil
		return
	}
	one.at = m.Position
	body, err := decodeEvent(m)
	if err != nil {
		v.violation(m.Stream, m.Position, m.GlobalPosition, "a message of a saga", err.Error())
		one.state = nil
		return
	}
	expected, found := one.state.breaks(body)
	if wrote := sumOf(m); expected == "" && wrote != 0 && wrote == one.wrote {
		expected, found = "no message twice in a row", describe(body)
	} else {
		one.wrote = wrote
	}
	if expected != "" {
		v.violation(m.Stream, m.Position, m.GlobalPosition, expected, found)
		one.state = nil
		return
	}
	if one.state.ended != "" {
		return // from outside, or of a later release
	}
	if err := one.state.takeBody(m, withoutValues(body)); err != nil {
		v.violation(m.Stream, m.Position, m.GlobalPosition, "a message of a saga", err.Error())
		one.state = nil
		return
	}
	one.last = m.GlobalPosition
	switch {
	case one.state.later != "":
		one.state = nil
	case one.state.ended != "":
		one.state = endedStates[one.state.ended]
	}
}

// endedStates has all that Verify keeps of a saga that has ended.
var endedStates = map[State]*state{
	StateCompleted: {ended: StateCompleted}, StateCompensated: {ended: StateCompensated}, StateResolved: {ended: StateResolved},
}

var seed = maphash.MakeSeed()

// sumOf returns a checksum of a message that a runner writes, and 0 for a message from outside.
func sumOf(m *messagestore.Message) uint64 {
	if slices.Contains(outsideTypes, m.Type) || m.Type == typeSetBack { // a clock may go back twice alike
		return 0
	}
	return maphash.String(seed, m.Type+" "+string(m.Data)) | 1
}

// withoutValues returns a body without the parts that may be large.
func withoutValues(body messagestore.Body) messagestore.Body {
	switch b := body.(type) {
	case startedEvent:
		b.Input = nil
		return b
	case beganEvent:
		b.Input = nil
		return b
	case doneEvent:
		b.Output = nil
		return b
	case signalledEvent:
		b.Value = nil
		return b
	case valuedEvent:
		b.Value = nil
		return b
	case repliedEvent:
		b.Output = nil
		return b
	case completedEvent:
		b.Output = nil
		return b
	}
	return body
}

// breaks returns the rule that a message breaks, given the messages before it, and the thing it
// does instead; "" if it breaks no rule. A message from outside may come anywhere, and so may one
// of a type that this release does not know.
func (s *state) breaks(body messagestore.Body) (expected, found string) {
	if body == nil || slices.Contains(outsideTypes, body.MessageType()) {
		return "", ""
	}
	does := describe(body)
	_, undoes := body.(compensatingEvent)
	suspended, suspends := body.(suspendedEvent)
	switch {
	case s.started == nil && s.ended == "":
		return "", "" // takeBody has the rule
	case s.ended != "":
		return "nothing of a runner behind the end, by which the saga is " + string(s.ended), does
	case body.MessageType() == typeSetBack:
		return "", ""
	case s.suspended != nil && !undoes && (!suspends || suspended.By == ""):
		return "nothing of a runner while the saga is suspended", does
	}
	switch b := body.(type) {
	case undoneEvent:
		return s.breaksUndo(b.Step, does)
	case undoFailedEvent:
		return s.breaksUndo(b.Step, does)
	case compensatedEvent:
		if s.compensating == nil {
			return "a compensation that has begun", does
		}
		if one := s.undoNext(); one != nil {
			return fmt.Sprintf("step %s to be undone", one.Step), does
		}
		return "", ""
	case suspendedEvent:
		return "", ""
	}
	if s.compensating != nil {
		return "undos alone once the compensation has begun", does
	}
	return s.breaksForward(body, does)
}

// breaksForward is breaks for a saga that is not being undone.
func (s *state) breaksForward(body messagestore.Body, does string) (expected, found string) {
	switch b := body.(type) {
	case beganEvent:
		one := s.byName[b.Step]
		if want := s.attempt(b.Step) + 1; b.Attempt != want {
			return fmt.Sprintf("attempt %d", want), does
		}
		if one != nil && one.settled() {
			return fmt.Sprintf("no attempt at step %s, which has its outcome", b.Step), does
		}
	case doneEvent:
		if one := s.byName[b.Step]; one == nil || one.settled() || !one.retryAt.IsZero() {
			return fmt.Sprintf("an attempt at step %s without an outcome", b.Step), does
		}
	case failedEvent:
		one := s.byName[b.Step]
		if one == nil || one.attempts != b.Attempt || !one.retryAt.IsZero() || one.settled() && one.Kind != kindAsk { // a reply may have come early
			return fmt.Sprintf("attempt %d at step %s without an outcome", b.Attempt, b.Step), does
		}
	case waitingEvent:
		_, slept := s.sleeps[b.Name]
		if _, heard := s.receiveBy[b.Name]; slept && !b.Signal || heard && b.Signal {
			return "one wait of a name", does
		}
	case receivedEvent:
		if _, is := s.received[b.Name]; is {
			return "a signal that is taken once", does
		}
		if !b.Late && (b.Index < 0 || b.Index >= len(s.signals[baseOf(b.Name)])) {
			return fmt.Sprintf("signal %d of the name, which has come", b.Index+1), does
		}
	case valuedEvent:
		if _, is := s.values[b.Name]; is {
			return "one value of a name", does
		}
	case compensatingEvent:
		if s.pivoted() {
			return "no way back behind a pivot that is done", does
		}
	case completedEvent:
		for _, one := range s.steps {
			if !one.settled() {
				return fmt.Sprintf("an outcome of step %s", one.Step), does
			}
		}
	}
	return "", ""
}

// breaksUndo is breaks for the undo of a step: steps are undone once, the last first.
func (s *state) breaksUndo(step, does string) (expected, found string) {
	switch one := s.undoNext(); {
	case s.compensating == nil:
		return "a compensation that has begun", does
	case one == nil:
		return "no undo, for each step that began is undone", does
	case one.Step != step:
		return fmt.Sprintf("the undo of step %s, the last that began", one.Step), does
	}
	return "", ""
}

// undoNext returns the step that is undone next, nil for none.
func (s *state) undoNext() *step {
	for _, one := range slices.Backward(s.steps) {
		if !one.undone {
			return one
		}
	}
	return nil
}

// describe names a message by its type, and its step or name.
func describe(body messagestore.Body) string {
	of := ""
	switch b := body.(type) {
	case beganEvent:
		of = fmt.Sprintf(" of %s, attempt %d", b.Step, b.Attempt)
	case doneEvent:
		of = " of " + b.Step
	case failedEvent:
		of = fmt.Sprintf(" of %s, attempt %d", b.Step, b.Attempt)
	case undoneEvent:
		of = " of " + b.Step
	case undoFailedEvent:
		of = " of " + b.Step
	case waitingEvent:
		of = " of " + b.Name
	case receivedEvent:
		of = " of " + b.Name
	case valuedEvent:
		of = " of " + b.Name
	}
	return body.MessageType() + of
}

// queue compares the sagas with their items. It looks again at each difference, because runners go
// on meanwhile.
func (v *verifier) queue(ctx context.Context) error {
	driver, err := queuing.Of(v.store)
	if err != nil {
		return err
	}
	all, err := driver.Queues(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(q queuing.Status) bool { return q.Queue == queueOf(v.category) && q.Streams })
	if i < 0 {
		return nil // no runner has met any
	}
	items, err := v.open(ctx, unended)
	if err != nil {
		return err
	}
	there := make(map[messagestore.GlobalPosition]bool, len(items))
	for _, item := range items {
		there[item.Position] = true
		one := v.sagas[item.Message.Stream]
		if one == nil || one.state == nil || one.first != item.Position || comesBack(item, all[i].Time) {
			continue
		}
		if err := v.item(ctx, item, one, all[i].Cursor); err != nil {
			return err
		}
	}
	for stream, one := range v.sagas {
		if one.state == nil || one.state.ended != "" || there[one.first] {
			continue
		}
		if err := v.gone(ctx, driver, stream, one.first); err != nil {
			return err
		}
	}
	slices.SortStableFunc(v.found.Violations, func(a, b retention.Violation) int { return cmp.Compare(a.GlobalPosition, b.GlobalPosition) })
	return nil
}

// comesBack reports whether a saga has another turn without a message.
func comesBack(item queuing.Item, now time.Time) bool {
	switch item.State {
	case queuing.Later, queuing.Suspended:
		return !item.Due.IsZero() && item.Due.Before(now.Add(2*maxWait))
	case queuing.Dead:
		return false
	}
	return true
}

// item judges an item that only a message brings back. The queue had reached the cursor before.
func (v *verifier) item(ctx context.Context, item queuing.Item, one *checked, cursor messagestore.GlobalPosition) error {
	stream := item.Message.Stream
	if one.state.ended != "" {
		if one.last <= cursor || item.State == queuing.Dead {
			v.violation(stream, 0, item.Position, fmt.Sprintf("a finished item, since the saga is %s", one.state.ended), "an item that is "+string(item.State))
		}
		return nil
	}
	if item.State == queuing.Dead || one.last > cursor || !one.state.owed(item.State) {
		return nil
	}
	// It may have gone on meanwhile.
	l, err := v.listed(ctx, stream)
	if err != nil {
		return ifBad(err)
	}
	if l.ended == "" && l.later == "" && l.seen <= cursor && l.owed(item.State) {
		v.violation(stream, 0, item.Position, "another turn, since the saga waits for nothing", "an item that no message wakes, and that is "+string(item.State))
	}
	return nil
}

// owed reports whether a saga must have a turn even if no message comes.
func (s *state) owed(state queuing.State) bool {
	return s.suspended == nil && (state == queuing.Suspended || s.waitsFor() == "")
}

// gone judges a saga that had not ended, and had no item among the open ones.
func (v *verifier) gone(ctx context.Context, driver queuing.Driver, stream messagestore.StreamName, first messagestore.GlobalPosition) error {
	item, err := driver.QueueItem(ctx, queueOf(v.category), first)
	if errors.Is(err, messagestore.ErrNotFound) || err == nil && item.State != queuing.Finished {
		return nil // deleted by now; or on its way from one state to another
	}
	if err != nil {
		return err
	}
	// The end is written before the item is finished.
	l, err := v.listed(ctx, stream)
	if err != nil {
		return ifBad(err)
	}
	if l.ended == "" && l.later == "" {
		found := "an item that is finished"
		if n := len(item.Log); n > 0 {
			found += ": " + item.Log[n-1].What.String()
			if text := item.Log[n-1].Text; text != "" {
				found += ", " + text
			}
		}
		v.violation(stream, 0, first, "an open item, since the saga is "+string(l.state.state()), found)
	}
	return nil
}

// ifBad returns an error that concerns more than one stream, else nil: the stream was deleted
// meanwhile.
func ifBad(err error) error {
	if isBad(err) {
		return err
	}
	return nil
}
