package messagedb_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/messagedb"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
)

func do(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if len(args) == 0 {
		testkit.Do(conn.PgConn().Exec(t.Context(), sql).ReadAll())(t)
		return
	}
	testkit.Do(conn.Exec(t.Context(), sql, args...))(t)
}

// sqlstate returns the SQLSTATE of an error that the server gave.
func sqlstate(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	return ""
}

// adopting returns a database with message-db, messages of every kind in it, and the store of
// [migrations.Up], and a connection of its owner.
func adopting(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = copyOf(t, "adopting", func(url string) {
		pgtest.InstallMessageDB(t, url, pgtest.MessageDBNewest)
		fill(t, url)
		migrate(t, url)
	})
	return url, connect(t, url)
}

// messageDB is [adopting] without a store in the schema dibs.
func messageDB(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = copyOf(t, "message_db", func(url string) {
		pgtest.InstallMessageDB(t, url, pgtest.MessageDBNewest)
		fill(t, url)
	})
	return url, connect(t, url)
}

// adopted is [adopting] after the adoption.
func adopted(t *testing.T) (url string, conn *pgx.Conn) {
	t.Helper()
	url = copyOf(t, "adopted", func(url string) {
		pgtest.InstallMessageDB(t, url, pgtest.MessageDBNewest)
		fill(t, url)
		migrate(t, url)
		testkit.Do(run(t, url, nil))(t)
	})
	return url, connect(t, url)
}

// copyOf returns the URL of a copy of a template. A server that outlives the tests keeps it, so
// its name has a hash of what it is made of.
func copyOf(t *testing.T, name string, make func(url string)) string {
	t.Helper()
	hash := sha256.New()
	require.NoError(t, migrations.Print(hash, nil))
	fmt.Fprint(hash, pgtest.MessageDBNewest)
	for _, pattern := range []string{"*.go", "sql/*.sql"} {
		names := testkit.Do(filepath.Glob(pattern))(t)
		for _, name := range names {
			text := testkit.Do(os.ReadFile(name))(t)
			hash.Write(text)
		}
	}
	return pgtest.Copy(t, fmt.Sprintf("%s_%x", name, hash.Sum(nil)[:8]), make)
}

// migrate leaves no session, for a template.
func migrate(t *testing.T, url string) {
	t.Helper()
	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	defer conn.Close(t.Context())
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
}

// fill writes through write_message, as message-db's clients do, and leaves no session.
func fill(t *testing.T, url string) {
	t.Helper()
	client := testkit.Do(pgx.Connect(t.Context(), pgtest.As(t, url, "message_store")))(t)
	defer client.Close(t.Context())
	for _, sql := range messages {
		do(t, client, sql)
	}
}

// messages writes the initial messages. There are drawn but unused positions between the last ones,
// and after the last.
var messages = []string{
	`select write_message(gen_random_uuid()::varchar, 'account-' || n % 7, 'Deposited', jsonb_build_object('n', n, 'b', 1e3, 'a', null),
			case n % 3 when 0 then jsonb_build_object('correlationStreamName', 'transfer-' || n) when 1 then '{"x": 1.50}' end)
		from generate_series(1, 200) n;
		select write_message(gen_random_uuid()::varchar, 'account:command-' || n % 11 || '+' || n, 'Deposit', '{}') from generate_series(1, 100) n;
		select write_message(gen_random_uuid()::varchar, 'account:position', 'Recorded', '{"position": 7}');
		select write_message(gen_random_uuid()::varchar, s, 'T', '{"s": 1}') from unnest(array[
			'', '-', '-a', 'a-', 'a-+', 'solo', 'with space-1', 'é-ü', '日本-語', E'tab\t-1', 'a''b"c\d-1', '%-_', repeat('x', 2000) || '-1', 'A-1', 'a--+-+']) s;
		select write_message(gen_random_uuid()::varchar, 'data-1', 'T', d) from unnest(array[
			null, 'null', '1', '"text"', '[]', '[1, [2, {"a": []}]]', '{"\"": "\\ \t", "é": "\u2028"}', '1e400', '-0.0', '"dibs:x"']::jsonb[]) d;
		select write_message(gen_random_uuid()::varchar, 'metadata-1', '', '{}', d) from unnest(array[
			null, 'null', '1', '[]', '{"correlationStreamName": null}', '{"correlationStreamName": {"a": "b-c"}}', '{"correlationStreamName": "no dash"}']::jsonb[]) d;
		select write_message(gen_random_uuid()::varchar, 'big-1', 'Big', jsonb_build_object('x', repeat('é', 100000)))`,
	"begin; select write_message(gen_random_uuid()::varchar, 'gap-1', 'T', '{}'); rollback",
	"select write_message(gen_random_uuid()::varchar, 'gap-1', 'T', '{}') from generate_series(1, 2)",
	"begin; select write_message(gen_random_uuid()::varchar, 'gap-2', 'T', '{}'); rollback",
	"select write_message(gen_random_uuid()::varchar, 'gap-2', 'T', '{}') from generate_series(1, 2)",
	"begin; select write_message(gen_random_uuid()::varchar, 'gap-3', 'T', '{}'); rollback",
}

// fingerprint is all of a table or view of messages, as message-db shows them.
func fingerprint(t *testing.T, conn *pgx.Conn, relation string) string {
	t.Helper()
	return one[string](t, conn, `select count(*) || ' ' || coalesce(md5(string_agg(m::text, E'\n' order by m.global_position)), '')
		from (select global_position, position, time::timestamp, stream_name::text, type::text, data, metadata, id from `+relation+`) m`)
}

// asked returns the answers of a store to its clients.
func asked(t *testing.T, url string) []string {
	t.Helper()
	client := connect(t, pgtest.As(t, url, "message_store"))
	var all []string
	for _, sql := range []string{
		"get_stream_messages('account-1')", "get_stream_messages('account-1', 3, 4)", "get_stream_messages('data-1')", "get_stream_messages('a-')",
		"get_category_messages('account')", "get_category_messages('account', 50, 20)", "get_category_messages('account:command', consumer_group_member => 1, consumer_group_size => 3)",
		"get_category_messages('account', correlation => 'transfer')", "get_category_messages('')", "get_category_messages('big')",
		"get_last_stream_message('account-3')", "get_last_stream_message('account:position')", "get_last_stream_message('metadata-1', '')",
		"stream_version('account-2')", "stream_version('none-1')", "stream_version('')", "messages", "stream_summary", "category_type_summary",
	} {
		all = append(all, sql+": "+one[string](t, client, "select coalesce(string_agg(r::text, E'\n' order by r::text), '') from "+sql+" r"))
	}
	return all
}

