package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

const override = "dibs.allow_unsafe_settings"

// with adds parameters to a URL.
func with(t *testing.T, where string, parameters ...string) string {
	t.Helper()
	u := testkit.Do(url.Parse(where))(t)
	query := u.Query()
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// ownDatabase returns the URL of a migrated database that no other test uses.
func ownDatabase(t *testing.T) string {
	t.Helper()
	return pgtest.Migrated(t)
}

// loginIn makes a user of the database, a member of role if there is one.
func loginIn(t *testing.T, url, role string) string {
	t.Helper()
	user := "test_" + strings.ToLower(rand.Text())
	admin := connect(t, url)
	exec(t, admin, "create role "+user+" login")
	if role != "" {
		exec(t, admin, fmt.Sprintf("grant %s to %s", role, user))
	}
	t.Cleanup(func() {
		// The commit waits for no standby, which a test may have told the server to have.
		testkit.Do(admin.Exec(contextOf(t), "set synchronous_commit = local; drop owned by "+user+"; drop role "+user))(t)
	})
	return user
}

// tryOpen opens a driver and closes it again.
func tryOpen(t *testing.T, url string) error {
	t.Helper()
	driver, err := postgres.Open(t.Context(), url, nil)
	if err != nil {
		return err
	}
	return driver.Close()
}

func exec(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		require.NoError(t, testkit.ErrorOf(conn.Exec(t.Context(), statement)), statement)
	}
}

// setOnServer changes a setting of the server, and returns once new sessions have it.
func setOnServer(t *testing.T, conn *pgx.Conn, name, value string) {
	t.Helper()
	exec(t, conn, fmt.Sprintf("alter system set %s = '%s'", name, value), "select pg_reload_conf()")
	testkit.AwaitEqual(t, "the setting "+name, value, func() (now string) {
		require.NoError(t, conn.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&now))
		return now
	})
	if name == "synchronous_standby_names" && value != "" {
		awaitWaits(t, conn)
	}
}

// awaitWaits returns when commits wait for a standby: they do not before the
// checkpointer has read the setting too.
func awaitWaits(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), admin.Config()))(t)
	defer conn.Close(t.Context())
	for done := false; !done; {
		committed := testkit.Go(func() error {
			return testkit.ErrorOf(conn.Exec(t.Context(), "select pg_logical_emit_message(true, 'dibs', '')"))
		})
		testkit.AwaitTrue(t, "a commit that ends or waits for a standby", func() bool {
			if len(committed) > 0 {
				return true
			}
			err := admin.QueryRow(t.Context(), "select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity where wait_event = 'SyncRep' and pid = $1",
				conn.PgConn().PID()).Scan(&done)
			require.NoError(t, err)
			return done
		})
		require.NoError(t, testkit.Receive(t, "the end of the commit", committed))
	}
}

func requireUnsafe(t *testing.T, err error, settings ...postgres.UnsafeSetting) {
	t.Helper()
	require.ErrorIs(t, err, postgres.ErrUnsafeSettings)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	unsafe := testkit.As[*postgres.UnsafeSettingsError](t, err)
	require.Equal(t, settings, unsafe.Settings)
	for _, s := range settings {
		require.ErrorContains(t, err, s.Name+" is "+s.Value+" and has to be "+s.Need)
	}
}

func TestServerThatMayLoseMessagesIsRefused(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	admin := connect(t, url)
	require.NoError(t, tryOpen(t, url))

	for _, name := range []string{"fsync", "full_page_writes"} {
		setOnServer(t, admin, name, "off")
		err := tryOpen(t, url)
		requireUnsafe(t, err, postgres.UnsafeSetting{Name: name, Value: "off", Need: "on"})
		require.ErrorContains(t, err, override)
		require.NoError(t, tryOpen(t, with(t, url, override, "on")))
		setOnServer(t, admin, name, "on")
		require.NoError(t, tryOpen(t, url))
	}

	lazy := postgres.UnsafeSetting{Name: "synchronous_commit", Value: "off", Need: "on, or at least local"}
	requireUnsafe(t, tryOpen(t, with(t, url, "synchronous_commit", "off")), lazy)
	for _, value := range []string{"local", "remote_write", "remote_apply", "on"} {
		require.NoError(t, tryOpen(t, with(t, url, "synchronous_commit", value)))
	}
	user := loginIn(t, url, "")
	exec(t, admin, "alter role "+user+" superuser", "alter role "+user+" set synchronous_commit = off")
	requireUnsafe(t, tryOpen(t, with(t, url, "user", user)), lazy)

	// One error names everything that has to be mended.
	setOnServer(t, admin, "fsync", "off")
	requireUnsafe(t, tryOpen(t, with(t, url, "synchronous_commit", "off")), postgres.UnsafeSetting{Name: "fsync", Value: "off", Need: "on"}, lazy)
}

