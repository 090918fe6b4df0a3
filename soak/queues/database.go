package queues

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/soak/crew"
)

// A database has the store of a process, and rows of its own.
type database interface {
	// store returns a store whose takes and the like are recorded.
	store(ctx context.Context, record func(queuing.Driver) *recording) (*messagestore.Store, error)
	begin(ctx context.Context) (transaction, error)
	close()
}

// A transaction is one of the caller's own.
type transaction interface {
	of() any // the transaction itself
	store() (*messagestore.Store, error)
	insert(ctx context.Context, table string, values ...any) error
	exec(ctx context.Context, statement string) error
	commit(ctx context.Context) error
	rollback(ctx context.Context)
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
	// A driver is one level deeper than what records its calls, which goes first.
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

func (p *pooled) begin(ctx context.Context) (transaction, error) {
	tx, err := p.pool.Begin(ctx)
	return pooledTx{tx}, err
}

func (p *pooled) close() { p.pool.Close() }

type pooledTx struct{ tx pgx.Tx }

func (t pooledTx) of() any { return t.tx }

func (t pooledTx) store() (*messagestore.Store, error) {
	return messagestore.New(must.New(postgres.New(t.tx, &postgres.Config{Logger: logger.Silent()})), nil)
}

func (t pooledTx) insert(ctx context.Context, table string, values ...any) error {
	places := make([]string, len(values))
	for i := range values {
		places[i] = fmt.Sprintf("$%d", i+1)
	}
	_, err := t.tx.Exec(ctx, "insert into "+table+" values ("+strings.Join(places, ", ")+")", values...)
	return err
}

func (t pooledTx) exec(ctx context.Context, statement string) error {
	_, err := t.tx.Exec(ctx, statement)
	return err
}

func (t pooledTx) commit(ctx context.Context) error { return t.tx.Commit(ctx) }

func (t pooledTx) rollback(ctx context.Context) { _ = t.tx.Rollback(context.WithoutCancel(ctx)) } // if it fails, its connection is closed

// A file is one of SQLite's.
type file struct {
	path string
	db   *sql.DB // of the process's own transactions
}

// sqliteURL begins the URL of a file.
const sqliteURL = "sqlite:"

// openSQLite opens a file for transactions of the caller's. They wait for others as long as those of the store do.
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

func (f *file) begin(ctx context.Context) (transaction, error) {
	tx, err := f.db.BeginTx(context.WithoutCancel(ctx), nil) // database/sql would roll it back while it is in use
	return fileTx{tx}, err
}

func (f *file) close() { _ = f.db.Close() } // its transactions are over

type fileTx struct{ tx *sql.Tx }

func (t fileTx) of() any { return t.tx }

func (t fileTx) store() (*messagestore.Store, error) {
	return messagestore.New(must.New(sqlite.New(t.tx)), nil)
}

func (t fileTx) insert(ctx context.Context, table string, values ...any) error {
	_, err := t.tx.ExecContext(context.WithoutCancel(ctx), "insert into "+table+" values (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
	return err
}

func (t fileTx) exec(ctx context.Context, statement string) error {
	_, err := t.tx.ExecContext(context.WithoutCancel(ctx), statement)
	return err
}

func (t fileTx) commit(context.Context) error { return t.tx.Commit() }

func (t fileTx) rollback(context.Context) { _ = t.tx.Rollback() } // it may have been committed