func write(t *testing.T, conn *pgx.Conn, stream string) {
	t.Helper()
	do(t, conn, "set search_path = message_store, public")
	do(t, conn, "select write_message(gen_random_uuid()::varchar, $1, 'T', '{}')", stream)
}

// requireOurs is that our clients may write.
func requireOurs(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	require.Equal(t, "written", one[string](t, conn, `select outcome from dibs.append('{ours-1}', '{-2}', '{1}', array[gen_random_uuid()], '{Opened}', '{"{}"}', '{null}')`))
}

func run(t *testing.T, url string, progress func(messagedb.Progress)) (*messagedb.Adoption, error) {
	t.Helper()
	return adoptPatiently(t.Context(), url, patient(progress))
}

// at calls f once, when a phase begins.
func at(phase messagedb.Phase, f func()) func(messagedb.Progress) {
	var once sync.Once
	return func(p messagedb.Progress) {
		if p.Phase == phase {
			once.Do(f)
		}
	}
}

func TestAdoptionKeepsEveryMessage(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	before, answers := fingerprint(t, conn, "message_store.messages"), asked(t, url)
	drawn := one[int64](t, conn, "select last_value from message_store.messages_global_position_seq")

	done := testkit.Do(run(t, url, nil))(t)

	require.Equal(t, messagedb.Adopted, done.State)
	require.Equal(t, "1.3.0", done.Version)
	require.Equal(t, one[int64](t, conn, "select count(*) from dibs.messages"), done.Messages)
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
	require.Equal(t, before, fingerprint(t, conn, "message_store_before_dibs.messages"))
	require.Equal(t, before, fingerprint(t, conn, "(select m.*, m.time at time zone 'UTC' as utc from dibs.messages m) m (global_position, position, z, stream_name, type, category, group_hash, correlation_category, id, data, metadata, time)"))
	require.Equal(t, answers, asked(t, url))
	require.Equal(t, 200, one[int](t, conn, "select count(id) from dibs.read_category('account', 0, 1000)"))
	write(t, conn, "account-1")
	require.Equal(t, drawn+1, one[int64](t, conn, "select max(global_position) from message_store.messages"), "no number is used again")
	requireOurs(t, conn)

	report := testkit.Do(migrations.Drift(t.Context(), conn, nil))(t)
	require.Empty(t, report.Differences)
	require.Empty(t, report.NotApplied)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	again, err := run(t, url, nil)
	require.NoError(t, err, "it is done")
	require.Equal(t, done.SwitchedAt, again.SwitchedAt)

	do(t, conn, "drop schema message_store_before_dibs, dibs_adoption cascade")
	write(t, conn, "account-1")
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Undo(t.Context(), connector(url), nil)), messagedb.ErrNothingToUndo)
	require.Nil(t, testkit.Do(messagedb.Status(t.Context(), conn))(t))
}

func TestEmptyMessageDBIsAdopted(t *testing.T) {
	t.Parallel()
	url := pgtest.MessageDB(t)
	conn := connect(t, url)
	require.Empty(t, testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t).Obstacles)

	testkit.Do(run(t, url, nil))(t)

	write(t, conn, "account-1")
	require.Equal(t, int64(1), one[int64](t, conn, "select global_position from message_store.messages"))
}

// The old table is no way around the switch.
func TestOldTableIsNotWrittenToAnyMore(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)

	for _, sql := range []string{
		"insert into message_store_before_dibs.messages (stream_name, position, type) values ('a-1', 100, 'T')",
		"update message_store_before_dibs.messages set type = 'T'",
		"delete from message_store_before_dibs.messages",
		"truncate message_store_before_dibs.messages",
		"set session_replication_role = replica; insert into message_store_before_dibs.messages (stream_name, position, type) values ('a-1', 100, 'T')",
	} {
		_, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		require.Equal(t, "55000", sqlstate(err), sql)
	}
	client := connect(t, pgtest.As(t, url, "message_store"))
	_, err := client.Exec(t.Context(), "select message_store_before_dibs.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')")
	require.Equal(t, "42501", sqlstate(err))
}

// Writers, each with its stream, go on from before the adoption until after it, and
// try again after a definite error.
func TestAdoptionLosesNoAcknowledgedWrite(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	const (
		writers = 6

		// The copy goes in ranges of 50 messages here, one transaction each. On a machine where the
		// writers are the faster ones it would never come near the end, which is not the subject.
		pause = 5 * time.Millisecond
	)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	defer stop()
	var acknowledged [writers][]string
	var after [writers]atomic.Int64
	var switched atomic.Bool
	for i := range writers {
		client := connect(t, pgtest.As(t, url, "message_store"))
		all.Go(func() {
			version := int64(-1)
			next := time.NewTicker(pause)
			defer next.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-next.C:
				}
				var id string
				var position int64
				// Prepared, so that the session keeps plans. A write that has begun is not cut off.
				err := client.QueryRow(context.WithoutCancel(ctx), "select id, write_message(id, $1, 'T', '{}', null, $2) from (select gen_random_uuid()::varchar as id) i",
					fmt.Sprintf("live%d-%d", i%3, i), version).Scan(&id, &position)
				if sqlstate(err) != "" {
					continue
				}
				if err != nil || position != version+1 {
					t.Errorf("write after version %d: %d, %v", version, position, err)
					return
				}
				version = position
				acknowledged[i] = append(acknowledged[i], id)
				if switched.Load() {
					after[i].Add(1)
				}
			}
		})
	}
	// Each adds to the tail that the switch takes.
	testkit.Await(t, "10 messages of each writer before the adoption", func() (bool, any) {
		rows, err := conn.Query(t.Context(), "select count(*) from message_store.messages where stream_name like 'live%' group by stream_name")
		require.NoError(t, err)
		counts := testkit.Do(pgx.CollectRows(rows, pgx.RowTo[int]))(t)
		return len(counts) == writers && slices.Min(counts) >= 10, counts
	})

	done, err := run(t, url, nil)
	switched.Store(true)
	require.NoError(t, err)
	testkit.Await(t, "5 messages of each writer after the switch", func() (bool, any) {
		var counts [writers]int64
		for i := range after {
			counts[i] = after[i].Load()
		}
		return slices.Min(counts[:]) >= 5, counts
	})
	stop()

	var ids []string
	for i := range acknowledged {
		ids = append(ids, acknowledged[i]...)
	}
	require.Equal(t, len(ids), one[int](t, conn, "select count(*) from message_store.messages where id = any ($1::uuid[])", ids))
	require.Len(t, ids, one[int](t, conn, "select count(*) from message_store.messages where stream_name like 'live%'"), "each once, and nothing else")
	for i := range acknowledged {
		got := one[[]string](t, conn, "select array_agg(id::text order by position) from message_store.messages where stream_name = $1", fmt.Sprintf("live%d-%d", i%3, i))
		require.Equal(t, acknowledged[i], got)
	}
	require.True(t, one[bool](t, conn, `select bool_and(position = n and global_position > coalesce(before, 0)) from (
		select position, global_position, row_number() over s - 1 as n, lag(global_position) over s as before
		from message_store.messages where stream_name like 'live%' window s as (partition by stream_name order by position)) m`))
	require.Equal(t, done.Messages, one[int64](t, conn, "select count(*) from message_store_before_dibs.messages"), "what came after is not there")
	require.Zero(t, one[int](t, conn, "select count(*) from message_store_before_dibs.messages o where not exists (select from dibs.messages m where m.id = o.id)"))
}

