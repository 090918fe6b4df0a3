package postgres_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// open returns a driver over a pool of its own.
func open(t *testing.T, url string) *postgres.Driver {
	t.Helper()
	driver := testkit.Do(postgres.Open(t.Context(), url, nil))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	return driver
}

// The URL has no parameter but those that find the server.
func TestConformanceThroughPgBouncer(t *testing.T) {
	t.Parallel()
	testkit.TakesTurns(t, 1, 4)
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	driver := open(t, through.URL)
	storetest.Run(t, storetest.Options{
		Open:   func(*testing.T) messagestore.Driver { return driver },
		Reopen: func(t *testing.T, _ messagestore.Driver) messagestore.Driver { return open(t, through.URL) },
		Beside: func(t *testing.T, _ messagestore.Driver) messagestore.Driver { return open(t, through.URL) },
	})
}

func TestConformanceInATransactionThroughPgBouncer(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver {
			tx := testkit.Do(connect(t, through.URL).Begin(t.Context()))(t)
			return testkit.Must(postgres.New(tx, nil))
		},
		OneUser: true,
	})
}

func TestConformanceOverAConnectionThroughPgBouncer(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) messagestore.Driver {
			return testkit.Must(postgres.New(connect(t, through.URL), nil))
		},
		OneUser: true,
	})
}

// In session mode a client has a server of its own for as long as it is connected.
func TestConformanceThroughPgBouncerInSessionMode(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t), "pool_mode = session", "default_pool_size = 50")
	driver := open(t, through.URL)
	storetest.Run(t, storetest.Options{
		Open:   func(*testing.T) messagestore.Driver { return driver },
		Reopen: func(t *testing.T, _ messagestore.Driver) messagestore.Driver { return open(t, through.URL) },
		Beside: func(t *testing.T, _ messagestore.Driver) messagestore.Driver { return open(t, through.URL) },
	})
}

// Statement mode is not for us: it knows no transactions but of one statement, and says so. The
// driver's own writes are one statement each.
func TestPgBouncerInStatementModeRefusesTransactions(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t), "pool_mode = statement")
	driver := open(t, through.URL)
	stream := storetest.Category(t).Stream("1")
	write(t, testkit.Must(messagestore.New(driver, nil)), stream, messagestore.NoStream, opened())
	conn := connect(t, through.URL)

	require.ErrorContains(t, testkit.ErrorOf(conn.Begin(t.Context())), "transaction blocks not allowed in statement pooling mode")
}

// A false positive would cost speed, a false negative every second statement.
func TestPgBouncerIsFoundByItself(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	for url, want := range map[string]pgx.QueryExecMode{
		pgtest.URL(t): pgx.QueryExecModeCacheStatement,
		through.URL:   pgx.QueryExecModeCacheDescribe,
		through.URL + "&default_query_exec_mode=exec":            pgx.QueryExecModeExec,
		through.URL + "&default_query_exec_mode=describe_exec":   pgx.QueryExecModeCacheDescribe,
		through.URL + "&default_query_exec_mode=simple_protocol": pgx.QueryExecModeCacheDescribe,
		through.URL + "&description_cache_capacity=0":            pgx.QueryExecModeExec,
	} {
		driver := open(t, url)
		for range 10 { // a pooler's number might be the right one by chance, but not again and again
			conn := connect(t, url)
			require.Equal(t, want, mode(t, conn), url)
		}
		stream := storetest.Category(t).Stream("1")
		write(t, testkit.Must(messagestore.New(driver, nil)), stream, messagestore.NoStream, opened())
	}
}

