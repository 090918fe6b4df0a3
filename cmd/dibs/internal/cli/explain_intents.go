package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

// isStep reports whether m is a message of an intent.
func isStep(m *messagestore.Message) bool {
	_, err := intentlog.Read(m)
	return err == nil && !m.IsTombstone()
}

// isIntents reports whether the category is one of intents: one of its first messages that were not deleted
// tells, or else the name.
func (c *explainCommand) isIntents(ctx context.Context, store *messagestore.Store) (bool, error) {
	if c.Scope != "" || hasType(c.Category, "intent") {
		return true, nil
	}
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: c.Category, Limit: 100})
	return err == nil && slices.ContainsFunc(page.Messages, isStep), err
}

// intentOf returns the stream of the intent with the key that is asked for, or "" if the category is another's.
func intentOf(ctx context.Context, e *explainer, c *explainCommand) (messagestore.StreamName, error) {
	if yes, err := c.isIntents(ctx, e.store); err != nil || !yes {
		return "", err
	}
	m, err := intent.New(e.store, c.Category, nil)
	if err != nil {
		return "", err
	}
	stream, err := m.Stream(c.Scope, c.Target)
	if err != nil {
		return "", err
	}
	if _, err = e.store.Last(ctx, stream); err != nil {
		return "", anIntent{c.Category, c.Target, c.Scope}.notFound(ctx, e.store, err)
	}
	return stream, nil
}

// intent tells the steps of an intent, from its grant to its end. Extensions in a row are told as one, with the last of them.
func (e *explainer) intent(ctx context.Context, s *story) error {
	if s.begun || !isStep(s.first) {
		return nil
	}
	scope, key := intentlog.ScopeAndKey(s.of)
	s.scope, s.key = scope, cmp.Or(e.key, key)
	title := " is the intent with the key " + shorten(visible(s.key))
	if s.scope != "" {
		title += " in the scope " + shorten(visible(s.scope))
	}
	s.title(title)
	var last *intentlog.State // that was told, or is being counted
	times := 0                // extensions that are not told yet
	var beat *messagestore.Message
	tell := func(role string, step *intentlog.State, m *messagestore.Message, note string, more ...any) {
		s.tell(role, m, note, append(stepFields(step), more...)...)
	}
	beats := func() {
		note := fmt.Sprintf("%d times", times)
		if times == 1 {
			note = "once"
		}
		if times > 0 {
			tell("extended", last, beat, note+", until "+timeText(last.Until()), "times", times)
		}
		times = 0
	}
	for m, err := range e.store.ReadStream(ctx, s.of, 0) {
		if err != nil {
			return err
		}
		step, err := intentlog.Read(m)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", intent.ErrCorrupt, place(m), err)
		}
		if step.Type == intentlog.TypeExtended { // which no message names
			times, beat, last = times+1, m, step
			continue
		}
		s.roots = append(s.roots, m)
		beats()
		role, note := roleOf(step, last), stepText(step, last)
		switch {
		case last == nil:
			if m.Position > 0 && !m.IsTombstone() {
				s.trimmed(m)
			}
			if err := e.tellCause(ctx, s, m); err != nil {
				return err
			}
		case role == "takenOver" && step.Place.Time.Before(last.Until()):
			note += ", before the lease's end by the store's clock"
		case role == "takenOver":
			s.lapse(last)
		}
		last = step
		tell(role, step, m, note)
	}
	now, err := e.store.Now(ctx)
	if err != nil {
		return err
	}
	beats()
	if last != nil && !last.Done() && !last.Released && !now.Before(last.Until()) {
		s.lapse(last)
	}
	s.ending = append(s.ending, [3]string{"refused", "not in the store", "a request that is held, done or key reused writes nothing: see the callers' logs"})
	return nil
}

// roleOf returns the role of a step.
func roleOf(s, before *intentlog.State) string {
	switch s.Type {
	case intentlog.TypeReserved:
		if before != nil && !before.Released {
			return "takenOver"
		}
		return "reserved"
	case intentlog.TypeWaiting:
		return "waiting"
	case intentlog.TypeReleased:
		return "released"
	case intentlog.TypeConfirmed:
		return "confirmed"
	}
	return "deleted"
}

// lapse tells that the lease of a step was over by time, which no message says.
func (s *story) lapse(of *intentlog.State) {
	s.row("lapsed", stepFields(of), timeText(of.Until()), "computed", "",
		fmt.Sprintf("session %s, token %d, %v after its last sign of life", of.Session, of.Token, of.Lasts()))
}

// stepFields are how the lease of a step is printed as JSON.
func stepFields(step *intentlog.State) fields {
	until := step.Until()
	if step.Done() || step.Released {
		until = time.Time{}
	}
	return fields{"session?", step.Session, "token?", step.Token, "attempt?", step.Attempt, "until?", until}
}
