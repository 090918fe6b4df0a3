package saga

import (
	"encoding/json"

	"github.com/dibs-go/dibs/messagestore"
)

// The types of the messages in the stream of a saga. A runner writes its messages at the version
// that it read; the last five types come from outside, at any version.
const (
	typeStarted         = "Started"
	typeBegan           = "Began"
	typeDone            = "Done"
	typeFailed          = "Failed"
	typeWaiting         = "Waiting"
	typeValued          = "Valued"
	typeCompensating    = "Compensating"
	typeUndone          = "Undone"
	typeUndoFailed      = "UndoFailed"
	typeSuspended       = "Suspended"
	typeCompleted       = "Completed"
	typeCompensated     = "Compensated"
	typeSetBack         = "SetBack"
	typeReceived        = "Received"
	typeReplied         = "Replied"
	typeSignalled       = "Signalled"
	typeCancelRequested = "CancelRequested"
	typeResumed         = "Resumed"
	typeResolved        = "Resolved"
)

// outsideTypes are the types that come from outside of a runner. Each gives the saga a turn.
var outsideTypes = []string{typeReplied, typeSignalled, typeCancelRequested, typeResumed, typeResolved}

// wakeTypes are the types that give a saga a turn: those from outside, and typeSuspended, by which an
// operator suspends it.
var wakeTypes = append([]string{typeSuspended}, outsideTypes...)

// startedEvent is the first message of a saga.
type startedEvent struct {
	Definition string          `json:"definition"`
	Version    int             `json:"version"` // of the definition
	Input      json.RawMessage `json:"input"`

	// DeadlineMillis is how long after this message the saga is undone, 0 for never.
	DeadlineMillis int64 `json:"deadlineMillis,omitempty"`
}

// The kinds of a step in [beganEvent].
const (
	kindCall = ""
	kindTx   = "tx"
	kindAsk  = "ask"
)

// beganEvent says that a step may run from now on.
type beganEvent struct {
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

// doneEvent has the output of a step.
type doneEvent struct {
	Step   string          `json:"step"`
	Output json.RawMessage `json:"output"`
}

// failedEvent says that an attempt at a step failed. Without a time for the next attempt the step has
// failed too.
type failedEvent struct {
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

// waitingEvent says that the saga sleeps, or waits for a signal.
type waitingEvent struct {
	Name   string `json:"name"`
	Until  int64  `json:"until"`        // microseconds since 1970, by the store's clock
	At     int64  `json:"at,omitempty"` // by which that was computed
	Signal bool   `json:"signal,omitempty"`
}

// receivedEvent says that the function has received a signal, or that none came in time.
type receivedEvent struct {
	Name  string `json:"name"`            // with a number behind the first
	Index int    `json:"index,omitempty"` // among the signals of the name, from 0
	Late  bool   `json:"late,omitempty"`
}

// signalledEvent is a value from outside.
type signalledEvent struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// valuedEvent has a value that was computed once.
type valuedEvent struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// compensatingEvent says that no further step begins, and that the steps that began are undone.
type compensatingEvent struct {
	Reason string `json:"reason"`
}

// undoneEvent says that a step has been undone.
type undoneEvent struct {
	Step string `json:"step"`

	// Nothing says that there was nothing to undo: the step's transaction was never committed.
	Nothing bool `json:"nothing,omitempty"`
}

// undoFailedEvent says that an attempt to undo a step failed.
type undoFailedEvent struct {
	Step    string `json:"step"`
	Attempt int    `json:"attempt"`
	Error   string `json:"error"`
	RetryAt int64  `json:"retryAt"`      // microseconds since 1970
	At      int64  `json:"at,omitempty"` // by which that was computed

	// Asked has the same meaning as in [failedEvent].
	Asked bool `json:"asked,omitempty"`
}

// suspendedEvent says that the saga needs a person.
type suspendedEvent struct {
	Why    string `json:"why"` // one of whyFailed and the others
	Step   string `json:"step,omitempty"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"` // the operator who suspended it, if one did
}

// Reasons for which a saga is suspended.
const (
	whyFailed   = "failed"         // a step, or the function behind a pivot
	whyUndo     = "undo failed"    // an undo was refused, or failed too often
	whyDiverged = "diverged"       // the function skips a recorded step, or has something else under its name
	whyMissing  = "step missing"   // a step that began is not in the definition
	whyVersion  = "no version"     // the definition has no function for the saga's version
	whyInvalid  = "invalid"        // the function makes a mistake, such as a step twice
	whyPanic    = "panic"          // the function panicked, or ended its goroutine
	whyTooLong  = "too long"       // too many messages
	whyUnended  = "step not ended" // the function returned before one of its steps had ended
	whyOperator = "operator"       // an operator suspended it
	whyStuck    = "stuck"          // the function did not return
	whyDead     = "dead"           // the turns failed too often: the queue reports it, and no message does
)

// completedEvent ends a saga when its function has returned nil.
type completedEvent struct {
	Output json.RawMessage `json:"output"`
}

// compensatedEvent ends a saga after all its steps are undone.
type compensatedEvent struct{}

// setBackEvent says that the store's clock shows an earlier time than before: it was ahead then, or was
// set back since. Each time that was computed from the clock after To, in microseconds since 1970,
// comes earlier by From minus To, so that the wait takes as long from now on as it would have taken
// from then on.
type setBackEvent struct {
	From int64 `json:"from"` // the latest time that it has shown
	To   int64 `json:"to"`   // the time that it shows
}

// repliedEvent is the reply to an ask.
type repliedEvent struct {
	Step    string          `json:"step"`
	Attempt int             `json:"attempt,omitempty"` // that it answers; 0 for the one that waits
	Output  json.RawMessage `json:"output,omitempty"`
	Error   string          `json:"error,omitempty"` // of a refusal
}

// cancelRequestedEvent asks to undo the saga.
type cancelRequestedEvent struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator
}

// resumedEvent lets a suspended saga go on, and starts waiting attempts at once.
type resumedEvent struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator

	// Skip names a [receivedEvent], with its number. The function skips the signal of that, and receives
	// the next one instead.
	Skip string `json:"skip,omitempty"`
}

