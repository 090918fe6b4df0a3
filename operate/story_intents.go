package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// isStep reports whether m is a message of an intent.
func isStep(m *messagestore.Message) bool {
	_, err := intentlog.Read(m)
	return err == nil && !m.IsTombstone()
}

// isIntents reports whether the category is one of intents: one of its first messages that were not
// deleted tells, or else the name.
func (t *teller) isIntents(ctx context.Context) (bool, error) {
	category := t.question.Category
	if t.question.Scope != "" || hasType(category, "intent") {
		return true, nil
	}
	page, err := t.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 100})
	return err == nil && slices.ContainsFunc(page.Messages, isStep), err
}

// intentOf returns the stream of the intent with the key that is asked for, or "" if the category is another's.
func (t *teller) intentOf(ctx context.Context) (messagestore.StreamName, error) {
	if yes, err := t.isIntents(ctx); err != nil || !yes {
		return "", err
	}
	q := t.question
	m, err := intent.New(t.store, q.Category, nil)
	if err != nil {
		return "", err
	}
	stream, err := m.Stream(q.Scope, q.ID)
	if err != nil {
		return "", err
	}
	_, err = t.store.Last(ctx, stream)
	if errors.Is(err, messagestore.ErrNotFound) {
		err = NoIntent(ctx, t.store, q.Category, q.Scope, q.ID)
	}
	return stream, err
}

// NoIntent returns a [*NotFoundError] for a key of which the category has no intent.
func NoIntent(ctx context.Context, store *messagestore.Store, category messagestore.Category, scope, key string) error {
	in := " without a scope; if its request has one, give --scope"
	if scope != "" {
		in = text.Cut(72, " in the scope "+scope)
	}
	if err := RequireCategory(ctx, store, category); err != nil {
		return err
	}
	return &NotFoundError{Text: fmt.Sprintf("%s has no intent with the key %s%s", category, text.Cut(72, key), in)}
}

// intent tells the steps of an intent, from its grant to its end. Extensions in a row are told as one, with the last of them.
func (t *teller) intent(ctx context.Context, s *story) error {
	if s.begun || !isStep(s.first) {
		return nil
	}
	scope, key := intentlog.ScopeAndKey(s.of)
	s.scope, s.key = scope, cmp.Or(t.key, key)
	title := " is the intent with the key " + text.Cut(72, s.key)
	if s.scope != "" {
		title += " in the scope " + text.Cut(72, s.scope)
	}
	s.title(title)
	var last *intentlog.State // that was told, or is being counted
	times := 0                // extensions that are not told yet
	var beat *messagestore.Message
	beats := func() {
		note := fmt.Sprintf("%d times", times)
		if times == 1 {
			note = "once"
		}
		if times > 0 {
			s.tell(Event{Role: Extended, Message: beat, Lease: leaseOf(last), Times: times, Text: note + ", until " + text.Time(last.Until())})
		}
		times = 0
	}
	for m, err := range t.store.ReadStream(ctx, s.of, 0) {
		if err != nil {
			return err
		}
		step, err := intentlog.Read(m)
		if err != nil {
			return fmt.Errorf("%w: %v: %w", intent.ErrCorrupt, refOf(m), err)
		}
		if step.Type == intentlog.TypeExtended { // which no message names
			times, beat, last = times+1, m, step
			continue
		}
		s.roots = append(s.roots, m)
		beats()
		role, note := roleOf(step, last), step.Text(last)
		switch {
		case last == nil:
			if m.Position > 0 && !m.IsTombstone() {
				s.trimmed(m)
			}
			if err := t.tellCause(ctx, s, m); err != nil {
				return err
			}
		case role == takenOver && step.Place.Time.Before(last.Until()):
			note += ", before the lease's end by the store's clock"
		case role == takenOver:
			s.lapse(last)
		}
		last = step
		s.tell(Event{Role: role, Message: m, Lease: leaseOf(step), Text: note, Data: step.Result})
	}
	now, err := t.store.Now(ctx)
	if err != nil {
		return err
	}
	beats()
	if last != nil && !last.Done() && !last.Released && !now.Before(last.Until()) {
		s.lapse(last)
	}
	s.ending = append(s.ending, Event{
		Role: Note, Label: "refused", Place: "not in the store", Text: "a request that is held, done or key reused writes nothing: see the callers' logs",
	})
	return nil
}

// takenOver is the role of a grant of a lease that had not been released.
const takenOver Role = "takenOver"

// roleOf returns the role of a step.
func roleOf(s, before *intentlog.State) Role {
	switch s.Type {
	case intentlog.TypeReserved:
		if before != nil && !before.Released {
			return takenOver
		}
		return "reserved"
	case intentlog.TypeWaiting:
		return "waiting"
	case intentlog.TypeReleased:
		return "released"
	case intentlog.TypeConfirmed:
		return "confirmed"
	}
	return Deleted
}

// lapse tells that the lease of a step was over by time, which no message says.
func (s *story) lapse(of *intentlog.State) {
	s.event(Event{
		Role: Lapsed, Time: of.Until(), Place: "computed", Lease: leaseOf(of),
		Text: fmt.Sprintf("session %s, token %d, %v after its last sign of life", of.Session, of.Token, of.Lasts()),
	})
}

// leaseOf returns the lease of a step.
func leaseOf(step *intentlog.State) *Lease {
	l := &Lease{Session: step.Session, Token: step.Token, Attempt: step.Attempt, Until: step.Until()}
	if step.Done() || step.Released {
		l.Until = time.Time{}
	}
	return l
}
