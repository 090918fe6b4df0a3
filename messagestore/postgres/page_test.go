package postgres_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A page ends before it is too large to hold, and the next goes on from there.
func TestAPageOfLargeMessagesEndsEarly(t *testing.T) {
	t.Parallel()
	const messages, size, pageBytes = 50, 700_000, 16 << 20
	category := storetest.Category(t)
	store := must.New(messagestore.New(must.New(postgres.New(pgtest.Pool(t), nil)), nil))
	body := messagestore.Raw{Type: "T", Data: json.RawMessage(fmt.Sprintf(`{"note": %q}`, strings.Repeat("x", size)))}
	for range messages / 10 {
		must.Do(store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, body, body, body, body, body, body, body, body, body, body))(t)
	}
	q := messagestore.CategoryQuery{Category: category, Limit: messages}
	for _, want := range []int{23, 23, 4} {
		page := must.Do(store.ReadCategoryPage(t.Context(), q))(t)
		require.Len(t, page.Messages, want)
		require.LessOrEqual(t, want*len(body.Data), pageBytes)
		require.Equal(t, page.Messages[want-1].GlobalPosition+1, page.Next)
		require.Equal(t, want == 23, page.More)
		q.From = page.Next
	}
	n := messagestore.Version(0)
	for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, n, m.Position)
		n++
	}
	require.Equal(t, messagestore.Version(messages), n)
}
