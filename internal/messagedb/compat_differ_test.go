package messagedb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

// The tests in the files compat_* hold the schema message_store to the behaviour of message-db: each
// case runs the same SQL in a database with the real message-db and in one of ours, and compares
// everything that a client can see.
//
//	{does: "positions are inclusive", sql: steps{
//		{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{id(1)}},
//		{sql: "select id from MS.get_stream_messages('a-1', 0)"},
//	}}

// A kase is a sentence about message-db, and SQL that shows it.
type kase struct {
	does string
	sql  steps
}

type steps []step

// A step is a statement, in which MS. stands for the schema's name with a dot, or for
// nothing. Where ours is to answer differently, ours makes its answer of message-db's:
// that is a deviation, and there are no others.
type step struct {
	sql  string
	args []any // string, int, js, or nil for NULL
	ours func(theirs answer) answer
}

// js is JSON.
type js string

// An answer is all that a client sees of a statement.
type answer struct {
	Columns []string
	Rows    []string
	Tag     string
	Notices []string
	Error   string
}

// fails is the answer of an error.
func fails(code, message string) func(answer) answer {
	return func(answer) answer { return answer{Error: "ERROR " + code + " " + message} }
}

// generates is the same answer with another command in the notice about it.
func generates(command string) func(answer) answer {
	return func(theirs answer) answer {
		notices := append([]string{}, theirs.Notices...)
		for i, n := range notices {
			if strings.HasPrefix(n, "NOTICE 00000 Generated Command: ") {
				notices[i] = "NOTICE 00000 Generated Command: " + command
			}
		}
		theirs.Notices = notices
		return theirs
	}
}

// id returns a message id.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// dibs returns a database of ours. [pgtest.MessageDB] returns one with message-db.
func dibs(t *testing.T) string {
	t.Helper()
	return pgtest.Migrated(t)
}

func migrateTo(t *testing.T, database string) string {
	t.Helper()
	migrate(t, database)
	return database
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	require.NoError(t, testkit.ErrorOf(conn.PgConn().Exec(context.WithoutCancel(t.Context()), sql).ReadAll()), sql)
}

func one[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	require.NoError(t, err, sql)
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err, sql)
	return value
}

// member returns a role that is a member of message_store, and granted one that was
// given all that it may do.
func member(t *testing.T, databases ...string) string {
	return role(t, databases, "grant message_store to %s")
}

func granted(t *testing.T, databases ...string) string {
	return role(t, databases, `grant usage on schema message_store to %[1]s;
		grant select, insert on all tables in schema message_store to %[1]s;
		grant usage on all sequences in schema message_store to %[1]s;
		grant execute on all functions in schema message_store to %[1]s`)
}

func role(t *testing.T, databases []string, grant string) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	for i, database := range databases {
		admin := connect(t, database)
		if i == 0 {
			exec(t, admin, "create role "+name+" login")
			t.Cleanup(func() { exec(t, connect(t, pgtest.URL(t)), "drop role "+name) })
		}
		exec(t, admin, fmt.Sprintf(grant, name))
		t.Cleanup(func() { exec(t, admin, "drop owned by "+name) })
	}
	return name
}

// A session is a connection of a client, and the database that it is to.
type session struct {
	conn    *pgconn.PgConn
	notices *[]string
}

// open connects as a role, with a search_path if there is one to set. Its waits are as long as the
// test has them: the role's own bounds, of 10 s and a minute, are a busy machine's.
func open(t *testing.T, database, user, path string) session {
	t.Helper()
	target := unbounded(pgtest.As(t, database, user))
	if path != "" {
		target += "&search_path=" + url.PathEscape(path)
	}
	config := testkit.Do(pgconn.ParseConfig(target))(t)
	s := session{notices: new([]string)}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		*s.notices = append(*s.notices, n.Severity+" "+n.Code+" "+n.Message)
	}
	s.conn = testkit.Do(pgconn.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { s.conn.Close(context.WithoutCancel(t.Context())) })
	return s
}

// unbounded is a URL whose sessions wait for locks, and stay in a transaction, as long as they
// like.
func unbounded(database string) string {
	return database + "&lock_timeout=0&idle_in_transaction_session_timeout=0"
}

// A mode is a way to send arguments: as literals, or as parameters of these types.
type mode struct {
	name                  string
	literal               bool
	text, integer, object uint32
}

var modes = []mode{
	{name: "literals", literal: true},
	{name: "untyped parameters"},
	{name: "parameters of its types", text: pgtype.VarcharOID, integer: pgtype.Int8OID, object: pgtype.JSONBOID},
	{name: "parameters of other types", text: pgtype.TextOID, integer: pgtype.Int4OID, object: pgtype.JSONOID},
}

var parameter = regexp.MustCompile(`\$[1-9]`)

