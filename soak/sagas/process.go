package sagas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/soak/crew"
)

// Variable is set in the environment of a process of a run: its task, as JSON.
const Variable = "DIBS_SOAK_SAGAS"

const connections = 8

// A task is the work of a process, until its standard input ends. Once something is written to
// that, a runner dies at no failpoint, and customers begin nothing more and end when their sagas
// have.
type task struct {
	crew.Task
	Customers int  // 0 for a runner
	Timers    int  // that the customers' process sets a second
	Flood     bool // one of its sagas has as many signals as it takes
}

// The failpoints of a runner.
const (
	atStep    crew.Point = "saga/step"    // in a function of a step
	atStepped crew.Point = "saga/stepped" // it has returned, and no one knows
	atSend    crew.Point = "relay/send"
	atSent    crew.Point = "relay/sent" // the sink has taken it
	atRing    crew.Point = "timer/ring"
)

var points = []crew.Point{"", atStep, atStepped, atStepped, atSend, atSent, atRing}

// RunProcess does the work of a process of a run, if this is such a process, and then exits. Call
// it first in main, and in the TestMain of a package with tests of runs.
func RunProcess() { crew.RunProcess(Variable, runProcess) }

// A process of a run. It is safe for concurrent use.
type process struct {
	*task
	recorder *recorder
	store    *messagestore.Store
	orders   *orders
	timers   *queue.Queue
	hands    atomic.Uint64
}

// A hand has the dice of one goroutine.
type hand struct {
	*process
	random crew.Dice
}

func (p *process) newHand() *hand { return &hand{p, crew.NewDice(p.Seed, p.hands.Add(1))} }

func (p *process) newID() string { return testkit.Must(uuid.NewV7()).String() }

// wait is [crew.Pause], which reports whether ctx did not end.
func wait(ctx context.Context, d time.Duration) bool { return crew.Pause(ctx, d) }

func runProcess(t *task) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	beginning, stopBeginning := context.WithCancel(ctx)
	go crew.Listen(func() {
		t.Doom.Lift()
		stopBeginning()
	}, cancel)
	p := &process{task: t}
	var err error
	if p.recorder, err = crew.NewRecorder[Record](t.Dir, t.Process); err != nil {
		return err
	}
	pool, err := crew.Pool(ctx, t.URL, connections)
	if err != nil {
		return err
	}
	defer pool.Close()
	driver, err := postgres.New(pool, &postgres.Config{Logger: logger.Silent()})
	if err != nil {
		return err
	}
	p.store = testkit.Must(messagestore.New(recordedDriver{deepDriver{driver}, p}, nil))
	defer p.store.Close()
	if p.orders, err = newOrders(p.store, testkit.Must(messagestore.Transactional[pgx.Tx](p.store)), p); err != nil {
		return err
	}
	p.timers = testkit.Must(queue.New(p.store, rings, &queue.Config{Logger: logger.Silent()}))
	if t.Customers > 0 {
		p.customers(ctx, beginning)
		return nil
	}
	return p.run(ctx, cancel)
}

// A deepDriver embeds the driver one level deeper than the recorder of its calls, so that the
// recorder's methods win.
type deepDriver struct{ *postgres.Driver }

// A recordedDriver records the ids of the messages that a runner writes to the streams of sagas.
// Transactions of steps are recorded by their rows.
type recordedDriver struct {
	deepDriver
	p *process
}

// Append implements [messagestore.Driver].
func (d recordedDriver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	d.p.writes(a)
	return d.deepDriver.Append(ctx, a)
}

// AppendAll implements [messagestore.Driver].
func (d recordedDriver) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	d.p.writes(appends...)
	return d.deepDriver.AppendAll(ctx, appends)
}

// TryAppend implements [messagestore.Driver].
func (d recordedDriver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	d.p.writes(appends...)
	return d.deepDriver.TryAppend(ctx, appends)
}

