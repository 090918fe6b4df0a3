package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/standing"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

const (
	standingMonths  = 3
	standingCrons   = 3
	standingWorkers = 4

	standingLease    = 2 * time.Second
	standingTimeout  = 2 * time.Second
	standingFailures = 4
)

// standingBegins is when the simulation does.
var standingBegins = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type standingGrammar struct {
	Demo   standingDemoCommand   `cmd:"" help:"Pay standing orders for three months under kills, and compare the books."`
	Cron   standingCronCommand   `cmd:"" hidden:""`
	Worker standingWorkerCommand `cmd:"" hidden:""`
}

// RunStanding is [Run] for the program of examples/standing.
func RunStanding(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return stage.Run(ctx, &standingGrammar{}, "standing",
		"Standing orders: schedules without a leader, and a queue of payments in the order of each account.", args, stdout, stderr)
}

type standingDemoCommand struct {
	Store  string        `env:"DIBS_STORE" placeholder:"URL" help:"The store: sqlite:FILE or postgres://... Defaults to a file of the run's own."`
	Orders string        `placeholder:"FILE" help:"A file of standing orders, as internal/demo/testdata/payment-orders.csv. Defaults to that."`
	Month  time.Duration `default:"12s" placeholder:"TIME" help:"How long a month of 31 days takes. Defaults to ${default}."`
	stage.Limit
}

// Help is printed below the command's usage.
func (standingDemoCommand) Help() string {
	return `Each row of the file is a standing order, and becomes a schedule: some while the schedules run. Three processes run all schedules, and no process leads. Four workers make payments of the orders that are due, and pay them at a bank over HTTP, one at a time for each account, in order. A worker is killed with SIGKILL, and one is stopped with SIGSTOP until its session is over, as work proceeds. One order fails until a person mends it, and holds its account. One handler never returns.

Then the file, the bank's log and the store are compared by code that shares none with the queue: each tick, payment and balance once and in order, and a reason in the store for each delivery that did not finish its item. The exit code is 0 if all agree, and 1 if not.`
}

// standingArgs are the flags of the processes.
type standingArgs struct {
	Store string `env:"DIBS_STORE" required:""`
	Bank  string
	Began int64   // microseconds
	Speed float64 // of the clock
}

