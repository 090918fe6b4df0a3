package serve_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

// follow starts to follow the keys of a store.
func follow(t *testing.T, store *messagestore.Store) *serve.Keys {
	t.Helper()
	keys, err := serve.FollowKeys(t.Context(), store, logger.Silent())
	require.NoError(t, err)
	return keys
}

// as returns clients that send a key.
func as(t *testing.T, url, key string) servetest.Services {
	t.Helper()
	return servetest.Connect(h2c(t), url, connect.WithGRPC(), connect.WithInterceptors(withKey(key)))
}

type withKey string

func (k withKey) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		r.Header().Set("Authorization", "Bearer "+string(k))
		return next(ctx, r)
	}
}

func (k withKey) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(k))
		return conn
	}
}

func (withKey) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func addKey(t *testing.T, store *messagestore.Store, k serve.Key) string {
	t.Helper()
	text, err := serve.AddKey(t.Context(), store, k)
	require.NoError(t, err)
	return text
}

func reserve(s servetest.Services, category, session string) (*v1.ReserveResponse, error) {
	return s.Intents.Reserve(context.Background(), &v1.ReserveRequest{
		Name: &v1.IntentName{Category: category, Key: "k"}, SessionId: session, ContentJson: `{"amount":10}`, Ttl: durationpb.New(time.Hour),
	})
}

func requireCode(t *testing.T, code connect.Code, err error) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code.String(), connect.CodeOf(err).String(), "%v", err)
}

func TestWithoutAKeyEverybodyMayCallUntilThereIsOne(t *testing.T) {
	t.Parallel()
	store := open(t)
	url := start(t, store, &serve.Config{Keys: follow(t, store)})
	_, err := reserve(as(t, url, ""), "pay:intent", "s")
	require.NoError(t, err)
	key := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"*"}, Right: serve.Write})
	anonymous := as(t, url, "")
	testkit.AwaitTrue(t, "a call without a key is refused", func() bool {
		_, err := reserve(anonymous, "pay:intent", "s")
		return connect.CodeOf(err) == connect.CodeUnauthenticated
	})
	_, err = reserve(as(t, url, key), "pay:intent", "s2")
	require.NoError(t, err)
}

func TestKeysAndRights(t *testing.T) {
	t.Parallel()
	store := open(t)
	writes := addKey(t, store, serve.Key{ID: "writes", Categories: []string{"pay"}, Right: serve.Write})
	reads := addKey(t, store, serve.Key{ID: "reads", Categories: []string{"pay"}, Right: serve.Read})
	operates := addKey(t, store, serve.Key{ID: "operates", Categories: []string{"*"}, Right: serve.Operate})
	short := addKey(t, store, serve.Key{ID: "short", Categories: []string{"*"}, Right: serve.Write, Expires: time.Now().Add(-time.Second)})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})

	for _, wrong := range []string{"", "x", "dibs_", "dibs_writes_", "dibs_writes_00", "dibs_nobody" + strings.TrimPrefix(writes, "dibs_writes"), writes[:len(writes)-1], writes + "0", short} {
		_, err := reserve(as(t, url, wrong), "pay:intent", "s")
		requireCode(t, connect.CodeUnauthenticated, err)
	}
	for _, category := range []string{"pay:intent", "pay:intent+x"} {
		_, err := reserve(as(t, url, writes), category, "s")
		require.NoError(t, err)
	}
	// A foreign category is refused in the same words whether it exists or not.
	_, err := reserve(as(t, url, operates), "secret:intent", "s")
	require.NoError(t, err)
	var texts []string
	for _, category := range []string{"secret:intent", "nosuch:intent", "payments:intent", string(serve.KeyCategory)} {
		_, err := reserve(as(t, url, writes), category, "s")
		requireCode(t, connect.CodePermissionDenied, err)
		texts = append(texts, err.Error())
	}
	for _, text := range texts {
		require.Equal(t, texts[0], text)
	}
	_, err = reserve(as(t, url, reads), "pay:intent", "s")
	requireCode(t, connect.CodePermissionDenied, err)
	_, err = as(t, url, reads).Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}})
	require.NoError(t, err)
	_, err = as(t, url, writes).Admin.PauseQueue(t.Context(), &v1.PauseQueueRequest{Queue: &v1.QueueName{Category: "pay"}})
	requireCode(t, connect.CodePermissionDenied, err)
	_, err = as(t, url, operates).Admin.ForceRelease(t.Context(), &v1.ForceReleaseRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}, Reason: "it hangs"})
	require.NoError(t, err)
	released, err := store.Last(t.Context(), "pay:intent-k")
	require.NoError(t, err)
	require.Contains(t, string(released.Data), `"operates"`, "who did it")
	// Keys are nobody's to write or to read, not even an operator's.
	stream := string(serve.KeyCategory) + "-writes"
	_, err = as(t, url, operates).Store.ReadStream(t.Context(), &v1.ReadStreamRequest{Stream: stream})
	requireCode(t, connect.CodePermissionDenied, err)
	_, err = as(t, url, operates).Store.Write(t.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{{Stream: stream, ExpectedVersion: proto.Int64(-2)}}})
	requireCode(t, connect.CodePermissionDenied, err)
}

