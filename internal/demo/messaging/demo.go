package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// A messagingDemo is the command, and one run of it.
type messagingDemo struct {
	demo.Flags
	demo.OrderFlags
	Kills int           `default:"24" placeholder:"N" help:"Kill processes so many times, after equal shares of the work. Defaults to ${default}."`
	Away  time.Duration `default:"3s" placeholder:"TIME" help:"JetStream is gone for this time. Defaults to ${default}."`

	run       *demo.Run
	plan      *plan
	seed      uint64
	sockets   [2]*os.File // of the receiver and of the bank
	addresses [2]string
	port      int // of JetStream
	processes [processes]*demo.Process
	broker    *demo.Process
	killed    int
	gone      int       // times that JetStream was
	back      time.Time // when it is to be again; zero while it is there
	counted   messagestore.GlobalPosition

	ended  atomic.Int64 // sagas
	sent   atomic.Int64 // requests
	again  atomic.Int64 // requests after a request that was cut off
	turned atomic.Int64 // planted ones that were refused

	mu       sync.Mutex
	accepted map[string]bool // orders
	odd      []string        // answers that are not as planned
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

const (
	// ofBank is how many of the bank's orders take a minute or so on two cores.
	ofBank = 3000

	clients = 16

	// window is how many transfers are open at a time. If all were, each would wait for all others,
	// and the bank would be too late for most.
	window = 256
)

// Help is printed below the command's usage.
func (*messagingDemo) Help() string {
	return `It starts a receiver of orders, two runners of sagas, two relays, a bank and JetStream as processes on this machine. Each order is sent one to five times. A process of the first four kinds is killed with SIGKILL now and then and started again, and JetStream is gone for a while. Without a file it takes the first 3,000 orders.

Then it compares the accounts, the messages, the bank's ledger and the stream of JetStream, each by its own client only, and tells what became of one transfer that was undone. The exit code is 0 if all agree, and 1 if not.`
}

// Run transfers money under fire, and compares the books.
func (d *messagingDemo) Run(ctx context.Context, o *demo.Output) error {
	orders, seed, err := d.Read()
	if err != nil {
		return err
	}
	if d.Orders == "" {
		orders = orders[:ofBank]
	}
	d.seed, d.plan, d.accepted = seed, newPlan(orders, seed), map[string]bool{}
	fmt.Fprintf(o.Stdout, "%s orders to transfer money from %s accounts to a bank, each sent 1 to %d times, and %s with another amount once more:\n%s requests (seed %d). %d times a process is killed.\n",
		demo.Count(len(orders)), demo.Count(len(d.plan.balances)), maxCopies, demo.Count(d.plan.planted), demo.Count(len(d.plan.sendings)), seed, d.Kills)
	return d.Play(ctx, o, transfer.Accounts, d)
}

// Work implements [demo.Show].
func (d *messagingDemo) Work(ctx context.Context, r *demo.Run) error {
	d.run = r
	r.InSearchPath()
	s, store, err := open(ctx, r.URL, io.Discard)
	if err != nil {
		return err
	}
	err = d.openAccounts(ctx, s)
	if err := errors.Join(err, store.Close()); err != nil {
		return err
	}
	if err := d.startAll(ctx); err != nil {
		return err
	}
	sending, ctx := errgroup.WithContext(ctx)
	sending.Go(func() error { return d.send(ctx) })
	sending.Go(func() error {
		if err := demo.Until(ctx, 100*time.Millisecond, func() (bool, error) { return d.torment(ctx) }); err != nil {
			return err
		}
		return d.settle(ctx)
	})
	return sending.Wait()
}

func (d *messagingDemo) openAccounts(ctx context.Context, s service) error {
	if err := s.CreateTable(ctx); err != nil {
		return err
	}
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(d.plan.balances)), 100) { // so many streams a write may have
		some := map[string]int64{}
		for _, id := range ids {
			some[id] = d.plan.balances[id]
		}
		if err := s.OpenAccounts(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

func (d *messagingDemo) ledger() string { return filepath.Join(d.run.Dir, "bank.db") }

func (d *messagingDemo) brokerURL() string { return "nats://127.0.0.1:" + strconv.Itoa(d.port) }

func (d *messagingDemo) startAll(ctx context.Context) (err error) {
	for i := range d.sockets {
		if d.sockets[i], d.addresses[i], err = d.run.Listen(); err != nil {
			return err
		}
	}
	if d.port, err = freePort(); err != nil {
		return err
	}
	d.broker, err = d.run.Start("JetStream", nil, "broker", "--dir", filepath.Join(d.run.Dir, "jetstream"), "--port", strconv.Itoa(d.port))
	if err != nil {
		return err
	}
	d.broker.Last = true
	if err := d.makeStream(ctx); err != nil {
		return err
	}
	for i := range d.processes {
		args, socket := []string{"go"}, (*os.File)(nil)
		switch i {
		case receiver:
			args, socket = []string{"serve"}, d.sockets[0]
		case theBank:
			args, socket = []string{"bank", "--ledger", d.ledger(), "--webhook", d.addresses[0] + "/webhooks/bank", "--seed", strconv.FormatUint(d.seed, 10)}, d.sockets[1]
		case relay1, relay2:
			args = []string{"relay", "--bank", d.addresses[1], "--broker", d.brokerURL()}
		}
		if d.processes[i], err = d.run.Start(args[0], socket, args...); err != nil {
			return err
		}
	}
	return nil
}

// freePort returns a port without a listener. JetStream opens its own, twice. The system gives no
// such port to a connection, as it might any other while JetStream is gone.
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

// makeStream makes the stream of accounts. It forgets ids soon: that each message is there once is
// not due to them.
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
	return demo.Until(ctx, 20*time.Millisecond, func() (bool, error) { // it is starting
		_, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: stream, Subjects: []string{string(transfer.Accounts) + ".*"}, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond,
		})
		return err == nil, nil
	})
}

// torment kills a process after each share of the work, and has JetStream gone once, until all
// transfers have ended.
func (d *messagingDemo) torment(ctx context.Context) (done bool, err error) {
	page, err := d.run.Store.ReadCategoryPage(ctx, messagestore.CategoryQuery{
		Category: "transfer:saga", From: d.counted, Limit: messagestore.MaxReadMessages,
		Filter: messagestore.Filter{Types: []string{"Completed", "Compensated", "Parked"}},
	})
	if err != nil {
		return false, err
	}
	for _, m := range page.Messages {
		if m.Type == "Parked" {
			return false, fmt.Errorf("%s is parked: %s", m.Stream, m.Data)
		}
		d.ended.Add(1)
	}
	d.counted = page.Next
	ended, all := int(d.ended.Load()), len(d.plan.orders)
	d.run.Screen.Show(demo.Progress{
		Done: ended, Of: all, Count: int(d.sent.Load()), Unit: "req", Tail: fmt.Sprintf("%d killed, %s sent again", d.killed, demo.Count(int(d.again.Load()))),
	})
	switch {
	case !d.back.IsZero() && time.Now().After(d.back):
		d.back = time.Time{}
		d.run.Screen.Say("JetStream is started again")
		return false, d.broker.Restart()
	case ended == all && d.gone > 0 && d.back.IsZero() && d.killed >= d.Kills:
		return true, nil
	case d.killed < d.Kills && ended*(d.Kills+1) >= all*(d.killed+1):
		err = d.processes[d.killed%processes].KillAndStart()
		d.killed++
	case d.gone == 0 && ended >= all/3:
		err = d.broker.Stop()
		d.run.Screen.Say(fmt.Sprintf("JetStream is stopped, for %v", d.Away))
		d.gone, d.back = 1, time.Now().Add(d.Away)
	}
	return false, err
}

// settle waits until the relays have nothing to send, and the bank nothing to tell.
func (d *messagingDemo) settle(ctx context.Context) error {
	ledger, err := bank.Open(ctx, d.ledger())
	if err != nil {
		return err
	}
	defer ledger.Close()
	return demo.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		left, err := left(ctx, d.run.Store, ledger)
		return left == 0, err
	})
}

// left counts the messages and webhooks that are still to be sent.
func left(ctx context.Context, store *messagestore.Store, ledger *sql.DB) (n int64, err error) {
	if err := ledger.QueryRowContext(ctx, "select count(*) from webhooks where copies > 0").Scan(&n); err != nil {
		return 0, err
	}
	relays, err := queue.All(ctx, store)
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

// send sends the orders, with some transfers open at a time, until each copy has a final answer.
func (d *messagingDemo) send(ctx context.Context) error {
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	sending, ctx := errgroup.WithContext(ctx)
	sending.SetLimit(clients)
	for _, s := range d.plan.sendings {
		for s.at-int(d.ended.Load()) > window && ctx.Err() == nil {
			demo.Wait(ctx, 10*time.Millisecond)
		}
		if ctx.Err() != nil {
			break
		}
		sending.Go(func() error { return d.sendOne(ctx, client, s) })
	}
	return sending.Wait()
}

// sendOne sends a copy of an order until there is an answer for good. An order that reuses a key
// waits for the other.
func (d *messagingDemo) sendOne(ctx context.Context, client *http.Client, s sending) error {
	key, want := s.ID, http.StatusAccepted
	if s.ID = ""; s.planted {
		want = http.StatusUnprocessableEntity
		err := demo.Until(ctx, 10*time.Millisecond, func() (bool, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.accepted[key], nil
		})
		if err != nil {
			return err
		}
	}
	return demo.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		d.sent.Add(1)
		// net/http does not know this name, so it does not repeat the request.
		a, err := demo.Call(ctx, client, http.MethodPost, d.addresses[0]+"/transfers", map[string]string{"idempotency-key": key}, s.Transfer)
		if err != nil || a.Status >= 500 { // it may have been taken
			d.again.Add(1)
			return false, nil
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case a.Status != want:
			d.odd = append(d.odd, fmt.Sprintf("the answer to order %s is %d", key, a.Status))
		case s.planted:
			d.turned.Add(1)
		default:
			d.accepted[key] = true
		}
		return true, nil
	})
}
