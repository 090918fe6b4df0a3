package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/messagestore"
)

// intentStream returns the stream of an intent.
func intentStream(category messagestore.Category, scope, key string) (messagestore.StreamName, error) {
	m, err := intent.New(dryStore{}, category, nil)
	if err != nil {
		return "", err
	}
	return m.Stream(scope, key)
}

// isStep reports whether m is a message of an intent.
func isStep(m *messagestore.Message) bool {
	_, err := intentlog.Read(m)
	return err == nil && !m.IsTombstone()
}

// intentsPart tells the steps of an intent, from its grant to its end.
type intentsPart struct{}

// isIntents reports whether category is one of intents: one of its first messages that were not deleted
// tells, or else the name.
func (c *explainCommand) isIntents(ctx context.Context, store *messagestore.Store, category messagestore.Category) (bool, error) {
	if c.Scope != "" {
		return true, nil
	}
	page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: category, Limit: 100})
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(page.Messages, isStep) {
		return true, nil
	}
	types := category.Types()
	return len(types) > 0 && types[len(types)-1] == "intent", nil
}

func (intentsPart) streamOf(ctx context.Context, e *explainer, c *explainCommand, category messagestore.Category) (messagestore.StreamName, error) {
	if yes, err := c.isIntents(ctx, e.store, category); err != nil || !yes {
		return "", err
	}
	stream, err := intentStream(category, c.Scope, c.Target)
	if err != nil {
		return "", err
	}
	if _, err = e.store.Last(ctx, stream); err != nil {
		args := intentArgs{string(category), c.Target, c.Scope}
		return "", args.notFound(ctx, e.store, err)
	}
	return stream, nil
}

// An intentEvent is how a part of an intent's story is printed as JSON.
type intentEvent struct {
	Event   string                  `json:"event"`
	Of      messagestore.StreamName `json:"of"`
	Scope   string                  `json:"scope,omitempty"`
	Key     string                  `json:"key"`
	Session string                  `json:"session,omitempty"`
	Token   int64                   `json:"token,omitempty"`
	Attempt int                     `json:"attempt,omitempty"`
	Until   string                  `json:"until,omitempty"`   // of the lease
	Times   int                     `json:"times,omitempty"`   // of extended: how many in a row; the message is the last
	Message *record                 `json:"message,omitempty"` // not of lapsed
}

// An intentStory is told step by step.
type intentStory struct {
	*story

	scope string
	last  *intentlog.State      // that was told, or is being counted
	times int                   // extensions that are not told yet
	beat  *messagestore.Message // the last of them
}

func (intentsPart) tell(ctx context.Context, e *explainer, of *story) error {
	if of.begun || !isStep(of.first) {
		return nil
	}
	s := &intentStory{story: of}
	s.told, s.begun = map[ref]bool{}, true
	s.scope, s.key = intentlog.ScopeAndKey(s.of)
	if e.key != "" {
		s.key = e.key
	}
	if !e.app.JSON {
		if err := s.intentTitle(); err != nil {
			return err
		}
	}
	for m, err := range e.store.ReadStream(ctx, s.of, 0) {
		if err == nil {
			err = s.step(ctx, e, m)
		}
		if err != nil {
			return err
		}
	}
	now, err := e.store.Now(ctx)
	if err != nil {
		return err
	}
	if err := s.ended(now); err != nil {
		return err
	}
	s.ending = append(s.ending, [3]string{"refused", "not in the store", "a request that is held, done or key reused writes nothing: see the callers' logs"})
	return nil
}

func (s *intentStory) intentTitle() error {
	title := fmt.Sprintf("%s is the intent with the key %s", visible(string(s.of)), shorten(visible(s.key)))
	if s.scope != "" {
		title += " in the scope " + shorten(visible(s.scope))
	}
	return s.app.out.line("%s", s.app.out.styled(title, bold))
}

