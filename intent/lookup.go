package intent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
)

// Lookup returns the current state of an intent. If the intent was never reserved, the error
// matches [messagestore.ErrNotFound].
func (m *Manager) Lookup(ctx context.Context, scope, key string) (Intent, error) {
	s, now, err := m.look(ctx, scope, key)
	if err != nil {
		return Intent{}, fmt.Errorf("look up intent: %w", err)
	}
	return intentOf(s, now, m.config.Turn), nil
}

// look returns the state of an intent and, if it has a lease, the store's time.
func (m *Manager) look(ctx context.Context, scope, key string) (*intentlog.State, time.Time, error) {
	if err := ctx.Err(); err != nil {
		return nil, time.Time{}, err
	}
	stream, err := m.Stream(scope, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	return m.lookAt(ctx, stream)
}

func (m *Manager) lookAt(ctx context.Context, stream messagestore.StreamName) (*intentlog.State, time.Time, error) {
	last, err := m.store.Last(ctx, stream)
	if err != nil {
		return nil, time.Time{}, err
	}
	s, err := intentlog.Read(last)
	if err != nil || s.Done() || s.Released && len(s.Line) == 0 {
		return s, last.Time, err
	}
	now, err := m.store.Now(ctx)
	return s, now, err
}

// Await waits until an intent is not held, and returns its state then: done, or free. It does not
// stand in the line. If the intent was never reserved, the error matches
// [messagestore.ErrNotFound].
//
// Await returns when ctx ends, but it does not abort a query: that would cost the connection, and
// many callers may stop waiting at once.
func (m *Manager) Await(ctx context.Context, scope, key string) (Intent, error) {
	if err := ctx.Err(); err != nil {
		return Intent{}, fmt.Errorf("await intent: %w", err)
	}
	stream, err := m.Stream(scope, key)
	if err != nil {
		return Intent{}, fmt.Errorf("await intent: %w", err)
	}
	w := m.wakeups.NewWaiter()
	defer w.Leave()
	w.On(stream) // an end between the first look and this would be missed
	k := wanted{}
	s, now, err := m.lookDetached(ctx, stream)
	for {
		if err != nil {
			return Intent{}, fmt.Errorf("await %s: %w", stream, err)
		}
		k.meet(s)
		over := s.Lasts() + m.config.Turn - time.Since(k.watch)
		if !s.Held(now) || over <= 0 {
			i := intentOf(s, now, m.config.Turn)
			if i.Status == Held {
				i.Status = Free // by the clock of this process
			}
			return i, nil
		}
		if ctx.Err() == nil {
			w.From(s.Place.GlobalPosition)
		}
		message, ended := m.sleep(ctx, w, max(min(s.Until().Sub(now), over), leastSleep))
		switch {
		case ended != nil:
			return Intent{}, fmt.Errorf("await %s: %w", stream, ended)
		case message != nil && message.Position > s.Place.Position:
			now = message.Time
			s, err = intentlog.Read(message)
		default:
			s, now, err = m.lookDetached(ctx, stream)
		}
	}
}

func (m *Manager) lookDetached(ctx context.Context, stream messagestore.StreamName) (*intentlog.State, time.Time, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	return m.lookAt(ctx, stream)
}

// ForceRelease ends the lease of an intent without its holder: an operator's last resort. Every
// later step of that lease fails. The reason is stored, so it must not be empty, and has at most
// 500 bytes. If the intent is already free, ForceRelease returns nil, but it still releases a lease
// that is only over by time. The error matches [ErrDone] if the intent is confirmed, and
// [messagestore.ErrNotFound] if it was never reserved.
func (m *Manager) ForceRelease(ctx context.Context, scope, key, reason string) error {
	if err := m.forceRelease(ctx, scope, key, reason); err != nil {
		return fmt.Errorf("release intent: %w", err)
	}
	return nil
}

func (m *Manager) forceRelease(ctx context.Context, scope, key, reason string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if reason == "" {
		return messagestore.NewInvalidError("reason", reason, "must not be empty")
	}
	if err := validateReason(reason); err != nil {
		return err
	}
	stream, err := m.Stream(scope, key)
	if err != nil {
		return err
	}
	last, err := m.store.Last(ctx, stream)
	for err == nil {
		var s *intentlog.State
		if s, err = intentlog.Read(last); err != nil {
			return err
		}
		switch {
		case s.Done():
			return fmt.Errorf("%s: %w", stream, ErrDone)
		case s.Released:
			return nil
		}
		by := m.config.Name
		if by == "" {
			by = "operator"
		}
		var met *messagestore.Conflict
		_, met, err = m.store.TryWrite(ctx, stream, s.Place.Position,
			messagestore.Envelope{Body: intentlog.Released{Grant: s.Grant, Token: s.Token, By: by, Reason: reason}, Metadata: s.Metadata})
		if met == nil {
			return err
		}
		if last = met.Last[0]; last == nil {
			return fmt.Errorf("%s: %w", stream, messagestore.ErrNotFound)
		}
	}
	return err
}

// A Filter chooses intents for [Manager.List].
type Filter struct {
	// Status chooses intents by their status: [Held], [Done] and [Free].
	//
	// Defaults to Held.
	Status []Outcome

	// Scope and Session choose the intents with a scope and with a session.
	//
	// Default to any.
	Scope, Session string

	// Since chooses the intents with a message since this time, by the store's clock. A live lease
	// has one within its TTL.
	//
	// Defaults to a day before now.
	Since time.Time
}

// List returns the intents that filter chooses, in the order of their grants. It reads the messages
// of the category from [Filter.Since] on, and keeps the last message of each matching intent. The
// error matches [messagestore.ErrNotSupported] if the store is not a [CategoryStore].
//
// If the last message of a stream does not belong to an intent, List still returns the other
// intents, with an error that matches [ErrCorrupt] and names the first ten such streams.
func (m *Manager) List(ctx context.Context, filter Filter) ([]Intent, error) {
	all, err := m.list(ctx, filter)
	if err != nil {
		return all, fmt.Errorf("list intents of %s: %w", m.category, err)
	}
	return all, nil
}

func (m *Manager) list(ctx context.Context, filter Filter) ([]Intent, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(filter.Status) == 0 {
		filter.Status = []Outcome{Held}
	}
	for _, status := range filter.Status {
		if status != Held && status != Done && status != Free {
			return nil, messagestore.NewInvalidError("status", status.String(), "must be held, done or free")
		}
	}
	store, ok := m.store.(CategoryStore)
	if !ok {
		return nil, messagestore.ErrNotSupported
	}
	if filter.Since.IsZero() {
		now, err := m.store.Now(ctx)
		if err != nil {
			return nil, err
		}
		filter.Since = now.Add(-intentlog.MaxTTL)
	}
	states, corrupt, err := m.statesSince(ctx, store, filter)
	if err != nil {
		return nil, err
	}
	now, err := m.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	var all []Intent
	for _, s := range states {
		if i := intentOf(s, now, m.config.Turn); slices.Contains(filter.Status, i.Status) && (filter.Session == "" || i.Session == filter.Session) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b Intent) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Stream, b.Stream)) })
	if len(corrupt) > 0 {
		return all, newCorruptStreams(corrupt)
	}
	return all, nil
}

