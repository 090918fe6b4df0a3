package operate

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// A Group is the items, or the sagas, that have the same error but for the numbers and ids in it.
type Group struct {
	Error  string // of the newest
	Count  int
	Oldest time.Time // when its message was written, or the saga started; zero for a message that was removed
	Newest time.Time

	Position messagestore.GlobalPosition // of the newest item
	ID       string                      // of the newest saga
}

// Groups groups items by their error, the largest group first. Of an error it compares the first
// line, without words that have a digit.
func Groups(items iter.Seq2[queue.Item, error]) ([]Group, error) {
	by := groups{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		one := Group{Error: item.Error, Position: item.Position}
		if item.Message != nil {
			one.Newest = item.Message.Time
		}
		by.add(one)
	}
	return by.sorted(), nil
}

// SagaGroups is [Groups] for sagas. The error of a saga is its reason, or else that of the last
// attempt at its step.
func SagaGroups(sagas iter.Seq2[Saga, error]) ([]Group, error) {
	by := groups{}
	for s, err := range sagas {
		if err != nil {
			return nil, err
		}
		by.add(Group{Error: errorOf(s), ID: s.ID, Newest: s.Started})
	}
	return by.sorted(), nil
}

func errorOf(s Saga) string { return cmp.Or(s.Reason, s.Error) }

type groups map[string]*Group

func (by groups) add(one Group) {
	kind := kindOf(one.Error)
	g := by[kind]
	if g == nil {
		g = &Group{Oldest: one.Newest}
		by[kind] = g
	}
	if one.Newest.Before(g.Oldest) {
		g.Oldest = one.Newest
	}
	if g.Count++; !one.Newest.Before(g.Newest) {
		g.Newest, g.Error, g.Position, g.ID = one.Newest, one.Error, one.Position, one.ID
	}
}

func (by groups) sorted() []Group {
	all := make([]Group, 0, len(by))
	for _, g := range by {
		all = append(all, *g)
	}
	slices.SortFunc(all, func(a, b Group) int { return cmp.Or(b.Count-a.Count, strings.Compare(a.Error, b.Error)) })
	return all
}

func kindOf(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(line)
	for i, word := range words {
		if strings.ContainsAny(word, "0123456789") {
			words[i] = "#"
		}
	}
	return strings.Join(words, " ")
}
