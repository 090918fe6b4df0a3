package postgres_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
)

// hostileTexts are inputs that a client without the library may send.
var hostileTexts = []string{
	"", "account", "account-1", "-", "cat-\n", "cat-\u202e", "\ufeffcat-1", "cat-é", "cat-%s%n", "a-1'; drop table messages;--", "$1", "{}", "{a-1}", "null", "cat-+x", strings.Repeat("x", 256), "\U0010ffff", "true) or (true", "dibs:Tombstone",
}

// A service with only the rights of a writer gets rows from the functions, within their limits, or
// a refusal with a reason, for any arguments. The transaction continues from a savepoint.
func FuzzFunctionsAnswerOrRefuse(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text, text, `{}`, int64(0), 1)
	}
	for _, n := range []int64{-1 << 63, -3, -2, -1, 1, 1<<63 - 1} {
		f.Add("account-1", "Opened", `{"a":1e400}`, n, int(n))
	}
	for _, data := range []string{`[]`, `{"a":"\u0000"}`, `{`, `null`, "\ufeff{}", `{"a":1e200000}`} {
		f.Add("account-1", "Opened", data, int64(-2), 1000)
	}
	for _, past := range []string{`[null,["T"]]`, `[["T","\ufffd"],null]`, `[["T"],[]]`, `[["\u0000"],null]`, `{"0":["T"]}`, `[[["T"]],null]`} {
		f.Add("account-1", "account-2", past, int64(-1), 1)
	}
	pool := pgtest.Pool(f)
	for _, name := range tier.SeedNames() {
		f.Add(name, "T", `{}`, int64(-2), 1)
	}
	for _, data := range tier.SeedJSON("a") {
		f.Add("account-1", "T", data, int64(-2), 1)
	}
	f.Fuzz(func(t *testing.T, name, other, data string, n int64, size int) {
		size = min(max(size, -1<<31), 1<<31-1)
		tx := beginAs(t, pool, "dibs_writer")
		for _, call := range []struct {
			sql  string
			args []any
			most int
		}{
			{"dibs.append_one($1, $2, gen_random_uuid(), $3, $4::text::json, null)", []any{name, n, other, data}, 1},
			{"dibs.append_several($1, $2, array[gen_random_uuid(), gen_random_uuid()], array['T', $3]::text[], array['{}', $4::text::json]::json[], '{null,null}', meet => true)", []any{name, n, other, data}, 1},
			{"dibs.append(array[$1, $2]::text[], array[$3, -2]::bigint[], '{1,0}', array[gen_random_uuid()], '{T}', array[$4::text::json], '{null}')", []any{name, other, n, data}, 2},
			{"dibs.append_each(array[$1]::text[], array[$2]::bigint[], '{1}', array[$2]::bigint[], array[gen_random_uuid()], array[$3]::text[], array[$4::text::json], '{null}')", []any{name, n, other, data}, 1},
			{"dibs.append_one($1, $2, gen_random_uuid(), $3, $4::text::json, null, meet => true)", []any{name, n, other, data}, 1},
			{"dibs.append(array[$1, $2]::text[], array[$3, 0]::bigint[], '{0,0}', '{}', '{}', '{}', '{}', meet => true, past => $4::text::jsonb)", []any{name, other, n, data}, 2},
			{"dibs.append(array[$1]::text[], array[$3]::bigint[], '{1}', array[gen_random_uuid()], '{T}', '{\"{}\"}', '{null}', past => jsonb_build_array(jsonb_build_array($2::text)))", []any{name, other, n}, 1},
			{"dibs.append_each(array[$1]::text[], array[$2]::bigint[], '{1}', '{0}', array[gen_random_uuid()], array[$3]::text[], array[$4::text::json], '{null}', meets => '{true}')", []any{name, n, other, data}, 1},
			{"dibs.read_stream($1, $2, $3::int)", []any{name, n, size}, 10_000},
			{"dibs.read_stream($1, $2, $3::int, true)", []any{name, n, size}, 10_000},
			{"dibs.read_category($1, $2, 10, array[$3]::text[], $3, $4::int, ($4::int / 2)::int)", []any{name, n, other, size}, 11},
			{"dibs.last_message($1, $2)", []any{name, other}, 1},
			{"dibs.stream_version($1)", []any{name}, 1},
			{"dibs.find_messages($1, array[gen_random_uuid()])", []any{name}, 1},
			{"dibs.heads(array[$1, $2, null]::text[])", []any{name, other}, 1},
			{"dibs.categories($1)", []any{name}, 1 << 30},
			{"dibs.trim($1, $2)", []any{name, n}, 0},
			{"dibs.delete_stream($1, $2)", []any{name, n}, 0},
		} {
			requireAnswer(t, tx, "dibs_writer", "select * from "+call.sql, call.args, call.most)
		}
	})
}

