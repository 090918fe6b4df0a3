package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

type demoCommand struct {
	Store  string        `env:"DIBS_STORE" placeholder:"URL" help:"The store. Defaults to SQLite in a throwaway folder."`
	Orders string        `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to the first 3,000 orders of a Czech bank."`
	Seed   uint64        `placeholder:"N" help:"Draw copies and the moods of the bank from this. Defaults to the time."`
	Kills  int           `default:"24" placeholder:"N" help:"Kill processes so many times, after equal shares of the work. Defaults to ${default}."`
	Away   time.Duration `default:"3s" placeholder:"TIME" help:"JetStream is gone for this time. Defaults to ${default}."`
	stage.Limit
}

// Help is printed below the command's usage.
func (demoCommand) Help() string {
	return `It starts a receiver of orders, two runners of sagas, two relays, a bank and JetStream as processes on this machine. Each order is sent one to five times. A process of the first four kinds is killed with SIGKILL now and then and started again, and JetStream is gone for a while.

Then it compares the accounts, the messages, the bank's ledger and the stream of JetStream, each by its own client only, and tells what became of one transfer that was undone. The exit code is 0 if all agree, and 1 if not. If the limit ends first, the clients finish the requests that they have begun, the orders that were accepted are carried out or undone, and compared, and the exit code is 3 if they agree.`
}

// Run transfers money under fire, and compares the books.
func (c *demoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	orders, err := demo.ReadOrders(c.Orders)
	if err != nil {
		return err
	}
	if c.Orders == "" {
		orders = orders[:ofBank]
	}
	dir, err := os.MkdirTemp("", "dibs-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	preparing, cancel := c.Preparing(ctx)
	defer cancel()
	where, cleanUp, err := stage.PrepareStore(preparing, c.Store, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	seed := cmp.Or(c.Seed, uint64(time.Now().UnixNano())) //nolint:gosec // any bits will do
	d := &messagingDemo{
		demoCommand: *c, url: stage.WithSearchPath(where), dir: dir, out: o.Stdout, seed: seed,
		plan: newPlan(orders, seed), started: time.Now(), begun: map[string]bool{},
	}
	return d.run(ctx)
}

// The processes that are killed, in their order.
const (
	receiver = iota
	runner1
	relay1
	theBank
	runner2
	relay2
	processes
)

var names = [processes]string{"the receiver", "runner 1", "relay 1", "the bank", "runner 2", "relay 2"}

// A messagingDemo is one run.
type messagingDemo struct {
	demoCommand
	url, dir string
	seed     uint64
	out      io.Writer
	plan     *plan
	started  time.Time
	screen   *stage.Screen

	store     *messagestore.Store // to see how far the run is; the verdict does without
	sockets   [2]*os.File         // of the receiver and of the bank: a process that was killed keeps its address
	addresses [2]string
	port      int // of JetStream
	processes [processes]*stage.Process
	broker    *stage.Process
	kills     int
	gone      bool // JetStream was
	away      bool // it is
	counted   messagestore.GlobalPosition

	ended  atomic.Int64 // sagas
	parked atomic.Int64
	sent   atomic.Int64 // requests
	again  atomic.Int64 // requests after a request that was cut off
	wrong  atomic.Int64 // answers that are not as planned
	turned atomic.Int64 // planted ones that were refused

	planted atomic.Int64 // that were begun

	mu       sync.Mutex
	begun    map[string]bool // orders, and whether one was accepted
	accepted int
	odd      []string // answers
}

const (
	// ofBank is how many of the bank's orders take a minute or so on two cores.
	ofBank = 3000

	clients = 16

	// window is how many transfers are open at a time. If all were, each would wait for all others, and the bank would
	// be too late for most.
	window = 256

	stopLimit = 2 * time.Minute // for a process that is told to end
)

func (d *messagingDemo) run(ctx context.Context) (err error) {
	fmt.Fprintf(d.out, "%s orders to transfer money from %s accounts to a bank, each sent 1 to %d times, and %s with another amount once more:\n%s requests (seed %d). %d times a process is killed.\n",
		stage.Count(len(d.plan.Orders)), stage.Count(len(d.plan.Balances)), maxCopies, stage.Count(d.plan.Planted),
		stage.Count(d.plan.Sent+d.plan.Planted), d.seed, d.Kills)
	s, store, err := open(ctx, d.url, io.Discard)
	if err != nil {
		return err
	}
	d.store = store
	defer func() { err = errors.Join(err, store.Close()) }()
	preparing, cancelPreparing := d.Preparing(ctx)
	defer cancelPreparing()
	if err := d.prepare(preparing, s); err != nil {
		return stage.Cause(preparing, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.screen = stage.NewScreen(d.out)
	defer d.screen.Done()
	defer d.endAll()
	if err := d.startAll(ctx, cancel); err != nil {
		return stage.Cause(ctx, err)
	}
	asking, breakOff := context.WithCancel(ctx)
	var failed error
	sent := make(chan struct{}) // closed when the clients have ended
	defer func() { <-sent }()
	defer breakOff()
	return d.Limit.Run(ctx, d.screen, stage.Work{
		Do: func(ctx context.Context) error {
			go func() {
				failed = d.send(ctx, asking)
				close(sent)
			}()
			if err := d.torment(ctx, cancel); err != nil {
				return err
			}
			if <-sent; failed != nil {
				return failed
			}
			d.show()
			return d.settle(ctx)
		},
		Settle: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, breakOff)
			defer stop()
			<-sent
			return d.finish(ctx, cancel)
		},
		Stop: d.stopAll, Verdict: d.verdict,
	})
}

// finish waits until every order that was accepted is carried out or undone.
func (d *messagingDemo) finish(ctx context.Context, cancel context.CancelCauseFunc) error {
	if d.away {
		if err := d.bringBack(cancel); err != nil {
			return err
		}
	}
	for int(d.ended.Load()) < d.accepted {
		if err := d.count(ctx); err != nil {
			return err
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return d.settle(ctx)
}

// prepare opens the accounts.
func (d *messagingDemo) prepare(ctx context.Context, s service) error {
	first, err := d.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: transfer.Accounts, Limit: 1})
	if err != nil {
		return err
	}
	if len(first.Messages) > 0 {
		return fmt.Errorf("%w: the store holds accounts already, and the demo counts on an empty one", stage.ErrUsage)
	}
	if err := s.CreateTable(ctx); err != nil {
		return err
	}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(d.plan.Balances)), 100) { // so many streams a write may have
		some := map[string]int64{}
		for _, id := range ids {
			some[id] = d.plan.Balances[id]
		}
		if err := s.OpenAccounts(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

func (d *messagingDemo) ledger() string { return filepath.Join(d.dir, "bank.db") }

func (d *messagingDemo) brokerURL() string { return "nats://127.0.0.1:" + strconv.Itoa(d.port) }

func (d *messagingDemo) startAll(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	for i := range d.sockets {
		if d.sockets[i], d.addresses[i], err = stage.Listen(); err != nil {
			return err
		}
	}
	if d.port, err = freePort(); err != nil {
		return err
	}
	if err := d.startBroker(cancel); err != nil {
		return err
	}
	if err := d.makeStream(ctx); err != nil {
		return err
	}
	for i := range d.processes {
		if err := d.start(i, cancel); err != nil {
			return err
		}
	}
	return nil
}

// freePort returns a port without a listener. JetStream opens its own, twice. The system gives no such port to a
// connection, as it might any other while JetStream is gone.
func freePort() (port int, err error) {
	const lowest, most, attempts = 10_000, 30_000, 100
	for range attempts {
		port = lowest + rand.IntN(most-lowest) //nolint:gosec // any port will do
		var listener net.Listener
		if listener, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil { //nolint:noctx // it is closed at once
			return port, listener.Close()
		}
	}
	return 0, err
}

func (d *messagingDemo) startBroker(cancel context.CancelCauseFunc) (err error) {
	d.broker, err = stage.StartProcess("JetStream", d.url, cancel, nil, "broker", "--dir", filepath.Join(d.dir, "jetstream"), "--port", strconv.Itoa(d.port))
	return err
}

// makeStream makes the stream of accounts. It forgets ids soon: that each message is there once is not due to them.
func (d *messagingDemo) makeStream(ctx context.Context) error {
	conn, err := connect(d.brokerURL())
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	for {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{string(transfer.Accounts) + ".*"}, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond,
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, 20*time.Millisecond) // it is starting
	}
}

// start starts a process in the place of an ended process.
func (d *messagingDemo) start(i int, cancel context.CancelCauseFunc) (err error) {
	args, socket := []string{"go"}, -1
	switch i {
	case receiver:
		args, socket = []string{"serve"}, 0
	case theBank:
		args, socket = []string{"bank", "--ledger", d.ledger(), "--webhook", d.addresses[0] + "/webhooks/bank", "--seed", strconv.FormatUint(d.seed, 10)}, 1
	case relay1, relay2:
		args = []string{"relay", "--bank", d.addresses[1], "--broker", d.brokerURL()}
	}
	d.processes[i], err = stage.StartProcess(names[i], d.url, cancel, func(c *exec.Cmd) error {
		if socket >= 0 {
			c.ExtraFiles = []*os.File{d.sockets[socket]}
		}
		return nil
	}, args...)
	return err
}

// kill ends a process as a power cut would, and starts another in its place.
func (d *messagingDemo) kill(i int, cancel context.CancelCauseFunc) error {
	d.processes[i].End()
	d.kills++
	return d.start(i, cancel)
}

// stopAll stops all processes but JetStream, which the verdict asks.
func (d *messagingDemo) stopAll() error {
	for _, p := range d.processes {
		if err := p.Stop(stopLimit); err != nil {
			return err
		}
	}
	return nil
}

func (d *messagingDemo) endAll() {
	for _, p := range d.processes {
		p.End()
	}
	d.broker.End()
	for _, f := range d.sockets {
		if f != nil {
			_ = f.Close() // the processes that had it are gone
		}
	}
}

// torment kills a process after each share of the work, and has JetStream gone once, until all transfers have ended.
func (d *messagingDemo) torment(ctx context.Context, cancel context.CancelCauseFunc) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var back <-chan time.Time
	for {
		if err := d.count(ctx); err != nil {
			return err
		}
		d.show()
		ended, all := int(d.ended.Load()), len(d.plan.Orders)
		switch {
		case ended == all && d.gone && !d.away && d.kills >= d.Kills:
			return nil
		case d.kills < d.Kills && ended*(d.Kills+1) >= all*(d.kills+1):
			if err := d.kill(d.kills%processes, cancel); err != nil {
				return err
			}
		case !d.gone && ended >= all/3:
			if err := d.broker.Stop(stopLimit); err != nil {
				return err
			}
			d.screen.Say(fmt.Sprintf("JetStream is stopped, for %v", d.Away))
			d.gone, d.away, back = true, true, time.After(d.Away)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		case <-back:
			if err := d.bringBack(cancel); err != nil {
				return err
			}
		}
	}
}

func (d *messagingDemo) bringBack(cancel context.CancelCauseFunc) error {
	if err := d.startBroker(cancel); err != nil {
		return err
	}
	d.away = false
	d.screen.Say("JetStream is started again")
	return nil
}

// count counts the transfers that have ended since it counted last.
func (d *messagingDemo) count(ctx context.Context) error {
	page, err := d.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{
		Category: "transfer:saga", From: d.counted, Limit: messagestore.MaxReadMessages,
		Filter: messagestore.Filter{Types: []string{"Completed", "Compensated", "Parked"}},
	})
	if err != nil {
		return err
	}
	for _, m := range page.Messages {
		if m.Type == "Parked" {
			d.parked.Add(1)
			return fmt.Errorf("%s is parked: %s", m.Stream, m.Data)
		}
		d.ended.Add(1)
	}
	d.counted = page.Next
	return nil
}

func (d *messagingDemo) show() {
	d.screen.Show(stage.Progress{
		Done: int(d.ended.Load()), Of: len(d.plan.Orders), Elapsed: time.Since(d.started), Written: int(d.sent.Load()),
		Tail: fmt.Sprintf("%d killed, %s sent again", d.kills, stage.Count(int(d.again.Load()))),
	})
}

// settle waits until the relays have nothing to send, and the bank nothing to tell.
func (d *messagingDemo) settle(ctx context.Context) error {
	ledger, err := bank.Open(ctx, d.ledger())
	if err != nil {
		return err
	}
	defer ledger.Close()
	for {
		left, err := d.left(ctx, ledger)
		if err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// left counts the messages and webhooks that have to be sent.
func (d *messagingDemo) left(ctx context.Context, ledger *sql.DB) (n int64, err error) {
	if err := ledger.QueryRowContext(ctx, "select count(*) from webhooks where copies > 0").Scan(&n); err != nil {
		return 0, err
	}
	driver, err := d.store.Driver()
	if err != nil {
		return 0, err
	}
	queues, ok := driver.(queuing.Driver)
	if !ok {
		return 0, messagestore.ErrNotSupported
	}
	relays, err := queues.Queues(ctx)
	if err != nil {
		return 0, err
	}
	n += int64(max(0, 2-len(relays))) // that have not begun
	for _, relay := range relays {
		n += relay.Out + relay.Later + relay.Held + relay.Dead
		if relay.Waiting {
			n++
		}
	}
	return n, nil
}

// send sends the orders, with some transfers open at a time, until each copy has an answer for good. When
// ctx ends it sends no other; transfers that were begun go on until asking ends.
func (d *messagingDemo) send(ctx, asking context.Context) error {
	next := make(chan sending)
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	var sending sync.WaitGroup
	for range clients {
		sending.Go(func() {
			for s := range next {
				d.sendOne(asking, client, s)
			}
		})
	}
	defer func() {
		close(next)
		sending.Wait()
	}()
	for _, s := range d.plan.sendings {
		for s.At-int(d.ended.Load()) > window && ctx.Err() == nil {
			pause(ctx, 10*time.Millisecond)
		}
		select {
		case next <- s:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// sendOne sends a copy of an order until there is an answer for good.
func (d *messagingDemo) sendOne(ctx context.Context, client *http.Client, s sending) {
	want := http.StatusAccepted
	if s.Planted {
		want = http.StatusUnprocessableEntity
		for !d.isAccepted(s.ID) {
			if pause(ctx, 10*time.Millisecond); ctx.Err() != nil {
				return
			}
		}
		d.planted.Add(1)
	} else {
		d.begin(s.ID)
	}
	for ; ctx.Err() == nil; d.again.Add(1) {
		d.sent.Add(1)
		status, err := post(ctx, client, d.addresses[0]+"/transfers", s.Transfer)
		switch {
		case err != nil || status >= 500: // it may have been taken
			pause(ctx, 50*time.Millisecond)
			continue
		case status != want:
			d.wrong.Add(1)
			d.mu.Lock()
			d.odd = append(d.odd, fmt.Sprintf("the answer to order %s is %d", s.ID, status))
			d.mu.Unlock()
		case s.Planted:
			d.turned.Add(1)
		default:
			d.accept(s.ID)
		}
		return
	}
}

func (d *messagingDemo) begin(order string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, before := d.begun[order]; !before {
		d.begun[order] = false
	}
}

func (d *messagingDemo) accept(order string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.begun[order] {
		d.begun[order] = true
		d.accepted++
	}
}

func (d *messagingDemo) isAccepted(order string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.begun[order]
}

func post(ctx context.Context, client *http.Client, url string, t transfer.Transfer) (status int, err error) {
	key := t.ID
	t.ID = ""
	body, err := json.Marshal(t)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header["idempotency-key"] = []string{key} // which net/http does not know, and so does not repeat by itself
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
