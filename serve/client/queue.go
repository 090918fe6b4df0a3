package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/internal/delivery"
)

// Queue returns a queue that the server keeps, with the methods, handlers and workers that it has
// in a process with the store. It makes no call. What differs:
//
//   - The queue's policy is the stored one ([queue.Queue.SetPolicy]), so MaxFailures, WhenDead,
//     MaxOut, Rate and Burst must not be set.
//   - What needs the queue's database returns an error that matches [messagestore.ErrNotSupported]:
//     InsertTx, Write and Remove of a queue, and CompleteTx of a job.
//   - Each call for items has a lease of its own. If a process dies with one item of a call out,
//     that is a failure of the item, as with [queue.Queue.Receive].
//   - An item that a worker gives back unfinished, because it stops, is deferred by 0 in the log.
//   - A job has no notes.
//   - A status has no Cursor, Suspended, Due, Time, Changed, Taken, Back and Buried, and an item has
//     no Version, Session, Until, Due, Behind and Closed: these are zero.
//   - If the context of a Receive with an ID ends, an answer that was already on its way is lost:
//     repeat the call, or its items come again when their time is over, and that is a failure. What
//     a Receive without an ID may have reserved is given back.
//   - Await looks at its item only, and reads the given streams when that has ended.
//
// A handler's context ends in time if the server cannot be reached, as it does for a store. A call
// that the client sent again without an answer, for as long as its Patience, is an
// [messagestore.ErrOutcomeUnknown] and may be made again. A Receive with an ID is never sent again:
// that is for you to do.
func (c *Client) Queue(category messagestore.Category, config *queue.Config) (*queue.Queue, error) {
	r := &remote{c: c, bell: make(chan messagestore.GlobalPosition, 1)}
	q, err := queue.NewOver(r, category, config)
	if err != nil {
		return nil, err
	}
	r.of = queuing.Queue{Name: q.Name(), Category: q.Category()}
	return q, nil
}

// A remote is the queue of a server, for package queue.
type remote struct {
	c    *Client
	of   queuing.Queue
	bell chan messagestore.GlobalPosition // rings when a poll has ended

	mu   sync.Mutex
	poll *poll              // the call that waits for the worker, or has ended and is to be taken; nil for none
	lost *v1.ReceiveRequest // the worker's call whose answer was lost; the next call repeats it
	left chan struct{}      // is closed when what the stopped worker's calls may bring was given back

	gone    []*v1.ReceiveRequest // calls without an answer, whose callers do not wait any more
	leaving bool                 // they are being left
}

// A poll is a Receive that waits at the server for a worker. The goroutine of the call closes ended,
// and writes nothing after that.
type poll struct {
	request *v1.ReceiveRequest
	cancel  context.CancelFunc
	ended   chan struct{}
	items   []queuing.Taking
	since   time.Time // from when their lease counts
}

const (
	// pollWait is how long a poll waits. Then another takes its place at the end of the line.
	pollWait = 30 * time.Second

	// minPoll is the least time between the beginnings of two polls that bring nothing: a server
	// that is about to stop lets nobody wait.
	minPoll = time.Second

	// maxGone is how many calls are left later at most: what others have reserved comes back when its
	// time is over.
	maxGone = 10_000
)

func (p *poll) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Watch returns the bell of a worker. Its stop ends the worker's poll, and has the items given back
// that it may bring.
func (r *remote) Watch(messagestore.Category, time.Duration) (<-chan messagestore.GlobalPosition, func()) {
	return r.bell, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		p, left := r.poll, make(chan struct{})
		r.poll, r.left = nil, left
		go func() {
			defer close(left)
			if p != nil {
				p.cancel()
				<-p.ended
				r.giveBack(p.items)
			}
			r.mu.Lock()
			lost := r.lost
			r.lost = nil
			r.mu.Unlock()
			r.leave(lost)
		}()
	}
}

