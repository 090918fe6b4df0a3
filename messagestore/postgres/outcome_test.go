package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// holdCategory writes to a stream of the category in a transaction that goes on.
func holdCategory(t *testing.T, stream messagestore.StreamName) pgx.Tx {
	t.Helper()
	holder := begin(t, pgx.ReadCommitted)
	write(t, messagestore.New(postgres.New(holder, nil), nil), stream, messagestore.AnyVersion, opened())
	return holder
}

func appendOne(stream messagestore.StreamName, expected messagestore.Version) messagestore.Append {
	return messagestore.Append{Stream: stream, Expected: expected, Records: []messagestore.Record{
		{ID: uuid.Must(uuid.NewV7()), Type: "Opened", Data: []byte(`{}`)},
	}}
}

// poolOf returns a pool of one connection, and the connection's backend.
func poolOf(t *testing.T, change func(*pgxpool.Config)) (*pgxpool.Pool, uint32) {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	config.MaxConns = 1
	if change != nil {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	return pool, conn.Conn().PgConn().PID()
}

func TestKilledBackendLeavesAnUnknownOutcomeThatCanBeResolved(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	pool, pid := poolOf(t, nil)
	driver := postgres.New(pool, nil)
	a := appendOne(category.Stream("1"), messagestore.NoStream)
	done := make(chan error, 1)
	go func() {
		_, err := driver.Append(t.Context(), a)
		done <- err
	}()
	waitUntilBlocked(t, shared, pid)

	_, err := shared.Exec(t.Context(), "select pg_terminate_backend($1)", int32(pid))
	require.NoError(t, err)

	err = <-done
	unknown, ok := errors.AsType[*messagestore.OutcomeUnknownError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, []messagestore.UnknownWrite{{Stream: a.Stream, IDs: []uuid.UUID{a.Records[0].ID}}}, unknown.Writes)
	require.NoError(t, holder.Rollback(t.Context()))
	_, err = messagestore.New(driver, nil).Resolve(t.Context(), unknown)
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
}

// The lock holds the question back until the write that it asks about is over.
func TestResolveWaitsForAWriteWhoseCallerIsGone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	holder := begin(t, pgx.ReadCommitted)
	message := opened()
	write(t, messagestore.New(postgres.New(holder, nil), nil), stream, messagestore.NoStream, message)
	asking, pid := poolOf(t, func(c *pgxpool.Config) {
		// A transaction at this level would not see what it has waited for.
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	lost := &messagestore.OutcomeUnknownError{Writes: []messagestore.UnknownWrite{{Stream: stream, IDs: []uuid.UUID{message.ID}}}}
	type answer struct {
		written []messagestore.Written
		err     error
	}
	done := make(chan answer, 1)
	go func() {
		written, err := messagestore.New(postgres.New(asking, nil), nil).Resolve(t.Context(), lost)
		done <- answer{written, err}
	}()
	waitUntilBlocked(t, pool, pid)

	require.NoError(t, holder.Commit(t.Context()))

	got := <-done
	require.NoError(t, got.err)
	require.Len(t, got.written, 1)
	require.Equal(t, messagestore.Version(0), got.written[0].Version)
}

func TestContextThatEndsWhileWaitingLeavesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	holder := holdCategory(t, category.Stream("held"))
	pool, pid := poolOf(t, nil)
	driver := postgres.New(pool, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := driver.Append(ctx, appendOne(category.Stream("1"), messagestore.NoStream))
		done <- err
	}()
	waitUntilBlocked(t, shared, pid)

	cancel()

	err := <-done
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.Canceled)
	// pgx asks the server to cancel the statement in its own time; before that, the
	// lock might still be given to it.
	require.Eventually(t, func() bool {
		var waits bool
		err := shared.QueryRow(t.Context(), "select exists (select from pg_locks where pid = $1 and not granted)", pid).Scan(&waits)
		return err == nil && !waits
	}, patience, tick)
	require.NoError(t, holder.Commit(t.Context()))
	_, err = messagestore.New(driver, nil).Resolve(t.Context(), err)
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
}

func TestContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := postgres.New(pgtest.Pool(t), nil).Append(ctx, appendOne(storetest.Category(t).Stream("1"), messagestore.NoStream))

	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
}

