package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

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

// sagaOf returns the stream of the saga with the id that is asked for, or "" if the category is another's.
func (t *teller) sagaOf(ctx context.Context) (messagestore.StreamName, error) {
	category, id := t.question.Category, t.question.ID
	if !isSagas(category) {
		return "", nil
	}
	stream := category.Stream(id)
	_, err := t.store.Last(ctx, stream)
	if !errors.Is(err, messagestore.ErrNotFound) {
		return stream, err
	}
	item, err := t.itemAt(ctx, category, id) // as in any other queue
	switch {
	case err != nil:
		return "", err
	case item != nil:
		return item.Stream, nil
	}
	return "", t.notFound(ctx, "see the sagas with: dibs saga ls "+string(category), "%s has no saga with the id %.80q", category, id)
}

// sagas tells the saga of the stream, and each saga that a message of the story has started: its messages, and how far the saga
// is.
func (t *teller) sagas(ctx context.Context, s *story) error {
	if s.begun {
		for _, m := range slices.Clone(s.roots) {
			if !startsSaga(m) {
				continue
			}
			if err := t.saga(ctx, s, m.Stream); err != nil {
				return err
			}
		}
		return nil
	}
	if !startsSaga(s.first) && !isTrimmedSaga(s.first) {
		return nil
	}
	s.title(fmt.Sprintf(" is the saga %s of %s", text.Cut(72, s.of.CardinalID()), s.of.Category().Entity()))
	if s.first.Position > 0 {
		s.trimmed(s.first)
	} else if err := t.tellCause(ctx, s, s.first); err != nil {
		return err
	}
	s.roots = append(s.roots, s.first)
	return t.saga(ctx, s, s.of)
}

// saga tells the messages of a saga, and how far it is. Others may have any of them as their cause.
func (t *teller) saga(ctx context.Context, s *story, stream messagestore.StreamName) error {
	o, err := saga.NewOperator(t.store, stream.Category(), "operate")
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
		m := entry.Message
		whole = whole && !entry.Malformed && (s.told[ref{stream, 0}] || m.Position == 0)
		s.places = append(s.places, refOf(m))
		s.tell(Event{Role: sagaRole(entry), Message: m, Step: entry.Step, Attempt: entry.Attempt, Text: entry.Text, Data: entry.Value})
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
	now, err := t.store.Now(ctx)
	if err != nil {
		return err
	}
	note := SagaText(status)
	if !status.Due.IsZero() {
		note = strings.TrimPrefix(note+"; its next turn is at "+text.Time(status.Due), "; ")
	}
	s.event(Event{Role: ASaga, Place: string(status.Stream), What: string(status.State), Text: note, Saga: &status, Now: now})
	return nil
}

// SagaText says why a saga is where it is, "" if there is nothing to say.
func SagaText(s Saga) string {
	switch {
	case s.Suspended != "":
		return s.Suspended + ": " + s.Reason
	case s.Waits != "":
		return "waits for " + s.Waits
	}
	return s.Reason
}

// sagaTypes are the types of the messages of a saga. Any other is of a later release.
var sagaTypes = []string{
	"Started", "Began", "Done", "Failed", "Waiting", "Received", "Valued", "Compensating", "Undone", "UndoFailed", "Suspended", "Completed",
	"Compensated", "Replied", "Signalled", "CancelRequested", "Resumed", "Resolved", "SetBack",
}

// sagaRole is the role of a message of a saga: its type, as names are in JSON.
func sagaRole(e saga.Entry) Role {
	of := e.Message.Type
	switch {
	case e.Malformed:
		return Unknown
	case of == removal.TombstoneType:
		return Deleted
	case !slices.Contains(sagaTypes, of):
		return Unknown
	}
	return Role(strings.ToLower(of[:1]) + of[1:])
}

// stepOf says which step of a saga a message is of, "" for none.
func stepOf(m *messagestore.Message) string {
	properties := m.Metadata.Properties
	step := properties.Get("sagaStep")
	if step == "" {
		return ""
	}
	return fmt.Sprintf("of the step %s, attempt %s", text.Cut(72, step), text.Cut(72, cmp.Or(properties.Get("sagaAttempt"), "1")))
}