// The server would not send the warning that tells of a wait that was cancelled.
func TestServerThatWouldNotTellOfACancelledWaitIsRefused(t *testing.T) {
	t.Parallel()
	url := ownServer.Alone(t)
	admin := connect(t, url)
	user := loginIn(t, url, "")
	exec(t, admin, "alter role "+user+" superuser", "alter role "+user+" set client_min_messages = error")
	silent := []string{with(t, url, "client_min_messages", "error"), with(t, url, "user", user)}
	for _, url := range silent {
		require.NoError(t, tryOpen(t, url), "no commit waits")
	}
	setOnServer(t, admin, "synchronous_standby_names", "nobody")

	for _, url := range silent {
		err := tryOpen(t, url)
		requireUnsafe(t, err, postgres.UnsafeSetting{Name: "client_min_messages", Value: "error", Need: "warning, or lower"})
		require.ErrorContains(t, err, override)
		require.NoError(t, tryOpen(t, with(t, url, override, "on")))
		require.NoError(t, tryOpen(t, with(t, url, "synchronous_commit", "local")))
		_, err = testkit.Must(postgres.New(pgtest.Connect(t, url), nil)).Version(t.Context(), storetest.Category(t).Stream("1"))
		require.NoError(t, err, "a connection that is not watched hears of no warning")
	}
	for _, level := range []string{"warning", "notice", "log", "debug1"} {
		require.NoError(t, tryOpen(t, with(t, url, "client_min_messages", level)), level)
	}
}

// The override is a setting like any other: wherever PostgreSQL takes one.
func TestOverrideTakesTheServerAsItIs(t *testing.T) {
	t.Parallel()
	testkit.NeedsLong(t) // TestServerThatMayLoseMessagesIsRefused overrides in one way
	url := ownServer.Alone(t)
	admin := connect(t, url)
	user := loginIn(t, url, "")
	exec(t, admin, "alter role "+user+" superuser")
	lazy := with(t, url, "synchronous_commit", "off")
	require.ErrorIs(t, tryOpen(t, lazy), postgres.ErrUnsafeSettings)
	for _, value := range []string{"off", "false", "no", "0", "", "perhaps"} {
		require.ErrorIs(t, tryOpen(t, with(t, lazy, override, value)), postgres.ErrUnsafeSettings, value)
	}
	for _, value := range []string{"on", "true", "yes", "1", "ON"} {
		require.NoError(t, tryOpen(t, with(t, lazy, override, value)), value)
	}
	for set, reset := range map[string]string{
		"alter role " + user + " set dibs.allow_unsafe_settings = on": "alter role " + user + " reset dibs.allow_unsafe_settings",
		"alter database postgres set dibs.allow_unsafe_settings = on": "alter database postgres reset dibs.allow_unsafe_settings",
	} {
		exec(t, admin, set)
		require.NoError(t, tryOpen(t, with(t, lazy, "user", user)), set)
		exec(t, admin, reset)
		require.ErrorIs(t, tryOpen(t, with(t, lazy, "user", user)), postgres.ErrUnsafeSettings, reset)
	}

	// Somebody may have forgotten that it is there.
	var log bytes.Buffer
	driver := testkit.Do(postgres.Open(t.Context(), with(t, lazy, override, "on"), &postgres.Config{Logger: logger.Zerolog(zerolog.New(&log))}))(t)
	require.NoError(t, driver.Close())
	require.Contains(t, log.String(), "synchronous_commit is off")
}