func TestWaitingForAStuckPeerEndsDefinitely(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	_, err := pool.Exec(t.Context(), "alter function "+schema+`.wait_for_category(text) set lock_timeout = '20ms'`)
	require.NoError(t, err)
	config := &postgres.Config{Schema: schema}
	category := storetest.Category(t)
	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer holder.Rollback(t.Context()) //nolint:errcheck // whatever became of the test
	write(t, messagestore.New(postgres.New(holder, config), nil), category.Stream("held"), messagestore.NoStream, opened())

	_, err = postgres.New(pool, config).Append(t.Context(), appendOne(category.Stream("1"), messagestore.NoStream))

	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	refused, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "55P03", refused.Code)
}

func TestSerializationFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	stream := storetest.Category(t).Stream("1")
	holder := holdCategory(t, stream)
	pool, pid := poolOf(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	})
	done := make(chan error, 1)
	go func() {
		_, err := postgres.New(pool, nil).Append(t.Context(), appendOne(stream, messagestore.AnyVersion))
		done <- err
	}()
	waitUntilBlocked(t, shared, pid)

	require.NoError(t, holder.Commit(t.Context()))

	require.NoError(t, <-done)
}

// A cut is where a proxy closes both sides of a connection.
type cut int32

const (
	nowhere      cut = iota
	beforeSend       // when the client sends the statement: the server never hears of it
	beforeAnswer     // when the server has answered it, and so has committed it
	onItsWay         // when the client sends it: it arrives when the test lets it
)

// A proxy stands between a pool and the server, and can cut a write in two.
type proxy struct {
	at   atomic.Int32
	cuts atomic.Int32
	late chan *cutConn // on which something is on its way
}

// through returns a pool whose connections pass the proxy.
func (p *proxy) through(t *testing.T) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(pgtest.URL(t))
	require.NoError(t, err)
	if config.ConnConfig.TLSConfig != nil {
		t.Skip("the proxy reads the protocol, and this server's connections are encrypted")
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: server, proxy: p}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

type cutConn struct {
	net.Conn
	proxy *proxy
	once  sync.Once

	mu     sync.Mutex
	onWay  bool
	parcel []byte // that is on its way
}

var errCut = errors.New("cut")

func (c *cutConn) cut(at cut) bool {
	if !c.proxy.at.CompareAndSwap(int32(at), int32(nowhere)) {
		return false
	}
	c.proxy.cuts.Add(1)
	c.once.Do(func() { c.Conn.Close() })
	return true
}

// What a client sends, on a connection made for it, when it leaves a statement alone.
var cancelRequest = []byte{0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e}

// A statement that was prepared before is executed with a Bind message that holds
// the data.
func (c *cutConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes.Contains(b, cancelRequest) && c.proxy.late != nil {
		return 0, errCut // or it would end a statement that arrives late, sometimes
	}
	if bytes.Contains(b, []byte(`"canary"`)) && c.proxy.at.CompareAndSwap(int32(onItsWay), int32(nowhere)) {
		c.onWay = true
		c.proxy.late <- c
	}
	if c.onWay {
		c.parcel = append(c.parcel, b...)
		return len(b), nil
	}
	if bytes.Contains(b, []byte(`"canary"`)) && c.cut(beforeSend) {
		return 0, errCut
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("SELECT 1\x00")) && c.cut(beforeAnswer) {
		return 0, errCut
	}
	return n, err
}

// Close leaves open what something is on its way on: the client is gone, and the
// network does not know it yet.
func (c *cutConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.onWay {
		return nil
	}
	return c.Conn.Close()
}

// deliver lets arrive what is on its way, and waits until the server is through.
func (c *cutConn) deliver(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := c.Conn.Write(append(c.parcel, 'X', 0, 0, 0, 4)) // and Terminate
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, c.Conn)
	require.NoError(t, err)
	require.NoError(t, c.Conn.Close())
}

func canary() messagestore.Message {
	m := opened()
	m.Body = messagestore.Raw{Type: "Opened", Data: []byte(`{"name":"canary"}`)}
	return m
}

