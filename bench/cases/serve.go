package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/kapetan-io/querator"
	querator1 "github.com/kapetan-io/querator/proto"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve/client"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// The names of contenders.
const (
	served        = "dibs serve"
	servedInside  = "dibs serve, settled inside Receive"
	setAndGet     = "Redis, SET NX and GET, no persistence"
	dibsBatches   = "Dibs in process, in batches"
	queratorDisk  = "Querator on Badger"
	queratorBlitz = "Querator in memory"

	serveTen = 10 // items a call
)

// serveCPU is the server's own processor time, in seconds an operation.
const serveCPU measure.Metric = "CPU of dibs serve"

// Serve returns the cases of the services, on the same two cores as their clients.
func Serve() []measure.Case {
	intents := func(name, shows string, work intentWork, others []measure.Contender, goals ...measure.Goal) measure.Case {
		run := func(open openIntents) func(context.Context, *measure.Cell) error {
			return func(ctx context.Context, cell *measure.Cell) error { return work.run(ctx, cell, open, intentCallers) }
		}
		return measure.Case{
			Name: "serve/" + name + "/64-callers", Shows: shows, Goals: goals,
			Contenders: append([]measure.Contender{{Name: dibs, Run: run(openDibsIntents)}, {Name: served, Run: run(openServedIntents)}}, others...),
		}
	}
	find := func(name string) intentWork {
		for _, w := range intentWorks {
			if w.name == name {
				return w
			}
		}
		panic("there is no work " + name)
	}
	held := find("held")
	return []measure.Case{
		intents("reserve-confirm", "Reserve an intent and confirm it, in process and over gRPC, 64 callers", find("cycle"), nil,
			measure.Goal{Metric: measure.Rate, Of: served, To: dibs, AtLeast: 0.4}, measure.Goal{Metric: serveCPU, Of: served, AtMost: 350e-6}),
		intents("taken", "Ask for an intent that is held, 64 callers", held, []measure.Contender{{
			Name: setAndGet, Run: func(ctx context.Context, cell *measure.Cell) error {
				return held.run(ctx, cell, openSetAndGet, intentCallers)
			},
		}},
			measure.Goal{Metric: measure.Rate, Of: served, To: setAndGet, AtLeast: 0.3}, measure.Goal{Metric: serveCPU, Of: served, AtMost: 180e-6}),
		{
			Name: "serve/queue-x10/64-callers", Shows: "Produce, receive and settle ten items a call, 64 callers, PostgreSQL",
			Contenders: []measure.Contender{
				{Name: dibsBatches, Run: cycleBatches},
				{Name: served, Run: cycleServed(false)},
				{Name: servedInside, Run: cycleServed(true)},
				{Name: queratorDisk, Run: cycleQuerator("badger")},
				{Name: queratorBlitz, Run: cycleQuerator("memory")},
			},
			Goals: []measure.Goal{
				{Metric: measure.Rate, Of: served, To: dibsBatches, AtLeast: 0.7},
				{Metric: measure.Rate, Of: servedInside, To: dibsBatches, AtLeast: 0.9},
				{Metric: measure.Rate, Of: servedInside, To: queratorDisk, AtLeast: 2},
			},
		},
		waitingCase(),
	}
}

// dial starts a server over a new database, and returns a client of it.
func dial(ctx context.Context, cell *measure.Cell) (*client.Client, *dibsStore, *serveTime, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := server.StartService(ctx, cell.Servers.Dir(), url)
	if err != nil {
		return nil, nil, nil, err
	}
	cell.MeasureServer(s)
	cell.Cleanup(func(context.Context) error { return s.Stop() })
	store, err := openDibsStore(ctx, url)
	if err != nil {
		return nil, nil, nil, err
	}
	c, err := client.New(s.URL(), nil)
	return c, store, &serveTime{cell: cell, pid: s.PID()}, err
}

// A serveTime is the processor time of a server since mark.
type serveTime struct {
	cell  *measure.Cell
	pid   int
	began time.Duration
}

func (t *serveTime) mark() (err error) {
	t.began, err = server.CPU(t.pid)
	return err
}

func (t *serveTime) spent(done int64) error {
	cpu, err := server.CPU(t.pid)
	t.cell.Set(serveCPU, (cpu-t.began).Seconds()/float64(max(done, 1)))
	return err
}

// A servedIntents asks a server for intents.
type servedIntents struct {
	api   *client.Client
	store *dibsIntents
	*serveTime
}

func openServedIntents(ctx context.Context, cell *measure.Cell) (intentStore, error) {
	api, store, spent, err := dial(ctx, cell)
	if err != nil {
		return nil, err
	}
	m, err := manage(store.Store)
	return &servedIntents{api, &dibsIntents{m, store}, spent}, err
}

