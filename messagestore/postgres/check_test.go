package postgres_test

import (
	"bytes"
	"context"
	"crypto/rand"
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
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/failure"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

const override = "dibs.allow_unsafe_settings"

// with adds parameters to a URL.
func with(t *testing.T, where string, parameters ...string) string {
	t.Helper()
	u := must.Do(url.Parse(where))(t)
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
		must.Do(admin.Exec(contextOf(t), "set synchronous_commit = local; drop owned by "+user+"; drop role "+user))(t)
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
		require.NoError(t, must.ErrorOf(conn.Exec(t.Context(), statement)), statement)
	}
}

// setOnServer changes a setting of the server, and returns once new sessions have it.
func setOnServer(t *testing.T, conn *pgx.Conn, name, value string) {
	t.Helper()
	exec(t, conn, fmt.Sprintf("alter system set %s = '%s'", name, value), "select pg_reload_conf()")
	await.Equal(t, "the setting "+name, value, func() (now string) {
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
	conn := must.Do(pgx.ConnectConfig(t.Context(), admin.Config()))(t)
	defer conn.Close(t.Context())
	for done := false; !done; {
		committed := await.Go(func() error {
			return must.ErrorOf(conn.Exec(t.Context(), "select pg_logical_emit_message(true, 'dibs', '')"))
		})
		await.True(t, "a commit that ends or waits for a standby", func() bool {
			if len(committed) > 0 {
				return true
			}
			err := admin.QueryRow(t.Context(), "select coalesce(bool_or(pg_cancel_backend(pid)), false) from pg_stat_activity where wait_event = 'SyncRep' and pid = $1",
				conn.PgConn().PID()).Scan(&done)
			require.NoError(t, err)
			return done
		})
		require.NoError(t, await.Receive(t, "the end of the commit", committed))
	}
}

func requireUnsafe(t *testing.T, err error, settings ...postgres.UnsafeSetting) {
	t.Helper()
	require.ErrorIs(t, err, postgres.ErrUnsafeSettings)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	unsafe := must.As[*postgres.UnsafeSettingsError](t, err)
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

	// All there is to mend is said at once.
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
		_, err = must.New(postgres.New(pgtest.Connect(t, url), nil)).Version(t.Context(), storetest.Category(t).Stream("1"))
		require.NoError(t, err, "a connection that is not watched hears of no warning")
	}
	for _, level := range []string{"warning", "notice", "log", "debug1"} {
		require.NoError(t, tryOpen(t, with(t, url, "client_min_messages", level)), level)
	}
}

// The override is a setting like any other: wherever PostgreSQL takes one.
func TestOverrideTakesTheServerAsItIs(t *testing.T) {
	t.Parallel()
	tier.NeedsLong(t) // TestServerThatMayLoseMessagesIsRefused overrides in one way
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
	driver := must.Do(postgres.Open(t.Context(), with(t, lazy, override, "on"), &postgres.Config{Logger: logger.Zerolog(zerolog.New(&log))}))(t)
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
		unsafe := must.As[*postgres.UnsafeSettingsError](t, err)
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
		_, err := must.New(postgres.New(connect(t, pgtest.URL(t)), &postgres.Config{Schema: schema})).Version(t.Context(), stream)
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
		must.Do(pool.Exec(t.Context(), fmt.Sprintf("create or replace function %s.schema_version(out version integer, out serves integer) language sql as $$ select %d, %d $$", schema, test.version, test.serves)))(t)
		err := call(schema)
		if test.err == nil {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, test.err)
		require.ErrorContains(t, err, test.says)
		versions := must.As[*pglink.SchemaVersionError](t, err)
		require.Equal(t, &pglink.SchemaVersionError{Schema: schema, Version: test.version, Serves: test.serves, Need: made}, versions)
		require.ErrorIs(t, err, failure.ErrLasting)
		for _, other := range []error{postgres.ErrNotMigrated, postgres.ErrSchemaTooNew} {
			require.Equal(t, errors.Is(test.err, other), errors.Is(err, other))
		}
	}

	require.ErrorIs(t, call("nobody_made_this"), postgres.ErrNotMigrated)
	must.Do(pool.Exec(t.Context(), "drop function "+schema+".schema_version()"))(t)
	err := call(schema)
	require.ErrorIs(t, err, postgres.ErrNotMigrated)
	require.ErrorContains(t, err, "dibs migrate up")

	// Open says it at once.
	require.ErrorIs(t, must.ErrorOf(postgres.Open(t.Context(), pgtest.URL(t), config)), postgres.ErrNotMigrated)
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
		tx := must.Do(connect(t, refused.url).Begin(t.Context()))(t)
		for range 2 { // it is asked again, and says the same
			require.ErrorIs(t, must.ErrorOf(must.New(postgres.New(tx, refused.config)).Append(t.Context(), appendOne(stream, messagestore.NoStream))), refused.err)
		}
		must.Do(tx.Exec(t.Context(), "select 1"))(t)
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
		_, outside := must.New(postgres.New(conn, nil)).Version(t.Context(), stream)
		requireDenied(t, outside, name)
		require.ErrorContains(t, outside, rights.says, name)

		tx := must.Do(conn.Begin(t.Context()))(t)
		_, inside := must.New(postgres.New(tx, nil)).Version(t.Context(), stream)
		require.Equal(t, outside, inside, name)

		require.NoError(t, must.ErrorOf(tx.Exec(t.Context(), "select 1")), name)
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
		must.Do(must.New(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			write(t, must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)), stream, messagestore.AnyVersion, opened())
			return nil
		}))
	}
	require.Equal(t, int64(1), asked.checks.Load())

	pool.Reset() // and so another connection
	must.Do(must.New(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
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
				write(t, must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)), stream, messagestore.AnyVersion, opened())
			}
			return nil
		}))
		require.Equal(t, checks, asked.checks.Load())
		must.Do(must.New(postgres.New(pool, nil)).Version(t.Context(), stream))(t)
		require.Equal(t, int64(2), asked.checks.Load())
	}
}

