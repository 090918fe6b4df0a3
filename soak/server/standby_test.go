package server

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

// insert commits a number, and says so.
func insert(t *testing.T, pg *Postgres, n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "insert into kept values ($1)", n)
	require.NoError(t, err)
}

// kept returns the rows that are there.
func kept(t *testing.T, pg *Postgres) []int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "select n from kept order by n")
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return all
}

func TestSynchronousStandbyHasWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	_, first := start(t)
	require.NoError(t, first.exec(t.Context(), "create table kept (n int)"))
	second, err := first.NewStandby(t.Context(), "second")
	require.NoError(t, err)
	require.NoError(t, first.WaitForStandby(t.Context()))
	insert(t, first, 1)

	require.NoError(t, first.Kill())
	require.NoError(t, second.Promote(t.Context()))

	require.Equal(t, []int{1}, kept(t, second))
	insert(t, second, 2) // it waits for nobody
	require.NoError(t, first.Remove())
	require.NoDirExists(t, first.dir)

	third, err := second.NewStandby(t.Context(), "third") // and so on
	require.NoError(t, err)
	require.NoError(t, second.WaitForStandby(t.Context()))
	insert(t, second, 3)
	require.NoError(t, second.Kill())
	require.NoError(t, third.Promote(t.Context()))
	require.Equal(t, []int{1, 2, 3}, kept(t, third))
}

func TestCommitsWaitForASynchronousStandby(t *testing.T) {
	t.Parallel()
	_, first := start(t)
	require.NoError(t, first.exec(t.Context(), "create table kept (n int)"))
	second, err := first.NewStandby(t.Context(), "second")
	require.NoError(t, err)
	require.NoError(t, first.WaitForStandby(t.Context()))
	require.NoError(t, second.Kill())
	conn, err := pgx.Connect(t.Context(), first.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	committed := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "insert into kept values (1)")
		committed <- err
	}()

	require.NoError(t, first.until(t.Context(), "select exists (select from pg_stat_activity where wait_event = 'SyncRep')"))

	require.NoError(t, second.Start(t.Context()))
	require.NoError(t, testkit.Receive(t, "a commit that waited for the standby", committed))
}

func TestStandbyThatStoppedToFollowHasWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	_, first := start(t)
	require.NoError(t, first.exec(t.Context(), "create table kept (n int)"))
	second, err := first.NewStandby(t.Context(), "second")
	require.NoError(t, err)
	insert(t, first, 1)
	require.NoError(t, second.StopFollowing(t.Context(), first))
	insert(t, first, 2)

	require.NoError(t, first.Kill())
	require.NoError(t, second.Promote(t.Context()))

	require.Equal(t, []int{1}, kept(t, second))
}

// backedUp returns a server that has kept 1 and 2, and a backup of it that has only 1.
func backedUp(t *testing.T) (pg, backup *Postgres) {
	t.Helper()
	_, pg = start(t)
	require.NoError(t, pg.exec(t.Context(), "create table kept (n int)"))
	insert(t, pg, 1)
	backup, err := pg.NewBackup(t.Context(), "backup")
	require.NoError(t, err)
	insert(t, pg, 2)
	return pg, backup
}

func TestBackupIsRestoredAsItWasAndGoesOn(t *testing.T) {
	t.Parallel()
	pg, backup := backedUp(t)
	require.NoError(t, pg.Stop())

	require.NoError(t, backup.Restore(t.Context()))

	require.Equal(t, []int{1}, kept(t, backup))
	insert(t, backup, 3)
	require.NoError(t, backup.Kill())
	require.NoError(t, backup.Start(t.Context()))
	require.Equal(t, []int{1, 3}, kept(t, backup))
	standby, err := backup.NewStandby(t.Context(), "standby")
	require.NoError(t, err)
	require.NoError(t, standby.until(t.Context(), "select pg_is_in_recovery() and exists (select from kept where n = 3)"))
}

func TestFilesThatArePutBackAreOfTheTimelineThatTheyWereOf(t *testing.T) {
	t.Parallel()
	pg, backup := backedUp(t)
	require.NoError(t, pg.Kill())

	require.NoError(t, backup.Start(t.Context()))

	require.Equal(t, []int{1}, kept(t, backup))
	require.NoError(t, backup.until(t.Context(), "select left(pg_walfile_name(pg_current_wal_lsn()), 8) = '00000001'"))
}

func TestPgBouncerIsKilledAndComesBack(t *testing.T) {
	t.Parallel()
	_, pg := start(t)
	bouncer, err := NewPgBouncer(t.Context(), pg, "bouncer")
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), bouncer.url("postgres"))
	require.NoError(t, err)
	require.NoError(t, conn.Ping(t.Context()))

	bouncer.Kill()
	require.Error(t, conn.Ping(t.Context()))
	require.NoError(t, bouncer.Start(t.Context()))

	again, err := pgx.Connect(t.Context(), bouncer.url("postgres"))
	require.NoError(t, err)
	defer again.Close(t.Context())
	require.NoError(t, pg.Kill())
	require.NoError(t, pg.Start(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	testkit.Await(t, "a connection through the bouncer to the server that is back", func() (bool, any) {
		third, err := pgx.Connect(ctx, bouncer.url("postgres"))
		if err == nil {
			err = third.Close(ctx)
		}
		return err == nil, err
	})
}
