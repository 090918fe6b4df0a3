package serve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/internal/delivery"
)

// queues is the QueueService.
type queues struct{ s *Server }

// named returns a queue if the caller has a right in its category.
func (h queues) named(ctx context.Context, right Right, n *v1.QueueName) (*servedQueue, *caller, error) {
	c, err := allow(ctx, below(right, messagestore.Category(n.GetCategory())), messagestore.Category(n.GetCategory()))
	if err != nil {
		return nil, nil, err
	}
	name := queueName{n.GetQueue(), messagestore.Category(n.GetCategory())}
	if name.name == "" {
		name.name = n.GetCategory()
	}
	// The names of queues are those of the whole store, so nobody takes one of another's category.
	if of, _, _ := strings.Cut(name.name, "."); !c.may(right, messagestore.Category(of)) {
		return nil, nil, connect.NewError(connect.CodePermissionDenied, errors.New("the key has no right to a queue of this name: it must begin with a category of the key"))
	}
	q, err := h.s.queue(name)
	return q, c, fail(err)
}

// checkMany refuses an empty list, and one that is too long.
func checkMany(field string, n int) error {
	if n < 1 || n > maxMany {
		return invalid(field, n, fmt.Sprintf("must be between 1 and %d", maxMany))
	}
	return nil
}

// maxMany is how many items, deliveries or leases one call has.
const maxMany = 1000

// Produce inserts items.
func (h queues) Produce(ctx context.Context, r *v1.ProduceRequest) (*v1.ProduceResponse, error) {
	q, _, err := h.named(ctx, Write, r.GetQueue())
	if err != nil {
		return nil, err
	}
	if err := checkMany("items", len(r.GetItems())); err != nil {
		return nil, err
	}
	entries := make([]queue.Entry, len(r.GetItems()))
	for i, item := range r.GetItems() {
		field := fmt.Sprintf("items[%d]", i)
		body, err := bodyOf(field, &v1.NewMessage{Id: item.GetId(), Type: item.GetType(), DataJson: item.GetDataJson(), MetadataJson: item.GetMetadataJson()})
		if err != nil {
			return nil, err
		}
		o := &queue.InsertOpts{ID: body.ID, Key: item.GetKey(), Unique: item.GetUnique(), Metadata: body.Metadata}
		switch item.GetUniqueUntil() {
		case v1.UniqueUntil_UNIQUE_UNTIL_UNSPECIFIED, v1.UniqueUntil_UNIQUE_UNTIL_FORGOTTEN:
		case v1.UniqueUntil_UNIQUE_UNTIL_FINISHED:
			o.UniqueUntil = queue.UntilFinished
		case v1.UniqueUntil_UNIQUE_UNTIL_DELIVERED:
			o.UniqueUntil = queue.UntilDelivered
		default:
			return nil, invalid(field+".unique_until", item.GetUniqueUntil().String(), "must be FORGOTTEN, FINISHED or DELIVERED")
		}
		if item.GetScheduleTime() != nil {
			if item.GetScheduleTime().CheckValid() != nil {
				return nil, invalid(field+".schedule_time", item.GetScheduleTime().String(), "must be a time in a year from 1 to 9999")
			}
			o.ScheduledAt = item.GetScheduleTime().AsTime()
		}
		entries[i] = queue.Entry{Body: body.Body, Opts: o}
	}
	return h.insert(ctx, q, entries)
}

// insert inserts items, and says of each what became of it.
func (h queues) insert(ctx context.Context, q *servedQueue, entries []queue.Entry) (*v1.ProduceResponse, error) {
	all, err := q.InsertMany(ctx, entries...)
	res := &v1.ProduceResponse{Items: make([]*v1.Produced, len(all))}
	for i, in := range all {
		res.Items[i] = producedOf(in)
		if res.Items[i] == nil { // it is not known of this one
			return nil, fail(in.Err)
		}
	}
	if err != nil && len(all) == 0 {
		return nil, fail(err)
	}
	return res, nil
}

