package intent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestACorruptStreamHidesNoIntent(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m, err := intent.New(store, "payment:intent", nil)
	require.NoError(t, err)
	for i := range 12 {
		_, err := store.Write(t.Context(), messagestore.StreamName(fmt.Sprintf("payment:intent-s+corrupt%02d", i)), messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
	for _, key := range []string{"corrupt11", "a"} { // the last message decides
		_, _, err = store.TryWrite(t.Context(), messagestore.StreamName("payment:intent-s+"+key), messagestore.AnyVersion,
			intentlog.Reserved{Grant: intentlog.Grant{Session: "A", Attempt: 1, TTL: 60_000, Content: "c"}})
		require.NoError(t, err)
	}

	all, err := m.List(t.Context(), intent.Filter{})

	require.Len(t, all, 2)
	require.ErrorIs(t, err, intent.ErrCorrupt)
	require.ErrorContains(t, err, "payment:intent-s+corrupt00@0: a message of the type")
	require.ErrorContains(t, err, "; and 1 more")
	require.NotContains(t, err.Error(), "corrupt11")
	var inPages []intent.Intent
	page, corrupt := intent.Page{More: true}, 0
	for page.More {
		page, err = m.ListPage(t.Context(), intent.Filter{}, page.Next, 1)
		inPages = append(inPages, page.Intents...)
		if err != nil {
			require.ErrorIs(t, err, intent.ErrCorrupt)
			corrupt++
		}
	}
	require.ElementsMatch(t, keysOf(all), keysOf(inPages))
	require.Positive(t, corrupt)
	none, err := m.List(t.Context(), intent.Filter{Scope: "other"})
	require.NoError(t, err, "a stream of another scope is not read")
	require.Empty(t, none)
}

func keysOf(all []intent.Intent) (keys []string) {
	for _, i := range all {
		keys = append(keys, i.Key)
	}
	return keys
}

// A readingStore counts the messages that it has read of a category, and its reads of streams.
type readingStore struct {
	*messagestore.Store
	messages int
	lasts    atomic.Int64
}

func (s *readingStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := s.Store.ReadCategoryPage(ctx, q)
	s.messages += len(page.Messages)
	return page, err
}

func (s *readingStore) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	s.lasts.Add(1)
	return s.Store.Last(ctx, stream)
}

// However long a category is, one page of a list reads a part of it.
func TestAPageOfAListReadsABoundedPart(t *testing.T) {
	t.Parallel()
	store := &readingStore{Store: testkit.Must(messagestore.New(memory.New(), nil))}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m, err := intent.New(store, "payment:intent", &intent.Config{TTL: time.Hour})
	require.NoError(t, err)
	for i := range 6000 {
		r := intent.Request{Key: fmt.Sprint(i), Session: "A", Content: "c"}
		l := lease(t, m, r)
		if i != 10 && i != 5990 {
			require.NoError(t, l.Confirm(t.Context(), nil))
		}
	}
	for limit, want := range map[int]struct{ messages, pages int }{1: {1000, 12}, 1000: {10_000, 2}} {
		var keys []string
		pages := 0
		for page := (intent.Page{More: true}); page.More; pages++ {
			store.messages = 0
			store.lasts.Store(0)
			page, err = m.ListPage(t.Context(), intent.Filter{}, page.Next, limit)
			require.NoError(t, err)
			require.LessOrEqual(t, store.messages, want.messages)
			require.LessOrEqual(t, store.lasts.Load(), int64(100), "a lease that is done in the page is not looked for")
			keys = append(keys, keysOf(page.Intents)...)
		}
		require.Equal(t, []string{"10", "5990"}, keys)
		require.InDelta(t, want.pages, pages, 2)
	}
}
