package postgres_test

import (
	"context"
	"fmt"
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
)

func TestAWriteOfAnotherProcessRingsAtOnce(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	bell := watch(t, open(t, url), "account", time.Hour)
	awaitListener(t, elsewhere)
	other := must.New(postgres.New(elsewhere, nil))

	written := write(t, must.New(messagestore.New(other, nil)), "account-1", messagestore.NoStream, opened())
	requireRing(t, bell, written.GlobalPosition)
	all := must.Do(other.AppendAll(t.Context(), []messagestore.Append{appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}))(t)
	requireRing(t, bell, all[1].GlobalPosition)
	for _, a := range other.AppendEach(t.Context(), []messagestore.Append{appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}) {
		require.NoError(t, a.Err)
		written = a.Written
	}
	requireRing(t, bell, written.GlobalPosition)

	tx := must.Do(elsewhere.Begin(t.Context()))(t)
	written = write(t, must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)), "account-3", messagestore.NoStream, opened())
	require.NoError(t, tx.Commit(t.Context()))
	requireRing(t, bell, written.GlobalPosition)
}

func TestASchemaOfAnotherNameIsHeard(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	driver := must.New(postgres.New(pool, &postgres.Config{Schema: schema}))
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan heard), make(chan error, 1)
	go func() {
		ended <- driver.Listen(ctx, func(category messagestore.Category, head messagestore.GlobalPosition) {
			told <- heard{category, head}
		})
	}()
	require.Equal(t, heard{}, await.Receive(t, "a wake-up", told), "it listens")

	written := write(t, must.New(messagestore.New(driver, nil)), "account-1", messagestore.NoStream, opened())

	require.Equal(t, heard{"account", written.GlobalPosition}, await.Receive(t, "a wake-up", told))
	cancel()
	require.ErrorIs(t, await.Receive(t, "the end of listening", ended), context.Canceled)
}

