package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

var mail = queuing.Queue{Name: "mail", Category: "mail"}

// A take that only finishes changes the head, and so the time from which tokens are counted.
func TestATakeThatReservesNothingSpendsNoTokens(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := testkit.Must(postgres.New(pool, nil))
	store := testkit.Must(messagestore.New(driver, nil))
	for _, key := range []string{"a", "b", "c"} {
		testkit.Do(store.Write(t.Context(), mail.Category.Stream(key), messagestore.NoStream, messagestore.Raw{Type: "Send", Data: []byte(`{}`)}))(t)
	}
	take := func(want int, finishes ...queuing.Finish) queuing.Taken {
		t.Helper()
		taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
			Queue: mail, Policy: queuing.Policy{MaxFailures: 5, Rate: 0.001, Burst: 1}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		}))(t)
		return taken
	}
	first := take(1)
	require.Len(t, first.Items, 1)
	require.Empty(t, take(1).Items)
	testkit.Do(pool.Exec(t.Context(), "update dibs.queue_heads set at = at - interval '2000 s'"))(t)
	take(0, queuing.Finish{Delivery: first.Items[0].Delivery(), Kind: queuing.Complete})
	require.Len(t, take(1).Items, 1, "the token of the time before it")
}

// More rows than a take once looked through are held behind an item that is out.
func TestWhatIsHeldBehindAFinishedItemIsFoundAmongMany(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := testkit.Must(postgres.New(pool, nil))
	take := func(want int, finishes ...queuing.Finish) queuing.Taken {
		t.Helper()
		taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
			Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: want, Finishes: finishes,
		}))(t)
		return taken
	}
	insert := func(key string, n int) {
		t.Helper()
		for n > 0 {
			records := make([]messagestore.Encoded, min(n, 1000))
			for i := range records {
				records[i] = messagestore.Encoded{ID: uuid.New(), Type: "Send", Data: []byte(`{}`)}
			}
			testkit.Do(driver.Append(t.Context(), messagestore.Append{Stream: mail.Category.Stream(key), Expected: messagestore.AnyVersion, Records: records}))(t)
			n -= len(records)
		}
	}
	insert("a", 10_050)
	insert("b", 2)
	var out []queuing.Taking
	for len(out) < 2 {
		out = append(out, take(1).Items...)
	}
	require.Empty(t, take(1).Items)
	testkit.Do(driver.QueueFinish(t.Context(), mail, 1, []queuing.Delivery{out[1].Delivery()}))(t)

	testkit.Do(pool.Exec(t.Context(), "update dibs.queue_heads set checked = checked - interval '1 hour'"))(t)

	taken := take(1)
	require.Len(t, taken.Items, 1)
	require.Equal(t, mail.Category.Stream("b"), taken.Items[0].Message.Stream)
}

// A caller that has gone leaves its ticket behind. The next one drops it.
func TestTicketsThatAreOverAreDropped(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	driver := testkit.Must(postgres.New(pool, nil))
	wait := func(session int64) {
		t.Helper()
		taken := testkit.Do(driver.QueueTake(t.Context(), queuing.Take{
			Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: session, Lease: time.Hour, Want: 1, Wait: time.Minute,
		}))(t)
		require.NotZero(t, taken.Ticket)
	}
	wait(1)
	wait(2)
	testkit.Do(pool.Exec(t.Context(), "update dibs.queue_tickets set until = until - interval '2 minutes'"))(t)
	wait(3)
	require.Equal(t, []int64{3}, pgtest.Value[[]int64](t, pool, "select array_agg(session) from dibs.queue_tickets"))
}

// A session keeps the plans that it made when the queue was smaller. By itself, because tables that
// other tests create and drop may make it plan anew.
func TestATakeReadsTheRowsOfItsItemsAndNoOthers(t *testing.T) {
	for name, before := range map[string]int{"planned with a few rows": 5, "planned with a hundred rows": 100, "planned with a thousand rows": 1000} {
		t.Run(name, func(t *testing.T) { requireTakeReads(t, before) })
	}
}

