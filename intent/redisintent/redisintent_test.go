package redisintent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/intent/redisintent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const category messagestore.Category = "payment:intent"

type order struct {
	Amount int `json:"amount"`
}

type receipt struct {
	Number string `json:"number"`
}

// A server is a Redis of the test's own, on a socket in a folder of its own.
type server struct {
	*testserver.Process
	dir     string
	durable bool
}

// newServer starts one that is as durable as Redis can be. Without redis-server the test skips; in
// CI it fails.
func newServer(t *testing.T) *server {
	t.Helper()
	return startServer(t, true)
}

func startServer(t *testing.T, durable bool) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no redis-server: install the package redis-server")
		}
		t.Skip("no redis-server: install the package redis-server")
	}
	dir, err := os.MkdirTemp("", "redisintent.") //nolint:usetesting // the path of a socket has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &server{dir: dir, durable: durable}
	s.start(t)
	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	args := []string{"--port", "0", "--unixsocket", s.socket(), "--dir", s.dir, "--save", "", "--appendonly", "no"}
	if s.durable {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	cmd := exec.Command("redis-server", args...)
	var err error
	s.Process, err = testserver.Start(cmd, nil, syscall.SIGKILL)
	require.NoError(t, err)
	t.Cleanup(func() { s.kill() })
	require.NoError(t, s.Await(t.Context(), func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket())
		if err != nil {
			return err
		}
		return conn.Close()
	}))
}

func (s *server) kill() {
	s.Signal(syscall.SIGKILL)
	<-s.Done()
}

func (s *server) socket() string { return filepath.Join(s.dir, "redis.sock") }

func (s *server) client() *redis.Client {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1})
}

// open returns a client and a store over it.
func (s *server) open(t *testing.T) (*redis.Client, *redisintent.Store) {
	t.Helper()
	client := s.client()
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	store, err := redisintent.New(client, nil)
	require.NoError(t, err)
	return client, store
}

func manager(t *testing.T, store intent.Store) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, category, &intent.Config{TTL: time.Hour})
	require.NoError(t, err)
	return m
}

func request(session string) intent.Request {
	return intent.Request{Key: "k", Session: session, Content: order{100}}
}

func reserve(t *testing.T, m *intent.Manager, r intent.Request) intent.Answer {
	t.Helper()
	a, err := m.Reserve(t.Context(), r)
	require.NoError(t, err)
	return a
}

func lease(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
	t.Helper()
	a := reserve(t, m, r)
	require.Equal(t, intent.Reserved, a.Outcome)
	return a.Lease
}

func TestFourAnswers(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	m := manager(t, store)
	began, err := store.Now(t.Context())
	require.NoError(t, err)

	first := lease(t, m, request("A"))
	held := reserve(t, m, request("B"))
	reused := reserve(t, m, intent.Request{Key: "k", Content: order{200}})
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, first.Confirm(t.Context(), receipt{"R1"}))
	done := reserve(t, m, request("B"))

	require.GreaterOrEqual(t, first.Token(), began.UnixMicro(), "it is of Redis's clock")
	require.Equal(t, intent.Held, held.Outcome)
	require.Equal(t, "A", held.Intent.Session)
	require.Equal(t, first.Token(), held.Intent.Since.UnixMicro())
	require.Equal(t, held.Intent.Since.Add(time.Hour), held.Intent.Until)
	require.Positive(t, held.Intent.Left)
	require.Equal(t, intent.KeyReused, reused.Outcome)
	require.Equal(t, intent.Done, done.Outcome)
	result, err := intent.Result[receipt](done)
	require.NoError(t, err)
	require.Equal(t, receipt{"R1"}, result)
	require.ErrorIs(t, first.Confirm(t.Context(), receipt{"R2"}), intent.ErrLeaseLost)
	require.NoError(t, first.Confirm(t.Context(), receipt{"R1"}), "the same again")
}

