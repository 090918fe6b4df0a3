package redisbroker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/brokers/internal/brokertest"
	redisbroker "github.com/dibs-go/dibs/brokers/redis"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

const (
	stream = string(brokertest.Outgoing)
	group  = "bank"
)

func TestMain(m *testing.M) {
	testkit.ManyAtOnce()
	os.Exit(brokertest.Main(m, func(ctx context.Context, address string, config brokertest.ReceiverConfig) error {
		r, err := newReceiver(newClient(address), config)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}))
}

func TestASinkKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Sinks(t, brokertest.SinkOptions{Once: true, Start: func(t testing.TB) brokertest.SinkBroker { return startServer(t) }})
}

func TestAReceiverKeepsItsPromises(t *testing.T) {
	t.Parallel()
	brokertest.Receivers(t, brokertest.ReceiverOptions{Ordered: true, Start: func(t testing.TB) brokertest.ReceiverBroker { return startServer(t) }})
}

// A server is a Redis of the test's own, on a socket in a folder of its own, that syncs each write.
type server struct {
	*testserver.Process
	dir string
}

// startServer starts a server. Without redis-server the test skips; in CI it fails.
func startServer(t testing.TB) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no redis-server: install the package redis-server")
		}
		t.Skip("no redis-server: install the package redis-server")
	}
	dir, err := os.MkdirTemp("", "redisbroker.") //nolint:usetesting // the path of a socket has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s := &server{dir: dir}
	s.Start(t)
	t.Cleanup(func() { s.Kill(t) })
	return s
}

func (s *server) Start(t testing.TB) {
	t.Helper()
	cmd := exec.Command("redis-server", "--port", "0", "--unixsocket", s.Address(), "--dir", s.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--proto-max-bulk-len", "4mb")
	var err error
	s.Process, err = testserver.Start(cmd, nil, syscall.SIGKILL)
	require.NoError(t, err)
	client := newClient(s.Address())
	defer client.Close()
	require.NoError(t, s.Await(context.Background(), func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.Address())
		if err != nil {
			return err
		}
		return errors.Join(conn.Close(), client.Ping(ctx).Err()) // it reads its file first
	}))
}

func (s *server) Kill(testing.TB) {
	s.Signal(syscall.SIGKILL)
	<-s.Done()
}

func (s *server) Remake(t testing.TB) {
	require.NoError(t, s.client(t).Del(context.Background(), stream, "{"+stream+"}:dibs-sent").Err())
}

func (s *server) Address() string { return filepath.Join(s.dir, "redis.sock") }

func newClient(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Network: "unix", Addr: address, ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1})
}

func (s *server) client(t testing.TB) *redis.Client {
	client := newClient(s.Address())
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func (s *server) Sink(t testing.TB) outbox.Sink {
	return testkit.Must(redisbroker.NewSink(s.client(t), &redisbroker.SinkConfig{Timeout: time.Second}))
}

func (s *server) Arrived(t testing.TB) (all []brokertest.Message) {
	entries, err := s.client(t).XRange(context.Background(), stream, "-", "+").Result()
	require.NoError(t, err)
	for _, e := range entries {
		m := brokertest.Message{Headers: map[string]string{}}
		for name, value := range e.Values {
			m.Headers[name], _ = value.(string)
		}
		m.ID, m.Data = m.Headers[outbox.HeaderID], m.Headers[redisbroker.FieldData]
		m.Key = brokertest.KeyOf(t, m.Headers)
		all = append(all, m)
	}
	return all
}

func (s *server) Publish(t testing.TB, messages ...brokertest.Message) {
	client := s.client(t)
	for _, m := range messages {
		values := map[string]any{outbox.HeaderStream: string(brokertest.Outgoing.Stream(m.Key)), redisbroker.FieldData: m.Data}
		if m.ID != "" {
			values[outbox.HeaderID] = m.ID
		}
		testkit.Await(t, "the stream has "+m.ID, func() (bool, any) {
			err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: stream, Values: values}).Err()
			return err == nil, err
		})
	}
}

func (s *server) Unsettled(t testing.TB) int {
	client := s.client(t)
	groups, err := client.XInfoGroups(context.Background(), stream).Result()
	if err != nil || len(groups) == 0 {
		return 1
	}
	entries, err := client.XRange(context.Background(), stream, "("+groups[0].LastDeliveredID, "+").Result()
	require.NoError(t, err)
	return int(groups[0].Pending) + len(entries)
}

