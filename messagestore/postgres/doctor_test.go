package postgres_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/migrations"
)

func examine(t *testing.T, db postgres.DB, config *postgres.DoctorConfig) []postgres.Finding {
	t.Helper()
	found, err := postgres.NewAdmin(db, nil).Doctor(t.Context(), config)
	require.NoError(t, err)
	return found
}

// finding returns the one finding whose text has all the words.
func finding(t *testing.T, found []postgres.Finding, words ...string) postgres.Finding {
	t.Helper()
	var all []postgres.Finding
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

func requireVerdict(t *testing.T, want postgres.Verdict, found []postgres.Finding, words ...string) {
	t.Helper()
	f := finding(t, found, words...)
	require.Equal(t, want, f.Verdict, f)
	if want == postgres.OK {
		require.Empty(t, f.Advice, f)
	} else {
		require.NotEmpty(t, f.Advice, f)
	}
}

func execute(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		_, err := conn.Exec(contextOf(t), statement)
		require.NoError(t, err, statement)
	}
}

// One server is spoilt in every way in which a server can be, one after the other.
func TestDoctorFindsWhatIsWrongWithAServer(t *testing.T) {
	t.Parallel()
	url := ownServer(t)
	conn := connect(t, url)

	healthy := examine(t, conn, nil)
	groups := map[string]int{}
	for _, f := range healthy {
		require.NotEqual(t, postgres.Fail, f.Verdict, f)
		require.NotEqual(t, postgres.Hidden, f.Verdict, f)
		groups[f.Group]++
	}
	require.Len(t, groups, 6)
	for _, setting := range []string{"fsync is on", "full_page_writes is on", "synchronous_commit is on", "server_encoding is UTF8", "client_encoding is UTF8", "in_hot_standby is off", "autovacuum is on"} {
		requireVerdict(t, postgres.OK, healthy, setting)
	}
	requireVerdict(t, postgres.OK, healthy, "PostgreSQL ")
	requireVerdict(t, postgres.OK, healthy, "connection goes straight to the server")
	requireVerdict(t, postgres.OK, healthy, "no category is locked")

	for _, c := range []struct {
		name        string
		damage, fix []string
		verdict     postgres.Verdict
		words       []string
	}{
		{
			"no autovacuum",
			[]string{"alter system set autovacuum = off", "select pg_reload_conf()"},
			[]string{"alter system reset autovacuum"},
			postgres.Fail,
			[]string{"autovacuum is off"},
		},
		{
			"no counts",
			[]string{"set track_counts = off"},
			[]string{"reset track_counts"},
			postgres.Fail,
			[]string{"track_counts is off"},
		},
		{
			"unsafe",
			[]string{"set synchronous_commit = off"},
			[]string{"reset synchronous_commit"},
			postgres.Fail,
			[]string{"synchronous_commit is off, and drivers refuse the server"},
		},
		{
			"unsafe, and meant",
			[]string{"set synchronous_commit = off", "set dibs.allow_unsafe_settings = on"},
			[]string{"reset synchronous_commit", "reset dibs.allow_unsafe_settings"},
			postgres.Warn,
			[]string{"synchronous_commit is off, and dibs.allow_unsafe_settings allows it"},
		},
		{
			"another encoding",
			[]string{"set client_encoding = latin1"},
			[]string{"reset client_encoding"},
			postgres.Fail,
			[]string{"client_encoding is LATIN1"},
		},
		{
			"content in the log",
			[]string{"set log_statement = 'mod'"},
			[]string{"reset log_statement"},
			postgres.Warn,
			[]string{"log_statement is mod"},
		},
		{
			"full pages, whole",
			[]string{"set wal_compression = off"},
			[]string{"reset wal_compression"},
			postgres.Warn,
			[]string{"wal_compression is off"},
		},
		{
			"little log",
			[]string{"alter system set max_wal_size = '512MB'", "select pg_reload_conf()"},
			[]string{"alter system reset max_wal_size"},
			postgres.Warn,
			[]string{"max_wal_size is 512MB"},
		},
		{
			"an owner who logs in",
			[]string{"alter role dibs_owner login"},
			[]string{"alter role dibs_owner nologin"},
			postgres.Fail,
			[]string{"dibs_owner may log in"},
		},
		{
			"a writer who is a superuser",
			[]string{"alter role dibs_writer superuser"},
			[]string{"alter role dibs_writer nosuperuser"},
			postgres.Fail,
			[]string{"dibs_writer may do anything"},
		},
		{
			"a service that owns",
			[]string{"create role service login in role dibs_owner"},
			[]string{"drop role service"},
			postgres.Warn,
			[]string{"dibs_owner: service can log in with its rights"},
		},
		{
			"a client without a limit",
			[]string{"create role team in role dibs_writer", "create role service login in role team"},
			[]string{"drop role service", "drop role team"},
			postgres.Warn,
			[]string{"service: idle_in_transaction_session_timeout is 0"},
		},
		{
			"a client with a limit",
			[]string{"create role service login in role dibs_writer", "alter role service set idle_in_transaction_session_timeout = '7s'"},
			[]string{"drop role service"},
			postgres.OK,
			[]string{"service: idle_in_transaction_session_timeout is 7s"},
		},
		{
			"a missing role",
			[]string{"alter role dibs_admin rename to somebody"},
			[]string{"alter role somebody rename to dibs_admin"},
			postgres.Warn,
			[]string{"dibs_admin does not exist"},
		},
		{
			"a table that a crash empties",
			[]string{"alter table dibs.fences set unlogged"},
			[]string{"alter table dibs.fences set logged"},
			postgres.Fail,
			[]string{"fences is unlogged"},
		},
		{
			"an index that is not valid",
			[]string{"update pg_index set indisvalid = false where indexrelid = 'dibs.messages_id'::regclass"},
			[]string{"update pg_index set indisvalid = true where indexrelid = 'dibs.messages_id'::regclass"},
			postgres.Fail,
			[]string{"messages_id is not valid"},
		},
		{
			"a sequence at its end",
			[]string{"select setval('dibs.messages_global_position_seq', 9223372036854775000)"},
			[]string{"select setval('dibs.messages_global_position_seq', 1, false)"},
			postgres.Fail,
			[]string{"807 global positions are left"},
		},
		{
			"a table that was not frozen for long",
			[]string{"update pg_class set relfrozenxid = (4294967296 - 1600000000)::text::xid where oid = 'dibs.messages'::regclass"},
			[]string{"update pg_class set relfrozenxid = (select datfrozenxid from pg_database where datname = current_database()) where oid = 'dibs.messages'::regclass"},
			postgres.Fail,
			[]string{"messages: the oldest transaction is 16000"},
		},
		{
			"a slot that nobody reads",
			[]string{"select pg_create_physical_replication_slot('forgotten', true)"},
			[]string{"select pg_drop_replication_slot('forgotten')"},
			postgres.Warn,
			[]string{"forgotten is not in use and keeps "},
		},
		{
			"a standby that is waited for and is not there",
			[]string{"alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()"},
			[]string{"set synchronous_commit = local", "alter system reset synchronous_standby_names", "reset synchronous_commit"},
			postgres.Fail,
			[]string{"no standby is connected; synchronous_standby_names is 'nobody'"},
		},
		{
			"a transaction that is only prepared",
			[]string{"begin", "prepare transaction 'forgotten'"},
			[]string{"rollback prepared 'forgotten'"},
			postgres.Warn,
			[]string{"'forgotten' of postgres was prepared "},
		},
		{
			"a prepared transaction that holds a category",
			[]string{"begin", "select dibs.lock_category('account')", "prepare transaction 'forgotten'"},
			[]string{"rollback prepared 'forgotten'"},
			postgres.Fail,
			[]string{"'forgotten' of postgres was prepared "},
		},
		{
			"the same, as a lock",
			[]string{"begin", "select dibs.lock_category('account')", "prepare transaction 'forgotten'"},
			[]string{"rollback prepared 'forgotten'"},
			postgres.Warn,
			[]string{"writes of the category with key ", "held by a prepared transaction"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			execute(t, conn, c.damage...)
			t.Cleanup(func() {
				execute(t, conn, append(c.fix, "select pg_reload_conf()")...)
			})
			require.Eventually(t, func() bool { // until a setting was read again
				for _, f := range examine(t, conn, &postgres.DoctorConfig{LongTransaction: 1}) {
					if hasAll(f.Says, c.words) {
						return true
					}
				}
				return false
			}, patience, tick)
			requireVerdict(t, c.verdict, examine(t, conn, &postgres.DoctorConfig{LongTransaction: 1}), c.words...)
		})
	}
}