// do runs a statement.
func (s session) do(t *testing.T, st step, m mode, schema string) answer {
	t.Helper()
	sql := strings.ReplaceAll(st.sql, "MS.", schema)
	*s.notices = nil
	var results []*pgconn.Result
	var err error
	if m.literal || len(st.args) == 0 {
		if len(st.args) > 0 { // or else they are of a statement that it prepares
			sql = parameter.ReplaceAllStringFunc(sql, func(p string) string { return literal(st.args, p) })
		}
		results, err = s.conn.Exec(t.Context(), sql).ReadAll()
	} else {
		values, types := m.encode(st.args)
		r := s.conn.ExecParams(t.Context(), sql, values, types, nil, nil).Read()
		results, err = []*pgconn.Result{r}, r.Err
	}

	a := answer{Notices: *s.notices}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		a.Error = strings.Join([]string{e.Severity, e.Code, e.Message}, " ")
		if e.ConstraintName != "" {
			a.Error += " constraint " + e.ConstraintName
		}
		if e.Code != "23502" && e.Code != "54000" && e.Detail != "" { // which tell of the table's rows
			a.Error += " detail " + e.Detail
		}
		if e.Code == "23502" {
			a.Error += " column " + e.ColumnName
		}
		return a
	}
	if err != nil {
		t.Errorf("%s: %v", sql, err) // and no more: this may be another goroutine
	}
	for _, r := range results {
		a.Tag = r.CommandTag.String()
		for _, f := range r.FieldDescriptions {
			kind := strconv.Itoa(int(f.DataTypeOID))
			if f.DataTypeOID >= 16384 {
				kind = "user-defined"
			}
			a.Columns = append(a.Columns, fmt.Sprintf("%s %s %d", f.Name, kind, f.TypeModifier))
		}
		for _, row := range r.Rows {
			fields := make([]string, len(row))
			for i, v := range row {
				fields[i] = "∅"
				if v != nil {
					fields[i] = string(v)
				}
			}
			a.Rows = append(a.Rows, strings.Join(fields, " | "))
		}
	}
	return a
}

func literal(args []any, parameter string) string {
	n, _ := strconv.Atoi(parameter[1:])
	switch v := args[n-1].(type) {
	case nil:
		return "null"
	case int:
		return strconv.Itoa(v)
	default:
		return "'" + strings.ReplaceAll(fmt.Sprint(v), "'", "''") + "'"
	}
}

func (m mode) encode(args []any) (values [][]byte, types []uint32) {
	for _, arg := range args {
		kind, value := uint32(0), []byte(fmt.Sprint(arg))
		switch arg.(type) {
		case nil:
			value = nil
		case int:
			kind = m.integer
		case js:
			kind = m.object
		default:
			kind = m.text
		}
		values, types = append(values, value), append(types, kind)
	}
	return values, types
}

// empty removes all messages, and begins positions anew.
func empty(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	exec(t, admin, `do $$
	begin
		if to_regclass('dibs.messages') is null then
			delete from message_store.messages;
			perform setval('message_store.messages_global_position_seq', 1, false);
		else
			set local session_replication_role = replica;
			delete from dibs.messages;
			perform setval('dibs.messages_global_position_seq', 1, false);
		end if;
	end
	$$`)
}

// A way is how a case is run.
type way struct {
	user   int // message_store, a member of it, or a role with rights of its own
	mode   int
	schema string // its name with a dot, or ""
}

// ways has each user, each mode, and statements with and without the schema's name: the other of
// the two each day. The long tier has all pairs.
func ways() (all []way) {
	other := testkit.Turn(2)
	for n, schema := range []string{"", "message_store."} {
		for mode := range modes {
			if testkit.Long() || (n+mode)%2 == other {
				all = append(all, way{0, mode, schema})
			}
		}
		for user := 1; user <= 2; user++ {
			if testkit.Long() || (n+user)%2 == other {
				all = append(all, way{user, 1, schema})
			}
		}
	}
	return all
}

// compare runs each case on message-db and on ours, in several [ways].
func compare(t *testing.T, cases []kase) {
	t.Helper()
	theirs, ours := pgtest.MessageDB(t), dibs(t)
	compareIn(t, theirs, ours, cases, ways())
}

func compareIn(t *testing.T, theirs, ours string, cases []kase, ways []way) {
	t.Helper()
	databases := []string{theirs, ours}
	admins := []*pgx.Conn{connect(t, theirs), connect(t, ours)}
	users := []struct{ name, path string }{
		{"message_store", ""},
		{member(t, databases...), "message_store, public"},
		{granted(t, databases...), "public, message_store"},
	}
	for _, way := range ways {
		user, mode := users[way.user], modes[way.mode]
		var sessions []session
		for _, c := range cases {
			for _, admin := range admins {
				empty(t, admin)
			}
			if sessions == nil {
				sessions = []session{open(t, theirs, user.name, user.path), open(t, ours, user.name, user.path)}
			}
			sets := false
			for i, st := range c.sql {
				want, got := sessions[0].do(t, st, mode, way.schema), sessions[1].do(t, st, mode, way.schema)
				where := fmt.Sprintf("%s: step %d, user %d, %s, schema %q: %s %.200q", c.does, i+1, way.user, mode.name, way.schema, st.sql, st.args)
				if st.ours != nil && !strings.HasPrefix(want.Error, "ERROR 42883") && !strings.HasPrefix(want.Error, "ERROR 42804") { // of types that neither takes
					deviation := st.ours(want)
					require.NotEqual(t, want, deviation, "no deviation: %s", where)
					want = deviation
				}
				require.Equal(t, want, got, where)
				sets = sets || strings.HasPrefix(st.sql, "set ")
			}
			if sets { // which the sessions would not forget
				for _, s := range sessions {
					require.NoError(t, s.conn.Close(t.Context()))
				}
				sessions = nil
			}
		}
	}
}