// QueueTake ends deliveries, and takes items from the poll if one has ended. Without a poll it asks
// for items, and if it gets too few a poll begins.
func (r *remote) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	r.mu.Lock()
	p := r.poll
	r.mu.Unlock()
	if t.Want > 0 && (p == nil || p.hasEnded() && len(p.items) == 0) {
		return r.ask(ctx, t)
	}
	taken := queuing.Taken{Wake: -1}
	var err error
	if taken.Endings, err = r.settle(ctx, t.Finishes, t.Session); err != nil || t.Want == 0 || !p.hasEnded() {
		return taken, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.poll = nil
	taken.Items, taken.Since, taken.More = p.items, p.since, len(p.items) == int(p.request.GetMaxItems())
	return taken, nil
}

// ask makes a Receive that does not wait.
func (r *remote) ask(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	request, err := r.request(t)
	if err != nil {
		return queuing.Taken{}, err
	}
	r.mu.Lock()
	r.poll = nil
	if lost := r.lost; lost != nil && lost.GetAttempt() < maxAttempt {
		request.ReceiveId, request.Attempt = lost.GetReceiveId(), lost.GetAttempt()+1
	}
	r.lost = request
	r.mu.Unlock()
	taken, err := r.receive(ctx, request)
	if err != nil {
		return queuing.Taken{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = nil
	if len(taken.Items) < t.Want {
		t.Finishes, t.Want = nil, t.Want-len(taken.Items)
		r.wait(t)
	}
	return taken, nil
}

// wait begins a poll. It is called under mu.
func (r *remote) wait(t queuing.Take) {
	request, _ := r.request(t) // without settlements
	request.MaxWait = durationpb.New(pollWait)
	ctx, cancel := context.WithCancel(context.Background())
	p := &poll{request: request, cancel: cancel, ended: make(chan struct{}), since: time.Now()}
	r.poll = p
	go func() {
		defer cancel()
		taken, err := r.receive(ctx, request)
		if p.items = taken.Items; len(p.items) == 0 {
			_ = outage.Wait(ctx, time.Until(p.since.Add(minPoll)))
		}
		if err != nil {
			r.mu.Lock()
			r.lost = request
			r.mu.Unlock()
		}
		close(p.ended)
		select {
		case r.bell <- 0:
		default: // it is about to be heard
		}
	}()
}

// request returns the Receive for a take.
func (r *remote) request(t queuing.Take) (*v1.ReceiveRequest, error) {
	settlements, err := r.settlements(t.Finishes, t.Session)
	return &v1.ReceiveRequest{
		Queue: r.name(), ReceiveId: uuid.NewString(), MaxItems: int32(t.Want), VisibilityTimeout: durationpb.New(t.Lease), Settlements: settlements,
	}, err
}

func (r *remote) name() *v1.QueueName {
	return &v1.QueueName{Category: string(r.of.Category), Queue: r.of.Name}
}

// receive makes a Receive.
func (r *remote) receive(ctx context.Context, request *v1.ReceiveRequest) (queuing.Taken, error) {
	return r.taken(r.c.Queues.Receive(ctx, request))
}

func (r *remote) taken(res *v1.ReceiveResponse, err error) (queuing.Taken, error) {
	if err != nil {
		return queuing.Taken{}, err
	}
	taken := queuing.Taken{Endings: endingsOf(res.GetSettled()), Wake: -1}
	for _, d := range res.GetDeliveries() {
		m, err := messageOf(d.GetItem())
		named, ok := delivery.Parse(r.of, d.GetDeliveryId())
		if err != nil || !ok {
			return queuing.Taken{}, fmt.Errorf("malformed answer to Receive: delivery %q: %w", d.GetDeliveryId(), cmp.Or(err, messagestore.ErrOutcomeUnknown))
		}
		taken.Items = append(taken.Items, queuing.Taking{Message: m, Version: named.Version, Failures: int(d.GetFailures()), Session: named.Session})
	}
	return taken, nil
}

// Receive makes the Receive of a caller who waits.
func (r *remote) Receive(ctx context.Context, t queuing.Take, repeat queuing.Repeat, wait time.Duration) (queuing.Taken, error) {
	request, err := r.request(t)
	if err != nil {
		return queuing.Taken{}, err
	}
	if wait > 0 {
		request.MaxWait = durationpb.New(wait)
	}
	if repeat.ID != uuid.Nil {
		request.ReceiveId, request.Attempt, request.RepeatOnly = repeat.ID.String(), int32(repeat.Attempt), repeat.Only
		return r.taken(r.c.once.Receive(ctx, request))
	}
	taken, err := r.receive(ctx, request)
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.gone) < maxGone {
			r.gone = append(r.gone, request)
		}
		if !r.leaving {
			r.leaving = true
			go r.leaveAll()
		}
	}
	return taken, err
}