func TestDoctorNamesWhoHoldsACategoryAndWhoWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	store := messagestore.New(postgres.New(pool, nil), nil)
	write(t, store, stream, messagestore.NoStream, opened())
	holder, waiter := connect(t, with(t, pgtest.URL(t), "application_name", "holder")), connect(t, pgtest.URL(t))
	held, category := fmt.Sprintf("by process %d (postgres, holder)", holder.PgConn().PID()), "writes of the category "+string(stream.Category())+" are held "
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	write(t, messagestore.New(postgres.New(tx, nil), nil), stream, 0, opened())

	requireVerdict(t, postgres.Warn, examine(t, pool, &postgres.DoctorConfig{LongLock: 1}), category, held, "idle in transaction: ")
	for _, f := range examine(t, pool, &postgres.DoctorConfig{LongLock: time.Hour}) {
		require.NotContains(t, f.Says, held)
	}

	done := make(chan error, 1)
	go func() {
		_, err := messagestore.New(postgres.New(waiter, nil), nil).Write(contextOf(t), stream, messagestore.AnyVersion, opened())
		done <- err
	}()
	waits := fmt.Sprintf("; process %d waits, for 00:", waiter.PgConn().PID())
	require.Eventually(t, func() bool {
		for _, f := range examine(t, pool, &postgres.DoctorConfig{LongLock: 1}) {
			if hasAll(f.Says, []string{category, held, " waits, for "}) {
				return true
			}
		}
		return false
	}, patience, tick)
	f := finding(t, examine(t, pool, &postgres.DoctorConfig{LongLock: 1}), category, held)
	require.Equal(t, postgres.Fail, f.Verdict)
	require.Contains(t, f.Says, waits)
	require.Contains(t, f.Advice, fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()))

	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-done)
	for _, f := range examine(t, pool, &postgres.DoctorConfig{LongLock: 1}) {
		require.NotContains(t, f.Says, held)
	}
}

