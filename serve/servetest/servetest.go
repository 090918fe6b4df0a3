// Package servetest is the conformance suite of the services: the promises of intents and queues as
// calls from outside, by a client that knows the .proto files only. The test file of a server calls
// [Run]:
//
//	func TestOverGRPC(t *testing.T) {
//		servetest.Run(t, servetest.Options{Dial: func(t *testing.T) servetest.Services { return dial(t, connect.WithGRPC()) }})
//	}
//
// Every sub-test is named after the promise in docs/guarantees.md that it would refute.
package servetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

// Services are clients of one server.
type Services struct {
	Intents dibsv1connect.IntentServiceClient
	Queues  dibsv1connect.QueueServiceClient
	Store   dibsv1connect.StoreServiceClient
	Admin   dibsv1connect.AdminServiceClient
}

// Connect returns clients of the server at a URL.
func Connect(client connect.HTTPClient, url string, options ...connect.ClientOption) Services {
	return Services{
		Intents: dibsv1connect.NewIntentServiceClient(client, url, options...),
		Queues:  dibsv1connect.NewQueueServiceClient(client, url, options...),
		Store:   dibsv1connect.NewStoreServiceClient(client, url, options...),
		Admin:   dibsv1connect.NewAdminServiceClient(client, url, options...),
	}
}

// Options are the subject of the suite.
type Options struct {
	// Dial returns clients of a server, with the right to operate in every category. It is called
	// once for each sub-test. The sub-tests run in parallel, each in its own category, so all
	// servers may use one store.
	Dial func(t *testing.T) Services
}

// Run tests the servers that the options dial.
func Run(t *testing.T, options Options) {
	t.Helper()
	for _, test := range append(append(intentTests, queueTests...), storeTests...) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			name := strings.ReplaceAll(uuid.NewString(), "-", "")
			test.run(&fixture{T: t, Services: options.Dial(t), category: "c" + name})
		})
	}
}

type test struct {
	name string
	run  func(f *fixture)
}

// A fixture is what one sub-test has.
type fixture struct {
	*testing.T
	Services
	category string // of this sub-test alone
}

func (f *fixture) name(key string) *v1.IntentName {
	return &v1.IntentName{Category: f.category + ":intent", Scope: "tenant", Key: key}
}

func (f *fixture) queue() *v1.QueueName { return &v1.QueueName{Category: f.category} }

// patience is how long a sub-test waits for what must come.
const patience = 30 * time.Second

// call returns the answer of a call that must be answered.
func call[Q, A any](f *fixture, do func(context.Context, *Q) (*A, error), request *Q) *A {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 2*patience)
	defer cancel()
	answer, err := do(ctx, request)
	require.NoError(f, err)
	return answer
}

// refused requires that a call is refused with a code, and by a text that names what is wrong.
func refused[Q, A any](f *fixture, code connect.Code, says string, do func(context.Context, *Q) (*A, error), request *Q) {
	f.Helper()
	_, err := do(f.Context(), request)
	require.Error(f, err)
	require.Equal(f, code.String(), connect.CodeOf(err).String(), "%v", err)
	require.ErrorContains(f, err, says)
}

func lasting(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

// produce inserts items with these data, and returns their positions.
func (f *fixture) produce(key string, data ...int) []int64 {
	f.Helper()
	r := &v1.ProduceRequest{Queue: f.queue()}
	for _, n := range data {
		r.Items = append(r.Items, &v1.NewItem{Id: uuid.NewString(), Type: "Send", DataJson: fmt.Sprintf(`{"n":%d}`, n), Key: key})
	}
	var positions []int64
	for _, p := range call(f, f.Queues.Produce, r).GetItems() {
		require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, p.GetOutcome())
		require.Positive(f, p.GetPosition())
		positions = append(positions, p.GetPosition())
	}
	return positions
}

// receive reserves up to n items, for which it waits.
func (f *fixture) receive(n int, visibility time.Duration) []*v1.Delivery {
	f.Helper()
	return call(f, f.Queues.Receive, &v1.ReceiveRequest{
		Queue: f.queue(), ReceiveId: uuid.NewString(), MaxItems: int32(n), MaxWait: lasting(patience), VisibilityTimeout: lasting(visibility),
	}).GetDeliveries()
}

func dataOf(deliveries []*v1.Delivery) []string {
	var all []string
	for _, d := range deliveries {
		all = append(all, d.GetItem().GetDataJson())
	}
	return all
}

func complete(d *v1.Delivery) *v1.Settlement {
	return &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Complete_{Complete: &v1.Settlement_Complete{}}}
}

func retry(d *v1.Delivery, delay time.Duration, text string) *v1.Settlement {
	return &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Retry_{Retry: &v1.Settlement_Retry{Delay: lasting(delay), Error: text}}}
}

func (f *fixture) settle(all ...*v1.Settlement) []v1.SettlementOutcome {
	f.Helper()
	return call(f, f.Queues.Settle, &v1.SettleRequest{Queue: f.queue(), Settlements: all}).GetOutcomes()
}

const (
	settled = v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE
	lost    = v1.SettlementOutcome_SETTLEMENT_OUTCOME_LOST
)