// requireTakeReads counts the rows that a take looks at when the queue has grown from so many to
// thousands.
func requireTakeReads(t *testing.T, before int) {
	conn := testkit.Do(pgtest.Connect(t, pgtest.Migrated(t)).Acquire(t.Context()))(t)
	defer conn.Release()
	exec := func(sql string, args ...any) {
		t.Helper()
		testkit.Do(conn.Exec(t.Context(), sql, args...))(t)
	}
	insert := func(name string, keys, each int) {
		t.Helper()
		exec(`insert into dibs.messages (id, category, group_hash, stream_name, position, type, data)
			select gen_random_uuid(), 'mail', 1, 'mail-' || $3 || n % $1, n / $1, 'T', '{}' from generate_series(0, $1::integer * $2::integer - 1) n`, keys, each, name)
	}
	var positions []int64
	var versions []int32
	take := func(want int) {
		t.Helper()
		kinds, delays, errs := strings.Repeat("c", len(positions)), make([]int64, len(positions)), make([]*string, len(positions))
		require.NoError(t, conn.QueryRow(t.Context(),
			"select positions, versions from dibs.queue_take('mail', 'mail', 1, 60000000, $1, $2, $3, $4, $5, $6, 0, null, 5, false, null, null, null)",
			positions, versions, kinds, delays, errs, want).Scan(&positions, &versions))
	}
	looked := func() (rows, scans int) {
		require.NoError(t, conn.QueryRow(t.Context(),
			"select coalesce(sum(seq_tup_read + idx_tup_fetch), 0), coalesce(sum(seq_scan), 0) from pg_stat_xact_user_tables where relname in ('messages', 'queue_open')",
		).Scan(&rows, &scans))
		return rows, scans
	}
	insert("small", 1, before)
	take(1000)
	const finish = "select dibs.queue_finish('mail', 'mail', 1, $1, $2)"
	for range 3 { // it lets go what is held
		require.Len(t, positions, 1)
		exec("begin")
		exec(finish, positions, versions)
		exec("rollback")
		take(1)
	}
	const keys, each = 10, 500
	insert("large", keys, each)
	take(1000)
	require.Len(t, positions, keys+1, "the first of each key")
	require.GreaterOrEqual(t, pgtest.Value[int](t, conn, "select count(*) from dibs.queue_open where state = 'h'"), keys*(each-1))

	exec("begin")
	rows, _ := looked()
	exec(finish, positions[:1], versions[:1])
	rowsAfter, _ := looked()
	exec("rollback")
	require.LessOrEqual(t, rowsAfter-rows, 2, "rows looked at for one that is finished")

	exec("begin")
	exec("update dibs.queue_heads set checked = checked + interval '1 hour'") // once a second a take looks at all that is held
	rows, scans := looked()
	take(keys + 1)
	rowsAfter, scansAfter := looked()
	exec("rollback")

	require.GreaterOrEqual(t, len(positions), keys, "the second of each key")
	require.Equal(t, scans, scansAfter, "it went through a whole table")
	require.LessOrEqual(t, rowsAfter-rows, 15*keys, "rows looked at")
	require.GreaterOrEqual(t, rowsAfter-rows, 4*keys, "the server counts")
}

// A call that waits for the queue's lock while the queue is removed finds no head, and begins no
// new queue.
func TestACallThatWaitedForARemovalIsRefused(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	for name, call := range map[string]func(d *postgres.Driver) error{
		"take": func(d *postgres.Driver) error {
			_, err := d.QueueTake(t.Context(), queuing.Take{Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: 1})
			return err
		},
		"change": func(d *postgres.Driver) error {
			_, err := d.QueueChange(t.Context(), queuing.Change{Queue: mail, Action: queuing.Pause})
			return err
		},
		"leave": func(d *postgres.Driver) error {
			return d.QueueLeave(t.Context(), queuing.Leave{Queue: mail, Session: 1})
		},
	} {
		for _, free := range []bool{false, true} {
			driver := testkit.Must(postgres.New(pool, nil))
			testkit.Do(driver.QueueRemove(t.Context(), queuing.Removal{Queue: mail, FreeName: true}))(t)
			testkit.Do(driver.QueueTake(t.Context(), queuing.Take{Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour}))(t)
			tx := testkit.Do(pool.Begin(t.Context()))(t)
			testkit.Do(tx.Exec(t.Context(), "select dibs.queue_remove('mail', 'mail', true, $1)", free))(t)
			conn := testkit.Do(pool.Acquire(t.Context()))(t)
			called := testkit.Go(func() error { return call(testkit.Must(postgres.New(conn.Conn(), nil))) })
			waitUntilBlocked(t, pool, conn.Conn().PgConn().PID())

			require.NoError(t, tx.Commit(t.Context()))

			require.ErrorIs(t, <-called, queuing.ErrRemoved, name)
			conn.Release()
			require.Empty(t, testkit.Do(driver.Queues(t.Context()))(t))
			require.Zero(t, pgtest.Value[int](t, pool, "select count(*) from dibs.queue_heads"))
		}
	}
}