func (s *server) Receiver(t testing.TB, config brokertest.ReceiverConfig) brokertest.Receiver {
	r, err := newReceiver(s.client(t), config)
	require.NoError(t, err)
	return r
}

type suiteReceiver struct{ *redisbroker.Receiver }

func (r suiteReceiver) Stats() brokertest.ReceiverStats {
	return brokertest.ReceiverStats(r.Receiver.Stats())
}

func newReceiver(client *redis.Client, config brokertest.ReceiverConfig) (suiteReceiver, error) {
	r, err := redisbroker.NewReceiver(client, stream, group, func(ctx context.Context, m redis.XMessage) error {
		r, err := redisbroker.Request(m, "transfers")
		return config.Receive(ctx, r, err)
	}, func(ctx context.Context, m redis.XMessage, reason error) error {
		r, _ := redisbroker.Request(m, "transfers")
		return config.Park(ctx, r, reason)
	}, &redisbroker.ReceiverConfig{
		Concurrency: config.Concurrency, Attempts: config.Attempts, MaxDelay: config.MaxDelay, Grace: config.Grace, Logger: config.Logger, Lease: time.Second,
	})
	return suiteReceiver{r}, err
}

func message(key string, global int64, data string) *outbox.Message {
	return &outbox.Message{Topic: stream, Message: &messagestore.Message{
		ID: uuid.New(), Stream: brokertest.Outgoing.Stream(key), GlobalPosition: messagestore.GlobalPosition(global), Type: "Paid", Data: []byte(data),
	}}
}

// Positions are compared as numbers, also those that a number of Lua does not hold, and trimmed
// entries do not come back.
func TestTheStreamHasAMessageOnceAlsoWhereItWasTrimmed(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := s.client(t)
	sink := testkit.Must(redisbroker.NewSink(client, nil))
	all := []*outbox.Message{message("k", 9, "1"), message("k", 10, "2"), message("k", 1<<62, "3"), message("k", 1<<62+1, "4")}
	for _, m := range all {
		require.NoError(t, sink.Send(t.Context(), m))
	}
	require.NoError(t, client.XTrimMaxLen(t.Context(), stream, 0).Err())

	for _, m := range all {
		require.NoError(t, sink.Send(t.Context(), m))
	}

	require.Equal(t, redisbroker.SinkStats{Added: 4, Present: 4}, sink.Stats())
	require.Empty(t, s.Arrived(t))
}

func TestAnotherMessageAtThePositionParks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	sink := testkit.Must(redisbroker.NewSink(s.client(t), nil))
	first := message("k", 7, "1")
	require.NoError(t, sink.Send(t.Context(), first))

	err := sink.Send(t.Context(), message("k", 7, "2"))

	var foreign *redisbroker.ForeignMessageError
	require.ErrorAs(t, err, &foreign)
	require.Equal(t, redisbroker.ForeignMessageError{Stream: stream, Key: "k", ID: first.ID.String()}, *foreign)
	require.True(t, calling.DispositionOf(err).Asks(calling.Park))
	require.NoError(t, sink.Send(t.Context(), message("other", 7, "2")), "another key has positions of its own")
}

// A server that has forgotten its scripts gets them again, in the middle of a call.
func TestAScriptThatIsUnknownIsSent(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := s.client(t)
	sink := testkit.Must(redisbroker.NewSink(client, nil))
	require.NoError(t, sink.Send(t.Context(), message("a", 1, "1")))
	require.NoError(t, client.ScriptFlush(t.Context()).Err())

	for _, err := range sink.SendAll(t.Context(), []*outbox.Message{message("b", 2, "1"), message("c", 3, "1")}) {
		require.NoError(t, err)
	}

	require.Len(t, s.Arrived(t), 3)
}

func TestAKeyThatIsNoStreamIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	client := s.client(t)
	require.NoError(t, client.Set(t.Context(), stream, "a text", 0).Err())

	err := testkit.Must(redisbroker.NewSink(client, nil)).Send(t.Context(), message("k", 1, "1"))

	require.ErrorContains(t, err, "WRONGTYPE")
	require.Nil(t, calling.DispositionOf(err))
	r := s.Receiver(t, brokertest.ReceiverConfig{Receive: func(context.Context, inbox.Request, error) error { return nil }})
	require.ErrorContains(t, r.Run(t.Context()), "WRONGTYPE")
}

