package servetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dibs-go/dibs/internal/testkit"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

var queueTests = []test{
	{"Q1/ComesAgainWhenItsTimeIsOver", comesAgain},
	{"Q1/ARepeatedReceiveGetsItsDeliveriesBack", repeatedReceive},
	{"Q1/WhatACallerWhoHasGoneHadComesAgain", goneCaller},
	{"Q2/LateAndForeignSettlementsAreLost", lateSettlements},
	{"Q2/SettlementsMayBeRepeated", repeatedSettlements},
	{"Q2/SettledInsideReceive", settledInsideReceive},
	{"Q3/InOrderPerKey", inOrderPerKey},
	{"Q6/FailuresEnd", failuresEnd},
	{"Q8/ServedInTheirOrder", servedInTheirOrder},
	{"Q9/NotBeforeItsTime", notBeforeItsTime},
	{"Q9/NotWhilePaused", notWhilePaused},
	{"Q10/InsertedOnce", insertedOnce},
	{"Q13/GetItemWaits", getItemWaits},
	{"Queues/AWaitEndsBeforeTheDeadline", receiveEndsBeforeTheDeadline},
	{"Queues/ManyExtensions", manyExtensions},
	{"Queues/OperatorsChangeItems", operatorsChangeItems},
	{"Queues/ListIsComplete", itemsListIsComplete},
	{"Queues/BadInputIsNamed", badQueues},
}

func contextFor(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

func comesAgain(f *fixture) {
	f.produce("", 1)
	first := f.receive(1, 100*time.Millisecond)
	require.Len(f, first, 1)
	again := f.receive(1, patience)
	require.Equal(f, dataOf(first), dataOf(again))
	require.EqualValues(f, 1, again[0].GetFailures(), "its session is over")
	require.EqualValues(f, 1, again[0].GetDeliveries())
	require.Equal(f, []v1.SettlementOutcome{lost}, f.settle(complete(first[0])))
	require.Equal(f, []v1.SettlementOutcome{settled}, f.settle(complete(again[0])))
}

func repeatedReceive(f *fixture) {
	f.produce("", 1, 2, 3)
	r := &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxItems: 2, VisibilityTimeout: lasting(patience)}
	first := call(f, f.Queues.Receive, r).GetDeliveries()
	r.Attempt = 1
	again := call(f, f.Queues.Receive, r).GetDeliveries()
	require.Equal(f, dataOf(first), dataOf(again))
	require.Len(f, again, 2)
	for _, d := range again {
		require.Zero(f, d.GetFailures(), "an answer that was lost is no failure")
	}
	require.Equal(f, []v1.SettlementOutcome{lost, lost}, f.settle(complete(first[0]), complete(first[1])), "they moved to the second attempt")
	require.Equal(f, []v1.SettlementOutcome{settled, settled}, f.settle(complete(again[0]), complete(again[1])))
	r.Attempt, r.RepeatOnly = 2, true
	require.Empty(f, call(f, f.Queues.Receive, r).GetDeliveries(), "earlier attempts have nothing, and it takes nothing else")
	require.Equal(f, []string{`{"n":3}`}, dataOf(f.receive(5, patience)))
}

func goneCaller(f *fixture) {
	ctx, hangUp := context.WithCancel(f.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := f.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxWait: lasting(patience), VisibilityTimeout: lasting(time.Hour)})
		gone <- err
	}()
	f.waiting(1)
	hangUp()
	require.Error(f, <-gone)
	f.waiting(0)
	f.produce("", 1)
	got := f.receive(1, patience)
	require.Len(f, got, 1)
	require.Zero(f, got[0].GetFailures())
}

// waiting waits until so many calls wait for items.
func (f *fixture) waiting(n int32) {
	f.Helper()
	testkit.AwaitEqual(f, "calls that wait", n, func() int32 {
		return call(f, f.Queues.GetQueue, &v1.GetQueueRequest{Queue: f.queue()}).GetWaitingReceives()
	})
}

