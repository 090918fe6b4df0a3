package messagedb_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// Version 1.1 has its columns in another order, and other functions; 1.0 differs from it in
// nothing that is adopted. A database updated from an older one has varchar(255).
func TestOlderMessageDBIsAdopted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		long                  bool
		version, says, change string
	}{
		{false, pgtest.MessageDB1_1, "1.1.6", ""},
		{true, pgtest.MessageDB1_1, "1.0.0", "create or replace function message_store.message_store_version() returns varchar as $$ begin return '1.0.0'; end; $$ language plpgsql"},
		{true, pgtest.MessageDB1_2, "1.2.6", ""},
		{false, pgtest.MessageDBNewest, "1.3.0", "drop view message_store.stream_summary, message_store.type_summary, message_store.stream_type_summary, message_store.type_stream_summary, message_store.category_type_summary, message_store.type_category_summary; drop index message_store.messages_category; alter table message_store.messages alter type type varchar(255), alter stream_name type varchar(3000)"},
	} {
		if c.long && !testkit.Long() {
			continue
		}
		url := pgtest.MessageDBOf(t, c.version)
		conn := connect(t, url)
		if c.change != "" {
			do(t, conn, c.change)
		}
		fill(t, url)
		before := fingerprint(t, conn, "message_store.messages")

		done, err := run(t, url, nil)

		require.NoError(t, err, c.says)
		require.Equal(t, c.says, done.Version)
		require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
		require.NotEmpty(t, asked(t, url), "it is 1.3.0 now")
		write(t, connect(t, pgtest.As(t, url, "message_store")), "account-1")
		requireOurs(t, conn)
		undone, err := messagedb.Undo(t.Context(), connector(url), nil)
		require.NoError(t, err, c.says)
		require.Equal(t, int64(2), undone.Since)
		write(t, connect(t, pgtest.As(t, url, "message_store")), "account-1")
	}
}

// Settings of the database would end sessions that wait for others, or refuse writes. Those of time
// are too long here to end anything: the session's own are looked at.
func TestAdoptionDoesNotDependOnSettings(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	database := one[string](t, conn, "select current_database()")
	for _, setting := range []string{
		"idle_session_timeout = '1h'", "idle_in_transaction_session_timeout = '1h'", "statement_timeout = '1h'", "lock_timeout = '1h'",
		"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on",
		"standard_conforming_strings = off", "search_path = message_store", "timezone = 'Asia/Kathmandu'", "datestyle = 'German'", "work_mem = '64kB'", "synchronous_commit = off", "dibs.allow_unsafe_settings = off",
	} {
		do(t, conn, fmt.Sprintf("alter database %s set %s", database, setting))
	}
	do(t, conn, "create publication everything for all tables") // which takes no update without a key
	before := fingerprint(t, conn, "message_store.messages")
	var sessions []*pgx.Conn // of which the first is idle when another phase begins
	var mu sync.Mutex
	opening := func(ctx context.Context) (*pgx.Conn, error) {
		conn, err := pgx.Connect(ctx, url)
		mu.Lock()
		defer mu.Unlock()
		sessions = append(sessions, conn)
		return conn, err
	}
	var bounds []string
	look := at(messagedb.Copying, func() {
		rows, err := sessions[0].Query(context.WithoutCancel(t.Context()), "select name || ' ' || setting from pg_settings where name ~ '_timeout$' and setting = '3600000'")
		if err == nil {
			bounds, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			t.Error(err)
		}
	})

	plan := testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t)
	require.Contains(t, strings.Join(plan.Warnings, ""), "synchronous_commit is off", "it is what others have")
	require.Contains(t, strings.Join(plan.Warnings, ""), "publication everything is of all tables")
	testkit.Do(messagedb.Adopt(t.Context(), opening, patient(look)))(t)

	require.Empty(t, bounds)
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
	testkit.Do(messagedb.Undo(t.Context(), opening, patient(nil)))(t)
}

// Through one, the lock of the session and its settings would be somebody else's.
func TestPoolerIsNotAdoptedThrough(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	bouncer := pgtest.PgBouncer(t, url)

	require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(t.Context(), connector(bouncer.URL), nil)), messagedb.ErrPooled)
	require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null"))
	require.Zero(t, one[int](t, conn, "select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"))
	require.Zero(t, one[int](t, conn, "select count(*) from pg_stat_activity where application_name = 'dibs migrate adopt' and datname = current_database()"))
}

