package cli_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/pgtest"
)

// newMessageDB returns a shell whose store is a database with message-db and messages
// in it, and a connection of its owner.
func newMessageDB(t *testing.T, messages int) (*shell, *pgx.Conn) {
	t.Helper()
	url := pgtest.MessageDB(t)
	conn := connection(t, url)
	perform(t, conn, `insert into message_store.messages (stream_name, position, type, data)
		select 'account-' || n % 50, n / 50, 'Deposited', jsonb_build_object('amount', n) from generate_series(0, $1 - 1) n`, messages)
	return &shell{env: map[string]string{"DATABASE_URL": url}}, conn
}

func connection(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}

func perform(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	var err error
	if len(args) == 0 {
		_, err = conn.PgConn().Exec(t.Context(), sql).ReadAll()
	} else {
		_, err = conn.Exec(t.Context(), sql, args...)
	}
	require.NoError(t, err)
}

// writeAs writes as a client of message-db does.
func writeAs(t *testing.T, conn *pgx.Conn, stream string) {
	t.Helper()
	perform(t, conn, "set search_path = message_store")
	perform(t, conn, "select write_message(gen_random_uuid()::varchar, $1, 'Deposited', '{}')", stream)
}

var (
	aDuration = regexp.MustCompile(`\b\d+(\.\d+)?m?s\b`)
	aSize     = regexp.MustCompile(`\b\d+ [kMG]B\b`)
)

// rough returns output whose times and sizes are replaced, too.
func rough(output string) string {
	return aSize.ReplaceAllString(aDuration.ReplaceAllString(steady(output), "1s"), "1 MB")
}

func TestAdoptDryRunSaysWhatWouldBeDone(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 500)

	r := dibs.run(t, "migrate", "adopt", "--dry-run")

	require.Equal(t, 0, r.code)
	require.Equal(t, `message-db  1.3.0, 500 messages, 1 MB
needs       1 MB of disk, and about as much of write-ahead log
takes       about 1s: 1s to copy, 1s for indexes, 1s to compare (by a sample of 500, without the disk)
writers     go on meanwhile, and wait for the switch at the end
then        the store is dibs.messages, for clients of message-db too; the old schema stays, as message_store_before_dibs
`, rough(r.stdout))
	require.Equal(t, "dibs: checking\n", r.stderr)
	var there bool
	require.NoError(t, conn.QueryRow(t.Context(), "select to_regnamespace('dibs') is not null").Scan(&there))
	require.False(t, there)

	plan := objects(t, dibs.ok(t, "migrate", "adopt", "--dry-run", "--json"))
	require.Len(t, plan, 1)
	require.Equal(t, "1.3.0", plan[0]["version"])
	require.InDelta(t, 500, plan[0]["messages"], 0)
	require.Empty(t, plan[0]["obstacles"])
	require.NotNil(t, plan[0]["obstacles"], "a list without anything in it")
	require.Positive(t, plan[0]["copySeconds"])
}

func TestAdoptListsWhatIsInItsWay(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 20)
	perform(t, conn, "create view accounts as select * from message_store.messages; create view totals as select count(*) from message_store.messages")
	const listed = `in the way  view public.accounts would go on with the old table
in the way  view public.totals would go on with the old table
`
	const leave = "to adopt all the same: --leave-dependents\n"

	r := dibs.run(t, "migrate", "adopt", "--dry-run")
	require.Equal(t, 1, r.code)
	require.True(t, strings.HasSuffix(r.stdout, listed), r.stdout)
	require.NotContains(t, r.stdout, "then ")
	require.Equal(t, "dibs: checking\ndibs: 2 things are in the way\n      nothing was changed; "+leave, r.stderr)

	r = dibs.run(t, "migrate", "adopt", "--dry-run", "--json")
	require.Equal(t, 1, r.code)
	require.Equal(t, []any{"view public.accounts would go on with the old table", "view public.totals would go on with the old table"}, objects(t, r.stdout)[0]["obstacles"])
	failure := objects(t, r.stderr)[1]
	require.Equal(t, "cannotAdopt", failure["kind"])
	require.InDelta(t, 1, failure["exitCode"], 0)

	// The command itself names the first.
	r = dibs.run(t, "migrate", "adopt")
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
	require.Equal(t, `dibs: checking
dibs: message-db cannot be adopted here: view public.accounts would go on with the old table, and 1 more
      nothing was changed; see all of it with: --dry-run; `+leave, r.stderr)

	perform(t, conn, "alter table message_store.messages add column tenant text")
	r = dibs.run(t, "migrate", "adopt")
	require.Equal(t, 1, r.code)
	require.NotContains(t, r.stderr, "--leave-dependents", "which would not do")
	perform(t, conn, "alter table message_store.messages drop column tenant")

	require.Contains(t, dibs.ok(t, "migrate", "adopt", "--dry-run", "--leave-dependents"), `
warning     view public.accounts would go on with the old table
`)
	require.Contains(t, dibs.ok(t, "migrate", "adopt", "--leave-dependents"), "adopted: 20 messages")
}

