package demo

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	apiServers = 3
	apiClients = 4

	review    = 25 * time.Millisecond // of a payment, before it is ordered
	bankDelay = 5 * time.Millisecond

	// leaseTTL is short, so that a killed server's payments do not wait for long.
	leaseTTL = 2 * time.Second
)

type paymentsGrammar struct {
	Demo   paymentsDemoCommand   `cmd:"" help:"Run the API under fire and compare the books."`
	Serve  paymentsServeCommand  `cmd:"" hidden:""`
	Bank   paymentsBankCommand   `cmd:"" hidden:""`
	Client paymentsClientCommand `cmd:"" hidden:""`
}

// RunPayments is [Run] for the program of examples/payments.
func RunPayments(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return stage.Run(ctx, &paymentsGrammar{}, "payments",
		"The payments API, which pays once, however often it is asked to. A store is postgres://... or sqlite:FILE.",
		args, stdout, stderr)
}

type paymentsDemoCommand struct {
	Store     string        `env:"DIBS_STORE" placeholder:"URL" help:"The store. Defaults to SQLite in a throwaway folder."`
	Orders    string        `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to 4,334 orders of a Czech bank."`
	Seed      uint64        `placeholder:"N" help:"Draw repeats, servers and patience from this. Defaults to the time."`
	KillEvery time.Duration `default:"3s" placeholder:"TIME" help:"Kill a server this often. Defaults to ${default}."`
	Limit     time.Duration `default:"5m" placeholder:"TIME" help:"Give up after this time. Defaults to ${default}."`
}

// Help is printed below the command's usage.
func (paymentsDemoCommand) Help() string {
	return `It starts three servers of the API, a bank and four clients as processes on this machine. The clients send each payment one to six times, to any server, and hang up early. A server is killed with SIGKILL now and then and started again; one is stopped with SIGSTOP for three leases, just before it calls the bank, and goes on.

Then it compares the file with the payments table, the bank's log, the intents in the store and the answers that the clients got, and tells what became of one payment. The exit code is 0 if all agree, and 1 if not.`
}

// Run runs the API in processes, has it asked for every payment several times, kills servers,
// stops one, and compares the books.
func (c *paymentsDemoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	orders, err := ReadOrders(c.Orders)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("not done after %v", c.Limit))
	defer cancel()

	dir, err := os.MkdirTemp("", "dibs-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	where, cleanUp, err := stage.PrepareStore(ctx, c.Store, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	where = withConnections(where)

	seed := cmp.Or(c.Seed, uint64(time.Now().UnixNano())) // any bits will do
	d := &paymentsDemo{
		url: where, file: c.Orders, seed: seed, dir: dir, out: o.Stdout, killEvery: c.KillEvery,
		plan: newPaymentPlan(orders, seed), started: time.Now(),
	}
	return d.run(ctx)
}

// withConnections gives each server as many as it keeps busy: more wait for each other in the database,
// and each costs a process there whenever a server was killed.
func withConnections(storeURL string) string {
	const parameter = "pool_max_conns"
	u, err := url.Parse(storeURL)
	if err != nil || u.Scheme == "sqlite" || u.Query().Has(parameter) {
		return storeURL
	}
	query := u.Query()
	query.Set(parameter, "6")
	u.RawQuery = query.Encode()
	return u.String()
}

// A paymentsDemo is one run.
type paymentsDemo struct {
	url, file, dir string
	seed           uint64
	killEvery      time.Duration
	out            io.Writer
	plan           *paymentPlan
	started        time.Time

	books     books
	screen    *stage.Screen
	listeners []*os.File // of the servers, and then of the bank
	addresses []string
	servers   [apiServers]*stage.Process
	bank      *stage.Process
	clients   [apiClients]*stage.Process
	kills     int
	stopped   bool
	lost      int // leases, by the servers' logs

	mu      sync.Mutex
	reports [apiClients]clientReport
}

