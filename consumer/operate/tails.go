package operate

import (
	"context"
	"errors"
	"time"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// A tail is the last message of one type in one stream.
type tail struct {
	Position messagestore.Version
	Global   messagestore.GlobalPosition
	At       time.Time
}

// types are the tails of one stream, by message type.
type types map[string]tail

// has reports whether the stream has a message of body's type.
func (t types) has(body messagestore.Body) bool {
	_, ok := t[body.MessageType()]
	return ok
}

// tailsOf returns the last message of each type in every stream of category.
func tailsOf(ctx context.Context, store *messagestore.Store, category messagestore.Category) (map[messagestore.StreamName]types, error) {
	all := map[messagestore.StreamName]types{}
	q := report.Query{By: []report.Key{report.ByStream, report.ByType}, Category: string(category)}
	counts, err := report.Of(ctx, store, q)
	for _, row := range counts.Rows {
		stream := messagestore.StreamName(row.Names[0])
		if all[stream] == nil {
			all[stream] = types{}
		}
		all[stream][row.Names[1]] = tail{messagestore.Version(row.LastPosition), messagestore.GlobalPosition(row.LastGlobalPosition), row.Last}
	}
	return all, err
}

// count returns the number of messages for q, up to q.Limit.
func count(ctx context.Context, store *messagestore.Store, q messagestore.CategoryQuery) (int64, error) {
	n, err := store.Count(ctx, q)
	if !errors.Is(err, messagestore.ErrNotSupported) {
		return n, err
	}
	most := int64(q.Limit)
	n = 0
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

// firstMessage returns the first message for q, or nil.
func firstMessage(ctx context.Context, store *messagestore.Store, q messagestore.CategoryQuery) (*messagestore.Message, error) {
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