// The same for the functions of message-db's clients, which accept message-db's arguments.
func FuzzCompatibleFunctionsAnswerOrRefuse(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text, text, `{}`, int64(0), int64(1))
	}
	f.Add("account-1", "T", `{"a":"\u0000"}`, int64(-1<<63), int64(1<<63-1))
	f.Add("account-1", "T", `[1]`, int64(-1), int64(-1))
	f.Add("account-1", "T", ``, int64(-5), int64(0))
	pool := pgtest.Pool(f)
	for _, name := range tier.SeedNames() {
		f.Add(name, "T", `{}`, int64(0), int64(1))
	}
	for _, data := range tier.SeedJSON("a") {
		f.Add("account-1", "T", data, int64(0), int64(1))
	}
	f.Fuzz(func(t *testing.T, name, other, data string, n, size int64) {
		tx := beginAs(t, pool, "message_store")
		for _, call := range []struct {
			sql  string
			args []any
		}{
			{"message_store.write_message(gen_random_uuid()::text, $1, $2, $3::text::jsonb, null, $4)", []any{name, other, data, n}},
			{"message_store.write_message($1, $2, 'T', '{}')", []any{other, name}},
			{"message_store.get_stream_messages($1, $2, $3)", []any{name, n, size}},
			{"message_store.get_stream_messages($1, condition => $2)", []any{name, other}},
			{"message_store.get_category_messages($1, $2, $3, $4, $2, $3)", []any{name, n, size, other}},
			{"message_store.get_category_messages($1, condition => $2)", []any{name, other}},
			{"message_store.get_last_stream_message($1, $2)", []any{name, other}},
			{"message_store.stream_version($1)", []any{name}},
			{"message_store.category($1)", []any{name}},
			{"message_store.cardinal_id($1)", []any{name}},
			{"message_store.hash_64($1)", []any{name}},
		} {
			requireAnswer(t, tx, "message_store", "select * from "+call.sql, call.args, 1<<30)
		}
	})
}

// beginAs begins a transaction with the rights of a role. It is rolled back when the test ends.
func beginAs(t *testing.T, pool *pgxpool.Pool, role string) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(contextOf(t)) }) // nothing was to be kept
	if _, err := tx.Exec(t.Context(), "set local role "+role); err != nil {
		t.Fatal(err)
	}
	return tx
}

// requireAnswer makes a call after a savepoint, and rolls back to it.
func requireAnswer(t *testing.T, tx pgx.Tx, role, sql string, args []any, most int) {
	t.Helper()
	if _, err := tx.Exec(t.Context(), "savepoint before"); err != nil {
		t.Fatal(err)
	}
	tag, err := tx.Exec(t.Context(), sql, args...)
	if err == nil {
		if int(tag.RowsAffected()) > most {
			t.Fatalf("%s %q: %d rows", sql, args, tag.RowsAffected())
		}
	} else {
		requireReason(t, err, role, sql, args)
	}
	if _, err := tx.Exec(t.Context(), "rollback to savepoint before; release savepoint before"); err != nil {
		t.Fatalf("after %s %q: %v", sql, args, err)
	}
}

// requireReason demands that the server has refused a call for what it was asked.
func requireReason(t *testing.T, err error, role, sql string, args []any) {
	t.Helper()
	refused, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		t.Fatalf("%s %q: %v", sql, args, err)
	case refused.Code == "DB001" && refused.ColumnName == "":
		t.Fatalf("%s %q: %v names nothing", sql, args, err)
	case refused.Code == "DB001", refused.Code == "42501", refused.Code == "P0001", strings.HasPrefix(refused.Code, "22"), strings.HasPrefix(refused.Code, "54"):
	case role == "message_store" && refused.Code == "23502": // as message-db says it
	default:
		t.Fatalf("%s %q: %s %v", sql, args, refused.Code, err)
	}
	if refused.Code == "DB001" && len(refused.Message) > 300 {
		t.Fatalf("%s: %d bytes of %.100s", sql, len(refused.Message), refused.Message)
	}
}

// The page that the library asks for is one that the functions give, and the other way
// round.
func FuzzPagesAreRefusedByBothOrByNeither(f *testing.F) {
	for _, n := range []int64{-1 << 63, -1, 0, 1, 1 << 31, 1<<63 - 1} {
		for _, size := range []int{-1, 0, 1, 2, 1024, 1025, 10_000, 10_001} {
			f.Add(n, size, size, size-1)
		}
	}
	pool := pgtest.Pool(f)
	f.Add(int64(1<<63-1), 10000, 1024, 1023) // greatest
	f.Fuzz(func(t *testing.T, from int64, limit, group, member int) {
		limit, group, member = min(max(limit, -1<<31), 1<<31-1), min(max(group, 1-1<<31), 1<<31-1), min(max(member, -1<<31), 1<<31-1)
		q := messagestore.CategoryQuery{Category: "nobody", From: messagestore.GlobalPosition(from), Limit: limit, Filter: messagestore.Filter{GroupSize: group, GroupMember: member}}
		if group == 0 {
			return // to the library no group, to the function one of none
		}
		ok := from >= 0 && 1 <= limit && limit <= messagestore.MaxReadMessages && q.Filter.Validate() == nil
		_, err := pool.Exec(t.Context(), "select * from dibs.read_category('nobody', $1, $2::int, null, null, $3::int, $4::int)", from, limit, group, member)
		if ok != (err == nil) {
			t.Fatalf("%+v: %v", q, err)
		}
		if refused, is := errors.AsType[*pgconn.PgError](err); err != nil && (!is || refused.Code != "DB001") {
			t.Fatalf("%+v: %v", q, err)
		}
	})
}
