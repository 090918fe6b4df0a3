package messagedb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

type noted struct {
	Writer int `json:"writer"`
	N      int `json:"n"`
}

func (noted) MessageType() string { return "Noted" }

// seen is the messages that one reader of a category met, in order.
type seen struct {
	mu  sync.Mutex
	ids []string
}

func (s *seen) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
}

func (s *seen) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids)
}

// Writers through write_message, through an INSERT into the view, and through our driver, alone
// and in groups, share streams and categories, and some roll back. All the while there are
// readers of each kind. Nothing is lost, no stream has a gap, and no reader passes over a
// message that becomes visible late.
func TestClientsOfBothKindsWriteAndReadAtOnce(t *testing.T) {
	t.Parallel()
	const categories, streams, writers = 2, 3, 4
	each := 21
	if testkit.Long() {
		each = 60
	}
	database := unbounded(dibs(t))
	admin := connect(t, database)
	pgtest.WaitForLocks(t, database, "dibs")
	pool := pgtest.Connect(t, database)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
	name := func(category int) messagestore.Category {
		return messagestore.Category("mixed" + strconv.Itoa(category))
	}
	stream := func(r *rand.Rand) string {
		return fmt.Sprintf("%s-%d", name(r.IntN(categories)), r.IntN(streams))
	}

	var written sync.Map // the ids that were acknowledged
	var count atomic.Int64
	wrote := func(id string) {
		written.Store(id, true)
		count.Add(1)
	}
	var working sync.WaitGroup
	failed := make(chan error, 100)
	work := func(f func(r *rand.Rand) error) {
		for i := range writers {
			working.Go(func() {
				if err := f(rand.New(rand.NewPCG(uint64(i), 7))); err != nil {
					failed <- err
				}
			})
		}
	}
	client := func() *pgx.Conn {
		return testkit.Do(pgx.Connect(context.WithoutCancel(t.Context()), pgtest.As(t, database, "message_store")))(t)
	}

	// Each transaction writes in one category, to one stream or two.
	work(func(r *rand.Rand) error {
		conn := client()
		defer conn.Close(t.Context())
		for range each {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				return err
			}
			to := stream(r)
			ids := []string{uuid.NewString(), uuid.NewString()}
			sql := "select write_message($1::varchar, $2, 'Noted', '{}')"
			if r.IntN(3) == 0 {
				sql = "insert into messages (id, stream_name, type) values ($1, $2, 'Noted')"
			}
			for i, id := range ids[:1+r.IntN(2)] {
				if _, err := tx.Exec(t.Context(), sql, id, strings.Split(to, "-")[0]+"-"+strconv.Itoa(i)); err != nil {
					return err
				}
				ids[i] = "*" + id
			}
			if r.IntN(3) == 0 {
				if err := tx.Rollback(t.Context()); err != nil {
					return err
				}
				continue
			}
			if err := tx.Commit(t.Context()); err != nil {
				return err
			}
			for _, id := range ids {
				if id, did := strings.CutPrefix(id, "*"); did {
					wrote(id)
				}
			}
		}
		return nil
	})
	// Expected versions are read first, and so often wrong.
	work(func(r *rand.Rand) error {
		conn := client()
		defer conn.Close(t.Context())
		for done := 0; done < each; {
			to, id := stream(r), uuid.NewString()
			_, err := conn.Exec(t.Context(), "select write_message($1, $2, 'Noted', '{}', null, (select coalesce(stream_version($2), -1)))", id, to)
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "P0001" && strings.HasPrefix(e.Message, "Wrong expected version: ") {
				continue
			}
			if err != nil {
				return err
			}
			wrote(id)
			done++
		}
		return nil
	})
	// A transaction that began before another's write is turned away, or a position would be there
	// twice.
	work(func(r *rand.Rand) error {
		conn := client()
		defer conn.Close(t.Context())
		if _, err := conn.Exec(t.Context(), "set default_transaction_isolation = 'repeatable read'"); err != nil {
			return err
		}
		for done := 0; done < each/3; {
			id := uuid.NewString()
			_, err := conn.Exec(t.Context(), "select write_message($1, $2, 'Noted', '{}')", id, stream(r))
			if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "23505" && e.ConstraintName == "messages_stream" || e.Code == "40001") {
				continue
			}
			if err != nil {
				return err
			}
			wrote(id)
			done++
		}
		return nil
	})
	work(func(r *rand.Rand) error {
		for n := range each {
			result, err := store.Write(t.Context(), messagestore.StreamName(stream(r)), messagestore.AnyVersion, noted{N: n}, noted{N: n + 1})
			if err != nil {
				return err
			}
			for _, id := range idsOf(result) {
				wrote(id)
			}
		}
		return nil
	})
	work(func(r *rand.Rand) error { return inTransactions(t, pool, each, r, stream, wrote) })

	ended := make(chan struct{})
	var reading sync.WaitGroup
	readers := map[string]*seen{}
	expected := map[string]string{}
	read := func(what string, category messagestore.Category, page func(from int64, add func(id string)) (next int64, err error)) {
		s := &seen{}
		what += " " + string(category)
		readers[what], expected[what] = s, string(category)
		reading.Go(func() {
			next := int64(1)
			for last := false; ; {
				select {
				case <-ended:
					last = true
				default:
				}
				from := next
				var err error
				if next, err = page(from, s.add); err != nil {
					failed <- fmt.Errorf("%s: %w", what, err)
					return
				}
				if last && next == from {
					return
				}
			}
		})
	}
	for c := range categories {
		category := name(c)
		sql := func(query string) func(int64, func(string)) (int64, error) {
			conn := client()
			t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
			return func(from int64, add func(string)) (int64, error) {
				args := []any{string(category), from}
				if strings.Contains(query, "$3") { // the rows of the view are readable up to a position that is asked for first
					var upTo int64
					if err := conn.QueryRow(t.Context(), "select readable($1)", string(category)).Scan(&upTo); err != nil {
						return 0, err
					}
					args = append(args, upTo)
				}
				rows, err := conn.Query(t.Context(), query, args...) //nolint:rowserrcheck // ForEachRow does
				if err != nil {
					return 0, err
				}
				var id string
				var at int64
				_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
					add(id)
					from = at + 1
					return nil
				})
				return from, err
			}
		}
		read("get_category_messages", category, sql("select id, global_position from get_category_messages($1, $2, 7)"))
		read("get_category_messages member", category, sql("select id, global_position from get_category_messages($1, $2, 7, null, 0, 1)"))
		read("messages", category, sql("select id::text, global_position from messages where category(stream_name) = $1 and global_position >= $2 and global_position <= $3 order by global_position limit 5"))
		read("CategoryPage", category, func(from int64, add func(string)) (int64, error) {
			page, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: category, From: messagestore.GlobalPosition(from), Limit: 7})
			for _, m := range page.Messages {
				add(m.ID.String())
			}
			return int64(page.Next), err
		})
		s := &seen{}
		readers["consumer "+string(category)], expected["consumer "+string(category)] = s, string(category)
		consume := testkit.Must(consumer.New(store, category, "reader", handle(func(m *messagestore.Message) { s.add(m.ID.String()) }), nil))
		reading.Go(func() {
			for last := false; ; {
				select {
				case <-ended:
					last = true
				default:
				}
				if err := consume.CatchUp(t.Context()); err != nil {
					failed <- err
					return
				}
				if last {
					return
				}
			}
		})
	}

	testkit.Receive(t, "the end of all writers", over(&working))
	close(ended)
	testkit.Receive(t, "the end of all readers", over(&reading))

	select {
	case err := <-failed:
		require.NoError(t, err)
	default:
	}
	require.Positive(t, count.Load())
	for c := range categories {
		want := all(t, admin, fmt.Sprintf("select id::text from dibs.messages where category = '%s' order by global_position", name(c)))
		for what, s := range readers {
			if expected[what] == string(name(c)) {
				require.Equal(t, want, s.list(), "%s passed over something, or met it twice", what)
			}
		}
	}
	stored := all(t, admin, "select id::text from dibs.messages where category like 'mixed_' order by 1")
	require.Len(t, stored, int(count.Load()), "as many as were acknowledged")
	for _, id := range stored {
		_, ok := written.Load(id)
		require.True(t, ok, "%s was never acknowledged", id)
	}
	require.Empty(t, all(t, admin, `
		select stream_name from dibs.messages group by stream_name
		having min(position) <> 0 or max(position) <> count(*) - 1`), "positions have no gap")
	require.Empty(t, all(t, admin, `
		select stream_name || position from (
			select *, lag(global_position) over (partition by stream_name order by position) before from dibs.messages
		) m where before > global_position`), "positions and global positions are in one order")
}

