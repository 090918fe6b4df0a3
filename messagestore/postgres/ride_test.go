package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// A rode is what a worker was told of its take.
type rode struct {
	queuing.Taken
	err error
}

// worker waits for one write that takes a take along.
func worker(take queuing.Take) (stop *queuing.Stop, told <-chan rode) {
	stop = queuing.NewStop()
	stop.Wait(true)
	answers := await.Go(func() rode {
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
	return pool, must.New(postgres.New(pool, nil))
}

// waitLess has functions wait for a lock for half a second, where they wait for ten.
func waitLess(t *testing.T, pool *pgxpool.Pool, functions ...string) {
	t.Helper()
	for _, name := range functions {
		must.Do(pool.Exec(t.Context(), fmt.Sprintf("alter function dibs.%s set lock_timeout = '500ms'", name)))(t)
	}
}

// statements are what was sent. A round trip with several counts once.
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

// The take is in the transaction of the write, and finds what it has written.
func TestATakeGoesWithTheWriteThatItIsToFind(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	must.Do(pool.Exec(t.Context(), `
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
		taken := await.Receive(t, "the take", told)
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
	require.Empty(t, must.Do(d.QueueTake(t.Context(), takeOf(8)))(t).Items)
	require.Equal(t, 2, pgtest.Value[int](t, pool, "select count(*) from dibs.queue_open where session = 7 and state = 'o'"))
}

// What is wrong with the take is the worker's to find out: the write is not refused for it, and not
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
	require.ErrorIs(t, await.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// Nor does it wait for the queue's lock, but as long as the take would.
func TestAWriteIsWrittenThoughTheQueueIsStuck(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	other := must.Do(pool.Begin(t.Context()))(t)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	must.Do(other.Exec(t.Context(), "select dibs.queue_lock('turns', 'turns', true)"))(t)
	waitLess(t, pool, "queue_take")
	stop, told := worker(takeOf(7))
	written, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	require.NoError(t, err)
	require.False(t, written.Duplicate)
	require.ErrorIs(t, await.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// A write that is refused has its own answer, and the take another.
func TestATakeGoesWithAWriteThatConflicts(t *testing.T) {
	t.Parallel()
	_, d := riders(t)
	first := record(turnsOf.Category.Stream("1"))
	first.Expected = messagestore.NoStream
	must.Do(d.Append(t.Context(), first))(t)
	again := record(turnsOf.Category.Stream("1"))
	again.Expected = messagestore.NoStream
	stop, told := worker(takeOf(7))
	require.ErrorIs(t, must.ErrorOf(d.Append(queuing.WithStop(t.Context(), stop), again)), messagestore.ErrVersionConflict)
	taken := await.Receive(t, "the take", told)
	require.NoError(t, taken.err)
	require.Len(t, taken.Items, 1)
}

// A stuck writer to the category keeps the worker from nothing but this take.
func TestATakeThatWaitsWithItsWriteIsToldThatItWentAlone(t *testing.T) {
	t.Parallel()
	var sent statements
	config := must.New(pgxpool.ParseConfig(pgtest.Migrated(t)))
	config.ConnConfig.Tracer = &sent
	pool := must.New(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(pool.Close)
	d := must.New(postgres.New(pool, nil))
	other := must.Do(pool.Begin(t.Context()))(t)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	must.Do(other.Exec(t.Context(), "select dibs.lock_category('turns')"))(t)
	waitLess(t, pool, "wait_for_category", "append_each", "append_one")
	sent.since()
	stop, told := worker(takeOf(7))
	_, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Len(t, sent.since(), 1, "the lock is waited for once")
	require.ErrorIs(t, await.Receive(t, "the take", told).err, queuing.ErrAlone)
}

// If the answer is lost, neither the writer nor the worker knows.
func TestAWriteAndItsTakeShareAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	pool, d := riders(t)
	require.NoError(t, pool.Ping(t.Context()))
	must.Do(pool.Exec(t.Context(), `
		create function public.cut() returns trigger language plpgsql security definer as $$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
		create trigger cut after insert on dibs.queue_open for each row execute function public.cut()`))(t)
	stop, told := worker(takeOf(7))
	_, err := d.Append(queuing.WithStop(t.Context(), stop), record(turnsOf.Category.Stream("1")))
	taken := await.Receive(t, "the take", told)
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, taken.err, messagestore.ErrOutcomeUnknown)
}