// The DBA's view, from before an adoption until it is undone.
func TestAdoptAndUndo(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 3000)

	require.Contains(t, dibs.ok(t, "migrate", "up"), "to take its messages over, before services in Go write any: dibs migrate adopt --dry-run\n")
	r := dibs.run(t, "migrate", "adopt", "--undo")
	require.Equal(t, 1, r.code)
	require.Equal(t, "dibs: checking\ndibs: undo the adoption: there is no adoption to undo\n      none was begun, it was undone already, or the old schema was dropped: see dibs migrate status\n", r.stderr)

	r = dibs.run(t, "migrate", "adopt")

	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, `adopted: 3000 messages of message-db 1.3.0; writers were held for 1s by the switch
the old schema is message_store_before_dibs; until it is dropped, dibs migrate adopt --undo is the way back
`, rough(r.stdout))
	said := strings.Split(r.stderr, "\n") // with more lines where a phase takes more than two seconds
	for _, phase := range []string{"checking", "locking the table", "copying 0 of 3000", "indexing 0 of 3", "comparing 0 of 2", "locking the table"} {
		i := slices.Index(said, "dibs: "+phase)
		require.GreaterOrEqual(t, i, 0, "%s in %s", phase, r.stderr)
		said = said[i+1:]
	}
	require.NotContains(t, r.stderr, "\x1b", "it is no terminal")
	require.Regexp(t, `(?m)^adoption +adopted  2006-01-02T15:04:05\.000000Z  3000 messages of message-db 1\.3\.0; message_store_before_dibs is still there$`, steady(dibs.ok(t, "migrate", "status")))
	status := objects(t, dibs.ok(t, "migrate", "status", "--json"))
	last := status[len(status)-1]
	require.Equal(t, "adopted", last["adoption"])
	require.InDelta(t, 3000, last["messages"], 0)
	require.Equal(t, true, last["hasOld"])
	requireNoDrift(t, dibs)

	// Once more, and it is done already.
	again := dibs.run(t, "migrate", "adopt")
	require.Equal(t, 0, again.code)
	require.Equal(t, "dibs: checking\n", again.stderr)
	require.Contains(t, again.stdout, "adopted: 3000 messages of message-db 1.3.0\n")
	require.Equal(t, "adoption  adopted  2006-01-02T15:04:05.000000Z  3000 messages of message-db 1.3.0; message_store_before_dibs is still there\n", steady(dibs.ok(t, "migrate", "adopt", "--dry-run")))
	require.Equal(t, last, objects(t, dibs.ok(t, "migrate", "adopt", "--json"))[0])

	dibs.ok(t, "write", "account-1", "Opened")
	writeAs(t, conn, "account-1")
	dibs.ok(t, "trim", "account-2", "--yes", "--keep", "1", "--min-age", "0s")
	require.Regexp(t, `^would be undone: messages copied back that were written since the switch: 3; deleted there too, since they were trimmed or deleted: 59; writers would wait for that\n$`,
		dibs.ok(t, "migrate", "adopt", "--undo", "--dry-run"))
	plan := objects(t, dibs.ok(t, "migrate", "adopt", "--undo", "--dry-run", "--json"))[0]
	require.Equal(t, map[string]any{"dryRun": true, "abandons": false, "returned": 3.0, "removed": 59.0, "dependents": []any{}}, plan)

	perform(t, conn, "create view newer as select * from message_store.messages")
	r = dibs.run(t, "migrate", "adopt", "--undo", "--dry-run")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "in the way  view message_store.newer would go on with the schema that is put aside\n")
	r = dibs.run(t, "migrate", "adopt", "--undo")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "view message_store.newer would go on with the schema that is put aside\n      nothing was changed")
	perform(t, conn, "drop view newer")

	require.Regexp(t, `^undone: messages copied back that were written since the switch: 3; deleted there too, .*: 59; writers were held for \S+s\n$`, dibs.ok(t, "migrate", "adopt", "--undo"))

	require.Regexp(t, `(?m)^adoption +undone   2006-01-02T15:04:05\.000000Z  message-db is the store again$`, steady(dibs.ok(t, "migrate", "status")))
	status = objects(t, dibs.ok(t, "migrate", "status", "--json"))
	require.Equal(t, "undone", status[len(status)-1]["adoption"])
	writeAs(t, conn, "account-1")
	requireTurnedAway(t, dibs)
	require.Contains(t, dibs.ok(t, "migrate", "adopt", "--dry-run"), ": it begins anew\n")
	done := objects(t, dibs.ok(t, "migrate", "adopt", "--json"))[0]
	require.InDelta(t, 3000+3+1-59, done["messages"], 0)
	require.Positive(t, done["heldMillis"])
	perform(t, conn, "drop schema message_store_before_dibs, dibs_adoption cascade")
	require.NotContains(t, dibs.ok(t, "migrate", "status"), "adoption")
	requireNoDrift(t, dibs)
}