// A writer that was in the middle of message-db's write_message when it was switched.
func TestWriterThatWaitsForTheSwitchWritesToTheStoreOrFails(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	before := one[int](t, conn, "select count(*) from message_store.messages")
	watcher := connect(t, url)
	done, release := stopInTheSwitch(t, url)
	// The old functions' plans are made, and one is stopped at its insert.
	clients := []*pgx.Conn{}
	results := make(chan error, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 2*testkit.WaitLimit)
	defer cancel()
	for i := range 2 {
		client := connect(t, pgtest.As(t, url, "message_store"))
		clients = append(clients, client)
		go func() {
			_, err := client.Exec(ctx, "select write_message(gen_random_uuid()::varchar, $1, 'T', '{}')", fmt.Sprintf("waits%d-1", i))
			results <- err
		}()
	}
	for _, client := range clients {
		pid := int32(client.PgConn().PID())
		testkit.Await(t, "a writer that waits for the switch", func() (bool, any) {
			holders := one[[]int32](t, watcher, "select pg_blocking_pids($1)", pid)
			return len(holders) > 0, holders
		})
	}

	release()

	require.NoError(t, testkit.Receive(t, "the adoption", done))
	wrote := 0
	for range clients {
		if err := testkit.Receive(t, "a writer's answer", results); err == nil {
			wrote++
		} else {
			require.NotEmpty(t, sqlstate(err), err)
		}
	}
	require.Equal(t, before, one[int](t, conn, "select count(*) from message_store_before_dibs.messages"))
	require.Equal(t, before+wrote, one[int](t, conn, "select count(*) from dibs.messages"))
}

// stopInTheSwitch adopts up to the middle of the switch, where the tables are locked and both
// schemas are new, until it is released.
func stopInTheSwitch(t *testing.T, url string) (done <-chan error, release func()) {
	t.Helper()
	holder, watcher := connect(t, url), connect(t, url)
	// The switch waits for the lock as long as the test takes.
	do(t, watcher, fmt.Sprintf("alter database %s set dibs.lock_timeout = '1h'", one[string](t, watcher, "select current_database()")))
	var tx pgx.Tx
	lock := at(messagedb.Comparing, func() {
		var err error
		if tx, err = holder.Begin(t.Context()); err == nil {
			_, err = tx.Exec(t.Context(), "lock table dibs.migrations in access exclusive mode")
		}
		if err != nil {
			t.Error(err)
		}
	})
	ended := testkit.Go(func() error { return testkit.ErrorOf(run(t, url, lock)) })
	testkit.Await(t, "the switch that waits for dibs.migrations", func() (bool, any) {
		waits := one[int](t, watcher, "select count(*) from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'dibs.migrations'::regclass and not granted")
		return waits == 1, waits
	})
	return ended, func() { t.Helper(); require.NoError(t, tx.Rollback(t.Context())) }
}

// Numbered before others and committed after them: no order of copying finds it.
func TestMessageThatIsCommittedLateIsAdopted(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	late, early := connect(t, url), connect(t, url)
	do(t, late, "set search_path = message_store")
	do(t, early, "set search_path = message_store")
	var tx pgx.Tx
	var followed bool
	begin := at(messagedb.Copying, func() {
		var err error
		if tx, err = late.Begin(t.Context()); err != nil {
			t.Error(err)
			return
		}
		_, err = tx.Exec(t.Context(), "select write_message(gen_random_uuid()::varchar, 'late-1', 'T', '{}')")
		if err != nil {
			t.Error(err)
		}
		if _, err = early.Exec(t.Context(), "select write_message(gen_random_uuid()::varchar, 'early-1', 'T', '{}')"); err != nil {
			t.Error(err)
		}
	})
	commit := at(messagedb.Comparing, func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})

	testkit.Do(run(t, url, func(p messagedb.Progress) {
		followed = followed || p.Phase == messagedb.Following
		begin(p)
		commit(p)
	}))(t)

	require.True(t, followed)
	require.True(t, one[bool](t, conn, `select (select global_position from dibs.messages where stream_name = 'late-1')
		< (select global_position from dibs.messages where stream_name = 'early-1')`))
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
}

// A range that was held to be complete stays complete.
func TestMessageDBOnlyAddsWhileItIsAdopted(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	other := connect(t, url)
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	require.Error(t, testkit.ErrorOf(messagedb.Adopt(ctx, connector(url), &messagedb.Config{Progress: at(messagedb.Comparing, func() { cancel(stopped) })})))

	for _, sql := range []string{
		"insert into message_store.messages (global_position, stream_name, position, type) values (3, 'a-1', 100, 'T')",
		"update message_store.messages set type = 'T' where global_position = 1",
		"delete from message_store.messages where global_position = 1",
		"truncate message_store.messages",
	} {
		_, err := other.Exec(t.Context(), sql)
		require.Equal(t, "55000", sqlstate(err), sql)
	}
	write(t, other, "account-1")
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
}