// That nobody may ask for the timeline is an answer.
func TestServerThatDoesNotTellItsTimelineIsAskedOnce(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	exec(t, connect(t, url), "revoke execute on function pg_catalog.pg_control_system() from public")
	config := must.Do(pgx.ParseConfig(with(t, url, "user", loginIn(t, url, "dibs_writer"))))(t)
	var asked spy
	asked.listen(config)
	conn := must.Do(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(contextOf(t))
	driver := must.New(postgres.New(conn, nil))
	require.Regexp(t, "^//0", must.Do(driver.Epoch(t.Context()))(t))
	before := asked.checks.Load()

	for range 3 {
		must.Do(driver.Version(t.Context(), storetest.Category(t).Stream("1")))(t)
	}

	require.Equal(t, int64(1), before)
	require.Equal(t, before, asked.checks.Load())
}

func TestServerIsAskedInOneRoundTrip(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	config := must.Do(pgx.ParseConfig(pgtest.URL(t)))(t)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // each statement is one round trip
	var asked spy
	asked.listen(config)
	conn := must.Do(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(contextOf(t))
	driver, stream := must.New(postgres.New(conn, nil)), storetest.Category(t).Stream("1")

	var trips []int64
	for range 2 {
		before := asked.sent.Load()
		must.Do(driver.Version(t.Context(), stream))(t)
		trips = append(trips, asked.sent.Load()-before)
	}

	require.Equal(t, []int64{2, 1}, trips)
}

// The error of a standby to a writer: the server may not be the one that was checked.
func TestServerThatRefusesToWriteIsAskedAgain(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	var asked spy
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) {
		asked.listen(c.ConnConfig)
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	driver := must.New(postgres.New(pool, nil))
	stream := storetest.Category(t).Stream("1")

	_, err := driver.Append(t.Context(), appendOne(stream, messagestore.NoStream))

	refused := must.As[*pgconn.PgError](t, err)
	require.Equal(t, "25006", refused.Code)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Equal(t, int64(1), asked.checks.Load())
	require.NoError(t, must.ErrorOf(driver.Version(t.Context(), stream)), "a session that only reads is good for reading")
	require.Equal(t, int64(2), asked.checks.Load())
}

func TestWritesOfAGroupToARefusedServerAreRefused(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	pool, _ := pgtest.PoolOfOne(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = "LATIN1" })
	driver := must.New(postgres.New(pool, nil))
	category := storetest.Category(t)
	only := must.Do(pool.Acquire(t.Context()))(t)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { _, errs[i] = driver.Append(t.Context(), record(category.Stream(fmt.Sprint(i)))) })
	}
	// One has gone ahead and waits for the connection, as do those behind it.
	await.That(t, "one write that is under way, and the others behind it", func() (bool, any) {
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
	store := must.New(messagestore.New(must.New(postgres.New(pgtest.Connect(t, with(t, pgtest.URL(t), "synchronous_commit", "off", override, "off")), nil)), nil))
	done := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
	c := must.New(consumer.New(store, storetest.Category(t), "test", done, nil))

	require.ErrorIs(t, c.Run(t.Context()), postgres.ErrUnsafeSettings)
}

// A standby is no place to consume from, until it is promoted.
func TestStandbyIsRefusedUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	primary := ownServer.Together(t)
	category := storetest.Category(t)
	stream := category.Stream("1")
	write(t, must.New(messagestore.New(open(t, primary), nil)), stream, messagestore.NoStream, opened())
	url := pgtest.Standby(t, primary)
	recovering := postgres.UnsafeSetting{Name: "in_hot_standby", Value: "on", Need: "off"}

	err := tryOpen(t, url)
	requireUnsafe(t, err, recovering)
	require.NotErrorIs(t, err, failure.ErrLasting, "it is promoted, or the next connection reaches the primary")

	pool := pgtest.Connect(t, url)
	driver := must.New(postgres.New(pool, nil))
	requireUnsafe(t, must.ErrorOf(driver.Version(t.Context(), stream)), recovering)

	// The override is for readers.
	reader := must.New(messagestore.New(open(t, with(t, url, override, "on")), nil))
	require.Equal(t, messagestore.Version(0), must.Do(reader.Version(t.Context(), stream))(t))
	_, err = reader.Write(t.Context(), stream, 0, opened())
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	refused := must.As[*pgconn.PgError](t, err)
	require.Equal(t, "25006", refused.Code)

	handled := make(chan *messagestore.Message, 1)
	c := must.New(consumer.New(must.New(messagestore.New(driver, nil)), category, "test", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		handled <- m
		return nil
	}), nil))
	ctx, stop := context.WithCancel(t.Context())
	ran := await.Go(func() error { return c.Run(ctx) })
	promote(t, url)
	require.Equal(t, stream, await.Receive(t, "a message", handled).Stream, "it goes on by itself")
	write(t, must.New(messagestore.New(driver, nil)), stream, 0, opened())
	stop()
	require.NoError(t, await.Receive(t, "the end of the consumer", ran))
}
