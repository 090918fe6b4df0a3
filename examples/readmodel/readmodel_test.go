package readmodel

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

func TestReadModelsCountAnEventOnceThoughItComesAgain(t *testing.T) {
	t.Parallel()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	txs, err := messagestore.Transactional[*sql.Tx](store)
	require.NoError(t, err)
	_, err = txs.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, Schema)
		return nil, err
	})
	require.NoError(t, err)
	for _, e := range []Deposited{{10, "Brno"}, {20, "Brno"}, {5, "Praha"}} {
		_, err = store.Write(t.Context(), accounts.Stream("ann"), messagestore.AnyVersion, e)
		require.NoError(t, err)
	}
	_, err = store.Write(t.Context(), accounts.Stream("bob"), messagestore.AnyVersion, Deposited{7, "Brno"})
	require.NoError(t, err)

	models, err := readModels(txs)
	require.NoError(t, err)
	require.NoError(t, models.CatchUp(t.Context()))
	last, err := store.Last(t.Context(), accounts.Stream("ann"))
	require.NoError(t, err)
	again := handler.Message[Deposited]{Body: Deposited{5, "Praha"}, Message: last}
	var ann, position, brno, praha int64
	_, err = txs.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		require.NoError(t, balance(ctx, tx, again))
		require.NoError(t, branch(ctx, tx, again))
		require.NoError(t, tx.QueryRowContext(ctx, "select balance, position from balances where account = 'ann'").Scan(&ann, &position))
		require.NoError(t, tx.QueryRowContext(ctx, "select total from branches where branch = 'Brno'").Scan(&brno))
		return nil, tx.QueryRowContext(ctx, "select total from branches where branch = 'Praha'").Scan(&praha)
	})
	require.NoError(t, err)

	require.Equal(t, []int64{35, 2, 37, 5}, []int64{ann, position, brno, praha})
}

func TestTheViewHasTheBalances(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	_, err := pool.Exec(t.Context(), View)
	require.NoError(t, err)
	driver, err := postgres.New(pool, nil)
	require.NoError(t, err)
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	_, err = store.Write(t.Context(), accounts.Stream("ann"), messagestore.AnyVersion, Deposited{10, "Brno"}, Deposited{20, "Brno"})
	require.NoError(t, err)
	_, err = store.Write(t.Context(), "account:command-ann", messagestore.AnyVersion, Deposited{1, "Brno"})
	require.NoError(t, err)

	var account string
	var balance int64
	require.NoError(t, pool.QueryRow(t.Context(), "select account, balance from balances_now").Scan(&account, &balance))

	require.Equal(t, "account-ann", account)
	require.Equal(t, int64(30), balance)
}