// The rows of a queue of streams that wait are many, and for long: a session ends, and an item is
// found, without reading them.
func TestAQueueOfStreamsReadsNoRowThatWaits(t *testing.T) {
	t.Parallel()
	const waiting = 20_000
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	for _, statement := range []string{
		"select dibs.queue_take('mail', 'mail', 1, 3600000000, null, null, null, null, null, 0, 0, null, 5, false, null, null, null, null, array['Wake'])",
		`insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
		select 'mail', dibs.group_hash(s), s, 0, 'Start', gen_random_uuid(), '{}' from generate_series(1, $1 + 50) i, lateral (select 'mail-' || i as s) n`,
		`insert into dibs.queue_open (queue, position, version, state, due)
		select q.id, m.global_position, 1, 'l', '2100-01-01'
		from dibs.queues q, (select * from dibs.messages order by global_position limit $1) m`,
		`insert into dibs.queue_heads
		select (row(q.id, 1, now(), (select max(position) from dibs.queue_open), 1, 0, 0, 'infinity', now(), now(), now(), 0, false, null, $1::bigint, 0, $1::bigint, 0, false, null, false)::dibs.queue_heads).*
		from dibs.queues q`,
		"analyze dibs.queue_open",
	} {
		var args []any
		if strings.Contains(statement, "$1") {
			args = []any{waiting}
		}
		require.NoError(t, testkit.ErrorOf(pool.Exec(t.Context(), statement, args...)), statement)
	}
	const take = "select cardinality(positions) from dibs.queue_take('mail', 'mail', $1, $2, null, null, null, null, null, 10, 0, null, 5, false, null, null, null, null, array['Wake'])"
	for _, call := range []struct {
		name, sql string
		args      []any
	}{
		{"a take of what comes", take, []any{1, 3_600_000_000}},
		{"the end of a session", "select 10 from dibs.queue_leave('mail', 'mail', $1, null, null, null, null)", []any{1}},
		{"a take of what is due", take, []any{2, 10_000}},
		{"a take that meets a session that is over", take, []any{3, 3_600_000_000}},
	} {
		if call.args[0] == 3 {
			testkit.Do(pool.Exec(t.Context(), "update dibs.queue_sessions set until = now() - interval '0.5 s' where session = 2; update dibs.queue_heads set seen = now() - interval '1 h', wake = '-infinity'"))(t)
		}
		tx := testkit.Do(pool.Begin(t.Context()))(t)
		read := func() (rows int) {
			require.NoError(t, tx.QueryRow(t.Context(), "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = 'queue_open'").Scan(&rows))
			return rows
		}
		before, items := read(), 0 // with what the session read before
		require.NoError(t, tx.QueryRow(t.Context(), call.sql, call.args...).Scan(&items), call.name)
		after := read()
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, 10, items, call.name)
		require.Less(t, after-before, 1000, "%s: of %d rows that wait", call.name, waiting)
	}
}

// A take looks up the item before each that it meets, and reads no other open row, also in a
// session that met the queue when it was small.
func TestATakeReadsNoRowOfOtherKeys(t *testing.T) {
	t.Parallel()
	const waiting = 20_000
	conn := testkit.Must(pgtest.Connect(t, pgtest.Migrated(t)).Acquire(t.Context()))
	defer conn.Release()
	exec := func(statement string, args ...any) {
		t.Helper()
		require.NoError(t, testkit.ErrorOf(conn.Exec(t.Context(), statement, args...)), statement)
	}
	insert := func(position, from, streams int) {
		t.Helper()
		exec(`insert into dibs.messages (category, group_hash, stream_name, position, type, id, data)
			select 'mail', dibs.group_hash(s), s, $1, 'Item', gen_random_uuid(), '{}' from generate_series($2::int, $2 + $3 - 1) i, lateral (select 'mail-' || i as s) n`, position, from, streams)
	}
	take := func() (items int) {
		t.Helper()
		require.NoError(t, conn.QueryRow(t.Context(), "select coalesce(cardinality(positions), 0) from dibs.queue_take('mail', 'mail', 1, 3600000000, null, null, null, null, null, 100, 0, null, 5, false, null, null, null)").Scan(&items))
		return items
	}
	insert(0, 1, 50)
	require.Equal(t, 50, take())
	insert(0, 1000, waiting)
	exec(`insert into dibs.queue_open (queue, position, version, state, due)
		select q.id, m.global_position, 1, 'l', '2100-01-01' from dibs.queues q, dibs.messages m where m.global_position > 50`)
	exec("update dibs.queue_heads set cursor = (select max(global_position) from dibs.messages)")
	insert(1, 1, 50)
	insert(0, 100, 50)
	read := func() (rows int) {
		t.Helper()
		require.NoError(t, conn.QueryRow(t.Context(), "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = 'queue_open'").Scan(&rows))
		return rows
	}
	exec("begin")
	before := read() // with what the session read before
	require.Equal(t, 50, take())
	after := read()
	exec("commit")
	require.Less(t, after-before, 3000, "of %d rows of other keys", waiting)
}

