package postgres_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	names "github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// The validators of the library and the database agree: an accepted message is stored and returned
// equal, a refused one is refused by both. So no client in any language can store a message that
// the library would not, and the library sends none that the database refuses.
func FuzzValidatorAgreesWithDatabase(f *testing.F) {
	long := strings.Repeat("x", 251)
	for _, name := range []string{
		"", "account", "-", "-x", "cat-", "cat-\n\t\x01", "cat-\x00", "cat-\xff", "\xc0\x80", "\xed\xa0\x80", "cat-" + long, "cat-" + long + "x",
		"cat-\u202e", "cat-\u200d", "\ufeffcat-1", "cat-é", "cat-e\u0301", "a-1'; DROP TABLE messages;--", "cat-%s%d%n", "cat-${jndi:x}", "cat--x", "cat-a-b+c+d",
		"cat-+x", "cat:command+position-1", "cat:-1", "cat:a++b-1", "cat+x-1", "c:a:b-1", "Cat-1", " c-1", "c-1 ", "c -1", "c\u00a0-1", "c-\u3000", "c-a\u3000b", "c-\u2029", "c-\ufffd",
		"c-\u00ad", "c-\u061c", "c-\u06dd", "c-\u070f", "c-\u0890", "c-\u08e2", "c-\u180e", "c-\u2065", "c-\u206f", "c-\ufff9", "c-\ufffc",
		"c-\U000110bd", "c-\U000110cd", "c-\U00013430", "c-\U00013440", "c-\U0001bca0", "c-\U0001d173", "c-\U000e0001", "c-\U000e0002", "c-\U000e0020", "c-\U000e007f", "c-\U000e0080", "c-\U0010ffff", "c-\u0085", "c-\u1680x", "c-\u0378",
	} {
		f.Add(name, "Opened", `{}`, ``)
		f.Add("account-1", name, `{}`, ``)
	}
	for _, data := range []string{
		``, ` `, `{}`, ` { } `, `1`, `[]`, `null`, `"a"`, `true`, `{"a":"\u0000"}`, `{"a":"\\u0000"}`, `{"\u0000":1}`, `{"a":"\ud800"}`, `{"a":"\udc00"}`, `{"a":"\ud83d\ude00"}`, `{"a":"\ud83dx"}`,
		`{"a":"\ud83d\ud83d"}`, `{"a":"\ud83d\u0041"}`, `{"a":NaN}`, `{"a":Infinity}`, `{"a":1,}`, `{/**/}`, `{'a':1}`, "\ufeff{}", `{}{}`, `{"a":1e400}`, `{"a":1e200000}`, `{"a":1e131071}`, `{"a":1e131072}`,
		`{"a":0.1e131072}`, `{"a":10e131071}`, `{"a":1e-16383}`, `{"a":1e-16384}`, `{"a":0e-16384}`, `{"a":0e200000}`, `{"a":1.5e-16382}`, `{"a":1.55e-16382}`, `{"a":1e99999999999}`, `{"a":0e99999999999}`, `{"a":1e-99999999999}`, `{"a":1e0000000000000000000000001}`,
		`{"a":12345678901234567890.123456789}`, `{"a":9223372036854775808}`, `{"a":-0}`, `{"a":1.0}`, `{"a":1e2}`, `{"a":0.1e-3}`, `{"a":01}`, `{"a":.5}`, `{"a":1.}`, `{"a":+1}`, `{"a":--1}`, `{"a":1e}`, `{"a":1,"a":2}`,
		nested("[", "]", 511), nested("[", "]", 512), nested(`{"b":`, "}", 511), nested(`{"b":`, "}", 512),
		`{"a":"` + strings.Repeat("[", 1100) + `"}`,
		"{\"a\":\"\x01\"}", "{\"a\":\"\x7f\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\u2028\"}", "{\"a\":\"\uffff\"}", `{"a":"\/\b\f\n\r\t\"\\"}`, `{"a":"\x"}`, `{"a":"\u12"}`, "{\"a\"\v:1}", "{\"a\"\u00a0:1}", `{"":1}`, `{"a"}`, `{"a":1 "b":2}`, "{\n}", "{}\x00",
		`{"id":"0e12345-0E99999"}`, `{"a":"1e99999"}`, `{"a":[1,[2,{"b":[]}]],"c":{"d":{}}}`,
	} {
		f.Add("account-1", "Opened", data, ``)
		f.Add("account-1", "Opened", `{}`, data)
	}
	for _, metadata := range []string{
		`{"correlationStreamName":"a-1"}`, `{"correlationStreamName":""}`, `{"correlationStreamName":7}`, `{"correlationStreamName":"a\nb"}`, `{"correlationStreamName":"a b "}`, `{"replyStreamName":"\u200b"}`,
		`{"causationMessageStreamName":"` + strings.Repeat("x", 256) + `"}`, `{"causationMessageStreamName":"a","causationMessagePosition":-1,"causationMessageGlobalPosition":1e30}`,
		`{"schemaVersion":"\t"}`, `{"schemaVersion":3}`, `{"properties":[]}`, `{"properties":{"a":1e400}}`, `{"localProperties":null}`, `{"correlationStreamName":"x ","correlationStreamName":"x"}`, `{"correlationStreamName":"x","correlationStreamName":"x "}`,
	} {
		f.Add("account-1", "Opened", `{}`, metadata)
	}

	pool := pgtest.Pool(f)
	for _, name := range testkit.SeedNames() {
		f.Add(name, "Opened", `{}`, ``)
	}
	for _, data := range testkit.SeedJSON("a") {
		f.Add("account-1", "Opened", data, ``)
	}
	f.Fuzz(func(t *testing.T, stream, messageType, data, metadata string) {
		requireAgreement(t, pool, stream, messageType, data, metadata)
	})
}

