package sagas

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// The sagas of a run, and the messages around them.
const (
	name     = "order"
	category = messagestore.Category("order:saga")
	parcels  = messagestore.Category("parcel:command") // the commands of asks
	posts    = messagestore.Category("post")           // what the relay sends
	rings    = messagestore.Category("ring")           // timers
	relay    = "letters"

	deadline    = 12 * time.Second
	lease       = time.Second
	poll        = 50 * time.Millisecond
	sealTimeout = 600 * time.Millisecond
	postKeys    = 40
)

// An Order is the input of a saga, which determines its steps.
type Order struct {
	Lines   int  `json:"lines"`
	Beside  bool `json:"beside"` // has two steps side by side
	Pay     bool `json:"pay"`    // has a step in a transaction
	Nap     int  `json:"nap"`    // the milliseconds of a sleep; 0 for none
	Ship    bool `json:"ship"`   // sends a command, and waits for the reply
	Seal    bool `json:"seal"`   // sends another; the saga is suspended if its reply does not come in time
	Approve bool `json:"approve"`
	Pivot   bool `json:"pivot"`
	Last    bool `json:"last"` // has another step in a transaction
	Fail    bool `json:"fail"`
}

// A Parcel is the command of an [saga.Ask].
type Parcel struct {
	Step string `json:"step"`
}

// MessageType returns the type.
func (Parcel) MessageType() string { return "Parcel" }

// A Letter is a message for the relay.
type Letter struct {
	N int `json:"n"`
}

// MessageType returns the type.
func (Letter) MessageType() string { return "Letter" }

// A Bell is a timer.
type Bell struct {
	Due int64 `json:"due"`
}

// MessageType returns the type.
func (Bell) MessageType() string { return "Bell" }

var errDrawn = errors.New("it was drawn")

type orders = saga.Saga[Order, int]

// newOrders returns the saga, with the functions of p as its steps.
func newOrders(store *messagestore.Store, txs *messagestore.TxStore[pgx.Tx], p *process) (*orders, error) {
	retry := saga.Retry{MaxAttempts: 6, MaxBackoff: 60 * time.Millisecond}
	config := &saga.StepConfig{Timeout: 3 * time.Second, Retry: retry, Undo: saga.Retry{MaxBackoff: 60 * time.Millisecond}}
	pivot := *config
	pivot.Pivot = true

	reserve := saga.NewStep("reserve", func(ctx context.Context, n int) (int, error) { return n, p.step(ctx, Do) },
		func(ctx context.Context, _ int, _ *int) error { return p.step(ctx, Undo) }, config)
	book := saga.NewStep("book", func(ctx context.Context, n int) (int, error) { return n, p.step(ctx, Do) },
		func(ctx context.Context, _ int, _ *int) error { return p.step(ctx, Undo) }, &pivot)
	pay := saga.NewTxStep("pay", txs, func(ctx context.Context, tx pgx.Tx, n int) (int, error) { return n, p.stepTx(ctx, tx, Do) },
		func(ctx context.Context, tx pgx.Tx, _ int, _ *int) error { return p.stepTx(ctx, tx, Undo) }, config)
	ask := func(step string, c *saga.StepConfig) *saga.Ask[int, int] {
		return saga.NewAsk(step, func(context.Context, int) (messagestore.StreamWrite, error) {
			return messagestore.To(parcels.Stream(p.newID()), messagestore.AnyVersion, Parcel{step}), nil
		}, func(ctx context.Context, _ int, _ *int) (messagestore.StreamWrite, error) {
			return messagestore.StreamWrite{}, p.step(ctx, Undo)
		}, c)
	}
	ship := ask("ship", &saga.StepConfig{Timeout: 5 * time.Second, Undo: saga.Retry{MaxBackoff: 60 * time.Millisecond}})
	seal := ask("seal", &saga.StepConfig{Timeout: sealTimeout, Suspend: true, Undo: saga.Retry{MaxBackoff: 60 * time.Millisecond}})
	approve := saga.NewAsk("approve", func(context.Context, int) (messagestore.StreamWrite, error) { return messagestore.StreamWrite{}, nil },
		func(ctx context.Context, _ int, _ *int) (messagestore.StreamWrite, error) {
			return messagestore.StreamWrite{}, p.step(ctx, Undo)
		},
		&saga.StepConfig{Timeout: 2 * deadline, Undo: saga.Retry{MaxBackoff: 60 * time.Millisecond}})

	return saga.New(store, name, func(r *saga.Run, o Order) (int, error) {
		for i := range o.Lines {
			if _, err := reserve.For(strconv.Itoa(i)).Do(r, i); err != nil {
				return 0, err
			}
		}
		if o.Beside {
			reserve.For("a").Go(r, 1)
			reserve.For("b").Go(r, 2)
			if err := r.Join(); err != nil {
				return 0, err
			}
		}
		if o.Pay {
			if _, err := pay.Do(r, 1); err != nil {
				return 0, err
			}
		}
		if o.Nap > 0 {
			if err := r.Sleep("nap", time.Duration(o.Nap)*time.Millisecond); err != nil {
				return 0, err
			}
		}
		for _, a := range []struct {
			has bool
			*saga.Ask[int, int]
		}{{o.Ship, ship}, {o.Seal, seal}, {o.Approve, approve}} {
			if !a.has {
				continue
			}
			if _, err := a.Do(r, 1); err != nil {
				return 0, err
			}
		}
		if o.Pivot {
			if _, err := book.Do(r, 1); err != nil {
				return 0, err
			}
		}
		if o.Last {
			if _, err := pay.For("last").Do(r, 2); err != nil {
				return 0, err
			}
		}
		if o.Fail && !o.Pivot {
			return 0, errDrawn
		}
		return o.Lines, nil
	}, saga.Steps{reserve, pay, ship, seal, approve, book}, &saga.Config{
		Deadline: deadline, Concurrency: 32, Lease: lease, PollInterval: poll, Logger: logger.Silent(),
	})
}

