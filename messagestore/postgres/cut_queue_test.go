package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// The sessions of the scenes, and their policy. Leases of cutLease are over before they are asked
// for again.
const (
	cutSession  = 1
	nextSession = 2
	lastSession = 3
	cutLease    = 20 * time.Millisecond
	longLease   = time.Hour
	cutItems    = 3
)

var cutPolicy = queuing.Policy{MaxFailures: 1000}

func queueOf(c *attempt) queuing.Queue {
	return queuing.Queue{Name: string(c.category), Category: c.category}
}

// queueItems appends the items, past the proxy.
func queueItems(ctx context.Context, c *attempt) error {
	var all []messagestore.Append
	for i := range cutItems {
		all = append(all, messagestore.Append{
			Stream: c.category.Stream(fmt.Sprint(i)), Expected: messagestore.NoStream,
			Records: []messagestore.Encoded{{ID: uuid.New(), Type: "Item", Data: []byte(`{}`)}},
		})
	}
	_, err := testkit.Must(postgres.New(c.direct, nil)).AppendAll(ctx, all)
	return err
}

// queueTaken takes the items too, under a lease that lasts.
func queueTaken(ctx context.Context, c *attempt) error { return takeAll(ctx, c, nil) }

// cutWakes makes the queue of a scene one of streams.
var cutWakes = []string{"Signal"}

func turnsTaken(ctx context.Context, c *attempt) error { return takeAll(ctx, c, cutWakes) }

func takeAll(ctx context.Context, c *attempt, wakes []string) error {
	if err := queueItems(ctx, c); err != nil {
		return err
	}
	taken, err := testkit.Must(postgres.New(c.direct, nil)).QueueTake(ctx, queuing.Take{
		Queue: queueOf(c), Policy: cutPolicy, Wakes: wakes, Session: cutSession, Lease: longLease, Want: cutItems,
	})
	if err == nil && len(taken.Items) != cutItems {
		err = fmt.Errorf("took %d items", len(taken.Items))
	}
	c.fact = taken.Items
	return err
}

func takenOf(c *attempt) (deliveries []queuing.Delivery) {
	items, _ := c.fact.([]queuing.Taking)
	for _, item := range items {
		deliveries = append(deliveries, item.Delivery())
	}
	return deliveries
}

func completions(deliveries []queuing.Delivery) (all []queuing.Finish) {
	for _, d := range deliveries {
		all = append(all, queuing.Finish{Delivery: d, Kind: queuing.Complete})
	}
	return all
}

// queueWarm makes the statements known to the connection.
func queueWarm(w way) func(ctx context.Context, c *attempt) error {
	return func(ctx context.Context, c *attempt) error {
		if err := ping(ctx, c); err != nil || !w.warm {
			return err
		}
		other := queuing.Queue{Name: string(c.category) + "x", Category: c.category + "x"}
		_, err := c.driver.QueueTake(ctx, queuing.Take{Queue: other, Policy: cutPolicy, Session: cutSession, Lease: cutLease, Want: 1})
		return err
	}
}

// requireDone wants each delivery to be ended by this call, or by the one before it whose answer
// was lost.
func requireDone(endings []queuing.Ending, err error) error {
	for _, ending := range endings {
		if err == nil && ending != queuing.Done {
			err = fmt.Errorf("an ending is told as %q", ending)
		}
	}
	return err
}

// takes reserves items. After a lost answer another session takes over. Items that the lost call
// has reserved are offered again at once; items that it reserves later, when its lease is over. In
// the end each item is finished once.
func takes(w way) scene {
	return scene{
		name: "queue take: " + w.name, mode: w.mode, thorough: w == prepared, changes: true, before: queueItems, warm: queueWarm(w),
		call: func(ctx context.Context, c *attempt) ([]ended, error) {
			taken, err := c.driver.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: cutSession, Lease: cutLease, Want: 2})
			if err == nil && len(taken.Items) != 2 {
				err = errors.New("there were two items to take")
			}
			c.got = len(taken.Items)
			return nil, err
		},
		again: func(ctx context.Context, c *attempt, db postgres.DB) error {
			d := testkit.Must(postgres.New(db, nil))
			if err := d.QueueLeave(ctx, queuing.Leave{Queue: queueOf(c), Session: cutSession, Next: nextSession, Lease: longLease}); err != nil {
				return err
			}
			taken, err := d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: nextSession, Lease: longLease, Want: 1})
			if err != nil {
				return err
			}
			var deliveries []queuing.Delivery
			for _, item := range taken.Items {
				deliveries = append(deliveries, item.Delivery())
			}
			finished, err := d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: nextSession, Lease: longLease, Finishes: completions(deliveries)})
			return requireDone(finished.Endings, err)
		},
		judge: func(ctx context.Context, c *attempt) error {
			d := testkit.Must(postgres.New(c.direct, nil))
			ticker := time.NewTicker(cutLease / 4)
			defer ticker.Stop()
			for end := time.Now().Add(time.Minute); ; <-ticker.C {
				var finishes []queuing.Finish
				taken, err := d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: lastSession, Lease: longLease, Want: cutItems})
				for _, item := range taken.Items {
					finishes = append(finishes, queuing.Finish{Delivery: item.Delivery(), Kind: queuing.Complete})
				}
				if err == nil && len(finishes) > 0 {
					var finished queuing.Taken
					finished, err = d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: lastSession, Lease: longLease, Finishes: finishes})
					err = requireDone(finished.Endings, err)
				}
				if err != nil {
					return err
				}
				finished, open, err := countsOf(ctx, d, c)
				if err != nil {
					return err
				}
				var all int64
				if err := c.direct.QueryRow(ctx, "select count(*) from dibs.messages where category = $1", string(c.category)).Scan(&all); err != nil {
					return err
				}
				switch {
				case finished == all && open == 0:
					return nil
				case finished > all || time.Now().After(end):
					return fmt.Errorf("%d items are finished of %d, and %d are open", finished, all, open)
				}
			}
		},
	}
}