// over returns a channel that is closed at the end of a group.
func over(group *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	return done
}

func idsOf(w messagestore.Written) (ids []string) {
	for _, id := range w.IDs {
		ids = append(ids, id.String())
	}
	return ids
}

// inTransactions writes with our driver in transactions of the caller's, and rolls
// some back.
func inTransactions(t *testing.T, pool *pgxpool.Pool, each int, r *rand.Rand, stream func(*rand.Rand) string, wrote func(string)) error {
	undo := errors.New("undo")
	for n := range each {
		var ids []string
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			result, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)).Write(t.Context(), messagestore.StreamName(stream(r)), messagestore.AnyVersion, noted{N: n})
			if err != nil {
				return err
			}
			if ids = idsOf(result); r.IntN(3) == 0 {
				return undo
			}
			return nil
		})
		if errors.Is(err, undo) {
			continue
		}
		if err != nil {
			return err
		}
		for _, id := range ids {
			wrote(id)
		}
	}
	return nil
}

type handle func(m *messagestore.Message)

func (h handle) Handle(_ context.Context, m *messagestore.Message) error {
	h(m)
	return nil
}

// A native writer and one through write_message hold each other off, and nobody else:
// the lock is not by a number that others may use.
func TestBothKindsOfWriterTakeOneLock(t *testing.T) {
	t.Parallel()
	s := &scene{t: t, url: dibs(t)}
	s.admin = connect(t, s.url)
	pgtest.WaitForLocks(t, s.url, "dibs")
	theirs, native := s.client("theirs"), &client{scene: s, name: "native", session: open(t, s.url, "postgres", "")}
	const append = `select outcome, version from dibs.append('{x-1}', '{-2}', '{1}', array[gen_random_uuid()], '{T}', '{"{}"}', '{null}')`

	theirs.says("begin")
	theirs.says(putTo("x-2"))
	then := native.waits(append)
	theirs.says("rollback")
	then()
	native.says("begin")
	native.says(append)
	for _, sql := range []string{putTo("x-1"), "select MS.acquire_lock('x')", "insert into MS.messages (stream_name, type) values ('x-1', 'T')"} {
		then := theirs.waits(sql)
		native.says("commit")
		then()
		native.says("begin")
		native.says(append)
	}
	native.says("commit")

	native.says("begin")
	native.says("select pg_advisory_xact_lock(message_store.hash_64('x'))")
	theirs.says(putTo("x-1"))
	native.says("commit")
	for _, heard := range s.heard {
		require.NotContains(t, heard, "ERROR")
	}
	require.Equal(t, []string{"0 1 2 3 4 5 6 7"}, all(t, s.admin, "select string_agg(position::text, ' ' order by global_position) from dibs.messages where stream_name = 'x-1'"))
}