// leaveAll leaves the calls without an answer, one after the other: the server has given back most of
// what they reserved when their callers hung up, and callers who wait shall not stand behind those
// who do not.
func (r *remote) leaveAll() {
	for {
		r.mu.Lock()
		if len(r.gone) == 0 {
			r.gone, r.leaving = nil, false
			r.mu.Unlock()
			return
		}
		next := r.gone[0]
		r.gone = r.gone[1:]
		r.mu.Unlock()
		r.leave(next)
	}
}

// leave gives back what a Receive without an answer has reserved, by its next attempt.
func (r *remote) leave(request *v1.ReceiveRequest) {
	if request == nil || request.GetAttempt() >= maxAttempt {
		return
	}
	request.Attempt++
	request.RepeatOnly, request.Settlements, request.MaxWait = true, nil, nil
	ctx, cancel := context.WithTimeout(context.Background(), work.LeaveTimeout)
	defer cancel()
	if taken, err := r.receive(ctx, request); err == nil {
		r.giveBack(taken.Items)
	}
}

// giveBack gives back items that nobody has worked on. If that fails, they come back when their
// time is over.
func (r *remote) giveBack(items []queuing.Taking) {
	finishes := make([]queuing.Finish, len(items))
	for i, item := range items {
		finishes[i] = queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Unhandled, Session: item.Session}
	}
	ctx, cancel := context.WithTimeout(context.Background(), work.LeaveTimeout)
	defer cancel()
	_, _ = r.settle(ctx, finishes, 0)
}

// settle ends deliveries.
func (r *remote) settle(ctx context.Context, finishes []queuing.Finish, session int64) ([]queuing.Ending, error) {
	settlements, err := r.settlements(finishes, session)
	if err != nil || len(settlements) == 0 {
		return nil, err
	}
	res, err := r.c.Queues.Settle(ctx, &v1.SettleRequest{Queue: r.name(), Settlements: settlements})
	if err != nil {
		return nil, err
	}
	return endingsOf(res.GetOutcomes()), nil
}

func (r *remote) settlements(finishes []queuing.Finish, session int64) ([]*v1.Settlement, error) {
	all := make([]*v1.Settlement, len(finishes))
	for i, f := range finishes {
		s := &v1.Settlement{DeliveryId: r.id(f.Delivery, cmp.Or(f.Session, session))}
		switch f.Kind {
		case queuing.Complete:
			s.Action = &v1.Settlement_Complete_{Complete: &v1.Settlement_Complete{}}
		case queuing.Retry:
			s.Action = &v1.Settlement_Retry_{Retry: &v1.Settlement_Retry{Delay: durationpb.New(f.Delay), Error: f.Error}}
		case queuing.Defer:
			s.Action = &v1.Settlement_Defer_{Defer: &v1.Settlement_Defer{Delay: durationpb.New(f.Delay), Error: f.Error}}
		case queuing.Unhandled:
			s.Action = &v1.Settlement_Defer_{Defer: &v1.Settlement_Defer{}}
		case queuing.Bury:
			s.Action = &v1.Settlement_Bury_{Bury: &v1.Settlement_Bury{Error: f.Error}}
		default:
			return nil, fmt.Errorf("%w: a delivery of kind %c", messagestore.ErrNotSupported, f.Kind)
		}
		all[i] = s
	}
	return all, nil
}

func (r *remote) id(d queuing.Delivery, session int64) string {
	return delivery.ID(r.of, queue.Delivery{Position: d.Position, Version: d.Version, Session: session})
}

func endingsOf(outcomes []v1.SettlementOutcome) []queuing.Ending {
	var endings []queuing.Ending
	for _, o := range outcomes {
		ending := queuing.Lost
		if o == v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE {
			ending = queuing.Done
		}
		endings = append(endings, ending)
	}
	return endings
}