// producedOf returns the outcome of an item, or nil if it is not known.
func producedOf(in queue.Inserted) *v1.Produced {
	out := &v1.Produced{Outcome: v1.ProduceOutcome_PRODUCE_OUTCOME_WRITTEN, Id: in.ID.String(), Position: int64(in.Position)}
	reused, isReused := errors.AsType[*queue.KeyReusedError](in.Err)
	switch {
	case isReused:
		out.Outcome, out.Id, out.Position = v1.ProduceOutcome_PRODUCE_OUTCOME_KEY_REUSED, reused.Met.ID.String(), int64(reused.Met.GlobalPosition)
	case errors.Is(in.Err, messagestore.ErrIDConflict):
		out.Outcome, out.Position = v1.ProduceOutcome_PRODUCE_OUTCOME_ID_CONFLICT, 0
	case in.Err != nil:
		return nil
	case in.Duplicate:
		out.Outcome = v1.ProduceOutcome_PRODUCE_OUTCOME_DUPLICATE
	}
	return out
}

// Receive settles deliveries and reserves items.
func (h queues) Receive(ctx context.Context, r *v1.ReceiveRequest) (*v1.ReceiveResponse, error) {
	q, c, err := h.named(ctx, Write, r.GetQueue())
	if err != nil {
		return nil, err
	}
	id, err := parseID("receive_id", r.GetReceiveId())
	if err != nil {
		return nil, err
	}
	items := int(r.GetMaxItems())
	if items == 0 {
		items = 1
	}
	if items < 1 || items > maxMany {
		return nil, invalid("max_items", items, fmt.Sprintf("must be between 1 and %d", maxMany))
	}
	visibility, err := visibilityOf(r.GetVisibilityTimeout())
	if err != nil {
		return nil, err
	}
	if r.GetAttempt() < 0 || r.GetAttempt() > maxAttempt {
		return nil, invalid("attempt", r.GetAttempt(), fmt.Sprintf("must be between 0 and %d", maxAttempt))
	}
	settlements, err := settlementsOf(q, r.GetSettlements())
	if err != nil {
		return nil, err
	}
	// Each key has sessions of its own, whatever ids others make.
	opts := &queue.ReceiveOpts{ID: uuid.NewSHA1(id, []byte(c.key.ID)), Attempt: int(r.GetAttempt()), RepeatOnly: r.GetRepeatOnly(), VisibilityTimeout: visibility}
	if opts.Wait, err = wait(ctx, "max_wait", r.GetMaxWait()); err != nil {
		return nil, err
	}
	waiting := ctx
	if opts.Wait > 0 {
		var done func()
		if waiting, done, err = h.s.waits(ctx); err != nil {
			return nil, err
		}
		defer done()
		q.waiting.Add(1)
		defer q.waiting.Add(-1)
	}
	outcomes, jobs, err := q.SettleAndReceive(waiting, settlements, items, opts)
	drained := err != nil && errors.Is(context.Cause(waiting), errDraining) && (outcomes != nil || len(settlements) == 0)
	if err != nil && !drained {
		return nil, ended(waiting, err)
	}
	res := &v1.ReceiveResponse{Settled: outcomesOf(outcomes)}
	for _, j := range jobs {
		res.Deliveries = append(res.Deliveries, &v1.Delivery{
			DeliveryId: deliveryID(q, j.Delivery()), Item: messageOf(j.Message), Failures: int32(j.Failures), Deliveries: int32(j.Deliveries), VisibilityTimeout: durationpb.New(visibility),
		})
	}
	return res, nil
}

// maxAttempt bounds the attempts of a Receive.
const maxAttempt = 100

// visibilityOf returns for how long a client has deliveries.
func visibilityOf(d *durationpb.Duration) (time.Duration, error) {
	switch v := d.AsDuration(); {
	case d == nil || v == 0:
		return 30 * time.Second, nil
	case v < 10*time.Millisecond || v > 24*time.Hour:
		return 0, invalid("visibility_timeout", v, "must be between 10ms and 24h")
	default:
		return v, nil
	}
}

func outcomesOf(all []error) []v1.SettlementOutcome {
	outcomes := make([]v1.SettlementOutcome, len(all))
	for i, err := range all {
		outcomes[i] = v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE
		if err != nil {
			outcomes[i] = v1.SettlementOutcome_SETTLEMENT_OUTCOME_LOST
		}
	}
	return outcomes
}

