package pglink_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pglink"
)

func TestOnlyTheWholeWordIsRenamed(t *testing.T) {
	t.Parallel()
	const sql = `select dibs.append(1), 'dibs.messages'::regclass, (dibs.x), dibs_owner, dibs_writer, predibs.y, "dibs", xdibs, dibs2.z`

	require.Equal(t, sql, pglink.InSchema(sql, ""))
	require.Equal(t, sql, pglink.InSchema(sql, "dibs"))
	require.Equal(t, `select "user".append(1), '"user".messages'::regclass, ("user".x), dibs_owner, dibs_writer, predibs.y, ""user"", xdibs, dibs2.z`, pglink.InSchema(sql, "user"))
}

// A setting with a name in quotes would be another setting.
func TestSettingsAndTypesAreNotRenamed(t *testing.T) {
	t.Parallel()
	const sql = `set dibs.retention = 'on'; current_setting('dibs.caller_role', true), current_setting('dibs.transaction', true), 'dibs:Tombstone'`

	require.Equal(t, sql, pglink.InSchema(sql, "other"))
	require.Equal(t, `"other".migrations, "other".retention_of`, pglink.InSchema("dibs.migrations, dibs.retention_of", "other"))
}

func TestNameIsShownShort(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"a\nb"`, pglink.QuoteSchema("a\nb"))
	require.Less(t, len(pglink.QuoteSchema(string(make([]byte, 1000)))), 400)
}