// Messages that the owner itself may not see would be lost without a word.
func TestMessagesBehindRowSecurityAreNotLeftOut(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // so that the roles are there
	url, conn := messageDB(t)
	user, name := connectAs(t, url, "")
	do(t, conn, fmt.Sprintf(`alter schema message_store owner to %s; alter table message_store.messages owner to %[1]s;
		create policy few on message_store.messages using (stream_name like 'account-%%');
		alter table message_store.messages enable row level security, force row level security`, name))
	mine := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, user.Config().Copy()) }

	_, err := messagedb.Adopt(t.Context(), mine, &messagedb.Config{LeaveDependents: true})

	require.Equal(t, "42501", sqlstate(err), "%v", err)
	require.ErrorContains(t, err, "row-level security")
}

func TestOtherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.DatabaseIn(t, "LATIN1")
	pgtest.InstallMessageDB(t, url, pgtest.MessageDBNewest)

	plan := testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t)

	require.Equal(t, []messagedb.Obstacle{{Kind: messagedb.ObstacleSource, Problem: "the database's encoding is LATIN1, and it has to be UTF8"}}, plan.Obstacles)
}

// Each is an obstacle that only other users can make, carefully or carelessly.
func TestUnusualTablesAreRefused(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	for _, c := range []struct{ sql, undo, says string }{
		{"create table message_store.child () inherits (message_store.messages)", "drop table message_store.child", "message_store.messages is partitioned, or inherits"},
		{
			"alter table message_store.messages drop constraint messages_pkey; insert into message_store.messages (global_position, stream_name, position, type) values (1, 'again-1', 0, 'T')",
			"delete from message_store.messages where stream_name = 'again-1'; alter table message_store.messages add primary key (global_position)", "global positions of more than one message: 1",
		},
		{
			// As a failed concurrent build leaves it.
			"drop index message_store.messages_id; insert into message_store.messages (id, stream_name, position, type) select id, 'again-1', 0, 'T' from message_store.messages limit 1; create index messages_id on message_store.messages (id); update pg_index set indisunique = true, indisvalid = false where indexrelid = 'message_store.messages_id'::regclass",
			"delete from message_store.messages where stream_name = 'again-1'; drop index message_store.messages_id; create unique index messages_id on message_store.messages (id)", "ids of more than one message: 1",
		},
		{"create rule audit as on insert to message_store.messages do also notify written", "drop rule audit on message_store.messages", "rule audit on table message_store.messages would go on"},
		{
			"create table app_names (name text check (message_store.is_category(name)))", "drop table app_names",
			"constraint app_names_name_check on table public.app_names would go on",
		},
		{
			"create table app_rows (stream text); create policy own on app_rows using (message_store.category(stream) = current_user)", "drop table app_rows",
			"policy own on table public.app_rows would go on",
		},
		{
			"create schema aside; create extension citext schema message_store", "drop extension citext; drop schema aside",
			"extension citext is in the schema that is put aside: alter extension citext set schema public",
		},
		{"grant usage on schema message_store to public", "revoke usage on schema message_store from public", "revoke usage on schema message_store from public"},
		{
			"set allow_system_table_mods = on; create publication p; create subscription " + "s_" + strings.ToLower(t.Name()) + " connection 'dbname=none' publication p with (connect = false); insert into pg_subscription_rel (srsubid, srrelid, srsubstate) select oid, 'message_store.messages'::regclass, 'r' from pg_subscription where subname = 's_" + strings.ToLower(t.Name()) + "'",
			"drop publication p; delete from pg_subscription_rel; alter subscription s_" + strings.ToLower(t.Name()) + " set (slot_name = none); drop subscription s_" + strings.ToLower(t.Name()), "writes to the old table",
		},
	} {
		do(t, conn, c.sql)
		_, err := run(t, url, nil)
		require.ErrorIs(t, err, messagedb.ErrCannotAdopt, c.sql)
		require.ErrorContains(t, err, c.says)
		require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null"))
		for sql := range strings.SplitSeq(c.undo, "; ") {
			do(t, conn, sql)
		}
	}
	require.Empty(t, testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t).Obstacles)
}

// The switch would cut off a role that uses message-db under its own name.
func TestRolesThatWouldBeCutOffAreInTheWay(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // so that the roles are there
	url, conn := adopting(t)
	user, name := connectAs(t, url, "")
	owner, ownerName := connectAs(t, url, "")
	do(t, conn, fmt.Sprintf("grant usage on schema message_store to %s with grant option; grant select, insert on message_store.messages to %[1]s; grant usage on sequence message_store.messages_global_position_seq to %[1]s; alter schema message_store owner to %s", name, ownerName))
	_, member := connectAs(t, url, "in role message_store")
	do(t, user, "grant usage on schema message_store to "+member)

	_, err := run(t, url, nil)

	require.ErrorIs(t, err, messagedb.ErrCannotAdopt)
	for _, role := range []string{name, ownerName} {
		require.ErrorContains(t, err, fmt.Sprintf("role %s loses its rights in the schema message_store: grant message_store to %[1]s", role))
		do(t, conn, "grant message_store to "+role)
	}
	require.NotContains(t, err.Error(), member)
	testkit.Do(run(t, url, nil))(t)
	for _, conn := range []*pgx.Conn{user, owner} {
		write(t, conn, "account-1")
	}
	testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t)
	do(t, conn, "revoke message_store from "+name)
	write(t, user, "account-1")
}

