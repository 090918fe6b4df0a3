package saga

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga/internal/event"
)

// maxEvents bounds the messages of a saga: a saga that would have more is parked. Its compensation
// may take as many again.
const maxEvents = 10_000

// A State is how far a saga is.
type State string

// The states of a saga. The last two are ends.
const (
	StateRunning      State = "running" // or it waits
	StateCompensating State = "compensating"
	StateParked       State = "parked" // it needs a person
	StateCompleted    State = "completed"
	StateCompensated  State = "compensated"
)

// state is the fold of a saga's stream.
type state struct {
	started  *event.Started
	deadline time.Time // zero for none

	steps   []*step // in the order in which they began
	byName  map[string]*step
	values  map[string]json.RawMessage
	sleeps  map[string]bool           // whether it is over
	replies map[string]*event.Replied // the first of each step

	acted        bool // a runner has written
	late         bool // the deadline is over
	cancel       *event.CancelRequested
	compensating *event.Compensating
	parked       *event.Parked
	ended        State // "" for none
	output       json.RawMessage
	later        string // a type that this release does not know
}

// A step has begun.
type step struct {
	event.Began

	attempts int           // begun
	failures int           // that count
	retrying bool          // until its alarm rings
	failed   *event.Failed // for good
	again    bool          // a person wants it to begin again
	unsent   bool          // of an [Ask]: the last attempt has sent no command
	done     bool
	output   json.RawMessage

	undone       bool
	undoAttempts int  // that failed
	undoFailures int  // of these, that count
	undoing      bool // until its alarm rings
}

// settled reports whether the step has ended, well or not.
func (s *step) settled() bool { return s.done || s.failed != nil }

func newState() *state {
	return &state{byName: map[string]*step{}, values: map[string]json.RawMessage{}, sleeps: map[string]bool{}, replies: map[string]*event.Replied{}}
}

// take folds a stored message.
func (s *state) take(m *messagestore.Message) error {
	if m.IsTombstone() {
		s.ended = StateCompensated // an operator deleted the saga
		return nil
	}
	body, err := event.Decode(m)
	if err != nil {
		return err
	}
	if body == nil {
		s.later = m.Type
		return nil
	}
	if (m.Position == 0) != (m.Type == event.TypeStarted) {
		return fmt.Errorf("%s: a saga's stream begins with %s, and has no other", m, event.TypeStarted)
	}
	if started, is := body.(event.Started); is && started.DeadlineMillis > 0 {
		s.deadline = m.Time.Add(time.Duration(started.DeadlineMillis) * time.Millisecond)
	}
	s.fold(body)
	return nil
}

// fold adds a message to the state.
func (s *state) fold(body messagestore.Body) {
	parked, isParked := body.(event.Parked)
	byOperator := isParked && parked.Why == event.WhyOperator
	if t := body.MessageType(); t != event.TypeStarted && !byOperator && !slices.Contains(event.Outside, t) {
		s.acted = true
	}
	switch b := body.(type) {
	case event.Started:
		s.started = &b
	case event.Began:
		s.began(b)
	case event.Done:
		if one := s.byName[b.Step]; one != nil {
			one.done, one.output = true, b.Output
		}
	case event.Failed:
		if one := s.byName[b.Step]; one != nil {
			if !b.Asked {
				one.failures++
			}
			one.unsent = one.Kind == event.KindAsk // its command could not be made
			if one.retrying = b.RetryAt > 0; !one.retrying {
				one.failed = &b
			}
		}
	case event.Waiting:
		s.sleeps[b.Name] = false
	case event.Valued:
		s.values[b.Name] = b.Value
	case event.Replied:
		s.replied(b)
	case event.Rang:
		s.rang(b)
	case event.CancelRequested:
		if s.cancel == nil {
			s.cancel = &b
		}
		if s.compensating == nil && !s.pivoted() {
			s.parked = nil // it is undone instead
		}
	case event.Compensating:
		s.compensating = &b
	case event.Undone:
		if one := s.byName[b.Step]; one != nil {
			one.undone = true
		}
	case event.UndoFailed:
		if one := s.byName[b.Step]; one != nil {
			one.undoAttempts, one.undoing = b.Attempt, true
			if !b.Asked {
				one.undoFailures++
			}
		}
	case event.Parked:
		s.parked = &b
	case event.Resumed:
		s.resumed()
	case event.Completed:
		s.ended, s.output = StateCompleted, b.Output
	case event.Compensated:
		s.ended = StateCompensated
	}
}

func (s *state) began(b event.Began) {
	one := s.byName[b.Step]
	if one == nil {
		one = &step{Began: b}
		s.steps = append(s.steps, one)
		s.byName[b.Step] = one
	}
	one.attempts, one.retrying, one.failed, one.again, one.unsent = b.Attempt, false, nil, false, false
	if reply := s.replies[b.Step]; reply != nil {
		one.answer(reply) // it came early
	}
}

// replied keeps the first reply of a step. A reply behind the step's timeout changes nothing that
// goes on, and is an undo's output.
func (s *state) replied(b event.Replied) {
	if s.replies[b.Step] != nil {
		return
	}
	s.replies[b.Step] = &b
	if one := s.byName[b.Step]; one != nil && !one.settled() {
		one.answer(&b)
	}
}

func (s *step) answer(r *event.Replied) {
	switch {
	case s.Kind != event.KindAsk:
	case r.Error != "":
		s.failed = &event.Failed{Step: s.Step, Attempt: s.attempts, Error: r.Error, Refused: true}
	default:
		s.done, s.output = true, r.Output
	}
}

func (s *state) rang(b event.Rang) {
	one := s.byName[b.Step]
	switch b.For {
	case event.RangDeadline:
		s.late = true
	case event.RangSleep:
		s.sleeps[b.Step] = true
	case event.RangRetry:
		if one != nil && one.attempts == b.Attempt {
			one.retrying = false
		}
	case event.RangUndo:
		if one != nil && one.undoAttempts == b.Attempt {
			one.undoing = false
		}
	case event.RangTimeout:
		if one != nil && one.Kind == event.KindAsk && one.attempts == b.Attempt && !one.settled() {
			one.failed = &event.Failed{Step: one.Step, Attempt: one.attempts, Error: noReply}
		}
	}
}

const noReply = "no reply came in time"

func (s *state) resumed() {
	for _, one := range s.steps {
		one.failures, one.retrying, one.undoAttempts, one.undoFailures, one.undoing = 0, false, 0, 0, false
		if s.parked != nil && s.parked.Step == one.Step {
			one.failed, one.again = nil, true
		}
	}
	s.parked = nil
}

// pivoted reports whether there is no way back.
func (s *state) pivoted() bool {
	return slices.ContainsFunc(s.steps, func(one *step) bool { return one.Pivot && one.done })
}

// back returns the reason from outside to undo the saga, "" for none.
func (s *state) back() string {
	switch {
	case s.pivoted():
		return ""
	case s.cancel != nil && s.cancel.Reason != "":
		return "cancelled: " + s.cancel.Reason
	case s.cancel != nil:
		return "cancelled"
	case s.late:
		return "the deadline is over"
	}
	return ""
}

func (s *state) state() State {
	switch {
	case s.ended != "":
		return s.ended
	case s.parked != nil:
		return StateParked
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
	if reply := s.replies[one.Step]; reply != nil && one.Kind == event.KindAsk && reply.Error == "" {
		return reply.Output
	}
	return nil
}
