// Package tails finds the last message of each stream and type of a category.
package tails

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// A Store reads a category. A store with the methods Driver and Count of [messagestore.Store]
// counts. Any other reads the whole category.
type Store interface {
	ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error)
}

type counter interface {
	report.Store
	Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error)
}

// A Tail is the last message of one type in one stream.
type Tail struct {
	Position messagestore.Version
	Global   messagestore.GlobalPosition
	At       time.Time
}

// Types are the tails of one stream, by message type.
type Types map[string]Tail

// Has reports whether the stream has a message of body's type.
func (t Types) Has(body messagestore.Body) bool {
	_, ok := t[body.MessageType()]
	return ok
}

// Of returns the tails of every stream of category: of all types, or of those named. A
// store that can report ignores the names.
func Of(ctx context.Context, store Store, category messagestore.Category, types []string) (map[messagestore.StreamName]Types, error) {
	all := map[messagestore.StreamName]Types{}
	note := func(stream messagestore.StreamName, messageType string, t Tail) {
		if all[stream] == nil {
			all[stream] = Types{}
		}
		all[stream][messageType] = t
	}
	if s, ok := store.(counter); ok {
		counts, err := report.Of(ctx, s, report.Query{By: []report.Key{report.ByStream, report.ByType}, Category: category})
		for _, row := range counts.Rows {
			note(messagestore.StreamName(row.Names[0]), row.Names[1], Tail{row.LastPosition, row.LastGlobalPosition, row.Last})
		}
		if !errors.Is(err, messagestore.ErrNotSupported) {
			return all, err
		}
	}
	q := messagestore.CategoryQuery{Category: category, Limit: 100, Filter: messagestore.Filter{Types: types}} // messages may be large
	for more := true; more; {
		page, err := store.ReadCategoryPage(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			note(m.Stream, m.Type, Tail{m.Position, m.GlobalPosition, m.Time})
		}
		q.From, more = page.Next, page.More
	}
	return all, nil
}

// Count returns the number of messages for q, up to q.Limit.
func Count(ctx context.Context, store Store, q messagestore.CategoryQuery) (int64, error) {
	if s, ok := store.(counter); ok {
		n, err := s.Count(ctx, q)
		if !errors.Is(err, messagestore.ErrNotSupported) {
			return n, err
		}
	}
	most := int64(q.Limit)
	var n int64
	for more := true; more && n < most; {
		q.Limit = int(min(most-n, 1000))
		page, err := store.ReadCategoryPage(ctx, q)
		if err != nil {
			return 0, err
		}
		n += int64(len(page.Messages))
		q.From, more = page.Next, page.More
	}
	return n, nil
}

// First returns the first message for q, nil if there is none.
func First(ctx context.Context, store Store, q messagestore.CategoryQuery) (*messagestore.Message, error) {
	q.Limit = 1
	for {
		page, err := store.ReadCategoryPage(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case len(page.Messages) > 0:
			return page.Messages[0], nil
		case !page.More:
			return nil, nil
		}
		q.From = page.Next
	}
}