func TestSessionsBelongToTheirKey(t *testing.T) {
	t.Parallel()
	store := open(t)
	ann := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"pay"}, Right: serve.Write})
	bob := addKey(t, store, serve.Key{ID: "bob", Categories: []string{"pay"}, Right: serve.Write})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})

	mine, err := reserve(as(t, url, ann), "pay:intent", "s")
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RESERVED, mine.GetOutcome())

	held, err := reserve(as(t, url, bob), "pay:intent", "other")
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_HELD, held.GetOutcome())
	require.Empty(t, held.GetIntent().GetSessionId())
	require.Zero(t, held.GetIntent().GetFencingToken())
	require.Equal(t, "ann", held.GetIntent().GetKeyId())

	// Of a line each key knows its own sessions, and how many others there are.
	name := mine.GetLease().GetName()
	waiting, leave := context.WithCancel(t.Context())
	left := testkit.Go(func() error {
		_, err := as(t, url, ann).Intents.Reserve(waiting, &v1.ReserveRequest{Name: name, SessionId: "waits", ContentJson: `{"amount":10}`, MaxWait: durationpb.New(time.Minute)})
		return err
	})
	for key, line := range map[string][]string{ann: {"waits"}, bob: {""}} {
		testkit.AwaitTrue(t, "it stands in the line", func() bool {
			got, err := as(t, url, key).Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: name})
			require.NoError(t, err)
			return slices.Equal(line, got.GetIntent().GetLine())
		})
	}
	leave()
	require.Error(t, testkit.Receive(t, "it leaves the line", left))

	// The same name of a session is another session.
	held, err = reserve(as(t, url, bob), "pay:intent", "s")
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_HELD, held.GetOutcome())

	// Even who knows session and token can do nothing with them.
	for _, session := range []string{"s", "ann/s"} {
		stolen := proto.CloneOf(mine.GetLease())
		stolen.SessionId = session
		confirmed, err := as(t, url, bob).Intents.Confirm(t.Context(), &v1.ConfirmRequest{Lease: stolen, ResultJson: `{}`})
		require.NoError(t, err)
		require.Equal(t, v1.LeaseOutcome_LEASE_OUTCOME_LOST, confirmed.GetOutcome())
	}
	// Nor does a write to the intent's stream get around that.
	stream := "pay:intent-k"
	_, err = as(t, url, bob).Store.GetLast(t.Context(), &v1.GetLastRequest{Stream: stream})
	requireCode(t, connect.CodePermissionDenied, err)
	_, err = as(t, url, bob).Store.ReadStream(t.Context(), &v1.ReadStreamRequest{Stream: stream})
	requireCode(t, connect.CodePermissionDenied, err)
	follow, err := as(t, url, bob).Store.FollowCategory(t.Context(), &v1.FollowCategoryRequest{Category: "pay:intent"})
	require.NoError(t, err)
	require.False(t, follow.Receive())
	requireCode(t, connect.CodePermissionDenied, follow.Err())
	_, err = as(t, url, bob).Store.Write(t.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{{
		Stream: stream, ExpectedVersion: proto.Int64(0), Messages: []*v1.NewMessage{{Id: uuid.NewString(), Type: "Confirmed", DataJson: `{}`}},
	}}})
	requireCode(t, connect.CodePermissionDenied, err)

	_, err = as(t, url, bob).Queues.Produce(t.Context(), &v1.ProduceRequest{Queue: &v1.QueueName{Category: "pay:intent"}, Items: []*v1.NewItem{{
		Id: uuid.NewString(), Type: "Confirmed", DataJson: `{}`, Key: "k",
	}}})
	requireCode(t, connect.CodePermissionDenied, err)
	for _, own := range []string{"pay:policy-pay", "pay:position-x", "pay:saga-1", "pay+intent-k"} {
		_, err = as(t, url, bob).Store.Write(t.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{{
			Stream: own, ExpectedVersion: proto.Int64(-2), Messages: []*v1.NewMessage{{Id: uuid.NewString(), Type: "T", DataJson: `{}`}},
		}}})
		require.Contains(t, []connect.Code{connect.CodePermissionDenied, connect.CodeInvalidArgument}, connect.CodeOf(err), own)
	}
	_, err = as(t, url, bob).Queues.Receive(t.Context(), &v1.ReceiveRequest{Queue: &v1.QueueName{Category: "pay:intent", Queue: "pay:steal"}, ReceiveId: uuid.NewString()})
	requireCode(t, connect.CodePermissionDenied, err)

	got, err := as(t, url, ann).Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: mine.GetLease().GetName()})
	require.NoError(t, err)
	require.Equal(t, "s", got.GetIntent().GetSessionId())
	confirmed, err := as(t, url, ann).Intents.Confirm(t.Context(), &v1.ConfirmRequest{Lease: mine.GetLease(), ResultJson: `{}`})
	require.NoError(t, err)
	require.Equal(t, v1.LeaseOutcome_LEASE_OUTCOME_OK, confirmed.GetOutcome())
}

