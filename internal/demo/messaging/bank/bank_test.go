package bank_test

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/internal/testkit"
)

// orderOf returns an order that a bank treats in a mood.
func orderOf(b *bank.Bank, mood bank.Mood) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint("o", i); b.MoodOf(id) == mood {
			return id
		}
	}
}

func command(t *testing.T, b *bank.Bank, do, order string) (status int) {
	t.Helper()
	defer func() {
		if recover() != nil {
			status = 0 // the connection was closed
		}
	}()
	w := httptest.NewRecorder()
	body := fmt.Sprintf(`{"do":%q,"order":%q,"from":"1","to":"2","amount":30}`, do, order)
	b.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(body)))
	return w.Code
}

func sum(t *testing.T, db *sql.DB, order string) (state string, money int64, entries int) {
	t.Helper()
	err := db.QueryRowContext(t.Context(), "select state from payments where order_id = $1", order).Scan(&state)
	if err != nil {
		require.ErrorIs(t, err, sql.ErrNoRows)
	}
	require.NoError(t, db.QueryRowContext(t.Context(), "select coalesce(sum(amount), 0), count(*) from entries where order_id = $1", order).Scan(&money, &entries))
	return state, money, entries
}

// In each mood the bank pays once, and a cancel leaves no money with it, be it first or last.
func TestTheBankKeepsItsBooksInEveryMood(t *testing.T) {
	t.Parallel()
	for mood := bank.Prompt; mood <= bank.Absents; mood++ {
		t.Run(fmt.Sprint("mood ", mood), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "bank.db")
			synctest.Test(t, func(t *testing.T) {
				db, err := bank.Open(t.Context(), path)
				require.NoError(t, err)
				defer db.Close()
				b := bank.New(db, "http://nobody", 7)
				order := orderOf(b, mood)
				var posting sync.WaitGroup
				for range 5 { // one after the other, without waiting for one that hangs
					posting.Go(func() { command(t, b, "pay", order) })
					time.Sleep(50 * time.Millisecond)
				}
				time.Sleep(6 * time.Minute)
				posting.Wait()

				state, money, entries := sum(t, db, order)
				if mood == bank.Refuses {
					require.Equal(t, bank.Refused, state)
					require.Zero(t, entries)
				} else {
					require.Equal(t, bank.Paid, state)
					require.Equal(t, []int64{30, 1}, []int64{money, int64(entries)})
				}
				for range 5 {
					command(t, b, "cancel", order)
				}
				state, money, _ = sum(t, db, order)
				if mood != bank.Refuses {
					require.Equal(t, bank.Reversed, state)
				}
				require.Zero(t, money)
			})
		})
	}
}

// An order that was cancelled before the bank came to it is not paid.
func TestTheBankRemembersACancelThatCameFirst(t *testing.T) {
	t.Parallel()
	for _, mood := range []bank.Mood{bank.Prompt, bank.Delays, bank.Absents, bank.Hangs} {
		t.Run(fmt.Sprint("mood ", mood), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "bank.db")
			synctest.Test(t, func(t *testing.T) {
				db, err := bank.Open(t.Context(), path)
				require.NoError(t, err)
				defer db.Close()
				b := bank.New(db, "http://nobody", 7)
				order := orderOf(b, mood)
				if mood == bank.Prompt {
					require.Equal(t, http.StatusOK, command(t, b, "cancel", order))
				}
				var posting sync.WaitGroup
				posting.Go(func() { command(t, b, "pay", order) })
				time.Sleep(50 * time.Millisecond)
				require.Equal(t, http.StatusOK, command(t, b, "cancel", order))
				time.Sleep(20 * time.Second)
				posting.Wait()

				state, money, entries := sum(t, db, order)
				require.Equal(t, bank.Cancelled, state)
				require.Zero(t, money)
				require.Zero(t, entries)
			})
		})
	}
}

// Each webhook is sent as often as it was drawn, and again until it is taken.
func TestWebhooksAreSentUntilTheyAreTaken(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls, taken := 0, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls < 3 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		taken[string(body)]++
	}))
	defer server.Close()
	db, err := bank.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"))
	require.NoError(t, err)
	defer db.Close()
	b := bank.New(db, server.URL, 7)
	require.Equal(t, http.StatusOK, command(t, b, "pay", orderOf(b, bank.Prompt)))
	go func() { _ = b.Run(t.Context()) }()

	testkit.AwaitEqual(t, "webhooks unsent", 0, func() (left int) {
		require.NoError(t, db.QueryRowContext(t.Context(), "select sum(copies) from webhooks").Scan(&left))
		return left
	})
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, taken, 1)
	for _, n := range taken {
		require.LessOrEqual(t, n, 3)
	}
}