// A message of a client of the other kind is read as it is.
func TestEachKindReadsWhatTheOtherWrote(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	s := open(t, database, "message_store", "")
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, database), nil)), nil))
	require.Empty(t, s.do(t, step{sql: `select write_message($1, 'a-1', 'Noted', '{"writer": 1, "n": 2}', '{"correlationStreamName": "c-1", "other": [1]}')`, args: []any{id(1)}}, modes[1], "").Error)
	require.Empty(t, s.do(t, step{sql: `select write_message($1, 'a-1', 'Noted', null)`, args: []any{id(2)}}, modes[1], "").Error)
	native := testkit.Do(store.Write(t.Context(), "a-1", 1, noted{Writer: 3, N: 4}))(t)

	var got []string
	for m, err := range store.ReadStream(t.Context(), "a-1", 0) {
		require.NoError(t, err)
		got = append(got, fmt.Sprint(m.Position, " ", m.ID, " ", string(m.Data), " ", m.Metadata.CorrelationStream))
	}
	require.Equal(t, []string{"0 " + id(1) + ` {"n": 2, "writer": 1} c-1`, "1 " + id(2) + "  ", "2 " + idsOf(native)[0] + ` {"writer":3,"n":4} `}, got)
	require.Equal(t, []string{`2 | {"writer":3,"n":4} | ∅`}, s.do(t, step{sql: "select position, data, metadata from get_stream_messages('a-1', 2)"}, modes[0], "").Rows, "as it was written")
	require.Equal(t, []string{`{"n": 4, "writer": 3}`}, s.do(t, step{sql: "select data from messages where position = 2"}, modes[0], "").Rows, "as jsonb has it")
	require.ErrorIs(t, testkit.ErrorOf(store.Write(t.Context(), "a-1", 0, noted{})), messagestore.ErrVersionConflict)
}

