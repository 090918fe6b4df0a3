package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/migrations"
)

// The process is gone then, and a large table would keep the server busy for long.
func TestInterruptedCommandLeavesNothingRunningOnTheServer(t *testing.T) {
	t.Parallel()
	where := pgtest.Database(t)
	holder, err := pgx.Connect(t.Context(), where)
	require.NoError(t, err)
	defer holder.Close(context.WithoutCancel(t.Context()))
	require.NoError(t, migrations.Up(t.Context(), holder, nil))
	_, err = holder.Exec(t.Context(), "begin; lock table dibs.messages in access exclusive mode")
	require.NoError(t, err)
	busy := func(n int) func() bool {
		return func() bool {
			var waiting int
			err := holder.QueryRow(t.Context(), "select count(*) from pg_locks where not granted and relation = 'dibs.messages'::regclass").Scan(&waiting)
			return err == nil && waiting == n
		}
	}
	self, err := os.Executable()
	require.NoError(t, err)

	for _, args := range [][]string{{"verify"}, {"report", "streams"}} {
		command := exec.CommandContext(t.Context(), self, args...)
		command.Env = append(os.Environ(), "DIBS_TEST_MAIN=1", "DIBS_STORE="+where)
		require.NoError(t, command.Start())
		require.Eventually(t, busy(1), 20*time.Second, 5*time.Millisecond, args)

		require.NoError(t, command.Process.Signal(os.Interrupt))

		require.Equal(t, 130, exitCode(t, command.Wait()))
		require.Eventually(t, busy(0), 20*time.Second, 5*time.Millisecond, args)
	}
}
