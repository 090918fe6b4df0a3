package postgres_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// cancelWait cancels a commit's wait for a standby once there is one.
func cancelWait(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	require.Eventually(t, func() bool {
		var cancelled bool
		err := admin.QueryRow(t.Context(), "select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity where wait_event = 'SyncRep'").Scan(&cancelled)
		require.NoError(t, err)
		return cancelled
	}, patience, tick)
}

// The server says that it has committed, and beside it that nobody else has it.
func TestCancelledWaitForAStandbyIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	admin := connect(t, url)
	through := pgtest.PgBouncer(t, url)
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	noticed := 0
	config.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { noticed++ }
	postgres.WatchReplication(config.ConnConfig)
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	setOnServer(t, admin, "synchronous_standby_names", "nobody")

	for name, driver := range map[string]*postgres.Driver{
		"a pool of the driver's own": open(t, url),
		"a pool that is watched":     postgres.New(own, nil),
		"through PgBouncer":          open(t, through.URL),
	} {
		lost := make(chan error, 1)
		stream := storetest.Category(t).Stream("1")
		go func() {
			_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))
			lost <- err
		}()
		cancelWait(t, admin)
		err := <-lost
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown, name)
		require.ErrorContains(t, err, "standby", name)

		// The connection is as good as before.
		_, err = driver.Version(t.Context(), stream)
		require.NoError(t, err, name)
	}
	require.Equal(t, 1, noticed, "who wants to see notices does")
}

func TestCancelledWaitOfAGroupIsAnUnknownOutcomeForAllOfIt(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	admin := connect(t, url)
	driver := open(t, url)
	setOnServer(t, admin, "synchronous_standby_names", "nobody")
	category := storetest.Category(t)
	var wg sync.WaitGroup
	errs := make([]error, 5)
	for i := range errs {
		wg.Go(func() { _, errs[i] = driver.Append(t.Context(), record(category.Stream(fmt.Sprint(i)))) })
		require.Eventually(t, func() bool { return driver.Busy(category) && driver.Waiting() == i }, patience, tick)
	}

	cancelWait(t, admin) // of the first, which has gone ahead
	require.Eventually(t, func() bool { return driver.Waiting() == 0 }, patience, tick)
	cancelWait(t, admin)
	wg.Wait()

	for _, err := range errs {
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	}
}

// What is asked about is on this server, and so is found. It is said to be written
// only once the standby has it.
func TestWhatNoStandbyHasIsNotSaidToBeWritten(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	admin := connect(t, url)
	driver := open(t, url)
	store := messagestore.New(driver, nil)
	stream := storetest.Category(t).Stream("1")
	a := appendOne(stream, messagestore.NoStream)
	setOnServer(t, admin, "synchronous_standby_names", "nobody")
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
		done := make(chan error, 1)
		go func() { done <- call() }()
		cancelWait(t, admin)
		err := <-done
		require.Error(t, err)
		require.NotErrorIs(t, err, messagestore.ErrNotWritten)
		require.NotErrorIs(t, err, messagestore.ErrVersionConflict)
		if lost == nil {
			lost = err
			require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)
		}
	}

	setOnServer(t, admin, "synchronous_standby_names", "") // as if the standby were there
	written, err := store.Resolve(t.Context(), lost)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), written[0].Version)
	require.NoError(t, again())
}

func TestUnwatchedConnectionsAreNamedInTheLog(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	setOnServer(t, connect(t, url), "synchronous_standby_names", "nobody")
	var log bytes.Buffer
	config := &postgres.Config{Logger: zerolog.New(&log)}
	stream := storetest.Category(t).Stream("1")

	driver, err := postgres.Open(t.Context(), url, config)
	require.NoError(t, err)
	require.NoError(t, driver.Close())
	_, err = postgres.New(pgtest.Connect(t, with(t, url, "synchronous_commit", "local")), config).Version(t.Context(), stream)
	require.NoError(t, err)
	require.Empty(t, log.String())

	_, err = postgres.New(pgtest.Connect(t, url), config).Version(t.Context(), stream)
	require.NoError(t, err)
	require.Contains(t, log.String(), "WatchReplication")
}

// What a group conflicts with may be on this server only.
func TestConflictsOfAGroupAreToldOnceTheStandbyHasWhatIsInTheirWay(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	admin := connect(t, url)
	driver := open(t, url)
	stream := storetest.Category(t).Stream("1")
	_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))
	require.NoError(t, err)
	setOnServer(t, admin, "synchronous_standby_names", "nobody")
	done := make(chan []postgres.Answer, 1)
	go func() {
		done <- driver.AppendEach(t.Context(), []messagestore.Append{appendOne(stream, messagestore.NoStream), appendOne(stream, messagestore.NoStream)})
	}()

	cancelWait(t, admin)

	for _, answer := range <-done {
		require.ErrorIs(t, answer.Err, messagestore.ErrOutcomeUnknown)
	}
}