// requireNoDrift is that doctor finds the schema as it has to be.
func requireNoDrift(t *testing.T, dibs *shell) {
	t.Helper()
	for _, finding := range objects(t, dibs.run(t, "doctor", "--json").stdout) {
		if finding["group"] == "schema" {
			require.Equal(t, "ok", finding["verdict"], finding)
		}
	}
}

// requireTurnedAway is that commands say that message-db is the store.
func requireTurnedAway(t *testing.T, dibs *shell) {
	t.Helper()
	for _, args := range [][]string{{"write", "account-1", "Opened"}, {"stream", "account-1"}, {"report", "streams"}} {
		r := dibs.run(t, args...)
		require.Equal(t, 1, r.code, args)
		require.Contains(t, r.stderr, "message-db's messages are not adopted yet: see dibs migrate status")
	}
	var told []string
	for _, finding := range objects(t, dibs.run(t, "doctor", "--json").stdout) {
		if finding["verdict"] != "ok" && (finding["group"] == "schema" || finding["group"] == "storage") {
			told = append(told, fmt.Sprint(finding["says"]))
		}
	}
	require.Len(t, told, 1, "doctor takes nothing that is on purpose for damage: %q", told)
	require.Contains(t, told[0], "message-db is the store")
	r := dibs.run(t, "migrate", "up")
	require.Equal(t, 1, r.code)
	require.Equal(t, "dibs: migrate: message-db's messages are not adopted yet: run dibs migrate adopt\n      until then message-db is the store: see dibs migrate status\n", r.stderr)
	require.Equal(t, "adopting", objects(t, dibs.run(t, "migrate", "up", "--json").stderr)[0]["kind"])
}

// An ear calls f when it hears a word.
type ear struct {
	word string
	f    func()

	mu    sync.Mutex
	heard strings.Builder
}

func (e *ear) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard.Write(p)
	if strings.Contains(string(p), e.word) {
		e.f()
	}
	return len(p), nil
}

func TestInterruptedAdoptGoesOnOrIsGivenUp(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 3000)
	interrupt := func() {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		stderr := &ear{word: "indexing", f: cancel}
		var stdout strings.Builder

		code := cli.Run(ctx, []string{"migrate", "adopt"}, strings.NewReader(""), &stdout, stderr, dibs.getenv)
		cancel()

		require.Equal(t, 130, code)
		require.Empty(t, stdout.String())
		require.True(t, strings.HasSuffix(stderr.heard.String(), "dibs: interrupted: the copy stays, and the same command continues it\n"), stderr.heard.String())
	}

	interrupt()
	require.Regexp(t, `(?m)^adoption +copying   3000 of 3000 messages of message-db 1\.3\.0 are copied; message-db is the store until dibs migrate adopt is done$`, dibs.ok(t, "migrate", "status"))
	status := objects(t, dibs.ok(t, "migrate", "status", "--json"))
	require.Equal(t, "copying", status[len(status)-1]["adoption"])
	require.InDelta(t, 3000, status[len(status)-1]["found"], 0)
	requireTurnedAway(t, dibs)
	writeAs(t, conn, "account-1")
	begun := objects(t, dibs.ok(t, "migrate", "adopt", "--dry-run", "--json"))[0]
	require.InDelta(t, 3000, field(t, begun, "begun")["copied"], 0)
	require.InDelta(t, 0, begun["copySeconds"], 0.01)
	require.Contains(t, dibs.ok(t, "migrate", "adopt", "--dry-run"), ", 3000 messages are copied\n")

	require.Equal(t, "would be abandoned: the copy is thrown away, and message-db stays the store\n", dibs.ok(t, "migrate", "adopt", "--undo", "--dry-run"))
	require.Contains(t, dibs.ok(t, "migrate", "status"), "copying")
	require.Equal(t, "abandoned: the copy is thrown away, and message-db stays the store\n", dibs.ok(t, "migrate", "adopt", "--undo"))
	require.NotContains(t, dibs.ok(t, "migrate", "status"), "adoption")
	requireNoDrift(t, dibs)
	dibs.ok(t, "migrate", "up")

	interrupt()
	r := dibs.run(t, "migrate", "adopt")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "adopted: 3001 messages")
	require.NotContains(t, r.stderr, "copying", "that is done")
}

