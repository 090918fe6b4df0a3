package booking

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx of database/sql
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
)

// A Trip is the request of a customer.
type Trip struct {
	City string `json:"city"`
	Car  string `json:"car"` // its class, such as "small"
}

// An Itinerary is the answer.
type Itinerary struct {
	Flight string `json:"flight"`
	Room   int    `json:"room"`
	Car    string `json:"car,omitempty"`
}

// Config is for [Open].
type Config struct {
	Database string        // URL: sqlite:FILE, or postgres://..., which "dibs migrate up" has prepared
	Airline  string        // URL
	Client   *http.Client  // for the airline; nil is http.DefaultClient
	Deadline time.Duration // after which a trip that is not booked is undone; 0 is an hour
	Logger   logger.Logger
}

// A Service books trips. Its methods are safe for concurrent use.
type Service struct {
	Trips *saga.Saga[Trip, Itinerary]

	txs   *messagestore.TxStore[*sql.Tx]
	parts []*consumer.Consumer
	close func() error

	flight *saga.Step[string, Ticket]
	hotel  *saga.TxStep[*sql.Tx, string, int]
	car    *saga.Ask[Rental, string]
}

// Open opens the database, makes the table, and returns the service. The caller closes it.
func Open(ctx context.Context, config Config) (*Service, error) {
	store, closeStore, err := open(ctx, config)
	if err != nil {
		return nil, err
	}
	s := &Service{close: closeStore}
	if err := s.define(ctx, store, config); err != nil {
		return nil, errors.Join(err, closeStore())
	}
	return s, nil
}

// open returns a store on either database, with *sql.Tx as its transactions.
func open(ctx context.Context, config Config) (*messagestore.Store, func() error, error) {
	settings := &messagestore.Config{Logger: config.Logger}
	if !strings.HasPrefix(config.Database, "postgres") {
		store, err := dibs.Open(ctx, config.Database, settings)
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	}
	db, err := sql.Open("pgx", config.Database)
	if err != nil {
		return nil, nil, errors.New("booking: the URL of the database cannot be read") // it may hold a password
	}
	driver, err := postgres.NewSQL(db, &postgres.Config{Logger: config.Logger})
	if err != nil {
		return nil, nil, err
	}
	store, err := messagestore.New(driver, settings)
	if err != nil {
		return nil, nil, err
	}
	return store, func() error { return errors.Join(store.Close(), db.Close()) }, nil
}

func (s *Service) define(ctx context.Context, store *messagestore.Store, config Config) (err error) {
	if s.txs, err = messagestore.Transactional[*sql.Tx](store); err != nil {
		return err
	}
	if err := s.transact(ctx, makeTable); err != nil {
		return err
	}
	air := &airline{config.Airline, config.Client}
	if air.client == nil {
		air.client = http.DefaultClient
	}
	s.flight = saga.NewStep("flight", air.book, air.cancel, &saga.StepConfig{Timeout: 5 * time.Second})
	s.hotel = saga.NewTxStep("hotel", s.txs, takeRoom, giveBackRoom, nil)
	s.car = saga.NewAsk("car", rentCar, returnCar, &saga.StepConfig{Timeout: 10 * time.Minute})
	if config.Deadline == 0 {
		config.Deadline = time.Hour
	}
	s.Trips, err = saga.New(store, "booking", s.book, saga.Steps{s.flight, s.hotel, s.car}, &saga.Config{
		Version: 2, Earlier: map[int]any{1: s.book1}, Deadline: config.Deadline, Logger: config.Logger,
	})
	if err != nil {
		return err
	}
	settings := consumer.Config{Start: consumer.FromStart(), Logger: config.Logger}
	answered := settings
	answered.Correlation = s.Trips.Category() // only answers to trips
	garage, err := consumer.New(store, carCommands, "garage", garage(store), &settings)
	if err != nil {
		return err
	}
	booking, err := consumer.New(store, cars, "booking", answers(s.Trips), &answered)
	if err != nil {
		return err
	}
	s.parts = []*consumer.Consumer{garage, booking}
	return nil
}

// book is the saga: it calls steps and computes, and nothing else. An error undoes the steps that
// began.
func (s *Service) book(r *saga.Run, t Trip) (Itinerary, error) {
	room, err := s.hotel.Do(r, t.City)
	if err != nil {
		return Itinerary{}, err
	}
	flight, car := s.flight.Go(r, t.City), s.car.Go(r, Rental{r.ID(), t.Car})
	err = r.Join() // side by side, begun in one write
	return Itinerary{flight.Out().Reference, room, car.Out()}, err
}

// book1 is version 1, which had no car and took the flight first. It is kept until no trip of it is
// open.
func (s *Service) book1(r *saga.Run, t Trip) (Itinerary, error) {
	flight, err := s.flight.Do(r, t.City)
	if err != nil {
		return Itinerary{}, err
	}
	room, err := s.hotel.Do(r, t.City)
	return Itinerary{flight.Reference, room, ""}, err
}

// Run goes on with the trips, and handles the commands of cars, until ctx is done. Each replica of
// the service runs it.
func (s *Service) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return again(ctx, s.Trips.Run) })
	for _, part := range s.parts {
		group.Go(func() error { return again(ctx, part.Run) })
	}
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

// Close closes the database, when Run has returned.
func (s *Service) Close() error { return s.close() }

// transact runs SQL in a transaction without messages.
func (s *Service) transact(ctx context.Context, f func(ctx context.Context, tx *sql.Tx) error) error {
	_, err := s.txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		return nil, f(ctx, tx)
	})
	return err
}
