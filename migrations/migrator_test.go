package migrations_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/migrations"
)

// ways are the ways to migrate a database; each gets the database's URL.
func ways(t *testing.T) map[string]func(url string) {
	t.Helper()
	return map[string]func(url string){
		"up": func(url string) { require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil)) },
		"the printed script": func(url string) {
			run(t, psql(t, url))
		},
	}
}

// trap makes functions, operators and domains that are called, in the place of those of
// PostgreSQL, by a session that looks names up in public first; and functions for a session
// that looks there last, with arguments that fit better.
const trap = `
grant create on schema public to public;
set search_path = pg_catalog;
do $trap$
declare
  f record;
begin
  for f in
    select distinct quote_ident(p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ') returns ' || pg_get_function_result(p.oid) as signature
    from pg_proc p
    where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f' and not p.proretset
      and p.proname in ('format', 'set_config', 'current_setting', 'pg_has_role', 'pg_get_userbyid', 'to_regclass', 'to_regrole', 'to_regnamespace',
        'has_schema_privilege', 'has_table_privilege', 'has_function_privilege', 'split_part', 'strpos', 'substr', 'left', 'md5', 'nextval', 'now', 'clock_timestamp',
        'hashtext', 'pg_advisory_xact_lock', 'quote_ident', 'replace', 'unnest', 'substring', 'length', 'to_regproc', 'age')
      and not exists (select from unnest(p.proargtypes::oid[] || p.prorettype) a (type) join pg_type t on t.oid = a.type where t.typtype = 'p' and t.typname <> 'void')
  loop
    execute 'create function public.' || f.signature || $$ language plpgsql as 'begin raise exception ''trapped''; end'$$;
  end loop;
  foreach f.signature in array array['format(text, text)', 'format(text, name)', 'format(text, text, text)', 'format(text, text, text, text)', 'set_config(text, name, boolean)',
    'pg_has_role(name, text, text)', 'left(text, bigint)', 'to_regrole(name)'] loop
    execute 'create function public.' || f.signature || $$ returns text language plpgsql as 'begin raise exception ''trapped''; end'$$;
  end loop;
  foreach f.signature in array array['text', 'name', 'int4', 'oid', 'bool'] loop
    execute format('create function public.equal(pg_catalog.%1$I, pg_catalog.%1$I) returns boolean language plpgsql as ''begin raise exception ''''trapped''''; end''', f.signature);
    execute format('create operator public.= (leftarg = pg_catalog.%1$I, rightarg = pg_catalog.%1$I, function = public.equal)', f.signature);
    execute format('create operator public.<> (leftarg = pg_catalog.%1$I, rightarg = pg_catalog.%1$I, function = public.equal)', f.signature);
  end loop;
  execute 'create function public.refuse(pg_catalog.text) returns boolean language plpgsql as ''begin raise exception ''''trapped''''; end''';
  execute 'create domain public.text as pg_catalog.text check (public.refuse(value))';
end
$trap$`

// The migrating user may be a superuser, and others may make functions in public, as all users may
// in a database that began before PostgreSQL 15. The owner of a database may even say that names
// are looked up there first.
func TestMigratorCallsNothingThatOthersLeftForIt(t *testing.T) {
	t.Parallel()
	want := dumpOfUp(t)
	for i, path := range []string{`"$user", public`, "public, pg_catalog"} {
		for j, name := range slices.Sorted(maps.Keys(ways(t))) {
			if !testkit.Long() && j != (i+testkit.Turn(2))%2 {
				continue // another each day
			}
			t.Run(name+" with search_path "+path, func(t *testing.T) {
				t.Parallel()
				migrate := ways(t)[name]
				url := pgtest.Database(t)
				owner := connect(t, url)
				testkit.Do(owner.Exec(t.Context(), trap))(t)
				_, err := owner.Exec(t.Context(), "set search_path = public, pg_catalog; select format('a', 'b')")
				require.ErrorContains(t, err, "trapped", "or else this test shows nothing")
				_, err = owner.Exec(t.Context(), "reset search_path; select format('a', 'b'::pg_catalog.text)")
				require.ErrorContains(t, err, "trapped", "or else this test shows nothing")
				database := pgx.Identifier{owner.Config().Database}.Sanitize()
				testkit.Do(owner.Exec(t.Context(), "alter database "+database+" set search_path = "+path))(t)

				migrate(url)

				conn := connect(t, url)
				require.NoError(t, migrations.Up(t.Context(), conn, nil))
				testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
				require.Empty(t, drift(t, conn, nil).Differences)
				require.Equal(t, path, showSearchPath(t, conn))
				requireSame(t, want, dump(t, url))
			})
		}
	}
}