// A receive_id of another key gets nothing of its deliveries.
func TestReceivesBelongToTheirKey(t *testing.T) {
	t.Parallel()
	store := open(t)
	ann := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"mail"}, Right: serve.Write})
	bob := addKey(t, store, serve.Key{ID: "bob", Categories: []string{"mail"}, Right: serve.Write})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})
	q := &v1.QueueName{Category: "mail"}
	_, err := as(t, url, ann).Queues.Produce(t.Context(), &v1.ProduceRequest{Queue: q, Items: []*v1.NewItem{{Id: uuid.NewString(), Type: "Send", DataJson: `{}`}}})
	require.NoError(t, err)
	r := &v1.ReceiveRequest{Queue: q, ReceiveId: uuid.NewString()}
	got, err := as(t, url, ann).Queues.Receive(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, got.GetDeliveries(), 1)
	r.Attempt = 1
	got, err = as(t, url, bob).Queues.Receive(t.Context(), r)
	require.NoError(t, err)
	require.Empty(t, got.GetDeliveries())
	got, err = as(t, url, ann).Queues.Receive(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, got.GetDeliveries(), 1)
}

// A key that ends by itself ends its calls that wait, too.
func TestAnExpiredKeyEndsItsCalls(t *testing.T) {
	t.Parallel()
	store := open(t)
	key := addKey(t, store, serve.Key{ID: "short", Categories: []string{"mail"}, Right: serve.Write, Expires: time.Now().Add(time.Second)})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})
	_, err := as(t, url, key).Queues.Receive(t.Context(), &v1.ReceiveRequest{Queue: &v1.QueueName{Category: "mail"}, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
	requireCode(t, connect.CodeUnauthenticated, err)
}

// Nobody takes the name of a queue in another's category, by which its owner could receive nothing
// more.
func TestNamesOfQueuesBelongToCategories(t *testing.T) {
	t.Parallel()
	store := open(t)
	other := addKey(t, store, serve.Key{ID: "other", Categories: []string{"other"}, Right: serve.Write})
	owner := addKey(t, store, serve.Key{ID: "owner", Categories: []string{"mail"}, Right: serve.Write})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})
	receive := func(key, category, name string) error {
		_, err := as(t, url, key).Queues.Receive(t.Context(), &v1.ReceiveRequest{Queue: &v1.QueueName{Category: category, Queue: name}, ReceiveId: uuid.NewString()})
		return err
	}
	requireCode(t, connect.CodePermissionDenied, receive(other, "other", "mail"))
	requireCode(t, connect.CodePermissionDenied, receive(other, "other", "jobs"))
	requireCode(t, connect.CodePermissionDenied, receive(other, "other", "mail.audit"))
	for _, name := range []string{"", "other", "other:slow", "other.audit"} {
		require.NoError(t, receive(other, "other", name), name)
	}
	require.NoError(t, receive(owner, "mail", ""))
}

