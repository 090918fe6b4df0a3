package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/consumer"
	consumers "github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
	"github.com/dibs-go/dibs/reservation"
	"github.com/dibs-go/dibs/saga"
)

type order struct {
	Order string `json:"order"`
	SKU   string `json:"sku"`
}

func (order) MessageType() string { return "PlaceOrder" }

type placed struct {
	Order string `json:"order"`
	SKU   string `json:"sku"`
}

func (placed) MessageType() string { return "OrderPlaced" }

type letter struct {
	To string `json:"to"`
}

func (letter) MessageType() string { return "SendLetter" }

// shop is a service whose parts break: a handler has a bug for one SKU, a webhook is down, an airline refuses, mail is paused, and
// the consumer of the statistics was stopped.
type shop struct {
	store   *messagestore.Store
	at      string // the store's URL, for the command
	hook    *httptest.Server
	hookUp  atomic.Bool
	fixed   atomic.Bool // the handler's bug
	flies   atomic.Bool // the airline
	parts   sync.WaitGroup
	stop    context.CancelFunc
	trips   *saga.Saga[string, string]
	stays   *saga.Saga[string, string]
	mail    *queue.Queue
	orders  int
	letters int
	booked  int
}

const (
	commands = messagestore.Category("order:command")
	badSKU   = "MUG-7"
)

// open starts the shop over a store.
func open(ctx context.Context, store *messagestore.Store) (*shop, error) {
	s := &shop{store: store}
	s.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !s.hookUp.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
		}
	}))
	ctx, s.stop = context.WithCancel(ctx)
	run := func(part func(context.Context) error, err error) error {
		if err == nil {
			s.parts.Go(func() { _ = part(ctx) }) // it logs why it ends, and the page says that it has
		}
		return err
	}
	quiet := logger.Silent()
	once, err := reservation.New(store, "orders", &reservation.Config{Logger: quiet})
	if err != nil {
		return nil, err
	}
	mux := handler.New()
	handler.Register(mux, reservation.Copy(once, func(o order) string { return o.Order }, s.place))
	for _, category := range []messagestore.Category{commands, once.Category(commands)} {
		c, err := consumer.New(store, category, "orders", mux, &consumer.Config{
			Logger: quiet, Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
		})
		if err := run(c.Run, err); err != nil {
			return nil, err
		}
	}
	counts := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil })
	statistics, err := consumer.New(store, "order", "statistics", counts, &consumer.Config{Logger: quiet})
	if err := run(statistics.Run, err); err != nil {
		return nil, err
	}
	sink, err := outbox.HTTP(s.hook.URL, &outbox.HTTPConfig{})
	if err != nil {
		return nil, err
	}
	relay, err := outbox.New(store, "order", "webhook", sink, &outbox.Config{Logger: quiet})
	if err := run(relay.Run, err); err != nil {
		return nil, err
	}
	flight := saga.NewStep("flight", func(_ context.Context, city string) (string, error) {
		if !s.flies.Load() {
			return "", errors.New("the airline has no contract with us")
		}
		return "F-" + city, nil
	}, func(context.Context, string, *string) error { return nil }, &saga.StepConfig{Suspend: true, Retry: saga.Retry{MaxAttempts: 1}})
	s.trips, err = saga.New(store, "trip", func(r *saga.Run, city string) (string, error) { return flight.Do(r, city) }, saga.Steps{flight}, &saga.Config{Logger: quiet})
	if err := run(s.trips.Run, err); err != nil {
		return nil, err
	}
	if s.stays, err = stays(store); err != nil {
		return nil, err
	}
	if err := run(s.stays.Run, nil); err != nil {
		return nil, err
	}
	if s.mail, err = queue.New(store, "mail", &queue.Config{Logger: quiet, MaxFailures: 1}); err != nil {
		return nil, err
	}
	letters := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.GlobalPosition%7 == 0 && !s.fixed.Load() {
			return fmt.Errorf("no mailbox at address %d", m.GlobalPosition)
		}
		return nil
	})
	if err := run(func(ctx context.Context) error { return s.mail.Work(ctx, letters, nil) }, nil); err != nil {
		return nil, err
	}
	schedules, err := cron.New(store, "report", &cron.Config{Logger: quiet})
	if err == nil {
		err = schedules.Set(ctx, cron.Schedule{Name: "daily", Spec: "0 6 * * *", Zone: "Europe/Prague", Body: letter{"the boss"}})
	}
	return s, run(schedules.Run, err)
}