// A first message that an operator cancelled before the queue met it opens nothing.
func TestAStreamThatIsCancelledBeforeItIsMetIsNotOffered(t *testing.T) {
	t.Parallel()
	_, d := riders(t)
	_, err := d.QueueTake(t.Context(), takeOf(7)) // the queue is one of streams
	require.NoError(t, err)
	var written []messagestore.Written
	for _, name := range []string{"1", "2", "3"} {
		w := testkit.Do(d.Append(t.Context(), record(turnsOf.Category.Stream(name))))(t)
		written = append(written, w)
	}
	cancelled := testkit.Do(d.QueueChange(t.Context(), queuing.Change{Queue: turnsOf, Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{written[1].GlobalPosition}}))(t)
	require.Len(t, cancelled, 1)
	taken := testkit.Do(d.QueueTake(t.Context(), takeOf(7)))(t)
	var offered []messagestore.GlobalPosition
	for _, item := range taken.Items {
		offered = append(offered, item.Message.GlobalPosition)
	}
	require.Equal(t, []messagestore.GlobalPosition{written[0].GlobalPosition, written[2].GlobalPosition}, offered)
}

// A rode is the result that a worker got for its take.
type rode struct {
	queuing.Taken
	err error
}

// worker waits for one write that takes a take along.
func worker(take queuing.Take) (stop *queuing.Stop, told <-chan rode) {
	stop = queuing.NewStop()
	stop.Wait(true)
	answers := testkit.Go(func() rode {
		call := <-stop.Calls()
		stop.Wait(false)
		ride := queuing.NewRide(take)
		call <- ride
		taken, err := ride.Told()
		return rode{taken, err}
	})
	return stop, answers
}

var turnsOf = queuing.Queue{Name: "turns", Category: "turns"}

func takeOf(session int64) queuing.Take {
	return queuing.Take{Queue: turnsOf, Policy: queuing.Policy{MaxFailures: 5}, Wakes: []string{"Woken"}, Session: session, Lease: time.Hour, Want: 10}
}

func riders(t *testing.T) (*pgxpool.Pool, *postgres.Driver) {
	t.Helper()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	return pool, testkit.Must(postgres.New(pool, nil))
}

// waitLess has functions wait for a lock for half a second, where they wait for ten.
func waitLess(t *testing.T, pool *pgxpool.Pool, functions ...string) {
	t.Helper()
	for _, name := range functions {
		testkit.Do(pool.Exec(t.Context(), fmt.Sprintf("alter function dibs.%s set lock_timeout = '500ms'", name)))(t)
	}
}

// statements are the statements that were sent. A round trip with several counts once.
type statements struct {
	mu  sync.Mutex
	all []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, data.SQL)
	return ctx
}

func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// since returns the statements since the call before.
func (s *statements) since() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

