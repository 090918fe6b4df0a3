package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// CardCategory is the category of the changes of cards, for a relay that sends them.
const CardCategory messagestore.Category = "dibs:health"

// cardStream has all changes, in their order.
var cardStream = CardCategory.Stream("cards")

const (
	maxCards = 500 // that are kept: the worst
	worseBy  = 2   // times as many items as were told of last
)

// A Card is a [Cause] from when it was raised until it is resolved.
type Card struct {
	Kind     Kind                  `json:"kind"`
	Category messagestore.Category `json:"category"`
	Name     string                `json:"name"`
	What     string                `json:"what"`
	Says     string                `json:"says,omitempty"`
	Fails    bool                  `json:"fails,omitempty"`
	Count    int64                 `json:"count,omitempty"` // when it was raised, or got worse last
	Raised   time.Time             `json:"raised"`          // by the store's clock
}

// A CardChange is the message that a card was raised, got worse or was resolved.
type CardChange struct {
	Card

	Change string    `json:"-"` // CardRaised, CardGotWorse or CardResolved: the message's type
	Time   time.Time `json:"-"` // of the message

	// Open are all cards that are open afterwards, in the last message of those written at once.
	Open []Card `json:"open,omitempty"`
}

// The changes.
const (
	CardRaised   = "CardRaised"
	CardGotWorse = "CardGotWorse"
	CardResolved = "CardResolved"
)

// MessageType implements [messagestore.Body].
func (c CardChange) MessageType() string { return c.Change }

func (c Card) id() string { return fmt.Sprintf("%s %q %q %s", c.Kind, c.Category, c.Name, c.What) }

// RecordCards writes what has changed since the last call, by any process, and returns how many
// changes that were. It writes nothing if nothing has changed, or if another process writes at the same
// time. The healths are all of [Healths], read at the given time.
func RecordCards(ctx context.Context, store *messagestore.Store, healths []Health, now time.Time) (int, error) {
	version, before := messagestore.NoStream, []Card(nil)
	last, err := store.Last(ctx, cardStream)
	switch {
	case err == nil:
		version = last.Position
		if change, is := readCardChange(last); is { // else it is a tombstone, or of another client
			before = change.Open
		}
	case !errors.Is(err, messagestore.ErrNotFound):
		return 0, err
	}
	changes, open := cardChanges(before, cardsOf(healths, now))
	if len(changes) == 0 {
		return 0, nil
	}
	changes[len(changes)-1].Open = open
	bodies := make([]messagestore.Body, len(changes))
	for i, c := range changes {
		bodies[i] = c
	}
	_, err = store.Write(ctx, cardStream, version, bodies...)
	if errors.Is(err, messagestore.ErrVersionConflict) {
		return 0, nil
	}
	return len(changes), err
}

func cardsOf(healths []Health, now time.Time) (all []Card) {
	for _, h := range healths {
		for _, c := range h.Causes {
			if len(all) < maxCards {
				all = append(all, Card{h.Kind, h.Category, h.Name, c.What, text.Cut(200, c.Says), c.Fails, c.Count, now.UTC()})
			}
		}
	}
	return all
}

// cardChanges returns what has changed, and the cards that are open afterwards.
func cardChanges(before, now []Card) (changes []CardChange, open []Card) {
	was := map[string]Card{}
	for _, c := range before {
		was[c.id()] = c
	}
	for _, c := range now {
		old, is := was[c.id()]
		delete(was, c.id())
		switch {
		case !is:
			changes = append(changes, CardChange{Card: c, Change: CardRaised})
		case c.Fails && !old.Fails, old.Count > 0 && c.Count >= worseBy*old.Count:
			c.Raised = old.Raised
			changes = append(changes, CardChange{Card: c, Change: CardGotWorse})
		default:
			c = old
		}
		open = append(open, c)
	}
	for _, c := range before {
		if _, gone := was[c.id()]; gone {
			delete(was, c.id())
			changes = append(changes, CardChange{Card: c, Change: CardResolved})
		}
	}
	slices.SortFunc(open, func(a, b Card) int { return cmp.Compare(a.id(), b.id()) })
	return changes, open
}

func readCardChange(m *messagestore.Message) (c CardChange, is bool) {
	is = slices.Contains([]string{CardRaised, CardGotWorse, CardResolved}, m.Type) && json.Unmarshal(m.Data, &c) == nil
	c.Change, c.Time = m.Type, m.Time
	return c, is
}

// CardHistory returns the last changes of cards, the newest first. It passes over what others have
// written among them.
func CardHistory(ctx context.Context, store *messagestore.Store, n int) (all []CardChange, err error) {
	last, err := store.Version(ctx, cardStream)
	if err != nil || n <= 0 {
		return nil, err
	}
	for m, err := range store.ReadStream(ctx, cardStream, max(last-messagestore.Version(n)+1, 0)) { // backwards it would read more
		if err != nil {
			return nil, err
		}
		if change, is := readCardChange(m); is {
			change.Open = nil
			all = append(all, change)
		}
	}
	slices.Reverse(all)
	return all, nil
}