func TestNobodyWritesNativelyWhileMessagesAreAdopted(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	user, name := connectAs(t, url, "")
	do(t, conn, "grant dibs_writer to "+name)
	append := `select outcome from dibs.append('{account-1}', '{-2}', '{1}', array[gen_random_uuid()], '{Opened}', '{"{}"}', '{null}')`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(ctx, connector(url), &messagedb.Config{Progress: at(messagedb.Indexing, cancel)})), context.Canceled)

	_, err := conn.Exec(t.Context(), append)
	require.Equal(t, "55000", sqlstate(err))
	require.ErrorContains(t, err, "being adopted")
	for _, sql := range []string{append, "set dibs.adopting = 'on'; " + append, "select * from dibs.read_category('account')"} {
		_, err := user.PgConn().Exec(t.Context(), sql).ReadAll()
		require.Equal(t, "42501", sqlstate(err), sql)
	}
	for _, c := range []*pgx.Conn{user, conn} {
		_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(c, nil)), nil)).Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "T", Data: []byte("{}")})
		require.ErrorIs(t, err, postgres.ErrAdopting)
	}
	require.ErrorIs(t, migrations.Up(t.Context(), conn, nil), migrations.ErrAdopting)
	status := testkit.Do(messagedb.Status(t.Context(), conn))(t)
	require.Equal(t, messagedb.Adopting, status.State)
	require.Equal(t, one[int64](t, conn, "select count(*) from dibs.messages"), status.Copied)

	testkit.Do(run(t, url, nil))(t)
	do(t, user, append)
	require.Equal(t, 201, one[int](t, user, "select count(id) from dibs.read_category('account', 0, 1000)"))
}

// A setting alone, which anyone can make, does not open the store.
func TestOnlyTheOwnerMayFillTheStore(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	user, name := connectAs(t, url, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(ctx, connector(url), &messagedb.Config{Progress: at(messagedb.Indexing, cancel)})), context.Canceled)
	do(t, conn, fmt.Sprintf("grant usage on schema dibs to %s; grant insert on dibs.messages to %[1]s; grant usage on sequence dibs.messages_global_position_seq to %[1]s", name))

	_, err := user.PgConn().Exec(t.Context(), "set dibs.adopting = 'on'; insert into dibs.messages (category, group_hash, stream_name, position, type, id) values ('a', 0, 'a-1', 0, 'T', gen_random_uuid())").ReadAll()

	require.Equal(t, "55000", sqlstate(err))
}

// After each try message-db is the store still, and takes a write.
func TestAdoptionGoesOnAfterItWasKilled(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	killer := connect(t, url)
	kill := func() {
		if _, err := killer.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'dibs migrate adopt'"); err != nil {
			t.Error(err)
		}
	}
	count := one[int](t, conn, "select count(*) from message_store.messages")
	for _, step := range []struct {
		phase messagedb.Phase
		later int64
	}{
		{messagedb.Checking, 0},
		{messagedb.Locking, 0},
		{messagedb.Copying, 0},
		{messagedb.Copying, 100},
		{messagedb.Indexing, 0},
		{messagedb.Indexing, 1},
		{messagedb.Comparing, 0},
		{messagedb.Comparing, 1},
	} {
		_, err := run(t, url, func(p messagedb.Progress) {
			if p.Phase == step.phase && p.Done >= step.later {
				kill()
			}
		})
		require.Error(t, err, step)
		write(t, conn, "between-1")
		count++
		require.Equal(t, count, one[int](t, conn, "select count(*) from message_store.messages where to_regclass('message_store_before_dibs.messages') is null"))
	}

	testkit.Do(run(t, url, nil))(t)

	require.Equal(t, count, one[int](t, conn, "select count(*) from dibs.messages"))
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
	requireOurs(t, conn)
}

func TestAdoptionKilledInItsSwitchLeavesMessageDB(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	before := fingerprint(t, conn, "message_store.messages")
	done, release := stopInTheSwitch(t, url)

	killed := one[int](t, conn, "select count(pg_terminate_backend(pid)) from pg_locks where database = (select oid from pg_database where datname = current_database()) and relation = 'message_store.messages'::regclass and mode = 'AccessExclusiveLock' and granted")

	require.Equal(t, 1, killed)
	require.Error(t, testkit.Receive(t, "the adoption that was killed", done))
	release()
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
	require.False(t, one[bool](t, conn, "select to_regnamespace('message_store_before_dibs') is not null"))
	write(t, conn, "account-1")
	testkit.Do(run(t, url, nil))(t)
}

func TestTwoDoNotAdoptAtOnce(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	done := make(chan error, 4)
	for range cap(done) {
		go func() {
			_, err := run(t, url, nil)
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, testkit.Receive(t, "one of the adoptions", done), "a process that waits finds it done")
	}
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
}