func lateSettlements(f *fixture) {
	f.produce("", 1)
	d := f.receive(1, patience)[0]
	other := &v1.QueueName{Category: f.category, Queue: f.category + ".other"}
	bad := connect.CodeInvalidArgument
	refused(f, bad, "delivery_id", f.Queues.Settle, &v1.SettleRequest{Queue: other, Settlements: []*v1.Settlement{complete(d)}})
	for _, forged := range []string{"", "x", d.GetDeliveryId()[1:], d.GetDeliveryId() + "A", "BBBB" + d.GetDeliveryId()[4:]} {
		refused(f, bad, "delivery_id", f.Queues.Settle, &v1.SettleRequest{Queue: f.queue(), Settlements: []*v1.Settlement{complete(&v1.Delivery{DeliveryId: forged})}})
	}
	require.Equal(f, []v1.SettlementOutcome{settled}, f.settle(complete(d)))
	require.Equal(f, []v1.SettlementOutcome{lost}, f.settle(retry(d, 0, "too late")))
}

func repeatedSettlements(f *fixture) {
	f.produce("", 1, 2)
	d := f.receive(2, patience)
	for range 3 {
		require.Equal(f, []v1.SettlementOutcome{settled, settled}, f.settle(complete(d[0]), retry(d[1], time.Hour, "once")))
	}
	item := call(f, f.Queues.GetItem, &v1.GetItemRequest{Queue: f.queue(), Position: d[1].GetItem().GetGlobalPosition()}).GetItem()
	require.EqualValues(f, 1, item.GetFailures())
	require.Equal(f, v1.ItemState_ITEM_STATE_LATER, item.GetState())
	require.Equal(f, "once", item.GetError())
}

func settledInsideReceive(f *fixture) {
	f.produce("", 1, 2, 3)
	d := f.receive(2, patience)
	answer := call(f, f.Queues.Receive, &v1.ReceiveRequest{
		Queue: f.queue(), ReceiveId: uuid.NewString(), MaxItems: 10, MaxWait: lasting(patience),
		Settlements: []*v1.Settlement{complete(d[0]), retry(d[1], time.Hour, "later"), complete(d[0])},
	})
	require.Equal(f, []v1.SettlementOutcome{settled, settled, settled}, answer.GetSettled())
	require.Equal(f, []string{`{"n":3}`}, dataOf(answer.GetDeliveries()))
	waits := call(f, f.Queues.Receive, &v1.ReceiveRequest{
		Queue: f.queue(), ReceiveId: uuid.NewString(), MaxWait: lasting(100 * time.Millisecond), Settlements: []*v1.Settlement{complete(answer.GetDeliveries()[0])},
	})
	require.Equal(f, []v1.SettlementOutcome{settled}, waits.GetSettled(), "although no item came")
	require.Empty(f, waits.GetDeliveries())
}

func inOrderPerKey(f *fixture) {
	f.produce("ann", 1, 2, 3)
	for n := 1; n <= 3; n++ {
		got := f.receive(10, patience)
		require.Equal(f, []string{fmt.Sprintf(`{"n":%d}`, n)}, dataOf(got), "one at a time")
		if n == 2 { // its retry comes before the third
			f.settle(retry(got[0], 0, "again"))
			got = f.receive(10, patience)
			require.Equal(f, []string{`{"n":2}`}, dataOf(got))
		}
		f.settle(complete(got[0]))
	}
}

func failuresEnd(f *fixture) {
	const most = 2
	call(f, f.Admin.SetQueuePolicy, &v1.SetQueuePolicyRequest{Queue: f.queue(), Policy: &v1.QueuePolicy{MaxFailures: most}})
	position := f.produce("", 1)[0]
	for n := range most {
		f.settle(retry(f.receive(1, patience)[0], 0, fmt.Sprint("failure ", n+1)))
	}
	item := call(f, f.Queues.GetItem, &v1.GetItemRequest{Queue: f.queue(), Position: position}).GetItem()
	require.Equal(f, v1.ItemState_ITEM_STATE_DEAD, item.GetState())
	require.Equal(f, "failure 2", item.GetError())
	var texts []string
	for _, e := range item.GetLog() {
		texts = append(texts, e.GetText())
	}
	require.Contains(f, texts, "failure 1")

	f.produce("", 2)
	bury := &v1.Settlement{DeliveryId: f.receive(1, patience)[0].GetDeliveryId(), Action: &v1.Settlement_Bury_{Bury: &v1.Settlement_Bury{Error: "no such address"}}}
	require.Equal(f, []v1.SettlementOutcome{settled}, f.settle(bury))
	require.EqualValues(f, 2, call(f, f.Queues.GetQueue, &v1.GetQueueRequest{Queue: f.queue()}).GetDead())
}

