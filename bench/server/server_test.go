package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPostgresIsDurableAndOtherwiseAsItComes(t *testing.T) {
	t.Parallel()
	set := NewSet("")
	p, err := set.Postgres(t.Context())
	require.NoError(t, err)
	again, err := set.Postgres(t.Context())
	require.NoError(t, err)
	require.Same(t, p, again)

	for template, query := range map[string]string{
		Empty:     "select 0",
		Dibs:      "select count(*) from dibs.messages",
		MessageDB: "select count(*) from message_store.messages",
	} {
		name, err := p.Create(t.Context(), template)
		require.NoError(t, err)
		conn, err := pgx.Connect(t.Context(), p.URL(name))
		require.NoError(t, err)
		var rows int
		require.NoError(t, conn.QueryRow(t.Context(), query).Scan(&rows))
		require.Zero(t, rows)
		require.NoError(t, p.Drop(t.Context(), name), "although somebody is connected")
		require.NoError(t, conn.Close(t.Context()))
	}

	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), `select name || '=' || current_setting(name) from pg_settings
		where source in ('command line', 'environment variable') or name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'wal_sync_method', 'max_wal_size')`)
	require.NoError(t, err)
	settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	for _, setting := range []string{
		"fsync=on", "full_page_writes=on", "synchronous_commit=on", "autovacuum=on", "wal_sync_method=fdatasync", "shared_buffers=1GB", "max_wal_size=1GB",
	} {
		require.Contains(t, settings, setting)
	}
	require.NoError(t, conn.Close(t.Context()))
	versions, err := set.Versions(t.Context())
	require.NoError(t, err)
	require.Equal(t, MessageDBVersion, versions["message-db"])

	pid, dir := p.PID(), p.process.dir
	require.NoError(t, set.Stop())
	require.NoDirExists(t, dir)
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
}

func TestRedisAnswersAndIsGoneAfterwards(t *testing.T) {
	t.Parallel()
	set := NewSet("")
	always, err := set.Redis(t.Context(), "always")
	require.NoError(t, err)
	none, err := set.Redis(t.Context(), "")
	require.NoError(t, err)
	require.NotEqual(t, always.Socket(), none.Socket())

	require.Equal(t, "*2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n", ask(t, always, "config get appendfsync"))
	require.Equal(t, "*2\r\n$10\r\nappendonly\r\n$3\r\nyes\r\n", ask(t, always, "config get appendonly"))
	require.Equal(t, "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n", ask(t, none, "config get appendonly"))
	require.Equal(t, "*2\r\n$4\r\nsave\r\n$0\r\n\r\n", ask(t, none, "config get save"))

	versions, err := set.Versions(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, versions["Redis"])
	require.NoError(t, set.Stop())
	require.NoDirExists(t, always.process.dir)
	require.ErrorIs(t, syscall.Kill(none.PID(), 0), syscall.ESRCH)
}

func ask(t *testing.T, r *Redis, command string) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", r.Socket())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(command + "\r\n"))
	require.NoError(t, err)
	answer := make([]byte, 1000)
	n, err := conn.Read(answer)
	require.NoError(t, err)
	return string(answer[:n])
}

func TestServerThatDoesNotStartSaysWhy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := start(dir, nil, syscall.SIGKILL, "sh", "-c", "echo no room >&2; exit 3")
	require.NoError(t, err)

	err = p.await(t.Context(), func(context.Context) error { return os.ErrNotExist })

	require.ErrorContains(t, err, "does not answer: it ended")
	require.ErrorContains(t, err, "no room")
	require.NoError(t, p.end(syscall.SIGKILL))
	require.NoDirExists(t, dir)
}

func TestCPUCountsChildrenThatHaveEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The second half of the work is a child's, which ends.
	p, err := start(dir, nil, syscall.SIGKILL, "sh", "-c", `i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done
		sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; times >times.new; mv times.new times'; exec sleep 1000`)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.end(syscall.SIGKILL)) })
	testkit.Await(t, "the end of the child's half of the work", func() (bool, any) {
		_, err := os.Stat(filepath.Join(dir, "times"))
		running := tree(p.PID())
		return err == nil && len(running) == 1, fmt.Sprint(running, " ", err)
	})

	s, err := readStat(p.PID())
	require.NoError(t, err)
	used, err := CPU(p.PID())
	require.NoError(t, err)

	require.Positive(t, s.ended)
	require.Greater(t, used, s.ended)
}