// resolvedEvent ends a suspended saga past a pivot, when a person has done the rest.
type resolvedEvent struct {
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // an operator
}

func (startedEvent) MessageType() string         { return typeStarted }
func (beganEvent) MessageType() string           { return typeBegan }
func (doneEvent) MessageType() string            { return typeDone }
func (failedEvent) MessageType() string          { return typeFailed }
func (waitingEvent) MessageType() string         { return typeWaiting }
func (receivedEvent) MessageType() string        { return typeReceived }
func (signalledEvent) MessageType() string       { return typeSignalled }
func (valuedEvent) MessageType() string          { return typeValued }
func (compensatingEvent) MessageType() string    { return typeCompensating }
func (undoneEvent) MessageType() string          { return typeUndone }
func (undoFailedEvent) MessageType() string      { return typeUndoFailed }
func (suspendedEvent) MessageType() string       { return typeSuspended }
func (completedEvent) MessageType() string       { return typeCompleted }
func (compensatedEvent) MessageType() string     { return typeCompensated }
func (setBackEvent) MessageType() string         { return typeSetBack }
func (repliedEvent) MessageType() string         { return typeReplied }
func (cancelRequestedEvent) MessageType() string { return typeCancelRequested }
func (resumedEvent) MessageType() string         { return typeResumed }
func (resolvedEvent) MessageType() string        { return typeResolved }

// decodeEvent returns the body of a message of a saga, nil for a type that this release does not know.
func decodeEvent(m *messagestore.Message) (messagestore.Body, error) {
	switch m.Type {
	case typeStarted:
		return eventBody[startedEvent](m)
	case typeBegan:
		return eventBody[beganEvent](m)
	case typeDone:
		return eventBody[doneEvent](m)
	case typeFailed:
		return eventBody[failedEvent](m)
	case typeWaiting:
		return eventBody[waitingEvent](m)
	case typeReceived:
		return eventBody[receivedEvent](m)
	case typeSignalled:
		return eventBody[signalledEvent](m)
	case typeValued:
		return eventBody[valuedEvent](m)
	case typeCompensating:
		return eventBody[compensatingEvent](m)
	case typeUndone:
		return eventBody[undoneEvent](m)
	case typeUndoFailed:
		return eventBody[undoFailedEvent](m)
	case typeSuspended:
		return eventBody[suspendedEvent](m)
	case typeCompleted:
		return eventBody[completedEvent](m)
	case typeCompensated:
		return eventBody[compensatedEvent](m)
	case typeSetBack:
		return eventBody[setBackEvent](m)
	case typeReplied:
		return eventBody[repliedEvent](m)
	case typeCancelRequested:
		return eventBody[cancelRequestedEvent](m)
	case typeResumed:
		return eventBody[resumedEvent](m)
	case typeResolved:
		return eventBody[resolvedEvent](m)
	}
	return nil, nil //nolint:nilnil // none is known
}

func eventBody[T messagestore.Body](m *messagestore.Message) (messagestore.Body, error) {
	return messagestore.Decode[T](m)
}
