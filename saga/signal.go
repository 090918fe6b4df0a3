package saga

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// Signal returns the write of a signal to a saga, with a value, for you to write together with your
// own messages: an approval, a payment. [Receive] returns the value, even if the signal comes
// first. Signals of one name are received in their order, each once. If you may send a signal
// twice, write it in the transaction of an inbox. A signal that the saga does not receive changes
// nothing.
//
// The write is a version conflict if the saga does not exist, or if its stream has 20,000 messages:
// [IsFull] tells which. So signals never take the room that the saga itself needs. If the id, the
// name or the value is invalid, the store refuses the write with an error that matches
// [messagestore.ErrInvalid].
func (s *Saga[In, Out]) Signal(id, name string, value any) messagestore.StreamWrite {
	raw, err := encode("value of the signal", value)
	return s.core.from(id, signalledEvent{Name: name, Value: raw}, errors.Join(define(name, "", false).invalid, err))
}

// Receive returns the value of a signal: the first call returns the first signal with this name,
// and each later call the next. If none comes within the timeout of 1 ms to 10 years, the error is
// a [*StepError] with this name. No goroutine waits: until then the error matches [ErrWaiting].
// Like a step's, the name must be unique within the run.
//
// If the value does not decode into T, the signal counts as received and the error is a
// [*SignalError]. To pass over it, call Receive again for the next one. If the function returns the
// error, the saga is suspended. A person can then change the function to take the value and call
// [Saga.Resume], or go on to the next signal by [Operator.SkipSignal]. To undo the saga instead,
// wrap the error in handler.Refuse.
func Receive[T any](r *Run, name string, timeout time.Duration) (T, error) {
	var value T
	if r == nil {
		return value, r.Join()
	}
	if err := r.enter(); err != nil {
		return value, err
	}
	defer r.exit()
	if r.stop != nil {
		return value, r.stop
	}
	numbered, raw, err := r.receive(name, timeout)
	if err != nil {
		return value, r.ends(err)
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return *new(T), &SignalError{Name: name, Number: r.heard[name], numbered: numbered, cause: err}
	}
	return value, nil
}

// A SignalError is the error of [Receive] if the value of a signal does not decode into the
// expected type.
type SignalError struct {
	Name   string
	Number int // which call of Receive with this name took it, from 1

	numbered string
	cause    error
}

// Error names the signal.
func (e *SignalError) Error() string {
	return fmt.Sprintf("the value of the signal %s does not fit: %v", e.numbered, e.cause)
}

// Unwrap returns why the value does not decode.
func (e *SignalError) Unwrap() error { return e.cause }

func (r *Run) receive(name string, timeout time.Duration) (numbered string, value json.RawMessage, err error) {
	l := r.life
	numbered = name
	if r.heard[name]++; r.heard[name] > 1 {
		numbered += "+" + strconv.Itoa(r.heard[name])
	}
	invalidName := define(name, "", false).invalid
	err = r.name(numbered, kindSignal)
	switch {
	case invalidName != nil:
		return "", nil, suspend(whyInvalid, name, invalidName)
	case err != nil:
		return "", nil, suspend(whyInvalid, name, err)
	case timeout < time.Millisecond || timeout > maxWait:
		return "", nil, suspend(whyInvalid, name, invalid("timeout", timeout.String(), fmt.Sprintf("must be between 1ms and %v", maxWait)))
	}
	if received, known := l.received[numbered]; known {
		value, err = l.signalOf(name, received)
		return numbered, value, err
	}
	if err := r.mayBegin(numbered); err != nil {
		return "", nil, err
	}
	if next := l.taken[name]; next < len(l.signals[name]) {
		received := receivedEvent{Name: numbered, Index: next}
		l.note(received)
		value, err = l.signalOf(name, received)
		return numbered, value, err
	}
	by, waits := l.receiveBy[numbered]
	if !waits {
		now, reached, err := l.soon(r.ctx)
		if err != nil {
			return "", nil, err
		}
		by = now.Add(timeout)
		l.note(waitingEvent{Name: numbered, Until: by.UnixMicro(), At: reached.UnixMicro(), Signal: true})
		l.waitUntil(by)
		return "", nil, ErrWaiting
	}
	late, err := l.over(r.ctx, by)
	if err != nil {
		return "", nil, err
	}
	if !late {
		return "", nil, ErrWaiting
	}
	received := receivedEvent{Name: numbered, Late: true}
	if err := l.write(r.ctx, received); err != nil { // a signal that came meanwhile is a conflict
		return "", nil, err
	}
	value, err = l.signalOf(name, received)
	return numbered, value, err
}

// signalOf returns the value of a signal that was received.
func (s *state) signalOf(name string, received receivedEvent) (json.RawMessage, error) {
	if received.Late {
		return nil, &StepError{Step: name, Reason: "no signal came in time"}
	}
	signals := s.signals[name]
	if received.Index < 0 || received.Index >= len(signals) { // any writer of the store may have written it
		return nil, suspend(whyInvalid, name, fmt.Errorf("its record has signal %d of %d", received.Index, len(signals)))
	}
	return signals[received.Index], nil
}