func servedInTheirOrder(f *fixture) {
	f.produce("", 0) // so that there is a queue
	f.settle(complete(f.receive(1, patience)[0]))
	const callers = 5
	answers := [callers]chan []string{}
	for i := range answers {
		answers[i] = make(chan []string, 1)
		go func() {
			got, _ := f.Queues.Receive(f.Context(), &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxItems: 1, MaxWait: lasting(patience), VisibilityTimeout: lasting(patience)})
			answers[i] <- dataOf(got.GetDeliveries())
		}()
		f.waiting(int32(i + 1))
	}
	for n := 1; n <= callers; n++ {
		f.produce("", n)
		require.Equal(f, []string{fmt.Sprintf(`{"n":%d}`, n)}, <-answers[n-1])
	}
}

func notBeforeItsTime(f *fixture) {
	due := call(f, f.Store.GetLast, &v1.GetLastRequest{}).GetTime().AsTime().Add(300 * time.Millisecond)
	call(f, f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{{Id: uuid.NewString(), Type: "Send", DataJson: `{}`, ScheduleTime: timestamppb.New(due)}}})
	require.Len(f, f.receive(1, patience), 1)
	now := call(f, f.Store.GetLast, &v1.GetLastRequest{}).GetTime().AsTime()
	require.False(f, now.Before(due), "%v before its time", due.Sub(now))
}

func notWhilePaused(f *fixture) {
	f.produce("", 1)
	call(f, f.Admin.PauseQueue, &v1.PauseQueueRequest{Queue: f.queue()})
	require.True(f, call(f, f.Queues.GetQueue, &v1.GetQueueRequest{Queue: f.queue()}).GetPaused())
	require.Empty(f, call(f, f.Queues.Receive, &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxWait: lasting(300 * time.Millisecond)}).GetDeliveries())
	waiting := make(chan []string, 1)
	go func() { waiting <- dataOf(f.receive(1, patience)) }()
	f.waiting(1)
	call(f, f.Admin.ResumeQueue, &v1.ResumeQueueRequest{Queue: f.queue()})
	require.Equal(f, []string{`{"n":1}`}, <-waiting)
}

func insertedOnce(f *fixture) {
	item := &v1.NewItem{Id: uuid.NewString(), Type: "Send", DataJson: `{"n":1}`}
	r := &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{item}}
	first := call(f, f.Queues.Produce, r).GetItems()[0]
	again := call(f, f.Queues.Produce, r).GetItems()[0]
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, first.GetOutcome())
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_DUPLICATE, again.GetOutcome())
	require.Equal(f, first.GetPosition(), again.GetPosition())

	require.True(f, call(f, f.Queues.GetQueue, &v1.GetQueueRequest{Queue: f.queue()}).GetWaiting(), "though nobody has received yet")
	more := call(f, f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{item, {Id: uuid.NewString(), Type: "Send", DataJson: `{"n":5}`}}}).GetItems()
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_DUPLICATE, more[0].GetOutcome())
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, more[1].GetOutcome())
	require.Equal(f, first.GetPosition(), more[0].GetPosition())
	other := &v1.NewItem{Id: item.GetId(), Type: "Send", DataJson: `{"n":99}`}
	both := call(f, f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{other, {Id: uuid.NewString(), Type: "Send", DataJson: `{"n":4}`}}}).GetItems()
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_ID_CONFLICT, both[0].GetOutcome())
	require.Equal(f, v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, both[1].GetOutcome(), "it keeps no other out")

	unique := func(data string) *v1.NewItem {
		return &v1.NewItem{Id: uuid.NewString(), Type: "Send", DataJson: data, Unique: "report 2026-11"}
	}
	named := call(f, f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{unique(`{"n":1}`)}}).GetItems()[0]
	all := call(f, f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{
		{Id: uuid.NewString(), Type: "Send", DataJson: `{"n":2}`}, unique(`{"n":1}`), unique(`{"n":2}`), {Id: uuid.NewString(), Type: "Send", DataJson: `{"n":3}`, Key: "ann"},
	}}).GetItems()
	var outcomes []v1.ProduceOutcome
	for _, p := range all {
		outcomes = append(outcomes, p.GetOutcome())
	}
	require.Equal(f, []v1.ProduceOutcome{
		v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, v1.ProduceOutcome_PRODUCE_OUTCOME_DUPLICATE, v1.ProduceOutcome_PRODUCE_OUTCOME_KEY_REUSED, v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN,
	}, outcomes)
	require.Equal(f, named.GetPosition(), all[1].GetPosition())
	require.Equal(f, named.GetId(), all[1].GetId())
	require.Len(f, f.receive(10, patience), 6)
}