// statesSince returns the last states of the intents with a message since [Filter.Since], and the
// errors of the corrupt streams. It leaves out done intents unless filter chooses them.
func (m *Manager) statesSince(ctx context.Context, store CategoryStore, filter Filter) (states map[messagestore.StreamName]*intentlog.State, corrupt map[messagestore.StreamName]error, err error) {
	from, err := store.PositionAt(ctx, m.category, filter.Since)
	if err != nil {
		return nil, nil, err
	}
	done := slices.Contains(filter.Status, Done)
	states, corrupt = map[messagestore.StreamName]*intentlog.State{}, map[messagestore.StreamName]error{}
	for more := true; more; {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: m.category, From: from, Limit: 1000})
		if err != nil {
			return nil, nil, err
		}
		for _, message := range page.Messages {
			if scope, _ := intentlog.ScopeAndKey(message.Stream); filter.Scope != "" && scope != filter.Scope {
				continue
			}
			delete(states, message.Stream)
			delete(corrupt, message.Stream)
			s, err := intentlog.Read(message)
			switch {
			case err != nil:
				corrupt[message.Stream] = err
			case done || !s.Done():
				states[message.Stream] = s
			}
		}
		from, more = page.Next, page.More
	}
	return states, corrupt, nil
}

// declare stores the life of keys, once, before the manager's first write.
func (m *Manager) declare(ctx context.Context) error {
	err := m.life.Declare(ctx, m.category)
	if corrupt, ok := errors.AsType[*removal.CorruptKeyLifeError](err); ok {
		return &intentlog.CorruptError{Stream: corrupt.Stream, Position: corrupt.Position, Rule: corrupt.Rule}
	}
	return ofConfig(err)
}
