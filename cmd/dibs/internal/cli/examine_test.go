package cli_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(contextOf(t))) })
	return conn
}

// connectAs returns a connection of a user that is a member of one role.
func connectAs(t *testing.T, role string) *pgx.Conn {
	t.Helper()
	admin := connect(t, pgtest.URL(t))
	user, password := "test_"+strings.ToLower(rand.Text()), rand.Text()
	executeOn(t, admin, fmt.Sprintf("create role %s login password '%s' in role %s", user, password, role))
	t.Cleanup(func() { executeOn(t, admin, "drop owned by "+user, "drop role "+user) })
	config, err := pgx.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	config.User, config.Password = user, password
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(contextOf(t))) })
	return conn
}

// with returns a URL with more parameters.
func with(t *testing.T, where string, parameters ...string) string {
	t.Helper()
	u, err := url.Parse(where)
	require.NoError(t, err)
	query := u.Query()
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

func write(t *testing.T, db postgres.DB, stream messagestore.StreamName) {
	t.Helper()
	_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(db, nil)), nil)).Write(t.Context(), stream, messagestore.AnyVersion, opened())
	require.NoError(t, err)
}

func opened() messagestore.Body { return messagestore.Raw{Type: "Opened", Data: []byte("{}")} }

func examine(t *testing.T, conn *pgx.Conn, config *cli.ExamineConfig) []cli.Finding {
	t.Helper()
	found, err := cli.Examine(t.Context(), conn, config)
	require.NoError(t, err)
	return found
}

// finding returns the one finding whose text has all the words.
func finding(t *testing.T, found []cli.Finding, words ...string) cli.Finding {
	t.Helper()
	var all []cli.Finding
	for _, f := range found {
		if hasAll(f.Says, words) {
			all = append(all, f)
		}
	}
	require.Len(t, all, 1, "%q in %v", words, found)
	return all[0]
}

func hasAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

func requireVerdict(t *testing.T, want cli.Verdict, found []cli.Finding, words ...string) {
	t.Helper()
	f := finding(t, found, words...)
	require.Equal(t, want, f.Verdict, f)
	if want == cli.VerdictOK {
		require.Empty(t, f.Advice, f)
	} else {
		require.NotEmpty(t, f.Advice, f)
	}
}

func executeOn(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(contextOf(t), statement)
		require.NoError(t, err, statement)
	}
}

// One server is spoilt in every way in which a server can be, one after the other.
func TestDoctorFindsWhatIsWrongWithAServer(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedOn(t, pgtest.Server(t))
	conn := connect(t, url)

	healthy := examine(t, conn, nil)
	groups := map[string]int{}
	for _, f := range healthy {
		require.NotEqual(t, cli.VerdictFail, f.Verdict, f)
		require.NotEqual(t, cli.VerdictHidden, f.Verdict, f)
		groups[f.Group]++
	}
	require.Len(t, groups, 6)
	for _, setting := range []string{"fsync is on", "full_page_writes is on", "synchronous_commit is on", "server_encoding is UTF8", "client_encoding is UTF8", "in_hot_standby is off", "autovacuum is on"} {
		requireVerdict(t, cli.VerdictOK, healthy, setting)
	}
	requireVerdict(t, cli.VerdictOK, healthy, "PostgreSQL ")
	requireVerdict(t, cli.VerdictOK, healthy, "connection goes straight to the server")
	requireVerdict(t, cli.VerdictOK, healthy, "no category is locked")

	text, err := os.ReadFile("testdata/damages.txt")
	require.NoError(t, err)
	for damage := range strings.SplitSeq(string(text), "\n\n") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(damage, "# "), "\n")
		var does, undoes, words []string
		var verdict cli.Verdict
		for line := range strings.SplitSeq(strings.TrimSpace(rest), "\n") {
			kind, is, _ := strings.Cut(line, " ")
			switch kind {
			case "do":
				does = append(does, is)
			case "undo":
				undoes = append(undoes, is)
			default:
				verdict, words = cli.Verdict(kind), strings.Split(is, " … ")
			}
		}
		t.Run(name, func(t *testing.T) {
			executeOn(t, conn, does...)
			t.Cleanup(func() { executeOn(t, conn, append(undoes, "select pg_reload_conf()")...) })
			// A setting may have to be read again.
			requireVerdict(t, verdict, awaitFinding(t, conn, &cli.ExamineConfig{LongTransaction: 1}, words...), words...)
		})
	}
	t.Run("a standby, and its primary", func(t *testing.T) {
		standby := connect(t, pgtest.Standby(t, url))

		requireVerdict(t, cli.VerdictFail, examine(t, standby, nil), "in_hot_standby is on")
		// It answers before it has begun to follow.
		const none = "1 standby is connected, 0 waited for; synchronous_standby_names is ''"
		requireVerdict(t, cli.VerdictWarn, awaitFinding(t, conn, nil, none), none)
		executeOn(t, conn, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
		t.Cleanup(func() { executeOn(t, conn, "alter system reset synchronous_standby_names", "select pg_reload_conf()") })
		const both = "1 standby is connected, 1 waited for; synchronous_standby_names is '*'"
		requireVerdict(t, cli.VerdictOK, awaitFinding(t, conn, nil, both), both)
	})
}

