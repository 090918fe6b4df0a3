package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// The limits of a saga's length.
const (
	// maxEvents bounds the messages that runners write to a saga, not counting suspensions: a saga
	// that would have more is suspended. Its compensation may take as many again.
	maxEvents = 10_000

	// maxVersion is the version from which on a saga takes no signal and no reply from outside. So
	// there is room for maxEvents of these, and they take no room from the runners.
	maxVersion = 2*maxEvents - 1
)

// A State says how far a saga has got.
type State string

// The states of a saga. The last three are final.
const (
	StateRunning      State = "running" // or it waits
	StateCompensating State = "compensating"
	StateSuspended    State = "suspended" // it needs a person
	StateCompleted    State = "completed"
	StateCompensated  State = "compensated"
	StateResolved     State = "resolved" // by a person, after a pivot
)

// state is the fold of a saga's stream.
type state struct {
	started   *startedEvent
	startedAt time.Time
	changedAt time.Time // of the last message that was read or written
	deadline  time.Time // zero for none
	latest    time.Time // that the store's clock has shown

	steps  []*step // in the order in which they began
	byName map[string]*step
	values map[string]json.RawMessage
	since  map[string]time.Time // when the time of a sleep or signal was computed; under "" when the deadline was
	sleeps map[string]time.Time // when it is over
	asleep string               // the sleep after which nothing is recorded yet

	signals   map[string][]json.RawMessage // by name, in the order in which they came
	received  map[string]receivedEvent     // by name, with a number behind the first
	taken     map[string]int               // how many signals of a name were received
	receiveBy map[string]time.Time
	hears     string // the name of a signal after whose wait nothing is recorded yet

	early   map[string]*repliedEvent // the first of each step, before that began
	replies map[string]*repliedEvent // of each step the first that is not a refusal, or else the first

	own int // the messages of runners, suspensions left out

	cancel       *cancelRequestedEvent
	compensating *compensatingEvent
	suspended    *suspendedEvent
	ended        State // "" for none
	output       json.RawMessage
	later        string // a type that this release does not know
	lacks        string // a process that may go on with it, in words

	// From the item in the queue, where that was read.
	item   messagestore.GlobalPosition
	due    time.Time // when the next turn is, zero for none
	buried bool      // it is dead
}

// A step has begun.
type step struct {
	beganEvent

	attempts int          // begun
	failures int          // that count
	since    time.Time    // when replyBy, retryAt or undoAt was computed
	replyBy  time.Time    // of an [Ask]: of the last attempt
	retryAt  time.Time    // the time of the next attempt, zero for none
	err      string       // of the last attempt that failed
	failed   *failedEvent // for good
	again    bool         // a person wants it to begin again
	unsent   bool         // of an [Ask]: the last attempt has sent no command
	done     bool
	output   json.RawMessage

	undone       bool
	undoAttempts int       // that failed
	undoFailures int       // of these, that count
	undoAt       time.Time // the time of the next attempt, zero for none
}

// The kinds of thing that a name of a run may stand for, in words.
const (
	kindValue  = "a value"
	kindSleep  = "a sleep"
	kindSignal = "a signal"
)

var kinds = map[string]string{kindCall: "a Step", kindTx: "a TxStep", kindAsk: "an Ask"}

// kindOf returns the kind of thing that is recorded under a name, "" if nothing is.
func (s *state) kindOf(name string) string {
	if one := s.byName[name]; one != nil {
		return kinds[one.Kind]
	}
	if _, is := s.values[name]; is {
		return kindValue
	}
	if _, is := s.sleeps[name]; is {
		return kindSleep
	}
	_, waits := s.receiveBy[name]
	if _, is := s.received[name]; is || waits {
		return kindSignal
	}
	return ""
}

// settled reports whether the step has ended, well or not.
func (s *step) settled() bool { return s.done || s.failed != nil }

func newState() *state {
	return &state{
		byName: map[string]*step{}, values: map[string]json.RawMessage{}, sleeps: map[string]time.Time{}, early: map[string]*repliedEvent{},
		replies: map[string]*repliedEvent{}, signals: map[string][]json.RawMessage{}, received: map[string]receivedEvent{}, taken: map[string]int{},
		receiveBy: map[string]time.Time{}, since: map[string]time.Time{},
	}
}

// take folds a stored message.
func (s *state) take(m *messagestore.Message) error {
	body, err := decodeEvent(m)
	if err != nil {
		return err
	}
	return s.takeBody(m, body)
}