// Every difference is found before the switch.
func TestTamperedCopyIsNotSwitchedTo(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	tamperer := connect(t, url)
	before := fingerprint(t, conn, "message_store.messages")
	var right tampering
	for name, sql := range map[string]string{
		"data":         `update dibs.messages set data = '{"n": 999}' where stream_name = 'account-1' and position = 3`,
		"data to null": `update dibs.messages set data = null where stream_name = 'account-1' and position = 3`,
		"metadata":     `update dibs.messages set metadata = '{}' where stream_name = 'account-1' and position = 3`,
		"time":         `update dibs.messages set time = time + '1 microsecond' where stream_name = 'account-1' and position = 3`,
		"type":         `update dibs.messages set type = 'deposited' where stream_name = 'account-1' and position = 3`,
		"id":           `update dibs.messages set id = gen_random_uuid() where stream_name = 'account-1' and position = 3`,
		"number":       `update dibs.messages set global_position = 1000000000 where stream_name = 'account-1' and position = 3`,
		"stream":       `update dibs.messages set stream_name = 'account-1x' where stream_name = 'account-1' and position = 3`,
		"swapped":      `update dibs.messages m set data = o.data from dibs.messages o where m.stream_name = 'account-1' and m.position in (3, 4) and o.stream_name = 'account-1' and o.position = 7 - m.position`,
		"missing":      `delete from dibs.messages where stream_name = 'account-1' and position = 3`,
		"one more":     `insert into dibs.messages (category, group_hash, stream_name, position, type, id, global_position) values ('account', 0, 'account-1', 1000, 'T', gen_random_uuid(), (select min(g) from generate_series(1, 1000) g where not exists (select from dibs.messages where global_position = g)))`,
		"in the tail":  `insert into dibs.messages (category, group_hash, stream_name, position, type, id, global_position) values ('account', 0, 'account-1', 1000, 'T', gen_random_uuid(), 1000000000)`,
	} {
		_, err := run(t, url, at(messagedb.Comparing, func() { right.tamper(t, tamperer, sql) }))
		require.ErrorIs(t, err, messagedb.ErrCopyDiffers, name)
		if differs, ok := errors.AsType[*messagedb.CopyDiffersError](err); ok {
			require.Equal(t, "account-1", slices.MinFunc(differs.Streams, func(a, b messagedb.StreamDifference) int { return strings.Compare(a.Stream, b.Stream) }).Stream)
		}
		require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
		require.False(t, one[bool](t, conn, "select to_regnamespace('message_store_before_dibs') is not null"))
		right.mend(t, tamperer)
	}
	right.tamper(t, tamperer, "delete from dibs.messages where stream_name = 'account-1' and position = 3")
	require.ErrorIs(t, testkit.ErrorOf(run(t, url, nil)), messagedb.ErrCopyDiffers, "it is compared anew")

	require.True(t, testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t).Abandons)
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
}

// A tampering changes the copy of an adoption, and can be taken back.
type tampering struct{ kept bool }

// tamper may be called by another goroutine than the test's.
func (c *tampering) tamper(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if !c.kept {
		sql = "create table public.copied as select * from dibs.messages; " + sql
		c.kept = true
	}
	const open = "set session_replication_role = replica; set dibs.adopting = 'on'; alter table dibs.messages disable trigger all; "
	const shut = "; alter table dibs.messages enable trigger all; alter table dibs.messages enable always trigger dibs_adoption_refuse_native"
	if _, err := conn.PgConn().Exec(context.WithoutCancel(t.Context()), open+sql+shut).ReadAll(); err != nil {
		t.Error(sql, err)
	}
}

func (c *tampering) mend(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	c.tamper(t, conn, "truncate dibs.messages; insert into dibs.messages select * from public.copied order by global_position")
}

// The switch compares the messages written since the bulk was compared.
func TestTamperedTailIsNotSwitchedTo(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	tamperer := connect(t, url)
	add := at(messagedb.Copying, func() {
		do(t, conn, "set search_path = message_store, public; select write_message(gen_random_uuid()::varchar, 'tail-1', 'T', '{}') from generate_series(1, 10)")
	})
	var right tampering
	for name, sql := range map[string]string{
		"data":     `update dibs.messages set data = '{"n": 999}' where stream_name = 'tail-1' and position = 3`,
		"missing":  `delete from dibs.messages where stream_name = 'tail-1' and position = 3`,
		"position": `update dibs.messages set position = 77 where stream_name = 'tail-1' and position = 3`,
	} {
		var tampered atomic.Bool
		_, err := run(t, url, func(p messagedb.Progress) {
			add(p)
			// The last of the comparison: the bulk and the number of the tail were right.
			if p.Phase == messagedb.Locking && one[bool](t, tamperer, "select exists (select from dibs_adoption.sums)") && tampered.CompareAndSwap(false, true) {
				right.tamper(t, tamperer, sql)
			}
		})

		require.True(t, tampered.Load())
		require.ErrorIs(t, err, messagedb.ErrCopyDiffers, name)
		require.False(t, one[bool](t, conn, "select to_regnamespace('message_store_before_dibs') is not null"), name)
		right.mend(t, tamperer)
	}
	write(t, conn, "account-1")
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, fingerprint(t, conn, "message_store_before_dibs.messages"), fingerprint(t, conn, "message_store.messages"))
}

func TestWhoeverHoldsTheTableIsNamed(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	holder := connect(t, url)
	tx := testkit.Do(holder.Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "select count(*) from message_store.messages"))(t)
	config := &messagedb.Config{LockTimeout: time.Millisecond, LockTries: 2} // too short for a watch
	var told atomic.Bool
	config.Progress = func(p messagedb.Progress) {
		if p.Phase == messagedb.Locking && len(p.Blockers) > 0 {
			told.Store(true)
		}
	}

	_, err := messagedb.Adopt(t.Context(), connector(url), config)

	require.ErrorIs(t, err, messagedb.ErrLocked)
	locked := testkit.As[*messagedb.LockedError](t, err)
	require.Equal(t, int32(holder.PgConn().PID()), locked.Blockers[0].PID)
	require.ErrorContains(t, err, fmt.Sprintf("process %d of postgres", holder.PgConn().PID()))
	require.True(t, told.Load())
	write(t, conn, "account-1")
	require.NoError(t, tx.Rollback(t.Context()))
	testkit.Do(run(t, url, nil))(t)
}

func TestPlanTellsAndChangesNothing(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	before := fingerprint(t, conn, "message_store.messages")
	catalog := "select md5(string_agg(c.oid || c.relname || c.relnamespace, ',' order by c.oid)) from pg_class c where c.oid >= 16384 and relnamespace <> 'pg_toast'::regnamespace"
	was := one[string](t, conn, catalog)

	plan := testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t)

	require.Empty(t, plan.Obstacles)
	require.Empty(t, plan.Warnings)
	require.Equal(t, "1.3.0", plan.Version)
	require.Equal(t, one[int64](t, conn, "select count(*) from message_store.messages"), plan.Messages)
	require.Equal(t, plan.Messages, plan.Sample)
	require.Positive(t, plan.Copy)
	require.Positive(t, plan.Index)
	require.Positive(t, plan.Compare)
	require.Positive(t, plan.NeedBytes)
	require.Equal(t, was, one[string](t, conn, catalog))
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
	require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null or to_regnamespace('dibs_adoption') is not null"))
}