func getItemWaits(f *fixture) {
	position := f.produce("", 1)[0]
	d := f.receive(1, patience)[0]
	waiting := make(chan v1.ItemState, 1)
	go func() {
		answer, _ := f.Queues.GetItem(f.Context(), &v1.GetItemRequest{Queue: f.queue(), Position: position, MaxWait: lasting(patience)})
		waiting <- answer.GetItem().GetState()
	}()
	f.settle(complete(d))
	require.Equal(f, v1.ItemState_ITEM_STATE_FINISHED, <-waiting)
	refused(f, connect.CodeNotFound, "no such", f.Queues.GetItem, &v1.GetItemRequest{Queue: f.queue(), Position: position + 1000})
}

func receiveEndsBeforeTheDeadline(f *fixture) {
	ctx, cancel := contextFor(f, 2*time.Second)
	defer cancel()
	answer, err := f.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxWait: lasting(10 * time.Minute)})
	require.NoError(f, err)
	require.Empty(f, answer.GetDeliveries())
}

func manyExtensions(f *fixture) {
	f.produce("", 1, 2, 3, 4)
	var mine []*v1.Delivery
	for range 4 { // of four sessions
		mine = append(mine, f.receive(1, time.Second)...)
	}
	f.settle(complete(mine[2]))
	r := &v1.ExtendDeliveriesRequest{Queue: f.queue(), VisibilityTimeout: lasting(time.Hour)}
	for _, d := range mine {
		r.DeliveryIds = append(r.DeliveryIds, d.GetDeliveryId())
	}
	require.Equal(f, []v1.SettlementOutcome{settled, settled, lost, settled}, call(f, f.Queues.ExtendDeliveries, r).GetOutcomes())
	require.Empty(f, call(f, f.Queues.Receive, &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString(), MaxWait: lasting(1500 * time.Millisecond)}).GetDeliveries())
	require.Equal(f, []v1.SettlementOutcome{settled, settled, settled}, f.settle(complete(mine[0]), complete(mine[1]), complete(mine[3])))
}

func operatorsChangeItems(f *fixture) {
	positions := f.produce("", 1, 2, 3)
	d := f.receive(2, patience)
	f.settle(&v1.Settlement{DeliveryId: d[0].GetDeliveryId(), Action: &v1.Settlement_Bury_{Bury: &v1.Settlement_Bury{Error: "x"}}}, retry(d[1], time.Hour, "y"))
	change := func(c v1.ItemChange, of ...int64) []int64 {
		return call(f, f.Admin.ChangeItems, &v1.ChangeItemsRequest{Queue: f.queue(), Positions: of, Change: c, Reason: "as ordered"}).GetChangedPositions()
	}
	require.Equal(f, positions[:1], change(v1.ItemChange_ITEM_CHANGE_RETRY, positions[0]))
	require.Equal(f, positions[1:2], change(v1.ItemChange_ITEM_CHANGE_DROP, positions[1]))
	require.Equal(f, positions[2:], change(v1.ItemChange_ITEM_CHANGE_CANCEL, positions[2]))
	require.Equal(f, []string{`{"n":1}`}, dataOf(f.receive(10, patience)))
	refused(f, connect.CodeInvalidArgument, "change", f.Admin.ChangeItems, &v1.ChangeItemsRequest{Queue: f.queue(), Positions: positions})
}

