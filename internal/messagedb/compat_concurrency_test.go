package messagedb_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// A scene is two or three sessions in one database, and their answers.
type scene struct {
	t     *testing.T
	admin *pgx.Conn
	url   string
	heard []string
}

// client opens a session, and returns the function that runs statements in it.
func (s *scene) client(name string) *client {
	return &client{scene: s, name: name, session: open(s.t, s.url, "message_store", "")}
}

type client struct {
	*scene
	session
	name string
}

// says runs a statement, and remembers the answer.
func (c *client) says(sql string) {
	c.hears(sql, c.do(c.t, step{sql: sql}, modes[0], "message_store."))
}

func (c *client) hears(sql string, a answer) {
	c.t.Helper()
	c.heard = append(c.heard, fmt.Sprintf("%s: %s: %v %s", c.name, sql, a.Rows, a.Error))
}

// waits runs a statement that has to wait for another session, and returns the function that
// waits for its end.
func (c *client) waits(sql string) (then func()) {
	c.t.Helper()
	done := testkit.Go(func() answer { return c.do(c.t, step{sql: sql}, modes[0], "message_store.") })
	testkit.Await(c.t, c.name+" waits for another session in "+sql, func() (bool, any) {
		blocking := one[[]int32](c.t, c.admin, "select pg_blocking_pids($1)", int32(c.conn.PID()))
		return len(blocking) > 0, blocking
	})
	c.heard = append(c.heard, c.name+" waits: "+sql)
	return func() { c.hears(sql, testkit.Receive(c.t, "the answer to "+c.name+": "+sql, done)) }
}

const put = "select MS.write_message(gen_random_uuid()::varchar, '%s', 'T', '{}', null, %s)"

func putTo(stream string) string               { return fmt.Sprintf(put, stream, "null") }
func putAt(stream string, expected int) string { return fmt.Sprintf(put, stream, fmt.Sprint(expected)) }
func (c *client) begins(level string)          { c.says("begin isolation level " + level) }