func (d *paymentsDemo) run(ctx context.Context) (err error) {
	fmt.Fprintf(d.out, "%s payments over HTTP, each sent 1 to 6 times by %d clients to any of %d servers,\n%s with another amount once more: %s requests, and the repeats of those cut off (seed %d)\n",
		stage.Count(len(d.plan.Payments)), apiClients, apiServers, stage.Count(d.plan.Planted), stage.Count(d.plan.Sent+d.plan.Planted), d.seed)
	if d.books, err = openBooks(ctx, d.url); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.books.close()) }()
	if err := d.books.prepare(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.screen = stage.NewScreen(d.out)
	defer d.screen.Done()
	defer d.closeListeners()
	defer d.killAll()
	if err := d.startAll(cancel); err != nil {
		return err
	}
	if err := d.watch(ctx, cancel); err != nil {
		return err
	}
	if err := d.stopAll(); err != nil {
		return err
	}
	d.screen.Done()
	return d.verdict(ctx)
}

// startAll starts the bank, the servers and the clients. The sockets are this process's, so that
// a server that was killed keeps its address.
func (d *paymentsDemo) startAll(cancel context.CancelCauseFunc) error {
	for range apiServers + 1 {
		file, address, err := stage.Listen()
		if err != nil {
			return err
		}
		d.listeners = append(d.listeners, file)
		d.addresses = append(d.addresses, address)
	}
	var err error
	if d.bank, err = stage.StartProcess("the bank", d.url, cancel, func(c *exec.Cmd) error {
		c.ExtraFiles = d.listeners[apiServers:]
		return nil
	}, "bank", "--log", d.bankLog()); err != nil {
		return err
	}
	for i := range d.servers {
		if err := d.startServer(i, cancel); err != nil {
			return err
		}
	}
	for i := range d.clients {
		if err := d.startClient(i, cancel); err != nil {
			return err
		}
	}
	return nil
}

func (d *paymentsDemo) bankLog() string { return filepath.Join(d.dir, "bank.jsonl") }

func (d *paymentsDemo) startServer(i int, cancel context.CancelCauseFunc) (err error) {
	d.servers[i], err = stage.StartProcess(fmt.Sprintf("server %d", i+1), d.url, cancel, func(c *exec.Cmd) error {
		c.ExtraFiles = d.listeners[i : i+1]
		return nil
	}, "serve", "--bank", d.addresses[apiServers], "--name", fmt.Sprintf("server-%d", i+1))
	return err
}

func (d *paymentsDemo) startClient(i int, cancel context.CancelCauseFunc) error {
	stdout, w, err := os.Pipe()
	if err != nil {
		return err
	}
	d.clients[i], err = stage.StartProcess(fmt.Sprintf("client %d", i+1), d.url, cancel, func(c *exec.Cmd) error {
		c.Stdout = w
		return nil
	}, "client", "--orders", d.file, "--seed", strconv.FormatUint(d.seed, 10), "--client", strconv.Itoa(i),
		"--servers", strings.Join(d.addresses[:apiServers], ","), "--answers", d.answers(i), "--concurrency", strconv.Itoa(d.concurrency()))
	if err := errors.Join(err, w.Close()); err != nil { // the child has it now
		return errors.Join(err, stdout.Close())
	}
	go func() {
		defer stdout.Close()
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var r clientReport
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue
			}
			d.mu.Lock()
			d.reports[i] = r
			d.mu.Unlock()
		}
	}()
	return nil
}

// concurrency returns how many payments a client has under way. On PostgreSQL two cores are busy with
// fewer, and more would only be cut off more often; on SQLite the servers wait for one lock.
func (d *paymentsDemo) concurrency() int {
	if strings.HasPrefix(d.url, "sqlite:") {
		return 12
	}
	return 8
}

func (d *paymentsDemo) answers(client int) string {
	return filepath.Join(d.dir, fmt.Sprintf("client-%d.jsonl", client+1))
}

