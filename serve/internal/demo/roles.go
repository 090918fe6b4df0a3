package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/client"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
)

// The categories.
const (
	standing = "standing"       // orders to be paid: the items
	intents  = "payment:intent" // one for each payment
	payments = "payment"        // what was paid
)

// lease is how long workers have items and intents without an extension.
const lease = 3 * time.Second

// A due is an order that is due, as it is sent.
type due struct {
	Order   string `json:"order"`
	Account string `json:"account"`
	Month   string `json:"month"`
	Cents   int64  `json:"cents"`
	By      string `json:"by"` // the language of the sender
}

// item returns an order as an item. Its id follows from the order, so a copy is the same item.
func (d due) item() *v1.NewItem {
	data, _ := json.Marshal(d) // of texts and a number
	return &v1.NewItem{Id: uuid.NewSHA1(uuid.NameSpaceOID, []byte(d.Order+d.Month)).String(), Type: "Due", DataJson: string(data), Key: d.Account}
}

// server is a server.
type server struct {
	Store   string `env:"DIBS_STORE" required:""`
	Address string
}

// Run serves until ctx ends.
func (c *server) Run(ctx context.Context, o *demo.Output) error {
	log := logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.ErrorLevel).With().Timestamp().Logger())
	store, err := dibs.Open(ctx, c.Store, &messagestore.Config{Logger: log})
	if err != nil {
		return err
	}
	s, err := serve.New(store, &serve.Config{Logger: log})
	if err == nil {
		err = s.Run(ctx, serve.Listen{Address: c.Address})
	}
	return errors.Join(err, store.Close())
}

// produce sends orders, each batch twice, as one does whose answer was lost.
type produce struct {
	Server, File string
}

// Run sends the orders of the file.
func (c *produce) Run(ctx context.Context) error {
	orders, err := demo.ReadLines[due](c.File)
	if err != nil {
		return err
	}
	api, err := client.New(c.Server, &client.Config{Patience: time.Minute})
	if err != nil {
		return err
	}
	defer api.Close()
	for len(orders) > 0 {
		n := min(50, len(orders))
		r := &v1.ProduceRequest{Queue: &v1.QueueName{Category: standing}}
		for _, d := range orders[:n] {
			r.Items = append(r.Items, d.item())
		}
		for range 2 {
			if _, err := api.Queues.Produce(ctx, r); err != nil {
				return err
			}
		}
		orders = orders[n:]
	}
	<-ctx.Done()
	return nil
}

// work pays the orders that are due.
type work struct {
	Server string
}

// Run works until ctx ends.
func (c *work) Run(ctx context.Context) error {
	api, err := client.New(c.Server, &client.Config{Patience: time.Minute})
	if err != nil {
		return err
	}
	defer api.Close()
	group, ctx := errgroup.WithContext(ctx)
	for range 4 {
		group.Go(func() error { return c.loop(ctx, api) })
	}
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// loop receives orders, and settles the last ones in the same call.
func (c *work) loop(ctx context.Context, api *client.Client) error {
	var settlements []*v1.Settlement
	for {
		r := &v1.ReceiveRequest{
			Queue: &v1.QueueName{Category: standing}, ReceiveId: uuid.NewString(), MaxItems: 10, MaxWait: durationpb.New(2 * time.Second),
			VisibilityTimeout: durationpb.New(lease), Settlements: settlements,
		}
		got, err := api.Queues.Receive(ctx, r)
		if err != nil {
			return err
		}
		settlements = settlements[:0]
		var paying errgroup.Group
		settled := make([]*v1.Settlement, len(got.GetDeliveries()))
		for i, d := range got.GetDeliveries() {
			paying.Go(func() (err error) {
				settled[i], err = c.pay(ctx, api, d)
				return err
			})
		}
		if err := paying.Wait(); err != nil {
			return err
		}
		settlements = append(settlements, settled...)
	}
}

// pay pays an order once, under an intent, and says what becomes of its item.
func (c *work) pay(ctx context.Context, api *client.Client, d *v1.Delivery) (*v1.Settlement, error) {
	var o due
	if err := json.Unmarshal([]byte(d.GetItem().GetDataJson()), &o); err != nil {
		return nil, err
	}
	answer, err := api.Intents.Reserve(ctx, &v1.ReserveRequest{
		Name: &v1.IntentName{Category: intents, Scope: o.Account, Key: o.Order + "/" + o.Month}, SessionId: uuid.NewString(), ContentJson: d.GetItem().GetDataJson(), Ttl: durationpb.New(lease),
	})
	if err != nil {
		return nil, err
	}
	s := &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Complete_{Complete: &v1.Settlement_Complete{}}}
	again := &v1.Settlement{DeliveryId: d.GetDeliveryId(), Action: &v1.Settlement_Defer_{Defer: &v1.Settlement_Defer{Delay: durationpb.New(200 * time.Millisecond)}}}
	switch answer.GetOutcome() {
	case v1.Outcome_OUTCOME_DONE:
		return s, nil
	case v1.Outcome_OUTCOME_RESERVED:
	case v1.Outcome_OUTCOME_KEY_REUSED:
		return nil, fmt.Errorf("order %s has another content", o.Order)
	default:
		return again, nil
	}
	paid, err := json.Marshal(struct {
		due
		Payer string `json:"payer"`
	}{o, "go"})
	if err != nil {
		return nil, err
	}
	confirmed, err := api.Intents.Confirm(ctx, &v1.ConfirmRequest{
		Lease: answer.GetLease(), ResultJson: `{"paid":true}`,
		Writes: []*v1.StreamWrite{{ // at any version: that it happens once is for the intent to see to
			Stream: payments + "-" + o.Account, ExpectedVersion: proto.Int64(-2),
			Messages: []*v1.NewMessage{{Id: uuid.NewString(), Type: "Paid", DataJson: string(paid)}},
		}},
	})
	if err != nil {
		return nil, err
	}
	if confirmed.GetOutcome() != v1.LeaseOutcome_LEASE_OUTCOME_OK {
		return again, nil
	}
	return s, nil
}

// other is a program of another language, in the place of this process.
type other struct {
	Args []string `arg:"" passthrough:""`
}

// Run replaces this process.
func (c *other) Run() error {
	path, err := exec.LookPath(c.Args[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, c.Args, os.Environ()) //nolint:gosec // the demo's own programs
}