// mode returns how a driver over the connection sends its statements.
func mode(t *testing.T, conn *pgx.Conn) pgx.QueryExecMode {
	t.Helper()
	driver := testkit.Must(postgres.New(conn, nil))
	testkit.Do(driver.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
	return driver.Mode(conn)
}

// A statement prepared by name stays on the server and collides with the next client's.
func TestVerifyPreparesNothingThroughPgBouncer(t *testing.T) {
	t.Parallel()
	through := pgtest.PgBouncer(t, ownDatabase(t), "default_pool_size = 1")
	for range 2 { // pools, which have one server in turn
		require.Empty(t, testkit.Do(testkit.Must(admin.New(pgtest.Connect(t, through.URL), nil)).Verify(t.Context(), nil))(t).Violations)
	}

	require.Zero(t, pgtest.Value[int](t, connect(t, through.URL), "select count(*) from pg_prepared_statements", pgx.QueryExecModeExec))
}

func TestWritesThatWaitAreCommittedTogetherThroughPgBouncer(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	for _, mode := range []string{"", "&default_query_exec_mode=simple_protocol"} {
		c := gatherOver(t, open(t, through.URL+mode))
		stream := c.category.Stream("1")
		for range 8 {
			c.add(t.Context(), record(stream), func(_ messagestore.Written, err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}

		c.release()
		c.wg.Wait()

		require.NoError(t, testkit.Receive(t, "the first write", c.first))
		require.Equal(t, messagestore.Version(7), testkit.Do(testkit.Must(postgres.New(shared, nil)).Version(t.Context(), stream))(t))
		flushes, writes := c.driver.Flushes()
		require.Equal(t, int64(1), flushes)
		require.Equal(t, int64(8), writes)
	}
}

// The server goes on when the pooler is gone: a write that it finishes then is found by Resolve.
func TestKilledPgBouncerLeavesAnUnknownOutcomeThatCanBeResolved(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	driver := open(t, through.URL)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	lost := testkit.Go(func() error {
		return testkit.ErrorOf(driver.Append(t.Context(), appendOne(category.Stream("1"), messagestore.NoStream)))
	})
	awaitLockWaiters(t, shared, category)

	through.Kill()

	err := testkit.Receive(t, "the end of the write", lost)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	resolved := testkit.Go(func() error {
		return testkit.ErrorOf(testkit.Must(messagestore.New(testkit.Must(postgres.New(shared, nil)), nil)).Resolve(t.Context(), err))
	})
	awaitTwoLockWaiters(t, shared, category)
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, testkit.Receive(t, "the end of Resolve", resolved))
	require.Equal(t, messagestore.Version(0), testkit.Do(testkit.Must(postgres.New(shared, nil)).Version(t.Context(), category.Stream("1")))(t))
}

func TestServerKilledBehindPgBouncerLeavesAnUnknownOutcomeThatCanBeResolved(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	driver := open(t, through.URL)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	lost := testkit.Go(func() error {
		return testkit.ErrorOf(driver.Append(t.Context(), appendOne(category.Stream("1"), messagestore.NoStream)))
	})
	awaitLockWaiters(t, shared, category)

	killLockWaiters(t, shared, category)

	err := testkit.Receive(t, "the end of the write", lost)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.NoError(t, holder.Commit(t.Context()))
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(messagestore.New(driver, nil)).Resolve(t.Context(), err)), messagestore.ErrNotWritten)
	require.Equal(t, messagestore.NoStream, testkit.Do(driver.Version(t.Context(), category.Stream("1")))(t))
}

// The store asks by itself, on another connection.
func TestStoreWritesOnceThoughTheServerIsKilledBehindPgBouncer(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	through := pgtest.PgBouncer(t, pgtest.URL(t))
	store := testkit.Must(messagestore.New(open(t, through.URL), nil))
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	done := testkit.Go(func() error {
		return testkit.ErrorOf(store.Write(t.Context(), category.Stream("1"), messagestore.NoStream, opened()))
	})
	awaitLockWaiters(t, shared, category)

	killLockWaiters(t, shared, category)
	require.NoError(t, holder.Commit(t.Context()))

	require.NoError(t, testkit.Receive(t, "the end of the call", done))
	require.Equal(t, messagestore.Version(0), testkit.Do(store.Version(t.Context(), category.Stream("1")))(t))
}

func killLockWaiters(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) {
	t.Helper()
	testkit.Do(pool.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_locks
		where locktype = 'advisory' and classid = 1684628083
		and objid::bigint = dibs.lock_key($1)::bigint & 4294967295 and not granted`, string(category)))(t)
}

// awaitTwoLockWaiters returns when two wait for the category's lock.
func awaitTwoLockWaiters(t *testing.T, pool *pgxpool.Pool, category messagestore.Category) {
	t.Helper()
	testkit.AwaitEqual(t, "the sessions that wait for the lock of "+string(category), 2, func() int { return lockWaiters(t, pool, category) })
}