func TestEncodingThatCannotHoldEveryMessageIsRefused(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for _, name := range []string{"UTF8", "utf-8", "UNICODE", "unicode"} {
		require.NoError(t, tryOpen(t, with(t, pgtest.URL(t), "client_encoding", name)), name)
	}
	requireUnsafe(t, tryOpen(t, with(t, pgtest.URL(t), override, "on", "client_encoding", "LATIN1")), postgres.UnsafeSetting{Name: "client_encoding", Value: "LATIN1", Need: "UTF8"})

	for _, encoding := range []string{"SQL_ASCII", "LATIN1"} {
		// No override changes the encoding of messages.
		err := tryOpen(t, with(t, pgtest.DatabaseIn(t, encoding), override, "on"))
		unsafe := testkit.As[*postgres.UnsafeSettingsError](t, err)
		require.Equal(t, postgres.UnsafeSetting{Name: "server_encoding", Value: encoding, Need: "UTF8"}, unsafe.Settings[0])
		require.NotContains(t, err.Error(), override)
	}
}

func TestSchemaThatDoesNotFitIsRefused(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.SchemaInShared(t)
	config := &postgres.Config{Schema: schema}
	stream := storetest.Category(t).Stream("1")
	call := func(schema string) error {
		// A driver and a connection of its own, that has been told nothing.
		_, err := testkit.Must(postgres.New(connect(t, pgtest.URL(t)), &postgres.Config{Schema: schema})).Version(t.Context(), stream)
		return err
	}
	made := pgtest.Value[int](t, pool, "select version from "+schema+".schema_version()")
	require.NoError(t, call(schema))

	for _, test := range []struct {
		version, serves int
		err             error
		says            string
	}{
		{made - 1, made - 2, postgres.ErrNotMigrated, fmt.Sprintf("schema %s has version %d, and this release needs %d: ", schema, made-1, made)},
		{made, made, nil, ""},
		{made + 4, made, nil, ""},
		{made + 4, made - 1, nil, ""},
		{made + 4, made + 2, postgres.ErrSchemaTooNew, fmt.Sprintf("has version %d, which works from version %d on, and this release is made for %d: ", made+4, made+2, made)},
	} {
		testkit.Do(pool.Exec(t.Context(), fmt.Sprintf("create or replace function %s.schema_version(out version integer, out serves integer) language sql as $$ select %d, %d $$", schema, test.version, test.serves)))(t)
		err := call(schema)
		if test.err == nil {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, test.err)
		require.ErrorContains(t, err, test.says)
		versions := testkit.As[*pglink.SchemaVersionError](t, err)
		require.Equal(t, &pglink.SchemaVersionError{Schema: schema, Version: test.version, Serves: test.serves, Need: made}, versions)
		require.ErrorIs(t, err, calling.ErrLasting)
		for _, other := range []error{postgres.ErrNotMigrated, postgres.ErrSchemaTooNew} {
			require.Equal(t, errors.Is(test.err, other), errors.Is(err, other))
		}
	}

	require.ErrorIs(t, call("nobody_made_this"), postgres.ErrNotMigrated)
	testkit.Do(pool.Exec(t.Context(), "drop function "+schema+".schema_version()"))(t)
	err := call(schema)
	require.ErrorIs(t, err, postgres.ErrNotMigrated)
	require.ErrorContains(t, err, "dibs migrate up")

	// Open says it at once.
	require.ErrorIs(t, testkit.ErrorOf(postgres.Open(t.Context(), pgtest.URL(t), config)), postgres.ErrNotMigrated)
}

func TestRefusalLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	for _, refused := range []struct {
		url    string
		config *postgres.Config
		err    error
	}{
		{with(t, pgtest.URL(t), "client_encoding", "LATIN1"), nil, postgres.ErrUnsafeSettings},
		{with(t, pgtest.URL(t), "synchronous_commit", "off", override, "off"), nil, postgres.ErrUnsafeSettings},
		{pgtest.URL(t), &postgres.Config{Schema: "nobody_made_this"}, postgres.ErrNotMigrated},
	} {
		tx := testkit.Do(connect(t, refused.url).Begin(t.Context()))(t)
		for range 2 { // it is asked again, and says the same
			require.ErrorIs(t, testkit.ErrorOf(testkit.Must(postgres.New(tx, refused.config)).Append(t.Context(), appendOne(stream, messagestore.NoStream))), refused.err)
		}
		testkit.Do(tx.Exec(t.Context(), "select 1"))(t)
		require.NoError(t, tx.Commit(t.Context()))
	}
}