func TestDoctorNamesWhoHoldsACategoryAndWhoWaits(t *testing.T) {
	t.Parallel()
	stream := storetest.Category(t).Stream("1")
	write(t, pgtest.Pool(t), stream)
	conn := connect(t, pgtest.URL(t))
	holder, waiter := connect(t, with(t, pgtest.URL(t), "application_name", "holder")), connect(t, pgtest.URL(t))
	held, category := fmt.Sprintf("by process %d (postgres, holder)", holder.PgConn().PID()), "writes of the category "+string(stream.Category())+" are held "
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	write(t, tx, stream)

	requireVerdict(t, cli.VerdictWarn, examine(t, conn, &cli.ExamineConfig{LongLock: 1}), category, held, "idle in transaction: ")
	for _, f := range examine(t, conn, &cli.ExamineConfig{LongLock: time.Hour}) {
		require.NotContains(t, f.Says, held)
	}

	done := make(chan error, 1)
	go func() {
		_, err := testkit.Must(messagestore.New(testkit.Must(postgres.New(waiter, nil)), nil)).Write(contextOf(t), stream, messagestore.AnyVersion, opened())
		done <- err
	}()
	waits := fmt.Sprintf("; process %d waits, for 00:", waiter.PgConn().PID())
	f := finding(t, awaitFinding(t, conn, &cli.ExamineConfig{LongLock: 1}, category, held, " waits, for "), category, held)
	require.Equal(t, cli.VerdictFail, f.Verdict)
	require.Contains(t, f.Says, waits)
	require.Contains(t, f.Advice, fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()))

	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, testkit.Receive(t, "the writer", done))
	for _, f := range examine(t, conn, &cli.ExamineConfig{LongLock: 1}) {
		require.NotContains(t, f.Says, held)
	}
}

func TestDoctorNamesWhoHoldsWhichLock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	for lock, text := range map[string][2]string{
		"lock(1684628083, 7)":        {"writes of the category with key 7 are held by ", "no other session writes to the category meanwhile"},
		"lock_shared(1684628083, 7)": {"writes of the category with key 7 are held by ", "and readers stop below its messages, meanwhile"},
		"lock(1684628082, 7)":        {"removals of the category with key 7 are held by ", "no other session removes from the category meanwhile"},
		"lock(1684628077, 7)":        {"migrations are held by ", "no other session migrates meanwhile"},
	} {
		executeOn(t, holder, "begin", "select pg_advisory_xact_"+lock)
		f := finding(t, examine(t, conn, &cli.ExamineConfig{LongLock: 1}), text[0]+fmt.Sprintf("process %d", holder.PgConn().PID()))
		require.Equal(t, cli.VerdictWarn, f.Verdict)
		require.Contains(t, f.Advice, text[1])
		executeOn(t, holder, "rollback")
	}
}

