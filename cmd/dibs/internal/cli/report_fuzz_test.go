package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

func FuzzReportsAreRefusedOrTold(f *testing.F) {
	f.Add("stream", "type", "name", "account", "x", 1)
	f.Add("stream", "stream", "", "", "", -1)
	f.Add("message", "", "size", "a\x00", "\xff", 0)
	f.Add("stream", "", "", "a\x00", "", 0) // nul
	f.Fuzz(func(t *testing.T, one, two, sort, category, containing string, limit int) {
		known := map[string]bool{"stream": true, "type": true, "category": true}
		sorts := map[string]bool{"": true, "name": true, "messages": true, "bytes": true, "last": true}
		text := func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") && len(s) <= 8192 }
		q := report.Query{By: []report.Key{report.Key(one), report.Key(two)}, Sort: report.Order(sort), Category: category, Containing: containing, Limit: limit}
		if two == "" {
			q.By = q.By[:1]
		}
		err := checkReport(q)
		require.Equal(t, known[one] && (two == "" || known[two] && one != two) && sorts[sort] && text(category) && text(containing) && limit >= 0, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, messagestore.ErrInvalid)
			require.Less(t, len(err.Error()), 1500)
		}
	})
}