// takeBody folds a stored message with its body, which is nil for a type that this release does not
// know.
func (s *state) takeBody(m *messagestore.Message, body messagestore.Body) error {
	if s.shows(m.Time); m.Position == 0 {
		s.startedAt = m.Time
	}
	if m.IsTombstone() {
		s.ended = StateCompensated // an operator deleted the saga
		return nil
	}
	if body == nil {
		s.later = m.Type
		return nil
	}
	if (m.Position == 0) != (m.Type == typeStarted) {
		return fmt.Errorf("%s: a saga's stream begins with %s, and has no other", m, typeStarted)
	}
	if started, is := body.(startedEvent); is {
		s.starts(started, m.Time)
		return nil
	}
	s.fold(body)
	return nil
}

// starts folds the first message.
func (s *state) starts(started startedEvent, at time.Time) {
	s.shows(at)
	s.startedAt = at
	if s.fold(started); started.DeadlineMillis > 0 {
		s.deadline, s.since[""] = at.Add(deadlineOf(started)), at
	}
}

// deadlineOf returns how long after its start a saga is undone. It is at most the bound that
// [Config] permits, even if another writer wrote more.
func deadlineOf(started startedEvent) time.Duration {
	return time.Duration(min(started.DeadlineMillis, maxWait.Milliseconds())) * time.Millisecond
}

// shows takes the time of a message into account.
func (s *state) shows(at time.Time) {
	s.changedAt = at
	s.latest = later(s.latest, at)
}

// computed returns the time from which another was computed. For 0 it returns the time of the
// message.
func (s *state) computed(at int64) time.Time {
	if at == 0 {
		return s.changedAt
	}
	s.latest = later(s.latest, timeOf(at))
	return timeOf(at)
}

// aheadBy returns by how much the store's clock was ahead.
func aheadBy(b setBackEvent) time.Duration { return timeOf(b.From).Sub(timeOf(b.To)) }

// setBack moves each time that was computed while the clock was ahead to an earlier time.
func (s *state) setBack(b setBackEvent) {
	to, by := timeOf(b.To), aheadBy(b)
	earlier := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return t.Add(-by)
	}
	for _, one := range s.steps {
		if one.since.After(to) {
			one.since, one.replyBy, one.retryAt, one.undoAt = to, earlier(one.replyBy), earlier(one.retryAt), earlier(one.undoAt)
		}
	}
	for name, since := range s.since {
		if !since.After(to) {
			continue
		}
		s.since[name] = to
		if until, is := s.sleeps[name]; is {
			s.sleeps[name] = earlier(until)
		}
		if until, is := s.receiveBy[name]; is {
			s.receiveBy[name] = earlier(until)
		}
		if name == "" {
			s.deadline = earlier(s.deadline)
		}
	}
	s.latest = to
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// fold adds a message to the state.
func (s *state) fold(body messagestore.Body) {
	if t := body.MessageType(); t != typeSuspended && !slices.Contains(outsideTypes, t) {
		s.own++
	}
	switch b := body.(type) {
	case startedEvent:
		s.started = &b
	case beganEvent:
		s.asleep, s.hears = "", ""
		s.began(b)
	case doneEvent:
		if one := s.byName[b.Step]; one != nil {
			one.done, one.output, one.err = true, b.Output, ""
		}
	case failedEvent:
		if one := s.byName[b.Step]; one != nil && !one.settled() {
			if !b.Asked {
				one.failures++
			}
			one.err, one.since = b.Error, s.computed(b.At)
			one.unsent = one.Kind == kindAsk // its command could not be made
			if one.retryAt = timeOf(b.RetryAt); one.retryAt.IsZero() {
				one.failed = &b
			}
		}
	case waitingEvent:
		if s.since[b.Name] = s.computed(b.At); b.Signal {
			s.receiveBy[b.Name], s.hears, s.asleep = timeOf(b.Until), b.Name, ""
		} else {
			s.sleeps[b.Name], s.asleep, s.hears = timeOf(b.Until), b.Name, ""
		}
	case receivedEvent:
		if s.received[b.Name], s.asleep, s.hears = b, "", ""; !b.Late {
			s.taken[baseOf(b.Name)]++
		}
	case signalledEvent:
		s.signals[b.Name] = append(s.signals[b.Name], b.Value)
	case valuedEvent:
		s.values[b.Name], s.asleep, s.hears = b.Value, "", ""
	case repliedEvent:
		s.replied(b)
	case cancelRequestedEvent:
		if s.cancel == nil {
			s.cancel = &b
		}
		if s.compensating == nil && !s.pivoted() {
			s.suspended = nil // it is undone instead
		}
	case compensatingEvent:
		s.compensating, s.suspended, s.asleep, s.hears = &b, nil, "", ""
	case undoneEvent:
		if one := s.byName[b.Step]; one != nil {
			one.undone, one.undoAt, one.err = true, time.Time{}, ""
		}
	case undoFailedEvent:
		if one := s.byName[b.Step]; one != nil {
			one.undoAttempts, one.undoAt, one.err, one.since = b.Attempt, timeOf(b.RetryAt), b.Error, s.computed(b.At)
			if !b.Asked {
				one.undoFailures++
			}
		}
	case suspendedEvent:
		s.suspended = &b
	case resumedEvent:
		delete(s.received, b.Skip)
		s.resumed()
	case resolvedEvent:
		if s.resolvable() {
			s.ended = StateResolved
		}
	case setBackEvent:
		s.setBack(b)
	case completedEvent:
		s.ended, s.output = StateCompleted, b.Output
	case compensatedEvent:
		s.ended = StateCompensated
	}
}