func TestWhatCannotBeAdoptedIsRefused(t *testing.T) {
	t.Parallel()
	url, conn := messageDB(t)
	for _, c := range []struct {
		sql, undo string
		kind      messagedb.ObstacleKind
		says      string
	}{
		{"alter table message_store.messages add column tenant text", "alter table message_store.messages drop column tenant", messagedb.ObstacleSource, "tenant"},
		{"alter table message_store.messages alter position type integer", "alter table message_store.messages alter position type bigint", messagedb.ObstacleSource, "position"},
		{"alter function message_store.message_store_version() rename to v", "alter function message_store.v() rename to message_store_version", messagedb.ObstacleSource, "message_store_version"},
		{"create or replace function message_store.message_store_version() returns varchar language sql as $$ select '2.0.0'::varchar $$", "create or replace function message_store.message_store_version() returns varchar language sql as $$ select '1.2.1'::varchar $$", messagedb.ObstacleSource, `"2.0.0"`},
		{"alter table message_store.messages rename to m", "alter table message_store.m rename to messages", messagedb.ObstacleSource, "no table"},
		{"alter sequence message_store.messages_global_position_seq cache 10", "alter sequence message_store.messages_global_position_seq cache 1", messagedb.ObstacleSource, "sequence"},
		{"insert into message_store.messages (stream_name, position, type) values ('a-1', -7, 'T')", "delete from message_store.messages where position = -7", messagedb.ObstacleMessages, "position below 0"},
		{"insert into message_store.messages (global_position, stream_name, position, type) values (0, 'a-1', 70, 'T')", "delete from message_store.messages where global_position = 0", messagedb.ObstacleMessages, "global position below 1"},
		{"insert into message_store.messages (stream_name, position, type, time) values ('a-1', 70, 'T', 'infinity')", "delete from message_store.messages where time = 'infinity'", messagedb.ObstacleMessages, "time"},
		{"insert into message_store.messages (global_position, stream_name, position, type) values (1000000, 'a-1', 70, 'T')", "delete from message_store.messages where global_position = 1000000", messagedb.ObstacleMessages, "1000000"},
		{
			"drop index message_store.messages_id; insert into message_store.messages (id, stream_name, position, type) select id, 'twice-1', 0, 'T' from message_store.messages limit 1",
			"delete from message_store.messages where stream_name = 'twice-1'; create unique index messages_id on message_store.messages (id)", messagedb.ObstacleMessages, "ids of more than one message: 1",
		},
		{"create schema message_store_before_dibs", "drop schema message_store_before_dibs", messagedb.ObstacleTarget, "message_store_before_dibs"},
	} {
		do(t, conn, c.sql)
		before, err := messagedb.NewPlan(t.Context(), connector(url), nil)
		require.NoError(t, err, c.sql)
		require.NotEmpty(t, before.Obstacles, c.sql)
		require.Equal(t, c.kind, before.Obstacles[0].Kind, before.Obstacles)
		require.Contains(t, before.Obstacles[0].Problem, c.says)

		_, err = run(t, url, nil)

		require.ErrorIs(t, err, messagedb.ErrCannotAdopt, c.sql)
		refused := testkit.As[*messagedb.CannotAdoptError](t, err)
		require.Equal(t, before.Obstacles, refused.Obstacles)
		require.False(t, one[bool](t, conn, "select to_regnamespace('dibs') is not null"), c.sql)
		do(t, conn, c.undo)
	}
	require.Empty(t, testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t).Obstacles)
}

func TestDatabaseWithoutMessageDBIsRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{pgtest.Database(t), pgtest.Migrated(t)} {
		require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(t.Context(), connector(url), nil)), messagedb.ErrCannotAdopt)
		require.ErrorIs(t, testkit.ErrorOf(messagedb.Undo(t.Context(), connector(url), nil)), messagedb.ErrNothingToUndo)
	}
}

func TestStoreThatIsUsedIsNotFilled(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	requireOurs(t, conn)

	_, err := run(t, url, nil)

	require.ErrorIs(t, err, messagedb.ErrCannotAdopt)
	require.ErrorContains(t, err, "there are messages in dibs.messages")
}

// Objects of others that depend on message-db's would go on with the old table.
func TestDependentsAreInTheWay(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	do(t, conn, `
		create schema app;
		create view app.accounts as select * from message_store.messages where stream_name like 'account-%';
		create materialized view app.totals as select count(*) from app.accounts;
		create table app.seen (global_position bigint references message_store.messages);
		create function app.latest() returns bigint language sql return (select max(global_position) from message_store.messages);
		create function app.by_name() returns bigint language plpgsql as $$ begin return (select max(global_position) from message_store.messages); end $$;
		create function message_store.own() returns integer language sql as 'select 1';
		create table message_store.notes (n integer);
		create function app.notify() returns trigger language plpgsql as $$ begin return null; end $$;
		create trigger notify after insert on message_store.messages for each row execute function app.notify();
		create publication p for table message_store.messages;
		create role `+"app_"+strings.ToLower(t.Name())+`;
		grant usage on schema message_store to `+"app_"+strings.ToLower(t.Name()))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		admin := testkit.Do(pgx.Connect(ctx, url))(t)
		defer admin.Close(ctx)
		testkit.Do(admin.PgConn().Exec(ctx, "drop owned by app_"+strings.ToLower(t.Name())+"; drop role app_"+strings.ToLower(t.Name())).ReadAll())(t)
	})

	_, err := run(t, url, nil)

	require.ErrorIs(t, err, messagedb.ErrCannotAdopt)
	for _, object := range []string{"view app.accounts", "app.seen", "function app.latest()", "function message_store.own()", "table message_store.notes", "trigger notify"} {
		require.ErrorContains(t, err, object)
	}
	require.NotContains(t, err.Error(), "by_name", "it finds the new view by its name")
	require.NotContains(t, err.Error(), "app.totals", "it goes on with what it is made of")
	config := &messagedb.Config{LeaveDependents: true}
	plan := testkit.Do(messagedb.NewPlan(t.Context(), connector(url), config))(t)
	require.Empty(t, plan.Obstacles)
	warnings := strings.Join(plan.Warnings, "\n")
	require.Contains(t, warnings, "publication p")
	require.Contains(t, warnings, "role app_")
	require.Contains(t, warnings, "view app.accounts")
	testkit.Do(messagedb.Adopt(t.Context(), connector(url), config))(t)
	write(t, conn, "account-1")
	require.Equal(t, one[int64](t, conn, "select max(global_position) from message_store.messages"), one[int64](t, conn, "select app.by_name()"))
	require.Less(t, one[int64](t, conn, "select app.latest()"), one[int64](t, conn, "select app.by_name()"))
}