// A message that was written and removed since is not there for a transaction that began
// before, and no index is in its way: it would accept an initial write a second time.
func TestTransactionThatIsTooOldDoesNotWriteAgainWhatWasRemoved(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	admin := connect(t, database)
	const erase = "select dibs.delete_stream('%s', erase_name => true)"
	const trim = "select message_store.write_message(gen_random_uuid()::varchar, '%[1]s', 'T', '{}'); select dibs.trim('%[1]s', keep => 1, min_age => '0')"
	n := 0
	for _, level := range []string{"repeatable read", "serializable"} {
		for _, remove := range []string{erase, trim} {
			for _, write := range []string{
				"select write_message(gen_random_uuid()::varchar, '%s', 'T', '{}', null, -1)", "select write_message(gen_random_uuid()::varchar, '%s', 'T', '{}')",
				"insert into messages (stream_name, position, type) values ('%s', 0, 'T')",
			} {
				n++
				stream := fmt.Sprintf("old%d-1", n) // a category of its own, which has no removal yet
				s := open(t, database, "message_store", "")
				require.Empty(t, s.do(t, step{sql: "begin isolation level " + level + "; select count(*) from messages"}, modes[0], "").Error)
				exec(t, admin, "select message_store.write_message(gen_random_uuid()::varchar, '"+stream+"', 'T', '{}', null, -1)")
				exec(t, admin, fmt.Sprintf(remove, stream))

				got := s.do(t, step{sql: fmt.Sprintf(write, stream)}, modes[0], "").Error

				require.Contains(t, got, "ERROR 40001", "%s: %s: %s", level, remove, write)
				require.Empty(t, s.do(t, step{sql: "rollback; begin isolation level " + level}, modes[0], "").Error)
				got = s.do(t, step{sql: fmt.Sprintf("select write_message(gen_random_uuid()::varchar, '%s', 'T', '{}', null, -1)", stream)}, modes[0], "").Error
				require.Contains(t, got, "ERROR P0001 Wrong expected version: -1", "the next try sees it")
				require.Empty(t, s.do(t, step{sql: "rollback"}, modes[0], "").Error)
			}
		}
	}
	require.Zero(t, one[int](t, admin, "select count(*) from dibs.removals where removals = 0"), "nothing is left there by a try")
}

// A version goes on where the stream was when it was deleted, also with nothing left of it.
func TestDeletedStreamKeepsItsVersion(t *testing.T) {
	t.Parallel()
	database := dibs(t)
	admin := connect(t, database)
	s := open(t, database, "message_store", "")
	for n, stream := range []string{"a-1", "a-1", "a-2", "a-2", "a-3", "a-3"} {
		require.Empty(t, s.do(t, writing(n+1, stream), modes[0], "").Error)
	}
	exec(t, admin, "select dibs.delete_stream('a-1', reason => 'test'); select dibs.delete_stream('a-2', erase_name => true, reason => 'test'); select dibs.trim('a-3', keep => 1, min_age => '0', reason => 'test')")

	require.Equal(t, []string{"2 | 2 | 1"}, s.do(t, step{sql: "select stream_version('a-1'), stream_version('a-2'), stream_version('a-3')"}, modes[0], "").Rows)
	for stream, version := range map[string]int{"a-1": 2, "a-2": 2, "a-3": 1} {
		require.Equal(t, fmt.Sprintf("ERROR P0001 Wrong expected version: -1 (Stream: %s, Stream Version: %d)", stream, version),
			s.do(t, step{sql: "select write_message($1, $2, 'T', '{}', null, -1)", args: []any{id(10), stream}}, modes[1], "").Error)
	}
	require.Equal(t, []string{"dibs:Tombstone"}, s.do(t, step{sql: "select type from get_stream_messages('a-1')"}, modes[0], "").Rows)
	require.Empty(t, s.do(t, step{sql: "select * from get_stream_messages('a-2')"}, modes[0], "").Rows)
	require.Equal(t, []string{"1"}, s.do(t, step{sql: "select position from get_stream_messages('a-3')"}, modes[0], "").Rows)
	require.Equal(t, []string{"3 | 3"}, s.do(t, step{sql: "select write_message('" + id(11) + "', 'a-1', 'T', '{}', null, 2), write_message('" + id(12) + "', 'a-2', 'T', '{}')"}, modes[0], "").Rows)
	for _, stream := range []string{"a-1", "a-2"} {
		require.Equal(t, []string{"2 | dibs:Tombstone", "3 | T"}, s.do(t, step{sql: "select position, type from get_stream_messages('" + stream + "')"}, modes[0], "").Rows, "it goes on after its tombstone")
	}
	require.Contains(t, s.do(t, step{sql: "insert into messages (stream_name, position, type) values ('a-3', 0, 'T')"}, modes[0], "").Error, "Wrong expected version")
}
