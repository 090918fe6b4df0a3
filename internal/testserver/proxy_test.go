package testserver_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A bench is a proxy, a connection through it and a pool past it, with a table.
type bench struct {
	t      *testing.T
	proxy  *testserver.Proxy
	config *pgx.ConnConfig
	conn   *pgx.Conn
	direct *pgxpool.Pool
	insert string
	count  string
}

func set(t *testing.T) *bench {
	t.Helper()
	direct := pgtest.Connect(t, pgtest.URL(t))
	table := "notes_" + strings.ToLower(rand.Text())
	testkit.Do(direct.Exec(t.Context(), "create table "+table+" (note text)"))(t)
	t.Cleanup(func() {
		testkit.Do(direct.Exec(context.WithoutCancel(t.Context()), "drop table "+table))(t)
	})
	config := direct.Config().ConnConfig
	proxy := testkit.Do(testserver.NewProxy(pgconn.NetworkAddress(config.Host, config.Port)))(t)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	config.Host, config.Port, config.TLSConfig, config.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	b := &bench{
		t: t, proxy: proxy, config: config, direct: direct,
		insert: "insert into " + table + " values ($1)", count: "select count(*) from " + table,
	}
	b.conn = b.connect()
	return b
}

func (b *bench) connect() *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.ConnectConfig(b.t.Context(), b.config)
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		require.NoError(b.t, b.proxy.Close()) // pgx waits a while until abandoned connections end
		conn.Close(context.WithoutCancel(b.t.Context()))
		testkit.Receive(b.t, "the connection is cleaned up", conn.PgConn().CleanupDone())
	})
	return conn
}

// write inserts a row in one round trip.
func (b *bench) write(ctx context.Context) error {
	_, err := b.conn.Exec(ctx, b.insert, pgx.QueryExecModeExec, "noted")
	return err
}

func (b *bench) written() (n int) {
	b.t.Helper()
	require.NoError(b.t, b.direct.QueryRow(b.t.Context(), b.count).Scan(&n))
	return n
}

func (b *bench) backends() (n int) {
	b.t.Helper()
	require.NoError(b.t, b.direct.QueryRow(b.t.Context(), "select count(*) from pg_stat_activity where pid = $1", b.conn.PgConn().PID()).Scan(&n))
	return n
}

func (b *bench) awaitEndOfBackend() {
	b.t.Helper()
	testkit.AwaitEqual(b.t, "sessions of the connection", 0, b.backends)
}

// once is a rule that has the first message that is called so meet a fault. No request to
// cancel passes: pgx sends one after a cut, which may come before the server is through.
func once(from testserver.Side, name string, fault testserver.Fault) testserver.Rule {
	met := false
	return func(m testserver.Message) testserver.Fault {
		switch {
		case m.Name == "CancelRequest":
			return testserver.Drop
		case met || m.From != from || m.Name != name:
			return testserver.Pass
		}
		met = true
		return fault
	}
}

func texts(messages []testserver.Message) (list []string) {
	for _, m := range messages {
		list = append(list, m.String())
	}
	return list
}

func TestEveryMessageIsSeenInItsOrder(t *testing.T) {
	t.Parallel()
	b := set(t)
	stop := b.proxy.Record()

	require.NoError(t, b.write(t.Context()))

	require.Equal(t, []string{
		"client 1: Parse", "client 1: Bind", "client 1: Describe", "client 1: Execute", "client 1: Sync",
		"server 1: ParseComplete", "server 1: BindComplete", "server 1: NoData", "server 1: CommandComplete", "server 1: ReadyForQuery",
	}, texts(stop()))
	require.NoError(t, b.write(t.Context()))
	require.Len(t, stop(), 10, "it has stopped")
	require.Equal(t, 2, b.written())
}

func TestBeginningOfAConnectionIsSeen(t *testing.T) {
	t.Parallel()
	b := set(t)
	stop := b.proxy.Record()
	config := b.config.Copy()
	encrypted := testkit.Do(pgx.ParseConfig("postgres://localhost?sslmode=prefer"))(t)
	config.TLSConfig = encrypted.TLSConfig
	plain := *encrypted.Fallbacks[0]
	plain.Host, plain.Port = config.Host, config.Port
	config.Fallbacks = []*pgconn.FallbackConfig{&plain}

	conn := testkit.Do(pgx.ConnectConfig(t.Context(), config))(t)

	require.NoError(t, conn.Close(t.Context()))
	seen := texts(stop())
	require.Equal(t, []string{"client 2: SSLRequest", "client 3: StartupMessage", "server 3: Authentication"}, seen[:3])
	require.Contains(t, seen, "server 3: BackendKeyData")
}

func TestCutIsWhereItWasAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from    testserver.Side
		name    string
		fault   testserver.Fault
		written int
	}{
		{testserver.FromClient, "Parse", testserver.CloseBefore, 0},
		{testserver.FromClient, "Parse", testserver.ResetWithin, 0},
		{testserver.FromClient, "Execute", testserver.CloseAfter, 0},
		{testserver.FromClient, "Sync", testserver.CloseBefore, 0},
		{testserver.FromClient, "Sync", testserver.CloseWithin, 0},
		{testserver.FromClient, "Sync", testserver.ResetBefore, 0},
		{testserver.FromClient, "Sync", testserver.CloseAfter, 1},
		{testserver.FromServer, "ParseComplete", testserver.CloseBefore, 1},
		{testserver.FromServer, "CommandComplete", testserver.CloseWithin, 1},
		{testserver.FromServer, "CommandComplete", testserver.CloseAfter, 1},
		{testserver.FromServer, "CommandComplete", testserver.ResetBefore, 1},
		{testserver.FromServer, "CommandComplete", testserver.ResetAfter, 1},
		{testserver.FromServer, "ReadyForQuery", testserver.ResetWithin, 1},
	} {
		t.Run(fmt.Sprint(c.from, c.name, c.fault), func(t *testing.T) {
			t.Parallel()
			b := set(t)
			var seen []string
			rule := once(c.from, c.name, c.fault)
			b.proxy.SetRule(func(m testserver.Message) testserver.Fault {
				if m.Conn == 1 {
					seen = append(seen, m.String())
				}
				return rule(m)
			})

			err := b.write(t.Context())

			require.Error(t, err)
			reset := c.fault >= testserver.ResetBefore
			require.Equal(t, reset, errors.Is(err, syscall.ECONNRESET), "%v", err)
			require.Equal(t, !reset, errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF), "%v", err)
			b.awaitEndOfBackend()
			require.Equal(t, c.written, b.written())
			b.proxy.SetRule(nil) // from here on the list is ours
			require.True(t, strings.HasSuffix(seen[len(seen)-1], ": "+c.name), "nothing is asked of a connection that is cut: %v", seen)
		})
	}
}

func TestACutLeavesOtherConnectionsAlone(t *testing.T) {
	t.Parallel()
	b := set(t)
	b.proxy.SetRule(once(testserver.FromClient, "Sync", testserver.CloseBefore))

	require.Error(t, b.write(t.Context()))

	b.conn = b.connect()
	require.NoError(t, b.write(t.Context()))
	require.Equal(t, 1, b.written())
}

func TestHeldMessageArrivesThoughItsSenderIsGone(t *testing.T) {
	t.Parallel()
	b := set(t)
	ctx, leave := context.WithCancel(t.Context())
	holds := make(chan struct{})
	rule := once(testserver.FromClient, "Sync", testserver.Hold)
	b.proxy.SetRule(func(m testserver.Message) testserver.Fault {
		fault := rule(m)
		if fault == testserver.Hold {
			close(holds)
		}
		return fault
	})
	done := testkit.Go(func() error { return b.write(ctx) })
	testkit.Receive(t, "the message is held", holds)
	leave()
	require.ErrorIs(t, testkit.Receive(t, "the call ends", done), context.Canceled)
	require.NoError(t, b.conn.PgConn().Conn().Close())
	require.Equal(t, 1, b.backends(), "it thinks that the client is there")
	require.Equal(t, 0, b.written())

	b.proxy.Release()

	b.awaitEndOfBackend()
	require.Equal(t, 1, b.written())
}

