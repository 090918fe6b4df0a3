package client

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve"
)

// What a poll has brought is kept for the worker until it takes it, and given back if it stops.
func TestWhatAPollBringsIsKeptOrGivenBack(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	server := testkit.Must(serve.New(store, &serve.Config{Logger: logger.Silent()}))
	h := httptest.NewUnstartedServer(server.Handler())
	h.Config.Protocols = &http.Protocols{}
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	defer h.Close()
	defer server.Drain()
	c := testkit.Must(New(h.URL, nil))
	defer c.Close()
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	of := queuing.Queue{Name: "mail", Category: "mail"}
	r := &remote{c: c, of: of, bell: make(chan messagestore.GlobalPosition, 1)}
	ctx := context.Background()
	take := func() queuing.Taken {
		return testkit.Must(r.QueueTake(ctx, queuing.Take{Queue: of, Session: 1, Lease: time.Hour, Want: 1}))
	}
	ready := func() bool { return testkit.Must(r.QueueReady(ctx, of)).Ready }
	var last messagestore.GlobalPosition
	insert := func() {
		last = testkit.Must(local.Insert(ctx, messagestore.Raw{Type: "Send", Data: []byte(`{}`)}, nil)).Position
	}

	bell, stop := r.Watch("mail", time.Minute)
	require.True(t, ready(), "a take makes a call")
	require.Empty(t, take().Items)
	require.False(t, ready())
	require.Empty(t, take().Items, "while the poll waits")
	before := time.Now()
	insert()
	testkit.Receive(t, "the bell", bell)
	require.True(t, ready())

	own := queuing.Delivery{Position: 1000}
	lost := testkit.Must(r.QueueExtend(ctx, queuing.Extension{Queue: of, Lease: 3 * time.Hour, Deliveries: []queuing.Delivery{own}, Sessions: []int64{7}}))
	require.Equal(t, []queuing.Delivery{own}, lost)
	require.True(t, testkit.Must(local.Item(ctx, last)).Until.After(before.Add(2*time.Hour)))
	taken := take()
	require.Len(t, taken.Items, 1)
	require.False(t, taken.Since.Before(before), "it was extended with the worker's own")

	require.Empty(t, take().Items)
	insert()
	testkit.Receive(t, "the bell", bell)
	stop()
	require.NoError(t, r.QueueLeave(ctx, queuing.Leave{Queue: of}))
	jobs := testkit.Must(local.Receive(ctx, 10, nil))
	require.Len(t, jobs, 1, "the one that was not taken")
	require.Zero(t, jobs[0].Failures)
}
