package intent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
)

// Lookup returns the current state of an intent. If the intent was never reserved, the error
// matches [messagestore.ErrNotFound].
func (m *Manager) Lookup(ctx context.Context, scope, key string) (Intent, error) {
	i, err := m.look(ctx, scope, key)
	if err != nil {
		return Intent{}, fmt.Errorf("look up intent: %w", err)
	}
	return i, nil
}

func (m *Manager) look(ctx context.Context, scope, key string) (Intent, error) {
	if err := ended(ctx); err != nil {
		return Intent{}, err
	}
	stream, err := m.Stream(scope, key)
	if err != nil {
		return Intent{}, err
	}
	if m.over != nil {
		return m.over.Lookup(ctx, scope, key)
	}
	s, now, err := m.lookAt(ctx, stream)
	if err != nil {
		return Intent{}, err
	}
	return intentOf(s, now, m.config.Turn), nil
}

// lookAt returns the state of an intent and, if it has a lease, the store's time.
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
	if err := ended(ctx); err != nil {
		return Intent{}, fmt.Errorf("await intent: %w", err)
	}
	stream, err := m.Stream(scope, key)
	if err != nil {
		return Intent{}, fmt.Errorf("await intent: %w", err)
	}
	if m.over != nil {
		i, err := m.over.Await(ctx, scope, key)
		if err != nil {
			return Intent{}, fmt.Errorf("await %s: %w", stream, err)
		}
		return i, nil
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
	if err := ended(ctx); err != nil {
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
	if m.over != nil {
		return m.over.ForceRelease(ctx, scope, key, reason)
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
// of the category from [Filter.Since] on, and keeps the last message of each matching intent: for a
// category with millions of them use [Manager.ListPage]. The error matches
// [messagestore.ErrNotSupported] if the store is not a [CategoryStore].
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
	if m.over != nil {
		return m.listOver(ctx, filter)
	}
	store, err := m.toList(ctx, &filter)
	if err != nil {
		return nil, err
	}
	from, err := m.since(ctx, store, filter)
	if err != nil {
		return nil, err
	}
	found := lastStates{}
	scope := m.scoped(filter.Scope)
	for more := true; more; {
		page, err := store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: m.category, From: from, Limit: maxListed})
		if err != nil {
			return nil, err
		}
		found.add(page.Messages, &filter, scope)
		from, more = page.Next, page.More
	}
	now, err := m.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	var all []Intent
	corrupt := map[messagestore.StreamName]error{}
	for stream, s := range found {
		if s.err != nil {
			corrupt[stream] = s.err
		} else if i := intentOf(s.State, now, m.config.Turn); filter.chooses(&i) {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, byGrant)
	if len(corrupt) > 0 {
		return all, newCorruptStreams(corrupt)
	}
	return all, nil
}

func byGrant(a, b Intent) int {
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Stream, b.Stream))
}

// The bounds of one call of [Manager.ListPage]: of the messages of one read of the category, of the
// reads, and of the intents.
const (
	minListed   = 100
	maxListed   = 1000
	listedReads = 10
)

// A Page is a part of a list of intents.
type Page struct {
	Intents []Intent

	// Next is where the next page begins, if there is More. A page may be empty and not the last.
	Next messagestore.GlobalPosition
	More bool
}

// ListPage is [Manager.List] in pages of 1 to 1,000 intents, in the order of their last messages.
// From is [Page.Next] of the page before, and 0 for the first page, which begins at [Filter.Since].
//
// One call reads at most ten times as many messages of the category as limit, or 1,000, and the last
// message of each intent that it finds there. An intent that filter chooses all the time is in one
// of the pages; one that changes meanwhile may be in two, the second time as it is then.
//
// With an error that matches [ErrCorrupt] the page is good all the same, as with List.
func (m *Manager) ListPage(ctx context.Context, filter Filter, from messagestore.GlobalPosition, limit int) (Page, error) {
	page, err := m.listPage(ctx, filter, from, limit)
	if err != nil {
		return page, fmt.Errorf("list intents of %s: %w", m.category, err)
	}
	return page, nil
}

func (m *Manager) listPage(ctx context.Context, filter Filter, from messagestore.GlobalPosition, limit int) (Page, error) {
	switch {
	case limit < 1 || limit > maxListed:
		return Page{}, messagestore.NewInvalidError("limit", limit, fmt.Sprintf("must be between 1 and %d", maxListed))
	case from < 0:
		return Page{}, messagestore.NewInvalidError("position", int64(from), "must be at least 0")
	}
	store, err := m.toList(ctx, &filter)
	if err != nil {
		return Page{}, err
	}
	if m.over != nil {
		return m.over.ListPage(ctx, filter, from, limit)
	}
	if from == 0 {
		if from, err = m.since(ctx, store, filter); err != nil {
			return Page{}, err
		}
	}
	listed := Page{Next: from, More: true}
	corrupt := map[messagestore.StreamName]error{}
	for read := 0; read < listedReads && listed.More && len(listed.Intents) < limit; read++ {
		q := messagestore.CategoryQuery{Category: m.category, From: listed.Next, Limit: max(limit, minListed)}
		page, err := store.ReadCategoryPage(ctx, q)
		if err != nil {
			return Page{}, err
		}
		chosen, now, err := m.choose(ctx, page, filter)
		if err != nil {
			return Page{}, err
		}
		listed.Next, listed.More = page.Next, page.More
		if rest := limit - len(listed.Intents); len(chosen) > rest {
			chosen = chosen[:rest]
			listed.Next, listed.More = chosen[rest-1].Place.GlobalPosition.Next(), true
		}
		for _, s := range chosen {
			if s.err != nil {
				corrupt[s.Place.Stream] = s.err
			} else {
				listed.Intents = append(listed.Intents, intentOf(s.State, now, m.config.Turn))
			}
		}
	}
	if len(corrupt) > 0 {
		return listed, newCorruptStreams(corrupt)
	}
	return listed, nil
}