// Messages written while no session listens are found when one listens again.
func TestAListenerThatIsKilledMissesNothing(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	bell := watch(t, open(t, url), "account", time.Hour)
	store := must.New(messagestore.New(must.New(postgres.New(elsewhere, nil)), nil))
	for range 5 {
		awaitListener(t, elsewhere)
		before := listeners(t, elsewhere)
		must.Do(elsewhere.Exec(t.Context(), "select pg_terminate_backend($1, 10000)", before[0]))(t)

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
	must.Do(conn.Exec(t.Context(), "select dibs.listen()"))(t)
	notified := func() (payloads []string) {
		notify(t, elsewhere, "end")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			n := must.Do(conn.WaitForNotification(ctx))(t)
			if n.Payload == "end" {
				return payloads
			}
			payloads = append(payloads, n.Payload)
		}
	}
	for _, config := range []*postgres.Config{nil, {NoNotify: true}} {
		driver := must.New(postgres.New(elsewhere, config))
		payload := func(w messagestore.Written) []string {
			if config != nil {
				return nil
			}
			return []string{fmt.Sprintf("dibs.%s-%d", w.Stream.Category(), w.GlobalPosition)}
		}
		first := appendOne("account-1", messagestore.AnyVersion)
		written := must.Do(driver.Append(t.Context(), first))(t)
		require.Equal(t, payload(written), notified())

		must.Do(driver.Append(t.Context(), first))(t)
		require.ErrorIs(t, must.ErrorOf(driver.Append(t.Context(), appendOne("account-1", 1000))), messagestore.ErrVersionConflict)
		require.Empty(t, notified(), "nothing was written")

		all := must.Do(driver.AppendAll(t.Context(), []messagestore.Append{
			appendOne("account-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion), appendOne("order-1", messagestore.AnyVersion),
		}))(t)
		require.ElementsMatch(t, append(payload(all[1]), payload(all[2])...), notified())

		each := driver.AppendEach(t.Context(), []messagestore.Append{
			appendOne("account-1", messagestore.AnyVersion), appendOne("order-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion),
			appendOne("account-2", messagestore.AnyVersion), appendOne("account-1", 1000),
		})
		require.ErrorIs(t, each[4].Err, messagestore.ErrVersionConflict)
		require.ElementsMatch(t, append(payload(each[1].Written), payload(each[3].Written)...), notified())

		tx := must.Do(elsewhere.Begin(t.Context()))(t)
		must.Do(must.New(postgres.New(tx, config)).Append(t.Context(), appendOne("account-1", messagestore.AnyVersion)))(t)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Empty(t, notified(), "it was rolled back")
	}
}

// Commits that notify wait for each other, so none does for nobody.
func TestNobodyIsNotifiedWhereNobodyListens(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	driver := must.New(postgres.New(elsewhere, nil))
	deaf, one, other := connect(t, url), connect(t, url), connect(t, url)
	_, err := deaf.Exec(t.Context(), "listen dibs_messages") // and has not told anybody
	require.NoError(t, err)
	hears := func() (payloads []string) {
		notify(t, elsewhere, "end")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			n := must.Do(deaf.WaitForNotification(ctx))(t)
			if n.Payload == "end" {
				return payloads
			}
			payloads = append(payloads, n.Payload)
		}
	}
	writes := func() {
		must.Do(driver.Append(t.Context(), appendOne("account-1", messagestore.AnyVersion)))(t)
		for _, a := range driver.AppendEach(t.Context(), []messagestore.Append{appendOne("account-1", messagestore.AnyVersion), appendOne("account-2", messagestore.AnyVersion)}) {
			require.NoError(t, a.Err)
		}
	}

	writes()
	require.Empty(t, hears())
	for _, conn := range []*pgx.Conn{one, other} {
		must.Do(conn.Exec(t.Context(), "select dibs.listen()"))(t)
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
	tx := must.Do(writer.Begin(t.Context()))(t)
	must.Do(tx.Exec(t.Context(), "select dibs.append_one('account-1', -1, gen_random_uuid(), 'Opened', '{}', null, notify => true)"))(t)
	began := await.Go(func() error { return must.ErrorOf(listener.Exec(t.Context(), "select dibs.listen()")) })
	waitUntilBlocked(t, elsewhere, listener.PgConn().PID())

	require.NoError(t, tx.Commit(t.Context()))

	require.NoError(t, await.Receive(t, "the begin of listening", began))
	require.Zero(t, pgtest.Value[int64](t, listener, "select dibs.stream_version('account-1')"))
}

// A write through one wakes the listeners beside it.
func TestWritesThroughPgBouncerAreHeard(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	through := pgtest.PgBouncer(t, url)
	bell := watch(t, open(t, url), "account", time.Hour)
	awaitListener(t, elsewhere)

	written := write(t, must.New(messagestore.New(open(t, through.URL), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
}

// The pool keeps all of its connections, and its hooks run for this one too: the role comes from
// them.
func TestListeningTakesNoConnectionOfThePool(t *testing.T) {
	t.Parallel()
	url, elsewhere := listeningDatabase(t)
	config := must.Do(pgxpool.ParseConfig(url))(t)
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
	pool := must.Do(pgxpool.NewWithConfig(t.Context(), config))(t)
	await.Close(t, "the pool is closed: no connection is in use", pool.Close)

	bell := watch(t, must.New(postgres.New(pool, nil)), "account", time.Hour)
	awaitListener(t, elsewhere)
	held := must.Do(pool.Acquire(t.Context()))(t)
	defer held.Release()
	written := write(t, must.New(messagestore.New(must.New(postgres.New(elsewhere, nil)), nil)), "account-1", messagestore.NoStream, opened())

	requireRing(t, bell, written.GlobalPosition)
	name := pgtest.Value[string](t, elsewhere, "select application_name from pg_stat_activity where pid = $1", listeners(t, elsewhere)[0])
	require.Equal(t, "as the pool is", name)
}
