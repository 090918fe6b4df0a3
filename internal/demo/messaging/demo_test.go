package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"serve", "go", "relay", "bank", "broker"}, os.Args[1]) {
		os.Exit(demo.Program(run).Run())
	}
	if err := os.Unsetenv(demo.StoreVariable); err != nil { // the demo is told its store
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// writeOrders writes the first n orders of the demo's file to a file of its own.
func writeOrders(t *testing.T, n int) string {
	t.Helper()
	raw, err := os.ReadFile("../testdata/payment-orders.csv")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "orders.csv")
	lines := bytes.SplitAfterN(raw, []byte("\n"), n+2)
	require.NoError(t, os.WriteFile(path, bytes.Join(lines[:n+1], nil), 0o600))
	return path
}

// absent returns a seed by which the bank is absent from some orders of accounts with enough money:
// those it has to cancel.
func absent(t *testing.T, orders string) (seed uint64) {
	t.Helper()
	all, err := demo.ReadOrders(orders)
	require.NoError(t, err)
	for n := 0; n < 2; {
		seed, n = seed+1, 0
		for _, o := range all {
			if bank.New(nil, "", seed).MoodOf(o.ID) == bank.Absents && demo.Hash(o.Account)%poorEvery != 0 {
				n++
			}
		}
	}
	return seed
}

func TestTransfersAgreeThroughKills(t *testing.T) {
	t.Parallel()
	orders := writeOrders(t, 120)
	seed := fmt.Sprint(absent(t, orders))
	for _, test := range []struct {
		name  string
		store func(t *testing.T) string
	}{
		{"SQLite", func(*testing.T) string { return "" }},
		{"PostgreSQL", func(t *testing.T) string { t.Helper(); return pgtest.URL(t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer

			code := run(t.Context(), []string{
				"demo", "--store", test.store(t), "--orders", orders, "--seed", seed, "--kills", "6", "--away", "500ms", "--limit", "4m",
			}, &stdout, &stderr)

			require.Zero(t, code, "%s\n%s", &stdout, &stderr)
			out := stdout.String()
			require.Contains(t, out, "JetStream is stopped")
			require.Contains(t, out, "Every order was carried out once or undone")
			require.Contains(t, out, "What became of order")
			require.Regexp(t, `cancelled before the bank had paid +[1-9]`, out)
			require.NotContains(t, out, "DIFFERS")
		})
	}
}

func TestEveryOrderIsInThePlan(t *testing.T) {
	orders, err := demo.ReadOrders("")
	require.NoError(t, err)
	p := newPlan(orders, 7)

	require.Len(t, p.orders, 4334)
	require.Equal(t, 44, p.planted)
	require.Equal(t, p, newPlan(orders, 7), "it follows from the seed")
	copies, planted := map[string]int{}, 0
	for _, s := range p.sendings {
		if s.planted {
			require.Positive(t, copies[s.ID], "there was an order to reuse the key of")
			require.NotEqual(t, p.orders[s.at], s.Transfer)
			planted++
			continue
		}
		require.Equal(t, p.orders[s.at], s.Transfer)
		copies[s.ID]++
	}
	require.Len(t, copies, 4334)
	require.Equal(t, p.planted, planted)
	for id, n := range copies {
		require.True(t, n >= 1 && n <= maxCopies, id)
	}
	poor := 0
	for id, balance := range p.balances {
		require.GreaterOrEqual(t, balance, int64(0), id)
		if demo.Hash(id)%poorEvery == 0 {
			poor++
		}
	}
	require.Greater(t, poor, 100)
}

func TestWrongCallsEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"demo", "--orders", "no-such-file"}, {"demo", "--store", "memory:"}} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &stdout, &stderr), args)
		require.NotEmpty(t, stderr.String())
	}
}