// rides writes a message that takes a take along: both are done, or neither.
func rides(w way) scene {
	s := takes(w)
	s.name = "append with a take: " + w.name
	s.call = func(ctx context.Context, c *attempt) ([]ended, error) {
		stop, told := worker(queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: cutSession, Lease: cutLease, Want: 2})
		a := messages(c, "rides", messagestore.NoStream, 1)
		_, err := c.driver.Append(queuing.WithStop(ctx, stop), a)
		if ride := stop.Call(); ride != nil { // the write was not sent
			ride.Tell(queuing.Taken{}, queuing.ErrAlone)
		}
		taken := <-told
		if errors.Is(taken.err, queuing.ErrAlone) {
			taken.err = nil
			if err == nil {
				taken.err = errors.New("the take was left behind")
			}
		}
		return []ended{{appends: []messagestore.Append{a}, err: err}}, taken.err
	}
	return s
}

// countsOf returns how many items of the queue are finished, and open.
func countsOf(ctx context.Context, d *postgres.Driver, c *attempt) (finished, open int64, err error) {
	all, err := d.Queues(ctx)
	for _, s := range all {
		if s.Name == string(c.category) {
			finished, open = s.Finished, s.Out+s.Later+s.Held+s.Dead
		}
	}
	return finished, open, err
}

// repeats is a call that may be made again after its answer was lost, with the same result.
func repeats(name string, w way, call func(ctx context.Context, d *postgres.Driver, c *attempt) error, want func(*queuing.Status) bool) scene {
	return scene{
		name: name + ": " + w.name, mode: w.mode, thorough: w == prepared, changes: true, before: queueTaken, warm: queueWarm(w),
		call: func(ctx context.Context, c *attempt) ([]ended, error) { return nil, call(ctx, c.driver, c) },
		again: func(ctx context.Context, c *attempt, db postgres.DB) error {
			return call(ctx, testkit.Must(postgres.New(db, nil)), c)
		},
		judge: func(ctx context.Context, c *attempt) error {
			all, err := testkit.Must(postgres.New(c.direct, nil)).Queues(ctx)
			for _, s := range all {
				if s.Name == string(c.category) {
					if !want(&s) {
						return fmt.Errorf("the queue is left as %+v", s)
					}
					return nil
				}
			}
			return errors.Join(err, errors.New("the queue is not there"))
		},
	}
}

// turns is an end of turns of a queue of streams.
func turns(name string, w way, kind queuing.Kind, want func(*queuing.Status) bool) scene {
	s := repeats(name, w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
		var finishes []queuing.Finish
		for _, delivery := range takenOf(c) {
			finishes = append(finishes, queuing.Finish{Delivery: delivery, Kind: kind, Delay: time.Hour, Seen: delivery.Position})
		}
		taken, err := d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Wakes: cutWakes, Session: cutSession, Lease: longLease, Finishes: finishes})
		return requireDone(taken.Endings, err)
	}, want)
	s.before = turnsTaken
	return s
}

