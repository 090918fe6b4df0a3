package migrations_test

import (
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

// After a change: go test ./migrations -run TestCatalog -update.
func TestCatalogIsWhatTheFilesMake(t *testing.T) {
	t.Parallel()
	is := testkit.Do(migrations.ReadCatalogs(t.Context(), func() *pgx.Conn { return connect(t, pgtest.Database(t)) }))(t)
	for prefix, text := range is {
		if *update {
			require.NoError(t, os.WriteFile(prefix+"catalog.txt", []byte(text), 0o600))
			continue
		}
		require.Equal(t, text, migrations.Catalog(prefix), "the schema was changed: run go test ./migrations -run TestCatalog -update, and read what it changes")
	}
}

func drift(t *testing.T, conn *pgx.Conn, config *migrations.Config) *migrations.DriftReport {
	t.Helper()
	return testkit.Do(migrations.Drift(t.Context(), conn, config))(t)
}

// Each of these is something that somebody did by hand.
func TestDriftIsFound(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	for _, test := range []struct{ change, found string }{
		{"alter table dibs.messages disable trigger messages_append_only", "table dibs.messages: lacks: trigger messages_append_only before delete update truncate for each statement calls dibs.refuse_change; has: trigger messages_append_only before delete update truncate for each statement calls dibs.refuse_change, disabled"},
		{"drop trigger messages_append_only on dibs.messages", "table dibs.messages: lacks: trigger messages_append_only before delete update truncate for each statement calls dibs.refuse_change"},
		{"grant select on dibs.messages to dibs_reader", "table dibs.messages: has: grant select to dibs_reader"},
		{"grant update (type) on dibs.messages to public", "table dibs.messages: has: grant update (type) to public"},
		{"grant create on schema dibs to dibs_writer", "schema dibs: lacks: grant usage to dibs_writer; has: grant create, usage to dibs_writer"},
		{"revoke execute on function dibs.stream_version(text) from dibs_reader", "function dibs.stream_version(stream text): lacks: grant execute to dibs_reader"},
		{"grant execute on function dibs.stream_version(text) to public", "function dibs.stream_version(stream text): has: grant execute to public"},
		{"alter function dibs.stream_version(text) reset search_path", "function dibs.stream_version(stream text): lacks: set search_path=pg_catalog, pg_temp"},
		{"alter function dibs.stream_version(text) owner to current_user", "function dibs.stream_version(stream text): has: owner postgres, not the owner of the schema"},
		{"create or replace function dibs.stream_version(stream text) returns bigint language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as 'begin return 0; end'", "function dibs.stream_version(stream text): lacks: body "},
		{"alter table dibs.messages drop constraint messages_id", "table dibs.messages: lacks: constraint messages_id unique (id); lacks: unique index messages_id (id)"},
		{"alter table dibs.messages alter column time drop default", "table dibs.messages: lacks: column time timestamp with time zone not null default; has: column time timestamp with time zone not null"},
		{"alter table dibs.fences alter column category type text collate pg_catalog.\"default\"", "table dibs.fences: lacks: column category text collate \"C\" not null; has: column category text not null"},
		{"alter table dibs.messages alter column type drop not null", "table dibs.messages: lacks: column type text collate \"C\" not null; has: column type text collate \"C\""},
		{"alter sequence dibs.messages_global_position_seq cache 100", "sequence dibs.messages_global_position_seq: lacks: bigint, from 1 by 1 between 1 and 9223372036854775807, cache 1; has: "},
		{"create table dibs.mine ()", "table dibs.mine: is not one of ours"},
		{"create function dibs.append(text) returns integer language sql as 'select 1'", "function dibs.append(text): is not one of ours"},
		{"drop table dibs.fences", "table dibs.fences: is not there"},
		{"alter default privileges in schema dibs grant select on tables to dibs_reader", "default privileges in schema dibs: is not one of ours"},
		{"create rule r as on insert to dibs.messages do instead nothing", "table dibs.messages: has: rule r"},
		{"alter table dibs.messages enable row level security", "table dibs.messages: has: row security"},
		{"create index mine on dibs.messages (type)", "table dibs.messages: has: index mine (type)"},
		{"grant execute on function dibs.trim to dibs_admin with grant option", "has: grant execute to dibs_admin with grant option"},
		{"alter table dibs.fences set unlogged", "table dibs.fences: has: not logged"},
	} {
		tx := testkit.Do(conn.Begin(t.Context()))(t)
		require.NoError(t, testkit.ErrorOf(tx.Exec(t.Context(), test.change)), test.change)

		report := testkit.Do(migrations.Drift(t.Context(), tx, nil))(t)

		require.Len(t, report.Differences, 1, test.change)
		require.Contains(t, report.Differences[0].String(), test.found, test.change)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.Empty(t, drift(t, conn, nil).Differences)
}

// The documents leave these to the DBA.
func TestIndexForReadersOfAllAndStorageParametersAreNoDrift(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	for _, change := range []string{
		"create index messages_global_position on dibs.messages (global_position)",
		"alter table dibs.messages set (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000)",
		"update dibs.settings set sql_condition = true, strict_names = true",
	} {
		testkit.Do(conn.Exec(t.Context(), change))(t)
		require.Empty(t, drift(t, conn, nil).Differences, change)
	}
}