// showSearchPath calls no function.
func showSearchPath(t *testing.T, conn *pgx.Conn) (path string) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), "show search_path").Scan(&path))
	return path
}

// A role that default privileges give rights to all new objects of the migrating user, for
// another application's sake, has none to the objects made here.
func TestDefaultPrivilegesGiveNobodyRights(t *testing.T) {
	t.Parallel()
	want := dumpOfUp(t)
	for name := range ways(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			superuser := connect(t, url)
			_, other := connectAs(t, url, "")
			var sql strings.Builder
			for _, owner := range []string{"dibs_owner", "postgres"} {
				for _, kind := range []string{"tables", "sequences", "functions", "types", "schemas"} {
					for _, role := range []string{"public", other} {
						sql.WriteString("alter default privileges for role " + owner + " grant all on " + kind + " to " + role + ";\n")
					}
				}
			}
			testkit.Do(superuser.Exec(t.Context(), sql.String()))(t)
			t.Cleanup(func() {
				testkit.Do(superuser.Exec(context.WithoutCancel(t.Context()), strings.ReplaceAll(strings.ReplaceAll(sql.String(), " grant ", " revoke "), " to ", " from ")))(t)
			})

			ways(t)[name](url)

			require.Empty(t, drift(t, superuser, nil).Differences)
			requireSame(t, want, dump(t, url))
		})
	}
}

// settingsOf returns the settings that a migration might leave behind in a session.
func settingsOf(t *testing.T, conn *pgx.Conn) (all []string) {
	t.Helper()
	for _, setting := range []string{"search_path", "role", "lock_timeout", "statement_timeout", "client_min_messages", "standard_conforming_strings", "transaction_read_only", "transaction_isolation"} {
		value := pgtest.Value[string](t, conn, "show "+setting)
		all = append(all, setting+" = "+value)
	}
	return all
}

// atLock notes the settings that a migrator's wait for others begins with.
type atLock struct {
	t        *testing.T
	settings []string
}

func (a *atLock) TraceQueryStart(ctx context.Context, conn *pgx.Conn, query pgx.TraceQueryStartData) context.Context {
	if strings.Contains(query.SQL, "select pg_advisory_xact_lock") {
		a.settings = settingsOf(a.t, conn)
	}
	return ctx
}

func (*atLock) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The settings of a session do not cut the wait for another migrator short, and it does not
// lose them.
func TestSessionKeepsItsSettings(t *testing.T) {
	t.Parallel()
	config := testkit.Do(pgx.ParseConfig(pgtest.Database(t)))(t)
	lock := &atLock{t: t}
	config.Tracer = lock
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(t.Context())
	testkit.Do(conn.Exec(t.Context(), `
		set search_path = public, "$user"; set lock_timeout = '50min'; set client_min_messages = debug1; set standard_conforming_strings = off; set escape_string_warning = off;
		set default_transaction_read_only = on; set default_transaction_isolation = serializable; set statement_timeout = '55min'`))(t)
	before := settingsOf(t, conn)

	require.NoError(t, migrations.Up(t.Context(), conn, nil))

	require.Subset(t, before, []string{"lock_timeout = 50min", "statement_timeout = 55min"})
	require.Subset(t, lock.settings, []string{"lock_timeout = 0", "statement_timeout = 0"})
	require.Equal(t, before, settingsOf(t, conn))

	testkit.Do(migrations.Status(t.Context(), conn, nil))(t)
	require.Equal(t, before, settingsOf(t, conn))

	tx := testkit.Do(conn.Begin(t.Context()))(t)
	before = settingsOf(t, conn)
	testkit.Do(migrations.Drift(t.Context(), tx, nil))(t)
	require.Equal(t, before, settingsOf(t, conn), "nor does a transaction that the drift is looked for in")
	require.NoError(t, tx.Rollback(t.Context()))
}

// A migrator waits without a bound for other migrators only, and not for other locks.
func TestMigratorWaitsABoundedTimeForALockedTable(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	conn, holder := connect(t, url), connect(t, url)
	tx := testkit.Do(holder.Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "lock table dibs.migrations in access exclusive mode"))(t)
	testkit.Do(conn.Exec(t.Context(), "set dibs.lock_timeout = '20ms'"))(t)

	_, err := migrations.Status(t.Context(), conn, nil)
	require.Equal(t, "55P03", code(t, err))
	err = migrations.Up(t.Context(), conn, nil)
	require.Equal(t, "55P03", code(t, err))
	require.NoError(t, tx.Rollback(t.Context()))
	testkit.Do(conn.Exec(t.Context(), "reset dibs.lock_timeout"))(t)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
}