// The take is in the transaction of the write, and sees its messages.
func TestATakeGoesWithTheWriteThatItIsToFind(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	testkit.Do(pool.Exec(t.Context(), `
		create table public.seen (position bigint, xid xid8);
		create function public.see() returns trigger language plpgsql security definer as $$
		begin
			insert into public.seen values ((to_jsonb(new) ->> tg_argv[0])::bigint, pg_current_xact_id());
			return null;
		end $$;
		create trigger see after insert on dibs.messages for each row execute function public.see('global_position');
		create trigger see after insert on dibs.queue_open for each row execute function public.see('position')`))(t)
	for _, name := range []string{"1", "2"} { // once with a new queue, and once more
		stop, told := worker(takeOf(7))
		written, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream(name)))
		require.NoError(t, err)
		taken := testkit.Receive(t, "the take", told)
		require.NoError(t, taken.err)
		require.Len(t, taken.Items, 1)
		m := taken.Items[0].Message
		require.Equal(t, turnsOf.Category.Stream(name), m.Stream)
		require.Equal(t, written.GlobalPosition, m.GlobalPosition)
		require.Equal(t, written.IDs[0], m.ID)
		require.Equal(t, written.Time, m.Time)
		var rows, transactions int
		require.NoError(t, pool.QueryRow(t.Context(), "select count(*), count(distinct xid) from public.seen where position = $1", written.GlobalPosition).Scan(&rows, &transactions))
		require.Equal(t, []int{2, 1}, []int{rows, transactions}, "the message and its row, in one transaction")
	}
	require.Empty(t, testkit.Do(d.QueueTake(t.Context(), takeOf(8)))(t).Items)
	require.Equal(t, 2, pgtest.Value[int](t, pool, "select count(*) from dibs.queue_open where session = 7 and state = 'o'"))
}

// An error of the take concerns only the worker: the write is not refused because of it, and not
// written twice.
func TestAWriteIsWrittenThoughTheTakeThatGoesWithItIsRefused(t *testing.T) {
	t.Parallel()
	_, d := riders(t)
	bad := takeOf(7)
	bad.Lease = time.Nanosecond
	stop, told := worker(bad)
	written, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	require.NoError(t, err)
	require.Zero(t, written.Version)
	require.False(t, written.Duplicate)
	require.ErrorIs(t, testkit.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// Nor does it wait for the queue's lock, but as long as the take would.
func TestAWriteIsWrittenThoughTheQueueIsStuck(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	other := testkit.Do(pool.Begin(t.Context()))(t)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	testkit.Do(other.Exec(t.Context(), "select dibs.queue_lock('turns', 'turns', true)"))(t)
	waitLess(t, pool, "queue_take")
	stop, told := worker(takeOf(7))
	written, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	require.NoError(t, err)
	require.False(t, written.Duplicate)
	require.ErrorIs(t, testkit.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// A write that is refused has its own answer, and the take another.
func TestATakeGoesWithAWriteThatConflicts(t *testing.T) {
	t.Parallel()
	_, d := riders(t)
	first := record(turnsOf.Category.Stream("1"))
	first.Expected = messagestore.NoStream
	testkit.Do(d.Append(t.Context(), first))(t)
	again := record(turnsOf.Category.Stream("1"))
	again.Expected = messagestore.NoStream
	stop, told := worker(takeOf(7))
	require.ErrorIs(t, testkit.ErrorOf(d.Append(queuing.WithStop(t.Context(), stop), again)), messagestore.ErrVersionConflict)
	taken := testkit.Receive(t, "the take", told)
	require.NoError(t, taken.err)
	require.Len(t, taken.Items, 1)
}

// A stuck writer to the category keeps the worker from nothing but this take.
func TestATakeThatWaitsWithItsWriteIsToldThatItWentAlone(t *testing.T) {
	t.Parallel()
	var sent statements
	config := testkit.Must(pgxpool.ParseConfig(pgtest.Migrated(t)))
	config.ConnConfig.Tracer = &sent
	pool := testkit.Must(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(pool.Close)
	d := testkit.Must(postgres.New(pool, nil))
	other := testkit.Do(pool.Begin(t.Context()))(t)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	testkit.Do(other.Exec(t.Context(), "select dibs.lock_category('turns')"))(t)
	waitLess(t, pool, "wait_for_category", "append_each", "append_one")
	sent.since()
	stop, told := worker(takeOf(7))
	_, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Len(t, sent.since(), 1, "the lock is waited for once")
	require.ErrorIs(t, testkit.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// If the answer is lost, neither the writer nor the worker knows.
func TestAWriteAndItsTakeShareAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	require.NoError(t, pool.Ping(t.Context()))
	testkit.Do(pool.Exec(t.Context(), `
		create function public.cut() returns trigger language plpgsql security definer as $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
		create trigger cut after insert on dibs.queue_open for each row execute function public.cut()`))(t)
	stop, told := worker(takeOf(7))
	_, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	taken := testkit.Receive(t, "the take", told)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, taken.err, messagestore.ErrOutcomeUnknown)
}
