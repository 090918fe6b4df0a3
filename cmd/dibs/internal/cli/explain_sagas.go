package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// sagasPart tells the saga of the stream, and each saga that a message of the story has started: its messages, and how far the saga
// is.
type sagasPart struct{}

// isSagas reports whether a category has the name of one of sagas.
func isSagas(category messagestore.Category) bool {
	return category.Validate() == nil && slices.Contains(category.Types(), "saga")
}

// startsSaga reports whether a message is the first of a saga.
func startsSaga(m *messagestore.Message) bool {
	return isSagas(m.Stream.Category()) && m.Position == 0 && m.Type == "Started"
}

// isTrimmedSaga reports whether m is the first message that is left of a saga whose beginning was trimmed.
func isTrimmedSaga(m *messagestore.Message) bool {
	return isSagas(m.Stream.Category()) && m.Position > 0 && !m.IsTombstone()
}

func (sagasPart) streamOf(ctx context.Context, e *explainer, c *explainCommand, category messagestore.Category) (messagestore.StreamName, error) {
	if !isSagas(category) {
		return "", nil
	}
	stream := category.Stream(c.Target)
	_, err := e.store.Last(ctx, stream)
	if !errors.Is(err, messagestore.ErrNotFound) {
		return stream, err
	}
	item, err := e.itemAt(ctx, category, c.Target) // as in any other queue
	switch {
	case err != nil:
		return "", err
	case item != nil:
		return item.Stream, nil
	}
	if err := requireCategory(ctx, e.store, category); err != nil {
		return "", err
	}
	return "", &hintedError{notFound("%s has no saga with the id %.80q", category, c.Target), "see the sagas with: dibs saga ls " + string(category)}
}

func (sagasPart) tell(ctx context.Context, e *explainer, s *story) error {
	if s.begun {
		for _, m := range slices.Clone(s.roots) {
			if !startsSaga(m) {
				continue
			}
			if err := e.saga(ctx, s, m.Stream); err != nil {
				return err
			}
		}
		return nil
	}
	if !startsSaga(s.first) && !isTrimmedSaga(s.first) {
		return nil
	}
	s.what = fmt.Sprintf(" is the saga %s of %s", shorten(visible(s.of.CardinalID())), visible(s.of.Category().Entity()))
	if err := s.title(); err != nil {
		return err
	}
	if s.first.Position > 0 {
		s.note("trimmed", placeOf(s.of, 0), fmt.Sprintf("%s, of which nothing is known", number(int64(s.first.Position), "message", "messages")))
	} else if err := e.tellCause(ctx, s, s.first); err != nil {
		return err
	}
	s.roots = append(s.roots, s.first)
	return e.saga(ctx, s, s.of)
}

// saga tells the messages of a saga, and how far it is. Others may have any of them as their cause.
func (e *explainer) saga(ctx context.Context, s *story, stream messagestore.StreamName) error {
	o, err := saga.NewOperator(e.store, stream.Category(), "dibs explain")
	if err != nil {
		return err
	}
	s.streams = append(s.streams, entityOf(stream))
	s.places = append(s.places, ref{stream, 0}) // also if it was trimmed
	whole := true
	for entry, err := range o.History(ctx, stream.CardinalID()) {
		if err != nil {
			return err
		}
		whole = whole && !entry.Malformed && (s.told[ref{stream, 0}] || entry.Message.Position == 0)
		s.places = append(s.places, refOf(entry.Message))
		if err := s.entry(entry); err != nil {
			return err
		}
	}
	if !whole {
		return nil
	}
	status, err := o.Status(ctx, stream.CardinalID())
	if errors.Is(err, messagestore.ErrNotSupported) || errors.Is(err, messagestore.ErrNotFound) {
		return nil // there is no queue to ask, or the saga was deleted
	}
	if err != nil {
		return err
	}
	now, err := e.store.Now(ctx)
	if err != nil {
		return err
	}
	return s.sagaState(status, now)
}

// A sagaEvent is how a message of a saga is printed as JSON.
type sagaEvent struct {
	Event   string                  `json:"event"`
	Of      messagestore.StreamName `json:"of"`
	Key     string                  `json:"key,omitempty"`
	Step    string                  `json:"step,omitempty"`
	Attempt int                     `json:"attempt,omitempty"`
	Text    string                  `json:"text,omitempty"`
	Message record                  `json:"message"`
}

// A sagaStateEvent is how the state of a saga is printed as JSON.
type sagaStateEvent struct {
	Event string                  `json:"event"`
	Of    messagestore.StreamName `json:"of"`
	Key   string                  `json:"key,omitempty"`
	Saga  sagaLine                `json:"saga"`
}

// sagaRoles are the roles of the messages of a saga, by their types. Any other is of a later release.
var sagaRoles = map[string]string{
	"Started": started, "Began": began, "Done": done, "Failed": failed, "Waiting": waiting, "Received": received, "Valued": valued,
	"Compensating": compensating, "Undone": undone, "UndoFailed": undoFailed, "Suspended": suspended, "Completed": completed,
	"Compensated": compensated, "Replied": replied, "Signalled": signalled, "CancelRequested": cancelRequested, "Resumed": resumed,
	"Resolved": resolved, "SetBack": setBack, removal.TombstoneType: deleted,
}

// entry tells a message of a saga.
func (s *story) entry(e saga.Entry) error {
	role, known := sagaRoles[e.Message.Type]
	if !known || e.Malformed {
		role = unknown
	}
	if s.app.JSON {
		s.told[refOf(e.Message)] = true
		return s.app.out.object(sagaEvent{role, s.of, s.key, e.Step, e.Attempt, e.Text, toRecord(e.Message)})
	}
	return s.tell(role, e.Message, entryText(e))
}

// entryText is what a message of a saga says, with its value.
func entryText(e saga.Entry) string {
	if value := dataText(e.Value); value != "" {
		return visible(e.Text) + ": " + value
	}
	return visible(e.Text)
}

// sagaState tells how far a saga is.
func (s *story) sagaState(status sagaStatus, now time.Time) error {
	if s.app.JSON {
		return s.app.out.object(sagaStateEvent{"saga", s.of, s.key, toSagaLine(status, now)})
	}
	note := sagaNote(status)
	if !status.Due.IsZero() {
		if note != "" {
			note += "; "
		}
		note += "its next turn is at " + timeText(status.Due)
	}
	return s.app.out.row(cell{text: "saga"}, cell{}, cell{text: visible(string(status.Stream))},
		cell{text: string(status.State), style: sagaStyles[status.State]}, cell{text: visible(note)})
}

// The properties of a message that a step of a saga has written, or that followed one.
const (
	sagaStepProperty    = "sagaStep"
	sagaAttemptProperty = "sagaAttempt" // from the second on
)

// followedText is the note of a message that followed: its data, behind the step of the saga that it is of.
func followedText(m *messagestore.Message) string {
	text := dataText(m.Data)
	step := m.Metadata.Properties.Get(sagaStepProperty)
	if step == "" {
		return text
	}
	attempt := m.Metadata.Properties.Get(sagaAttemptProperty)
	if attempt == "" {
		attempt = "1"
	}
	return fmt.Sprintf("of the step %s, attempt %s: %s", shorten(visible(step)), shorten(visible(attempt)), text)
}