// QueueReady reports whether a take would find the items of a poll, or make a call for items.
func (r *remote) QueueReady(context.Context, queuing.Queue) (queuing.Ready, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return queuing.Ready{Ready: r.poll == nil || r.poll.hasEnded(), Wake: -1}, nil
}

// QueueExtend extends deliveries, and with those of a worker what its poll has brought.
func (r *remote) QueueExtend(ctx context.Context, e queuing.Extension) (lost []queuing.Delivery, err error) {
	ids := make([]string, len(e.Deliveries))
	for i, d := range e.Deliveries {
		session := e.Session
		if len(e.Sessions) > 0 {
			session = e.Sessions[i]
		}
		ids[i] = r.id(d, session)
	}
	r.mu.Lock()
	p, began, kept := r.poll, time.Now(), len(e.Sessions) > 0
	r.mu.Unlock()
	if kept = kept && p != nil && p.hasEnded(); kept {
		for _, item := range p.items {
			ids = append(ids, r.id(item.Delivery(), item.Session))
		}
	}
	for begin := 0; begin < len(ids); begin += queuing.MaxItems {
		some := ids[begin:min(begin+queuing.MaxItems, len(ids))]
		res, err := r.c.Queues.ExtendDeliveries(ctx, &v1.ExtendDeliveriesRequest{Queue: r.name(), DeliveryIds: some, VisibilityTimeout: durationpb.New(e.Lease)})
		if err != nil {
			return nil, err
		}
		for i, ending := range endingsOf(res.GetOutcomes()) {
			switch i += begin; {
			case ending == queuing.Done:
			case i < len(e.Deliveries):
				lost = append(lost, e.Deliveries[i])
			default:
				kept = false
			}
		}
	}
	if kept {
		r.mu.Lock()
		defer r.mu.Unlock()
		p.since = began
	}
	return lost, nil
}