func (p *process) writes(appends ...messagestore.Append) {
	for _, a := range appends {
		if p.Customers > 0 || a.Stream.Category() != category {
			continue
		}
		c := Record{Call: Write, Saga: a.Stream.CardinalID()}
		for _, r := range a.Records {
			c.IDs = append(c.IDs, r.ID.String())
		}
		p.recorder.Begin(c)
	}
}

// run runs sagas, answers their commands, and has timers rung and messages sent.
func (p *process) run(ctx context.Context, cancel context.CancelFunc) error {
	ship, seal := p.answer("ship"), p.answer("seal")
	commands := handler.New()
	handler.On(commands, func(ctx context.Context, m handler.Message[Parcel]) error {
		if m.Body.Step == "seal" {
			return seal.Handle(ctx, m)
		}
		return ship.Handle(ctx, m)
	})
	bells := handler.New()
	handler.On(bells, func(ctx context.Context, m handler.Message[Bell]) error {
		c := p.recorder.Begin(Record{Call: Ring, IDs: []string{m.ID.String()}, Due: m.Body.Due})
		p.Doom.Pass(atRing)
		p.recorder.End(c, Record{Answer: OK})
		return nil
	})
	asked := testkit.Must(queue.New(p.store, parcels, &queue.Config{Logger: logger.Silent()}))
	sends := testkit.Must(outbox.New(p.store, posts, relay, sink{p}, &outbox.Config{
		Concurrency: 16, MaxAttempts: 10_000, MaxAge: time.Hour, Lease: lease, PollInterval: poll, Timeout: 3 * time.Second, Grace: 3 * time.Second, Logger: logger.Silent(),
	}))
	config := func(workers int) *queue.WorkConfig {
		return &queue.WorkConfig{
			MaxWorkers: workers, Lease: lease, Timeout: 3 * time.Second, Grace: 3 * time.Second, PollInterval: poll,
			MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		}
	}
	var all sync.WaitGroup
	works := []func(context.Context) error{
		p.orders.Run,
		func(ctx context.Context) error { return asked.Work(ctx, commands, config(16)) },
		func(ctx context.Context) error { return p.timers.Work(ctx, bells, config(64)) },
		sends.Run,
	}
	errs := make([]error, len(works))
	for i, f := range works {
		all.Go(func() {
			if errs[i] = f(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// answer answers the commands of an ask: at once, later, too late, never, with a refusal. The reply
// is the attempt that it answers.
func (p *process) answer(step string) handler.Handler[Parcel] {
	return saga.Answer(p.orders, step, func(ctx context.Context, m handler.Message[Parcel]) (int, error) {
		h, attempt := p.newHand(), 1
		if n, err := strconv.Atoi(m.Metadata.Properties.Get("sagaAttempt")); err == nil {
			attempt = n
		}
		if queue.JobOf(ctx).Deliveries > 0 {
			return attempt, nil
		}
		least, most := time.Duration(0), 300*time.Millisecond
		switch {
		case step == "seal" && attempt == 1: // too late, while the next attempt waits
			least, most = sealTimeout, sealTimeout
		case step == "seal":
			return 0, handler.RetryAfter(sealTimeout*2/3, errDrawn)
		}
		switch drawn := h.random.IntN(100); {
		case drawn < 40:
			return attempt, nil
		case drawn < 90:
			return 0, handler.RetryAfter(least+h.random.Sooner(most), errDrawn)
		case drawn < 94:
			return 0, handler.Refuse(errDrawn)
		case drawn < 96:
			return 0, handler.Skip("it was drawn")
		}
		return 0, errDrawn
	})
}

// A sink takes letters, but refuses some keys for a while.
type sink struct{ *process }

// Send implements [outbox.Sink].
func (s sink) Send(ctx context.Context, m *outbox.Message) error {
	c := s.recorder.Begin(Record{Call: Send, Stream: string(m.Stream), Position: int64(m.Position), IDs: []string{m.ID.String()}})
	err := s.take(ctx, m)
	a := Record{Answer: OK}
	if err != nil {
		a.Answer = Failed
	}
	s.recorder.End(c, a)
	s.Doom.Pass(atSent)
	return err
}

func (s sink) take(ctx context.Context, m *outbox.Message) error {
	s.Doom.Pass(atSend)
	h := s.newHand()
	if !wait(ctx, h.random.Sooner(5*time.Millisecond)) {
		return ctx.Err()
	}
	key, _ := strconv.Atoi(m.Key()) // it is a number
	if (int(time.Now().Unix()/2)+key)%8 == 0 || h.random.Often(2) {
		return errDrawn
	}
	return nil
}

func (h *hand) letter() messagestore.StreamWrite {
	return messagestore.To(posts.Stream(strconv.Itoa(h.random.IntN(postKeys))), messagestore.AnyVersion, Letter{h.random.IntN(1000)})
}

// customers begin sagas, one after the other each, and see to them; others set timers and post
// letters.
func (p *process) customers(ctx, beginning context.Context) {
	var all sync.WaitGroup
	for range p.Customers {
		all.Go(func() {
			h := p.newHand()
			for wait(beginning, h.random.Sooner(50*time.Millisecond)) {
				h.customer(ctx)
			}
		})
	}
	if p.Flood {
		all.Go(func() { p.newHand().flood(ctx) })
	}
	all.Go(func() { p.newHand().setTimers(beginning) })
	all.Go(func() { p.newHand().post(beginning) })
	all.Wait()
}

func (h *hand) order() Order {
	often := h.random.Often
	o := Order{
		Lines: h.random.IntN(3), Beside: often(20), Pay: often(60), Ship: often(30), Seal: often(40), Approve: often(25), Pivot: often(30), Last: often(40),
		Fail: often(12),
	}
	if often(30) {
		o.Nap = 1 + h.random.IntN(800)
	}
	return o
}

// customer has a saga, from its beginning until it has ended.
func (h *hand) customer(ctx context.Context) {
	id, o := h.newID(), h.order()
	h.begin(ctx, id, o)
	var all sync.WaitGroup
	defer all.Wait()
	if o.Approve && !h.random.Often(15) {
		after := h.random.Sooner(1500 * time.Millisecond)
		all.Go(func() {
			wait(ctx, after)
			h.tell(ctx, id, "approve", func() error {
				_, err := h.store.WriteStreams(ctx, h.orders.Reply(id, "approve", 1))
				return err
			})
		})
	}
	if h.random.Often(8) {
		after := h.random.Sooner(1500 * time.Millisecond)
		all.Go(func() {
			wait(ctx, after)
			h.tell(ctx, id, "cancel", func() error {
				_, err := h.orders.Cancel(ctx, id, "it was drawn")
				return err
			})
		})
	}
	h.await(ctx, id)
}

// await waits until a saga is over, and sees to it while it is suspended.
func (h *hand) await(ctx context.Context, id string) {
	for ctx.Err() == nil {
		c := h.recorder.Begin(Record{Call: Wait, Saga: id})
		status, err := h.orders.Wait(ctx, id)
		h.recorder.End(c, Record{Answer: answerOf(err), State: string(status.State)})
		switch {
		case err != nil:
			wait(ctx, h.random.Sooner(100*time.Millisecond))
		case status.IsOver():
			return
		default:
			h.mend(ctx, id)
		}
	}
}

func (h *hand) begin(ctx context.Context, id string, o Order) {
	c := h.recorder.Begin(Record{Call: Begin, Saga: id, Note: fmt.Sprintf("%+v", o)})
	_, err := h.orders.Begin(ctx, id, o)
	for errors.Is(err, messagestore.ErrOutcomeUnknown) || err != nil && ctx.Err() == nil { // it is there once, whatever becomes of the calls
		wait(ctx, h.random.Sooner(100*time.Millisecond))
		_, err = h.orders.Begin(ctx, id, o)
	}
	h.recorder.End(c, Record{Answer: answerOf(err)})
}

// flood sends a saga signals that it does not receive, as many as it takes, and then cancels it.
func (h *hand) flood(ctx context.Context) {
	const page = 500
	id := h.newID()
	h.begin(ctx, id, Order{Nap: int((2 * deadline).Milliseconds())})
	for ctx.Err() == nil {
		w := h.orders.Signal(id, "flood", 1)
		w.Bodies = slices.Repeat(w.Bodies, page)
		_, err := h.store.WriteStreams(ctx, w)
		if saga.IsFull(err) {
			break
		}
		if err != nil { // an answer that was lost costs a page more
			wait(ctx, h.random.Sooner(100*time.Millisecond))
		}
	}
	h.tell(ctx, id, "cancel", func() error {
		_, err := h.orders.Cancel(ctx, id, "it was flooded")
		return err
	})
	h.await(ctx, id)
}

// mend sees to a suspended saga. Behind a pivot a resolution ends it now and then; else it is
// cancelled now and then.
func (h *hand) mend(ctx context.Context, id string) {
	wait(ctx, h.random.Sooner(300*time.Millisecond))
	what, f := "resume", h.orders.Resume
	switch drawn := h.random.IntN(100); {
	case drawn < 10:
		what, f = "resolve", h.orders.Resolve
	case drawn < 20:
		what, f = "cancel", h.orders.Cancel
	}
	h.tell(ctx, id, what, func() error {
		_, err := f(ctx, id, "it was drawn")
		return err
	})
}

// tell writes a message from outside. If the answer is lost, it writes the message again: a second
// write changes nothing.
func (h *hand) tell(ctx context.Context, id, what string, f func() error) {
	c := h.recorder.Begin(Record{Call: Tell, Saga: id, Note: what})
	err := f()
	for err != nil && ctx.Err() == nil {
		wait(ctx, h.random.Sooner(100*time.Millisecond))
		err = f()
	}
	h.recorder.End(c, Record{Answer: answerOf(err)})
}

func answerOf(err error) string {
	switch {
	case err == nil:
		return OK
	case errors.Is(err, messagestore.ErrOutcomeUnknown):
		return Unknown
	}
	return Failed
}

// setTimers sets timers until ctx ends, some in the past, and sets a timer again if the answer was
// lost.
func (h *hand) setTimers(ctx context.Context) {
	const each = 50
	for ctx.Err() == nil {
		var entries []queue.Entry
		c := Record{Call: Set}
		for range each {
			id, due := testkit.Must(uuid.NewV7()), time.Now().Add(h.random.Sooner(3*time.Second)-50*time.Millisecond).Truncate(time.Microsecond)
			entries = append(entries, queue.Entry{Body: Bell{due.UnixMicro()}, Opts: &queue.InsertOpts{ID: id, ScheduledAt: due}})
			c.IDs = append(c.IDs, id.String())
		}
		c = h.recorder.Begin(c)
		_, err := h.timers.InsertMany(ctx, entries...)
		for err != nil && ctx.Err() == nil {
			wait(ctx, h.random.Sooner(50*time.Millisecond))
			_, err = h.timers.InsertMany(ctx, entries...)
		}
		h.recorder.End(c, Record{Answer: answerOf(err)})
		wait(ctx, time.Second*each/time.Duration(h.Timers))
	}
}

// post writes letters until ctx ends.
func (h *hand) post(ctx context.Context) {
	for ctx.Err() == nil {
		var writes []messagestore.StreamWrite
		for range 1 + h.random.IntN(3) {
			w := h.letter()
			for range h.random.IntN(3) {
				w.Bodies = append(w.Bodies, Letter{h.random.IntN(1000)})
			}
			if !contains(writes, w.Stream) {
				writes = append(writes, w)
			}
		}
		c := h.recorder.Begin(Record{Call: Post})
		_, err := h.store.WriteStreams(ctx, writes...)
		h.recorder.End(c, Record{Answer: answerOf(err)})
		wait(ctx, h.random.Sooner(100*time.Millisecond))
	}
}

func contains(writes []messagestore.StreamWrite, stream messagestore.StreamName) bool {
	for _, w := range writes {
		if w.Stream == stream {
			return true
		}
	}
	return false
}