func (s *servedIntents) reserve(ctx context.Context, key, session string) (*reply, error) {
	content, err := json.Marshal(paymentOf(key))
	if err != nil {
		return nil, err
	}
	a, err := s.api.Intents.Reserve(ctx, &v1.ReserveRequest{
		Name: &v1.IntentName{Category: string(intentCategory), Key: key}, SessionId: session, ContentJson: string(content), Ttl: durationpb.New(intentTTL),
	})
	if err != nil {
		return nil, err
	}
	switch a.GetOutcome() {
	case v1.Outcome_OUTCOME_RESERVED:
		return &reply{outcome: intentGranted, key: key, session: session, lease: a.GetLease()}, nil
	case v1.Outcome_OUTCOME_HELD:
		return &reply{outcome: intentHeld, holder: a.GetIntent().GetSessionId()}, nil
	case v1.Outcome_OUTCOME_DONE:
		return &reply{outcome: intentDone, result: []byte(a.GetIntent().GetResultJson())}, nil
	default:
		return nil, fmt.Errorf("intent %s: %v", key, a.GetOutcome())
	}
}

func (s *servedIntents) extend(context.Context, *reply) error { return errors.ErrUnsupported }

func (s *servedIntents) confirm(ctx context.Context, granted *reply) error {
	a, err := s.api.Intents.Confirm(ctx, &v1.ConfirmRequest{Lease: granted.lease.(*v1.Lease), ResultJson: string(storedResponse)}) //nolint:errcheck,forcetypeassert // it is one
	if err == nil && a.GetOutcome() != v1.LeaseOutcome_LEASE_OUTCOME_OK {
		err = fmt.Errorf("intent %s: %v", granted.key, a.GetOutcome())
	}
	return err
}

func (s *servedIntents) intents(ctx context.Context, confirmed bool) (int64, error) {
	return s.store.intents(ctx, confirmed)
}

func (s *servedIntents) close() {
	s.api.Close()
	s.store.close()
}

// A setAndGetIntents asks Redis as simply as one can: SET NX, and GET for the holder.
type setAndGetIntents struct{ *redis.Client }

func openSetAndGet(ctx context.Context, cell *measure.Cell) (intentStore, error) {
	c, err := openRedis(ctx, cell, "")
	return setAndGetIntents{c}, err
}

func (r setAndGetIntents) reserve(ctx context.Context, key, session string) (*reply, error) {
	digest, err := digestOf(key)
	if err != nil {
		return nil, err
	}
	free, err := r.SetNX(ctx, key, session, intentTTL).Result()
	if err != nil || free {
		return &reply{outcome: intentGranted, key: key, session: session, lease: digest}, err
	}
	holder, err := r.Get(ctx, key).Result()
	return &reply{outcome: intentHeld, holder: holder}, err
}

func (setAndGetIntents) extend(context.Context, *reply) error  { return errors.ErrUnsupported }
func (setAndGetIntents) confirm(context.Context, *reply) error { return errors.ErrUnsupported }
func (r setAndGetIntents) intents(ctx context.Context, _ bool) (int64, error) {
	return r.DBSize(ctx).Result()
}
func (r setAndGetIntents) close() { _ = r.Close() }

// cycleBatches inserts, receives and settles ten items a call, by the library.
func cycleBatches(ctx context.Context, cell *measure.Cell) error {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return err
	}
	store, err := openDibsStore(ctx, url)
	if err != nil {
		return err
	}
	defer store.close()
	q := testkit.Must(queue.New(store.Store, itemCategory, &queue.Config{Logger: logger.Silent()}))
	done, err := cell.Callers(ctx, queueWorkers, func(ctx context.Context, _ int) (int, error) {
		entries := make([]queue.Entry, serveTen)
		for i := range entries {
			entries[i].Body = newItem()
		}
		if _, err := q.InsertMany(ctx, entries...); err != nil {
			return 0, err
		}
		jobs, err := q.Receive(ctx, serveTen, &queue.ReceiveOpts{Wait: 10 * time.Second})
		if err != nil || len(jobs) == 0 {
			return 0, err
		}
		settlements := make([]queue.Settlement, len(jobs))
		for i, j := range jobs {
			settlements[i] = queue.Settlement{Delivery: j.Delivery(), Action: queue.Complete}
		}
		outcomes, err := q.Settle(ctx, settlements...)
		return len(jobs), errors.Join(append(outcomes, err)...)
	})
	if err != nil {
		return err
	}
	status, err := q.Status(ctx)
	return errors.Join(err, cell.Check("finished items", status.Finished, done))
}

