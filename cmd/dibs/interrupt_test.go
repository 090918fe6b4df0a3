package main

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// The process is gone then, and a large table would keep the server busy for long.
func TestInterruptedCommandLeavesNothingRunningOnTheServer(t *testing.T) {
	t.Parallel()
	where := pgtest.Migrated(t)
	holder, err := pgx.Connect(t.Context(), where)
	require.NoError(t, err)
	defer holder.Close(context.WithoutCancel(t.Context()))
	_, err = holder.Exec(t.Context(), "begin; lock table dibs.messages in access exclusive mode")
	require.NoError(t, err)
	busy := func() (waiting int) {
		t.Helper()
		err := holder.QueryRow(t.Context(), "select count(*) from pg_locks where not granted and relation = 'dibs.messages'::regclass").Scan(&waiting)
		require.NoError(t, err)
		return waiting
	}

	for _, args := range [][]string{{"verify"}, {"report", "streams"}} {
		command := dibs(t, where, args...)
		require.NoError(t, command.Start())
		testkit.AwaitEqual(t, args[0]+" waits for the table", 1, busy)

		require.NoError(t, command.Process.Signal(os.Interrupt))

		require.Equal(t, 130, exitCode(t, command.Wait()))
		testkit.AwaitEqual(t, args[0]+" has left no session that waits", 0, busy)
	}
}
