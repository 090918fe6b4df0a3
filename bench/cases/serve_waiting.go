package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/serve/client"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// The metrics of calls that wait.
const (
	waitingMemory measure.Metric = "memory of dibs serve" // bytes
	waitingCPU    measure.Metric = "CPU while idle"       // of a core
	waitingAnswer measure.Metric = "200 answers"          // seconds, until all have come

	waitingReserves = "10,000 Reserves on 500 held intents"
	waitingReceives = "10,000 Receives"
)

// waitingCase has many calls wait, and then answers some.
func waitingCase() measure.Case {
	goals := func(of string) []measure.Goal {
		return []measure.Goal{
			{Metric: waitingMemory, Of: of, AtMost: 250 << 20}, {Metric: waitingCPU, Of: of, AtMost: 0.02}, {Metric: waitingAnswer, Of: of, AtMost: 0.5},
		}
	}
	return measure.Case{
		Name: "serve/waiting", Shows: "Calls that wait at a server", Goals: append(goals(waitingReserves), goals(waitingReceives)...), LongOnly: true,
		Contenders: []measure.Contender{{Name: waitingReserves, Run: waitReserves}, {Name: waitingReceives, Run: waitReceives}},
	}
}

// waitReserves has 20 sessions wait for each intent, of which some are then confirmed.
func waitReserves(ctx context.Context, cell *measure.Cell) error {
	intents := size(cell, 20, 500, 500)
	const each = 20
	leases := make([]*v1.Lease, intents)
	request := func(i int) *v1.ReserveRequest {
		name := &v1.IntentName{Category: string(intentCategory), Key: fmt.Sprint("order ", i)}
		return &v1.ReserveRequest{Name: name, SessionId: uuid.NewString(), ContentJson: `{"amount":10}`, Ttl: durationpb.New(time.Hour)}
	}
	return waitAtServer(ctx, cell, intents*each, func(c *client.Client) error {
		return atOnce(intentCallers, intents, func(i int) error {
			a, err := c.Intents.Reserve(ctx, request(i))
			leases[i] = a.GetLease()
			return err
		})
	}, func(ctx context.Context, c *client.Client, i int) (bool, error) {
		r := request(i % intents)
		r.MaxWait = durationpb.New(10 * time.Minute)
		a, err := c.Intents.Reserve(ctx, r)
		return a.GetOutcome() == v1.Outcome_OUTCOME_DONE, err
	}, func(c *client.Client) error {
		return atOnce(intentCallers, 200/each, func(i int) error {
			_, err := c.Intents.Confirm(ctx, &v1.ConfirmRequest{Lease: leases[i], ResultJson: `{"receipt":"R1"}`})
			return err
		})
	})
}

// waitReceives has calls wait for items, of which some then come.
func waitReceives(ctx context.Context, cell *measure.Cell) error {
	name := &v1.QueueName{Category: string(itemCategory)}
	return waitAtServer(ctx, cell, size(cell, 400, 10_000, 10_000), func(*client.Client) error { return nil },
		func(ctx context.Context, c *client.Client, _ int) (bool, error) {
			a, err := c.Queues.Receive(ctx, &v1.ReceiveRequest{Queue: name, ReceiveId: uuid.NewString(), MaxWait: durationpb.New(10 * time.Minute)})
			return len(a.GetDeliveries()) == 1, err
		}, func(c *client.Client) error {
			items := make([]*v1.NewItem, 200)
			for i := range items {
				items[i] = &v1.NewItem{Id: newID().String(), Type: "Item", DataJson: `{"amount":10}`}
			}
			_, err := c.Queues.Produce(ctx, &v1.ProduceRequest{Queue: name, Items: items})
			return err
		})
}

// waitAtServer has calls wait at a server of their own, measures it while nothing happens, and then
// how long answer takes, and 200 calls after it.
func waitAtServer(ctx context.Context, cell *measure.Cell, calls int, prepare func(*client.Client) error, call func(context.Context, *client.Client, int) (bool, error), answer func(*client.Client) error) error {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return err
	}
	s, err := server.StartService(ctx, cell.Servers.Dir(), url)
	if err != nil {
		return err
	}
	cell.Cleanup(func(context.Context) error { return s.Stop() })
	clients := make([]*client.Client, 5) // one connection each
	for i := range clients {
		if clients[i], err = client.New(s.URL(), nil); err != nil {
			return err
		}
		defer clients[i].Close()
	}
	if err := prepare(clients[0]); err != nil {
		return err
	}
	waits, hangUp := context.WithCancel(ctx)
	type answered struct {
		right bool
		err   error
	}
	answers := make(chan answered, calls)
	ended := 0
	next := func() answered {
		ended++
		return <-answers
	}
	defer func() {
		hangUp()
		for ended < calls {
			next()
		}
	}()
	for i := range calls {
		go func() {
			right, err := call(waits, clients[i%len(clients)], i)
			answers <- answered{right, err}
		}()
	}
	for waiting := 0; waiting < calls; {
		if err := measure.Wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		if waiting, err = s.Waiting(ctx); err != nil {
			return err
		}
		if len(answers) > 0 {
			return fmt.Errorf("a call does not wait: %w", next().err)
		}
	}
	if err := measure.Wait(ctx, size(cell, 0, 5*time.Second, 5*time.Second)); err != nil { // until the last stands in its line
		return err
	}
	return cell.Once(ctx, func(ctx context.Context) (int64, error) {
		idle := size(cell, 100*time.Millisecond, 10*time.Second, 10*time.Second)
		before, err := server.CPU(s.PID())
		if err == nil {
			err = measure.Wait(ctx, idle)
		}
		after, cpuErr := server.CPU(s.PID())
		memory, memoryErr := server.Memory(s.PID())
		if err := errors.Join(err, cpuErr, memoryErr); err != nil {
			return 0, err
		}
		cell.Set(waitingCPU, (after-before).Seconds()/idle.Seconds())
		cell.Set(waitingMemory, float64(memory))
		began := time.Now()
		if err := answer(clients[0]); err != nil {
			return 0, err
		}
		right := int64(0)
		for range 200 {
			a := next()
			if a.err != nil {
				return 0, a.err
			}
			if a.right {
				right++
			}
		}
		cell.Set(waitingAnswer, time.Since(began).Seconds())
		return right, cell.Check("answers", right, 200)
	})
}