func TestDoctorNamesWhoHoldsWhichLock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn, holder := connect(t, url), connect(t, url)
	for class, text := range map[int][2]string{
		1684628083: {"writes of the category with key 7 are held by ", "nobody else writes to the category meanwhile"},
		1684628082: {"removals of the category with key 7 are held by ", "nobody else removes from the category meanwhile"},
		1684628077: {"migrations are held by ", "nobody else migrates meanwhile"},
	} {
		execute(t, holder, "begin", fmt.Sprintf("select pg_advisory_xact_lock(%d, 7)", class))
		f := finding(t, examine(t, conn, &postgres.DoctorConfig{LongLock: 1}), text[0]+fmt.Sprintf("process %d", holder.PgConn().PID()))
		require.Equal(t, postgres.Warn, f.Verdict)
		require.Contains(t, f.Advice, text[1])
		execute(t, holder, "rollback")
	}
}

// That is when it is called, so it does not wait for the table itself.
func TestDoctorNamesWhoKeepsOthersFromATable(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	now := &postgres.DoctorConfig{LongLock: 1}
	requireVerdict(t, postgres.OK, examine(t, conn, now), "nobody waits for a table")

	holder := connect(t, with(t, url, "application_name", "holder"))
	execute(t, holder, "begin", "lock table dibs.messages in access exclusive mode")
	held := fmt.Sprintf("messages is held by process %d (postgres, holder), in a transaction for ", holder.PgConn().PID())
	found := examine(t, conn, now)
	require.Regexp(t, regexp.QuoteMeta(held)+`00:\d\d:\d\d, idle in transaction: lock table`, finding(t, found, held).Says)
	requireVerdict(t, postgres.Warn, found, held, ", idle in transaction: lock table dibs.messages")
	requireVerdict(t, postgres.Warn, found, "storage cannot be looked at: somebody has locked a table")

	waiter := connect(t, url)
	ended := make(chan error, 1)
	wait := func() {
		store := messagestore.New(postgres.New(waiter, nil), nil)
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
	awaitFinding(t, conn, now, held, fmt.Sprintf("; process %d waits, for 00:", waiter.PgConn().PID()))
	requireVerdict(t, postgres.Fail, examine(t, conn, now), held)
	requireVerdict(t, postgres.OK, examine(t, conn, &postgres.DoctorConfig{LongLock: time.Hour}), "1 wait for a table, none of them for long")
	execute(t, holder, "rollback")
	require.NoError(t, <-ended)

	// Who only reads holds up all who write, if somebody who would change the table is
	// in line between them.
	execute(t, holder, "begin", "select from dibs.messages")
	changer := connect(t, url)
	changed := make(chan error, 1)
	go func() {
		_, err := changer.Exec(contextOf(t), "begin; lock table dibs.messages in access exclusive mode; commit")
		changed <- err
	}()
	awaitFinding(t, conn, now, held, fmt.Sprintf("; process %d waits, ", changer.PgConn().PID()))
	go wait()
	awaitFinding(t, conn, now, held, "; 2 wait, the first for 00:", fmt.Sprint(waiter.PgConn().PID()), fmt.Sprint(changer.PgConn().PID()))
	f := finding(t, examine(t, conn, now), held)
	require.Contains(t, f.Advice, fmt.Sprintf("pg_terminate_backend(%d)", holder.PgConn().PID()))
	execute(t, holder, "rollback")
	require.NoError(t, <-changed)
	require.NoError(t, <-ended)
	requireVerdict(t, postgres.OK, examine(t, conn, now), "nobody waits for a table")
}

func awaitFinding(t *testing.T, db postgres.DB, config *postgres.DoctorConfig, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, f := range examine(t, db, config) {
			if hasAll(f.Says, words) {
				return true
			}
		}
		return false
	}, patience, tick, words)
}

