package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/removal"
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
func sagaOf(ctx context.Context, e *explainer, c *explainCommand) (messagestore.StreamName, error) {
	if !isSagas(c.Category) {
		return "", nil
	}
	stream := c.Category.Stream(c.Target)
	_, err := e.store.Last(ctx, stream)
	if !errors.Is(err, messagestore.ErrNotFound) {
		return stream, err
	}
	item, err := e.itemAt(ctx, c.Category, c.Target) // as in any other queue
	switch {
	case err != nil:
		return "", err
	case item != nil:
		return item.Stream, nil
	}
	err = notFoundIn(ctx, e.store, c.Category, notFound("%s has no saga with the id %.80q", c.Category, c.Target))
	return "", hinted(err, "see the sagas with: dibs saga ls "+string(c.Category))
}

// sagas tells the saga of the stream, and each saga that a message of the story has started: its messages, and how far the saga
// is.
func (e *explainer) sagas(ctx context.Context, s *story) error {
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
	s.title(fmt.Sprintf(" is the saga %s of %s", shorten(visible(s.of.CardinalID())), s.of.Category().Entity()))
	if s.first.Position > 0 {
		s.trimmed(s.first)
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
		m := entry.Message
		whole = whole && !entry.Malformed && (s.told[ref{stream, 0}] || m.Position == 0)
		s.places = append(s.places, refOf(m))
		s.tell(sagaRole(entry), m, entryText(entry), "step?", entry.Step, "attempt?", entry.Attempt, "text?", entry.Text)
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
	note := sagaNote(status)
	if !status.Due.IsZero() {
		note = strings.TrimPrefix(note+"; its next turn is at "+timeText(status.Due), "; ")
	}
	s.out.row(s.event("saga", "saga", sagaFields(status, now)), "saga", "", status.Stream, in(sagaStyles[status.State], status.State), note)
	return nil
}

// sagaTypes are the types of the messages of a saga. Any other is of a later release.
var sagaTypes = []string{
	"Started", "Began", "Done", "Failed", "Waiting", "Received", "Valued", "Compensating", "Undone", "UndoFailed", "Suspended", "Completed",
	"Compensated", "Replied", "Signalled", "CancelRequested", "Resumed", "Resolved", "SetBack",
}

// sagaRole is the role of a message of a saga: its type, as names are in JSON.
func sagaRole(e saga.Entry) string {
	of := e.Message.Type
	switch {
	case e.Malformed:
		return "unknown"
	case of == removal.TombstoneType:
		return "deleted"
	case !slices.Contains(sagaTypes, of):
		return "unknown"
	}
	return strings.ToLower(of[:1]) + of[1:]
}

// entryText is what a message of a saga says, with its value.
func entryText(e saga.Entry) string {
	if value := dataText(e.Value); value != "" {
		return e.Text + ": " + value
	}
	return e.Text
}

// followedText is the note of a message that followed: its data, behind the step of the saga that
// it is of. The attempt is named from the second on.
func followedText(m *messagestore.Message) string {
	text, properties := dataText(m.Data), m.Metadata.Properties
	step := properties.Get("sagaStep")
	if step == "" {
		return text
	}
	return fmt.Sprintf("of the step %s, attempt %s: %s", shorten(visible(step)), shorten(visible(cmp.Or(properties.Get("sagaAttempt"), "1"))), text)
}
