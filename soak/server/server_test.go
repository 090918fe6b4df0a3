package server

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
)

func start(t *testing.T) (*Keeper, *Postgres) {
	t.Helper()
	keeper, err := NewKeeper("/var/tmp")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, keeper.Close())
		require.NoDirExists(t, keeper.Dir())
		require.Empty(t, below(keeper.Dir()))
	})
	pg, err := NewPostgres(t.Context(), keeper.Dir(), "pg", nil)
	require.NoError(t, err)
	return keeper, pg
}

func TestServerIsKilledAndComesBackWithWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	_, pg := start(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var fsync string
	require.NoError(t, conn.QueryRow(t.Context(), "show fsync").Scan(&fsync))
	require.Equal(t, "on", fsync)
	_, err = conn.Exec(t.Context(), "create table kept as select 7 as n")
	require.NoError(t, err)
	before := pg.PID()

	require.NoError(t, pg.Kill())
	require.False(t, pg.Running())
	require.Empty(t, pg.Backends())
	require.NoError(t, pg.Start(t.Context()))

	require.NotEqual(t, before, pg.PID())
	again, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer again.Close(t.Context())
	var n int
	require.NoError(t, again.QueryRow(t.Context(), "select n from kept").Scan(&n))
	require.Equal(t, 7, n)
	require.NoError(t, pg.Stop())
}

func TestAmcheckFindsABrokenIndex(t *testing.T) {
	t.Parallel()
	_, pg := start(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "create extension amcheck; create table kept as select n from generate_series(1, 1000) n; create index kept_n on kept (n)")
	require.NoError(t, err)
	var path string
	require.NoError(t, conn.QueryRow(t.Context(), "select pg_relation_filepath('kept_n')").Scan(&path))
	found, err := pg.Amcheck(t.Context(), "postgres")
	require.NoError(t, err)
	require.Empty(t, found)
	require.NoError(t, pg.Stop())
	index, err := os.OpenFile(filepath.Join(pg.dir, "data", path), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer index.Close()
	const page, header = 8192, 24
	_, err = index.WriteAt(bytes.Repeat([]byte{0xff}, 64), page+header) // where its first items are
	require.NoError(t, err)
	require.NoError(t, pg.Start(t.Context()))

	found, err = pg.Amcheck(t.Context(), "postgres")

	require.NoError(t, err)
	require.Contains(t, found, "kept_n")
	_, err = pg.Amcheck(t.Context(), "nowhere")
	require.ErrorContains(t, err, "nowhere")
}

func TestBackendsAreKnownByWhatTheyDo(t *testing.T) {
	t.Parallel()
	_, pg := start(t)
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())

	kinds := map[string]int{}
	for _, b := range pg.Backends() {
		kinds[b.Kind]++
	}
	require.Contains(t, pg.Backends(), Backend{int(conn.PgConn().PID()), ClientBackend})
	require.Equal(t, 1, kinds["checkpointer"])
	require.Equal(t, 1, kinds["walwriter"])
}

func TestKeeperEndsAServerThatIsPaused(t *testing.T) {
	t.Parallel()
	keeper, pg := start(t)
	for _, b := range pg.Backends() {
		_ = syscall.Kill(b.PID, syscall.SIGSTOP) // some end by themselves
	}
	require.NoError(t, syscall.Kill(pg.PID(), syscall.SIGSTOP))
	require.NotEmpty(t, below(keeper.Dir()))

	require.NoError(t, keeper.Close()) // its input ends, as it does when the harness is killed

	require.NoDirExists(t, keeper.Dir())
	testkit.AwaitEqual(t, "the end of the server: is it running", false, pg.Running)
}

func TestChildTellsHowItEnded(t *testing.T) {
	t.Parallel()
	well, err := StartChild(exec.Command("true"), io.Discard)
	require.NoError(t, err)
	require.NoError(t, well.Ended())
	require.False(t, well.Killed())

	ill, err := StartChild(exec.Command("sh", "-c", "echo no >&2; exit 3"), io.Discard)
	require.NoError(t, err)
	require.EqualError(t, ill.Ended(), "exit status 3: no")
	require.False(t, ill.Killed())

	killed, err := StartChild(exec.Command("sleep", "600"), io.Discard)
	require.NoError(t, err)
	killed.Signal(syscall.SIGSTOP)
	killed.Kill()
	require.True(t, killed.Killed())
}

func TestWhatRunsBelowAFolderIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	require.NoError(t, os.Mkdir(inside, 0o700))
	cmd := exec.Command("sleep", "600")
	cmd.Dir = inside
	child, err := StartChild(cmd, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []int{child.PID()}, below(dir))
	require.Empty(t, below(inside[:len(inside)-1])) // the name of another folder

	require.NoError(t, killBelow(dir))

	testkit.Receive(t, "the end of a child that was killed", child.Done())
}