// cycleServed does the same through a server.
func cycleServed(inside bool) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		api, store, spent, err := dial(ctx, cell)
		if err != nil {
			return err
		}
		defer store.close()
		defer api.Close()
		name := &v1.QueueName{Category: string(itemCategory)}
		kept := make([][]*v1.Settlement, queueWorkers)
		done, err := cell.Callers(ctx, queueWorkers, func(ctx context.Context, caller int) (int, error) {
			items := make([]*v1.NewItem, serveTen)
			for i := range items {
				data, err := json.Marshal(newItem())
				if err != nil {
					return 0, err
				}
				items[i] = &v1.NewItem{Id: newID().String(), Type: newItem().MessageType(), DataJson: string(data)}
			}
			if _, err := api.Queues.Produce(ctx, &v1.ProduceRequest{Queue: name, Items: items}); err != nil {
				return 0, err
			}
			got, err := api.Queues.Receive(ctx, &v1.ReceiveRequest{
				Queue: name, ReceiveId: uuid.NewString(), MaxItems: serveTen, MaxWait: durationpb.New(10 * time.Second), Settlements: kept[caller],
			})
			if err != nil {
				return 0, err
			}
			settled := got.GetSettled()
			kept[caller] = nil
			for _, d := range got.GetDeliveries() {
				kept[caller] = append(kept[caller], &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Complete_{}})
			}
			if !inside && len(kept[caller]) > 0 {
				s, err := api.Queues.Settle(ctx, &v1.SettleRequest{Queue: name, Settlements: kept[caller]})
				if err != nil {
					return 0, err
				}
				settled, kept[caller] = s.GetOutcomes(), nil
			}
			for _, o := range settled {
				if o != v1.SettlementOutcome_SETTLEMENT_OUTCOME_DONE {
					return 0, fmt.Errorf("a settlement is %v", o)
				}
			}
			return len(settled), nil
		})
		if err != nil {
			return err
		}
		q := testkit.Must(queue.New(store.Store, itemCategory, &queue.Config{Logger: logger.Silent()}))
		status, err := q.Status(ctx)
		return errors.Join(err, cell.Check("finished items", status.Finished, done), spent.spent(done))
	}
}

// cycleQuerator does the same by Querator and its own client.
func cycleQuerator(driver string) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		s, err := server.StartQuerator(ctx, cell.Servers.Dir(), driver)
		if err != nil {
			return err
		}
		cell.MeasureServer(s)
		cell.Cleanup(func(context.Context) error { return s.Stop() })
		c, err := querator.NewClient(querator.ClientConfig{Endpoint: s.URL()})
		if err != nil {
			return err
		}
		name := string(itemCategory)
		err = c.QueuesCreate(ctx, &querator1.QueueInfo{QueueName: name, LeaseTimeout: "1m", ExpireTimeout: "1h", RequestedPartitions: 1})
		if err != nil {
			return err
		}
		var produced atomic.Int64
		done, err := cell.Callers(ctx, queueWorkers, func(ctx context.Context, caller int) (int, error) {
			produce := &querator1.QueueProduceRequest{QueueName: name, RequestTimeout: "1m"}
			for range serveTen {
				data, err := json.Marshal(newItem())
				if err != nil {
					return 0, err
				}
				produce.Items = append(produce.Items, &querator1.QueueProduceItem{Kind: "Transfer", Bytes: data})
			}
			if err := c.QueueProduce(ctx, produce); err != nil {
				return 0, err
			}
			produced.Add(serveTen)
			var got querator1.QueueLeaseResponse
			err := c.QueueLease(ctx, &querator1.QueueLeaseRequest{QueueName: name, BatchSize: serveTen, ClientId: fmt.Sprint(caller, newID()), RequestTimeout: "1m"}, &got)
			if err != nil {
				return 0, err
			}
			complete := &querator1.QueueCompleteRequest{QueueName: name, Partition: got.GetPartition(), RequestTimeout: "1m"}
			for _, item := range got.GetItems() {
				complete.Ids = append(complete.Ids, item.GetId())
			}
			return len(complete.GetIds()), c.QueueComplete(ctx, complete)
		})
		if err != nil {
			return err
		}
		var stats querator1.QueueStatsResponse
		if err := c.QueueStats(ctx, &querator1.QueueStatsRequest{QueueName: name}, &stats); err != nil {
			return err
		}
		for _, l := range stats.GetLogicalQueues() {
			for _, p := range l.GetPartitions() {
				produced.Add(-int64(p.GetTotal()))
			}
		}
		return cell.Check("completed items", produced.Load(), done)
	}
}
