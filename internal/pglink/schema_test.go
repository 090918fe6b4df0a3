package pglink_test

import (
	"strings"
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

// A name that is accepted is one identifier, wherever it is put; nothing else is.
func FuzzASchemaIsAnIdentifierOrRefused(f *testing.F) {
	for _, name := range []string{"dibs", "", "other", `x"; drop schema dibs; --`, "pg_catalog", "information_schema", "user", "1a", "_", "A", "a b", "é", "a\x00", "a\n", "\u202e", strings.Repeat("x", 63), strings.Repeat("x", 64), "$1", "dibs.messages"} {
		f.Add(name)
	}
	f.Add("sch\u202eema")             // bidi
	f.Add(`x"; drop schema dibs; --`) // sql
	f.Fuzz(func(t *testing.T, name string) {
		ok := name == "" || len(name) <= 63 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_0123456789") == "" &&
			(name[0] < '0' || name[0] > '9') && !strings.HasPrefix(name, "pg_") && name != "information_schema"
		require.Equal(t, ok, pglink.CheckSchema(name) == "", "%q", name)
		require.Less(t, len(pglink.QuoteSchema(name)), 500)
		require.NotContains(t, pglink.QuoteSchema(name), "\n")
		if ok && name != "" && name != pglink.DefaultSchema {
			require.Equal(t, `select "`+name+`".append('dibs:x')`, pglink.InSchema("select dibs.append('dibs:x')", name))
		}
	})
}