// It has no session, and may be there for weeks.
func TestPreparedTransactionInTheWayIsNamed(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	do(t, conn, "begin; set local search_path = message_store; select write_message(gen_random_uuid()::varchar, 'account-1', 'T', '{}'); prepare transaction 'dibs left by a test'")

	_, err := messagedb.Adopt(t.Context(), connector(url), &messagedb.Config{LockTimeout: time.Millisecond, LockTries: 1})

	require.ErrorIs(t, err, messagedb.ErrLocked)
	require.ErrorContains(t, err, `the prepared transaction "dibs left by a test" of postgres`)
	do(t, conn, "commit prepared 'dibs left by a test'")
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
}

// However large the table is: while writers wait, no more than the tail is read.
func TestSwitchReadsTheTailOnly(t *testing.T) {
	t.Parallel()
	const messages = 10_000
	url, conn := adopting(t)
	do(t, conn, "insert into message_store.messages (stream_name, position, type, data) select 'large-' || n, 0, 'T', '{}' from generate_series(1, $1) n", messages)
	do(t, conn, "analyze message_store.messages")
	writer := connect(t, url)
	do(t, writer, "set search_path = message_store")
	comparing := at(messagedb.Comparing, func() {
		_, err := writer.Exec(t.Context(), "select write_message(gen_random_uuid()::varchar, 'tail-' || n, 'T', '{}') from generate_series(1, 500) n")
		if err != nil {
			t.Error(err)
		}
	})

	testkit.Do(messagedb.Adopt(t.Context(), connector(url), &messagedb.Config{Progress: comparing}))(t)

	testkit.AwaitEqual(t, "sessions of the adoption, whose reads are known when they have ended", 0, func() int {
		return one[int](t, conn, "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'dibs migrate adopt'")
	})
	read := one[int64](t, conn, "select idx_tup_read from pg_stat_user_indexes where schemaname = 'message_store_before_dibs' and indexrelname = 'messages_stream'")
	require.Less(t, read, int64(messages))
}

// The switch looks up each message of the tail, while writers wait.
func TestWhatIsWrittenMeanwhileIsSettledBeforeTheSwitch(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	writer, late := connect(t, url), connect(t, url)
	do(t, late, "set search_path = message_store")
	many := func(stream string) {
		_, err := writer.Exec(context.WithoutCancel(t.Context()), "insert into message_store.messages (stream_name, position, type, data) select $1, n, 'T', '{}' from generate_series(0, 5999) n", stream)
		if err != nil {
			t.Error(err)
		}
	}
	var tx pgx.Tx
	copying := at(messagedb.Copying, func() {
		var err error
		if tx, err = late.Begin(t.Context()); err == nil {
			_, err = tx.Exec(t.Context(), "select write_message(gen_random_uuid()::varchar, 'late-1', 'T', '{}')")
		}
		if err != nil {
			t.Error(err)
		}
		many("copying-1")
	})
	// It was passed by, and has to come before the frontier does.
	commit := sync.OnceFunc(func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
	comparing := at(messagedb.Comparing, func() { many("comparing-1") })
	var held atomic.Int64

	config := patient(nil)
	config.RangeMessages = 500
	config.Progress = func(p messagedb.Progress) {
		copying(p)
		if p.Phase == messagedb.Following && p.Done > 3000 {
			commit()
		}
		comparing(p)
		if p.Phase == messagedb.Locking && p.Done == 0 {
			held.Add(1)
		}
	}

	done := testkit.Do(adoptPatiently(t.Context(), url, config))(t)

	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
	require.GreaterOrEqual(t, one[int64](t, conn, "select frontier from dibs_adoption.state"), one[int64](t, conn, "select max(global_position) from message_store.messages where stream_name = 'comparing-1'"))
	require.Equal(t, done.Messages, one[int64](t, conn, "select sum(messages)::bigint from dibs_adoption.ranges"), "the switch had nothing to copy")
	require.GreaterOrEqual(t, held.Load(), int64(4), "at the beginning, before the comparison and after it, and to switch")
}

// A schema that an undo put aside may look like litter.
func TestStoreWithoutItsCompatibleSchemaIsRefused(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t)
	do(t, conn, "drop schema message_store_by_dibs cascade")

	_, err := run(t, url, nil)

	require.ErrorIs(t, err, messagedb.ErrCannotAdopt)
	require.ErrorContains(t, err, "drop the schemas dibs and dibs_adoption")
	do(t, conn, "drop schema dibs, dibs_adoption cascade")
	testkit.Do(run(t, url, nil))(t)
}