// open returns the service of a process.
func (c *standingArgs) open(ctx context.Context, stderr io.Writer) (*standing.Service, *messagestore.Store, error) {
	log := logger.Zerolog(zerolog.New(stderr).Level(zerolog.ErrorLevel).With().Timestamp().Logger())
	store, err := dibs.Open(ctx, c.Store, &messagestore.Config{Logger: log})
	if err != nil {
		return nil, nil, err
	}
	clock := &standing.FastClock{Store: store, From: standingBegins, Began: time.UnixMicro(c.Began), Speed: c.Speed, Until: standingEnds}
	service, err := standing.New(store, &standingBank{url: c.Bank, client: &http.Client{}}, standing.Config{
		MaxFailures: standingFailures, Logger: log,
		Cron: cron.Config{Now: clock.Now, PollInterval: 100 * time.Millisecond},
		Work: queue.WorkConfig{
			MaxWorkers: 16, Lease: standingLease, Timeout: standingTimeout, Grace: standingTimeout / 4,
			MinBackoff: 50 * time.Millisecond, MaxBackoff: 400 * time.Millisecond,
		},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return service, store, nil
}

type standingCronCommand struct{ standingArgs }

// Run has orders come due until ctx ends.
func (c *standingCronCommand) Run(ctx context.Context, o *stage.Output) error {
	service, store, err := c.open(ctx, o.Stderr)
	if err != nil {
		return err
	}
	return errors.Join(service.Schedule(ctx), store.Close())
}

type standingWorkerCommand struct{ standingArgs }

// Run pays until ctx ends.
func (c *standingWorkerCommand) Run(ctx context.Context, o *stage.Output) error {
	service, store, err := c.open(ctx, o.Stderr)
	if err != nil {
		return err
	}
	err = service.Work(ctx)
	if errors.Is(err, queue.ErrAbandoned) {
		err = nil // the handler that never returns
	}
	return errors.Join(err, store.Close())
}

// A standingBank is the bank, as a worker reaches it.
type standingBank struct {
	url    string
	client *http.Client
}

// A standingPayment is a payment as the bank is asked for it.
type standingPayment struct {
	Key      string `json:"key"`
	Order    string `json:"order"`
	Account  string `json:"account"`
	Month    string `json:"month"`
	Cents    int64  `json:"cents"`
	Position int64  `json:"position"` // in the account's stream
	Process  int    `json:"process"`
}

// Pay implements [standing.Bank]. The bank may have it never return.
func (b *standingBank) Pay(ctx context.Context, key string, m *messagestore.Message, p standing.Pay) error {
	body, err := json.Marshal(standingPayment{
		Key: key, Order: p.Order, Account: p.Account, Month: p.Month, Cents: p.Cents, Position: int64(m.Position), Process: os.Getpid(),
	})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, b.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := b.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusTeapot: // a fault of this program, which the demo asks for
		select {}
	}
	return fmt.Errorf("the bank answers %s", answer.Status)
}

// A standingReceiver is the bank itself: it makes each payment once, and keeps a log.
type standingReceiver struct {
	failing string // order that is refused until it is mended
	hanging string // key of the order and month whose first delivery never returns

	mu      sync.Mutex
	mended  bool
	hung    bool
	asked   int // requests
	refused int // of them that were refused
	hold    *hold
	made    []standingPayment
	by      map[string]standingPayment
}

// A hold keeps the next answer of the bank.
type hold struct {
	held     chan struct{} // closed once a payment was made, and its answer is kept
	released chan struct{}
	process  int // that waits for the answer, once it is kept
}

// isHeld is closed once an answer is kept; nil for no hold.
func (h *hold) isHeld() <-chan struct{} {
	if h == nil {
		return nil
	}
	return h.held
}

// isHeldBefore is isHeld, but nil once that was seen.
func (h *hold) isHeldBefore(seen bool) <-chan struct{} {
	if seen {
		return nil
	}
	return h.isHeld()
}

// keep has the next answer kept, so that the process that waits for it has an item when it is killed or stopped.
func (r *standingReceiver) keep() *hold {
	h := &hold{held: make(chan struct{}), released: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = h
	return h
}

// ServeHTTP implements [http.Handler].
func (r *standingReceiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var p standingPayment
	if err := json.NewDecoder(request.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	r.asked++
	if kept := r.hold; kept != nil {
		r.hold = nil
		kept.process = p.Process
		defer func() {
			close(kept.held)
			<-kept.released
		}()
	}
	defer r.mu.Unlock()
	switch {
	case p.Order == r.failing && !r.mended:
		r.refused++
		http.Error(w, "no such account", http.StatusUnprocessableEntity)
	case p.Order+p.Month == r.hanging && !r.hung:
		r.hung = true
		w.WriteHeader(http.StatusTeapot)
	default:
		if _, is := r.by[p.Key]; !is {
			r.by[p.Key] = p
			r.made = append(r.made, p)
		}
	}
}

func (r *standingReceiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.made)
}

func (r *standingReceiver) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mended = true
}

// A standingDemo is one run.
type standingDemo struct {
	standingDemoCommand
	out     io.Writer
	url     string
	orders  []Order
	clock   *standing.FastClock
	address string // of the bank
	store   *messagestore.Store
	service *standing.Service
	bank    *standingReceiver
	screen  *stage.Screen
	args    []string

	crons    [standingCrons]*stage.Process
	workers  [standingWorkers]*stage.Process
	dead     int // payments that were found dead, and retried
	expected int // payments that there are to be, once all orders are set up
}

// Run runs the processes, and compares the books.
func (c *standingDemoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	orders, err := ReadOrders(c.Orders)
	if err != nil {
		return err
	}
	if len(orders) < 4 {
		return fmt.Errorf("%w: there are %d orders, and at least 4 are needed", stage.ErrUsage, len(orders))
	}
	dir, err := os.MkdirTemp("", "dibs-standing")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	preparing, cancel := c.Preparing(ctx)
	defer cancel()
	where, cleanUp, err := stage.PrepareStore(preparing, c.Store, filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	d := &standingDemo{standingDemoCommand: *c, out: o.Stdout, url: where, orders: orders}
	return d.run(ctx)
}

// dayOf is the day of the month of an order: up to 28, which every month has.
func dayOf(order string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(order)) // it has no error
	return int(h.Sum32()%28) + 1
}

// of returns how many payments there are to be: about as many, until all orders are set up.
func (d *standingDemo) of() int {
	if d.expected > 0 {
		return d.expected
	}
	return len(d.orders) * standingMonths
}

func (d *standingDemo) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	fmt.Fprintf(d.out, "%s standing orders for %d months of %v; %d processes with schedules, %d workers with a lease of %v\n",
		stage.Count(len(d.orders)), standingMonths, d.Month, standingCrons, standingWorkers, standingLease)
	if d.store, err = dibs.Open(ctx, d.url, &messagestore.Config{Logger: logger.Silent()}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.store.Close()) }()
	if err := d.openBank(ctx); err != nil {
		return err
	}
	d.screen = stage.NewScreen(d.out)
	defer d.screen.Done()
	defer func() {
		for _, p := range append(d.crons[:], d.workers[:]...) {
			p.End()
		}
	}()
	return d.Limit.Run(ctx, d.screen, stage.Work{
		Do:     func(ctx context.Context) error { return d.work(ctx, cancel) },
		Settle: func(context.Context) error { return nil },
		Stop: func() error {
			return stage.Finish(stopLimit, append(d.crons[:], d.workers[:]...)...)
		},
		Verdict: func(ctx context.Context, late error) error {
			if late != nil {
				return fmt.Errorf("%s of %s payments were made", stage.Count(d.bank.count()), stage.Count(d.of()))
			}
			return d.verdict(ctx)
		},
	})
}