// The fields that an error names are those of the request.
func TestErrorsNameFields(t *testing.T) {
	t.Parallel()
	s := servetest.Connect(h2c(t), start(t, open(t), nil), connect.WithGRPC())
	_, err := s.Intents.Reserve(t.Context(), &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}, SessionId: "s", ContentJson: `1`, Ttl: durationpb.New(25 * time.Hour)})
	require.Equal(t, "ttl", fieldIn(t, err))
	_, err = s.Intents.Reserve(t.Context(), &v1.ReserveRequest{Name: &v1.IntentName{Category: "pay:intent", Key: "k"}, SessionId: "s"})
	require.Equal(t, "content_json", fieldIn(t, err))
	_, err = s.Admin.SetQueuePolicy(t.Context(), &v1.SetQueuePolicyRequest{Queue: &v1.QueueName{Category: "mail"}, Policy: &v1.QueuePolicy{MaxFailures: -1}})
	require.Equal(t, "policy.max_failures", fieldIn(t, err))
	_, err = s.Store.Write(t.Context(), &v1.WriteRequest{Writes: []*v1.StreamWrite{{Stream: "a-1"}}})
	require.Equal(t, "writes[0].expected_version", fieldIn(t, err))
}

func fieldIn(t *testing.T, err error) string {
	t.Helper()
	coded := new(connect.Error)
	require.ErrorAs(t, err, &coded)
	for _, d := range coded.Details() {
		if v, err := d.Value(); err == nil {
			if bad, ok := v.(*errdetails.BadRequest); ok {
				return bad.GetFieldViolations()[0].GetField()
			}
		}
	}
	t.Fatalf("no BadRequest in %v", err)
	return ""
}

// A revocation holds on every server, and ends what waits.
func TestARevokedKeyEndsItsCalls(t *testing.T) {
	t.Parallel()
	store := open(t)
	key := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"pay", "mail"}, Right: serve.Write})
	urls := []string{start(t, store, &serve.Config{Keys: follow(t, store)}), start(t, store, &serve.Config{Keys: follow(t, store)})}
	ended := make(chan error, 2)
	for _, url := range urls {
		go func() {
			_, err := as(t, url, key).Queues.Receive(context.Background(), &v1.ReceiveRequest{Queue: &v1.QueueName{Category: "mail"}, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
			ended <- err
		}()
	}
	stream, err := as(t, urls[0], key).Store.FollowCategory(t.Context(), &v1.FollowCategoryRequest{Category: "pay"})
	require.NoError(t, err)
	require.True(t, stream.Receive(), "it is told at once that there is nothing")
	for _, url := range urls {
		requireWaiting(t, as(t, url, key), &v1.QueueName{Category: "mail"}, 1)
	}
	require.NoError(t, serve.RevokeKey(t.Context(), store, "ann", "it was lost"))
	require.NoError(t, serve.RevokeKey(t.Context(), store, "ann", "again"), "that changes nothing")
	for range urls {
		requireCode(t, connect.CodeUnauthenticated, <-ended)
	}
	require.False(t, stream.Receive())
	requireCode(t, connect.CodeUnauthenticated, stream.Err())
	for _, url := range urls {
		_, err := reserve(as(t, url, key), "pay:intent", "s")
		requireCode(t, connect.CodeUnauthenticated, err)
	}
	all, err := serve.AllKeys(t.Context(), store)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "it was lost", all[0].Reason)
	_, err = serve.AddKey(t.Context(), store, serve.Key{ID: "ann", Categories: []string{"*"}, Right: serve.Read})
	require.ErrorIs(t, err, messagestore.ErrVersionConflict, "its name is taken for ever")
	require.ErrorIs(t, serve.RevokeKey(t.Context(), store, "nobody", "x"), messagestore.ErrNotFound)
}

func TestLimitsOfAKey(t *testing.T) {
	t.Parallel()
	store := open(t)
	key := addKey(t, store, serve.Key{ID: "ann", Categories: []string{"mail"}, Right: serve.Write, MaxWaiting: 2})
	slow := addKey(t, store, serve.Key{ID: "slow", Categories: []string{"mail"}, Right: serve.Write, CallsPerSecond: 3})
	other := addKey(t, store, serve.Key{ID: "other", Categories: []string{"mail"}, Right: serve.Write})
	url := start(t, store, &serve.Config{Keys: follow(t, store)})
	q := &v1.QueueName{Category: "mail"}
	waits := func(key string, d time.Duration) error {
		_, err := as(t, url, key).Queues.Receive(t.Context(), &v1.ReceiveRequest{Queue: q, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(d)})
		return err
	}
	for range 2 {
		go func() { _ = waits(key, 10*time.Minute) }()
	}
	requireWaiting(t, as(t, url, key), q, 2)
	err := waits(key, time.Minute)
	requireCode(t, connect.CodeResourceExhausted, err)
	requireRetryInfo(t, err)
	require.NoError(t, waits(key, 0), "a call that does not wait is answered")
	require.NoError(t, waits(other, 10*time.Millisecond), "and another key's call may wait")

	refused := 0
	for range 10 {
		if err := waits(slow, 0); err != nil {
			requireCode(t, connect.CodeResourceExhausted, err)
			requireRetryInfo(t, err)
			refused++
		}
	}
	require.Positive(t, refused)
}

