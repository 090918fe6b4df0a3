package saga

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// An Entry is a message in the stream of a saga, with its meaning.
type Entry struct {
	Message *messagestore.Message
	Step    string // which it is about, "" for none
	Attempt int    // at the step, or at its undo; 0 for none

	// Text describes the message in words, for a person: "flight failed, attempt 1: the airline is
	// down; the next at …". It also says if the message came too late to change anything.
	Text string

	// Value is the input, the output or the value that the message carries, nil for none.
	Value json.RawMessage

	// Malformed says that no saga has such a message at this place: no runner reads past it.
	Malformed bool
}

// History returns the messages of a saga in their order, each with its meaning. It also returns
// messages of a later release, tombstones and malformed messages, and starts where the stream
// starts if its beginning was trimmed. The error matches [messagestore.ErrNotFound] if the stream
// has no message. The sequence ends after an error.
func (o *Operator) History(ctx context.Context, id string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		c, s, none := o.core, newState(), true
		err := checkID(id)
		if err == nil {
			for m, failure := range c.store.ReadStream(ctx, c.category.Stream(id), 0) {
				if err = failure; err != nil {
					break
				}
				if none = false; !yield(s.tell(m), nil) {
					return
				}
			}
		}
		if err == nil && none {
			err = errNoSaga
		}
		if err != nil {
			yield(Entry{}, c.fail("show", id, err))
		}
	}
}

// tell adds a stored message to the state, and returns its meaning after the messages before it.
func (s *state) tell(m *messagestore.Message) Entry {
	body, err := decodeEvent(m)
	var e Entry
	switch {
	case m.IsTombstone():
		e.Text = "the saga was deleted"
	case err == nil && body == nil:
		e.Text = "a message of a later release"
	case err == nil:
		e = s.words(m.Time, body)
	}
	if err == nil {
		err = s.takeBody(m, body)
	}
	if err != nil {
		e = Entry{Text: "no message of a saga: " + shorten(err.Error()), Malformed: true}
	}
	e.Message = m
	return e
}

// words describes a message's body, given the messages that the state has.
func (s *state) words(at time.Time, body messagestore.Body) (e Entry) {
	switch b := body.(type) {
	case startedEvent:
		e.Text, e.Value = fmt.Sprintf("version %d of %s", b.Version, b.Definition), b.Input
		if b.DeadlineMillis > 0 {
			e.Text += ", undone from " + stamp(at.Add(deadlineOf(b))) + " on"
		}
	case beganEvent:
		e.Step, e.Attempt, e.Value = b.Step, b.Attempt, b.Input
		e.Text = fmt.Sprintf("%s begins%s, attempt %d", b.Step, map[string]string{kindTx: " in a transaction"}[b.Kind], b.Attempt)
		if b.Kind == kindAsk {
			e.Text = fmt.Sprintf("%s is asked for, attempt %d", b.Step, b.Attempt)
			if b.ReplyBy != 0 {
				e.Text += ", to be replied to before " + stamp(timeOf(b.ReplyBy))
			}
		}
		if b.Pivot {
			e.Text += "; it is a pivot"
		}
	case doneEvent:
		e.Step, e.Attempt, e.Value = b.Step, s.attempt(b.Step), b.Output
		e.Text = fmt.Sprintf("%s is done, attempt %d", b.Step, e.Attempt)
	case failedEvent:
		e.Step, e.Attempt = b.Step, b.Attempt
		e.Text = fmt.Sprintf("%s failed, attempt %d: %s; %s", b.Step, b.Attempt, b.Error, afterFailure(b))
	case waitingEvent:
		e.Text = fmt.Sprintf("the sleep %s lasts until %s", b.Name, stamp(timeOf(b.Until)))
		if b.Signal {
			e.Text = fmt.Sprintf("it waits for the signal %s until %s", b.Name, stamp(timeOf(b.Until)))
		}
	case receivedEvent:
		e.Text = "it takes the signal " + b.Name
		if all := s.signals[baseOf(b.Name)]; b.Late {
			e.Text = fmt.Sprintf("no signal %s came in time", b.Name)
		} else if b.Index >= 0 && b.Index < len(all) {
			e.Value = all[b.Index]
		}
	case valuedEvent:
		e.Text, e.Value = "the value "+b.Name, b.Value
	case compensatingEvent:
		e.Text = "it is undone: " + b.Reason
	case undoneEvent:
		e.Step, e.Text = b.Step, b.Step+" is undone"
		if b.Nothing {
			e.Text = b.Step + " has nothing to undo"
		}
	case undoFailedEvent:
		e.Step, e.Attempt = b.Step, b.Attempt
		e.Text = fmt.Sprintf("%s could not be undone, attempt %d: %s; the next at %s", b.Step, b.Attempt, b.Error, stamp(timeOf(b.RetryAt)))
	case suspendedEvent:
		e.Step, e.Text = b.Step, signed(b.Why+": "+b.Reason, b.By)
	case setBackEvent:
		e.Text = fmt.Sprintf("the store's clock was ahead by %v: what it computed comes so much earlier", aheadBy(b))
	case completedEvent:
		e.Text, e.Value = "its function returned", b.Output
	case compensatedEvent:
		e.Text = "each step that began is undone"
	default:
		return s.wordsOutside(body)
	}
	return e
}

// wordsOutside is words for a message from outside.
func (s *state) wordsOutside(body messagestore.Body) (e Entry) {
	vain := s.ended != ""
	switch b := body.(type) {
	case repliedEvent:
		e.Step, e.Attempt, e.Value, e.Text = b.Step, b.Attempt, b.Output, "a reply to "+b.Step
		if b.Error != "" {
			e.Text = fmt.Sprintf("a refusal of %s: %s", b.Step, b.Error)
		}
		switch one := s.byName[b.Step]; {
		case one == nil && s.early[b.Step] == nil && !vain:
			e.Text += "; it came before the step began"
		case !one.takes(&b):
			vain = true
		}
	case signalledEvent:
		e.Text, e.Value = "the signal "+b.Name, b.Value
	case cancelRequestedEvent:
		e.Text = signed(b.Reason, b.By)
		vain = vain || s.pivoted()
	case resumedEvent:
		e.Text = signed(b.Reason, b.By)
	case resolvedEvent:
		e.Text = signed(b.Reason, b.By)
		vain = !s.resolvable()
	}
	if vain {
		e.Text = strings.TrimPrefix(e.Text+"; it changes nothing", "; ")
	}
	return e
}

// attempt returns the number of the last attempt at a step that began, 0 for none.
func (s *state) attempt(step string) int {
	if one := s.byName[step]; one != nil {
		return one.attempts
	}
	return 0
}

// afterFailure says how a step goes on after an attempt that failed.
func afterFailure(f failedEvent) string {
	switch {
	case f.Refused:
		return "it is refused"
	case f.RetryAt == 0:
		return "there is no other attempt"
	case f.Asked:
		return "it asks for the next at " + stamp(timeOf(f.RetryAt))
	}
	return "the next at " + stamp(timeOf(f.RetryAt))
}

// signed adds the name of an operator to a reason.
func signed(reason, by string) string {
	if by != "" {
		by = "by the operator " + by
	}
	return strings.Join(slices.DeleteFunc([]string{reason, by}, func(s string) bool { return s == "" }), ", ")
}

// stamp returns a time in words, always of the same length.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }
