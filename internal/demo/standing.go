package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/standing"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

// The processes of the demo of standing orders, and their limits.
const (
	standingCrons   = 3
	standingWorkers = 4

	standingLease    = 2 * time.Second
	standingTimeout  = 2 * time.Second
	standingFailures = 4
)

// When the simulation begins, and its clock stands still.
var (
	standingBegins = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	standingEnds   = time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
)

type standingGrammar struct {
	Demo   standingDemo   `cmd:"" help:"Pay standing orders for three months under kills, and compare the books."`
	Cron   standingCron   `cmd:"" hidden:""`
	Worker standingWorker `cmd:"" hidden:""`
}

// Standing runs a command of examples/standing and returns the exit code: see [Main].
func Standing(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Main(ctx, &standingGrammar{}, "standing",
		"Standing orders: schedules without a leader, and a queue of payments in the order of each account.", args, stdout, stderr)
}

// standingArgs are the flags of the processes.
type standingArgs struct {
	Store string `env:"DIBS_STORE" required:""`
	Bank  string
	Began int64   // microseconds
	Speed float64 // of the clock
}

// run runs a part of the service of a process.
func (c *standingArgs) run(ctx context.Context, stderr io.Writer, part func(*standing.Service, context.Context) error) error {
	log := logger.Zerolog(zerolog.New(stderr).Level(zerolog.ErrorLevel).With().Timestamp().Logger())
	store, err := dibs.Open(ctx, c.Store, &messagestore.Config{Logger: log})
	if err != nil {
		return err
	}
	clock := &standing.FastClock{Store: store, From: standingBegins, Began: time.UnixMicro(c.Began), Speed: c.Speed, Until: standingEnds}
	service, err := standing.New(store, &standingClient{url: c.Bank, client: &http.Client{}}, standing.Config{
		MaxFailures: standingFailures, Logger: log,
		Cron: cron.Config{Now: clock.Now, PollInterval: 100 * time.Millisecond},
		Work: queue.WorkConfig{
			MaxWorkers: 16, Lease: standingLease, Timeout: standingTimeout, Grace: standingTimeout / 4,
			MinBackoff: 50 * time.Millisecond, MaxBackoff: 400 * time.Millisecond,
		},
	})
	if err == nil {
		err = part(service, ctx)
	}
	if errors.Is(err, queue.ErrAbandoned) {
		err = nil // the handler that never returns
	}
	return errors.Join(err, store.Close())
}

type standingCron struct{ standingArgs }

// Run makes orders come due until ctx ends.
func (c *standingCron) Run(ctx context.Context, o *Output) error {
	return c.run(ctx, o.Stderr, (*standing.Service).Schedule)
}

type standingWorker struct{ standingArgs }

// Run pays until ctx ends.
func (c *standingWorker) Run(ctx context.Context, o *Output) error {
	return c.run(ctx, o.Stderr, (*standing.Service).Work)
}

// A standingClient is the bank, as a worker reaches it.
type standingClient struct {
	url    string
	client *http.Client
}

// A standingPayment is a payment in a request to the bank.
type standingPayment struct {
	Key, Order, Account, Month string
	Position                   int64 // in the account's stream
	Process                    int
}

// Pay implements [standing.Bank]. It may never return, if the bank is set to that.
func (b *standingClient) Pay(ctx context.Context, key string, m *messagestore.Message, p standing.Pay) error {
	a, err := Call(context.WithoutCancel(ctx), b.client, http.MethodPost, b.url, nil,
		standingPayment{key, p.Order, p.Account, p.Month, int64(m.Position), os.Getpid()})
	switch {
	case err != nil:
		return err
	case a.Status == http.StatusTeapot: // a fault of this program, which the demo asks for
		select {}
	case a.Status != http.StatusOK:
		return fmt.Errorf("the bank answers %d", a.Status)
	}
	return nil
}

// A standingBank is the bank itself: it makes each payment once, and keeps a log.
type standingBank struct {
	failing string // order that is refused until it is mended
	hanging string // order and month whose first delivery never returns

	mu      sync.Mutex
	mended  bool
	hung    bool
	asked   int // requests
	refused int // of them that were refused
	hold    *hold
	made    []standingPayment
	keys    map[string]bool
}

// A hold keeps the next answer of the bank.
type hold struct {
	held     chan struct{} // closed once a payment was made, and its answer is kept
	released chan struct{}
	process  int // that waits for the answer, once it is kept
}

// keep has the next answer kept, so that the process that waits for it has an item when it is
// killed or stopped.
func (b *standingBank) keep() *hold {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hold = &hold{held: make(chan struct{}), released: make(chan struct{})}
	return b.hold
}

// ServeHTTP implements [http.Handler].
func (b *standingBank) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	var p standingPayment
	if err := json.NewDecoder(request.Body).Decode(&p); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	b.asked++
	if kept := b.hold; kept != nil {
		b.hold = nil
		kept.process = p.Process
		defer func() {
			close(kept.held)
			<-kept.released
		}()
	}
	defer b.mu.Unlock()
	switch {
	case p.Order == b.failing && !b.mended:
		b.refused++
		http.Error(w, "no such account", http.StatusUnprocessableEntity)
	case p.Order+p.Month == b.hanging && !b.hung:
		b.hung = true
		w.WriteHeader(http.StatusTeapot)
	case !b.keys[p.Key]:
		b.keys[p.Key] = true
		b.made = append(b.made, p)
	}
}

func (b *standingBank) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.made)
}

func (b *standingBank) mend() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mended = true
}

// A standingDemo is the command, and one run of it.
type standingDemo struct {
	Flags
	OrderFlags
	Month time.Duration `default:"12s" placeholder:"TIME" help:"How long a month of 31 days takes. Defaults to ${default}."`

	run      *Run
	orders   []Order
	clock    *standing.FastClock
	service  *standing.Service
	bank     *standingBank
	workers  []*Process
	dead     int // payments that were found dead, and retried
	expected int // payments that there are to be, once all orders are set up
}

// Help is printed below the command's usage.
func (*standingDemo) Help() string {
	return `Each row of the file is a standing order, and becomes a schedule: some while the schedules run. Three processes run all schedules, and no process leads. Four workers make payments of the orders that are due, and pay them at a bank over HTTP, one at a time for each account, in order. A worker is killed with SIGKILL, and one is stopped with SIGSTOP until its session is over, as work proceeds. One order fails until a person mends it, and holds its account. One handler never returns.

Then the file, the bank's log and the store are compared by code that shares none with the queue: each tick, payment and balance once and in order, and a reason in the store for each delivery that did not finish its item. The exit code is 0 if all agree, and 1 if not.`
}

// Run runs the processes, and compares the books.
func (d *standingDemo) Run(ctx context.Context, o *Output) (err error) {
	if d.orders, _, err = d.Read(); err != nil {
		return err
	}
	if len(d.orders) < 4 {
		return fmt.Errorf("%w: there are %d orders, and at least 4 are needed", ErrUsage, len(d.orders))
	}
	fmt.Fprintf(o.Stdout, "%s standing orders for three months of %v; %d processes with schedules, %d workers with a lease of %v\n",
		Count(len(d.orders)), d.Month, standingCrons, standingWorkers, standingLease)
	return d.Play(ctx, o, standing.Accounts, d)
}

// dayOf is the day of the month of an order: up to 28, which every month has.
func dayOf(order string) int { return int(Hash(order)>>32%28) + 1 } //nolint:gosec // it is small

// of returns the expected number of payments, which is approximate until all orders are set up.
func (d *standingDemo) of() int {
	if d.expected > 0 {
		return d.expected
	}
	return len(d.orders) * 3
}

// Work implements [Show]: it starts the processes, sets up the orders, disturbs, and waits until
// everything is paid.
func (d *standingDemo) Work(ctx context.Context, r *Run) (err error) {
	d.run, d.bank = r, &standingBank{failing: d.orders[1].ID, hanging: d.orders[2].ID + "2026-02", keys: map[string]bool{}}
	address, err := r.Serve(d.bank)
	if err != nil {
		return err
	}
	// The clock stands still until the first orders are set up.
	d.clock = &standing.FastClock{Store: r.Store, From: standingBegins, Began: time.Now().Add(time.Hour), Until: standingEnds, Speed: 1}
	d.service, err = standing.New(r.Store, nil, standing.Config{
		MaxFailures: standingFailures, Logger: logger.Silent(), Cron: cron.Config{Now: func(ctx context.Context) (time.Time, error) { return d.clock.Now(ctx) }},
	})
	if err != nil {
		return err
	}
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
	if err := d.start(ctx, address); err != nil {
		return err
	}
	ordered := make(chan error, 1)
	go func() { ordered <- d.setUp(ctx, late) }()
	return d.disturb(ctx, ordered)
}

// start has the clock run from a second from now on, so long the start of the processes takes, and
// starts them.
func (d *standingDemo) start(ctx context.Context, bank string) error {
	now, err := d.run.Store.Now(ctx)
	if err != nil {
		return err
	}
	began, speed := now.Add(time.Second), float64(31*24*time.Hour)/float64(d.Month)
	d.clock = &standing.FastClock{Store: d.run.Store, From: standingBegins, Began: began, Until: standingEnds, Speed: speed}
	for i := range standingCrons + standingWorkers {
		role := "cron"
		if i >= standingCrons {
			role = "worker"
		}
		p, err := d.run.Start(role, nil, role, "--bank", bank, "--began", strconv.FormatInt(began.UnixMicro(), 10), "--speed", strconv.FormatFloat(speed, 'f', -1, 64))
		if err != nil {
			return err
		}
		if i >= standingCrons {
			d.workers = append(d.workers, p)
		}
	}
	return nil
}

// disturb kills a worker, stops another and lets it go on, mends the dead items, and waits until
// everything is paid.
func (d *standingDemo) disturb(ctx context.Context, ordered chan error) error {
	var kept *hold
	var frozen *Process
	var thaw, looked time.Time
	killed, thawed := false, false
	defer func() {
		if kept != nil {
			close(kept.released)
		}
	}()
	release := func() {
		close(kept.released)
		kept = nil
	}
	return Until(ctx, 50*time.Millisecond, func() (_ bool, err error) {
		done := d.bank.count()
		d.run.Screen.Show(Progress{Done: done, Of: d.of(), Count: done, Unit: "payments", Tail: fmt.Sprintf("%d dead", d.dead)})
		select {
		case err := <-ordered:
			ordered = nil
			if err != nil {
				return false, err
			}
			all, err := d.plan(ctx)
			d.expected = len(all)
			return false, err
		default:
		}
		if time.Since(looked) > time.Second && done > d.of()/4 {
			looked = time.Now()
			if err := d.mend(ctx); err != nil {
				return false, err
			}
		}
		switch {
		case d.expected > 0 && done == d.expected && thawed:
			return d.settled(ctx)
		case kept == nil && (!killed && done > d.of()/5 || killed && !thawed && done > d.of()*2/5):
			kept = d.bank.keep()
		case frozen != nil && time.Now().After(thaw):
			release()
			frozen, thawed = nil, true
			d.run.Screen.Say("it goes on, past the end of its session")
		case kept != nil && frozen == nil && kept.isHeld():
			var worker *Process
			if worker, err = d.workerOf(kept.process); err != nil {
				return false, err
			}
			if !killed {
				worker.Kill()
				release()
				killed, err = true, worker.KillAndStart()
				d.run.Screen.Say("a worker killed with SIGKILL before the bank's answer, and started again")
				break
			}
			frozen, thaw, err = worker, time.Now().Add(2*standingLease), worker.Signal(syscall.SIGSTOP)
			// By a timer, because a process that is stopped may have the lock of the file, and then
			// each look at the store waits for it, too.
			time.AfterFunc(2*standingLease, func() { _ = worker.Signal(syscall.SIGCONT) }) // it has ended with the demo
			d.run.Screen.Say("another stopped with SIGSTOP before the bank's answer, for two leases")
		}
		return false, err
	})
}

func (h *hold) isHeld() bool {
	select {
	case <-h.held:
		return true
	default:
		return false
	}
}

// workerOf returns which worker a process is.
func (d *standingDemo) workerOf(process int) (*Process, error) {
	for _, p := range d.workers {
		if p.PID() == process {
			return p, nil
		}
	}
	return nil, fmt.Errorf("process %d asked the bank, and is no worker", process)
}

// setUp sets up orders.
func (d *standingDemo) setUp(ctx context.Context, all []Order) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, o := range all {
		group.Go(func() error {
			return d.service.Order(ctx, standing.Due{Order: o.ID, Account: o.Account, To: o.To, Cents: int64(o.Amount)}, dayOf(o.ID))
		})
	}
	return group.Wait()
}

// mend does the work of a person: it looks at the dead items, mends the cause, and retries them.
func (d *standingDemo) mend(ctx context.Context) error {
	items, err := d.service.Dead(ctx)
	if err != nil || len(items) == 0 {
		return err
	}
	var positions []messagestore.GlobalPosition
	for _, item := range items {
		var p standing.Pay
		if item.Message != nil && json.Unmarshal(item.Message.Data, &p) == nil && p.Order == d.bank.failing {
			d.bank.mend()
		}
		positions = append(positions, item.Position)
	}
	retried, err := d.service.Payments.Retry(ctx, "the account is there now", positions...)
	if errors.Is(err, sqlite.ErrBusy) {
		return nil // a process that was stopped has the file: the next look tries again
	}
	if err == nil && len(retried) > 0 {
		d.dead += len(retried)
		d.run.Screen.Say(fmt.Sprintf("%d payment was dead, which held its account: mended, and retried", len(retried)))
	}
	return err
}

// settled reports whether nothing is open.
func (d *standingDemo) settled(ctx context.Context) (bool, error) {
	for _, q := range []*queue.Queue{d.service.Due, d.service.Payments} {
		s, err := q.Status(ctx)
		if err != nil || s.Waiting || s.Out+s.Later+s.Held+s.Dead > 0 {
			return false, err
		}
	}
	return true, nil
}
