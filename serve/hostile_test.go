package serve_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

func grpcOf(t *testing.T, url string) servetest.Services {
	t.Helper()
	return servetest.Connect(h2c(t), url, connect.WithGRPC())
}

// answers requires that a client of its own gets an answer.
func answers(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	_, err := grpcOf(t, url).Store.GetLast(ctx, &v1.GetLastRequest{})
	require.NoError(t, err)
}

// A compressed request is refused before it is inflated.
func TestABombIsNotInflated(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), nil)
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, err := w.Write(bytes.Repeat([]byte(" "), 200<<20))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/dibs.v1.IntentService/Reserve", &bomb)
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Encoding", "gzip")
	began := runtimeBytes()
	code, body := do(t, r)
	require.Equal(t, 501, code, body)
	require.Contains(t, body, "gzip")
	require.Less(t, runtimeBytes()-began, uint64(50<<20))
}

func runtimeBytes() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Who opens a stream after another and resets it, or keeps thousands waiting, keeps nobody else
// from an answer; and who sends no header is cut off.
func TestStreamsWithoutEnd(t *testing.T) {
	t.Parallel()
	address, _ := run(t, open(t), nil, serve.Listen{Address: "127.0.0.1:0"})
	url := "http://" + address
	slow, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer slow.Close()
	_, err = io.WriteString(slow, "POST /dibs.v1.StoreService/GetLast HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	require.NoError(t, err)

	s := grpcOf(t, url)
	receive := func(ctx context.Context) error {
		_, err := s.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: &v1.QueueName{Category: "mail"}, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
		return err
	}
	var calls sync.WaitGroup
	for range 2000 { // resets
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_ = receive(ctx)
		})
	}
	ctx, hangUp := context.WithCancel(t.Context())
	for range 3000 { // that wait
		calls.Go(func() { _ = receive(ctx) })
	}
	answers(t, url)
	hangUp()
	calls.Wait()
	requireWaiting(t, grpcOf(t, url), &v1.QueueName{Category: "mail"}, 0)

	// The slow one has 5 seconds.
	require.NoError(t, slow.SetReadDeadline(time.Now().Add(testkit.WaitLimit)))
	_, err = io.ReadAll(slow)
	require.NoError(t, err, "it is closed")
}

// A follower that does not read holds one page, and nobody else.
func TestAFollowerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), nil)
	writer := grpcOf(t, url)
	stream, err := grpcOf(t, url).Store.FollowCategory(t.Context(), &v1.FollowCategoryRequest{Category: "big"})
	require.NoError(t, err)
	text := strings.Repeat("x", 500<<10)
	const messages = 60
	for n := range messages {
		_, err := writer.Store.Write(t.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{{
			Stream: fmt.Sprintf("big-%d", n), ExpectedVersion: proto.Int64(-1), Messages: []*v1.NewMessage{{Id: uuid.NewString(), Type: "T", DataJson: `{"text":"` + text + `"}`}},
		}}})
		require.NoError(t, err)
	}
	answers(t, url)
	// When it reads, it has missed nothing. If the writes took so long that it was cut off, it goes
	// on where it was.
	seen, next := 0, int64(0)
	for attempt := 0; seen < messages; attempt++ {
		require.Less(t, attempt, 5, "%v", stream.Err())
		for seen < messages && stream.Receive() {
			seen, next = seen+len(stream.Msg().GetMessages()), stream.Msg().GetNextPosition()
			require.Less(t, proto.Size(stream.Msg()), 4<<20, "a frame that a client takes")
		}
		if seen < messages {
			stream, err = grpcOf(t, url).Store.FollowCategory(t.Context(), &v1.FollowCategoryRequest{Category: "big", FromPosition: next})
			require.NoError(t, err)
		}
	}
	require.Equal(t, messages, seen)
}