var scenes = map[string]func(s *scene){
	"writers of one category wait for each other, and others do not": func(s *scene) {
		a, b, c := s.client("a"), s.client("b"), s.client("c")
		a.begins("read committed")
		a.says(putTo("x-1"))
		c.says(putTo("y-1"))
		c.says(putTo("x:command-1"))
		then := b.waits(putTo("x-2"))
		a.says("commit")
		then()
	},
	"readers wait for nobody": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.says(putTo("x-1"))
		a.begins("read committed")
		a.says(putTo("x-1"))
		for _, sql := range []string{
			"select position from MS.get_stream_messages('x-1')", "select position from MS.get_category_messages('x')", "select position from MS.get_last_stream_message('x-1')",
			"select MS.stream_version('x-1')", "select position from MS.messages", "select message_count from MS.stream_summary",
		} {
			b.says(sql)
		}
		a.says("rollback")
	},
	"a lock is held to the end of the transaction, also by acquire_lock": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says("select MS.acquire_lock('x-1')")
		then := b.waits(putTo("x-2"))
		a.says("rollback")
		then()
		b.begins("read committed")
		b.says(putTo("x"))
		then = a.waits("select MS.acquire_lock('x')")
		b.says("commit")
		then()
	},
	"the loser of a race for a version is told so": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says(putAt("x-1", -1))
		then := b.waits(putAt("x-1", -1))
		a.says("commit")
		then()
		a.begins("read committed")
		a.says(putTo("x-1"))
		then = b.waits(putTo("x-1"))
		a.says("commit")
		then()
	},
	"a transaction that is too old meets messages_stream at REPEATABLE READ": func(s *scene) {
		for _, expected := range []string{"null", "-1"} {
			stream := "x" + expected + "-1"
			a, b := s.client("a"), s.client("b")
			b.begins("repeatable read")
			b.says("select 1")
			a.says(putTo(stream))
			b.says(fmt.Sprintf(put, stream, expected))
			b.says("rollback")
		}
	},
	"who waits for the lock at REPEATABLE READ meets messages_stream": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says(putTo("x-1"))
		b.begins("repeatable read")
		then := b.waits(putTo("x-1"))
		a.says("commit")
		then()
		b.says("rollback")
		a.begins("repeatable read")
		a.says(putAt("x-1", 0))
		a.says(putAt("x-1", 1))
		a.says("commit")
	},
	"a version that is wrong in the snapshot is a conflict at REPEATABLE READ": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		b.begins("repeatable read")
		b.says("select 1")
		a.says(putTo("x-1"))
		b.says(putAt("x-1", 0))
		b.says("rollback")
	},
	"a transaction that is too old cannot be serialized": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		b.begins("serializable")
		b.says("select 1")
		a.begins("serializable")
		a.says(putTo("x-1"))
		then := b.waits(putTo("x-1"))
		a.says("commit")
		then()
		b.says("rollback")
	},
	"an id that is taken is in the way before the position is, at REPEATABLE READ": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		b.begins("repeatable read")
		b.says("select 1")
		const same = "select MS.write_message('00000000-0000-4000-8000-000000000001', 'x-1', 'T', '{}')"
		a.says(same)
		b.says(same)
		b.says("rollback")
	},
	"two streams of a category are written to at REPEATABLE READ, also by who is too old for the other": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("repeatable read")
		a.says("select 1")
		b.begins("repeatable read")
		b.says("select 1")
		a.says(putTo("x-1"))
		then := b.waits(putTo("x-2"))
		a.says("commit")
		then()
		b.says(putTo("x-2"))
		b.says("commit")
		a.says("select stream_name, position from MS.get_category_messages('x')")
	},
	"a transaction may be READ ONLY to read, and not to write": func(s *scene) {
		a := s.client("a")
		a.says(putTo("x-1"))
		for _, sql := range []string{
			"select position from MS.get_stream_messages('x-1')", "select position from MS.get_category_messages('x')", "select position from MS.get_last_stream_message('x-1')",
			"select MS.stream_version('x-1')", "select MS.acquire_lock('x-1')", "select position from MS.messages", "select * from MS.category_type_summary",
			putAt("x-1", 7), putTo("x-1"),
		} {
			a.says("begin read only")
			a.says(sql)
			a.says("rollback")
		}
	},
	"two categories in opposite orders are a deadlock": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says(putTo("x-1"))
		b.begins("read committed")
		b.says(putTo("y-1"))
		then := a.waits(putTo("y-1"))
		answers := testkit.Go(func() answer { return b.do(s.t, step{sql: putTo("x-1")}, modes[0], "message_store.") })
		mark := len(s.heard)
		then()
		last := testkit.Receive(s.t, "the answer to b", answers)
		outcomes := map[string]int{s.heard[mark][len("a: "+putTo("y-1")+": "):]: 1}
		outcomes[fmt.Sprintf("%v %s", last.Rows, last.Error)]++
		s.heard = append(s.heard[:mark], fmt.Sprint(failedAndWorked(outcomes)))
	},
	"a number that is lower may become visible later, in another category": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says(putTo("x-1"))
		b.says(putTo("y-1"))
		b.says("select global_position, stream_name from MS.messages order by 1")
		a.says("commit")
		b.says("select global_position, stream_name from MS.messages order by 1")
	},
	"what is rolled back leaves a gap in global positions, and none in positions": func(s *scene) {
		a := s.client("a")
		a.says(putTo("x-1"))
		a.begins("read committed")
		a.says(putTo("x-1"))
		a.says("rollback")
		a.says(putTo("x-1"))
		a.says("select position, global_position from MS.messages order by 2")
	},
	"time is when the transaction began, and may run backwards": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says("select 1")
		b.says(putTo("x-1"))
		a.says(putTo("x-1"))
		a.says("commit")
		a.says("select array_agg(position order by time) from MS.get_category_messages('x')")
	},
	"the session says how long it waits": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		b.says("set lock_timeout = '20ms'")
		a.begins("read committed")
		a.says(putTo("x-1"))
		b.says(putTo("x-1"))
		a.says("commit")
		b.says(putTo("x-1"))
	},
	"a stream without a name has no lock": func(s *scene) {
		a, b := s.client("a"), s.client("b")
		a.begins("read committed")
		a.says("select MS.acquire_lock('')")
		b.says("select MS.acquire_lock(null)")
		b.says("select MS.write_message(gen_random_uuid()::varchar, null, 'T', '{}')")
		then := b.waits("select MS.acquire_lock('-1')")
		a.says("rollback")
		then()
	},
}

// failedAndWorked counts: which of the two is the victim is chance.
func failedAndWorked(outcomes map[string]int) (failed, worked int) {
	for o, n := range outcomes {
		if len(o) > 14 && o[3:14] == "ERROR 40P01" {
			failed += n
		} else {
			worked += n
		}
	}
	return failed, worked
}

func TestConcurrencyIsTheSame(t *testing.T) {
	t.Parallel()
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	for does, play := range scenes {
		t.Run(does, func(t *testing.T) {
			var heard [][]string
			for _, database := range []string{theirs, ours} {
				s := &scene{t: t, admin: connect(t, database), url: database}
				exec(t, s.admin, "alter database "+s.admin.Config().Database+" set deadlock_timeout = '10ms'") // of 1 s
				empty(t, s.admin)
				play(s)
				heard = append(heard, s.heard)
			}

			require.Equal(t, heard[0], heard[1])
		})
	}
}
