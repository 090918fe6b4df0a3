package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// As the machine does that runs out of memory, and at each phase, which a lock keeps from its end.
func TestKilledAdoptIsRunAgain(t *testing.T) {
	t.Parallel()
	const messages = 500
	url := pgtest.MessageDB(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	holder, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer holder.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), `insert into message_store.messages (stream_name, position, type, data)
		select 'account-' || n % 50, n / 50, 'Deposited', jsonb_build_object('amount', n) from generate_series(1, $1) n`, messages)
	require.NoError(t, err)
	adopt := []string{"migrate", "adopt", "--lock-timeout", "1h"}

	for _, at := range []struct{ says, lock string }{
		{"locking the table, waiting for process ", "message_store.messages in row exclusive mode"},
		{"copying", "dibs.messages in share mode"},
		{"indexing", "dibs.messages in row exclusive mode"},
		{"comparing", "message_store.messages in access share mode"},
	} {
		_, err := holder.Exec(t.Context(), "begin; lock table "+at.lock)
		require.NoError(t, err)
		phase, _, _ := strings.Cut(at.says, " ")
		command := dibs(t, url, adopt...)
		stderr, err := command.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, command.Start())
		said := bufio.NewScanner(stderr)
		for said.Scan() && !strings.HasPrefix(said.Text(), "dibs: "+at.says) {
		}
		require.Contains(t, said.Text(), at.says)
		require.NoError(t, command.Process.Kill())
		require.Error(t, command.Wait())

		_, err = holder.Exec(t.Context(), "rollback")
		require.NoError(t, err)
		testkit.AwaitEqual(t, "sessions of the process that was killed", 0, func() (left int) {
			err := conn.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'dibs migrate adopt'").Scan(&left)
			require.NoError(t, err)
			return left
		})
		status, err := dibs(t, url, "migrate", "status").Output()
		require.NoError(t, err)
		require.NotContains(t, string(status), "adopted  ", at.says)
		_, err = conn.Exec(t.Context(), "insert into message_store.messages (stream_name, position, type) values ($1, 0, 'T')", "between-"+phase)
		require.NoError(t, err)
	}

	out, err := dibs(t, url, adopt...).Output()
	require.NoError(t, err)
	require.Contains(t, string(out), fmt.Sprintf("adopted: %d messages of message-db 1.3.0;", messages+4))
	var same bool
	require.NoError(t, conn.QueryRow(t.Context(), `select count(*) = $1 and bool_and(o.stream_name = m.stream_name and o.position = m.position and o.data::text = m.data::text
		and o.global_position = m.global_position and o.time = m.time) from message_store_before_dibs.messages o join message_store.messages m using (id)`, messages+4).Scan(&same))
	require.True(t, same)
}