// A user with single grants, and not of all functions.
func TestAMissingRightLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	admin := connect(t, url)
	stream := storetest.Category(t).Stream("1")
	for name, rights := range map[string]struct{ grant, says string }{
		"no right to the schema":   {"grant execute on function dibs.schema_version() to %s", "permission denied for schema dibs"},
		"no right to the function": {"grant usage on schema dibs to %s", "permission denied for function schema_version"},
	} {
		user := loginIn(t, url, "")
		exec(t, admin, fmt.Sprintf(rights.grant, user))
		conn := connect(t, with(t, url, "user", user))
		_, outside := testkit.Must(postgres.New(conn, nil)).Version(t.Context(), stream)
		requireDenied(t, outside, name)
		require.ErrorContains(t, outside, rights.says, name)

		tx := testkit.Do(conn.Begin(t.Context()))(t)
		_, inside := testkit.Must(postgres.New(tx, nil)).Version(t.Context(), stream)
		require.Equal(t, outside, inside, name)

		require.NoError(t, testkit.ErrorOf(tx.Exec(t.Context(), "select 1")), name)
		require.NoError(t, tx.Commit(t.Context()), name)
	}
}

// A spy counts the statements sent over connections, and the checks among them.
type spy struct {
	sent, checks atomic.Int64
}

func (s *spy) listen(config *pgx.ConnConfig) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return tapped{conn, s}, err
	}
}

type tapped struct {
	net.Conn

	spy *spy
}

func (c tapped) Write(p []byte) (int, error) {
	c.spy.sent.Add(1)
	if bytes.Contains(p, []byte("'fsync'")) {
		c.spy.checks.Add(1)
	}
	return c.Conn.Write(p)
}

func TestServerIsAskedOnceForEachConnection(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	var asked spy
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { asked.listen(c.ConnConfig) })
	stream := storetest.Category(t).Stream("1")

	for range 3 {
		testkit.Do(testkit.Must(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), stream, messagestore.AnyVersion, opened())
			return nil
		}))
	}
	require.Equal(t, int64(1), asked.checks.Load())

	pool.Reset() // and so another connection
	testkit.Do(testkit.Must(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
	require.Equal(t, int64(2), asked.checks.Load())
}

// The part of the check that a transaction leaves out is made after it.
func TestServerIsAskedOnceMoreAfterTheTransactionThatAConnectionWasFirstUsedIn(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	var asked spy
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { asked.listen(c.ConnConfig) })
	stream := storetest.Category(t).Stream("1")

	for _, checks := range []int64{1, 2, 2} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			for range 2 {
				write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), stream, messagestore.AnyVersion, opened())
			}
			return nil
		}))
		require.Equal(t, checks, asked.checks.Load())
		testkit.Do(testkit.Must(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
		require.Equal(t, int64(2), asked.checks.Load())
	}
}

// That nobody may ask for the timeline is an answer.
func TestServerThatDoesNotTellItsTimelineIsAskedOnce(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	exec(t, connect(t, url), "revoke execute on function pg_catalog.pg_control_system() from public")
	config := testkit.Do(pgx.ParseConfig(with(t, url, "user", loginIn(t, url, "dibs_writer"))))(t)
	var asked spy
	asked.listen(config)
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(contextOf(t))
	driver := testkit.Must(postgres.New(conn, nil))
	require.Regexp(t, "^//0", testkit.Do(driver.Epoch(t.Context()))(t))
	before := asked.checks.Load()

	for range 3 {
		testkit.Do(driver.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
	}

	require.Equal(t, int64(1), before)
	require.Equal(t, before, asked.checks.Load())
}

func TestServerIsAskedInOneRoundTrip(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	config := testkit.Do(pgx.ParseConfig(pgtest.URL(t)))(t)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // each statement is one round trip
	var asked spy
	asked.listen(config)
	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(contextOf(t))
	driver, stream := testkit.Must(postgres.New(conn, nil)), storetest.Category(t).Stream("1")

	var trips []int64
	for range 2 {
		before := asked.sent.Load()
		testkit.Do(driver.Version(t.Context(), stream))(t)
		trips = append(trips, asked.sent.Load()-before)
	}

	require.Equal(t, []int64{2, 1}, trips)
}

// If a standby refuses a write, the server may be another one than was checked.
func TestServerThatRefusesToWriteIsAskedAgain(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	var asked spy
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) {
		asked.listen(c.ConnConfig)
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	driver := testkit.Must(postgres.New(pool, nil))
	stream := storetest.Category(t).Stream("1")

	_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))

	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "25006", refused.Code)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Equal(t, int64(1), asked.checks.Load())
	require.NoError(t, testkit.ErrorOf(driver.Version(t.Context(), stream)), "a session that only reads is good for reading")
	require.Equal(t, int64(2), asked.checks.Load())
}

