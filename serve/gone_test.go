package serve_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/servetest"
)

// Clients that hang up leave no goroutine in the server, whatever they wait for.
func TestClientsThatHangUpLeaveNothing(t *testing.T) {
	store := open(t)
	url := start(t, store, nil)
	client := h2c(t)
	to := servetest.Connect(client, url, connect.WithGRPC())
	name := &v1.IntentName{Category: "payment:intent", Key: "order 1"}
	held, err := to.Intents.Reserve(t.Context(), &v1.ReserveRequest{Name: name, SessionId: uuid.NewString(), Ttl: durationpb.New(time.Hour), ContentJson: `{"order":1}`})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RESERVED, held.GetOutcome())
	long := durationpb.New(10 * time.Minute)
	queue := &v1.QueueName{Category: "mail"}
	kinds := []func(ctx context.Context) error{
		func(ctx context.Context) error {
			_, err := to.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: queue, ReceiveId: uuid.NewString(), MaxWait: long})
			return err
		},
		func(ctx context.Context) error {
			_, err := to.Intents.Reserve(ctx, &v1.ReserveRequest{Name: name, SessionId: uuid.NewString(), MaxWait: long, ContentJson: `{"order":1}`})
			return err
		},
		func(ctx context.Context) error {
			_, err := to.Intents.GetIntent(ctx, &v1.GetIntentRequest{Name: name, MaxWait: long})
			return err
		},
		func(ctx context.Context) error {
			s, err := to.Store.FollowCategory(ctx, &v1.FollowCategoryRequest{Category: "order"})
			if err == nil {
				for s.Receive() {
				}
				err = s.Err()
			}
			return err
		},
	}
	client.CloseIdleConnections()
	before := goleak.IgnoreCurrent()
	ctx, hangUp := context.WithCancel(t.Context())
	const each = 50
	ended := make(chan error, each*len(kinds))
	for range each {
		for _, kind := range kinds {
			go func() { ended <- kind(ctx) }()
		}
	}
	require.Eventually(t, func() bool {
		q, err := to.Queues.GetQueue(t.Context(), &v1.GetQueueRequest{Queue: queue})
		if err != nil || q.GetWaitingReceives() < each {
			return false
		}
		i, err := to.Intents.GetIntent(t.Context(), &v1.GetIntentRequest{Name: name})
		return err == nil && i.GetIntent().GetWaiting() > 0
	}, time.Minute, 10*time.Millisecond)
	hangUp()
	for range each * len(kinds) {
		require.Equal(t, connect.CodeCanceled, connect.CodeOf(<-ended))
	}
	require.Eventually(t, func() bool {
		client.CloseIdleConnections()
		return goleak.Find(before) == nil
	}, time.Minute, 10*time.Millisecond, "goroutines are left")
}