func TestAdoptNamesWhoHasTheTable(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 20)
	perform(t, conn, "set application_name = 'nightly dump'; begin; lock table message_store.messages in row exclusive mode")

	r := dibs.run(t, "migrate", "adopt", "--lock-timeout", "1ms", "--lock-tries", "2")

	require.Equal(t, 1, r.code)
	const holder = `process \d+ of postgres \("nightly dump"\), idle in transaction, in a transaction since \d\d:\d\d:\d\dZ`
	require.Regexp(t, `\ndibs: locking the table( \d of 2)?, waiting for `+holder+`\n`, r.stderr)
	require.Regexp(t, `\ndibs: adopt: lock message_store.messages: the lock was not released in time: `+holder+`\n      nothing was switched, and the copy stays: run it again when these sessions are done, or with more --lock-tries\n$`, r.stderr)
	lines := objects(t, dibs.run(t, "migrate", "adopt", "--lock-timeout", "1ms", "--lock-tries", "2", "--json").stderr)
	require.Equal(t, "locked", lines[len(lines)-1]["kind"])
	require.Regexp(t, holder, lines[len(lines)-2]["blockers"])
}

func TestAdoptIsForMessageDBInPostgreSQL(t *testing.T) {
	t.Parallel()
	messageDB, _ := newMessageDB(t, 1)
	plain := &shell{env: map[string]string{"DATABASE_URL": pgtest.Database(t)}}
	pooled := &shell{env: map[string]string{"DATABASE_URL": pgtest.PgBouncer(t, messageDB.env["DATABASE_URL"]).URL}}
	for _, c := range []struct {
		dibs *shell
		args []string
		code int
		says string
	}{
		{newShell(t), nil, 2, "message-db is in a PostgreSQL database, and the store of $DIBS_STORE is another"},
		{messageDB, []string{"--schema", "other"}, 2, "message-db is adopted by the store in the schema dibs, and by no other"},
		{messageDB, []string{"--workers", "17"}, 2, "--workers=17: must be between 1 and 16"},
		{messageDB, []string{"--lock-timeout", "0s"}, 2, "--lock-timeout=0s: must be between 1ms and 1h"},
		{messageDB, []string{"--lock-tries", "0"}, 2, "--lock-tries=0: must be between 1 and 1000000"},
		{plain, nil, 1, "message-db cannot be adopted here: there is no table message_store.messages\n      nothing was changed"},
		{pooled, nil, 1, "the connection is through a pooler, and it takes one to the server itself\n      give the server's own address: --store or DATABASE_URL\n"},
	} {
		for _, more := range [][]string{nil, {"--dry-run"}, {"--undo"}, {"--undo", "--dry-run"}} {
			if c.dibs == plain && len(more) > 0 {
				continue // which have other reasons
			}
			args := append(append([]string{"migrate", "adopt"}, c.args...), more...)
			r := c.dibs.run(t, args...)
			require.Equal(t, c.code, r.code, args)
			require.Contains(t, r.stderr, c.says, args)
		}
	}
	r := plain.run(t, "migrate", "adopt", "--dry-run")
	require.Equal(t, 1, r.code)
	require.Equal(t, "in the way  there is no table message_store.messages\n", r.stdout)
}

func TestAdoptOnAFullDiskIsRunAgain(t *testing.T) {
	t.Parallel()
	dibs, conn := newMessageDB(t, 3000)
	dibs.ok(t, "migrate", "up")
	perform(t, conn, `create function disk_full() returns trigger language plpgsql as $$ begin
			if new.global_position > 2000 then raise 'could not extend file: No space left on device' using errcode = 'disk_full'; end if; return new; end $$;
		create trigger disk_full before insert on dibs.messages for each row execute function disk_full()`)

	r := dibs.run(t, "migrate", "adopt")

	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "dibs: the copy stays: make room and run the same command, or throw the copy away with --undo\n")
	require.Contains(t, r.stderr, "No space left on device")
	perform(t, conn, "drop function disk_full cascade")
	require.Contains(t, dibs.ok(t, "migrate", "adopt"), "adopted: 3000 messages")
}