// The driver tells that it does not know, in both cases alike; the store asks.
func TestLostAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for name, at := range map[string]cut{"not written": beforeSend, "written": beforeAnswer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &proxy{}
			pool := p.through(t)
			stream := storetest.Category(t).Stream("1")
			message := canary()
			store := messagestore.New(postgres.New(pool, nil), nil)
			write(t, store, stream, messagestore.NoStream, opened()) // so that the statement is prepared
			a := messagestore.Append{Stream: stream, Expected: 0, Records: []messagestore.Record{{ID: message.ID, Type: "Opened", Data: []byte(`{"name":"canary"}`)}}}

			p.at.Store(int32(at))
			_, err := postgres.New(pool, nil).Append(t.Context(), a)

			require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
			require.Equal(t, int32(1), p.cuts.Load())
			found, err := store.Resolve(t.Context(), err)
			if at == beforeSend {
				require.ErrorIs(t, err, messagestore.ErrNotWritten)
				return
			}
			require.NoError(t, err)
			require.Equal(t, messagestore.Version(1), found[0].Version)
		})
	}
}

func TestStoreWritesOnceThoughTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	for name, at := range map[string]cut{"not written": beforeSend, "written": beforeAnswer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &proxy{}
			store := messagestore.New(postgres.New(p.through(t), nil), nil)
			stream := storetest.Category(t).Stream("1")
			write(t, store, stream, messagestore.NoStream, opened())

			p.at.Store(int32(at))
			written := write(t, store, stream, 0, canary())

			require.Equal(t, int32(1), p.cuts.Load())
			require.Equal(t, messagestore.Version(1), written.Version)
			version, err := store.Version(t.Context(), stream)
			require.NoError(t, err)
			require.Equal(t, messagestore.Version(1), version)
		})
	}
}

// The lock holds off a write that has begun. One that has not is met by the fence:
// what was found missing never comes.
func TestWriteThatArrivesAfterItWasFoundMissingIsTurnedAway(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	p := &proxy{late: make(chan *cutConn, 1)}
	pool := p.through(t)
	driver := postgres.New(pool, nil)
	store := messagestore.New(driver, nil)
	category := storetest.Category(t)
	stream := category.Stream("1")
	write(t, store, category.Stream("0"), messagestore.NoStream, opened()) // so that the statement is prepared
	message := canary()
	a := messagestore.Append{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Record{{ID: message.ID, Type: "Opened", Data: []byte(`{"name":"canary"}`)}}}
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p.at.Store(int32(onItsWay))
	go func() {
		_, err := driver.Append(ctx, a)
		done <- err
	}()
	onWay := <-p.late
	leave()
	lost := <-done
	require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)

	_, err := store.Resolve(t.Context(), lost)
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	onWay.deliver(t)

	version, err := store.Version(t.Context(), stream)
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
	written := write(t, store, stream, messagestore.NoStream, message) // who writes it again means it
	require.False(t, written.Duplicate)
}

// With nobody asking it is as good as any other.
func TestWriteThatArrivesLateIsWritten(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t)
	p := &proxy{late: make(chan *cutConn, 1)}
	pool := p.through(t)
	driver := postgres.New(pool, nil)
	store := messagestore.New(driver, nil)
	stream := storetest.Category(t).Stream("1")
	write(t, store, stream, messagestore.NoStream, opened())
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p.at.Store(int32(onItsWay))
	go func() {
		_, err := store.Write(ctx, stream, 0, canary())
		done <- err
	}()
	onWay := <-p.late
	leave()
	lost := <-done
	require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)

	onWay.deliver(t)

	written, err := store.Resolve(t.Context(), lost)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(1), written[0].Version)
}

