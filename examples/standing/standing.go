// Package standing pays standing orders: a queue with a schedule for each order, and a queue of
// payments in the order of each account. No process leads; any number of them may run the schedules
// and pay.
//
// A schedule of package cron has an item come to the queue of due orders each month. Its handler
// makes a payment of it, under an id that is made of the item's, so a second delivery makes no
// second payment. The key of a payment is the account that pays: payments of one account go one at
// a time, in order. A payment that cannot be made holds its account until a person has looked at it
// ([queue.Hold]).
package standing

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/reservation"
)

// The categories of the queues and of the accounts' events.
const (
	Orders   messagestore.Category = "standing"
	Payments messagestore.Category = "standing:payment"
	Accounts messagestore.Category = "account"
)

// Due is an order on its day of payment.
type Due struct {
	Order   string `json:"order"`
	Account string `json:"account"`
	To      string `json:"to"`
	Cents   int64  `json:"cents"`
}

// MessageType implements [messagestore.Body].
func (Due) MessageType() string { return "Due" }

// Pay is a payment to make.
type Pay struct {
	Due

	Month string `json:"month"` // 2026-01
}

// MessageType implements [messagestore.Body].
func (Pay) MessageType() string { return "Pay" }

// Paid is the event of a payment that the bank has made.
type Paid struct {
	Order string `json:"order"`
	Month string `json:"month"`
	Cents int64  `json:"cents"`
}

// MessageType implements [messagestore.Body].
func (Paid) MessageType() string { return "Paid" }

// A Bank makes payments. It makes each once, by its key.
type Bank interface {
	Pay(ctx context.Context, key string, m *messagestore.Message, p Pay) error
}

// Config changes a [Service].
type Config struct {
	MaxFailures int // of a payment
	Work        queue.WorkConfig
	Cron        cron.Config
	Logger      logger.Logger
}

// A Service is one process. It is safe for concurrent use.
type Service struct {
	store    *messagestore.Store
	bank     Bank
	config   Config
	schedule *cron.Cron
	Due      *queue.Queue
	Payments *queue.Queue
}

// New returns a service over a store.
func New(store *messagestore.Store, bank Bank, config Config) (*Service, error) {
	s := &Service{store: store, bank: bank, config: config}
	var err error
	config.Cron.Logger = config.Logger
	if s.schedule, err = cron.New(store, Orders, &config.Cron); err != nil {
		return nil, err
	}
	if s.Due, err = queue.New(store, Orders, &queue.Config{Logger: config.Logger}); err != nil {
		return nil, err
	}
	s.Payments, err = queue.New(store, Payments, &queue.Config{MaxFailures: config.MaxFailures, WhenDead: queue.Hold, Logger: config.Logger})
	return s, err
}

// Order sets up a standing order for a day of each month, at six in the morning in Prague.
func (s *Service) Order(ctx context.Context, due Due, day int) error {
	return s.schedule.Set(ctx, cron.Schedule{
		Name: due.Order, Spec: fmt.Sprintf("0 6 %d * *", day), Zone: "Europe/Prague", CatchUp: cron.All, Body: due,
	})
}

// Schedule makes orders come due until ctx ends.
func (s *Service) Schedule(ctx context.Context) error { return again(ctx, s.schedule.Run) }

// Work makes payments of due orders, and makes the payments, until ctx ends.
func (s *Service) Work(ctx context.Context) error {
	due, pay := handler.New(), handler.New()
	handler.On(due, s.due)
	handler.On(pay, s.pay)
	var group errgroup.Group
	group.Go(func() error {
		return again(ctx, func(ctx context.Context) error { return s.Due.Work(ctx, due, &s.config.Work) })
	})
	group.Go(func() error {
		return again(ctx, func(ctx context.Context) error { return s.Payments.Work(ctx, pay, &s.config.Work) })
	})
	return group.Wait()
}

// again runs a part of the service until ctx is done. A part that ends before, such as a consumer
// that has stopped at a message, has logged why: it begins again after a pause, and the other parts
// go on.
func again(ctx context.Context, run func(context.Context) error) error {
	for {
		if err := run(ctx); ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
}

// due inserts the payment of an order that is due.
func (s *Service) due(ctx context.Context, m handler.Message[Due]) error {
	at, ok := cron.TickOf(m.Message)
	if !ok {
		return handler.Park(fmt.Errorf("%s came by no schedule", m.Message))
	}
	p := messagestore.Follow(m.Message, Pay{Due: m.Body, Month: at.Format("2006-01")})
	_, err := s.Payments.Insert(ctx, p, &queue.InsertOpts{ID: reservation.DeriveID(m.Message, "payment"), Key: m.Body.Account})
	return err
}

// pay has the bank pay, and records it. Both are done once, however often it is called for one
// payment.
func (s *Service) pay(ctx context.Context, m handler.Message[Pay]) error {
	if err := s.bank.Pay(ctx, m.ID.String(), m.Message, m.Body); err != nil {
		return err
	}
	paid := messagestore.Follow(m.Message, messagestore.Envelope{
		ID: reservation.DeriveID(m.Message, "paid"), Body: Paid{m.Body.Order, m.Body.Month, m.Body.Cents},
	})
	_, err := s.store.Write(ctx, Accounts.Stream(m.Body.Account), messagestore.AnyVersion, paid)
	return err
}

// Dead returns the payments that hold their accounts.
func (s *Service) Dead(ctx context.Context) ([]queue.Item, error) {
	return s.Payments.Items(ctx, queue.Dead, 0, 1000)
}

// A FastClock shows a time that passes faster than the store's, for simulations.
type FastClock struct {
	Store *messagestore.Store
	From  time.Time // what it shows at Began
	Began time.Time
	Speed float64
	Until time.Time // what it shows at most
}

// Now returns the time that it shows.
func (c *FastClock) Now(ctx context.Context) (time.Time, error) {
	now, err := c.Store.Now(ctx)
	shows := c.From.Add(time.Duration(float64(max(0, now.Sub(c.Began))) * c.Speed))
	if shows.After(c.Until) {
		shows = c.Until
	}
	return shows, err
}