func TestHeldReplyIsLate(t *testing.T) {
	t.Parallel()
	b := set(t)
	holds := make(chan struct{})
	b.proxy.SetRule(func(m testserver.Message) testserver.Fault {
		if m.Name == "ReadyForQuery" {
			close(holds)
			return testserver.Hold
		}
		return testserver.Pass
	})
	done := testkit.Go(func() error { return b.write(t.Context()) })
	testkit.Receive(t, "the message is held", holds)
	require.Equal(t, 1, b.written())
	require.Empty(t, done)

	b.proxy.Release()

	require.NoError(t, testkit.Receive(t, "the call ends", done))
}

// The server has answered, and the client never hears of it.
func TestLostReplyIsNeverHeard(t *testing.T) {
	t.Parallel()
	b := set(t)
	ctx, leave := context.WithCancel(t.Context())
	b.proxy.SetRule(once(testserver.FromServer, "ParseComplete", testserver.Lose))
	done := testkit.Go(func() error { return b.write(ctx) })

	testkit.AwaitEqual(t, "messages that are written", 1, b.written)
	testkit.Do(b.direct.Exec(t.Context(), "select pg_terminate_backend($1)", b.conn.PgConn().PID()))(t)
	b.awaitEndOfBackend()

	require.Empty(t, done, "the end of the server is lost too")
	leave()
	require.ErrorIs(t, testkit.Receive(t, "the call ends", done), context.Canceled)
}

// The client is gone, and the server thinks that it is there.
func TestLostClientIsNotMissed(t *testing.T) {
	t.Parallel()
	b := set(t)
	b.proxy.SetRule(once(testserver.FromClient, "Terminate", testserver.Lose))
	require.NoError(t, b.conn.Close(t.Context()))
	require.Error(t, testkit.ErrorOf(b.conn.Exec(t.Context(), "select 1")))

	require.Equal(t, 1, b.backends())
	require.NoError(t, b.proxy.Close())
	b.awaitEndOfBackend()
}

// The server is gone, and the client thinks that it is there.
func TestForsakenClientIsNotTold(t *testing.T) {
	t.Parallel()
	b := set(t)
	ctx, leave := context.WithCancel(t.Context())
	b.proxy.SetRule(once(testserver.FromClient, "Parse", testserver.Forsake))
	done := testkit.Go(func() error { return b.write(ctx) })

	b.awaitEndOfBackend()

	require.Empty(t, done)
	leave()
	require.ErrorIs(t, testkit.Receive(t, "the call ends", done), context.Canceled)
	require.Equal(t, 0, b.written())
}

func TestWhatDripsArrivesWhole(t *testing.T) {
	t.Parallel()
	b := set(t)
	b.proxy.SetRule(func(testserver.Message) testserver.Fault { return testserver.Drip })
	text := strings.Repeat("drip ", 1000)
	var got string

	require.NoError(t, b.conn.QueryRow(t.Context(), "select $1::text", text).Scan(&got))

	require.Equal(t, text, got)
}

