package report

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

func FuzzQueriesAreRefusedOrTold(f *testing.F) {
	f.Add("stream", "type", "name", "account", "x", 1)
	f.Add("stream", "stream", "", "", "", -1)
	f.Add("message", "", "size", "a\x00", "\xff", 0)
	f.Add("stream", "", "", "a\x00", "", 0) // nul
	f.Fuzz(func(t *testing.T, one, two, sort, category, containing string, limit int) {
		known := map[string]bool{"stream": true, "type": true, "category": true}
		sorts := map[string]bool{"": true, "name": true, "messages": true, "bytes": true, "last": true}
		text := func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") && len(s) <= 8192 }
		q := Query{By: []Key{Key(one), Key(two)}, Sort: Order(sort), Category: messagestore.Category(category), Containing: containing, Limit: limit}
		if two == "" {
			q.By = q.By[:1]
		}
		err := q.validate()
		require.Equal(t, known[one] && (two == "" || known[two] && one != two) && sorts[sort] && text(category) && text(containing) && limit >= 0, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Less(t, len(err.Error()), 1500)
		}
	})
}

func TestAStoreThatCannotReportSaysSo(t *testing.T) {
	t.Parallel()
	q := Query{By: []Key{ByStream}}

	_, err := Of(t.Context(), nil, q)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = Of(t.Context(), &messagestore.Store{}, q)
	require.ErrorContains(t, err, "is the zero Store")
	_, err = Of(nil, testkit.Must(messagestore.New(single{}, nil)), q) //nolint:staticcheck // the mistake
	require.ErrorContains(t, err, "invalid context")
	_, err = Of(t.Context(), testkit.Must(messagestore.New(single{}, nil)), q)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// single is a driver that cannot count.
type single struct{ messagestore.Driver }
