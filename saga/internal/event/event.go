// Package event has the messages in the stream of a saga.
package event

import (
	"encoding/json"

	"github.com/dibs-go/dibs/messagestore"
)

// The types of the messages in the stream of a saga. A runner writes its messages at the version
// that it read; the last five types come from outside, at any version.
const (
	TypeStarted         = "Started"
	TypeBegan           = "Began"
	TypeDone            = "Done"
	TypeFailed          = "Failed"
	TypeWaiting         = "Waiting"
	TypeValued          = "Valued"
	TypeCompensating    = "Compensating"
	TypeUndone          = "Undone"
	TypeUndoFailed      = "UndoFailed"
	TypeSuspended       = "Suspended"
	TypeCompleted       = "Completed"
	TypeCompensated     = "Compensated"
	TypeSetBack         = "SetBack"
	TypeReceived        = "Received"
	TypeReplied         = "Replied"
	TypeSignalled       = "Signalled"
	TypeCancelRequested = "CancelRequested"
	TypeResumed         = "Resumed"
	TypeResolved        = "Resolved"
)

// Outside are the types that come from outside of a runner. Each gives the saga a turn.
var Outside = []string{TypeReplied, TypeSignalled, TypeCancelRequested, TypeResumed, TypeResolved}

// Wakes are the types that give a saga a turn: those from outside, and TypeSuspended, by which an
// operator suspends it.
var Wakes = append([]string{TypeSuspended}, Outside...)

// Started is the first message of a saga.
type Started struct {
	Definition string          `json:"definition"`
	Version    int             `json:"version"` // of the definition
	Input      json.RawMessage `json:"input"`

	// DeadlineMillis is how long after this message the saga is undone, 0 for never.
	DeadlineMillis int64 `json:"deadlineMillis,omitempty"`
}

// The kinds of a step in [Began].
const (
	KindCall = ""
	KindTx   = "tx"
	KindAsk  = "ask"
)

// Began says that a step may run from now on.
type Began struct {
	Step    string          `json:"step"`
	Attempt int             `json:"attempt"`         // from 1
	Input   json.RawMessage `json:"input,omitempty"` // of the first attempt
	Kind    string          `json:"kind,omitempty"`
	Pivot   bool            `json:"pivot,omitempty"`

	// ReplyBy is the time before which the reply to an ask has to come, in microseconds since 1970
	// by the store's clock. At is the time from which it was computed.
	ReplyBy int64 `json:"replyBy,omitempty"`
	At      int64 `json:"at,omitempty"`
}

// Done has the output of a step.
type Done struct {
	Step   string          `json:"step"`
	Output json.RawMessage `json:"output"`
}

// Failed says that an attempt at a step failed. Without a time for the next attempt the step has
// failed too.
type Failed struct {
	Step    string `json:"step"`
	Attempt int    `json:"attempt"`
	Error   string `json:"error"`
	Refused bool   `json:"refused,omitempty"`
	RetryAt int64  `json:"retryAt,omitempty"` // microseconds since 1970, by the store's clock
	At      int64  `json:"at,omitempty"`      // by which that was computed

	// Asked says that the function asked for the next attempt, by handler.RetryAfter: this attempt
	// does not count.
	Asked bool `json:"asked,omitempty"`
}

// Waiting says that the saga sleeps, or waits for a signal.
type Waiting struct {
	Name   string `json:"name"`
	Until  int64  `json:"until"`        // microseconds since 1970, by the store's clock
	At     int64  `json:"at,omitempty"` // by which that was computed
	Signal bool   `json:"signal,omitempty"`
}

// Received says that the function has received a signal, or that none came in time.
type Received struct {
	Name  string `json:"name"`            // with a number behind the first
	Index int    `json:"index,omitempty"` // among the signals of the name, from 0
	Late  bool   `json:"late,omitempty"`
}

// Signalled is a value from outside.
type Signalled struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// Valued has a value that was computed once.
type Valued struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// Compensating says that no further step begins, and that the steps that began are undone.
type Compensating struct {
	Reason string `json:"reason"`
}

// Undone says that a step has been undone.
type Undone struct {
	Step string `json:"step"`

	// Nothing says that there was nothing to undo: the step's transaction was never committed.
	Nothing bool `json:"nothing,omitempty"`
}

// UndoFailed says that an attempt to undo a step failed.
type UndoFailed struct {
	Step    string `json:"step"`
	Attempt int    `json:"attempt"`
	Error   string `json:"error"`
	RetryAt int64  `json:"retryAt"`      // microseconds since 1970
	At      int64  `json:"at,omitempty"` // by which that was computed

	// Asked has the same meaning as in [Failed].
	Asked bool `json:"asked,omitempty"`
}

// Suspended says that the saga needs a person.
type Suspended struct {
	Why    string `json:"why"` // one of WhyFailed and the others
	Step   string `json:"step,omitempty"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"` // the operator who suspended it, if one did
}