func TestAMessageIsPassedOnThoughTheNextIsNotAllThere(t *testing.T) {
	t.Parallel()
	listener := testkit.Do(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	proxy := testkit.Do(testserver.NewProxy("tcp", listener.Addr().String()))(t)
	defer func() { require.NoError(t, proxy.Close()) }()
	client := testkit.Do(new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", proxy.Port())))(t)
	defer client.Close()
	whole := "\x00\x00\x00\x08\x00\x03\x00\x00" + "Q\x00\x00\x00\x0dselect 1\x00" // a StartupMessage, a Query

	testkit.Do(io.WriteString(client, whole+"Q\x00"))(t)

	server := testkit.Do(listener.Accept())(t)
	defer server.Close()
	require.NoError(t, server.SetReadDeadline(time.Now().Add(testkit.WaitLimit)))
	arrived := make([]byte, len(whole))
	testkit.Do(io.ReadFull(server, arrived))(t)
	require.Equal(t, whole, string(arrived))
}

func TestDroppedCancelRequestCancelsNothing(t *testing.T) {
	t.Parallel()
	b := set(t)
	const blocked = "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'PgSleep')"
	sleeps := func() (found bool) {
		require.NoError(t, b.direct.QueryRow(t.Context(), blocked, b.conn.PgConn().PID()).Scan(&found))
		return found
	}
	done := testkit.Go(func() error { return testkit.ErrorOf(b.conn.Exec(t.Context(), "select pg_sleep(3600)")) })
	testkit.AwaitTrue(t, "the session sleeps", sleeps)

	b.proxy.SetRule(func(testserver.Message) testserver.Fault { return testserver.Drop })
	require.NoError(t, b.conn.PgConn().CancelRequest(t.Context()))
	require.True(t, sleeps())

	b.proxy.SetRule(nil)
	require.NoError(t, b.conn.PgConn().CancelRequest(t.Context()))
	canceled := testkit.As[*pgconn.PgError](t, testkit.Receive(t, "the call ends", done))
	require.Equal(t, "57014", canceled.Code)
}

func TestManyConnectionsAtOnce(t *testing.T) {
	t.Parallel()
	b := set(t)
	n := 0
	b.proxy.SetRule(func(testserver.Message) testserver.Fault {
		n++ // by one goroutine at a time
		return testserver.Pass
	})
	var group sync.WaitGroup
	errs := make(chan error, 8)
	for range 8 {
		group.Go(func() {
			conn, err := pgx.ConnectConfig(t.Context(), b.config)
			if err == nil {
				_, err = conn.Exec(t.Context(), b.insert, pgx.QueryExecModeExec, "noted")
				conn.Close(t.Context())
			}
			errs <- err
		})
	}
	group.Wait()

	for range 8 {
		require.NoError(t, testkit.Receive(t, "the call ends", errs))
	}
	require.Equal(t, 8, b.written())
	b.proxy.SetRule(nil)
	require.Greater(t, n, 8*20)
}

func TestCloseEndsEverything(t *testing.T) {
	t.Parallel()
	b := set(t)
	holds := make(chan struct{})
	b.proxy.SetRule(func(testserver.Message) testserver.Fault {
		close(holds)
		return testserver.Hold
	})
	done := testkit.Go(func() error { return b.write(t.Context()) })
	testkit.Receive(t, "the message is held", holds)

	require.NoError(t, b.proxy.Close())

	require.Error(t, testkit.Receive(t, "the call ends", done))
	require.NoError(t, b.proxy.Close())
	b.awaitEndOfBackend()
	require.ErrorIs(t, testkit.ErrorOf(pgx.ConnectConfig(t.Context(), b.config)), syscall.ECONNREFUSED)
}

func TestServerThatIsNotThereIsAConnectionThatEnds(t *testing.T) {
	t.Parallel()
	proxy := testkit.Do(testserver.NewProxy("unix", t.TempDir()+"/nobody"))(t)
	defer func() { require.NoError(t, proxy.Close()) }()

	_, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://user@127.0.0.1:%d/database?sslmode=disable", proxy.Port()))

	require.Error(t, err)
	require.True(t, errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF), "%v", err)
}

func TestNewConnectionsLeadToTheServerThatTheProxyWasToldOf(t *testing.T) {
	t.Parallel()
	config := pgtest.Connect(t, pgtest.URL(t)).Config().ConnConfig
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	proxy := testkit.Do(testserver.NewProxy(network, nowhere(network)))(t)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	through := config.Copy()
	through.Host, through.Port, through.TLSConfig, through.Fallbacks = "127.0.0.1", proxy.Port(), nil, nil
	connect := func() error {
		conn, err := pgx.ConnectConfig(t.Context(), through)
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err
	}
	require.Error(t, connect())

	proxy.Retarget(address)

	require.NoError(t, connect())
}

// nowhere is an address at which nobody listens.
func nowhere(network string) string {
	if network == "unix" {
		return "/nonexistent"
	}
	return "127.0.0.1:1"
}

func TestWhoWaitsForAnAnswerThatWasLostHearsOfItWhenTheConnectionIsSevered(t *testing.T) {
	t.Parallel()
	b := set(t)
	lost := make(chan struct{})
	b.proxy.SetRule(func(m testserver.Message) testserver.Fault {
		if m.Name != "CommandComplete" {
			return testserver.Pass
		}
		close(lost)
		return testserver.Lose
	})
	ended := testkit.Go(func() error { return b.write(t.Context()) })
	testkit.Receive(t, "the message is lost", lost)

	b.proxy.SetRule(nil)
	b.proxy.Sever()

	require.Error(t, testkit.Receive(t, "the call ends", ended))
	require.Equal(t, 1, b.written())
	b.conn = b.connect()
	require.NoError(t, b.write(t.Context()))
}
