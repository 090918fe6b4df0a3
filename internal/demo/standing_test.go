package demo

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestStandingOrdersArePaidOnceInOrderThroughAKillAndAStop(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(t *testing.T) string{
		"SQLite":     func(*testing.T) string { return "" },
		"PostgreSQL": func(t *testing.T) string { t.Helper(); return pgtest.URL(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer

			code := Standing(t.Context(), []string{"demo", "--store", store(t), "--orders", writeOrders(t, 60), "--month", "1s", "--limit", "4m"}, &stdout, &stderr)

			require.Zero(t, code, "%s\n%s", &stdout, &stderr)
			out := stdout.String()
			require.Contains(t, out, "killed with SIGKILL")
			require.Contains(t, out, "goes on, past the end of its session")
			require.NotContains(t, out, "DIFFERS")
		})
	}
}

func TestWrongCallsOfTheStandingDemoEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"demo", "--orders", "nowhere.csv"}, {"demo", "--orders", writeOrders(t, 2)}, {"demo", "--store", "memory:"}, {"nonsense"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, Standing(t.Context(), args, &stdout, &stderr), "%s %s", args, &stderr)
	}
}
