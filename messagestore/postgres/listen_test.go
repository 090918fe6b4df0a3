package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// listeningDatabase returns the URL of a migrated database that no other test listens
// on, and a pool of another process on it.
func listeningDatabase(t *testing.T) (url string, elsewhere *pgxpool.Pool) {
	t.Helper()
	url = pgtest.Migrated(t)
	return url, pgtest.Connect(t, url)
}

// listeners returns the processes of the server that listen on the pool's database.
func listeners(t *testing.T, pool *pgxpool.Pool) (pids []uint32) {
	t.Helper()
	err := pool.QueryRow(t.Context(), `select coalesce(array_agg(pid), '{}') from pg_stat_activity
		where datname = current_database() and query ~ '^select [a-z_]+[.]listen[(][)]\s*$'`).Scan(&pids)
	require.NoError(t, err)
	return pids
}

// awaitListener returns once a session listens that is not one of those.
func awaitListener(t *testing.T, pool *pgxpool.Pool, before ...uint32) {
	t.Helper()
	testkit.Await(t, "another process that listens", func() (bool, any) {
		now := listeners(t, pool)
		return len(now) == 1 && (len(before) == 0 || now[0] != before[0]), now
	})
}

// watch returns the bell of a category, for a watcher that waits up to an hour.
func watch(t *testing.T, driver messagestore.Driver, category messagestore.Category, interval time.Duration) <-chan messagestore.GlobalPosition {
	t.Helper()
	bell, stop := testkit.Must(messagestore.New(driver, nil)).Watch(category, interval)
	t.Cleanup(stop)
	return bell
}

// requireRing waits until the bell rings for a message, or for an unknown message.
func requireRing(t *testing.T, bell <-chan messagestore.GlobalPosition, head messagestore.GlobalPosition) {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("a ring for %d", head), func() (bool, any) {
		rung := testkit.Receive(t, fmt.Sprintf("a ring for %d", head), bell)
		return rung == 0 || rung >= head, rung
	})
}

// A heard is one call of a listener's function.
type heard struct {
	category messagestore.Category
	head     messagestore.GlobalPosition
}

func TestOnlyWhatIsOfTheSchemaIsHeard(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan heard), make(chan error, 1)
	driver := open(t, url)
	go func() {
		ended <- driver.Listen(ctx, func(category messagestore.Category, head messagestore.GlobalPosition) {
			told <- heard{category, head}
		})
	}()
	require.Equal(t, heard{}, testkit.Receive(t, "a wake-up", told), "it listens")

	for _, payload := range []string{`"user".account-7`, "dibs2.account-7", "account-7", "", "dibs.account-9", "dibs.account:command+a", "dibs.account-x", "dibs.account--1"} {
		notify(t, elsewhere, payload)
	}
	require.Equal(t, heard{"account", 9}, testkit.Receive(t, "a wake-up", told))
	require.Equal(t, heard{"account:command+a", 0}, testkit.Receive(t, "a wake-up", told), "it is not known where")
	require.Equal(t, heard{"account", 0}, testkit.Receive(t, "a wake-up", told))
	require.Equal(t, heard{"account", 0}, testkit.Receive(t, "a wake-up", told))

	cancel()
	require.ErrorIs(t, testkit.Receive(t, "the end of listening", ended), context.Canceled)
}

func notify(t *testing.T, pool *pgxpool.Pool, payload string) {
	t.Helper()
	testkit.Do(pool.Exec(t.Context(), "select pg_notify('dibs_messages', $1)", payload))(t)
}

func TestWithoutNotificationsMessagesAreFoundByPolling(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	quiet := &postgres.Config{NoNotify: true}
	driver := testkit.Do(postgres.Open(t.Context(), url, quiet))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	bell := watch(t, driver, "account", 10*time.Millisecond)

	written := write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, quiet)), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
	require.Empty(t, listeners(t, elsewhere))
	require.ErrorIs(t, driver.Listen(t.Context(), nil), messagestore.ErrNotSupported)
}

// LISTEN through a pooler would reach a server that is somebody else's a moment later.
func TestThroughPgBouncerMessagesAreFoundByPolling(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	through := pgtest.PgBouncer(t, url)
	driver := open(t, through.URL)
	bell := watch(t, driver, "account", 10*time.Millisecond)

	written := write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, nil)), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
	require.ErrorIs(t, driver.Listen(t.Context(), nil), messagestore.ErrNotSupported)
	require.Empty(t, listeners(t, elsewhere))
}

// message-db's function does not notify.
func TestWhatACompatibleClientWritesIsFoundByPolling(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	bell := watch(t, open(t, url), "account", 10*time.Millisecond)
	awaitListener(t, elsewhere)

	testkit.Do(elsewhere.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, 'account-1', 'Opened', '{}')"))(t)

	requireRing(t, bell, 1)
}