// A schema that another user made beforehand could hold functions that are called in the place
// of ours, and its owner could change everything that is made in it.
func TestSchemaThatIsAnothersIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, migrate := range map[string]func(url string) (string, error){
		"up": func(url string) (string, error) { return "", migrations.Up(t.Context(), connect(t, url), nil) },
		"psql": func(url string) (string, error) {
			out, err := psql(t, url).CombinedOutput()
			return string(out), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "psql" {
				pgtest.Needs(t, "psql")
			}
			for _, test := range []struct{ schema, made, refused string }{
				{"dibs", "create schema dibs; create function dibs.begin_migration(varchar, varchar) returns void language sql as ''", "belongs to "},
				{"dibs", "create schema dibs; create type dibs.t as enum ('a')", "belongs to "},
				{"dibs", "create schema dibs; grant all on schema dibs to public", "belongs to "},
				{"message_store", "create schema message_store; create function message_store.category(text) returns text language sql as 'select $1'", "the schema message_store is there already, and is not empty"},
				{"message_store", "create schema message_store; grant all on schema message_store to public", ""},
				{"", "create schema unrelated", ""},
			} {
				url := pgtest.Database(t)
				squatter, user := connectAs(t, url, "")
				testkit.Do(squatter.Exec(t.Context(), test.made))(t)

				out, err := migrate(url)

				superuser := connect(t, url)
				if test.refused != "" {
					require.Error(t, err, test.made)
					require.Contains(t, out+err.Error(), test.refused)
					require.False(t, one[bool](t, superuser, "select to_regclass('dibs.migrations') is not null"))
					continue
				}
				require.NoError(t, err, test.made)
				require.Empty(t, drift(t, superuser, nil).Differences)
				require.False(t, one[bool](t, superuser, "select bool_or(nspowner = $1::regrole) from pg_namespace where nspname in ('dibs', 'message_store')", user))
			}
		})
	}
}

// A store that somebody made up says that all is applied, and has functions that make a session
// that acts as their owner a superuser's again.
func TestMadeUpStoreGetsNothingFromASuperuser(t *testing.T) {
	t.Parallel()
	for name, migrationsTable := range map[string]string{
		"table": "create table dibs.migrations (name text, sha256 text, applied_at timestamptz, version integer); insert into dibs.migrations select *, 1 from unnest($1::text[], $2::text[], array_fill(now(), array[cardinality($1)]))",
		"table with a policy": `create table dibs.migrations as select 'x' as name, 'x' as sha256, now() as applied_at, 1 as version; alter table dibs.migrations enable row level security; alter table dibs.migrations force row level security;
			create policy p on dibs.migrations using (dibs.rise() is null)`,
		"view": "create view dibs.migrations as select 'x' as name, dibs.rise() as sha256, now() as applied_at, 1 as version",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			superuser := connect(t, url)
			squatter, user := connectAs(t, url, "")
			testkit.Do(squatter.Exec(t.Context(), `
				create schema dibs; grant all on schema dibs to public;
				create function dibs.rise() returns text language plpgsql as $$ begin perform set_config('role', 'none', true); execute 'create table public.risen ()'; return null; end $$;
				create function dibs.grant_rights() returns void language plpgsql as $$ begin perform dibs.rise(); end $$;`))(t)
			var names, sums []string
			for _, f := range migrations.Files() {
				names, sums = append(names, f.Name), append(sums, f.SHA256)
			}
			create, fill, _ := strings.Cut(migrationsTable, "; insert")
			testkit.Do(squatter.Exec(t.Context(), create))(t)
			if fill != "" {
				testkit.Do(squatter.Exec(t.Context(), "insert"+fill, names, sums))(t)
			}

			testkit.Do(migrations.Status(t.Context(), superuser, nil))(t)
			drift(t, superuser, nil)
			err := migrations.Up(t.Context(), superuser, nil)

			require.ErrorIs(t, err, migrations.ErrForeignSchema)
			require.ErrorContains(t, err, "dibs belongs to "+user)
			require.False(t, one[bool](t, superuser, "select to_regclass('public.risen') is not null"))
		})
	}
}