// QueueLeave waits until the calls of a stopped worker have left nothing. A session of a worker has
// nothing at the server.
func (r *remote) QueueLeave(ctx context.Context, _ queuing.Leave) error {
	r.mu.Lock()
	left := r.left
	r.mu.Unlock()
	if left == nil {
		return nil
	}
	select {
	case <-left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxProduceBytes bounds the items of one Produce.
const maxProduceBytes = 2 << 20

// Insert inserts items, in as many calls as their size needs.
func (r *remote) Insert(ctx context.Context, items []queuing.NewItem) (done []queuing.Inserted, err error) {
	for len(items) > 0 {
		request, bytes := &v1.ProduceRequest{Queue: r.name()}, 0
		for _, i := range items {
			if bytes += len(i.Data) + len(i.Metadata); bytes > maxProduceBytes && len(request.Items) > 0 {
				break
			}
			item := &v1.NewItem{Id: i.ID.String(), Type: i.Type, DataJson: string(i.Data), MetadataJson: string(i.Metadata), Key: i.Key, Unique: i.Unique}
			if i.Unique != "" {
				item.UniqueUntil = v1.UniqueUntil(i.Until + 1) // after UNSPECIFIED
			}
			request.Items = append(request.Items, item)
		}
		res, err := r.c.Queues.Produce(ctx, request)
		if err != nil {
			return done, err
		}
		for _, p := range res.GetItems() {
			id, err := uuid.Parse(p.GetId())
			if err != nil {
				return done, fmt.Errorf("malformed answer to Produce: id %q: %w", p.GetId(), err)
			}
			done = append(done, queuing.Inserted{
				ID: id, Position: messagestore.GlobalPosition(p.GetPosition()), Duplicate: p.GetOutcome() == v1.ProduceOutcome_PRODUCE_OUTCOME_DUPLICATE,
				Reused: p.GetOutcome() == v1.ProduceOutcome_PRODUCE_OUTCOME_KEY_REUSED, Conflict: p.GetOutcome() == v1.ProduceOutcome_PRODUCE_OUTCOME_ID_CONFLICT,
			})
		}
		items = items[len(request.Items):]
	}
	return done, nil
}

// QueueItem returns an item.
func (r *remote) QueueItem(ctx context.Context, _ queuing.Queue, position messagestore.GlobalPosition) (queuing.Item, error) {
	return r.item(ctx, &v1.GetItemRequest{Queue: r.name(), Position: int64(position)})
}

// AwaitItem returns an item that is finished or dead, or as it is after a long wait.
func (r *remote) AwaitItem(ctx context.Context, _ queuing.Queue, position messagestore.GlobalPosition) (queuing.Item, error) {
	return r.item(ctx, &v1.GetItemRequest{Queue: r.name(), Position: int64(position), MaxWait: durationpb.New(pollWait)})
}

func (r *remote) item(ctx context.Context, request *v1.GetItemRequest) (queuing.Item, error) {
	res, err := r.c.Queues.GetItem(ctx, request)
	if err != nil {
		return queuing.Item{}, err
	}
	return itemOf(res.GetItem())
}

var itemStates = map[v1.ItemState]queuing.State{
	v1.ItemState_ITEM_STATE_WAITING: queuing.Waiting, v1.ItemState_ITEM_STATE_OUT: queuing.Out, v1.ItemState_ITEM_STATE_LATER: queuing.Later,
	v1.ItemState_ITEM_STATE_HELD: queuing.Held, v1.ItemState_ITEM_STATE_DEAD: queuing.Dead, v1.ItemState_ITEM_STATE_FINISHED: queuing.Finished,
	v1.ItemState_ITEM_STATE_SUSPENDED: queuing.Suspended,
}

func itemOf(of *v1.Item) (queuing.Item, error) {
	m, err := messageOf(of.GetMessage())
	item := queuing.Item{
		Message: m, Position: messagestore.GlobalPosition(of.GetPosition()), State: itemStates[of.GetState()], Failures: int(of.GetFailures()), Error: of.GetError(), Note: of.GetNote(),
	}
	for _, e := range of.GetLog() {
		item.Log = append(item.Log, queuing.Entry{Version: int(e.GetVersion()), What: queuing.WhatOf(e.GetWhat()), Time: e.GetTime().AsTime(), Text: e.GetText()})
	}
	return item, err
}

// QueueItems returns unfinished items in a state.
func (r *remote) QueueItems(ctx context.Context, l queuing.List) ([]queuing.Item, error) {
	request := &v1.ListItemsRequest{Queue: r.name(), PageSize: int32(l.Limit), PageToken: strconv.FormatInt(int64(l.From), 10)}
	for wire, state := range itemStates {
		if state == l.State {
			request.State = wire
		}
	}
	res, err := r.c.Queues.ListItems(ctx, request)
	if err != nil {
		return nil, err
	}
	var items []queuing.Item
	for _, i := range res.GetItems() {
		item, err := itemOf(i)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// QueueStatus returns what there is in the queue.
func (r *remote) QueueStatus(ctx context.Context, q queuing.Queue) (queuing.Status, error) {
	res, err := r.c.Queues.GetQueue(ctx, &v1.GetQueueRequest{Queue: r.name()})
	if err != nil {
		return queuing.Status{}, err
	}
	s := queuing.Status{
		Queue: q, Paused: res.GetPaused(), Waiting: res.GetWaiting(), Out: res.GetOut(), Later: res.GetLater(), Held: res.GetHeld(), Dead: res.GetDead(),
		Finished: res.GetFinished(), Sessions: res.GetSessions(), Partial: res.GetPartial(),
	}
	if res.GetOldestTime() != nil {
		s.Oldest = res.GetOldestTime().AsTime()
	}
	return s, nil
}

// QueueChange applies an operator's action.
func (r *remote) QueueChange(ctx context.Context, c queuing.Change) (changed []messagestore.GlobalPosition, err error) {
	switch c.Action {
	case queuing.Pause:
		_, err = r.c.Admin.PauseQueue(ctx, &v1.PauseQueueRequest{Queue: r.name()})
		return nil, err
	case queuing.Resume:
		_, err = r.c.Admin.ResumeQueue(ctx, &v1.ResumeQueueRequest{Queue: r.name()})
		return nil, err
	}
	request := &v1.ChangeItemsRequest{Queue: r.name(), Reason: c.Reason, Change: v1.ItemChange_ITEM_CHANGE_RETRY}
	switch c.Action {
	case queuing.Drop:
		request.Change = v1.ItemChange_ITEM_CHANGE_DROP
	case queuing.Cancel:
		request.Change = v1.ItemChange_ITEM_CHANGE_CANCEL
	}
	for _, p := range c.Positions {
		request.Positions = append(request.Positions, int64(p))
	}
	res, err := r.c.Admin.ChangeItems(ctx, request)
	for _, p := range res.GetChangedPositions() {
		changed = append(changed, messagestore.GlobalPosition(p))
	}
	return changed, err
}

// SetPolicy stores the queue's policy.
func (r *remote) SetPolicy(ctx context.Context, p queuing.Policy) error {
	_, err := r.c.Admin.SetQueuePolicy(ctx, &v1.SetQueuePolicyRequest{Queue: r.name(), Policy: &v1.QueuePolicy{
		MaxFailures: int32(p.MaxFailures), HoldBehindDead: p.Hold, MaxOut: int32(p.MaxOut), Rate: p.Rate, Burst: int32(p.Burst),
	}})
	return err
}

// Last returns the last message of a stream.
func (r *remote) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	res, err := r.c.Store.GetLast(ctx, &v1.GetLastRequest{Stream: string(stream)})
	if err != nil {
		return nil, err
	}
	if res.GetMessage() == nil {
		return nil, messagestore.ErrNotFound
	}
	return messageOf(res.GetMessage())
}

// ReadStreamBackwards returns the messages of a stream from its end.
func (r *remote) ReadStreamBackwards(ctx context.Context, stream messagestore.StreamName, _ messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	return func(yield func(*messagestore.Message, error) bool) {
		last, err := r.Last(ctx, stream)
		if errors.Is(err, messagestore.ErrNotFound) {
			return
		}
		if err != nil {
			yield(nil, err)
			return
		}
		const size = 100
		for end := last.Position + 1; end > 0; end -= size {
			page, err := r.read(ctx, stream, max(end-size, 0), end)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, m := range slices.Backward(page) {
				if !yield(m, nil) {
					return
				}
			}
		}
	}
}

// read returns the messages of a stream from a position until before end.
func (r *remote) read(ctx context.Context, stream messagestore.StreamName, from, end messagestore.Version) ([]*messagestore.Message, error) {
	var all []*messagestore.Message
	for from < end {
		res, err := r.c.Store.ReadStream(ctx, &v1.ReadStreamRequest{Stream: string(stream), FromVersion: int64(from), PageSize: int32(end - from)})
		if err != nil {
			return nil, err
		}
		for _, of := range res.GetMessages() {
			m, err := messageOf(of)
			if err != nil {
				return nil, err
			}
			all = append(all, m)
		}
		if from = messagestore.Version(res.GetNextVersion()); !res.GetMore() {
			break
		}
	}
	return all, nil
}

// These need the store itself.

var errNeedsStore = fmt.Errorf("%w: a server does not offer it", messagestore.ErrNotSupported)

// QueueFinish is not offered.
func (*remote) QueueFinish(context.Context, queuing.Queue, int64, []queuing.Delivery) ([]queuing.Ending, error) {
	return nil, errNeedsStore
}

// QueuePark is not offered.
func (*remote) QueuePark(context.Context, queuing.Parking) (bool, error) { return false, errNeedsStore }

// QueueRemove is not offered.
func (*remote) QueueRemove(context.Context, queuing.Removal) (queuing.RemovedQueue, error) {
	return queuing.RemovedQueue{}, errNeedsStore
}

// Queues is not offered.
func (*remote) Queues(context.Context) ([]queuing.Status, error) { return nil, errNeedsStore }

func messageOf(m *v1.Message) (*messagestore.Message, error) {
	if m == nil {
		return nil, nil
	}
	id, err := uuid.Parse(m.GetId())
	if err != nil {
		return nil, fmt.Errorf("malformed message: id %q: %w", m.GetId(), err)
	}
	return &messagestore.Message{
		ID: id, Stream: messagestore.StreamName(m.GetStream()), Position: messagestore.Version(m.GetPosition()), GlobalPosition: messagestore.GlobalPosition(m.GetGlobalPosition()),
		Time: m.GetTime().AsTime(), Type: m.GetType(), Data: []byte(m.GetDataJson()), Metadata: messagestore.ParseMetadata(m.GetMetadataJson()),
	}, nil
}