// A driver on a standby does not listen, and its polls find new messages.
func TestOnAStandbyMessagesAreFoundByPolling(t *testing.T) {
	t.Parallel()
	primary := ownServer.Together(t)
	standby := pgtest.Standby(t, primary) + "&dibs.allow_unsafe_settings=on"
	driver := open(t, standby)
	category := storetest.Category(t)
	bell := watch(t, driver, category, 10*time.Millisecond)

	written := write(t, testkit.Must(messagestore.New(open(t, primary), nil)), category.Stream("1"), messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
	err := driver.Listen(t.Context(), nil)
	require.ErrorContains(t, err, "listen: ")
	require.NotErrorIs(t, err, messagestore.ErrNotSupported, "it may be promoted")
}

// A driver does not listen on a connection that has another user.
func TestOverAnythingButAPoolAWatchLeavesTheDriverAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	conn := connect(t, pgtest.URL(t))
	tx := testkit.Do(pool.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
	for _, db := range []postgres.DB{conn, tx} {
		driver := testkit.Must(postgres.New(db, nil))
		require.ErrorIs(t, testkit.ErrorOf(driver.Heads(t.Context(), nil)), messagestore.ErrNotSupported)
		require.ErrorIs(t, driver.Listen(t.Context(), nil), messagestore.ErrNotSupported)

		bell := watch(t, driver, storetest.Category(t), time.Millisecond)
		for range 3 {
			require.Equal(t, messagestore.GlobalPosition(0), testkit.Receive(t, "a ring", bell))
		}
	}
}

func TestTheLastWatchEndsListening(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	_, stop := testkit.Must(messagestore.New(open(t, url), nil)).Watch("account", time.Hour)
	awaitListener(t, elsewhere)

	stop()

	testkit.AwaitEqual(t, "the processes that listen", 0, func() int { return len(listeners(t, elsewhere)) })
}

// A head costs a few pages for any number of messages and any statistics.
func TestHeadsAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	_, elsewhere := listeningDatabase(t)
	categories := make([]string, 100)
	for i := range categories {
		categories[i] = fmt.Sprintf("account%d", i)
	}
	pages := func() int {
		// On a connection of its own: a plan that was made for the empty table is kept.
		plan := pgtest.Value[string](t, elsewhere, "explain (analyze, buffers, format json) select dibs.heads($1)", pgx.QueryExecModeSimpleProtocol, categories)
		sum := 0
		for _, kind := range []string{"Hit", "Read"} {
			var n int
			_, rest, _ := strings.Cut(plan, fmt.Sprintf(`"Shared %s Blocks": `, kind))
			testkit.Do(fmt.Sscan(rest, &n))(t)
			sum += n
		}
		return sum
	}
	pages()
	testkit.Do(elsewhere.Exec(t.Context(), `insert into dibs.messages (category, group_hash, stream_name, type, position, id, data)
		select 'account' || n % 10, 0, 'account' || n % 10 || '-' || n, 'Opened', 0, gen_random_uuid(), '{}' from generate_series(1, 30000) n`))(t)
	require.Less(t, pages(), 1500)
	testkit.Do(elsewhere.Exec(t.Context(), "analyze dibs.messages"))(t)
	require.Less(t, pages(), 1500)
}

func TestAWriteOfAnotherProcessRingsAtOnce(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	bell := watch(t, open(t, url), "account", time.Hour)
	awaitListener(t, elsewhere)
	other := testkit.Must(postgres.New(elsewhere, nil))

	written := write(t, testkit.Must(messagestore.New(other, nil)), "account-1", messagestore.NoStream, opened())
	requireRing(t, bell, written.GlobalPosition)
	all := testkit.Do(other.AppendAll(t.Context(), []messagestore.Append{appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}))(t)
	requireRing(t, bell, all[1].GlobalPosition)
	for _, a := range other.AppendEach(t.Context(), []messagestore.Append{appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}) {
		require.NoError(t, a.Err)
		written = a.Written
	}
	requireRing(t, bell, written.GlobalPosition)

	tx := testkit.Do(elsewhere.Begin(t.Context()))(t)
	written = write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(tx, nil)), nil)), "account-3", messagestore.NoStream, opened())
	require.NoError(t, tx.Commit(t.Context()))
	requireRing(t, bell, written.GlobalPosition)
}