func itemsListIsComplete(f *fixture) {
	var data []int
	for n := range 25 {
		data = append(data, n)
	}
	f.produce("", data...)
	require.Len(f, f.receive(25, patience), 25)
	r := &v1.ListItemsRequest{Queue: f.queue(), State: v1.ItemState_ITEM_STATE_OUT, PageSize: 10}
	found := map[int64]bool{}
	for {
		page := call(f, f.Queues.ListItems, r)
		for _, i := range page.GetItems() {
			require.False(f, found[i.GetPosition()], "twice")
			found[i.GetPosition()] = true
		}
		if page.GetNextPageToken() == "" {
			break
		}
		r.PageToken = page.GetNextPageToken()
	}
	require.Len(f, found, 25)
	status := call(f, f.Queues.GetQueue, &v1.GetQueueRequest{Queue: f.queue()})
	require.EqualValues(f, 25, status.GetOut())
	refused(f, connect.CodeInvalidArgument, "page_token", f.Queues.ListItems, &v1.ListItemsRequest{Queue: f.queue(), State: v1.ItemState_ITEM_STATE_OUT, PageToken: "forged"})
}

func badQueues(f *fixture) {
	bad := connect.CodeInvalidArgument
	item := func(change func(*v1.NewItem)) *v1.ProduceRequest {
		i := &v1.NewItem{Id: uuid.NewString(), Type: "Send", DataJson: `{}`}
		change(i)
		return &v1.ProduceRequest{Queue: f.queue(), Items: []*v1.NewItem{i}}
	}
	refused(f, bad, "items", f.Queues.Produce, &v1.ProduceRequest{Queue: f.queue()})
	refused(f, bad, "items[0].id", f.Queues.Produce, item(func(i *v1.NewItem) { i.Id = "" }))
	refused(f, bad, "type", f.Queues.Produce, item(func(i *v1.NewItem) { i.Type = "" }))
	refused(f, bad, "JSON", f.Queues.Produce, item(func(i *v1.NewItem) { i.DataJson = "not json" }))
	refused(f, bad, "Key", f.Queues.Produce, item(func(i *v1.NewItem) { i.Key, i.Unique = "a", "b" }))
	refused(f, bad, "unique_until", f.Queues.Produce, item(func(i *v1.NewItem) { i.Unique, i.UniqueUntil = "a", 17 }))
	receive := func(change func(*v1.ReceiveRequest)) *v1.ReceiveRequest {
		r := &v1.ReceiveRequest{Queue: f.queue(), ReceiveId: uuid.NewString()}
		change(r)
		return r
	}
	refused(f, bad, "receive_id", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.ReceiveId = "" }))
	refused(f, bad, "max_items", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.MaxItems = -1 }))
	refused(f, bad, "max_items", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.MaxItems = 1001 }))
	refused(f, bad, "max_wait", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.MaxWait = lasting(-1) }))
	refused(f, bad, "visibility_timeout", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.VisibilityTimeout = lasting(25 * time.Hour) }))
	refused(f, bad, "attempt", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.Attempt = -1 }))
	refused(f, bad, "RepeatOnly", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.RepeatOnly = true }))
	refused(f, bad, "RepeatOnly", f.Queues.Receive, receive(func(r *v1.ReceiveRequest) { r.RepeatOnly, r.Attempt, r.MaxWait = true, 1, lasting(time.Second) }))
	refused(f, bad, "settlements", f.Queues.Settle, &v1.SettleRequest{Queue: f.queue()})
	f.produce("", 1)
	d := f.receive(1, patience)[0]
	refused(f, bad, "action", f.Queues.Settle, &v1.SettleRequest{Queue: f.queue(), Settlements: []*v1.Settlement{{DeliveryId: d.GetDeliveryId()}}})
	refused(f, bad, "state", f.Queues.ListItems, &v1.ListItemsRequest{Queue: f.queue()})
	refused(f, bad, "category", f.Queues.Receive, &v1.ReceiveRequest{ReceiveId: uuid.NewString()})
	refused(f, bad, "MaxFailures", f.Admin.SetQueuePolicy, &v1.SetQueuePolicyRequest{Queue: f.queue(), Policy: &v1.QueuePolicy{MaxFailures: -1}})
	refused(f, bad, "page_size", f.Queues.ListItems, &v1.ListItemsRequest{Queue: f.queue(), State: v1.ItemState_ITEM_STATE_OUT, PageSize: 1001})
}