func settlementsOf(q *servedQueue, all []*v1.Settlement) ([]queue.Settlement, error) {
	if len(all) > maxMany {
		return nil, invalid("settlements", len(all), fmt.Sprintf("must be at most %d", maxMany))
	}
	out := make([]queue.Settlement, len(all))
	for i, s := range all {
		field := fmt.Sprintf("settlements[%d]", i)
		d, err := parseDelivery(q, field+".delivery_id", s.GetDeliveryId())
		if err != nil {
			return nil, err
		}
		out[i].Delivery = d
		switch a := s.GetAction().(type) {
		case *v1.Settlement_Complete_:
			out[i].Action = queue.Complete
		case *v1.Settlement_Retry_:
			out[i].Action, out[i].Delay, out[i].Error = queue.Retry, a.Retry.GetDelay().AsDuration(), a.Retry.GetError()
		case *v1.Settlement_Defer_:
			out[i].Action, out[i].Delay, out[i].Error = queue.Defer, a.Defer.GetDelay().AsDuration(), a.Defer.GetError()
		case *v1.Settlement_Bury_:
			out[i].Action, out[i].Error = queue.Bury, a.Bury.GetError()
		default:
			return nil, invalid(field+".action", nil, "must be complete, retry, defer or bury")
		}
	}
	return out, nil
}

// Settle ends deliveries.
func (h queues) Settle(ctx context.Context, r *v1.SettleRequest) (*v1.SettleResponse, error) {
	q, _, err := h.named(ctx, Write, r.GetQueue())
	if err != nil {
		return nil, err
	}
	if err := checkMany("settlements", len(r.GetSettlements())); err != nil {
		return nil, err
	}
	settlements, err := settlementsOf(q, r.GetSettlements())
	if err != nil {
		return nil, err
	}
	outcomes, err := q.Settle(ctx, settlements...)
	if err != nil {
		return nil, fail(err)
	}
	return &v1.SettleResponse{Outcomes: outcomesOf(outcomes)}, nil
}

// ExtendDeliveries is the heartbeat of deliveries.
func (h queues) ExtendDeliveries(ctx context.Context, r *v1.ExtendDeliveriesRequest) (*v1.ExtendDeliveriesResponse, error) {
	q, _, err := h.named(ctx, Write, r.GetQueue())
	if err != nil {
		return nil, err
	}
	if err := checkMany("delivery_ids", len(r.GetDeliveryIds())); err != nil {
		return nil, err
	}
	visibility, err := visibilityOf(r.GetVisibilityTimeout())
	if err != nil {
		return nil, err
	}
	deliveries := make([]queue.Delivery, len(r.GetDeliveryIds()))
	for i, id := range r.GetDeliveryIds() {
		if deliveries[i], err = parseDelivery(q, fmt.Sprintf("delivery_ids[%d]", i), id); err != nil {
			return nil, err
		}
	}
	outcomes, err := q.ExtendAll(ctx, visibility, deliveries...)
	if err != nil {
		return nil, fail(err)
	}
	return &v1.ExtendDeliveriesResponse{Outcomes: outcomesOf(outcomes)}, nil
}

var itemStates = map[v1.ItemState]queue.State{
	v1.ItemState_ITEM_STATE_WAITING: queue.Waiting, v1.ItemState_ITEM_STATE_OUT: queue.Out, v1.ItemState_ITEM_STATE_LATER: queue.Later, v1.ItemState_ITEM_STATE_HELD: queue.Held,
	v1.ItemState_ITEM_STATE_DEAD: queue.Dead, v1.ItemState_ITEM_STATE_FINISHED: queue.Finished, v1.ItemState_ITEM_STATE_SUSPENDED: queue.Suspended,
}

func itemOf(i queue.Item) *v1.Item {
	out := &v1.Item{Message: messageOf(i.Message), Failures: int32(i.Failures), Error: i.Error, Note: i.Note, Position: int64(i.Position)}
	for wire, state := range itemStates {
		if state == i.State {
			out.State = wire
		}
	}
	for _, e := range i.Log {
		out.Log = append(out.Log, &v1.LogEntry{Time: timestamppb.New(e.Time), Version: int32(e.Version), What: e.What, Text: e.Text})
	}
	return out
}