func nested(open, shut string, n int) string {
	return `{"a":` + strings.Repeat(open, n) + "1" + strings.Repeat(shut, n) + "}"
}

// Large inputs are here because they would slow the fuzz test down.
func TestValidatorAgreesWithDatabaseOnWhatIsLarge(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for _, data := range []string{
		nested("[", "]", 7000), nested("[", "]", 200_000),
		`{"a":` + strings.Repeat("1", 131_072) + `}`, `{"a":` + strings.Repeat("1", 131_073) + `}`, `{"a":0.` + strings.Repeat("1", 16_383) + `}`, `{"a":0.` + strings.Repeat("1", 16_384) + `}`,
		`{"a":` + strings.Repeat("1", 1000) + `e131072}`, `{"a":0.` + strings.Repeat("0", 1000) + `1e-15383}`, `{"a":0.` + strings.Repeat("0", 1000) + `1e-15382}`,
		`{"` + strings.Repeat("k", 10_000) + `":1}`, `{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-8) + `"}`, `{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes-7) + `"}`,
		`{"a":"` + strings.Repeat("é", messagestore.MaxMessageBytes/2) + `"}`, `{"a":[` + strings.Repeat("{},", 100_000) + `{}]}`,
	} {
		requireAgreement(t, pool, "account-1", "Opened", data, "")
		if testkit.Long() { // metadata goes the same way, as the fuzz test shows
			requireAgreement(t, pool, "account-1", "Opened", "{}", data)
		}
	}
	half := `{"a":"` + strings.Repeat("x", messagestore.MaxMessageBytes/2-8) + `"}`
	requireAgreement(t, pool, "account-1", "Opened", half, half)
	requireAgreement(t, pool, "account-1", "Opened", half, half+" ")
	requireAgreement(t, pool, strings.Repeat("x-", 5_000_000), "Opened", "{}", "")
}

func requireAgreement(t *testing.T, pool *pgxpool.Pool, stream, messageType, data, metadata string) {
	t.Helper()
	// In a transaction that is rolled back, so that nothing is kept.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(contextOf(t)) //nolint:errcheck // nothing was to be kept
	in := testkit.Must(postgres.New(tx, nil))

	validate := testkit.Must(messagestore.New(memory.New(), nil))
	message := messagestore.Envelope{ID: uuid.New(), Body: messagestore.Raw{Type: messageType, Data: json.RawMessage(data)}}
	_, refused := validate.Write(t.Context(), messagestore.StreamName(stream), messagestore.AnyVersion, message)
	if refused == nil {
		refused = validMetadata(t, metadata, len(data))
	}
	a := messagestore.Append{Stream: messagestore.StreamName(stream), Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{
		{ID: message.ID, Type: messageType, Data: json.RawMessage(data), Metadata: json.RawMessage(metadata)},
	}}
	_, err = in.Append(t.Context(), a)

	if (refused == nil) != (err == nil) {
		t.Fatalf("stream %q type %q data %.200q metadata %.200q:\nthe library: %v\nthe database: %v", stream, messageType, data, metadata, refused, err)
	}
	if err != nil {
		requireDataError(t, err)
		return
	}
	m, err := in.Last(t.Context(), a.Stream, "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Stream != a.Stream || m.Type != messageType || m.ID != message.ID || string(m.Data) != data {
		t.Fatalf("stored %q %q %q, read %q %q %q", stream, messageType, data, m.Stream, m.Type, m.Data)
	}
	again, err := in.Append(t.Context(), a)
	if err != nil || !again.Duplicate {
		t.Fatalf("the same again: %+v, %v", again, err)
	}
	if stream := m.Stream; len(metadata) == 0 {
		page, err := in.ReadCategory(t.Context(), messagestore.CategoryQuery{Category: stream.Category(), From: m.GlobalPosition, Limit: 10, Filter: messagestore.Filter{
			Types: []string{messageType}, GroupSize: 7, GroupMember: stream.GroupMember(7),
		}})
		if err != nil || len(page.Messages) != 1 {
			t.Fatalf("category of %q: %d messages, %v", stream, len(page.Messages), err)
		}
	}
}

// validMetadata applies the library's rules to metadata in JSON: those of data, the limit of both
// together, and the limits of its texts.
func validMetadata(t *testing.T, metadata string, beside int) error {
	t.Helper()
	if metadata == "" {
		return nil
	}
	if len(metadata)+beside > messagestore.MaxMessageBytes {
		return errors.New("too long")
	}
	validate := testkit.Must(messagestore.New(memory.New(), nil))
	_, err := validate.Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "Metadata", Data: json.RawMessage(metadata)})
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(metadata), &fields); err != nil {
		return err
	}
	for _, field := range []string{"causationMessageStreamName", "correlationStreamName", "replyStreamName", "schemaVersion"} {
		var text string
		if json.Unmarshal(fields[field], &text) == nil && text != "" {
			if rule := names.TypeRule(text); rule != "" {
				return messagestore.NewInvalidError("message type", text, rule)
			}
		}
	}
	return nil
}

// requireDataError demands that a refusal is about the data, by its class, and not
// about something that went wrong.
func requireDataError(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, messagestore.ErrInvalid) {
		return
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || !strings.HasPrefix(refused.Code, "22") && refused.Code != "54001" {
		t.Fatalf("%T %v", err, err)
	}
}

// The list of hidden characters is written down twice. Beyond the first two planes
// there are none but tags, and in the others no white space.
func TestEveryCharacterIsVisibleToBothOrToNeither(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	elsewhere := rune(0x30FF) // beyond the last white space: what is hidden elsewhere is also hidden inside
	if testkit.Long() {
		elsewhere = 0xFFFF
	}
	for _, place := range []struct {
		name, before, after string
		last                rune
	}{
		{"inside", "c-x", "x", 0x1FFFF},
		{"tags", "c-x", "x", 0xE01FF},
		{"at the end", "c-x", "", elsewhere},
		{"in the category", "c", "d-1", elsewhere},
		{"at the start", "", "c-1", elsewhere},
	} {
		first := rune(1)
		if place.name == "tags" {
			first = 0xE0000
		}
		var accepted []string
		for r := first; r <= place.last; r++ {
			if name := place.before + string(r) + place.after; utf8.ValidRune(r) && messagestore.StreamName(name).Validate() == nil {
				accepted = append(accepted, string(r))
			}
		}
		var missing, more int
		err := pool.QueryRow(t.Context(), `
			with library as (select unnest($1::text[]) collate "C" as c),
			database as (
				select chr(n) collate "C" as c from generate_series($4::int, $5::int) n
				where n not between 55296 and 57343 and dibs.valid_stream_name($2 || chr(n) || $3)
			)
			select (select count(*) from (select c from library except select c from database) d),
				(select count(*) from (select c from database except select c from library) d)`,
			accepted, place.before, place.after, first, place.last).Scan(&missing, &more)
		if err != nil {
			t.Fatal(err)
		}
		if missing != 0 || more != 0 {
			t.Errorf("%s: %d characters only the library accepts, %d only the database", place.name, missing, more)
		}
	}
}

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
	for _, name := range testkit.SeedNames() {
		f.Add(name, "T", `{}`, int64(-2), 1)
	}
	for _, data := range testkit.SeedJSON("a") {
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
	for _, name := range testkit.SeedNames() {
		f.Add(name, "T", `{}`, int64(0), int64(1))
	}
	for _, data := range testkit.SeedJSON("a") {
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