// stays are sagas that are undone: there is never a car.
func stays(store *messagestore.Store) (*saga.Saga[string, string], error) {
	undo := func(context.Context, string, *string) error { return nil }
	hotel := saga.NewStep("hotel", func(_ context.Context, city string) (string, error) { return "H-" + city, nil }, undo, nil)
	asked := 0
	car := saga.NewStep("car", func(context.Context, string) (string, error) {
		if asked++; asked == 1 {
			return "", errors.New("the line is dead")
		}
		return "", handler.Refuse(errors.New("every car is let"))
	}, undo, &saga.StepConfig{Retry: saga.Retry{MinBackoff: 50 * time.Millisecond}})
	return saga.New(store, "stay", func(r *saga.Run, city string) (string, error) {
		if _, err := hotel.Do(r, city); err != nil {
			return "", err
		}
		return car.Do(r, city)
	}, saga.Steps{hotel, car}, &saga.Config{Logger: logger.Silent()})
}

// place places an order, but for one SKU.
func (s *shop) place(ctx context.Context, m handler.Message[order]) error {
	if m.Body.SKU == badSKU && !s.fixed.Load() {
		return fmt.Errorf("the stock of %s is negative: -%d", badSKU, m.GlobalPosition)
	}
	stream := messagestore.Category("order").Stream(m.Body.Order)
	_, err := s.store.WriteInitial(ctx, stream, messagestore.Follow(m.Message, placed(m.Body)))
	return err
}

// work sends orders, some of them twice, letters and trips.
func (s *shop) work(ctx context.Context, n int) error {
	for range n {
		s.orders++
		o := order{fmt.Sprintf("order-%d", s.orders), "CUP-1"}
		if s.orders%3 == 0 {
			o.SKU = badSKU
		}
		for range 1 + s.orders%2 {
			if _, err := s.store.Write(ctx, commands.Stream(fmt.Sprint("customer", s.orders%5)), messagestore.AnyVersion, o); err != nil {
				return err
			}
		}
		s.letters++
		if _, err := s.mail.Insert(ctx, letter{fmt.Sprint("customer", s.letters)}, &queue.InsertOpts{Key: fmt.Sprint("customer", s.letters%5)}); err != nil {
			return err
		}
		s.booked++
		if _, err := s.store.WriteStreams(ctx, s.trips.Start(fmt.Sprint("trip-", s.booked), "LIS")); err != nil {
			return err
		}
	}
	return nil
}

// pay holds one intent, confirms another, and leaves a third to lapse.
func (s *shop) pay(ctx context.Context) error {
	m, err := intent.New(s.store, "payment:intent", &intent.Config{Logger: logger.Silent()})
	if err != nil {
		return err
	}
	for n, ttl := range []time.Duration{time.Hour, time.Hour, time.Second} {
		outcome, err := m.Reserve(ctx, intent.Request{Key: fmt.Sprint("invoice-", n), Session: "till-1", TTL: ttl, Content: []byte(`{"amount":10}`)})
		if err != nil {
			return err
		}
		if n == 0 {
			if err := outcome.Lease.Confirm(ctx, []byte(`{"receipt":"R1"}`)); err != nil {
				return err
			}
		}
	}
	return nil
}

// breakDown pauses mail and stops the statistics. The rest is broken from the start.
func (s *shop) breakDown(ctx context.Context) error {
	if err := s.mail.Pause(ctx); err != nil {
		return err
	}
	if _, err := consumers.Consumer(s.store, "order", "statistics").Pause(ctx); err != nil {
		return err
	}
	if _, err := s.stays.Begin(ctx, "stay-1", "LIS"); err != nil {
		return err
	}
	_, err := s.stays.Wait(ctx, "stay-1")
	return err
}

// repair mends what only a developer, or another company, can: the handler, the webhook and the airline.
func (s *shop) repair() {
	s.fixed.Store(true)
	s.hookUp.Store(true)
	s.flies.Store(true)
}

func (s *shop) close() {
	s.stop()
	s.parts.Wait()
	s.hook.Close()
}
