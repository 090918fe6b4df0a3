package cases

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// The callers of the case of the driver for SQLite, and the name of a contender.
const (
	sqliteCallers = 32

	sqliteAlone = "Dibs, a commit for each"
)

// SQLite returns the case of the driver for SQLite, with and without shared commits.
func SQLite() []measure.Case {
	return []measure.Case{{
		Name:  "sqlite/32-callers",
		Shows: "SQLite: write to streams of one category, 32 callers, with and without shared commits",
		Contenders: []measure.Contender{
			{Name: dibs, Run: writeSQLite(nil)},
			{Name: sqliteAlone, Run: writeSQLite(&sqlite.Config{MaxGroup: 1})},
		},
		Goals: []measure.Goal{{Metric: measure.Rate, Of: dibs, To: sqliteAlone, AtLeast: 4}},
	}}
}

func writeSQLite(config *sqlite.Config) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		store, err := openSQLite(ctx, cell, config)
		if err != nil {
			return err
		}
		done, err := cell.Callers(ctx, sqliteCallers, func(ctx context.Context, _ int) (int, error) {
			key := newKey()
			_, err := store.Write(ctx, key, messagestore.NoStream, command(key))
			return 1, err
		})
		if err != nil {
			return err
		}
		count, err := store.Count(ctx, messagestore.CategoryQuery{Category: reservedCategory, Limit: int(done) + 1})
		return errors.Join(err, cell.Check("messages in the file", count, done))
	}
}

// openSQLite opens a store in a file of the cell's, until the cell is over.
func openSQLite(ctx context.Context, cell *measure.Cell, config *sqlite.Config) (*messagestore.Store, error) {
	dir, err := os.MkdirTemp(cell.Servers.Dir(), "dibs-bench-sqlite.")
	if err != nil {
		return nil, err
	}
	cell.Cleanup(func(context.Context) error { return os.RemoveAll(dir) })
	driver, err := sqlite.Open(ctx, filepath.Join(dir, "messages.db"), config)
	if err != nil {
		return nil, err
	}
	store := testkit.Must(messagestore.New(driver, &messagestore.Config{Logger: logger.Silent()}))
	cell.Cleanup(func(context.Context) error { return store.Close() })
	return store, nil
}