func TestOfManyOneIsGrantedTheLease(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	m := manager(t, store)
	var granted, held atomic.Int64

	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			a, err := m.Reserve(t.Context(), request(""))
			switch {
			case err != nil:
				t.Error(err)
			case a.Outcome == intent.Reserved:
				granted.Add(1)
			case a.Outcome == intent.Held:
				held.Add(1)
			}
		})
	}
	all.Wait()

	require.Equal(t, int64(1), granted.Load())
	require.Equal(t, int64(31), held.Load())
}

func TestWaiterTakesALeaseThatIsOverAndTheLateHolderIsRefused(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	m := manager(t, store)
	late := lease(t, m, intent.Request{Key: "k", Session: "A", Content: order{100}, TTL: 100 * time.Millisecond})

	next := lease(t, m, intent.Request{Key: "k", Session: "B", Content: order{100}, Wait: time.Minute})

	require.Greater(t, next.Token(), late.Token())
	require.GreaterOrEqual(t, next.Cause().Time.Sub(late.Cause().Time), 100*time.Millisecond)
	require.Equal(t, 2, next.Attempt())
	for step, err := range map[string]error{
		"extend":  late.Extend(t.Context()),
		"confirm": late.Confirm(t.Context(), receipt{"late"}),
		"release": late.Release(t.Context(), "late"),
	} {
		lost, ok := errors.AsType[*intent.LeaseLostError](err)
		require.True(t, ok, step)
		require.Equal(t, next.Token(), lost.By.Token, step)
	}
	require.NoError(t, next.Confirm(t.Context(), receipt{"in time"}))
}

func TestReleasedIntentIsTheWaiters(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	m := manager(t, store)
	first := lease(t, m, request("A"))
	granted := make(chan intent.Answer, 1)
	go func() {
		a, err := m.Reserve(t.Context(), intent.Request{Key: "k", Session: "B", Content: order{100}, Wait: time.Minute})
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		granted <- a
	}()
	testkit.AwaitEqual(t, "sessions in the line", 1, func() int {
		i, err := m.Lookup(t.Context(), "", "k")
		require.NoError(t, err)
		return len(i.Line)
	})

	require.NoError(t, first.Release(t.Context(), "no money"))

	a := testkit.Receive(t, "the waiter is answered", granted)
	require.Equal(t, intent.Reserved, a.Outcome)
	require.Equal(t, 2, a.Lease.Attempt())
	require.Greater(t, a.Lease.Token(), first.Token())
}

func TestLeaseIsResumedElsewhereWithItsMetadata(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	_, here := s.open(t)
	_, there := s.open(t)
	r := request("A")
	r.Scope = "29401"
	r.Metadata.Properties = messagestore.Properties{"tenant": "north"}
	granted := lease(t, manager(t, here), r)

	resumed, err := manager(t, there).Resume(t.Context(), "29401", "k", "A", granted.Token())
	require.NoError(t, err)
	require.NoError(t, resumed.Confirm(t.Context(), nil))

	last, err := here.Last(t.Context(), granted.Stream())
	require.NoError(t, err)
	require.Equal(t, intentlog.TypeConfirmed, last.Type)
	require.Equal(t, "north", last.Metadata.Properties.Get("tenant"))
	_, err = manager(t, there).Resume(t.Context(), "29401", "other", "A", granted.Token())
	require.ErrorIs(t, err, messagestore.ErrNotFound)
}

// A forgetful hook has commands carried out and loses their answers.
type forgetful struct{ losses, written atomic.Int64 }

func (*forgetful) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if script, ok := cmd.(*redis.Cmd); ok {
			if said, _ := script.Slice(); len(said) == 2 {
				f.written.Add(1)
			}
		}
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") && f.losses.Add(-1) >= 0 {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return err
	}
}