// GetItem returns an item, at once or when it has ended.
func (h queues) GetItem(ctx context.Context, r *v1.GetItemRequest) (*v1.GetItemResponse, error) {
	q, _, err := h.named(ctx, Read, r.GetQueue())
	if err != nil {
		return nil, err
	}
	patience, err := wait(ctx, "max_wait", r.GetMaxWait())
	if err != nil {
		return nil, err
	}
	position := messagestore.GlobalPosition(r.GetPosition())
	if patience > 0 {
		waiting, done, err := h.s.waits(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		bounded, cancel := context.WithTimeout(waiting, patience)
		defer cancel()
		got, _, err := q.Await(bounded, position)
		if err == nil {
			return &v1.GetItemResponse{Item: itemOf(got)}, nil
		}
		if waiting.Err() != nil || bounded.Err() == nil {
			return nil, ended(waiting, err)
		}
	}
	got, err := q.Item(ctx, position)
	if err != nil {
		return nil, fail(err)
	}
	return &v1.GetItemResponse{Item: itemOf(got)}, nil
}

// ListItems returns a page of the items in a state.
func (h queues) ListItems(ctx context.Context, r *v1.ListItemsRequest) (*v1.ListItemsResponse, error) {
	q, _, err := h.named(ctx, Read, r.GetQueue())
	if err != nil {
		return nil, err
	}
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	state, ok := itemStates[r.GetState()]
	if !ok || state == queue.Finished {
		return nil, invalid("state", r.GetState().String(), "must be a state of items that are not finished")
	}
	from, err := pageFrom(r.GetPageToken())
	if err != nil {
		return nil, err
	}
	items, err := q.Items(ctx, state, from, size)
	if err != nil {
		return nil, fail(err)
	}
	res := &v1.ListItemsResponse{}
	for _, i := range items {
		res.Items = append(res.Items, itemOf(i))
		res.NextPageToken = strconv.FormatInt(int64(i.Position.Next()), 10)
	}
	return res, nil
}

// pageFrom returns where a page begins.
func pageFrom(token string) (messagestore.GlobalPosition, error) {
	if token == "" {
		return 0, nil
	}
	from, err := strconv.ParseInt(token, 10, 64)
	if err != nil || from < 0 || strconv.FormatInt(from, 10) != token {
		return 0, invalid("page_token", token, "must be the next_page_token of a page")
	}
	return messagestore.GlobalPosition(from), nil
}

// GetQueue returns what there is in a queue.
func (h queues) GetQueue(ctx context.Context, r *v1.GetQueueRequest) (*v1.GetQueueResponse, error) {
	q, _, err := h.named(ctx, Read, r.GetQueue())
	if err != nil {
		return nil, err
	}
	s, err := q.Status(ctx)
	if errors.Is(err, messagestore.ErrNotFound) { // nobody has received from it
		page, readErr := h.s.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: q.Category(), Limit: 1})
		s.Waiting, err = len(page.Messages) > 0, readErr
	}
	if err != nil {
		return nil, fail(err)
	}
	res := &v1.GetQueueResponse{
		Paused: s.Paused, Waiting: s.Waiting, Out: s.Out, Later: s.Later, Held: s.Held, Dead: s.Dead, Finished: s.Finished, Sessions: s.Sessions, WaitingReceives: q.waiting.Load(), Partial: s.Partial,
	}
	if !s.Oldest.IsZero() {
		res.OldestTime = timestamppb.New(s.Oldest)
	}
	return res, nil
}

// parseDelivery returns the delivery of a queue that an id names.
func parseDelivery(q *servedQueue, field, id string) (queue.Delivery, error) {
	d, ok := delivery.Parse(q.of(), id)
	if !ok {
		return queue.Delivery{}, invalid(field, id, "must be a delivery_id of a Receive of this queue")
	}
	return d, nil
}

// deliveryID returns the text that names a delivery.
func deliveryID(q *servedQueue, d queue.Delivery) string { return delivery.ID(q.of(), d) }

func (q *servedQueue) of() queuing.Queue {
	return queuing.Queue{Name: q.Name(), Category: q.Category()}
}