func TestASchemaOfAnotherNameIsHeard(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	driver := testkit.Must(postgres.New(pool, &postgres.Config{Schema: schema}))
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan heard), make(chan error, 1)
	go func() {
		ended <- driver.Listen(ctx, func(category messagestore.Category, head messagestore.GlobalPosition) {
			told <- heard{category, head}
		})
	}()
	require.Equal(t, heard{}, testkit.Receive(t, "a wake-up", told), "it listens")

	written := write(t, testkit.Must(messagestore.New(driver, nil)), "account-1", messagestore.NoStream, opened())

	require.Equal(t, heard{"account", written.GlobalPosition}, testkit.Receive(t, "a wake-up", told))
	cancel()
	require.ErrorIs(t, testkit.Receive(t, "the end of listening", ended), context.Canceled)
}

// Messages written while no session listens are found when one listens again.
func TestAListenerThatIsKilledMissesNothing(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	bell := watch(t, open(t, url), "account", time.Hour)
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, nil)), nil))
	for range 5 {
		awaitListener(t, elsewhere)
		before := listeners(t, elsewhere)
		testkit.Do(elsewhere.Exec(t.Context(), "select pg_terminate_backend($1, 10000)", before[0]))(t)

		written := write(t, store, "account-1", messagestore.AnyVersion, opened())

		requireRing(t, bell, written.GlobalPosition)
		awaitListener(t, elsewhere, before...)
	}
	written := write(t, store, "account-1", messagestore.AnyVersion, opened())
	requireRing(t, bell, written.GlobalPosition)
}

// Every way of writing notifies, once for a category, of its last message; and none
// does where it is switched off.
func TestWhatIsNotified(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	conn := connect(t, url)
	testkit.Do(conn.Exec(t.Context(), "select dibs.listen()"))(t)
	notified := func() (payloads []string) {
		notify(t, elsewhere, "end")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			n := testkit.Do(conn.WaitForNotification(ctx))(t)
			if n.Payload == "end" {
				return payloads
			}
			payloads = append(payloads, n.Payload)
		}
	}
	for _, config := range []*postgres.Config{nil, {NoNotify: true}} {
		driver := testkit.Must(postgres.New(elsewhere, config))
		payload := func(w messagestore.Written) []string {
			if config != nil {
				return nil
			}
			return []string{fmt.Sprintf("dibs.%s-%d", w.Stream.Category(), w.GlobalPosition)}
		}
		first := appendOne("account-1", messagestore.AnyVersion)
		written := testkit.Do(driver.Append(t.Context(), first))(t)
		require.Equal(t, payload(written), notified())

		testkit.Do(driver.Append(t.Context(), first))(t)
		require.ErrorIs(t, testkit.ErrorOf(driver.Append(t.Context(), appendOne("account-1", 1000))), messagestore.ErrVersionConflict)
		require.Empty(t, notified(), "nothing was written")

		all := testkit.Do(driver.AppendAll(t.Context(), []messagestore.Append{
			appendOne("account-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion), appendOne("order-1", messagestore.AnyVersion),
		}))(t)
		require.ElementsMatch(t, append(payload(all[1]), payload(all[2])...), notified())

		each := driver.AppendEach(t.Context(), []messagestore.Append{
			appendOne("account-1", messagestore.AnyVersion), appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion),
			appendOne("account-2", messagestore.AnyVersion), appendOne("account-1", 1000),
		})
		require.ErrorIs(t, each[4].Err, messagestore.ErrVersionConflict)
		require.ElementsMatch(t, append(payload(each[1].Written), payload(each[3].Written)...), notified())

		tx := testkit.Do(elsewhere.Begin(t.Context()))(t)
		testkit.Do(testkit.Must(postgres.New(tx, config)).Append(t.Context(), appendOne("account-1", messagestore.AnyVersion)))(t)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Empty(t, notified(), "it was rolled back")
	}
}