func TestWritesOfAGroupToARefusedServerAreRefused(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1" })
	driver := testkit.Must(postgres.New(pool, nil))
	category := storetest.Category(t)
	only := testkit.Do(pool.Acquire(t.Context()))(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = driver.Append(t.Context(), record(category.Stream(fmt.Sprint(i)))) })
	}
	// One has gone ahead and waits for the connection, as do those behind it.
	testkit.Await(t, "one write that is under way, and the others behind it", func() (bool, any) {
		return driver.Busy(category) && driver.Waiting() == len(errs)-1, driver.Waiting()
	})

	only.Release()
	wg.Wait()

	for _, err := range errs {
		requireUnsafe(t, err, postgres.UnsafeSetting{Name: "client_encoding", Value: "LATIN1", Need: "UTF8"})
	}
}

func TestConsumerStopsAtAServerThatMayLoseMessages(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, with(t, pgtest.URL(t), "synchronous_commit", "off", override, "off")), nil)), nil))
	done := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
	c := testkit.Must(consumer.New(store, storetest.Category(t), "test", done, nil))

	require.ErrorIs(t, c.Run(t.Context()), postgres.ErrUnsafeSettings)
}

// A consumer waits for a standby until it is promoted.
func TestStandbyIsRefusedUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	primary := ownServer.Together(t)
	category := storetest.Category(t)
	stream := category.Stream("1")
	write(t, testkit.Must(messagestore.New(open(t, primary), nil)), stream, messagestore.NoStream, opened())
	url := pgtest.Standby(t, primary)
	recovering := postgres.UnsafeSetting{Name: "in_hot_standby", Value: "on", Need: "off"}

	err := tryOpen(t, url)
	requireUnsafe(t, err, recovering)
	require.NotErrorIs(t, err, calling.ErrLasting, "it is promoted, or the next connection reaches the primary")

	pool := pgtest.Connect(t, url)
	driver := testkit.Must(postgres.New(pool, nil))
	requireUnsafe(t, testkit.ErrorOf(driver.Version(t.Context(), stream)), recovering)

	// The override is for readers.
	reader := testkit.Must(messagestore.New(open(t, with(t, url, override, "on")), nil))
	require.Equal(t, messagestore.Version(0), testkit.Do(reader.Version(t.Context(), stream))(t))
	_, err = reader.Write(t.Context(), stream, 0, opened())
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	refused := testkit.As[*pgconn.PgError](t, err)
	require.Equal(t, "25006", refused.Code)

	handled := make(chan *messagestore.Message, 1)
	c := testkit.Must(consumer.New(testkit.Must(messagestore.New(driver, nil)), category, "test", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		handled <- m
		return nil
	}), nil))
	ctx, stop := context.WithCancel(t.Context())
	ran := testkit.Go(func() error { return c.Run(ctx) })
	promote(t, url)
	require.Equal(t, stream, testkit.Receive(t, "a message", handled).Stream, "it goes on by itself")
	write(t, testkit.Must(messagestore.New(driver, nil)), stream, 0, opened())
	stop()
	require.NoError(t, testkit.Receive(t, "the end of the consumer", ran))
}

func storeOver(db postgres.DB) *messagestore.Store {
	return testkit.Must(messagestore.New(testkit.Must(postgres.New(db, nil)), nil))
}