// Without a way back no old table is kept.
func TestNothingIsNotedWithoutTheOldTable(t *testing.T) {
	t.Parallel()
	_, conn := adopted(t)
	require.Zero(t, one[int](t, conn, "select count(*) from dibs_adoption.sums"))
	do(t, conn, "select dibs.trim('account-3', keep => 2, min_age => '0')")
	noted := one[int](t, conn, "select count(*) from dibs_adoption.removed")
	require.Positive(t, noted)
	do(t, conn, "drop schema message_store_before_dibs cascade")

	do(t, conn, "select dibs.trim('account-4', keep => 2, min_age => '0')")

	require.Equal(t, noted, one[int](t, conn, "select count(*) from dibs_adoption.removed"))
	require.False(t, testkit.Do(messagedb.Status(t.Context(), conn))(t).HasOld)
}

// Messages that were deleted or written by hand are not obstacles.
func TestPlanWarnsOfWhatWasDoneByHand(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	do(t, conn, `delete from message_store.messages where stream_name = 'account-1' and position in (3, 4);
		delete from message_store.messages where stream_name = 'account-2' and position < 7;
		insert into message_store.messages (stream_name, position, type) values ('forged-1', 0, 'dibs:Tombstone')`)

	plan := testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t)

	require.Empty(t, plan.Obstacles)
	require.Equal(t, []string{
		"streams that do not begin at position 0, or have gaps: 2; they stay so, and dibs verify tells of them",
		"messages of a type that begins with dibs: 1; services in Go take them for the store's own, and not for messages",
	}, plan.Warnings)
	before := fingerprint(t, conn, "message_store.messages")
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
}

// On a standby there is nothing to be done, and it says so.
func TestStandbyIsNotAdopted(t *testing.T) {
	t.Parallel()
	standby := pgtest.Standby(t, pgtest.Server(t))

	for range 2 {
		_, err := messagedb.Adopt(t.Context(), connector(standby), nil)
		require.ErrorIs(t, err, messagedb.ErrCannotAdopt)
		require.ErrorContains(t, err, "this server is a standby")
	}
	require.Len(t, testkit.Do(messagedb.NewPlan(t.Context(), connector(standby), nil))(t).Obstacles, 1)
}

// A backend that dies takes the server down: all sessions end, and unlogged tables are
// empty afterwards.
func TestAdoptionGoesOnAfterTheServerCrashed(t *testing.T) {
	t.Parallel()
	url := pgtest.Server(t)
	pgtest.InstallMessageDB(t, url, pgtest.MessageDBNewest)
	fill(t, url)
	recovered := func() *pgx.Conn {
		var conn *pgx.Conn
		testkit.Await(t, "the server to take connections", func() (bool, any) {
			var err error
			conn, err = pgx.Connect(t.Context(), url)
			return err == nil, err
		})
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // which a crash may have closed
		return conn
	}
	phases := []messagedb.Phase{messagedb.Comparing}
	if testkit.Long() {
		phases = []messagedb.Phase{messagedb.Locking, messagedb.Copying, messagedb.Indexing, messagedb.Comparing}
	}
	for _, phase := range phases {
		crash := at(phase, func() {
			// Of the session that would switch.
			pid := one[int](t, recovered(), "select pid from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())")
			process, err := os.FindProcess(pid)
			if err == nil {
				err = process.Kill()
			}
			if err != nil {
				t.Error(err)
			}
		})
		require.Error(t, testkit.ErrorOf(run(t, url, crash)), phase)
		// The server may take a connection before it ends all of them.
		testkit.Await(t, "a write after the crash", func() (bool, any) {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				return false, err
			}
			defer conn.Close(t.Context())
			const write = "set search_path = message_store; select write_message(md5('%s'), 'between-1', 'T', '{}')"
			_, err = conn.PgConn().Exec(t.Context(), fmt.Sprintf(write, phase)).ReadAll()
			return err == nil || sqlstate(err) == "23505", err
		})
	}

	testkit.Do(run(t, url, nil))(t)

	conn := recovered()
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
	require.Equal(t, len(phases), one[int](t, conn, "select count(*) from message_store.messages where stream_name = 'between-1'"))
	write(t, conn, "account-1")
	requireOurs(t, conn)
}

// Of a comparison that was ended, some pieces may be there.
func TestComparisonBeginsAnew(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(ctx, connector(url), &messagedb.Config{Progress: at(messagedb.Comparing, cancel)})), context.Canceled)
	do(t, conn, "insert into dibs_adoption.sums (stream_name, tail, messages, checksum) values ('account-1', false, 29, 4711)")

	testkit.Do(run(t, url, nil))(t)
}