// watch shows the progress, kills a server now and then, and stops one for three leases, until
// all clients have all answers.
func (d *paymentsDemo) watch(ctx context.Context, cancel context.CancelCauseFunc) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	kill := time.NewTicker(d.killEvery)
	defer kill.Stop()
	var goOn <-chan time.Time // the stopped server, if there is one
	paused, spared := 0, false
	for {
		sum, running := d.clientState()
		if running {
			d.screen.Show(stage.Progress{
				Done: sum.Done, Of: d.plan.Tasks, Elapsed: time.Since(d.started), Written: sum.Sent,
				Tail: fmt.Sprintf("%s replays, %s cut off, %d killed", stage.Count(sum.Replayed), stage.Count(sum.Cut), d.kills),
			})
		}
		if !running && goOn == nil {
			return nil
		}
		if !d.stopped && sum.Done > d.plan.Tasks/3 {
			d.stopped = true
			paused = (d.kills + 1) % apiServers // neither the last one started nor the next to be killed
			about, err := d.stopServer(ctx, paused)
			if err != nil {
				return err
			}
			d.screen.Say(fmt.Sprintf("server %d stopped with SIGSTOP for three leases, about to make %s to the bank", paused+1, calls(about)))
			goOn = time.After(3 * leaseTTL)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		case <-goOn:
			goOn = nil
			if err := d.servers[paused].Process.Signal(syscall.SIGCONT); err != nil {
				return fmt.Errorf("continue server %d: %w", paused+1, err)
			}
			d.screen.Say(fmt.Sprintf("server %d goes on, and makes its calls", paused+1))
			spared = true
		case <-kill.C:
			i := d.kills % apiServers
			if (goOn != nil || spared) && i == paused {
				i = (i + 1) % apiServers
			}
			spared = false // it has had the time to make its late calls
			if err := d.killServer(i, cancel); err != nil {
				return err
			}
		}
	}
}