// Two servers, one store: a step may be repeated at the other.
func TestAConfirmationAtTwoServers(t *testing.T) {
	t.Parallel()
	store := open(t)
	a, b := grpcOf(t, start(t, store, nil)), grpcOf(t, start(t, store, nil))
	granted, err := reserve(a, "pay:intent", "s")
	require.NoError(t, err)
	l := granted.GetLease()
	for _, test := range []struct {
		s      servetest.Services
		result string
		want   v1.LeaseOutcome
	}{
		{a, `{"n":1}`, v1.LeaseOutcome_LEASE_OUTCOME_OK},
		{b, `{"n":1}`, v1.LeaseOutcome_LEASE_OUTCOME_OK},
		{b, `{"n":2}`, v1.LeaseOutcome_LEASE_OUTCOME_LOST},
		{a, `{"n":1}`, v1.LeaseOutcome_LEASE_OUTCOME_OK},
	} {
		got, err := test.s.Intents.Confirm(t.Context(), &v1.ConfirmRequest{Lease: l, ResultJson: test.result})
		require.NoError(t, err)
		require.Equal(t, test.want, got.GetOutcome())
	}
	q := &v1.QueueName{Category: "mail"}
	_, err = a.Queues.Produce(t.Context(), &v1.ProduceRequest{Queue: q, Items: []*v1.NewItem{{Id: uuid.NewString(), Type: "Send", DataJson: `{}`}}})
	require.NoError(t, err)
	r := &v1.ReceiveRequest{Queue: q, ReceiveId: uuid.NewString()}
	_, err = a.Queues.Receive(t.Context(), r)
	require.NoError(t, err)
	r.Attempt = 1
	again, err := b.Queues.Receive(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, again.GetDeliveries(), 1)
	settlement := []*v1.Settlement{{DeliveryId: again.GetDeliveries()[0].GetDeliveryId(), Action: &v1.Settlement_Complete_{}}}
	for _, s := range []servetest.Services{a, b} {
		settled, err := s.Queues.Settle(t.Context(), &v1.SettleRequest{Queue: q, Settlements: settlement})
		require.NoError(t, err)
		require.Equal(t, []v1.SettlementOutcome{v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE}, settled.GetOutcomes())
	}
}

// A store that does not answer costs the caller its deadline and not more, and is used again as
// soon as it is back.
func TestAStoreThatIsSlow(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/dibs.db"
	store, err := dibs.Open(t.Context(), "sqlite:"+file, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := grpcOf(t, start(t, store, nil))
	_, err = reserve(s, "pay:intent", "s")
	require.NoError(t, err)
	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "begin immediate")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = s.Intents.Reserve(ctx, &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k2"}, SessionId: "s", ContentJson: `1`})
	require.Contains(t, []connect.Code{connect.CodeUnavailable, connect.CodeDeadlineExceeded}, connect.CodeOf(err), "%v", err)
	_, err = conn.ExecContext(t.Context(), "rollback")
	require.NoError(t, err)
	answer, err := s.Intents.Reserve(t.Context(), &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k2"}, SessionId: "s", ContentJson: `1`})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RESERVED, answer.GetOutcome())
}

// While PostgreSQL is away calls are answered with unavailable, and when it is back, with what they
// asked for.
func TestAStoreThatIsAway(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedOn(t, pgtest.Server(t))
	store, err := dibs.Open(t.Context(), url, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	s := grpcOf(t, start(t, store, nil))
	_, err = reserve(s, "pay:intent", "s")
	require.NoError(t, err)
	again := pgtest.Stop(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	began := time.Now()
	_, err = s.Intents.Reserve(ctx, &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k2"}, SessionId: "s", ContentJson: `1`})
	requireCode(t, connect.CodeUnavailable, err)
	require.NotContains(t, err.Error(), "postgres", "a client is not told where the store is")
	require.Less(t, time.Since(began), 5*time.Second)
	again()
	testkit.AwaitTrue(t, "the store is used again", func() bool {
		answer, err := s.Intents.Reserve(t.Context(), &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k2"}, SessionId: "s", ContentJson: `1`})
		return err == nil && answer.GetOutcome() == v1.Outcome_OUTCOME_RESERVED
	})
}

// Calls above the limit are refused at once, and those that are in go on.
func TestTooManyCallsWait(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), &serve.Config{MaxWaiting: 5})
	s := grpcOf(t, url)
	q := &v1.QueueName{Category: "mail"}
	receive := func() (*v1.ReceiveResponse, error) {
		return s.Queues.Receive(t.Context(), &v1.ReceiveRequest{Queue: q, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
	}
	served := make(chan int, 5)
	for range 5 {
		go func() {
			got, _ := receive()
			served <- len(got.GetDeliveries())
		}()
	}
	requireWaiting(t, s, q, 5)
	for range 20 {
		_, err := receive()
		requireCode(t, connect.CodeResourceExhausted, err)
		requireRetryInfo(t, err)
	}
	for range 5 {
		_, err := s.Queues.Produce(t.Context(), &v1.ProduceRequest{Queue: q, Items: []*v1.NewItem{{Id: uuid.NewString(), Type: "Send", DataJson: `{}`}}})
		require.NoError(t, err)
		require.Equal(t, 1, testkit.Receive(t, "an item", served))
	}
}
