package demo

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// The sizes and the times of the demo of payments.
const (
	apiServers = 3
	apiClients = 4

	review    = 25 * time.Millisecond // of a payment, before it is ordered
	bankDelay = 5 * time.Millisecond

	// paused is the server that is stopped. It is not killed, because its calls should arrive, but
	// too late.
	paused = apiServers - 1
)

type paymentsGrammar struct {
	Demo  paymentsDemo  `cmd:"" help:"Run the API under fire and compare the books."`
	Serve paymentsServe `cmd:"" hidden:""`
	Bank  paymentsBank  `cmd:"" hidden:""`
}

// Payments runs a command of examples/payments and returns the exit code: see [Main].
func Payments(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Main(ctx, &paymentsGrammar{}, "payments",
		"The payments API, which pays once, however often it is asked to. A store is postgres://... or sqlite:FILE.", args, stdout, stderr)
}

// A paymentsDemo is the command, and one run of it.
type paymentsDemo struct {
	Flags
	OrderFlags
	Kills int           `default:"20" placeholder:"N" help:"Kill servers so many times, after equal shares of the work. Defaults to ${default}."`
	Lease time.Duration `default:"2s" placeholder:"TIME" help:"The lease of a payment: those of a server that was killed wait for so long. Defaults to ${default}."`

	plan      *paymentPlan
	run       *Run
	addresses []string // of the servers, and then of the bank
	servers   [apiServers]*Process
	bankLog   string
	killed    int
	stopped   bool               // a server is
	held      []payments.Payment // that the stopped server was about to order

	done, sent, cut, replayed, busy, failed atomic.Int64

	mu      sync.Mutex
	answers []answer
}

// Help is printed below the command's usage.
func (*paymentsDemo) Help() string {
	return `It starts three servers of the API and a bank as processes on this machine. Four clients send each payment one to six times, to any server, and hang up early. A server is killed with SIGKILL now and then and started again; one is stopped with SIGSTOP just before it calls the bank, and goes on when others have made its payments.

Then it compares the file with the payments table, the bank's log, the intents in the store and the answers that the clients got, and tells what became of one payment. The exit code is 0 if all agree, and 1 if not.`
}

// Run sends every payment to the API several times, kills servers, stops one, and compares the
// books.
func (d *paymentsDemo) Run(ctx context.Context, o *Output) error {
	orders, seed, err := d.Read()
	if err != nil {
		return err
	}
	d.plan = newPaymentPlan(orders, seed)
	fmt.Fprintf(o.Stdout, "%s payments over HTTP, each sent 1 to %d times by %d clients to any of %d servers,\n%s with another amount once more: %s requests, and the repeats of those cut off (seed %d)\n",
		Count(len(d.plan.all)), maxCopies, apiClients, apiServers, Count(d.plan.planted), Count(d.plan.sent+d.plan.planted), seed)
	return d.Play(ctx, o, payments.Intents, d)
}