// choose returns those of the intents with a message in the page that are still as it has them, in
// the order of their last messages, and the store's time.
func (m *Manager) choose(ctx context.Context, page messagestore.CategoryPage, filter Filter) ([]lastState, time.Time, error) {
	now, err := m.store.Now(ctx)
	if err != nil {
		return nil, now, err
	}
	found := lastStates{}
	found.add(page.Messages, &filter, m.scoped(filter.Scope))
	var chosen []lastState
	for _, s := range found {
		if i := intentOf(s.State, now, m.config.Turn); s.err != nil || filter.chooses(&i) {
			chosen = append(chosen, s)
		}
	}
	slices.SortFunc(chosen, func(a, b lastState) int { return cmp.Compare(a.Place.GlobalPosition, b.Place.GlobalPosition) })
	if page.More {
		chosen, err = m.stillLast(ctx, chosen)
	}
	return chosen, now, err
}

// stillLast returns those of the states that no message follows. The others are in a later page.
func (m *Manager) stillLast(ctx context.Context, all []lastState) ([]lastState, error) {
	errs := make([]error, len(all))
	followed := make([]bool, len(all))
	var reads sync.WaitGroup
	for i, s := range all {
		if s.Done() {
			continue
		}
		reads.Go(func() {
			last, err := m.store.Last(ctx, s.Place.Stream)
			if errs[i] = err; errors.Is(err, messagestore.ErrNotFound) { // it was removed
				errs[i], followed[i] = nil, true
			}
			followed[i] = followed[i] || err == nil && last.Position != s.Place.Position
		})
	}
	reads.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	n := -1
	return slices.DeleteFunc(all, func(lastState) bool { n++; return followed[n] }), nil
}

// toList completes a filter, and returns the store as one that can be listed.
func (m *Manager) toList(ctx context.Context, filter *Filter) (CategoryStore, error) {
	if err := ended(ctx); err != nil {
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
	if !ok && m.over == nil {
		return nil, messagestore.ErrNotSupported
	}
	return store, nil
}

// since returns where the list of a filter begins in the category.
func (m *Manager) since(ctx context.Context, store CategoryStore, filter Filter) (messagestore.GlobalPosition, error) {
	if filter.Since.IsZero() {
		now, err := m.store.Now(ctx)
		if err != nil {
			return 0, err
		}
		filter.Since = now.Add(-intentlog.MaxTTL)
	}
	return store.PositionAt(ctx, m.category, filter.Since)
}

// chooses reports whether the filter chooses an intent, whose scope it was asked about before.
func (f *Filter) chooses(i *Intent) bool {
	return slices.Contains(f.Status, i.Status) && (f.Session == "" || i.Session == f.Session)
}

// lastStates are the last states of intents, and the errors of those that are corrupt.
type lastStates map[messagestore.StreamName]lastState

type lastState struct {
	*intentlog.State

	err error
}

// scoped returns how the names of the streams of intents with a scope begin. Without a scope that is
// "", which begins each name.
func (m *Manager) scoped(scope string) string {
	stream, err := m.Stream(scope, "k")
	if scope == "" || err != nil {
		return scope // no name begins with a scope that is invalid
	}
	return strings.TrimSuffix(string(stream), "k")
}

// add adds messages of streams with a prefix, in their order. It leaves out done intents unless filter
// chooses them.
func (l lastStates) add(messages []*messagestore.Message, filter *Filter, prefix string) {
	done := slices.Contains(filter.Status, Done)
	for _, message := range messages {
		if !strings.HasPrefix(string(message.Stream), prefix) {
			continue
		}
		delete(l, message.Stream)
		if s, err := intentlog.Read(message); err != nil || done || !s.Done() {
			l[message.Stream] = lastState{s, err}
		}
	}
}

// declare stores the life of keys, once, before the manager's first write.
func (m *Manager) declare(ctx context.Context) error {
	err := m.life.Declare(ctx, m.category)
	if corrupt, ok := errors.AsType[*removal.CorruptKeyLifeError](err); ok {
		return &intentlog.CorruptError{Stream: corrupt.Stream, Position: corrupt.Position, Rule: corrupt.Rule}
	}
	return ofConfig(err)
}

// ended returns why a call with ctx is not to begin, or nil.
func ended(ctx context.Context) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	return ctx.Err()
}