// step tells a message. Extensions in a row are told as one, with the last of them.
func (s *intentStory) step(ctx context.Context, e *explainer, m *messagestore.Message) error {
	step, err := intentlog.Read(m)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", intent.ErrCorrupt, place(m), err)
	}
	s.roots = append(s.roots, m)
	if step.Type == intentlog.TypeExtended {
		s.times, s.beat, s.last = s.times+1, m, step
		s.roots = s.roots[:len(s.roots)-1] // no message names an extension
		return nil
	}
	before := s.last
	if err := s.beats(); err != nil {
		return err
	}
	role, note := roleOf(step, before), stepText(step, before)
	switch {
	case before == nil:
		err = s.beginning(ctx, e, m)
	case role == takenOver && step.Place.Time.Before(before.Until()):
		note += ", before the lease's end by the store's clock"
	case role == takenOver:
		err = s.lapse(before)
	}
	s.last = step
	if err != nil {
		return err
	}
	return s.tellStep(role, step, m, note)
}

// roleOf returns the role of a step.
func roleOf(s, before *intentlog.State) string {
	switch s.Type {
	case intentlog.TypeReserved:
		if before != nil && !before.Released {
			return takenOver
		}
		return reserved
	case intentlog.TypeWaiting:
		return waiting
	case intentlog.TypeReleased:
		return released
	case intentlog.TypeConfirmed:
		return confirmed
	}
	return deleted
}

// beginning tells of the message that the first grant followed, and that earlier ones are gone.
func (s *intentStory) beginning(ctx context.Context, e *explainer, first *messagestore.Message) error {
	if first.Position > 0 && !first.IsTombstone() {
		s.note("trimmed", placeOf(s.of, 0), fmt.Sprintf("%s, of which nothing is known", number(int64(first.Position), "message", "messages")))
	}
	stream, position := first.Metadata.CausationStream, first.Metadata.CausationPosition
	if stream == "" {
		return nil
	}
	source, err := messageAt(ctx, e.store, stream, position)
	if errors.Is(err, messagestore.ErrNotFound) || errors.Is(err, messagestore.ErrInvalid) {
		s.note(roles[cause].label, placeOf(stream, position), "not in this store")
		return nil
	}
	if err != nil {
		return err
	}
	if s.app.JSON {
		r := toRecord(source)
		return s.app.out.object(intentEvent{Event: cause, Of: s.of, Scope: s.scope, Key: s.key, Message: &r})
	}
	return s.tell(cause, source, dataText(source.Data))
}

// beats tells of the extensions since the step that was told last.
func (s *intentStory) beats() error {
	if s.times == 0 {
		return nil
	}
	times := "once"
	if s.times > 1 {
		times = fmt.Sprintf("%d times", s.times)
	}
	err := s.tellStep(extended, s.last, s.beat, fmt.Sprintf("%s, until %s", times, timeText(s.last.Until())))
	s.times, s.beat = 0, nil
	return err
}

// lapse tells that the lease of a step was over by time.
func (s *intentStory) lapse(of *intentlog.State) error {
	if s.app.JSON {
		e := s.event(lapsed, of)
		return s.app.out.object(e)
	}
	r := roles[lapsed]
	return s.app.out.row(cell{text: r.label, style: r.style}, cell{text: timeText(of.Until()), style: dim}, cell{text: "computed"}, cell{},
		cell{text: visible(fmt.Sprintf("session %s, token %d, %v after its last sign of life", of.Session, of.Token, of.Lasts()))})
}

// ended tells of a lease that is over at now by time.
func (s *intentStory) ended(now time.Time) error {
	if err := s.beats(); err != nil {
		return err
	}
	last := s.last
	if last == nil || last.Done() || last.Released || now.Before(last.Until()) {
		return nil
	}
	return s.lapse(last)
}

func (s *intentStory) event(role string, step *intentlog.State) intentEvent {
	e := intentEvent{Event: role, Of: s.of, Scope: s.scope, Key: s.key, Session: step.Session, Token: step.Token, Attempt: step.Attempt}
	if !step.Done() && !step.Released {
		e.Until = timeText(step.Until())
	}
	return e
}

func (s *intentStory) tellStep(role string, step *intentlog.State, m *messagestore.Message, note string) error {
	if !s.app.JSON {
		return s.tell(role, m, visible(note))
	}
	s.told[refOf(m)] = true
	e, r := s.event(role, step), toRecord(m)
	e.Message = &r
	if role == extended {
		e.Times = s.times
	}
	return s.app.out.object(e)
}