// Message-db's owner need not be a superuser, nor its store's owner ours.
func TestUserWhoIsNoSuperuserAdopts(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // so that the roles are there
	url, conn := messageDB(t)
	user, name := connectAs(t, url, "")
	do(t, conn, fmt.Sprintf(`alter schema message_store owner to %s; alter table message_store.messages owner to %[1]s;
		alter function message_store.write_message owner to %[1]s`, name))
	mine := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, user.Config().Copy()) }
	before := fingerprint(t, conn, "message_store.messages")
	for _, member := range []bool{false, true} {
		if member {
			do(t, conn, "grant dibs_owner to "+name)
		}
		require.Empty(t, testkit.Do(messagedb.NewPlan(t.Context(), mine, nil))(t).Obstacles)

		testkit.Do(messagedb.Adopt(t.Context(), mine, nil))(t)

		require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
		client := connect(t, pgtest.As(t, url, "message_store"))
		write(t, client, "account-1")
		require.Equal(t, int64(1), testkit.Do(messagedb.Undo(t.Context(), mine, nil))(t).Since)
		write(t, connect(t, pgtest.As(t, url, "message_store")), "account-1")
		if !member {
			do(t, conn, "drop schema dibs, dibs_adoption, message_store_by_dibs cascade")
		}
		before = fingerprint(t, conn, "message_store.messages")
	}
}

func TestUserWithoutRightsIsRefused(t *testing.T) {
	t.Parallel()
	url, _ := adopting(t)
	user, _ := connectAs(t, url, "")
	mine := func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, user.Config().Copy()) }

	_, err := messagedb.Adopt(t.Context(), mine, nil)

	refused := testkit.As[*messagedb.CannotAdoptError](t, err)
	require.Equal(t, messagedb.ObstacleRights, refused.Obstacles[0].Kind)
}

func TestUndoGivesBackWhatWasWrittenSince(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	client := connect(t, pgtest.As(t, url, "message_store"))
	for _, stream := range []string{"account-1", "new-1", "new-1", ""} {
		write(t, client, stream)
	}
	do(t, conn, `select dibs.append('{native-2,native-1}', '{-2,-1}', '{1,2}', array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '{A,B,C}', array['{"b":1,"a":1e3}', '{}', '{"é":"\u00e9"}']::json[], array[null, '{"correlationStreamName":"x-1"}', null]::json[])`)
	do(t, conn, "select dibs.trim('account-3', keep => 2, min_age => '0')")
	do(t, conn, "select dibs.delete_stream('gap-1')")
	do(t, conn, "select dibs.delete_stream('gap-2', erase_name => true)")
	want := fingerprint(t, conn, "message_store.messages")
	stale := one[int64](t, conn, "select count(*) from message_store_before_dibs.messages o where not exists (select from dibs.messages m where m.id = o.id)")
	require.Positive(t, stale)
	answers := asked(t, url)
	drawn := one[int64](t, conn, "select last_value from dibs.messages_global_position_seq")

	plan := testkit.Do(messagedb.NewUndoPlan(t.Context(), connector(url), nil))(t)
	require.Equal(t, want, fingerprint(t, conn, "message_store.messages"))
	undone := testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t)

	require.Equal(t, plan.Since, undone.Since)
	require.Equal(t, plan.Removed, undone.Removed)
	require.Equal(t, stale, undone.Removed)
	require.Equal(t, want, fingerprint(t, conn, "message_store.messages"))
	require.Equal(t, "r", one[string](t, conn, "select relkind::text from pg_class where oid = 'message_store.messages'::regclass"), "message-db's table")
	require.Equal(t, answers, asked(t, url))
	write(t, client, "account-1")
	require.Equal(t, drawn+1, one[int64](t, conn, "select max(global_position) from message_store.messages"))
	do(t, conn, "delete from message_store.messages where stream_name = 'account-6'; update message_store.messages set type = 'T2' where stream_name = 'account-6'")
	_, err := conn.Exec(t.Context(), `select outcome from dibs.append('{account-1}', '{-2}', '{1}', array[gen_random_uuid()], '{Opened}', '{"{}"}', '{null}')`)
	require.Equal(t, "55000", sqlstate(err))
	require.ErrorContains(t, err, "given back")
	require.ErrorIs(t, migrations.Up(t.Context(), conn, nil), migrations.ErrAdopting)
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Undo(t.Context(), connector(url), nil)), messagedb.ErrNothingToUndo)

	// And there again.
	want = fingerprint(t, conn, "message_store.messages")
	require.Empty(t, testkit.Do(messagedb.NewPlan(t.Context(), connector(url), nil))(t).Obstacles)
	testkit.Do(run(t, url, nil))(t)
	require.Equal(t, want, fingerprint(t, conn, "message_store.messages"))
	write(t, client, "account-1")
	requireOurs(t, conn)
	require.Empty(t, testkit.Do(migrations.Drift(t.Context(), conn, nil))(t).Differences)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
}

func TestTamperedReturnIsNotSwitchedTo(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	write(t, conn, "account-1")
	do(t, conn, "alter table message_store_before_dibs.messages disable trigger all; update message_store_before_dibs.messages set data = '{}' where stream_name = 'account-1' and position = 2; alter table message_store_before_dibs.messages enable always trigger dibs_adoption_refuse")

	_, err := messagedb.Undo(t.Context(), connector(url), &messagedb.Config{LockTimeout: time.Millisecond}) // which it never comes to

	require.ErrorIs(t, err, messagedb.ErrCopyDiffers)
	require.ErrorContains(t, err, `"account-1"`)
	write(t, conn, "account-1")
}