func TestDoctorTellsWhatItsUserMayNotSee(t *testing.T) {
	t.Parallel()
	stream := storetest.Category(t).Stream("1")
	write(t, messagestore.New(postgres.New(pgtest.Pool(t), nil), nil), stream, messagestore.NoStream, opened())
	holder := connect(t, pgtest.URL(t))
	tx, err := holder.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(contextOf(t))) }()
	write(t, messagestore.New(postgres.New(tx, nil), nil), stream, 0, opened())
	held := fmt.Sprintf("held by process %d", holder.PgConn().PID())

	for _, role := range []string{"dibs_reader", "dibs_writer", "dibs_admin", "pg_monitor"} {
		pool := poolAs(t, role)
		found := examine(t, pool, &postgres.DoctorConfig{LongLock: 1})
		f := finding(t, found, held)
		if role == "pg_monitor" {
			requireVerdict(t, postgres.Hidden, found, "what consumers have written of their positions is not visible")
			require.Equal(t, postgres.Warn, f.Verdict)
			require.Contains(t, f.Says, "idle in transaction: ")
			require.NotContains(t, f.Says, string(stream.Category()), "it may not read")
			continue
		}
		require.Equal(t, postgres.Hidden, f.Verdict)
		require.Contains(t, f.Says, "the category "+string(stream.Category())+" ")
		require.Contains(t, f.Says, "which this user may not see")
		require.Contains(t, f.Advice, "grant pg_monitor")
		requireVerdict(t, postgres.Hidden, found, "sessions do is not visible to this user")
		requireVerdict(t, postgres.Hidden, found, "how many global positions are left is not visible")
	}
}