// stopServer stops a server that has looked at the leases of some payments, and has not ordered them
// yet: the calls that a token is for. It returns how many they are.
func (d *paymentsDemo) stopServer(ctx context.Context, i int) (about int, err error) {
	for about == 0 && err == nil { // clients ask all the time
		about, err = d.holdReviews(ctx, i)
	}
	if err == nil {
		err = d.books.alone(ctx, func() error {
			if err := d.servers[i].Process.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			return awaitStop(ctx, d.servers[i].Process.Pid)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("stop server %d: %w", i+1, err)
	}
	return about, nil
}

// awaitStop waits until all threads of a process are stopped. A thread that runs is stopped some time after
// SIGSTOP was sent, and may take the lock of a store in a file until then. Where the system does not tell,
// it waits for a while.
func awaitStop(ctx context.Context, pid int) error {
	stopped := func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, thread := range threads {
			text, readErr := os.ReadFile(thread)
			_, state, found := strings.Cut(string(text), ") ") // of the name, which has no bracket here
			if readErr == nil && (!found || state[0] != 'T') {
				return false
			}
		}
		return err == nil && len(threads) > 0
	}
	for end := time.Now().Add(time.Second / 4); !stopped() && time.Now().Before(end); {
		wait(ctx, time.Millisecond)
	}
	return context.Cause(ctx)
}

func calls(n int) string {
	if n == 1 {
		return "1 call"
	}
	return stage.Count(n) + " calls"
}

// holdReviews has a server stay with the payments that it has under review, until it is stopped. It
// returns how many they are.
func (d *paymentsDemo) holdReviews(ctx context.Context, i int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // it may have been started just now
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.addresses[i]+reviewsPath, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return n, json.NewDecoder(response.Body).Decode(&n)
}

// killServer ends a server as a power cut would, and starts another in its place.
func (d *paymentsDemo) killServer(i int, cancel context.CancelCauseFunc) error {
	p := d.servers[i]
	p.Killed.Store(true)
	if err := p.Process.Kill(); err != nil {
		return fmt.Errorf("kill server %d: %w", i+1, err)
	}
	<-p.Ended
	d.kills++
	d.lost += lost(p)
	return d.startServer(i, cancel)
}

// clientState adds the clients' reports up, and tells whether one is still running.
func (d *paymentsDemo) clientState() (sum clientReport, running bool) {
	for _, c := range d.clients {
		select {
		case <-c.Ended:
		default:
			running = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.reports {
		sum.Done += r.Done
		sum.Sent += r.Sent
		sum.Cut += r.Cut
		sum.Replayed += r.Replayed
		sum.Busy += r.Busy
		sum.Failed += r.Failed
	}
	return sum, running
}

// stopAll ends servers and bank as a deployment would: they finish the requests in flight.
func (d *paymentsDemo) stopAll() error {
	for _, p := range append(d.servers[:], d.bank) {
		if err := p.Stop(stopLimit); err != nil {
			return err
		}
		d.lost += lost(p)
	}
	return nil
}

// lost counts the leases that a server that has ended found lost.
func lost(p *stage.Process) int { return strings.Count(p.Errors.String(), `"message":"lease lost"`) }

func (d *paymentsDemo) killAll() {
	for _, p := range append(append(d.clients[:], d.servers[:]...), d.bank) {
		p.End()
	}
}

func (d *paymentsDemo) closeListeners() {
	for _, f := range d.listeners {
		_ = f.Close() // the processes that had them are gone
	}
}

type paymentsServeCommand struct {
	Store string `env:"DIBS_STORE"`
	Bank  string
	Name  string
}

// Run serves the API on the socket that it was started with.
func (c *paymentsServeCommand) Run(ctx context.Context, o *stage.Output) error {
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()
	log := logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.WarnLevel))
	under := &reviews{ends: map[*time.Time]bool{}}
	api, err := newAPI(store, c.Store, payments.Config{Bank: c.Bank, Name: c.Name, TTL: leaseTTL, Review: under.review, Logger: log})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("POST "+reviewsPath, under)
	return stage.Serve(ctx, mux)
}

// reviewsPath is the demo's own: a request to it holds the reviews of a server.
const reviewsPath = "/demo/reviews"

// holding is how long reviews are held at least: the server is stopped meanwhile.
const holding = leaseTTL

// reviews are those of a server, so that the demo can stop it in the middle of one.
type reviews struct {
	mu   sync.Mutex
	ends map[*time.Time]bool
}

// review takes its time, be the lease lost meanwhile or not.
func (r *reviews) review(context.Context, payments.Payment) error {
	end := time.Now().Add(review)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends[&end] = true
	for left := time.Until(end); left > 0; left = time.Until(end) {
		r.mu.Unlock()
		<-time.After(left)
		r.mu.Lock()
	}
	delete(r.ends, &end)
	return nil
}

// ServeHTTP holds the reviews that are under way, and answers with their number.
func (r *reviews) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := range r.ends {
		*end = time.Now().Add(holding)
	}
	fmt.Fprintln(w, len(r.ends))
}

// An api is the payments API over either database.
type api interface {
	http.Handler
	CreateTable(ctx context.Context) error
}

func newAPI(store *messagestore.Store, storeURL string, config payments.Config) (api, error) {
	if strings.HasPrefix(storeURL, "sqlite:") {
		txs, err := messagestore.Transactional[*sql.Tx](store)
		if err != nil {
			return nil, err
		}
		return payments.New(txs, func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
			_, err := tx.ExecContext(ctx, statement, args...)
			return err
		}, config)
	}
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		return nil, err
	}
	config.Table = paymentsTable(storeURL)
	return payments.New(txs, func(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	}, config)
}

// paymentsTable returns the name of the payments table: on PostgreSQL in the schema of the run.
func paymentsTable(storeURL string) string {
	if u, err := url.Parse(storeURL); err == nil && u.Query().Get("schema") != "" {
		return pgx.Identifier{u.Query().Get("schema"), "payments"}.Sanitize()
	}
	return "payments"
}

type paymentsBankCommand struct {
	Log string
}

// Run serves the bank on the socket that it was started with.
func (c *paymentsBankCommand) Run(ctx context.Context) (err error) {
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	return stage.Serve(ctx, payments.NewBank(log, bankDelay))
}
