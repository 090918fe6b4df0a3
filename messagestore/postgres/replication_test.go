package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// cancelWait cancels a commit's wait for a standby once there is one.
func cancelWait(t *testing.T, adm *pgx.Conn) {
	t.Helper()
	testkit.AwaitTrue(t, "a commit that waits for a standby", func() bool {
		return pgtest.Value[bool](t, adm, "select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity where wait_event = 'SyncRep'")
	})
}

// The server reports the commit, and a warning that no standby has it.
func TestCancelledWaitForAStandbyIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	adm := connect(t, url)
	through := pgtest.PgBouncer(t, url)
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	noticed := 0
	config.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { noticed++ }
	postgres.WatchReplication(config.ConnConfig)
	own := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", own.Close)
	setOnServer(t, adm, "synchronous_standby_names", "nobody")

	for name, driver := range map[string]*postgres.Driver{
		"a pool of the driver's own": open(t, url),
		"a pool that is watched":     testkit.Must(postgres.New(own, nil)),
		"through PgBouncer":          open(t, through.URL),
	} {
		lost := make(chan error, 1)
		stream := storetest.Category(t).Stream("1")
		go func() {
			_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))
			lost <- err
		}()
		cancelWait(t, adm)
		err := testkit.Receive(t, "the end of the write", lost)
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, name)
		require.ErrorContains(t, err, "standby", name)

		// The connection is as good as before.
		require.NoError(t, testkit.ErrorOf(driver.Version(t.Context(), stream)), name)
	}
	require.Equal(t, 1, noticed, "who wants to see notices does")
}

func TestCancelledWaitOfAGroupIsAnUnknownOutcomeForAllOfIt(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	adm := connect(t, url)
	driver := open(t, url)
	setOnServer(t, adm, "synchronous_standby_names", "nobody")
	category := storetest.Category(t)
	var wg sync.WaitGroup
	errs := make([]error, 5)
	for i := range errs {
		wg.Go(func() { _, errs[i] = driver.Append(t.Context(), record(category.Stream(fmt.Sprint(i)))) })
		awaitBusy(t, driver, category)
		awaitWaiting(t, driver, i)
	}

	cancelWait(t, adm) // of the first, which has gone ahead
	awaitWaiting(t, driver, 0)
	cancelWait(t, adm)
	wg.Wait()

	for _, err := range errs {
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	}
}

// The write is on this server, and so is found. It is said to be written only once the standby
// has it.
func TestWhatNoStandbyHasIsNotSaidToBeWritten(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	adm := connect(t, url)
	driver := open(t, url)
	store := testkit.Must(messagestore.New(driver, nil))
	stream := storetest.Category(t).Stream("1")
	a := appendOne(stream, messagestore.NoStream)
	setOnServer(t, adm, "synchronous_standby_names", "nobody")
	again := func() error {
		_, err := driver.Append(t.Context(), a)
		return err
	}
	var lost error
	asked := func() error {
		_, err := store.Resolve(t.Context(), lost)
		return err
	}
	conflict := func() error {
		_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))
		return err
	}
	for _, call := range []func() error{again, asked, again, conflict} {
		done := testkit.Go(func() error { return call() })
		cancelWait(t, adm)
		err := testkit.Receive(t, "the end of the call", done)
		require.Error(t, err)
		require.NotErrorIs(t, err, messagestore.ErrNotWritten)
		require.NotErrorIs(t, err, messagestore.ErrVersionConflict)
		if lost == nil {
			lost = err
			require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)
		}
	}

	setOnServer(t, adm, "synchronous_standby_names", "") // as if the standby were there
	require.Equal(t, messagestore.Version(0), testkit.Do(store.Resolve(t.Context(), lost))(t)[0].Version)
	require.NoError(t, again())
}