// Work implements [Show].
func (d *paymentsDemo) Work(ctx context.Context, r *Run) error {
	d.run, d.bankLog = r, filepath.Join(r.Dir, "bank.jsonl")
	// Each server has as many connections as it keeps busy: more wait for each other in the
	// database, and each costs a process there whenever a server was killed.
	r.Set("pool_max_conns", "6")
	api, err := newAPI(r.Store, r.URL, payments.Config{})
	if err != nil {
		return err
	}
	if err := api.CreateTable(ctx); err != nil {
		return err
	}
	if err := d.start(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	var running atomic.Int64
	running.Store(apiClients)
	for i := range apiClients {
		group.Go(func() error {
			defer running.Add(-1)
			return d.client(ctx, i)
		})
	}
	group.Go(func() error {
		return Until(ctx, 100*time.Millisecond, func() (bool, error) {
			asked := running.Load() == 0
			err := d.disturb(ctx, !asked)
			return asked && !d.stopped, err
		})
	})
	return group.Wait()
}

// start starts the bank and the servers.
func (d *paymentsDemo) start() (err error) {
	var sockets [apiServers + 1]*os.File
	for i := range sockets {
		var address string
		if sockets[i], address, err = d.run.Listen(); err != nil {
			return err
		}
		d.addresses = append(d.addresses, address)
	}
	if _, err := d.run.Start("the bank", sockets[apiServers], "bank", "--log", d.bankLog); err != nil {
		return err
	}
	for i := range d.servers {
		name := fmt.Sprintf("server-%d", i+1)
		args := []string{"serve", "--bank", d.addresses[apiServers], "--name", name, "--lease", d.Lease.String()}
		if i == paused {
			args = append(args, "--hold-after", strconv.Itoa(len(d.plan.all)/3/apiServers))
		}
		if d.servers[i], err = d.run.Start(name, sockets[i], args...); err != nil {
			return err
		}
	}
	return nil
}

// disturb shows the progress, kills a server after each share of the work, and stops one until
// others have made its payments.
func (d *paymentsDemo) disturb(ctx context.Context, running bool) (err error) {
	done := int(d.done.Load())
	if running {
		d.run.Screen.Show(Progress{
			Done: done, Of: d.plan.tasks, Count: int(d.sent.Load()), Unit: "req",
			Tail: fmt.Sprintf("%s replays, %s cut off, %d killed", Count(int(d.replayed.Load())), Count(int(d.cut.Load())), d.killed),
		})
	}
	kill := running && d.killed < d.Kills && done*(d.Kills+1) >= d.plan.tasks*(d.killed+1)
	switch {
	case running && len(d.held) == 0: // the clients of payments that are held ask until they have an answer
		if err := d.stopServer(ctx); err != nil {
			return fmt.Errorf("stop a server: %w", err)
		}
		kill = kill || d.stopped && d.killed < d.Kills
	case d.stopped:
		made, err := d.confirmed(ctx)
		if err != nil || !made {
			return err
		}
		if err := d.servers[paused].Signal(syscall.SIGCONT); err != nil {
			return err
		}
		d.stopped = false
		d.run.Screen.Say(fmt.Sprintf("server %d goes on, and makes its calls", paused+1))
		if _, err := d.reviews(ctx, http.MethodDelete); err != nil {
			return err
		}
	}
	if kill {
		err = d.servers[d.killed%paused].KillAndStart()
		d.killed++
	}
	return err
}

// stopServer stops the server that holds its reviews, if there are some: it has looked at the
// leases of payments, and has not ordered them yet, which are the calls that a token is for.
func (d *paymentsDemo) stopServer(ctx context.Context) (err error) {
	if d.held, err = d.reviews(ctx, http.MethodGet); err != nil || len(d.held) == 0 {
		return err
	}
	stop := func() error {
		if err := d.servers[paused].Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return d.servers[paused].AwaitStop(ctx)
	}
	// While it is stopped no process writes to a store in a file: it would keep the others from
	// writing. In PostgreSQL no transaction does.
	if txs, none := messagestore.Transactional[*sql.Tx](d.run.Store); none != nil {
		err = stop()
	} else {
		_, err = txs.Transact(ctx, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) { return nil, stop() })
	}
	d.stopped = err == nil
	d.run.Screen.Say(fmt.Sprintf("server %d stopped with SIGSTOP, about to make %s calls to the bank", paused+1, Count(len(d.held))))
	return err
}

// reviews asks the server that holds its reviews for the payments.
func (d *paymentsDemo) reviews(ctx context.Context, method string) (held []payments.Payment, err error) {
	a, err := Call(ctx, http.DefaultClient, method, d.addresses[paused]+reviewsPath, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for the reviews of server %d: %w", paused+1, err)
	}
	return held, json.Unmarshal(a.Body, &held)
}

// confirmed reports whether the payments that are held have been made.
func (d *paymentsDemo) confirmed(ctx context.Context) (bool, error) {
	intents, err := intent.New(d.run.Store, payments.Intents, nil)
	if err != nil {
		return false, err
	}
	for _, p := range d.held {
		stream, err := intents.Stream(p.Account, p.ID)
		if err != nil {
			return false, err
		}
		last, err := d.run.Store.Last(ctx, stream)
		if err != nil || last == nil || last.Type != intentlog.TypeConfirmed {
			return false, err
		}
	}
	return true, nil
}

// An answer is a client's, for good.
type answer struct {
	Key     string
	Planted bool // the request had another amount
	Status  int
	Sum     string // of status, header and body
}

// client has one client send its part of the plan, with some payments under way. On PostgreSQL two
// cores are busy with fewer, and more would only be cut off more often; on SQLite the servers wait
// for one lock.
func (d *paymentsDemo) client(ctx context.Context, number int) error {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	defer c.CloseIdleConnections()
	tasks, ctx := errgroup.WithContext(ctx)
	if tasks.SetLimit(8); d.run.OnSQLite() {
		tasks.SetLimit(12)
	}
	for i, task := range d.plan.of[number] {
		random := rand.New(rand.NewPCG(d.plan.seed, uint64(i*apiClients+number))) //nolint:gosec // patience is no secret
		tasks.Go(func() error {
			err := d.do(ctx, c, random, task)
			d.done.Add(1)
			return err
		})
	}
	return tasks.Wait()
}