// A caller that is told that nobody knows, and then that it was not written, is not
// proved wrong by the group that its write is in.
func TestGroupDoesNotWriteForACallerThatWasToldItDidNot(t *testing.T) {
	t.Parallel()
	c := gather(t)
	ctx, leave := context.WithCancel(t.Context())
	gone, stays := record(c.category.Stream("gone")), record(c.category.Stream("stays"))
	told := make(chan error, 1)
	c.add(ctx, gone, func(_ messagestore.Written, err error) { told <- err })
	c.add(t.Context(), stays, func(_ messagestore.Written, err error) { require.NoError(t, err) })

	again := lockCategoryWhenFree(t, pgtest.Pool(t), c) // the group waits for this
	awaitLockWaiters(t, pgtest.Pool(t), c.category)
	leave()
	require.ErrorIs(t, <-told, messagestore.ErrOutcomeUnknown)
	_, err := pgtest.Pool(t).Exec(t.Context(), "insert into dibs.fences (category, fence) values ($1, 1)", string(c.category)) // as asking does
	require.NoError(t, err)
	require.NoError(t, again())
	c.wg.Wait()

	version, err := c.driver.Version(t.Context(), gone.Stream)
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
	version, err = c.driver.Version(t.Context(), stays.Stream)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// The same for one whose group has not been sent when its caller leaves: what counts
// is the fence that there was when the caller came.
func TestGroupThatIsSentAfterItsCallerAskedIsTurnedAway(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	pool, _ := poolOf(t, nil)
	driver := postgres.New(pool, nil)
	only, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	firstCtx, leaveFirst := context.WithCancel(t.Context())
	first, told, stays := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := driver.Append(firstCtx, record(category.Stream("first")))
		first <- err
	}()
	require.Eventually(t, func() bool { return driver.Busy(category) }, patience, tick)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		_, err := driver.Append(ctx, record(category.Stream("gone")))
		told <- err
	}()
	require.Eventually(t, func() bool { return driver.Waiting() == 1 }, patience, tick)
	go func() {
		_, err := driver.Append(t.Context(), record(category.Stream("stays")))
		stays <- err
	}()
	require.Eventually(t, func() bool { return driver.Waiting() == 2 }, patience, tick)

	leaveFirst()
	require.ErrorIs(t, <-first, context.Canceled)
	require.Eventually(t, func() bool { return driver.Waiting() == 0 }, patience, tick) // the group waits for the connection
	leave()
	lost := <-told
	require.ErrorIs(t, lost, messagestore.ErrOutcomeUnknown)
	_, err = messagestore.New(postgres.New(shared, nil), nil).Resolve(t.Context(), lost)
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	driver.Learn(category, 1) // from another write
	only.Release()

	require.NoError(t, <-stays)
	version, err := driver.Version(t.Context(), category.Stream("gone"))
	require.NoError(t, err)
	require.Equal(t, messagestore.NoStream, version)
}

func TestConnectionThatCannotBeMadeWritesNothing(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig("postgres://user:canary@127.0.0.1:1/database?sslmode=disable")
	require.NoError(t, err)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer pool.Close()

	_, err = postgres.New(pool, nil).Append(t.Context(), appendOne("account-1", messagestore.NoStream))

	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	_, withConfig := errors.AsType[*pgconn.ConnectError](err)
	require.False(t, withConfig, "which has the password in it")
	require.NotContains(t, err.Error(), "canary")
}

// Two streams of two categories in the one order and in the other.
func TestWritersOfTwoCategoriesInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const writers, rounds = 8, 25
	pool := pgtest.Pool(t)
	var log bytes.Buffer // to which a deadlock would be logged, and then tried again
	store, err := messagestore.New(postgres.New(pool, &postgres.Config{Logger: zerolog.New(zerolog.SyncWriter(&log))}), nil).Atomic()
	require.NoError(t, err)
	var streams []messagestore.StreamName
	for range 4 {
		streams = append(streams, storetest.Category(t).Stream("1"))
	}
	var group sync.WaitGroup
	failures := make(chan error, writers)
	for w := range writers {
		group.Go(func() {
			for range rounds {
				var writes []messagestore.StreamWrite
				for i := range streams {
					at := i
					if w%2 == 1 {
						at = len(streams) - 1 - i
					}
					writes = append(writes, messagestore.StreamWrite{Stream: streams[at], Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{opened()}})
				}
				if _, err := store.WriteStreams(t.Context(), writes...); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(failures)
	require.NoError(t, <-failures)
	for _, stream := range streams {
		version, err := store.Version(t.Context(), stream)
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(writers*rounds-1), version)
	}
	require.NotContains(t, log.String(), "write again")
}