func (s *state) began(b beganEvent) {
	one := s.byName[b.Step]
	if one == nil {
		one = &step{beganEvent: b}
		s.steps = append(s.steps, one)
		s.byName[b.Step] = one
	}
	one.attempts, one.retryAt, one.failed, one.again, one.unsent = b.Attempt, time.Time{}, nil, false, false
	one.replyBy, one.since = timeOf(b.ReplyBy), s.computed(b.At)
	if reply := s.early[b.Step]; reply != nil && b.Attempt == 1 {
		one.answer(reply) // it came early
	}
}

// replied takes a reply into account: for the attempt that waits, or early, before the step began.
// A reply after the step's timeout, or to an earlier attempt, does not change how the saga goes on.
// The undo gets the output of the first reply that is not a refusal.
func (s *state) replied(b repliedEvent) {
	if before := s.replies[b.Step]; before == nil || before.Error != "" {
		s.replies[b.Step] = &b
	}
	one := s.byName[b.Step]
	switch {
	case one == nil && s.early[b.Step] == nil:
		s.early[b.Step] = &b
	case one.takes(&b):
		one.answer(&b)
	}
}

// takes reports whether a reply is the outcome of the attempt that waits. The step is nil before it
// has begun.
func (s *step) takes(r *repliedEvent) bool {
	return s != nil && s.Kind == kindAsk && !s.settled() && !s.again && (r.Attempt == 0 || r.Attempt == s.attempts)
}

func (s *step) answer(r *repliedEvent) {
	switch {
	case s.Kind != kindAsk:
	case r.Error != "":
		s.failed, s.err = &failedEvent{Step: s.Step, Attempt: s.attempts, Error: r.Error, Refused: true}, r.Error
	default:
		s.done, s.output, s.err = true, r.Output, ""
	}
}

const noReply = "no reply came in time"

// timeOf returns a time of microseconds since 1970, the zero time for 0.
func timeOf(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

// resumed gives all attempts back to the step that had the saga suspended. No other outcome
// changes.
func (s *state) resumed() {
	for _, one := range s.steps {
		one.failures, one.retryAt, one.undoAttempts, one.undoFailures, one.undoAt = 0, time.Time{}, 0, 0, time.Time{}
		if s.suspended != nil && s.suspended.Why == whyFailed && s.suspended.Step == one.Step && !one.done {
			one.failed, one.again = nil, true
		}
	}
	s.suspended = nil
}

// resolvable reports whether a person may end the saga in its present state.
func (s *state) resolvable() bool { return s.ended == "" && s.suspended != nil && s.pivoted() }

// pivoted reports whether a pivot is done, so that nothing can be undone.
func (s *state) pivoted() bool {
	return slices.ContainsFunc(s.steps, func(one *step) bool { return one.Pivot && one.done })
}

// back returns the reason from outside to undo the saga, "" for none.
func (s *state) back() string {
	switch {
	case s.pivoted():
		return ""
	case s.cancel != nil && s.cancel.Reason != "":
		return shorten("cancelled: " + s.cancel.Reason)
	case s.cancel != nil:
		return "cancelled"
	}
	return ""
}

func (s *state) state() State {
	switch {
	case s.ended != "":
		return s.ended
	case s.suspended != nil:
		return StateSuspended
	case s.compensating != nil:
		return StateCompensating
	}
	return StateRunning
}

// out returns the output of a step for its undo, nil if it is not known.
func (s *state) out(one *step) json.RawMessage {
	if one.done {
		return one.output
	}
	if reply := s.replies[one.Step]; reply != nil && one.Kind == kindAsk && reply.Error == "" {
		return reply.Output
	}
	return nil
}