// A removal whose wait is cancelled is repeated, and the repetition finds it done. The
// repetition returns once the standby has it.
func TestWhatNoStandbyHasIsNotSaidToBeRemoved(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	conn := connect(t, url)
	driver := open(t, url)
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	postgres.WatchReplication(config.ConnConfig)
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	adm := testkit.Must(admin.New(pool, nil))
	category := storetest.Category(t)
	for _, id := range []string{"trimmed", "deleted", "erased"} {
		write(t, testkit.Must(messagestore.New(driver, nil)), category.Stream(id), messagestore.NoStream, opened(), opened(), opened())
	}
	setOnServer(t, conn, "synchronous_standby_names", "nobody")
	calls := map[string]func() error{
		"trim": func() error {
			_, err := adm.Trim(t.Context(), category.Stream("trimmed"), &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge})
			return err
		},
		"delete": func() error {
			_, err := adm.Delete(t.Context(), category.Stream("deleted"), 2, nil)
			return err
		},
		"erase": func() error {
			_, err := adm.Delete(t.Context(), category.Stream("erased"), 2, &retention.DeleteOptions{EraseName: true})
			return err
		},
	}
	for name, call := range calls {
		for _, who := range []string{"who removes it", "who comes later"} {
			t.Run(name+": "+who, func(t *testing.T) {
				require.ErrorContains(t, cancelWaits(t, conn, call), "standby")
			})
		}
	}

	setOnServer(t, conn, "synchronous_standby_names", "") // as if the standby were there
	for name, call := range calls {
		require.NoError(t, call(), name)
	}
	for _, id := range []string{"deleted", "erased"} {
		deleted := testkit.Do(adm.Delete(t.Context(), category.Stream(id), 2, &retention.DeleteOptions{EraseName: id == "erased"}))(t)
		require.True(t, deleted.Already)
		require.Equal(t, int64(3), deleted.Messages)
	}
}

// cancelWaits makes a call, and cancels every wait for a standby until it has ended.
func cancelWaits(t *testing.T, adm *pgx.Conn, call func() error) (ended error) {
	t.Helper()
	done := testkit.Go(func() error { return call() })
	testkit.AwaitTrue(t, "the end of the call", func() bool {
		testkit.Do(adm.Exec(t.Context(), "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"))(t)
		select {
		case ended = <-done:
			return true
		default:
			return false
		}
	})
	return ended
}

func TestUnwatchedConnectionsAreNamedInTheLog(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	url := ownServer.Alone(t)
	setOnServer(t, connect(t, url), "synchronous_standby_names", "nobody")
	var log bytes.Buffer
	config := &postgres.Config{Logger: logger.Zerolog(zerolog.New(&log))}
	stream := storetest.Category(t).Stream("1")

	driver := testkit.Do(postgres.Open(t.Context(), url, config))(t)
	require.NoError(t, driver.Close())
	testkit.Do(testkit.Must(postgres.New(pgtest.Connect(t, with(t, url, "synchronous_commit", "local")), config)).Version(t.Context(), stream))(t)
	require.Empty(t, log.String())

	testkit.Do(testkit.Must(postgres.New(pgtest.Connect(t, url), config)).Version(t.Context(), stream))(t)
	require.Contains(t, log.String(), "WatchReplication")
}

// A write that a group conflicts with may be on this server only.
func TestConflictsOfAGroupAreToldOnceTheStandbyHasWhatIsInTheirWay(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t)
	url := ownServer.Alone(t)
	adm := connect(t, url)
	driver := open(t, url)
	stream := storetest.Category(t).Stream("1")
	testkit.Do(driver.Append(t.Context(), appendOne(stream, messagestore.NoStream)))(t)
	setOnServer(t, adm, "synchronous_standby_names", "nobody")
	done := testkit.Go(func() []postgres.Answer {
		return driver.AppendEach(t.Context(), []messagestore.Append{appendOne(stream, messagestore.NoStream), appendOne(stream, messagestore.NoStream)})
	})

	cancelWait(t, adm)

	for _, answer := range testkit.Receive(t, "the end of the call", done) {
		require.ErrorIs(t, answer.Err, messagestore.ErrOutcomeUnknown)
	}
}

// moving returns a pool that connects to the server that is named at the time.
func moving(t *testing.T, url string) (pool *pgxpool.Pool, to func(url string)) {
	t.Helper()
	var target atomic.Pointer[string]
	target.Store(&url)
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		there, err := pgx.ParseConfig(*target.Load())
		if err == nil {
			c.Host, c.Port = there.Host, there.Port
		}
		return err
	}
	pool = testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return pool, func(url string) { target.Store(&url) }
}

// promote makes a standby a primary, and returns once it is one.
func promote(t *testing.T, standby string) {
	t.Helper()
	require.True(t, pgtest.Value[bool](t, connect(t, standby), "select pg_promote()"), "it is a primary within a minute")
}

func requireLeft(t *testing.T, err error) {
	t.Helper()
	requireUnsafe(t, err, postgres.UnsafeSetting{Name: "timeline", Value: "1", Need: "at least 2, that of the server promoted in its place"})
	require.NotErrorIs(t, err, calling.ErrLasting, "the next connection may reach the one that was promoted")
}