// requireWaiting waits until so many calls wait for items of a queue.
func requireWaiting(t *testing.T, s servetest.Services, q *v1.QueueName, n int32) {
	t.Helper()
	testkit.AwaitEqual(t, "calls that wait", n, func() int32 {
		got, err := s.Queues.GetQueue(t.Context(), &v1.GetQueueRequest{Queue: q})
		require.NoError(t, err)
		return got.GetWaitingReceives()
	})
}

func requireRetryInfo(t *testing.T, err error) {
	t.Helper()
	coded := new(connect.Error)
	require.ErrorAs(t, err, &coded)
	for _, d := range coded.Details() {
		if v, err := d.Value(); err == nil {
			if info, ok := v.(*errdetails.RetryInfo); ok {
				require.Positive(t, info.GetRetryDelay().AsDuration())
				return
			}
		}
	}
	t.Fatalf("no RetryInfo in %v", coded.Details())
}

func TestKeysThatAreNotValid(t *testing.T) {
	t.Parallel()
	store := open(t)
	for _, k := range []serve.Key{
		{},
		{ID: "Ann", Categories: []string{"*"}, Right: serve.Read},
		{ID: strings.Repeat("a", 27), Categories: []string{"*"}, Right: serve.Read},
		{ID: "ann", Right: serve.Read},
		{ID: "ann", Categories: []string{"no category-"}, Right: serve.Read},
		{ID: "ann", Categories: []string{"*"}, Right: "all"},
		{ID: "ann", Categories: []string{"*"}, Right: serve.Read, MaxWaiting: -1},
	} {
		_, err := serve.AddKey(t.Context(), store, k)
		require.ErrorIs(t, err, messagestore.ErrInvalid, fmt.Sprint(k))
	}
}

// What a browser or a curious person sends gets an answer that says what is wrong.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	url := start(t, open(t), nil)
	post := func(call, contentType, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/dibs.v1."+call, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", contentType)
		return do(t, r)
	}
	const json = "application/json"
	code, body := post("IntentService/Reserve", json, `{"name":{"category":"pay:intent","key":"k"},"sessionId":"s","contentJson":"{\"amount\":10}"}`)
	require.Equal(t, 200, code)
	require.Contains(t, body, "OUTCOME_RESERVED")
	code, body = post("StoreService/ReadStream", json, `{"stream":"none-1"}`)
	require.Equal(t, 200, code)
	require.JSONEq(t, `{"messages":[],"nextVersion":"0","more":false}`, body, "defaults are written out, and 64 bits are text")
	for _, bad := range []string{
		`{"name":{"category":"pay:intent","key":"k"},"sessionId":"s","contentJson":"1","ttll":"1s"}`, `{"name":{"Category":"x"}}`, `{"ttl":"soon"}`, `{"name":`, ``, `[]`,
	} {
		code, body = post("IntentService/Reserve", json, bad)
		require.Equal(t, 400, code, bad)
		require.Contains(t, body, "invalid_argument", bad)
	}
	code, body = post("QueueService/ListItems", json, `{"queue":{"category":"mail"},"state":"ITEM_STATE_WRONG"}`)
	require.Equal(t, 400, code)
	require.Contains(t, body, "ITEM_STATE_WRONG")
	code, _ = post("IntentService/Reserve", "text/plain", `{}`)
	require.Equal(t, 415, code)
	code, _ = post("IntentService/Nothing", json, `{}`)
	require.Equal(t, 404, code)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/dibs.v1.IntentService/Reserve", nil)
	require.NoError(t, err)
	code, _ = do(t, r)
	require.Equal(t, 405, code)
	code, body = post("StoreService/Write", json, `{"writes":[{"stream":"a-1","expectedVersion":"-1","messages":[{"id":"`+uuid.NewString()+`","type":"T","dataJson":"{\"text\":\"`+strings.Repeat("x", 5<<20)+`\"}"}]}]}`)
	require.Equal(t, 429, code)
	require.Contains(t, body, "resource_exhausted")
}