// stepOf returns the saga and the step of a function's context.
func stepOf(ctx context.Context) (id, step string) {
	stream, step, _ := strings.Cut(saga.Key(ctx), "+")
	return strings.TrimPrefix(stream, string(category)+"-"), step
}

// step is the function of a step, or its undo: it fails now and then.
func (p *process) step(ctx context.Context, what string) error {
	h := p.newHand()
	c := Record{Call: what}
	c.Saga, c.Step = stepOf(ctx)
	c = p.recorder.Begin(c)
	p.Doom.Pass(atStep)
	err := h.mood(ctx, what)
	a := Record{Answer: OK}
	if err != nil {
		a.Answer = Failed
	}
	p.recorder.End(c, a)
	p.Doom.Pass(atStepped)
	return err
}

// mood draws the result of a step's function. An undo is never refused, because that would suspend
// its saga.
func (h *hand) mood(ctx context.Context, what string) error {
	if !wait(ctx, h.random.Sooner(4*time.Millisecond)) {
		return ctx.Err()
	}
	switch drawn := h.random.IntN(100); {
	case drawn < 84:
		return nil
	case drawn < 94:
		return errDrawn
	case drawn < 97:
		return handler.RetryAfter(h.random.Sooner(80*time.Millisecond), errDrawn)
	case drawn < 98 && what == Do:
		return handler.Refuse(errDrawn)
	case drawn < 99:
		panic(errDrawn)
	}
	return nil
}

// stepTx is the function of a step in a transaction, or its undo: it writes a row, and the step's
// function a letter too.
func (p *process) stepTx(ctx context.Context, tx pgx.Tx, what string) error {
	h := p.newHand()
	c := Record{Call: what, Note: "tx"}
	c.Saga, c.Step = stepOf(ctx)
	c = p.recorder.Begin(c)
	_, err := tx.Exec(ctx, "insert into "+rowsTable+" values ($1, $2, $3, $4)", c.Saga, c.Step, what, p.Process)
	if err == nil {
		p.Doom.Pass(atStep)
		err = h.mood(ctx, what)
	}
	if err == nil && what == Do && h.random.Often(30) {
		err = saga.Write(ctx, h.letter())
	}
	a := Record{Answer: OK}
	if err != nil {
		a.Answer = Failed
	}
	p.recorder.End(c, a)
	p.Doom.Pass(atStepped)
	return err
}