func TestCheckNamesTheMissingRight(t *testing.T) {
	t.Parallel()
	writer := storeOver(pgtest.PoolAs(t, "dibs_writer"))
	require.NoError(t, writer.Check(t.Context()))
	require.NoError(t, writer.CheckReading(t.Context()))

	reader := storeOver(pgtest.PoolAs(t, "dibs_reader"))
	require.NoError(t, reader.CheckReading(t.Context()))
	err := reader.Check(t.Context())
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "check the store: not permitted: ERROR: permission denied for function append (SQLSTATE 42501): grant dibs_writer to the user of this connection")

	none := storeOver(pgtest.PoolAs(t, "message_store"))
	err = none.CheckReading(t.Context())
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_reader to read, dibs_writer to write, dibs_worker to work on queues, or dibs_admin to trim, delete and verify, to the user of this connection")
}

// A connection that was good before is checked again.
func TestCheckSeesWhatHasChangedSinceTheConnectionWasMade(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.SchemaInShared(t)
	one, _ := pgtest.PoolOfOne(t, nil)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(one, &postgres.Config{Schema: schema})), nil))
	require.NoError(t, store.Check(t.Context()))

	testkit.Do(one.Exec(t.Context(), "set default_transaction_read_only = on"))(t)
	require.NoError(t, store.CheckReading(t.Context()))
	err := store.Check(t.Context())
	require.ErrorIs(t, err, postgres.ErrUnsafeSettings)
	require.ErrorContains(t, err, "transaction_read_only is on and has to be off")
	testkit.Do(one.Exec(t.Context(), "reset default_transaction_read_only"))(t)

	testkit.Do(one.Exec(t.Context(), "set client_encoding = 'LATIN1'"))(t)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrUnsafeSettings)
	testkit.Do(one.Exec(t.Context(), "reset client_encoding"))(t)
	require.NoError(t, store.Check(t.Context()))

	testkit.Do(pool.Exec(t.Context(), "drop schema "+schema+" cascade"))(t)
	require.ErrorIs(t, store.Check(t.Context()), postgres.ErrNotMigrated)
	require.ErrorIs(t, store.CheckReading(t.Context()), postgres.ErrNotMigrated)
}

func TestCheckInATransactionLeavesItUsable(t *testing.T) {
	t.Parallel()
	tx := testkit.Do(pgtest.PoolAs(t, "dibs_reader").Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	store := storeOver(tx)
	require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrNotPermitted)
	testkit.Do(store.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
}

func TestClosedHandleIsRecognised(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	pgtest.Pool(t)
	stores := map[string]*messagestore.Store{}

	pool := testkit.Do(pgxpool.New(t.Context(), url))(t)
	stores["pool"] = storeOver(pool)
	require.NoError(t, stores["pool"].Check(t.Context()))
	pool.Close()

	conn := testkit.Do(pgx.Connect(t.Context(), url))(t)
	stores["connection"] = storeOver(conn)
	require.NoError(t, conn.Close(t.Context()))

	other := testkit.Do(pgx.Connect(t.Context(), url))(t)
	defer other.Close(context.WithoutCancel(t.Context()))
	tx := testkit.Do(other.Begin(t.Context()))(t)
	stores["transaction"] = storeOver(tx)
	require.NoError(t, tx.Commit(t.Context()))

	db := testkit.Do(sql.Open("pgx", url))(t)
	stores["sql.DB"] = testkit.Must(messagestore.New(testkit.Must(postgres.NewSQL(db, nil)), nil))
	require.NoError(t, db.Close())

	ours := testkit.Do(postgres.Open(t.Context(), url, nil))(t)
	stores["opened"] = testkit.Must(messagestore.New(ours, nil))
	require.NoError(t, stores["opened"].Close())

	for name, store := range stores {
		stream := storetest.Category(t).Stream("1")
		_, err := store.Write(t.Context(), stream, messagestore.NoStream, opened())
		require.ErrorIs(t, err, messagestore.ErrClosed, name)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, name)
		require.ErrorIs(t, testkit.ErrorOf(store.Last(t.Context(), stream)), messagestore.ErrClosed, name)
		require.ErrorIs(t, store.Check(t.Context()), messagestore.ErrClosed, name)
	}
}

