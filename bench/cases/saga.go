package cases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/saga"
)

// The callers of the cases of sagas, and the name of the contender.
const (
	sagaCallers = 64

	dbosTransact = "DBOS Transact"
)

// sagaSteps are the names of the steps. No step does anything.
var sagaSteps = []string{"flight", "hotel", "car"}

// A trip is the input of a saga.
type trip struct {
	ID, From, To string
}

func newTrip() trip { return trip{newID().String(), "PRG", "LIS"} }

// Saga returns the cases of a process over several steps.
func Saga() []measure.Case {
	of := func(callers int) []measure.Contender {
		return []measure.Contender{{Name: dibs, Run: sagas(callers)}, {Name: dbosTransact, Run: dbosWorkflows(callers)}}
	}
	return []measure.Case{{
		Name:       "saga/3-steps/64-callers",
		Shows:      "Start a saga of three empty steps and wait for its result, 64 callers",
		Contenders: of(sagaCallers),
		Goals:      []measure.Goal{{Metric: measure.Rate, Of: dibs, To: dbosTransact, AtLeast: 5}},
	}, {
		Name:       "saga/3-steps/1-caller",
		Shows:      "Start a saga of three empty steps and wait for its result, one caller",
		Contenders: of(1),
		Goals:      []measure.Goal{{Metric: measure.P50, Of: dibs, To: dbosTransact, AtMost: 1}},
	}}
}

// A booking is the saga of three steps over a store.
type booking struct {
	*saga.Saga[trip, string]
	*dibsStore
}

func newBooking(s *dibsStore) (booking, error) {
	var steps saga.Steps
	var all []*saga.Step[trip, string]
	for _, name := range sagaSteps {
		step := saga.NewStep(name, func(_ context.Context, t trip) (string, error) { return t.ID, nil }, nil, nil)
		all, steps = append(all, step), append(steps, step)
	}
	of, err := saga.New(s.Store, "booking", func(r *saga.Run, t trip) (string, error) {
		for _, step := range all {
			if _, err := step.Do(r, t); err != nil {
				return "", err
			}
		}
		return t.ID, nil
	}, steps, nil)
	return booking{of, s}, err
}

// run calls f while a runner works.
func (b booking) run(ctx context.Context, f func(ctx context.Context) error) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- b.Run(running) }()
	err := f(ctx)
	stop()
	return errors.Join(err, <-ended)
}

// book starts a saga, and waits for its end.
func (b booking) book(ctx context.Context) error {
	t := newTrip()
	if _, err := b.Begin(ctx, t.ID, t); err != nil {
		return err
	}
	status, err := b.Wait(ctx, t.ID)
	if err == nil && (!status.IsOver() || status.Out != t.ID) {
		err = fmt.Errorf("saga %s is %s with %q", t.ID, status.State, status.Out)
	}
	return err
}

// call makes callers start sagas and wait, while a runner works.
func (b booking) call(ctx context.Context, cell *measure.Cell, callers int) (done int64, err error) {
	err = b.run(ctx, func(ctx context.Context) (err error) {
		done, err = cell.Callers(ctx, callers, func(ctx context.Context, _ int) (int, error) { return 1, b.book(ctx) })
		return err
	})
	return done, err
}

func (s *dibsStore) completed(ctx context.Context) (n int64, err error) {
	return n, s.pool.QueryRow(ctx, "select count(*) from dibs.messages where category = 'booking:saga' and type = 'Completed'").Scan(&n)
}

func sagas(callers int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		s, err := openQueueStore(ctx, cell)
		if err != nil {
			return err
		}
		b, err := newBooking(s)
		if err != nil {
			return err
		}
		done, err := b.call(ctx, cell, callers)
		if err != nil {
			return err
		}
		completed, err := s.completed(ctx)
		return errors.Join(err, cell.Check("completed sagas", completed, done))
	}
}

func dbosWorkflows(callers int) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) (err error) {
		url, err := database(ctx, cell, server.Empty)
		if err != nil {
			return err
		}
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return err
		}
		defer pool.Close()
		c, err := dbos.NewContext(ctx, dbos.Config{AppName: "bench", SystemDBPool: pool})
		if err != nil {
			return err
		}
		dbos.RegisterWorkflow(c, dbosBook)
		if err := dbos.Launch(c); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dbos.Shutdown(c, 5*time.Second)) }()
		done, err := cell.Callers(ctx, callers, func(context.Context, int) (int, error) {
			t := newTrip()
			h, err := dbos.RunWorkflow(c, dbosBook, t)
			if err != nil {
				return 1, err
			}
			id, err := h.GetResult()
			if err == nil && id != t.ID {
				err = fmt.Errorf("workflow %s ends with %q", t.ID, id)
			}
			return 1, err
		})
		if err != nil {
			return err
		}
		var completed int64
		err = pool.QueryRow(ctx, "select count(*) from dbos.workflow_status where status = 'SUCCESS'").Scan(&completed)
		return errors.Join(err, cell.Check("workflows that succeeded", completed, done))
	}
}

func dbosBook(ctx dbos.Context, t trip) (string, error) {
	for _, name := range sagaSteps {
		if _, err := dbos.RunAsStep(ctx, func(context.Context) (string, error) { return t.ID, nil }, dbos.WithStepName(name)); err != nil {
			return "", err
		}
	}
	return t.ID, nil
}
