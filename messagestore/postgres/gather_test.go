package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// A library is a store in which reads of streams slow-… and stuck-… wait while their lock is held,
// and reads of bad-… fail.
type library struct {
	*postgres.Driver

	pool  *pgxpool.Pool // of the driver, with four connections
	other *pgxpool.Pool
	sent  statements
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	var l library
	url := pgtest.Migrated(t)
	l.other = pgtest.Connect(t, url)
	testkit.Do(l.other.Exec(t.Context(), `
		alter function dibs.read_stream rename to read_stream_itself;
		create function dibs.read_stream(stream text, from_position bigint, max_messages integer, backwards boolean) returns table (
			id uuid, stream_name text, type text, "position" bigint, global_position bigint, data json, metadata json, "time" timestamptz
		) language plpgsql security definer as $$
		begin
			if stream ~ '^slow-' then
				perform pg_advisory_xact_lock_shared(1);
			elsif stream ~ '^stuck-' then
				perform pg_advisory_xact_lock_shared(2);
			elsif stream ~ '^bad-' then
				raise exception 'bad';
			end if;
			return query select * from dibs.read_stream_itself(stream, from_position, max_messages, backwards);
		end $$`))(t)
	config := testkit.Must(pgxpool.ParseConfig(url))
	config.MaxConns = 4
	config.ConnConfig.Tracer = &l.sent
	l.pool = testkit.Must(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(l.pool.Close)
	l.Driver = testkit.Must(postgres.New(l.pool, nil))
	return &l
}

// hold takes a lock, 1 for the slow streams and 2 for the stuck, until its end.
func (l *library) hold(t *testing.T, lock int) (end func()) {
	t.Helper()
	conn := testkit.Do(l.other.Acquire(t.Context()))(t)
	testkit.Do(conn.Exec(t.Context(), "select pg_advisory_lock($1)", lock))(t)
	end = sync.OnceFunc(func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "select pg_advisory_unlock_all()")
		conn.Release()
	})
	t.Cleanup(end)
	return end
}

// A page is the result of one read.
type page struct {
	stream   messagestore.StreamName
	messages []*messagestore.Message
	err      error
}

// read begins a read for each name, and tells their answers.
func (l *library) read(ctx context.Context, names ...messagestore.StreamName) <-chan page {
	answers := make(chan page, len(names))
	for _, name := range names {
		go func() {
			messages, err := l.ReadStream(ctx, messagestore.StreamQuery{Stream: name, Limit: 1000})
			answers <- page{name, messages, err}
		}()
	}
	return answers
}

func (l *library) write(t *testing.T, streams ...messagestore.StreamName) {
	t.Helper()
	for _, name := range streams {
		testkit.Do(l.Append(t.Context(), record(name)))(t)
	}
}

func numbered(category messagestore.Category, n int) []messagestore.StreamName {
	names := make([]messagestore.StreamName, n)
	for i := range names {
		names[i] = category.Stream(fmt.Sprint(i))
	}
	return names
}

// busy has so many reads under way that others wait for them, until its end.
func (l *library) busy(t *testing.T) (end func(), slow <-chan page) {
	t.Helper()
	end = l.hold(t, 1)
	slow = l.read(t.Context(), numbered("slow", 2)...)
	l.awaitLocks(t, 2)
	return end, slow
}

func (l *library) awaitLocks(t *testing.T, n int) {
	t.Helper()
	testkit.AwaitEqual(t, "reads that wait for the lock", n, func() (waiting int) {
		_ = l.other.QueryRow(t.Context(), "select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())").Scan(&waiting)
		return waiting
	})
}

// The result of a read does not depend on the reads in its group.
func TestReadsThatGoTogetherFindWhatEachFindsAlone(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.Patient()
	lengths := []int{0, 1, 2, 99, 100, 101, 250}
	for i, n := range lengths {
		a := record(messagestore.Category("books").Stream(fmt.Sprint(i)))
		for len(a.Records) < n {
			a.Records = append(a.Records, messagestore.Encoded{ID: uuid.Must(uuid.NewV7()), Type: fmt.Sprint("Read", len(a.Records)%3), Data: fmt.Appendf(nil, `{"n":%d}`, len(a.Records)), Metadata: []byte(`{"a":"b"}`)})
		}
		if n > 0 {
			testkit.Do(l.Append(t.Context(), a))(t)
		}
	}
	large := messagestore.Category("books").Stream("large")
	for i := range 12 { // more than a group holds
		a := record(large)
		a.Records[0].Data = largeData(700<<10, i%2 == 0)
		testkit.Do(l.Append(t.Context(), a))(t)
	}
	l.write(t, "books-erased", "books-erased", "books-deleted")
	testkit.Do(l.pool.Exec(t.Context(), "select dibs.delete_stream('books-erased', erase_name => true)"))(t)
	testkit.Do(l.pool.Exec(t.Context(), "select dibs.delete_stream('books-deleted')"))(t)
	conn := testkit.Do(l.other.Acquire(t.Context()))(t)
	defer conn.Release()
	alone := testkit.Must(postgres.New(conn.Conn(), nil))

	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	small := append(numbered("books", len(lengths)), "books-erased", "books-deleted", "books-none")
	for n, of := range map[int][]messagestore.StreamName{400: small, 60: append(small, large)} {
		queries := make([]messagestore.StreamQuery, n)
		want := make([][]*messagestore.Message, len(queries))
		for i := range queries {
			q := messagestore.StreamQuery{Stream: of[random.IntN(len(of))], From: messagestore.Version(random.IntN(260)), Limit: []int{1, 7, 99, 100, 101, 1000}[random.IntN(6)], Backwards: random.IntN(2) == 0}
			if random.IntN(3) == 0 {
				q.From = 0
			}
			queries[i], want[i] = q, testkit.Must(alone.ReadStream(t.Context(), q))
		}
		end, slow := l.busy(t)
		l.sent.since()
		var reading sync.WaitGroup
		for i, q := range queries {
			reading.Go(func() {
				messages, err := l.ReadStream(t.Context(), q)
				if err != nil || !reflect.DeepEqual(messages, want[i]) {
					t.Errorf("%+v: %v and %d messages, alone %d", q, err, len(messages), len(want[i]))
				}
			})
		}
		testkit.AwaitTrue(t, "all reads wait", func() bool { return l.WaitingReads() == len(queries) })
		end()
		reading.Wait()
		for range 2 {
			require.NoError(t, testkit.Receive(t, "a slow read", slow).err)
		}
		if len(of) == len(small) {
			require.Less(t, strings.Count(fmt.Sprint(l.sent.since()), "dibs.read_stream"), len(queries)/2)
		}
	}
}