// do sends several copies of a payment at once, and then further copies one after the other until a
// request gets a final answer.
func (d *paymentsDemo) do(ctx context.Context, client *http.Client, random *rand.Rand, task paymentTask) error {
	answered := make(chan bool, task.copies)
	ask := func(payment payments.Payment, planted bool, tries int) func() bool {
		server, patience := d.addresses[random.IntN(apiServers)], time.Duration(5+random.IntN(296))*time.Millisecond
		patience <<= min(tries/4, 6) // on a machine on which no answer comes in that time, the payment would never be made
		return func() bool { return d.ask(ctx, client, server, patience, payment, planted) }
	}
	for range task.copies {
		first := ask(task.Payment, false, 0)
		go func() { answered <- first() }()
	}
	good := false
	for range task.copies {
		good = <-answered || good
	}
	again := func() bool {
		Wait(ctx, time.Duration(20+random.IntN(80))*time.Millisecond)
		return ctx.Err() == nil
	}
	for tries := 1; !good && again(); tries++ {
		good = ask(task.Payment, false, tries)()
	}
	other := task.Payment
	other.Amount++
	for tries := 0; task.plant && !ask(other, true, tries)() && again(); {
		tries++
	}
	return context.Cause(ctx)
}

// ask sends one request, and hangs up after some time. It reports whether the answer is one for
// good.
func (d *paymentsDemo) ask(ctx context.Context, client *http.Client, server string, patience time.Duration, payment payments.Payment, planted bool) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.sent.Add(1)
	header := map[string]string{strings.ToLower(idempotency.Header): fmt.Sprintf("%q", payment.ID)} // which net/http may not repeat by itself
	a, err := Call(ctx, client, http.MethodPost, server+"/accounts/"+url.PathEscape(payment.Account)+"/payments", header, payment)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		d.cut.Add(1)
		return false
	case err != nil, a.Status >= 500:
		d.failed.Add(1)
		return false
	case a.Status == http.StatusConflict:
		d.busy.Add(1)
		return false
	}
	if a.Header.Get(idempotency.Replayed) != "" {
		d.replayed.Add(1)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %q %q %q", a.Status, a.Header.Get("Content-Type"), a.Header.Get("Location"), a.Body))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers = append(d.answers, answer{payment.ID, planted, a.Status, hex.EncodeToString(sum[:8])})
	return true
}

type paymentsServe struct {
	Store     string `env:"DIBS_STORE"`
	Bank      string
	Name      string
	Lease     time.Duration
	HoldAfter int `default:"-1"` // reviews
}

// Run serves the API on the socket that it was started with.
func (c *paymentsServe) Run(ctx context.Context, o *Output) error {
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()
	under := &reviews{left: c.HoldAfter, goOn: make(chan struct{})}
	if c.HoldAfter < 0 {
		close(under.goOn)
	}
	api, err := newAPI(store, c.Store, payments.Config{
		Bank: c.Bank, Name: c.Name, TTL: c.Lease, Review: under.review, Logger: logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.WarnLevel)),
	})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc("GET "+reviewsPath, under.list)
	mux.HandleFunc("DELETE "+reviewsPath, func(w http.ResponseWriter, r *http.Request) {
		close(under.goOn)
		under.list(w, r)
	})
	return Serve(ctx, mux)
}

// reviewsPath is the demo's own: the reviews that a server holds, until they are deleted.
const reviewsPath = "/demo/reviews"

// reviews are the reviews of a server. After some it holds all, so that the demo can stop it in the
// middle of them.
type reviews struct {
	goOn chan struct{} // closed if no review is held any more

	mu   sync.Mutex
	left int // reviews that are not held
	held []payments.Payment
}

// review takes its time, be the lease lost meanwhile or not.
func (r *reviews) review(_ context.Context, p payments.Payment) error {
	<-time.After(review)
	r.mu.Lock()
	r.left--
	holds := r.left < 0
	select {
	case <-r.goOn:
		holds = false
	default:
	}
	if holds {
		r.held = append(r.held, p)
	}
	r.mu.Unlock()
	if holds {
		<-r.goOn
	}
	return nil
}

// list answers with the payments that are held.
func (r *reviews) list(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(r.held) // the demo asks again
}

// An api is the payments API over either database.
type api interface {
	http.Handler
	CreateTable(ctx context.Context) error
}

func newAPI(store *messagestore.Store, storeURL string, config payments.Config) (api, error) {
	if txs, err := messagestore.Transactional[*sql.Tx](store); err == nil {
		return payments.New(txs, func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		}, config)
	}
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		return nil, err
	}
	config.Table = Schema(storeURL) + "payments"
	return payments.New(txs, func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	}, config)
}

type paymentsBank struct{ Log string }

// Run serves the bank on the socket that it was started with.
func (c *paymentsBank) Run(ctx context.Context) (err error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	return Serve(ctx, payments.NewBank(log, bankDelay))
}