func TestDoctorFindsSessions(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Database(t)) // which is not migrated
	idle := connect(t, with(t, pool.Config().ConnString(), "application_name", "dibs"))
	requireVerdict(t, postgres.OK, examine(t, pool, nil), "none has been open for long")
	execute(t, idle, "begin", "select 'what it did last'")

	found := examine(t, pool, &postgres.DoctorConfig{LongTransaction: 1})

	requireVerdict(t, postgres.Warn, found, fmt.Sprintf("process %d (postgres, dibs) has been in a transaction for 00:", idle.PgConn().PID()), ", idle in transaction: select 'what it did last'")
	requireVerdict(t, postgres.Warn, found, "what calls itself 'dibs' is a superuser, postgres, in 1 session")
}

func TestDoctorFindsTablesThatVacuumHasToLookAt(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	conn := connect(t, url)
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	execute(t, conn,
		"alter table dibs.messages set (autovacuum_enabled = off)", "alter table dibs.fences set (autovacuum_enabled = off)",
		"insert into dibs.fences select n::text, 1 from generate_series(1, 15000) n", "delete from dibs.fences where fence = 1",
		"insert into dibs.messages (category, group_hash, stream_name, position, type, id) select 'account', 0, 'account-1', n, 'Opened', gen_random_uuid() from generate_series(0, 100000) n")
	observer := connect(t, url)
	require.Eventually(t, func() bool {
		for _, f := range examine(t, observer, nil) {
			if strings.HasPrefix(f.Says, "messages: last analyzed never, 100001 ") {
				return true
			}
		}
		return false
	}, patience, tick)

	found := examine(t, observer, nil)
	requireVerdict(t, postgres.Warn, found, "fences: 15000 of 15000 rows are dead")
	requireVerdict(t, postgres.Warn, found, "messages: last vacuumed never, 100001 rows since")
	requireVerdict(t, postgres.Warn, found, "messages: last analyzed never, 100001 rows since")
	requireVerdict(t, postgres.OK, found, "messages: ", " in the table, ", " in indexes, about ")
	requireVerdict(t, postgres.OK, found, "messages: the oldest transaction is ")
}

func TestDoctorFindsPositionsThatNobodyTrims(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.Database(t))
	require.NoError(t, migrations.Up(t.Context(), conn, nil))
	store := messagestore.New(postgres.New(conn, nil), nil)
	requireVerdict(t, postgres.OK, examine(t, conn, nil), "consumers keep 0 positions in 0 categories")
	for _, stream := range []messagestore.StreamName{"account:position-a+0+0", "account:position-b+0+0", "account:position-b+0+0", "wallet:position-a+0+0", "composition-a", "position-a"} {
		write(t, store, stream, messagestore.AnyVersion, opened())
	}

	requireVerdict(t, postgres.OK, examine(t, conn, &postgres.DoctorConfig{ManyPositions: 3}), "consumers keep 4 positions in 2 categories")
	found := examine(t, conn, &postgres.DoctorConfig{ManyPositions: 2})
	requireVerdict(t, postgres.Warn, found, "account:position has more than 2 messages")
	require.NotContains(t, fmt.Sprint(found), "wallet:position")
}

func TestDoctorLooksAtAStandbyAndItsPrimary(t *testing.T) {
	t.Parallel()
	primary := ownServer(t)
	standby := connect(t, pgtest.Standby(t, primary))

	requireVerdict(t, postgres.Fail, examine(t, standby, nil), "in_hot_standby is on")
	conn := connect(t, primary)
	requireVerdict(t, postgres.Warn, examine(t, conn, nil), "1 standby is connected, 0 waited for; synchronous_standby_names is ''")
	execute(t, conn, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
	require.Eventually(t, func() bool {
		for _, f := range examine(t, conn, nil) {
			if f.Name == "standbys" && f.Verdict == postgres.OK {
				return true
			}
		}
		return false
	}, patience, tick)
	requireVerdict(t, postgres.OK, examine(t, conn, nil), "1 standby is connected, 1 waited for; synchronous_standby_names is '*'")
	found, err := postgres.NewAdmin(standby, nil).Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, found.Violations)
}

