package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
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
	await.That(t, "another process that listens", func() (bool, any) {
		now := listeners(t, pool)
		return len(now) == 1 && (len(before) == 0 || now[0] != before[0]), now
	})
}

// watch returns the bell of a category whose watcher waits for an hour if it has to.
func watch(t *testing.T, driver messagestore.Driver, category messagestore.Category, interval time.Duration) <-chan messagestore.GlobalPosition {
	t.Helper()
	bell, stop := must.New(messagestore.New(driver, nil)).Watch(category, interval)
	t.Cleanup(stop)
	return bell
}

// requireRing waits until the bell rings for a message, or for one that is not known.
func requireRing(t *testing.T, bell <-chan messagestore.GlobalPosition, head messagestore.GlobalPosition) {
	t.Helper()
	await.That(t, fmt.Sprintf("a ring for %d", head), func() (bool, any) {
		rung := await.Receive(t, fmt.Sprintf("a ring for %d", head), bell)
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
	require.Equal(t, heard{}, await.Receive(t, "a wake-up", told), "it listens")

	for _, payload := range []string{`"user".account-7`, "dibs2.account-7", "account-7", "", "dibs.account-9", "dibs.account:command+a", "dibs.account-x", "dibs.account--1"} {
		notify(t, elsewhere, payload)
	}
	require.Equal(t, heard{"account", 9}, await.Receive(t, "a wake-up", told))
	require.Equal(t, heard{"account:command+a", 0}, await.Receive(t, "a wake-up", told), "it is not known where")
	require.Equal(t, heard{"account", 0}, await.Receive(t, "a wake-up", told))
	require.Equal(t, heard{"account", 0}, await.Receive(t, "a wake-up", told))

	cancel()
	require.ErrorIs(t, await.Receive(t, "the end of listening", ended), context.Canceled)
}

func notify(t *testing.T, pool *pgxpool.Pool, payload string) {
	t.Helper()
	must.Do(pool.Exec(t.Context(), "select pg_notify('dibs_messages', $1)", payload))(t)
}

func TestWithoutNotificationsMessagesAreFoundByPolling(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	quiet := &postgres.Config{NoNotify: true}
	driver := must.Do(postgres.Open(t.Context(), url, quiet))(t)
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	bell := watch(t, driver, "account", 10*time.Millisecond)

	written := write(t, must.New(messagestore.New(must.New(postgres.New(elsewhere, quiet)), nil)), "account-1", messagestore.NoStream, opened())

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

	written := write(t, must.New(messagestore.New(must.New(postgres.New(elsewhere, nil)), nil)), "account-1", messagestore.NoStream, opened())

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

	must.Do(elsewhere.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, 'account-1', 'Opened', '{}')"))(t)

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

	written := write(t, must.New(messagestore.New(open(t, primary), nil)), category.Stream("1"), messagestore.NoStream, opened())

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
	tx := must.Do(pool.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
	for _, db := range []postgres.DB{conn, tx} {
		driver := must.New(postgres.New(db, nil))
		require.ErrorIs(t, must.ErrorOf(driver.Heads(t.Context(), nil)), messagestore.ErrNotSupported)
		require.ErrorIs(t, driver.Listen(t.Context(), nil), messagestore.ErrNotSupported)

		bell := watch(t, driver, storetest.Category(t), time.Millisecond)
		for range 3 {
			require.Equal(t, messagestore.GlobalPosition(0), await.Receive(t, "a ring", bell))
		}
	}
}

func TestTheLastWatchEndsListening(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	_, stop := must.New(messagestore.New(open(t, url), nil)).Watch("account", time.Hour)
	awaitListener(t, elsewhere)

	stop()

	await.Equal(t, "the processes that listen", 0, func() int { return len(listeners(t, elsewhere)) })
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
			must.Do(fmt.Sscan(rest, &n))(t)
			sum += n
		}
		return sum
	}
	pages()
	must.Do(elsewhere.Exec(t.Context(), `insert into dibs.messages (category, group_hash, stream_name, type, position, id, data)
		select 'account' || n % 10, 0, 'account' || n % 10 || '-' || n, 'Opened', 0, gen_random_uuid(), '{}' from generate_series(1, 30000) n`))(t)
	require.Less(t, pages(), 1500)
	must.Do(elsewhere.Exec(t.Context(), "analyze dibs.messages"))(t)
	require.Less(t, pages(), 1500)
}