// A read that fails has its error to itself.
func TestAReadThatFailsHarmsNoReadThatItGoesWith(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.Patient()
	good := numbered("good", 20)
	l.write(t, good...)
	end, slow := l.busy(t)
	answers := l.read(t.Context(), append(good, "bad-1", "bad-2")...)
	testkit.AwaitTrue(t, "all reads wait", func() bool { return l.WaitingReads() == 22 })
	end()
	for range 22 {
		a := testkit.Receive(t, "a read", answers)
		if a.stream.Category() == "bad" {
			require.ErrorContains(t, a.err, "bad")
			continue
		}
		require.NoError(t, a.err)
		require.Len(t, a.messages, 1)
		require.Equal(t, a.stream, a.messages[0].Stream)
	}
	for range 2 {
		require.NoError(t, testkit.Receive(t, "a slow read", slow).err)
	}
}

// Reads that hang keep others waiting for a second, and not for longer.
func TestReadsThatHangHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	good := numbered("good", 5)
	l.write(t, good...)
	end, slow := l.busy(t)
	for range 2 {
		answers := l.read(t.Context(), good...)
		for range good {
			a := testkit.Receive(t, "a read", answers)
			require.NoError(t, a.err)
			require.Len(t, a.messages, 1)
		}
	}
	testkit.AwaitEqual(t, "reads that wait behind the slow ones", 0, l.WaitingReads)
	require.Empty(t, slow)
	end()
	for range 2 {
		require.NoError(t, testkit.Receive(t, "a slow read", slow).err)
	}
}

// A slow read keeps the reads of its group waiting for a second, and they are done without it.
func TestASlowReadDoesNotHoldUpItsGroup(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.write(t, "good-1")
	end, slow := l.busy(t)
	release := l.hold(t, 2)
	stuck, good := l.read(t.Context(), "stuck-1"), l.read(t.Context(), "good-1")
	testkit.AwaitTrue(t, "the stuck read waits", func() bool { return l.WaitingReads() > 0 })
	end()
	found := testkit.Receive(t, "the good read", good)
	require.NoError(t, found.err)
	require.Len(t, found.messages, 1)
	require.Empty(t, stuck)
	release()
	require.NoError(t, testkit.Receive(t, "the stuck read", stuck).err)
	for range 2 {
		require.NoError(t, testkit.Receive(t, "a slow read", slow).err)
	}
}

// A caller that leaves gets its error at once.
func TestAReadThatWaitsForOthersEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := newLibrary(t)
	l.Patient()
	end, slow := l.busy(t)
	ctx, leave := context.WithCancel(t.Context())
	before := l.read(t.Context(), "good-2")
	testkit.AwaitTrue(t, "a read waits", func() bool { return l.WaitingReads() == 1 })
	answers := l.read(ctx, "good-1")
	testkit.AwaitTrue(t, "both wait", func() bool { return l.WaitingReads() == 2 })
	leave()
	require.ErrorIs(t, testkit.Receive(t, "the read", answers).err, context.Canceled)
	require.Empty(t, before)
	require.Empty(t, slow)
	end()
	require.NoError(t, testkit.Receive(t, "the other read", before).err)
	for range 2 {
		require.NoError(t, testkit.Receive(t, "a slow read", slow).err)
	}
}

// largeData is JSON of so many bytes, which the database can compress, or not.
func largeData(size int, compresses bool) []byte {
	text := bytes.Repeat([]byte("a"), size)
	if !compresses {
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
		for i := range text {
			text[i] = 'a' + byte(random.IntN(26))
		}
	}
	return fmt.Appendf(nil, `{"a":"%s"}`, text)
}

// However large messages are, reads that go together hold no more than 4 MiB, and a message. The
// rest of each page is read alone.
func TestReadsThatGoTogetherHoldFourMiB(t *testing.T) {
	t.Parallel()
	_, d := riders(t)
	for _, compresses := range []bool{false, true} {
		stream := messagestore.Category("pictures").Stream(fmt.Sprint(compresses))
		for range 10 {
			a := record(stream)
			a.Records[0].Data = largeData(900<<10, compresses)
			testkit.Must(d.Append(t.Context(), a))
		}
		queries := make([]messagestore.StreamQuery, 16)
		for i := range queries {
			queries[i] = messagestore.StreamQuery{Stream: stream, Limit: 100}
		}

		pages := testkit.Do(d.ReadTogether(t.Context(), queries...))(t)

		held := 0
		for _, page := range pages {
			for _, m := range page {
				held += len(m.Data)
			}
		}
		require.LessOrEqual(t, held, 5<<20)
		require.GreaterOrEqual(t, held, 4<<20)
	}
}
