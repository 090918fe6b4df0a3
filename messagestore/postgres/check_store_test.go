package postgres_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func storeOver(db postgres.DB) *messagestore.Store {
	return must.New(messagestore.New(must.New(postgres.New(db, nil)), nil))
}

func TestCheckNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	writer := storeOver(pgtest.PoolAs(t, "dibs_writer"))
	require.NoError(t, writer.Check(t.Context()))
	require.NoError(t, writer.CheckReading(t.Context()))

	reader := storeOver(pgtest.PoolAs(t, "dibs_reader"))
	require.NoError(t, reader.CheckReading(t.Context()))
	err := reader.Check(t.Context())
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "check the store: not permitted: ERROR: permission denied for function append (SQLSTATE 42501): grant dibs_writer to the user of this connection")

	none := storeOver(pgtest.PoolAs(t, "message_store"))
	err = none.CheckReading(t.Context())
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_reader to read, dibs_writer to write, dibs_worker to work on queues, or dibs_admin to trim, delete and verify, to the user of this connection")
}

// A connection that was good before is asked again.
func TestCheckSeesWhatHasChangedSinceTheConnectionWasMade(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.SchemaInShared(t)
	one, _ := pgtest.PoolOfOne(t, nil)
	store := must.New(messagestore.New(must.New(postgres.New(one, &postgres.Config{Schema: schema})), nil))
	require.NoError(t, store.Check(t.Context()))

	must.Do(one.Exec(t.Context(), "set default_transaction_read_only = on"))(t)
	require.NoError(t, store.CheckReading(t.Context()))
	err := store.Check(t.Context())
	require.ErrorIs(t, err, postgres.ErrUnsafeSettings)
	require.ErrorContains(t, err, "transaction_read_only is on and has to be off")
	must.Do(one.Exec(t.Context(), "reset default_transaction_read_only"))(t)

	must.Do(one.Exec(t.Context(), "set client_encoding = 'LATIN1'"))(t)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrUnsafeSettings)
	must.Do(one.Exec(t.Context(), "reset client_encoding"))(t)
	require.NoError(t, store.Check(t.Context()))

	must.Do(pool.Exec(t.Context(), "drop schema "+schema+" cascade"))(t)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrNotMigrated)
	require.ErrorIs(t, store.CheckReading(t.Context()), postgres.ErrNotMigrated)
}

func TestCheckInATransactionLeavesItUsable(t *testing.T) {
	t.Parallel()
	tx := must.Do(pgtest.PoolAs(t, "dibs_reader").Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	store := storeOver(tx)
	require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrNotPermitted)
	must.Do(store.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
}

func TestClosedHandleIsRecognised(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.Pool(t)
	stores := map[string]*messagestore.Store{}

	pool := must.Do(pgxpool.New(t.Context(), url))(t)
	stores["pool"] = storeOver(pool)
	require.NoError(t, stores["pool"].Check(t.Context()))
	pool.Close()

	conn := must.Do(pgx.Connect(t.Context(), url))(t)
	stores["connection"] = storeOver(conn)
	require.NoError(t, conn.Close(t.Context()))

	other := must.Do(pgx.Connect(t.Context(), url))(t)
	defer other.Close(context.WithoutCancel(t.Context()))
	tx := must.Do(other.Begin(t.Context()))(t)
	stores["transaction"] = storeOver(tx)
	require.NoError(t, tx.Commit(t.Context()))

	db := must.Do(sql.Open("pgx", url))(t)
	stores["sql.DB"] = must.New(messagestore.New(must.New(postgres.NewSQL(db, nil)), nil))
	require.NoError(t, db.Close())

	ours := must.Do(postgres.Open(t.Context(), url, nil))(t)
	stores["opened"] = must.New(messagestore.New(ours, nil))
	require.NoError(t, stores["opened"].Close())

	for name, store := range stores {
		stream := storetest.Category(t).Stream("1")
		_, err := store.Write(t.Context(), stream, messagestore.NoStream, opened())
		require.ErrorIs(t, err, messagestore.ErrClosed, name)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, name)
		require.ErrorIs(t, must.ErrorOf(store.Last(t.Context(), stream)), messagestore.ErrClosed, name)
		require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrClosed, name)
	}
}

// The write that everybody makes first: with the pool's store, within a transaction of one's own.
func TestWriteThatIsHeldNamesTheCategoryAndTheLikelyHolder(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	must.Do(pool.Exec(t.Context(), "alter function dibs.wait_for_category set lock_timeout = '50ms'; alter function dibs.append set lock_timeout = '50ms'"))(t)
	category := storetest.Category(t)
	stream := category.Stream("1")
	tx := must.Do(pool.Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	write(t, storeOver(tx), stream, messagestore.NoStream, opened())

	_, err := storeOver(pool).Write(t.Context(), category.Stream("2"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "another transaction held the writes of category "+string(category)+" for too long")
	require.ErrorContains(t, err, "nothing was written; if it is your own, write with a store over it (postgres.New(tx, nil)); else dibs doctor names it")

	held := storeOver(connect(t, url))
	_, err = held.WriteStreams(t.Context(), messagestore.To(category.Stream("3"), messagestore.NoStream, opened()), messagestore.To("other-1", messagestore.AnyVersion, opened()))
	require.ErrorContains(t, err, "another transaction held the writes of category ")
	require.ErrorContains(t, err, "nothing was written")
}

func TestErrorsOfTheServerSayWhatTheyMean(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	one, _ := pgtest.PoolOfOne(t, nil)
	store := storeOver(one)
	require.NoError(t, store.Check(t.Context()))
	must.Do(one.Exec(t.Context(), "set default_transaction_read_only = on"))(t)
	_, err := store.Write(t.Context(), storetest.Category(t).Stream("1"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "(SQLSTATE 25006): the server or this transaction is read-only: it is a standby, or default_transaction_read_only is on for this user or database")
	must.Do(one.Exec(t.Context(), "reset default_transaction_read_only"))(t)

	category := storetest.Category(t)
	tx := must.Do(pgtest.Pool(t).Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	write(t, storeOver(tx), category.Stream("1"), messagestore.NoStream, opened())
	must.Do(one.Exec(t.Context(), "set statement_timeout = 50"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = store.Write(ctx, category.Stream("2"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "(SQLSTATE 57014): the server cancelled it and rolled it back, for the statement_timeout of this user or database")
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}
