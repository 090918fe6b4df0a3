package migrations_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/migrations"
)

var update = flag.Bool("update", false, "write the hashes into the files, or the catalog, instead of comparing")

// What a file has before and after what is its own, so that it can be applied by any
// client: all its work is one statement.
const (
	head = `select pg_catalog.set_config('lock_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.lock_timeout', true), '.+'), '10s'), true),
  pg_catalog.set_config('statement_timeout', coalesce(pg_catalog.substring(pg_catalog.current_setting('dibs.statement_timeout', true), '.+'), '5min'), true),
  pg_catalog.set_config('standard_conforming_strings', 'on', true),
  pg_catalog.set_config('dibs.migration', '%s', true);

do $migration$
declare
  caller constant pg_catalog.text := pg_catalog.current_setting('role');
  path constant pg_catalog.text := pg_catalog.current_setting('search_path');
`
	become = `begin
perform pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
perform set_config('role', pg_get_userbyid(nspowner), true)
from pg_namespace
where oid = to_regnamespace('dibs')
  and pg_has_role(session_user, nspowner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end);
perform dibs.begin_migration('%s', '%s');

`
	record = `insert into dibs.migrations (name, sha256)
values ('%s', '%x');

perform set_config('role', caller, true);
perform set_config('search_path', path, true);
end
$migration$;
-- +goose StatementEnd
`
	compatible = "0009_message_store.sql" // which others cannot count on
)

var recorded = regexp.MustCompile(`(?s)\ninsert into dibs\.migrations \(name, sha256\)\nvalues .*$`)

// After a change: go test ./migrations -run TestHashes -update.
func TestHashesAreWhatTheFilesRecord(t *testing.T) {
	names, err := filepath.Glob("sql/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	previous := ""
	for _, path := range names {
		name := filepath.Base(path)
		require.Regexp(t, `^[0-9]{4}_[a-z_]+\.sql$`, name)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		sql := string(text)

		require.True(t, strings.HasPrefix(sql, "-- +goose Up\n-- +goose StatementBegin\n-- "), "%s begins with goose's marks, and says what it is for", name)
		begins := fmt.Sprintf(head, name)
		if previous != "" {
			begins += fmt.Sprintf(become, name, previous)
		}
		require.Contains(t, sql, "\n"+begins, "%s: after what it is for comes:\n%s", name, begins)
		require.Regexp(t, recorded, sql, "%s ends with:\n%s", name, fmt.Sprintf(record, name, "…"))
		above := recorded.ReplaceAllString(sql, "") + "\n"
		wanted := above + fmt.Sprintf(record, name, sha256.Sum256([]byte(above)))
		if *update && sql != wanted {
			require.NoError(t, os.WriteFile(path, []byte(wanted), 0o600))
		} else {
			require.Equal(t, wanted, sql, "%s was changed: run go test ./migrations -run TestHashes -update", name)
		}
		if name != compatible {
			previous = name
		}
	}
}

func TestFileSaysItsHash(t *testing.T) {
	t.Parallel()
	for _, f := range migrations.Files() {
		require.Len(t, f.SHA256(), 64, f.Name)
	}
}