// That is when it is called, so it does not wait for the table itself for long.
func TestDoctorNamesWhoKeepsOthersFromATable(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	conn := connect(t, url)
	now := &cli.ExamineConfig{LongLock: 1, TableWait: 1}
	requireVerdict(t, cli.VerdictOK, examine(t, conn, now), "no session waits for a table")

	holder := connect(t, with(t, url, "application_name", "holder"))
	executeOn(t, holder, "begin", "lock table dibs.messages in access exclusive mode")
	held := fmt.Sprintf("messages is held by process %d (postgres, holder), in a transaction for ", holder.PgConn().PID())
	found := examine(t, conn, now)
	require.Regexp(t, regexp.QuoteMeta(held)+`00:\d\d:\d\d, idle in transaction: lock table`, finding(t, found, held).Says)
	requireVerdict(t, cli.VerdictWarn, found, held, ", idle in transaction: lock table dibs.messages")
	requireVerdict(t, cli.VerdictWarn, found, "storage cannot be examined: a table is locked")

	waiter := connect(t, url)
	ended := make(chan error, 1)
	wait := func() {
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(waiter, nil)), nil))
		for {
			_, err := store.Write(contextOf(t), "account-1", messagestore.AnyVersion, opened())
			if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "55P03" {
				continue // it gives up after ten seconds, however slow this machine is
			}
			ended <- err
			return
		}
	}
	go wait()
	found = awaitFinding(t, conn, now, held, fmt.Sprintf("; process %d waits, for 00:", waiter.PgConn().PID()))
	requireVerdict(t, cli.VerdictFail, found, held)
	awaitFinding(t, conn, &cli.ExamineConfig{LongLock: time.Hour, TableWait: 1}, "1 wait for a table, none of them for long")
	executeOn(t, holder, "rollback")
	require.NoError(t, testkit.Receive(t, "the writer", ended))

	// A reader holds up all writers, if a session that would change the table is in line
	// between them.
	executeOn(t, holder, "begin", "select from dibs.messages")
	changer := connect(t, url)
	changed := make(chan error, 1)
	go func() {
		_, err := changer.Exec(contextOf(t), "begin; lock table dibs.messages in access exclusive mode; commit")
		changed <- err
	}()
	awaitFinding(t, conn, now, held, fmt.Sprintf("; process %d waits, ", changer.PgConn().PID()))
	go wait()
	found = awaitFinding(t, conn, now, held, "; 2 wait, the first for 00:", fmt.Sprint(waiter.PgConn().PID()), fmt.Sprint(changer.PgConn().PID()))
	f := finding(t, found, held)
	require.Contains(t, f.Advice, fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()))
	executeOn(t, holder, "rollback")
	require.NoError(t, testkit.Receive(t, "the change", changed))
	require.NoError(t, testkit.Receive(t, "the writer", ended))
	requireVerdict(t, cli.VerdictOK, examine(t, conn, now), "no session waits for a table")
}

// awaitFinding returns the findings once one of them has all the words.
func awaitFinding(t *testing.T, conn *pgx.Conn, config *cli.ExamineConfig, words ...string) (found []cli.Finding) {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("a finding with %q", words), func() (bool, any) {
		found = examine(t, conn, config)
		return slices.ContainsFunc(found, func(f cli.Finding) bool { return hasAll(f.Says, words) }), found
	})
	return found
}

func TestDoctorTellsWhatItsUserMayNotSee(t *testing.T) {
	t.Parallel()
	stream := storetest.Category(t).Stream("1")
	write(t, pgtest.Pool(t), stream)
	holder := connect(t, pgtest.URL(t))
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(contextOf(t))) }()
	write(t, tx, stream)
	held := fmt.Sprintf("held by process %d", holder.PgConn().PID())

	for _, role := range []string{"dibs_reader", "dibs_writer", "dibs_admin", "pg_monitor"} {
		found := examine(t, connectAs(t, role), &cli.ExamineConfig{LongLock: 1})
		f := finding(t, found, held)
		if role == "pg_monitor" {
			requireVerdict(t, cli.VerdictHidden, found, "the positions of consumers are not visible")
			require.Equal(t, cli.VerdictWarn, f.Verdict)
			require.Contains(t, f.Says, "idle in transaction: ")
			require.NotContains(t, f.Says, string(stream.Category()), "it may not read")
			continue
		}
		require.Equal(t, cli.VerdictHidden, f.Verdict)
		require.Contains(t, f.Says, "the category "+string(stream.Category())+" ")
		require.Contains(t, f.Says, "which this user may not see")
		require.Contains(t, f.Advice, "grant pg_monitor")
		requireVerdict(t, cli.VerdictHidden, found, "sessions are not visible to this user")
		requireVerdict(t, cli.VerdictHidden, found, "the number of global positions left is not visible")
	}
}

func TestDoctorFindsSessions(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t)) // which is not migrated
	idle := connect(t, with(t, conn.Config().ConnString(), "application_name", "dibs"))
	requireVerdict(t, cli.VerdictOK, examine(t, conn, nil), "none has been open for long")
	executeOn(t, idle, "begin", "select 'what it did last'")

	found := examine(t, conn, &cli.ExamineConfig{LongTransaction: 1})

	requireVerdict(t, cli.VerdictWarn, found, fmt.Sprintf("process %d (postgres, dibs) has been in a transaction for 00:", idle.PgConn().PID()), ", idle in transaction: select 'what it did last'")
	requireVerdict(t, cli.VerdictWarn, found, "application 'dibs' logs in as a superuser, postgres, in 1 session")
}