func TestDoctorShowsStatementsAsTheyAreWhereBackslashesEscape(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // migrates
	holder, conn := connect(t, pgtest.URL(t)), connect(t, with(t, pgtest.URL(t), "standard_conforming_strings", "off"))
	execute(t, holder, "begin", "select 'sessions',\n\t'assess'")

	found := examine(t, conn, &postgres.DoctorConfig{LongTransaction: 1})

	require.Contains(t, finding(t, found, fmt.Sprintf("process %d (", holder.PgConn().PID())).Says, "select 'sessions', 'assess'")
}

func TestDoctorSeesAPooler(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	require.NoError(t, migrations.Up(t.Context(), connect(t, url), nil))
	pool := pgtest.Connect(t, pgtest.PgBouncer(t, url).URL)

	requireVerdict(t, postgres.OK, examine(t, pool, nil), "goes through a pooler")
	found, err := postgres.NewAdmin(pool, nil).Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, found.Violations)
}

func TestDoctorLooksAtTheSchemaItIsGiven(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	admin := postgres.NewAdmin(pool, &postgres.Config{Schema: schema})
	_, err := pool.Exec(t.Context(), "alter table "+schema+".fences set unlogged")
	require.NoError(t, err)

	found, err := admin.Doctor(t.Context(), nil)
	require.NoError(t, err)
	f := finding(t, found, "fences is unlogged")
	require.Contains(t, f.Advice, schema+`".`)
	for _, f := range examine(t, pool, nil) {
		require.NotContains(t, f.Says, "fences is unlogged")
	}
}

func TestDoctorAndVerifyRefuseWhatTheyCannotWorkWith(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(contextOf(t)) //nolint:errcheck // nothing was done in it

	_, err = postgres.NewAdmin(tx, nil).Doctor(t.Context(), nil)
	require.ErrorIs(t, err, messagestore.ErrInvalidConfig)
	_, err = postgres.NewAdmin(tx, nil).Verify(t.Context(), nil)
	require.ErrorIs(t, err, messagestore.ErrInvalidConfig)
	_, err = postgres.NewAdmin(pool, nil).Doctor(t.Context(), &postgres.DoctorConfig{LongLock: -1})
	require.ErrorIs(t, err, messagestore.ErrInvalidConfig)
	_, err = postgres.NewAdmin(pool, nil).Doctor(t.Context(), &postgres.DoctorConfig{LongTransaction: -1})
	require.ErrorIs(t, err, messagestore.ErrInvalidConfig)
	_, err = postgres.NewAdmin(pool, nil).Verify(t.Context(), &postgres.VerifyConfig{MaxViolations: 100_001})
	require.ErrorIs(t, err, messagestore.ErrInvalidLimit)
	_, err = postgres.NewAdmin(pool, nil).Verify(t.Context(), &postgres.VerifyConfig{Categories: []messagestore.Category{"account-1"}})
	require.ErrorIs(t, err, messagestore.ErrInvalidCategory)
	_, err = postgres.NewAdmin(pool, nil).Verify(t.Context(), &postgres.VerifyConfig{Categories: []messagestore.Category{storetest.Category(t)}})
	require.ErrorIs(t, err, messagestore.ErrNotFound, "a category without a message was not looked at")
	_, err = postgres.NewAdmin(pgtest.Connect(t, pgtest.Database(t)), nil).Verify(t.Context(), nil)
	require.ErrorIs(t, err, postgres.ErrNotMigrated)
	_, err = postgres.NewAdmin(poolAs(t, "dibs_reader"), nil).Verify(t.Context(), nil)
	requireDenied(t, err)
}
