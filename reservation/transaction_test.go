package reservation_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A ledger is a database with a store and a table of the caller's own.
type ledger struct {
	store *messagestore.Store
	count func() int // rows of the caller's table

	// within calls f in one transaction, with a store over it and a function that adds a row.
	within func(f func(store *messagestore.Store, insert func() error) error) error
}

func eachLedger(t *testing.T, test func(t *testing.T, l ledger)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) ledger{"PostgreSQL": onPostgreSQL, "SQLite": onSQLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func onPostgreSQL(t *testing.T) ledger {
	t.Helper()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	_, err := pool.Exec(t.Context(), "create table "+schema+".deposits (key text, amount int)")
	require.NoError(t, err)
	return ledger{
		store: testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil)),
		count: func() (n int) {
			require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from "+schema+".deposits").Scan(&n))
			return n
		},
		within: func(f func(store *messagestore.Store, insert func() error) error) error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				return f(testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, config)), nil)), func() error {
					_, err := tx.Exec(t.Context(), "insert into "+schema+".deposits values ('AAA', 10)")
					return err
				})
			})
		},
	}
}

func onSQLite(t *testing.T) ledger {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	store := testkit.Must(messagestore.New(driver, nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate&_pragma=busy_timeout(600000)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	_, err = db.ExecContext(t.Context(), "create table deposits (key text, amount int)")
	require.NoError(t, err)
	return ledger{
		store: store,
		count: func() (n int) {
			require.NoError(t, db.QueryRowContext(t.Context(), "select count(*) from deposits").Scan(&n))
			return n
		},
		within: func(f func(store *messagestore.Store, insert func() error) error) error {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			err = f(testkit.Must(messagestore.New(testkit.Must(sqlite.New(tx)), nil)), func() error {
				_, err := tx.ExecContext(t.Context(), "insert into deposits values ('AAA', 10)")
				return err
			})
			if err != nil {
				require.NoError(t, tx.Rollback())
				return err
			}
			return tx.Commit()
		},
	}
}

// R4: a reservation and a table of the caller's own, in one transaction. The effect belongs to
// Reserved, and to no other outcome.
func TestAnEffectInTheCallersTransactionHappensOnce(t *testing.T) {
	t.Parallel()
	eachLedger(t, func(t *testing.T, l ledger) {
		handle := func(m *messagestore.Message, fails error) (outcome reservation.Outcome, err error) {
			err = l.within(func(store *messagestore.Store, insert func() error) error {
				result, err := testkit.Must(reservation.New(store, "accounts", nil)).Reserve(t.Context(), m, "AAA")
				if outcome = result.Outcome; err != nil || outcome != reservation.Reserved {
					return err
				}
				return errors.Join(insert(), fails)
			})
			return outcome, err
		}
		first, again := send(t, l.store, command, Deposit{"AAA", 10}), send(t, l.store, command, Deposit{"AAA", 10})
		other := send(t, l.store, command, Deposit{"AAA", 11})

		boom := errors.New("boom")
		_, err := handle(first, boom)
		require.ErrorIs(t, err, boom)
		require.Zero(t, l.count())
		require.Empty(t, all(t, l.store, place(command, "accounts").With("AAA")))

		for _, step := range []struct {
			m    *messagestore.Message
			want reservation.Outcome
		}{
			{first, reservation.Reserved}, // the attempt before was rolled back
			{first, reservation.Redelivered},
			{again, reservation.Duplicate},
			{other, reservation.KeyReused},
			{first, reservation.Redelivered},
		} {
			outcome, err := handle(step.m, nil)
			require.NoError(t, err)
			require.Equal(t, step.want, outcome)
			require.Equal(t, 1, l.count())
		}
		require.Len(t, all(t, l.store, place(command, "accounts").With("AAA")), 1)
	})
}

// Within one transaction too, and the transaction is usable after each outcome.
func TestASecondReservationInOneTransactionIsARedelivery(t *testing.T) {
	t.Parallel()
	eachLedger(t, func(t *testing.T, l ledger) {
		first, again := send(t, l.store, command, Deposit{"AAA", 10}), send(t, l.store, command, Deposit{"AAA", 10})

		require.NoError(t, l.within(func(store *messagestore.Store, insert func() error) error {
			once := testkit.Must(reservation.New(store, "accounts", nil))
			for _, step := range []struct {
				m    *messagestore.Message
				want reservation.Outcome
			}{{first, reservation.Reserved}, {first, reservation.Redelivered}, {again, reservation.Duplicate}} {
				result, err := once.Reserve(t.Context(), step.m, "AAA")
				require.NoError(t, err)
				require.Equal(t, step.want, result.Outcome)
			}
			return insert()
		}))

		require.Equal(t, 1, l.count())
		require.Len(t, all(t, l.store, place(command, "accounts").With("AAA")), 1)
	})
}

// R2: a snapshot that is older than the winner meets the conflict, but cannot show the
// winner, so that there is no answer.
func TestAWinnerOutsideOfTheSnapshotIsNoAnswer(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, config)), nil))
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	_, err = tx.Exec(t.Context(), "select 1") // takes the snapshot
	require.NoError(t, err)
	_, err = newReserver(t, store, nil).Reserve(t.Context(), first, "AAA")
	require.NoError(t, err)

	_, err = newReserver(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, config)), nil)), nil).Reserve(t.Context(), again, "AAA")

	require.ErrorIs(t, err, reservation.ErrWinnerUnseen)
}
