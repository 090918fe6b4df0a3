package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagedbtest"
)

func TestMigrateUpSaysWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": messagedbtest.Database(t)}}
	const why = "message_store is message-db's own, until it is adopted"

	require.Contains(t, dibs.ok(t, "migrate", "up"), "up to date: 8 migrations\n0009_message_store.sql is left out: "+why+"\n")

	require.Regexp(t, `0009_message_store\.sql +left out +`+why, dibs.ok(t, "migrate", "status"))
	status := objects(t, dibs.ok(t, "migrate", "status", "--json"))
	require.Equal(t, map[string]any{"name": "0009_message_store.sql", "state": "left out", "reason": why}, status[8])
}

func TestRolesCanBePrintedAlone(t *testing.T) {
	t.Parallel()
	dibs := &shell{}

	printed := dibs.ok(t, "migrate", "print", "--roles")

	for _, role := range []string{"dibs_owner", "dibs_writer", "dibs_reader", "dibs_admin", "message_store"} {
		require.Contains(t, printed, "create role "+role+" ")
	}
	require.NotContains(t, printed, "create table")
}