// openBank opens the bank, and the service by which this process sets up the orders.
func (d *standingDemo) openBank(ctx context.Context) error {
	d.bank = &standingReceiver{
		failing: d.orders[1].ID, hanging: d.orders[2].ID + "2026-02", by: map[string]standingPayment{},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed with the server
	if err != nil {
		return err
	}
	server := &http.Server{Handler: d.bank, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // until Close
	context.AfterFunc(ctx, func() { _ = server.Close() })
	d.address = "http://" + listener.Addr().String()
	// The clock stands still until the first orders are set up.
	d.clock = &standing.FastClock{Store: d.store, From: standingBegins, Began: time.Now().Add(time.Hour), Until: standingEnds, Speed: 1}
	d.service, err = standing.New(d.store, nil, standing.Config{
		MaxFailures: standingFailures, Logger: logger.Silent(), Cron: cron.Config{Now: func(ctx context.Context) (time.Time, error) { return d.clock.Now(ctx) }},
	})
	return err
}

// beginClock has the clock run from a second from now on: so long the start of the processes takes.
func (d *standingDemo) beginClock(ctx context.Context) error {
	now, err := d.store.Now(ctx)
	if err != nil {
		return err
	}
	began, speed := now.Add(time.Second), float64(31*24*time.Hour)/float64(d.Month)
	d.clock = &standing.FastClock{Store: d.store, From: standingBegins, Began: began, Until: standingEnds, Speed: speed}
	d.args = []string{"--bank", d.address, "--began", strconv.FormatInt(began.UnixMicro(), 10), "--speed", strconv.FormatFloat(speed, 'f', -1, 64)}
	return nil
}

func (d *standingDemo) start(role string, cancel context.CancelCauseFunc) (*stage.Process, error) {
	return stage.StartProcess(role, d.url, cancel, nil, append([]string{role}, d.args...)...)
}

// work starts the processes, sets up the orders, disturbs, and waits until all is paid.
func (d *standingDemo) work(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	var soon, late []Order
	for _, o := range d.orders {
		if dayOf(o.ID) > 20 {
			late = append(late, o)
		} else {
			soon = append(soon, o)
		}
	}
	if err := d.setUp(ctx, soon); err != nil {
		return err
	}
	if err := d.beginClock(ctx); err != nil {
		return err
	}
	for i := range d.crons {
		if d.crons[i], err = d.start("cron", cancel); err != nil {
			return err
		}
	}
	for i := range d.workers {
		if d.workers[i], err = d.start("worker", cancel); err != nil {
			return err
		}
	}
	orders := make(chan error, 1)
	go func() { orders <- d.setUp(ctx, late) }()
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var thaw <-chan time.Time
	killed, froze, thawed, frozen, dead := false, false, false, 0, time.Now()
	var killing, freezing *hold
	defer func() {
		if freezing != nil {
			close(freezing.released)
		}
	}()
	for {
		done := d.bank.count()
		d.screen.Show(stage.Progress{Done: done, Of: d.of(), Written: done, Elapsed: time.Since(began), Tail: fmt.Sprintf("%d dead", d.dead)})
		switch {
		case d.expected > 0 && done == d.of() && thawed:
			return d.settled(ctx)
		case killing == nil && !killed && done > d.of()/5:
			killing = d.bank.keep()
		case freezing == nil && killed && !froze && done > d.of()*2/5:
			freezing = d.bank.keep()
		}
		if time.Since(dead) > time.Second && done > d.of()/4 {
			dead = time.Now()
			if err := d.mend(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-orders:
			if err != nil {
				return err
			}
			orders = nil
			planned, err := d.planned(ctx)
			if err != nil {
				return err
			}
			d.expected = len(planned)
		case <-killing.isHeld():
			i, err := d.workerOf(killing.process)
			if err != nil {
				return err
			}
			d.workers[i].End()
			close(killing.released)
			killing, killed = nil, true
			if d.workers[i], err = d.start("worker", cancel); err != nil {
				return err
			}
			d.screen.Say("a worker killed with SIGKILL before the bank's answer, and started again")
		case <-freezing.isHeldBefore(froze):
			froze = true
			if frozen, err = d.workerOf(freezing.process); err != nil {
				return err
			}
			if err := d.workers[frozen].Process.Signal(syscall.SIGSTOP); err != nil {
				return fmt.Errorf("stop a worker: %w", err)
			}
			d.screen.Say("another stopped with SIGSTOP before the bank's answer, for two leases")
			thaw = time.After(2 * standingLease)
		case <-thaw:
			thaw = nil
			close(freezing.released)
			freezing = nil
			if err := d.workers[frozen].Process.Signal(syscall.SIGCONT); err != nil {
				return fmt.Errorf("go on with a worker: %w", err)
			}
			thawed = true
			d.screen.Say("it goes on, past the end of its session")
		case <-tick.C:
		}
	}
}

// workerOf returns which worker a process is.
func (d *standingDemo) workerOf(process int) (int, error) {
	for i, p := range d.workers {
		if p.Process.Pid == process {
			return i, nil
		}
	}
	return 0, fmt.Errorf("process %d asked the bank, and is no worker", process)
}

// setUp sets up orders.
func (d *standingDemo) setUp(ctx context.Context, all []Order) error {
	const at = 16
	work := make(chan Order)
	failed := make(chan error, at)
	var group sync.WaitGroup
	for range at {
		group.Go(func() {
			for o := range work {
				due := standing.Due{Order: o.ID, Account: o.Account, To: o.To, Cents: int64(o.Amount)}
				if err := d.service.Order(ctx, due, dayOf(o.ID)); err != nil {
					failed <- err
					for range work { // so that the sender ends
					}
				}
			}
		})
	}
	for _, o := range all {
		work <- o
	}
	close(work)
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return ctx.Err()
	}
}

// mend is a person who looks at what is dead, mends it, and has it tried again.
func (d *standingDemo) mend(ctx context.Context) error {
	items, err := d.service.Dead(ctx)
	if err != nil {
		return err
	}
	var positions []messagestore.GlobalPosition
	for _, item := range items {
		var p standingPayment
		if item.Message != nil && json.Unmarshal(item.Message.Data, &p) == nil && p.Order == d.bank.failing {
			d.bank.mend()
		}
		positions = append(positions, item.Position)
	}
	if len(positions) == 0 {
		return nil
	}
	retried, err := d.service.Payments.Retry(ctx, "the account is there now", positions...)
	if errors.Is(err, sqlite.ErrBusy) {
		return nil // a process that was stopped has the file: the next look tries again
	}
	if err == nil && len(retried) > 0 {
		d.dead += len(retried)
		d.screen.Say(fmt.Sprintf("%d payment was dead, which held its account: mended, and retried", len(retried)))
	}
	return err
}

// settled waits until nothing is open.
func (d *standingDemo) settled(ctx context.Context) error {
	for {
		open := false
		for _, q := range []*queue.Queue{d.service.Due, d.service.Payments} {
			s, err := q.Status(ctx)
			if err != nil {
				return err
			}
			open = open || s.Waiting || s.Out+s.Later+s.Held+s.Dead > 0
		}
		if !open {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
