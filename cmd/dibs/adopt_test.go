package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagedbtest"
)

// As the machine does that runs out of memory, and at each phase.
func TestKilledAdoptIsRunAgain(t *testing.T) {
	t.Parallel()
	url := messagedbtest.Database(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `insert into message_store.messages (stream_name, position, type, data)
		select 'account-' || n % 50, n / 50, 'Deposited', jsonb_build_object('amount', n) from generate_series(0, 49999) n`)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	run := func(args ...string) *exec.Cmd {
		command := exec.CommandContext(t.Context(), self, args...)
		command.Env = append(os.Environ(), "DIBS_TEST_MAIN=1", "DIBS_STORE="+url)
		return command
	}

	for _, phase := range []string{"locking", "copying", "indexing", "comparing"} {
		command := run("migrate", "adopt")
		stderr, err := command.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		said := bufio.NewScanner(stderr)
		for said.Scan() && !strings.HasPrefix(said.Text(), "dibs: "+phase) {
		}
		require.Contains(t, said.Text(), phase)
		require.NoError(t, command.Process.Kill())
		require.Error(t, command.Wait())

		status, err := run("migrate", "status").Output()
		require.NoError(t, err)
		require.NotContains(t, string(status), "adopted  ", phase)
		_, err = conn.Exec(t.Context(), "insert into message_store.messages (stream_name, position, type) values ($1, 0, 'T')", "between-"+phase)
		require.NoError(t, err)
	}

	out, err := run("migrate", "adopt").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "adopted: 50004 messages of message-db 1.3.0;")
	var same bool
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) = 50004 and bool_and(o.stream_name = m.stream_name and o.position = m.position and o.data::text = m.data::text
		and o.global_position = m.global_position and o.time = m.time) from message_store_before_dibs.messages o join message_store.messages m using (id)`).Scan(&same))
	require.True(t, same)
}
