package idempotency_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// The programs of docs/intents.md, which shows parts of them word for word.

func serves(mux *http.ServeMux, store *messagestore.Store, pay http.HandlerFunc) error {
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		return err
	}
	once, err := idempotency.New(intents, &idempotency.Config{Scope: client}) // func(*http.Request) (string, error)
	if err != nil {
		return err
	}
	mux.Handle("POST /payments", once.HandlerFunc(pay)) // func(http.ResponseWriter, *http.Request)
	return nil
}

func paysAndAnswers(ctx context.Context, txs *messagestore.TxStore[pgx.Tx], account string, receipt []byte) error {
	_, err := txs.Transact(ctx, func(_ context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		if _, err := tx.Exec(ctx, "insert into payments values ($1, $2)", account, receipt); err != nil {
			return nil, err
		}
		return idempotency.Response{Status: http.StatusCreated, Body: receipt}.Write(ctx)
	})
	return err
}

func TestTheRecipeOfOneTransactionPaysOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	_, err := pool.Exec(t.Context(), "create table payments (account text, receipt bytea)")
	require.NoError(t, err)
	txs, err := messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)))
	require.NoError(t, err)
	mux := http.NewServeMux()
	require.NoError(t, serves(mux, txs.Store, func(w http.ResponseWriter, r *http.Request) {
		if err := paysAndAnswers(r.Context(), txs, "29401", []byte("paid")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))

	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(`{"amount":10}`))
		r.Header.Set("Idempotency-Key", "29401/1998-12")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code, w.Body)
		require.Equal(t, "paid", w.Body.String())
	}

	var rows int
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from payments").Scan(&rows))
	require.Equal(t, 1, rows)
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from payments p join dibs.messages m on m.xmin = p.xmin where m.type = 'Confirmed'").Scan(&rows))
	require.Equal(t, 1, rows, "the row and the response are of one transaction")
}