// The messages that an undo copies back are compared too.
func TestChangedReturnIsNotSwitchedTo(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	write(t, conn, "account-1")
	want := fingerprint(t, conn, "message_store.messages")
	for _, change := range []string{`new.data := '{"n": 1}'; return new;`, "return null;"} {
		do(t, conn, `create or replace function public.change() returns trigger language plpgsql as $$ begin `+change+` end $$;
			drop trigger if exists change on message_store_before_dibs.messages;
			create trigger change before insert on message_store_before_dibs.messages for each row execute function public.change()`)

		_, err := messagedb.Undo(t.Context(), connector(url), nil)

		require.ErrorIs(t, err, messagedb.ErrCopyDiffers, change)
		require.ErrorContains(t, err, `"account-1"`)
		require.Equal(t, want, fingerprint(t, conn, "message_store.messages"))
		require.Equal(t, "v", one[string](t, conn, "select relkind::text from pg_class where oid = 'message_store.messages'::regclass"), "our view")
	}
}

// Writers of both kinds: ours are refused, and message-db's are not.
// A writer that calls append_one itself may store what jsonb cannot hold, and so message-db's table
// cannot.
func TestUndoNamesMessagesThatCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	do(t, conn, `select dibs.append_one('unfit-1', -1, gen_random_uuid(), 'T', '{"a":"\u0000"}', null)`)
	do(t, conn, `select dibs.append_one('unfit-1', 0, gen_random_uuid(), 'T', '{}', '{"properties":{"a":1e200000}}')`)
	do(t, conn, `select dibs.append_one('unfit-2', -1, gen_random_uuid(), 'T', '{"a":"\ud800"}', null)`)
	do(t, conn, `select dibs.append_one('fit-1', -1, gen_random_uuid(), 'T', '{"a":"\u00e9 1e200000"}', null)`)

	plan := testkit.Do(messagedb.NewUndoPlan(t.Context(), connector(url), nil))(t)
	require.Equal(t, []string{"unfit-1@0", "unfit-1@1", "unfit-2@0"}, plan.Unfit)
	require.Equal(t, messagedb.ObstacleMessages, plan.Obstacles()[0].Kind)
	require.ErrorContains(t, testkit.ErrorOf(messagedb.Undo(t.Context(), connector(url), &messagedb.Config{LeaveDependents: true})), "unfit-1@0 has data that jsonb cannot hold")
	require.Equal(t, "v", one[string](t, conn, "select relkind::text from pg_class where oid = 'message_store.messages'::regclass"), "nothing was done")

	do(t, conn, "select dibs.delete_stream('unfit-1')")
	do(t, conn, "select dibs.delete_stream('unfit-2')")
	testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t)
}

func TestUndoLosesNoAcknowledgedWrite(t *testing.T) {
	t.Parallel()
	url, conn := adopted(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); all.Wait() })
	defer stop()
	var acknowledged [4][]string
	for i := range acknowledged {
		user := "message_store"
		sql := "select id, write_message(id, $1, 'T', '{}') from (select gen_random_uuid()::varchar as id) i"
		if i%2 == 1 {
			user, sql = "postgres", `select i.id::text, a.version from (select gen_random_uuid() as id) i, dibs.append(array[$1]::text[], '{-2}', '{1}', array[i.id], '{T}', '{"{}"}', '{null}') a`
		}
		client := connect(t, pgtest.As(t, url, user))
		all.Go(func() {
			for ctx.Err() == nil {
				var id string
				var position int64
				err := client.QueryRow(context.WithoutCancel(ctx), sql, fmt.Sprintf("live-%d", i)).Scan(&id, &position)
				if err == nil {
					acknowledged[i] = append(acknowledged[i], id)
				} else if sqlstate(err) == "" {
					t.Error(err)
					return
				} else if i%2 == 1 && sqlstate(err) == "55000" {
					return
				}
			}
		})
	}
	testkit.AwaitEqual(t, "writers with messages before the undo", 4, func() int {
		return one[int](t, conn, "select count(distinct stream_name) from dibs.messages where stream_name like 'live-%' and position > 3")
	})

	testkit.Do(messagedb.Undo(t.Context(), connector(url), patient(nil)))(t)
	at := one[int](t, conn, "select count(*) from message_store.messages")
	testkit.Await(t, "5 messages after the undo", func() (bool, any) {
		now := one[int](t, conn, "select count(*) from message_store.messages")
		return now > at+5, now - at
	})
	stop()

	for i := range acknowledged {
		got := one[[]string](t, conn, "select array_agg(id::text order by position) from message_store.messages where stream_name = $1", fmt.Sprintf("live-%d", i))
		require.Equal(t, acknowledged[i], got)
	}
}

func TestAdoptionThatWasBegunIsAbandoned(t *testing.T) {
	t.Parallel()
	url, conn := adopting(t)
	before := fingerprint(t, conn, "message_store.messages")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.ErrorIs(t, testkit.ErrorOf(messagedb.Adopt(ctx, connector(url), &messagedb.Config{Progress: at(messagedb.Indexing, cancel)})), context.Canceled)

	require.True(t, testkit.Do(messagedb.Undo(t.Context(), connector(url), nil))(t).Abandons)
	require.Equal(t, before, fingerprint(t, conn, "message_store.messages"))
	do(t, conn, "delete from message_store.messages where global_position = 1")
	require.Zero(t, one[int](t, conn, "select count(*) from dibs.messages"))
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	requireOurs(t, conn)
	require.Empty(t, testkit.Do(migrations.Drift(t.Context(), conn, nil))(t).Differences)
	require.Nil(t, testkit.Do(messagedb.Status(t.Context(), conn))(t))
}

func TestInvalidAdoptConfigIsRefused(t *testing.T) {
	t.Parallel()
	never := func(context.Context) (*pgx.Conn, error) { return nil, errors.New("connected") }
	for invalid, config := range map[string]messagedb.Config{
		"Workers -1: must be between 1 and 16":                 {Workers: -1},
		"Workers 17: must be between 1 and 16":                 {Workers: 17},
		"RangeMessages -1: must be between 1 and 1000000":      {RangeMessages: -1},
		"RangeMessages 1000001: must be between 1 and 1000000": {RangeMessages: 1_000_001},
		"LockTries -1: must be between 1 and 1000000":          {LockTries: -1},
		"LockTimeout -1ns: must be between 1ms and 1h":         {LockTimeout: -1},
		"LockTimeout 2h0m0s: must be between 1ms and 1h":       {LockTimeout: 2 * time.Hour},
	} {
		require.ErrorContains(t, testkit.ErrorOf(messagedb.Adopt(t.Context(), never, &config)), "adopt: invalid "+invalid)
	}
}
