package queues

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/soak/crew"
)

// A database has the store of a process, and extra rows.
type database interface {
	// store returns a store that records takes and similar calls.
	store(ctx context.Context, record func(queuing.Driver) *recording) (*messagestore.Store, error)
	begin(ctx context.Context) (*transaction, error)
	close()
}

// A transaction is the caller's own transaction.
type transaction struct {
	of       any // itself
	store    func() (*messagestore.Store, error)
	place    string // before the number of a value
	exec     func(ctx context.Context, statement string, values ...any) error
	commit   func(ctx context.Context) error
	rollback func(ctx context.Context) // it may have been committed
}

func (t *transaction) insert(ctx context.Context, table string, values ...any) error {
	places := make([]string, len(values))
	for i := range values {
		places[i] = fmt.Sprintf("%s%d", t.place, i+1)
	}
	return t.exec(ctx, "insert into "+table+" values ("+strings.Join(places, ", ")+")", values...)
}

// openDatabase connects to the database of a task. Its caller closes it.
func openDatabase(ctx context.Context, url string) (database, error) {
	if path, ok := strings.CutPrefix(url, sqliteURL); ok {
		db, err := openSQLite(path)
		return &file{path, db}, err
	}
	pool, err := crew.Pool(ctx, url, connections)
	return &pooled{pool}, err
}

type pooled struct{ pool *pgxpool.Pool }

type (
	// The driver is embedded one level deeper than the recorder of its calls, so that the
	// recorder's methods win.
	deepPostgres struct{ *postgres.Driver }
	deepSQLite   struct{ *sqlite.Driver }

	recordedPostgres struct {
		deepPostgres
		*recording
	}
	recordedSQLite struct {
		deepSQLite
		*recording
	}
)

func (p *pooled) store(_ context.Context, record func(queuing.Driver) *recording) (*messagestore.Store, error) {
	d, err := postgres.New(p.pool, &postgres.Config{Logger: logger.Silent()})
	if err != nil {
		return nil, err
	}
	return messagestore.New(recordedPostgres{deepPostgres{d}, record(d)}, nil)
}

func (p *pooled) begin(ctx context.Context) (*transaction, error) {
	tx, err := p.pool.Begin(ctx)
	return &transaction{
		of: tx, place: "$", commit: func(ctx context.Context) error { return tx.Commit(ctx) },
		store: func() (*messagestore.Store, error) {
			return messagestore.New(testkit.Must(postgres.New(tx, &postgres.Config{Logger: logger.Silent()})), nil)
		},
		exec: func(ctx context.Context, statement string, values ...any) error {
			_, err := tx.Exec(ctx, statement, values...)
			return err
		},
		rollback: func(ctx context.Context) { _ = tx.Rollback(context.WithoutCancel(ctx)) },
	}, err
}

func (p *pooled) close() { p.pool.Close() }

// A file is one of SQLite's.
type file struct {
	path string
	db   *sql.DB // of the process's own transactions
}

// sqliteURL begins the URL of a file.
const sqliteURL = "sqlite:"

// openSQLite opens a file for the caller's transactions. They wait for others as long as the
// store's.
func openSQLite(path string) (*sql.DB, error) {
	return sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(full)")
}

func (f *file) store(ctx context.Context, record func(queuing.Driver) *recording) (*messagestore.Store, error) {
	d, err := sqlite.Open(ctx, f.path, nil)
	if err != nil {
		return nil, err
	}
	return messagestore.New(recordedSQLite{deepSQLite{d}, record(d)}, nil)
}

func (f *file) begin(ctx context.Context) (*transaction, error) {
	ctx = context.WithoutCancel(ctx) // database/sql would roll it back while it is in use
	tx, err := f.db.BeginTx(ctx, nil)
	return &transaction{
		of: tx, place: "?", store: func() (*messagestore.Store, error) { return messagestore.New(testkit.Must(sqlite.New(tx)), nil) },
		exec: func(_ context.Context, statement string, values ...any) error {
			_, err := tx.ExecContext(ctx, statement, values...)
			return err
		},
		commit: func(context.Context) error { return tx.Commit() }, rollback: func(context.Context) { _ = tx.Rollback() },
	}, err
}

func (f *file) close() { _ = f.db.Close() } // its transactions are over