// A group that was deleted is made again, and begins with the first entry.
func TestAGroupThatIsDeletedIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	got := make(chan string, 100)
	r := s.Receiver(t, brokertest.ReceiverConfig{Receive: func(_ context.Context, r inbox.Request, _ error) error { got <- r.ID; return nil }})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.Publish(t, brokertest.Message{ID: "one", Key: "k", Data: "1"})
	require.Equal(t, "one", testkit.Receive(t, "a message", got))

	require.NoError(t, s.client(t).Del(t.Context(), stream).Err())
	s.Publish(t, brokertest.Message{ID: "two", Key: "k", Data: "1"})

	require.Equal(t, "two", testkit.Receive(t, "a message", got))
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
}

// While a function goes on for longer than the lease no other receiver has its message.
func TestAMessageInWorkIsExtended(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	s.Publish(t, brokertest.Message{ID: "slow", Key: "k", Data: "1"})
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 2)
	first := s.Receiver(t, brokertest.ReceiverConfig{Receive: func(context.Context, inbox.Request, error) error {
		begun <- struct{}{}
		<-finish
		return nil
	}})
	go func() { ended <- first.Run(ctx) }()
	testkit.Receive(t, "a call of the function", begun)
	client := s.client(t)
	extended := 0
	last := time.Duration(0)

	testkit.Await(t, "the message was extended three times", func() (bool, any) {
		pending, err := client.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: stream, Group: group, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		require.Len(t, pending, 1)
		require.EqualValues(t, 1, pending[0].RetryCount, "it is one delivery")
		if pending[0].Idle < last {
			extended++
		}
		last = pending[0].Idle
		return extended >= 3, extended
	})
	close(finish)
	testkit.AwaitEqual(t, "acknowledged messages", 1, func() int64 { return first.Stats().Acked })
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the run", ended))
}

func TestAnEntryAsARequest(t *testing.T) {
	t.Parallel()
	got, err := redisbroker.Request(redis.XMessage{Values: map[string]any{"dibs-id": "order 17", "data": `{"amount":1}`}}, "transfers")
	require.NoError(t, err)
	require.Equal(t, inbox.Request{ID: "order 17", Source: "transfers", Data: []byte(`{"amount":1}`)}, got)

	for name, m := range map[string]map[string]any{
		"no id":   {"data": "1"},
		"no data": {"dibs-id": "a", "amount": "1"},
		"no JSON": {"dibs-id": "a", "data": "{"},
	} {
		got, err := redisbroker.Request(redis.XMessage{Values: m}, "transfers")
		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.True(t, calling.DispositionOf(err).Asks(calling.Refuse), name)
		require.NotEmpty(t, got.Data, name)
	}
}

func TestMistakesAreToldTogether(t *testing.T) {
	t.Parallel()
	client := newClient("/nowhere")
	defer client.Close()
	f := func(context.Context, redis.XMessage) error { return nil }
	park := func(context.Context, redis.XMessage, error) error { return nil }
	for field, err := range map[string]error{
		"Prefix":      fault(redisbroker.NewSink(client, &redisbroker.SinkConfig{Prefix: strings.Repeat("x", 256)})),
		"Timeout":     fault(redisbroker.NewSink(client, &redisbroker.SinkConfig{Timeout: 1})),
		"client":      fault(redisbroker.NewSink(redis.NewClient(&redis.Options{}), nil)),
		"stream":      fault(redisbroker.NewReceiver(client, "", group, f, park, nil)),
		"group":       fault(redisbroker.NewReceiver(client, stream, "", f, park, nil)),
		"function":    fault(redisbroker.NewReceiver(client, stream, group, nil, park, nil)),
		"park":        fault(redisbroker.NewReceiver(client, stream, group, f, nil, nil)),
		"Concurrency": fault(redisbroker.NewReceiver(client, stream, group, f, park, &redisbroker.ReceiverConfig{Concurrency: 1025})),
		"Lease":       fault(redisbroker.NewReceiver(client, stream, group, f, park, &redisbroker.ReceiverConfig{Lease: 1})),
	} {
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid, field)
		require.Equal(t, field, invalid.Field)
	}
	err := fault(redisbroker.NewReceiver(nil, "", "", nil, nil, &redisbroker.ReceiverConfig{Grace: -1}))
	for _, field := range []string{"client", "stream", "group", "function", "park", "Grace"} {
		require.ErrorContains(t, err, field)
	}
	long := message("k", 1, "1")
	long.Topic = strings.Repeat("x", 3000)
	err = testkit.Must(redisbroker.NewSink(client, nil)).Send(t.Context(), long)
	require.True(t, calling.DispositionOf(err).Asks(calling.Refuse))
	require.Less(t, len(err.Error()), 4000)
}

func fault[T any](_ T, err error) error { return err }
