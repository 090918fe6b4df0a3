package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// A bank is a store with a table of payments beside it.
type bank struct {
	store *messagestore.Store
	// pay inserts a payment, and appends the result of write, in one transaction.
	pay func(ctx context.Context, id string, write func() ([]messagestore.StreamWrite, error)) error
	// paid counts the payments of an id.
	paid func(id string) int
}

func eachBank(t *testing.T, test func(t *testing.T, b bank)) {
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); test(t, newSQLiteBank(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); test(t, newPostgresBank(t)) })
}

func newSQLiteBank(t *testing.T) bank {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bank.db")
	driver, err := sqlite.Open(t.Context(), path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = driver.Close() })
	txs, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil)))
	require.NoError(t, err)
	run := func(ctx context.Context, f func(tx *sql.Tx) ([]messagestore.StreamWrite, error)) error {
		_, err := txs.Transact(ctx, func(_ context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			return f(tx)
		})
		return err
	}
	require.NoError(t, run(t.Context(), func(tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.Exec("create table payments (id text)")
		return nil, err
	}))
	return bank{
		store: txs.Store,
		pay: func(ctx context.Context, id string, write func() ([]messagestore.StreamWrite, error)) error {
			return run(ctx, func(tx *sql.Tx) ([]messagestore.StreamWrite, error) {
				if _, err := tx.ExecContext(ctx, "insert into payments values (?)", id); err != nil {
					return nil, err
				}
				return write()
			})
		},
		paid: func(id string) (n int) {
			require.NoError(t, run(context.Background(), func(tx *sql.Tx) ([]messagestore.StreamWrite, error) {
				return nil, tx.QueryRowContext(context.Background(), "select count(*) from payments where id = ?", id).Scan(&n)
			}))
			return n
		},
	}
}

func newPostgresBank(t *testing.T) bank {
	t.Helper()
	pool := pgtest.Pool(t)
	table := pgx.Identifier{"payments_" + uuid.NewString()}.Sanitize()
	_, err := pool.Exec(t.Context(), "create table "+table+" (id text)")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = pool.Exec(context.Background(), "drop table "+table) })
	txs, err := messagestore.Transactional[pgx.Tx](testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)))
	require.NoError(t, err)
	return bank{
		store: txs.Store,
		pay: func(ctx context.Context, id string, write func() ([]messagestore.StreamWrite, error)) error {
			_, err := txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
				if _, err := tx.Exec(ctx, "insert into "+table+" values ($1)", id); err != nil {
					return nil, err
				}
				return write()
			})
			return err
		},
		paid: func(id string) (n int) {
			require.NoError(t, pool.QueryRow(context.Background(), "select count(*) from "+table+" where id = $1", id).Scan(&n))
			return n
		},
	}
}

// ownIntents are those of a category that no other test has.
func (b bank) ownIntents(t *testing.T) *intent.Manager {
	t.Helper()
	m, err := intent.New(b.store, messagestore.Category("payment"+uuid.NewString()[:8]+":intent"), nil)
	require.NoError(t, err)
	return m
}

var receipt = idempotency.Response{
	Status: http.StatusCreated, Header: http.Header{"Location": {"/payments/1"}, "Set-Cookie": {"a=b"}}, Body: []byte(`{"paid":true}`),
}

func TestEffectAndResponseAreOneTransaction(t *testing.T) {
	t.Parallel()
	eachBank(t, func(t *testing.T, b bank) {
		a := newAPIOver(t, b.ownIntents(t), nil, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			if err := b.pay(ctx, "1", func() ([]messagestore.StreamWrite, error) { return receipt.Write(ctx) }); err != nil {
				http.Error(w, "broken", http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, "what the handler writes beside it is not sent")
		})

		first, second := a.do(t, ask{key: "AAA"}), a.do(t, ask{key: "AAA"})

		require.Equal(t, 201, first.status)
		require.Equal(t, `{"paid":true}`, first.body)
		require.Equal(t, "/payments/1", first.header.Get("Location"))
		require.Equal(t, "text/plain; charset=utf-8", first.header.Get("Content-Type"))
		require.Empty(t, first.header.Get("Set-Cookie"))
		require.False(t, first.replayed())
		require.True(t, second.replayed())
		require.Equal(t, first.body, second.body)
		require.Equal(t, 1, b.paid("1"))
		require.EqualValues(t, 1, a.handled.Load())
	})
}