// Reasons for which a saga is suspended.
const (
	WhyFailed   = "failed"         // a step, or the function behind a pivot
	WhyUndo     = "undo failed"    // an undo was refused, or failed too often
	WhyDiverged = "diverged"       // the function skips a recorded step, or has something else under its name
	WhyMissing  = "step missing"   // a step that began is not in the definition
	WhyVersion  = "no version"     // the definition has no function for the saga's version
	WhyInvalid  = "invalid"        // the function makes a mistake, such as a step twice
	WhyPanic    = "panic"          // the function panicked, or ended its goroutine
	WhyTooLong  = "too long"       // too many messages
	WhyUnended  = "step not ended" // the function returned before one of its steps had ended
	WhyOperator = "operator"       // an operator suspended it
	WhyStuck    = "stuck"          // the function did not return
	WhyDead     = "dead"           // the turns failed too often: the queue reports it, and no message does
)

// Completed ends a saga when its function has returned nil.
type Completed struct {
	Output json.RawMessage `json:"output"`
}

// Compensated ends a saga after all its steps are undone.
type Compensated struct{}

// SetBack says that the store's clock shows an earlier time than before: it was ahead then, or was
// set back since. Each time that was computed from the clock after To, in microseconds since 1970,
// comes earlier by From minus To, so that the wait takes as long from now on as it would have taken
// from then on.
type SetBack struct {
	From int64 `json:"from"` // the latest time that it has shown
	To   int64 `json:"to"`   // the time that it shows
}

// Replied is the reply to an ask.
type Replied struct {
	Step    string          `json:"step"`
	Attempt int             `json:"attempt,omitempty"` // that it answers; 0 for the one that waits
	Output  json.RawMessage `json:"output,omitempty"`
	Error   string          `json:"error,omitempty"` // of a refusal
}

// CancelRequested asks to undo the saga.
type CancelRequested struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator
}

// Resumed lets a suspended saga go on, and starts waiting attempts at once.
type Resumed struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator

	// Skip names a [Received], with its number. The function skips the signal of that, and receives
	// the next one instead.
	Skip string `json:"skip,omitempty"`
}

// Resolved ends a suspended saga past a pivot, when a person has done the rest.
type Resolved struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator
}

// MessageType implements [messagestore.Body].
func (Started) MessageType() string { return TypeStarted }

// MessageType implements [messagestore.Body].
func (Began) MessageType() string { return TypeBegan }

// MessageType implements [messagestore.Body].
func (Done) MessageType() string { return TypeDone }

// MessageType implements [messagestore.Body].
func (Failed) MessageType() string { return TypeFailed }

// MessageType implements [messagestore.Body].
func (Waiting) MessageType() string { return TypeWaiting }

// MessageType implements [messagestore.Body].
func (Received) MessageType() string { return TypeReceived }

// MessageType implements [messagestore.Body].
func (Signalled) MessageType() string { return TypeSignalled }

// MessageType implements [messagestore.Body].
func (Valued) MessageType() string { return TypeValued }

// MessageType implements [messagestore.Body].
func (Compensating) MessageType() string { return TypeCompensating }

// MessageType implements [messagestore.Body].
func (Undone) MessageType() string { return TypeUndone }

// MessageType implements [messagestore.Body].
func (UndoFailed) MessageType() string { return TypeUndoFailed }

// MessageType implements [messagestore.Body].
func (Suspended) MessageType() string { return TypeSuspended }

// MessageType implements [messagestore.Body].
func (Completed) MessageType() string { return TypeCompleted }

// MessageType implements [messagestore.Body].
func (Compensated) MessageType() string { return TypeCompensated }

// MessageType implements [messagestore.Body].
func (SetBack) MessageType() string { return TypeSetBack }

// MessageType implements [messagestore.Body].
func (Replied) MessageType() string { return TypeReplied }

// MessageType implements [messagestore.Body].
func (CancelRequested) MessageType() string { return TypeCancelRequested }

// MessageType implements [messagestore.Body].
func (Resumed) MessageType() string { return TypeResumed }

// MessageType implements [messagestore.Body].
func (Resolved) MessageType() string { return TypeResolved }

// Decode returns the body of a message of a saga, nil for a type that this release does not know.
func Decode(m *messagestore.Message) (messagestore.Body, error) {
	switch m.Type {
	case TypeStarted:
		return body[Started](m)
	case TypeBegan:
		return body[Began](m)
	case TypeDone:
		return body[Done](m)
	case TypeFailed:
		return body[Failed](m)
	case TypeWaiting:
		return body[Waiting](m)
	case TypeReceived:
		return body[Received](m)
	case TypeSignalled:
		return body[Signalled](m)
	case TypeValued:
		return body[Valued](m)
	case TypeCompensating:
		return body[Compensating](m)
	case TypeUndone:
		return body[Undone](m)
	case TypeUndoFailed:
		return body[UndoFailed](m)
	case TypeSuspended:
		return body[Suspended](m)
	case TypeCompleted:
		return body[Completed](m)
	case TypeCompensated:
		return body[Compensated](m)
	case TypeSetBack:
		return body[SetBack](m)
	case TypeReplied:
		return body[Replied](m)
	case TypeCancelRequested:
		return body[CancelRequested](m)
	case TypeResumed:
		return body[Resumed](m)
	case TypeResolved:
		return body[Resolved](m)
	}
	return nil, nil //nolint:nilnil // none is known
}

func body[T messagestore.Body](m *messagestore.Message) (messagestore.Body, error) {
	return messagestore.Decode[T](m)
}