func queueChanges(w way) []scene {
	finished := func(s *queuing.Status) bool { return s.Out+s.Later+s.Held+s.Dead == 0 }
	return []scene{
		takes(w),
		rides(w),
		repeats("queue complete", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			taken, err := d.QueueTake(ctx, queuing.Take{
				Queue: queueOf(c), Policy: cutPolicy, Session: cutSession, Lease: longLease, Finishes: completions(takenOf(c)),
			})
			return requireDone(taken.Endings, err)
		}, func(s *queuing.Status) bool { return finished(s) && s.Finished == cutItems }),
		repeats("queue retry", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			var finishes []queuing.Finish
			for _, delivery := range takenOf(c) {
				finishes = append(finishes, queuing.Finish{Delivery: delivery, Kind: queuing.Retry, Delay: time.Hour, Error: "not now"})
			}
			taken, err := d.QueueTake(ctx, queuing.Take{Queue: queueOf(c), Policy: cutPolicy, Session: cutSession, Lease: longLease, Finishes: finishes})
			return requireDone(taken.Endings, err)
		}, func(s *queuing.Status) bool { return s.Later == cutItems && s.Back == cutItems && s.Out == 0 }),
		turns("queue wait", w, queuing.Wait, func(s *queuing.Status) bool { return s.Later == cutItems && s.Back == cutItems && s.Out == 0 }),
		turns("queue suspend", w, queuing.Suspend, func(s *queuing.Status) bool { return s.Suspended == cutItems && s.Back == cutItems && s.Out == 0 }),
		turns("queue complete turn", w, queuing.Complete, func(s *queuing.Status) bool { return finished(s) && s.Finished == cutItems }),
		repeats("queue finish", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			return requireDone(d.QueueFinish(ctx, queueOf(c), cutSession, takenOf(c)))
		}, finished),
		repeats("queue extend", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			lost, err := d.QueueExtend(ctx, queuing.Extension{Queue: queueOf(c), Session: cutSession, Lease: longLease, Deliveries: takenOf(c), Notes: queuing.Notes{takenOf(c)[0]: "half of it"}})
			if err == nil && len(lost) > 0 {
				err = fmt.Errorf("%d deliveries are lost", len(lost))
			}
			return err
		}, func(s *queuing.Status) bool { return s.Out == cutItems }),
		repeats("queue leave", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			return d.QueueLeave(ctx, queuing.Leave{Queue: queueOf(c), Session: cutSession, Next: nextSession, Lease: longLease, Keep: takenOf(c)[:1]})
		}, func(s *queuing.Status) bool { return s.Out == 1 && s.Later == cutItems-1 && s.Back == cutItems-1 }),
		repeats("queue change", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
			_, err := d.QueueChange(ctx, queuing.Change{Queue: queueOf(c), Action: queuing.Cancel, Positions: []messagestore.GlobalPosition{takenOf(c)[0].Position}})
			return err
		}, func(s *queuing.Status) bool { return s.Out == cutItems-1 && s.Finished == 1 }),
		parks(w),
		queueRemoved(w),
	}
}

// parks has a message be an item of a queue of parked messages. To park it again is the same.
func parks(w way) scene {
	parked := func(c *attempt) queuing.Queue {
		return queuing.Queue{Name: string(c.category) + ":parked", Category: c.category}
	}
	s := repeats("queue park", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
		_, err := d.QueuePark(ctx, queuing.Parking{Queue: parked(c), Position: takenOf(c)[0].Position, Failures: 1, Error: "it is parked"})
		return err
	}, nil)
	s.judge = func(ctx context.Context, c *attempt) error {
		item, err := testkit.Must(postgres.New(c.direct, nil)).QueueItem(ctx, parked(c), takenOf(c)[0].Position)
		if err == nil && (item.State != queuing.Dead || item.Failures != 1 || item.Error != "it is parked" || item.Version != 1) {
			err = fmt.Errorf("the item is left as %+v", item)
		}
		return err
	}
	return s
}

// queueRemoved ends a queue of which items are out. To remove it again is the same.
func queueRemoved(w way) scene {
	s := repeats("queue remove", w, func(ctx context.Context, d *postgres.Driver, c *attempt) error {
		removed, err := d.QueueRemove(ctx, queuing.Removal{Queue: queueOf(c), Unfinished: true})
		if err == nil && (!removed.Done || !removed.NameKept) {
			err = fmt.Errorf("removed: %+v", removed)
		}
		return err
	}, nil)
	s.judge = func(ctx context.Context, c *attempt) error {
		var left int
		err := c.direct.QueryRow(ctx, `
			select (select count(*) from dibs.queues q where q.name = $1 and q.removed is null)
				+ (select count(*) from dibs.queues q join dibs.queue_open o on o.queue = q.id where q.name = $1)`, string(c.category)).Scan(&left)
		if err == nil && left > 0 {
			err = fmt.Errorf("the queue is left with %d rows", left)
		}
		return err
	}
	return s
}

func queueReads(w way) (all []scene) {
	for name, read := range map[string]func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error){
		"queue ready": func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
			return d.QueueReady(ctx, queueOf(c))
		},
		"queue items": func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
			return d.QueueItems(ctx, queuing.List{Queue: queueOf(c), State: queuing.Waiting, Limit: 10})
		},
		"queue states": func(ctx context.Context, d *postgres.Driver, _ *attempt) (any, error) {
			_, err := d.Queues(ctx)
			return nil, err
		},
		"queue item": func(ctx context.Context, d *postgres.Driver, c *attempt) (any, error) {
			_, err := d.QueueItem(ctx, queueOf(c), 1<<60)
			if errors.Is(err, messagestore.ErrNotFound) {
				err = nil
			}
			return nil, err
		},
	} {
		all = append(all, reads(name, w, read))
	}
	return all
}