func TestStepWhoseAnswerIsLostIsRepeatedAndDoneOnce(t *testing.T) {
	t.Parallel()
	client, store := newServer(t).open(t)
	f := &forgetful{}
	client.AddHook(f)
	m := manager(t, store)

	f.losses.Store(2)
	l := lease(t, m, request("A"))
	f.losses.Store(2)
	require.NoError(t, l.Extend(t.Context()))
	f.losses.Store(2)
	require.NoError(t, l.Confirm(t.Context(), receipt{"R1"}))

	last, err := store.Last(t.Context(), l.Stream())
	require.NoError(t, err)
	require.Equal(t, intentlog.TypeConfirmed, last.Type)
	require.Equal(t, 1, l.Attempt())
	require.Equal(t, int64(3), f.written.Load(), "each step once")
}

func TestStepThatIsNotAnsweredIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	client, store := newServer(t).open(t)
	f := &forgetful{}
	client.AddHook(f)
	m := manager(t, store)

	f.losses.Store(3)
	_, err := m.Reserve(t.Context(), request("A"))

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, intent.Reserved, reserve(t, m, request("A")).Outcome, "the session asks again")
	require.Equal(t, intent.Held, reserve(t, m, request("B")).Outcome)
}

func TestRepeatedMessageIsADuplicateAndItsIDIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	message := messagestore.Envelope{ID: [16]byte{15: 1}, Body: messagestore.Raw{Type: "Paid", Data: []byte(`{"n": 1}`)}}

	first, met, err := store.TryWrite(t.Context(), "payment-1", messagestore.NoStream, message)
	require.NoError(t, err)
	require.Nil(t, met)
	require.False(t, first.Duplicate)
	for _, expected := range []messagestore.Version{messagestore.NoStream, messagestore.AnyVersion, first.Version} {
		again, met, err := store.TryWrite(t.Context(), "payment-1", expected, message)
		require.NoError(t, err)
		require.Nil(t, met)
		require.True(t, again.Duplicate)
		again.Duplicate = false
		require.Equal(t, first, again)
	}
	message.Body = messagestore.Raw{Type: "Paid", Data: []byte(`{"n": 2}`)}
	_, _, err = store.TryWrite(t.Context(), "payment-1", messagestore.NoStream, message)

	require.ErrorIs(t, err, messagestore.ErrIDConflict)
}

func TestVersionIsComparedOrAny(t *testing.T) {
	t.Parallel()
	_, store := newServer(t).open(t)
	paid := messagestore.Raw{Type: "Paid", Data: []byte(`{}`)}
	write := func(expected messagestore.Version) (messagestore.Written, *messagestore.Conflict) {
		written, met, err := store.TryWrite(t.Context(), "payment-1", expected, paid)
		require.NoError(t, err)
		return written, met
	}

	_, empty := write(0)
	before, err := store.Now(t.Context())
	require.NoError(t, err)
	first, _ := write(messagestore.NoStream)
	second, _ := write(messagestore.AnyVersion)
	third, _ := write(second.Version)
	_, met := write(second.Version)

	require.Equal(t, []*messagestore.Message{nil}, empty.Last)
	require.Equal(t, first.Time.UnixMicro(), int64(first.Version))
	require.Greater(t, second.Version, first.Version)
	require.Greater(t, third.Version, second.Version)
	require.False(t, first.Time.Before(before))
	require.False(t, second.Time.Before(first.Time))
	require.Equal(t, third.Version, met.Last[0].Position)
	require.Equal(t, third.Time, met.Last[0].Time)
	require.Equal(t, third.IDs[0], met.Last[0].ID)
	require.False(t, met.Time.Before(third.Time))
}

func TestWhatRedisCannotDoIsNotSupportedAndWritesNothing(t *testing.T) {
	t.Parallel()
	client, store := newServer(t).open(t)
	m := manager(t, store)
	l := lease(t, m, request("A"))
	paid := messagestore.Raw{Type: "Paid", Data: []byte(`{}`)}

	_, err := m.Reserve(t.Context(), intent.Request{Key: "a", With: []string{"b"}, Content: order{100}})
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	require.ErrorIs(t, l.Confirm(t.Context(), nil, messagestore.To("payment-1", messagestore.NoStream, paid)), messagestore.ErrNotSupported)
	_, _, err = store.TryWriteStreams(t.Context(), l.Confirmation(nil)...)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	_, _, err = store.TryWrite(t.Context(), "payment-1", messagestore.NoStream, paid, paid)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
	_, err = m.List(t.Context(), intent.Filter{})
	require.ErrorIs(t, err, messagestore.ErrNotSupported)

	require.NoError(t, l.Err(), "the lease lives on")
	require.NoError(t, l.Confirm(t.Context(), nil))
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Equal(t, []string{"payment:intent-k"}, keys)
}

func TestConfirmedOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	_, store := s.open(t)
	m := manager(t, store)
	require.NoError(t, lease(t, m, request("A")).Confirm(t.Context(), receipt{"R1"}))

	s.kill()
	_, err := m.Reserve(t.Context(), request("B"))
	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	s.start(t)

	done := reserve(t, m, request("B"))
	require.Equal(t, intent.Done, done.Outcome)
	result, err := intent.Result[receipt](done)
	require.NoError(t, err)
	require.Equal(t, receipt{"R1"}, result)
}

func TestAfterALossTokensRiseAndTheHolderFromBeforeIsRefused(t *testing.T) {
	t.Parallel()
	client, store := newServer(t).open(t)
	m := manager(t, store)
	lost := lease(t, m, request("A"))

	require.NoError(t, client.FlushAll(t.Context()).Err())
	next := lease(t, m, request("B"))

	require.Greater(t, next.Token(), lost.Token())
	require.ErrorIs(t, lost.Confirm(t.Context(), nil), intent.ErrLeaseLost)
	require.NoError(t, next.Confirm(t.Context(), nil))
}

func TestOtherProgramsKeyIsCorruptAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	client, store := newServer(t).open(t)
	m := manager(t, store)
	for key, set := range map[string]*redis.Cmd{
		"hash": client.Do(t.Context(), "hset", "payment:intent-hash", "owner", "somebody"),
		"text": client.Do(t.Context(), "set", "payment:intent-text", "somebody"),
	} {
		require.NoError(t, set.Err())
		before, err := client.Dump(t.Context(), "payment:intent-"+key).Result()
		require.NoError(t, err)

		_, err = m.Reserve(t.Context(), intent.Request{Key: key, Content: order{100}})
		require.ErrorIs(t, err, intent.ErrCorrupt)
		_, err = m.Lookup(t.Context(), "", key)
		require.ErrorIs(t, err, intent.ErrCorrupt)

		after, err := client.Dump(t.Context(), "payment:intent-"+key).Result()
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := s.client()
	defer client.Close()
	client.Options().ReadTimeout = testkit.WaitLimit // far above that of the context
	store, err := redisintent.New(client, nil)
	require.NoError(t, err)
	m := manager(t, store)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = store.TryWrite(done, "payment-1", messagestore.NoStream, messagestore.Raw{Type: "Paid", Data: []byte(`{}`)})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)

	defer s.Signal(syscall.SIGCONT)
	timeout := 25 * time.Millisecond
	testkit.Await(t, "a request is sent within its time", func() (bool, any) {
		timeout *= 2
		s.Signal(syscall.SIGCONT)
		_ = lease(t, m, request("A")) // there is a connection
		s.Signal(syscall.SIGSTOP)
		short, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		began := time.Now()
		_, err := m.Reserve(short, request("B"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(began), testkit.WaitLimit, "go-redis waits for its own time")
		return errors.Is(err, messagestore.ErrOutcomeUnknown), err
	})
}

func TestClientThatOutlastsItsContextIsRefused(t *testing.T) {
	t.Parallel()
	late := redis.NewClient(&redis.Options{Network: "unix", Addr: "none"})
	defer late.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true, Addrs: []string{"none"},
		Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("not to be dialed") },
	})
	defer cluster.Close()
	var none *redis.Client

	for _, client := range []redis.UniversalClient{late, none, nil} {
		_, err := redisintent.New(client, nil)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	}
	_, err := redisintent.New(cluster, &redisintent.Config{})
	require.NoError(t, err)
}
