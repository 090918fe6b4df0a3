package sqlite_test

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// What is written to a file without a name is lost with the process.
func TestCheckFindsAFileThatIsGoneOrReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := must.Do(sqlite.Open(t.Context(), path, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store := must.New(messagestore.New(driver, nil))
	require.NoError(t, store.Check(t.Context()))

	require.NoError(t, os.Rename(path, path+".old"))
	require.ErrorContains(t, store.Check(t.Context()), "it was there when it was opened, and is not now")
	require.ErrorIs(t, store.CheckReading(t.Context()), os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.ErrorContains(t, store.Check(t.Context()), "another file is in the place of the one that was opened")
	require.NoError(t, os.Rename(path+".old", path))
	require.NoError(t, store.Check(t.Context()))
}

func TestCheckOfAClosedStore(t *testing.T) {
	t.Parallel()
	driver := must.Do(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil))(t)
	require.NoError(t, driver.Close())
	store := must.New(messagestore.New(driver, nil))
	require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrClosed)
	require.ErrorIs(t, store.CheckReading(t.Context()), messagestore.ErrClosed)
}

func TestCheckOverATransactionNeedsTheTables(t *testing.T) {
	t.Parallel()
	db := must.Do(sql.Open("sqlite", filepath.Join(t.TempDir(), "app.db")))(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	tx := must.Do(db.BeginTx(t.Context(), nil))(t)
	defer func() { require.NoError(t, tx.Rollback()) }()
	store := must.New(messagestore.New(must.New(sqlite.New(tx)), nil))
	require.ErrorIs(t, store.Check(t.Context()), sqlite.ErrNoSchema)
	require.ErrorIs(t, store.CheckReading(t.Context()), sqlite.ErrNoSchema)
	require.NoError(t, sqlite.Schema(context.WithoutCancel(t.Context()), tx))
	require.NoError(t, store.Check(t.Context()))
}

func TestNilTransactionIsRefused(t *testing.T) {
	t.Parallel()
	_, err := sqlite.New(nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, "sqlite: invalid transaction: it is nil")
}