// Commits that notify wait for each other, so none does for nobody.
func TestNobodyIsNotifiedWhereNobodyListens(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	driver := testkit.Must(postgres.New(elsewhere, nil))
	deaf, one, other := connect(t, url), connect(t, url), connect(t, url)
	_, err := deaf.Exec(t.Context(), "listen dibs_messages") // and has not told anybody
	require.NoError(t, err)
	hears := func() (payloads []string) {
		notify(t, elsewhere, "end")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			n := testkit.Do(deaf.WaitForNotification(ctx))(t)
			if n.Payload == "end" {
				return payloads
			}
			payloads = append(payloads, n.Payload)
		}
	}
	writes := func() {
		testkit.Do(driver.Append(t.Context(), appendOne("account-1", messagestore.AnyVersion)))(t)
		for _, a := range driver.AppendEach(t.Context(), []messagestore.Append{appendOne("account-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}) {
			require.NoError(t, a.Err)
		}
	}

	writes()
	require.Empty(t, hears())
	for _, conn := range []*pgx.Conn{one, other} {
		testkit.Do(conn.Exec(t.Context(), "select dibs.listen()"))(t)
		writes()
		require.Len(t, hears(), 2)
	}
	one.Close(t.Context())
	writes()
	require.Len(t, hears(), 2, "one is left")
}

// A write that was under way when a listener began is there when the listener reads.
func TestWhoBeginsToListenWaitsForWritersThatHaveLooked(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	writer, listener := connect(t, url), connect(t, url)
	tx := testkit.Do(writer.Begin(t.Context()))(t)
	testkit.Do(tx.Exec(t.Context(), "select dibs.append_one('account-1', -1, gen_random_uuid(), 'Opened', '{}', null, notify => true)"))(t)
	began := testkit.Go(func() error { return testkit.ErrorOf(listener.Exec(t.Context(), "select dibs.listen()")) })
	waitUntilBlocked(t, elsewhere, listener.PgConn().PID())

	require.NoError(t, tx.Commit(t.Context()))

	require.NoError(t, testkit.Receive(t, "the begin of listening", began))
	require.Zero(t, pgtest.Value[int64](t, listener, "select dibs.stream_version('account-1')"))
}

// A write through one store wakes the listeners of others.
func TestWritesThroughPgBouncerAreHeard(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	through := pgtest.PgBouncer(t, url)
	bell := watch(t, open(t, url), "account", time.Hour)
	awaitListener(t, elsewhere)

	written := write(t, testkit.Must(messagestore.New(open(t, through.URL), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
}

// The pool keeps all of its connections, and its hooks run for this one too: the role comes from
// them.
func TestListeningTakesNoConnectionOfThePool(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	config.MaxConns = 1
	user := config.ConnConfig.User
	config.ConnConfig.User = "nobody"
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.User = user
		return nil
	}
	config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "set application_name = 'as the pool is'")
		return err
	}
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)

	bell := watch(t, testkit.Must(postgres.New(pool, nil)), "account", time.Hour)
	awaitListener(t, elsewhere)
	held := testkit.Do(pool.Acquire(t.Context()))(t)
	defer held.Release()
	written := write(t, testkit.Must(messagestore.New(testkit.Must(postgres.New(elsewhere, nil)), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
	name := pgtest.Value[string](t, elsewhere, "select application_name from pg_stat_activity where pid = $1", listeners(t, elsewhere)[0])
	require.Equal(t, "as the pool is", name)
}

// A line is a connection to a server that remembers how it ended.
type line struct {
	net.Conn

	mu     sync.Mutex
	last   []byte // that was sent
	closed bool
}

func (l *line) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.last = append(l.last[:0], b...)
	l.mu.Unlock()
	return l.Conn.Write(b)
}

func (l *line) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	return l.Conn.Close()
}

// requireHungUp has the line closed, after a goodbye: a server that gets none logs that
// the client was lost.
func (l *line) requireHungUp(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	require.True(t, l.closed, "the connection is left open")
	require.Equal(t, "X\x00\x00\x00\x04", string(l.last))
}

// overLines returns a driver over a pool, and the connections that it makes.
func overLines(t *testing.T, url string, afterConnect func(context.Context, *pgx.Conn) error) (*postgres.Driver, <-chan *line) {
	t.Helper()
	config := testkit.Do(pgxpool.ParseConfig(url))(t)
	config.AfterConnect = afterConnect
	lines := make(chan *line, 10)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l := &line{Conn: conn}
		lines <- l
		return l, nil
	}
	pool := testkit.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	testkit.Close(t, "the pool is closed: no connection is in use", pool.Close)
	return testkit.Must(postgres.New(pool, nil)), lines
}

func TestWhoListensNoMoreSaysGoodbye(t *testing.T) {
	t.Parallel()
	driver, lines := overLines(t, pgtest.Migrated(t), nil) // where no other transaction has notified, which listening waits for
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	require.ErrorIs(t, driver.Listen(ctx, func(messagestore.Category, messagestore.GlobalPosition) { cancel() }), context.Canceled)
	testkit.Receive(t, "a connection", lines).requireHungUp(t)
}

// Listening is tried again and again: each connection that were left open would be one
// more that the server has.
func TestAConnectionThatCannotListenIsNotLeftOpen(t *testing.T) {
	t.Parallel()
	unable := errors.New("not this one")
	driver, lines := overLines(t, pgtest.URL(t), func(context.Context, *pgx.Conn) error { return unable })

	require.ErrorIs(t, driver.Listen(t.Context(), nil), unable)
	testkit.Receive(t, "a connection", lines).requireHungUp(t)
}