func TestDoctorFindsTablesThatVacuumHasToLookAt(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	executeOn(t, conn,
		"alter table dibs.messages set (autovacuum_enabled = off)", "alter table dibs.fences set (autovacuum_enabled = off)",
		"insert into dibs.fences select n::text, 1 from generate_series(1, 15000) n", "delete from dibs.fences where fence = 1",
		"insert into dibs.messages (category, group_hash, stream_name, position, type, id) select 'account', 0, 'account-1', n, 'Opened', gen_random_uuid() from generate_series(0, 100000) n")
	require.NoError(t, conn.Close(t.Context())) // which tells the server's statistics

	found := awaitFinding(t, connect(t, url), nil, "messages: last analyzed never, 100001 ")
	requireVerdict(t, cli.VerdictWarn, found, "fences: 15000 of 15000 rows are dead")
	requireVerdict(t, cli.VerdictWarn, found, "messages: last vacuumed never, 100001 rows since")
	requireVerdict(t, cli.VerdictWarn, found, "messages: last analyzed never, 100001 rows since")
	requireVerdict(t, cli.VerdictOK, found, "messages: ", " in the table, ", " in indexes, about ")
	requireVerdict(t, cli.VerdictOK, found, "messages: the oldest transaction is ")
}

// The table may be locked by the time that the positions are counted.
func TestATableThatIsLockedLateIsAFinding(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	executeOn(t, conn, `create or replace function dibs.categories(containing text default null) returns setof text language plpgsql as $$
		begin raise 'canceling statement due to lock timeout' using errcode = 'lock_not_available'; end $$`)

	requireVerdict(t, cli.VerdictWarn, examine(t, conn, nil), "storage cannot be examined: a table is locked")
}

func TestDoctorFindsPositionsThatNobodyTrims(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Migrated(t))
	requireVerdict(t, cli.VerdictOK, examine(t, conn, nil), "consumers keep 0 positions in 0 categories")
	for _, stream := range []messagestore.StreamName{"account:position-a+0", "account:position-b+0", "account:position-b+0", "wallet:position-a+0", "composition-a", "position-a"} {
		write(t, conn, stream)
	}

	requireVerdict(t, cli.VerdictOK, examine(t, conn, &cli.ExamineConfig{ManyPositions: 3}), "consumers keep 4 positions in 2 categories")
	found := examine(t, conn, &cli.ExamineConfig{ManyPositions: 2})
	requireVerdict(t, cli.VerdictWarn, found, "account:position has more than 2 messages")
	require.NotContains(t, fmt.Sprint(found), "wallet:position")
}

func TestDoctorShowsStatementsAsTheyAreWhereBackslashesEscape(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // migrates
	holder, conn := connect(t, pgtest.URL(t)), connect(t, with(t, pgtest.URL(t), "standard_conforming_strings", "off"))
	executeOn(t, holder, "begin", "select 'sessions',\n\t'assess'")

	found := examine(t, conn, &cli.ExamineConfig{LongTransaction: 1})

	require.Contains(t, finding(t, found, fmt.Sprintf("process %d (", holder.PgConn().PID())).Says, "select 'sessions', 'assess'")
}

func TestDoctorSeesAPooler(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.PgBouncer(t, pgtest.Migrated(t)).URL)

	requireVerdict(t, cli.VerdictOK, examine(t, conn, nil), "goes through a pooler")
}

func TestDoctorLooksAtTheSchemaItIsGiven(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	_, err := pool.Exec(t.Context(), "alter table "+schema+".fences set unlogged")
	require.NoError(t, err)
	conn := connect(t, pool.Config().ConnString())

	f := finding(t, examine(t, conn, &cli.ExamineConfig{Schema: schema}), "fences is unlogged")
	require.Contains(t, f.Advice, schema+`".`)
	for _, f := range examine(t, conn, nil) {
		require.NotContains(t, f.Says, "fences is unlogged")
	}
}

func TestDoctorReturnsWithItsContextThoughTheServerFallsSilent(t *testing.T) {
	t.Parallel()
	config := connect(t, pgtest.URL(t)).Config()
	proxy, err := testserver.NewProxy(pgconn.NetworkAddress(config.Host, config.Port))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	proxy.SetRule(func(m testserver.Message) testserver.Fault {
		if m.From == testserver.FromServer || !bytes.Contains(m.Body, []byte("rollback")) {
			return testserver.Pass
		}
		cancel()
		return testserver.Lose
	})
	done := make(chan error, 1)

	go func() {
		_, err := cli.Examine(ctx, conn, nil)
		done <- err
	}()

	require.Error(t, testkit.Receive(t, "the end of the examination with its context", done))
}

func TestDoctorRefusesWhatItCannotWorkWith(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.URL(t))
	for _, config := range []cli.ExamineConfig{{LongLock: -1}, {LongTransaction: -1}, {ManyPositions: -1}, {TableWait: -1}, {Schema: "pg_catalog"}} {
		_, err := cli.Examine(t.Context(), conn, &config)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	executeOn(t, conn, "begin")
	_, err := cli.Examine(t.Context(), conn, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}