// Writes to an old primary are lost. It may still be reached by an open connection, or by a new
// one.
func TestAPrimaryThatWasLeftIsRefused(t *testing.T) {
	t.Parallel()
	old := ownServer.Together(t)
	promoted := pgtest.Standby(t, old)
	pool, to := moving(t, old)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	write(t, store, stream, messagestore.NoStream, opened())
	left := open(t, old)
	stays := testkit.Do(pool.Acquire(t.Context()))(t)
	defer stays.Release()

	promote(t, promoted)
	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened()) // on a connection of its own, which is kept
	moved := testkit.Do(pool.Acquire(t.Context()))(t)
	defer moved.Release()
	stays.Release()

	requireLeft(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	moved.Release()
	write(t, store, stream, messagestore.AnyVersion, opened())

	// The old one is reached again.
	to(old)
	pool.Reset()
	requireLeft(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	requireLeft(t, testkit.ErrorOf(store.Version(t.Context(), stream)))
	version, err := left.Version(t.Context(), stream)
	require.NoError(t, err, "who has never been on another takes it")
	require.Equal(t, messagestore.Version(0), version, "nothing was written there")

	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened())
	version = testkit.Do(store.Version(t.Context(), stream))(t)
	require.GreaterOrEqual(t, version, messagestore.Version(2))
}

// Nobody asks for the timeline in a transaction of the caller's. Once that is over, somebody does.
func TestAPrimaryThatWasLeftIsRefusedOnAConnectionThatWasUsedFirstInATransaction(t *testing.T) {
	t.Parallel()
	old := ownServer.Together(t)
	promoted := pgtest.Standby(t, old)
	pool, to := moving(t, old)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	stream := storetest.Category(t).Stream("1")
	acquire := func() *pgxpool.Conn {
		conn := testkit.Do(pool.Acquire(t.Context()))(t)
		t.Cleanup(conn.Release)
		return conn
	}
	first, second := acquire(), acquire()
	require.NoError(t, pgx.BeginFunc(t.Context(), first, func(tx pgx.Tx) error {
		write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), stream, messagestore.NoStream, opened())
		return nil
	}))
	exec(t, second.Conn(), "begin") // by hand
	write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(second, nil)), nil)), stream, 0, opened())
	exec(t, second.Conn(), "commit")

	promote(t, promoted)
	to(promoted)
	write(t, store, stream, messagestore.AnyVersion, opened())
	moved := acquire()
	for _, stays := range []*pgxpool.Conn{first, second} {
		stays.Release()
		requireLeft(t, testkit.ErrorOf(store.Write(t.Context(), stream, messagestore.AnyVersion, opened())))
	}

	moved.Release()
	write(t, store, stream, messagestore.AnyVersion, opened())
}

func TestAnEpochIsOfTheServerAndItsTimeline(t *testing.T) {
	t.Parallel()
	adm, writer := testkit.Must(postgres.New(pgtest.Pool(t), nil)), testkit.Must(postgres.New(pgtest.PoolAs(t, "dibs_writer"), nil))

	epoch := testkit.Do(adm.Epoch(t.Context()))(t)
	require.Regexp(t, `^[0-9]+/[0-9A-F]{8}/0\.[0-9a-f-]{36}$`, epoch)
	for range 2 {
		require.Equal(t, epoch, testkit.Do(writer.Epoch(t.Context()))(t))
	}
}

// A server that refuses the question has the number alone as its epoch.
func TestWhoMayNotAskTheServerHasTheEpochThatWasRaised(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	for _, revoke := range []string{
		"revoke execute on function pg_catalog.pg_control_system() from public",
		"revoke execute on function pg_catalog.pg_walfile_name(pg_catalog.pg_lsn) from public",
	} {
		tx := testkit.Do(connect(t, url).Begin(t.Context()))(t)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
		testkit.Do(tx.Exec(t.Context(), revoke+"; set local role dibs_writer"))(t)
		driver := testkit.Must(postgres.New(tx, nil))

		require.Regexp(t, `^//0\.[0-9a-f-]{36}$`, testkit.Do(driver.Epoch(t.Context()))(t))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// A role with single grants works without the epoch.
func TestWhoMayNotAskForTheEpochHasNone(t *testing.T) {
	t.Parallel()
	tx := testkit.Do(connect(t, ownDatabase(t)).Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
	testkit.Do(tx.Exec(t.Context(), "revoke execute on function dibs.epoch() from dibs_writer; set local role dibs_writer"))(t)

	require.Empty(t, testkit.Do(testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Epoch(t.Context()))(t))
}