// The handler may misread the end of its transaction: the answer is the intent's.
func TestACommittedResponseIsSentWhateverTheHandlerSays(t *testing.T) {
	t.Parallel()
	eachBank(t, func(t *testing.T, b bank) {
		for name, end := range map[string]func(http.ResponseWriter){
			"nothing":         func(http.ResponseWriter) {},
			"a failure":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
			"another":         func(w http.ResponseWriter) { w.WriteHeader(http.StatusConflict) },
			"one too large":   func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1<<20)) },
			"half of one":     func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9"); fmt.Fprint(w, "half") },
			"to be forgotten": func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
			"a panic":         func(http.ResponseWriter) { panic("broken") },
		} {
			a := newAPIOver(t, b.ownIntents(t), nil, func(w http.ResponseWriter, r *http.Request) {
				ctx := r.Context()
				if err := b.pay(ctx, name, func() ([]messagestore.StreamWrite, error) { return receipt.Write(ctx) }); err != nil {
					panic(err)
				}
				end(w) // as if the answer to COMMIT had been lost
			})
			quiet(a)

			first, err := a.try(t.Context(), ask{key: "AAA"})
			second := a.do(t, ask{key: "AAA"})

			if require.Equal(t, name == "a panic", err != nil, name); err == nil {
				require.Equal(t, 201, first.status, name)
				require.Equal(t, string(receipt.Body), first.body, name)
			}
			require.True(t, second.replayed(), name)
			require.Equal(t, string(receipt.Body), second.body, name)
			require.Equal(t, 1, b.paid(name), name)
		}
	})
}

func TestAResponseOfATransactionThatWasUndoneIsTheHandlers(t *testing.T) {
	t.Parallel()
	eachBank(t, func(t *testing.T, b bank) {
		poor := errors.New("not enough money")
		for name, test := range map[string]struct {
			answer  func(http.ResponseWriter)
			status  int
			handled int32
		}{
			"refused":      {func(w http.ResponseWriter) { http.Error(w, "poor", http.StatusPaymentRequired) }, 402, 1},
			"failed":       {func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) }, 500, 2},
			"too large":    {func(w http.ResponseWriter) { _, _ = w.Write(make([]byte, 1<<20)) }, 409, 1},
			"said nothing": {func(http.ResponseWriter) {}, 503, 2},
		} {
			a := newAPIOver(t, b.ownIntents(t), nil, func(w http.ResponseWriter, r *http.Request) {
				ctx := r.Context()
				err := b.pay(ctx, name, func() ([]messagestore.StreamWrite, error) {
					_, err := receipt.Write(ctx)
					return nil, errors.Join(err, poor)
				})
				if !errors.Is(err, poor) {
					panic(err)
				}
				test.answer(w)
			})

			first, second := a.do(t, ask{key: "AAA"}), a.do(t, ask{key: "AAA"})

			require.Equal(t, test.status, first.status, name)
			require.Equal(t, test.status, second.status, name)
			require.Equal(t, test.handled, a.handled.Load(), name)
			require.Zero(t, b.paid(name), name)
		}
	})
}

// The lease is lost between the handler's SQL and its COMMIT.
func TestATransactionWithoutItsLeaseIsUndone(t *testing.T) {
	t.Parallel()
	eachBank(t, func(t *testing.T, b bank) {
		intents := b.ownIntents(t)
		var lost atomic.Bool
		a := newAPIOver(t, intents, nil, func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			if idempotency.Lease(ctx).Attempt() == 1 {
				if err := intents.ForceRelease(ctx, "client-1", "AAA", "a test"); err != nil {
					panic(err)
				}
			}
			err := b.pay(context.WithoutCancel(ctx), "1", func() ([]messagestore.StreamWrite, error) { return receipt.Write(ctx) })
			if err != nil {
				lost.Store(idempotency.Lease(ctx).Lost(err))
				http.Error(w, "broken", http.StatusInternalServerError)
			}
		})

		first := a.do(t, ask{key: "AAA"})

		require.True(t, lost.Load())
		require.Equal(t, 409, first.status)
		require.Zero(t, b.paid("1"))
		require.Equal(t, 201, a.do(t, ask{key: "AAA"}).status)
		require.Equal(t, 1, b.paid("1"))
	})
}

// Where the effect is events, it needs no SQL: they are written with the response.
func TestEventsAndResponseAreOneWrite(t *testing.T) {
	t.Parallel()
	store := newStore()
	a := newAPI(t, store, nil, func(w http.ResponseWriter, r *http.Request) {
		writes, err := receipt.Write(r.Context())
		if err == nil {
			event := messagestore.Raw{Type: "Paid", Data: []byte("{}")}
			_, err = store.WriteStreams(r.Context(), append(writes, messagestore.To("payment-1", messagestore.NoStream, event))...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})

	first, second := a.do(t, ask{key: "AAA"}), a.do(t, ask{key: "AAA"})
	other := a.do(t, ask{key: "BBB"}) // pays the same again, which the event's stream refuses

	require.Equal(t, 201, first.status)
	require.True(t, second.replayed())
	require.Equal(t, 500, other.status)
	version, err := store.Version(t.Context(), "payment-1")
	require.NoError(t, err)
	require.EqualValues(t, 0, version)
}