// The write that everybody makes first: with the pool's store, within a transaction of one's own.
func TestWriteThatIsHeldNamesTheCategoryAndTheLikelyHolder(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	pool := pgtest.Connect(t, url)
	testkit.Do(pool.Exec(t.Context(), "alter function dibs.wait_for_category set lock_timeout = '50ms'; alter function dibs.append set lock_timeout = '50ms'"))(t)
	category := storetest.Category(t)
	stream := category.Stream("1")
	tx := testkit.Do(pool.Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	write(t, storeOver(tx), stream, messagestore.NoStream, opened())

	_, err := storeOver(pool).Write(t.Context(), category.Stream("2"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "another transaction held the writes of category "+string(category)+" for too long")
	require.ErrorContains(t, err, "nothing was written; if it is your own, write with a store over it (postgres.New(tx, nil)); else dibs doctor names it")

	held := storeOver(connect(t, url))
	_, err = held.WriteStreams(t.Context(), messagestore.To(category.Stream("3"), messagestore.NoStream, opened()), messagestore.To("other-1", messagestore.AnyVersion, opened()))
	require.ErrorContains(t, err, "another transaction held the writes of category ")
	require.ErrorContains(t, err, "nothing was written")
}

func TestErrorsOfTheServerSayWhatTheyMean(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	one, _ := pgtest.PoolOfOne(t, nil)
	store := storeOver(one)
	require.NoError(t, store.Check(t.Context()))
	testkit.Do(one.Exec(t.Context(), "set default_transaction_read_only = on"))(t)
	_, err := store.Write(t.Context(), storetest.Category(t).Stream("1"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "(SQLSTATE 25006): the server or this transaction is read-only: it is a standby, or default_transaction_read_only is on for this user or database")
	testkit.Do(one.Exec(t.Context(), "reset default_transaction_read_only"))(t)

	category := storetest.Category(t)
	tx := testkit.Do(pgtest.Pool(t).Begin(t.Context()))(t)
	defer func() { require.NoError(t, tx.Rollback(context.WithoutCancel(t.Context()))) }()
	write(t, storeOver(tx), category.Stream("1"), messagestore.NoStream, opened())
	testkit.Do(one.Exec(t.Context(), "set statement_timeout = 50"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = store.Write(ctx, category.Stream("2"), messagestore.NoStream, opened())
	require.ErrorContains(t, err, "(SQLSTATE 57014): the server cancelled it and rolled it back, for the statement_timeout of this user or database")
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}

// A consumer returns an error that a retry cannot mend.
func TestAConsumerReturnsWhatNoRetryMends(t *testing.T) {
	t.Parallel()
	closed := func(t *testing.T) *pgxpool.Pool {
		t.Helper()
		return testkit.Do(pgxpool.New(t.Context(), pgtest.URL(t)))(t)
	}
	run := func(pool *pgxpool.Pool) <-chan error {
		ended := make(chan error, 1)
		done := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
		c := testkit.Must(consumer.New(testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), storetest.Category(t), "test", done, &consumer.Config{Logger: logger.Silent()}))
		go func() { ended <- c.Run(t.Context()) }()
		return ended
	}
	pgtest.Pool(t) // which is migrated

	t.Run("NoRight", func(t *testing.T) {
		t.Parallel()
		denied, is := errors.AsType[*pgconn.PgError](testkit.Receive(t, "the consumer's end", run(pgtest.PoolAs(t, "dibs_reader"))))
		require.True(t, is)
		require.Equal(t, "42501", denied.Code)
	})
	t.Run("ClosedBefore", func(t *testing.T) {
		t.Parallel()
		pool := closed(t)
		pool.Close()
		require.ErrorContains(t, testkit.Receive(t, "the consumer's end", run(pool)), "closed pool")
	})
	t.Run("ClosedMeanwhile", func(t *testing.T) {
		t.Parallel()
		pool := closed(t)
		ended := run(pool)
		testkit.Await(t, "connections that the consumer acquires", func() (bool, any) {
			acquired := pool.Stat().AcquireCount()
			return acquired > 3, acquired
		})
		pool.Close()
		require.ErrorContains(t, testkit.Receive(t, "the consumer's end", ended), "closed pool")
	})
	t.Run("NoSuchDatabase", func(t *testing.T) {
		t.Parallel()
		config := testkit.Do(pgxpool.ParseConfig(pgtest.URL(t)))(t)
		config.ConnConfig.Database = "no_such_database"
		pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
		defer pool.Close()
		require.ErrorContains(t, testkit.Receive(t, "the consumer's end", run(pool)), "no_such_database")
	})
}
