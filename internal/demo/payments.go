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

	// paused is the server that is stopped. It is not killed: its calls are to come too late, and to come.
	paused = apiServers - 1
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
	Store  string        `env:"DIBS_STORE" placeholder:"URL" help:"The store. Defaults to SQLite in a throwaway folder."`
	Orders string        `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to 4,334 orders of a Czech bank."`
	Seed   uint64        `placeholder:"N" help:"Draw repeats, servers and patience from this. Defaults to the time."`
	Kills  int           `default:"20" placeholder:"N" help:"Kill servers so many times, after equal shares of the work. Defaults to ${default}."`
	Lease  time.Duration `default:"2s" placeholder:"TIME" help:"The lease of a payment: those of a server that was killed wait for so long. Defaults to ${default}."`
	stage.Limit
}

// Help is printed below the command's usage.
func (paymentsDemoCommand) Help() string {
	return `It starts three servers of the API, a bank and four clients as processes on this machine. The clients send each payment one to six times, to any server, and hang up early. A server is killed with SIGKILL now and then and started again; one is stopped with SIGSTOP just before it calls the bank, and goes on when others have made its payments.

Then it compares the file with the payments table, the bank's log, the intents in the store and the answers that the clients got, and tells what became of one payment. The exit code is 0 if all agree, and 1 if not. If the limit ends first, the clients finish the payments that they have begun, these are compared, and the exit code is 3 if they agree.`
}

// Run runs the API in processes, has it asked for every payment several times, kills servers,
// stops one, and compares the books.
func (c *paymentsDemoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	orders, err := ReadOrders(c.Orders)
	if err != nil {
		return err
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
	where = withConnections(where)

	seed := cmp.Or(c.Seed, uint64(time.Now().UnixNano())) // any bits will do
	d := &paymentsDemo{
		url: where, file: c.Orders, seed: seed, dir: dir, out: o.Stdout, lease: c.Lease, mostKills: c.Kills, limit: c.Limit,
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
	lease          time.Duration
	mostKills      int
	limit          stage.Limit
	late           error // if the limit has ended: the plan is then of the payments that were answered
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
	stopped   bool               // a server is
	held      []payments.Payment // that the stopped server was about to order
	lost      int                // leases, by the servers' logs

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
	preparing, cancelPreparing := d.limit.Preparing(ctx)
	defer cancelPreparing()
	if err := d.books.prepare(preparing); err != nil {
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
	return d.limit.Run(ctx, d.screen, stage.Work{
		Do:     func(ctx context.Context) error { return d.watch(ctx, cancel) },
		Settle: d.settle, Stop: d.stopAll, Verdict: d.verdict,
	})
}

// settle has the clients finish the payments that they have begun. A server that is stopped goes on first: its calls
// are too late only if others have made its payments.
func (d *paymentsDemo) settle(ctx context.Context) error {
	if d.stopped {
		if err := d.continueServer(ctx); err != nil {
			return err
		}
	}
	// A client breaks off what it has begun after the time to settle.
	return errors.Join(stage.Finish(d.limit.Settle+stopLimit, d.clients[:]...), ctx.Err())
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
	args := []string{"serve", "--bank", d.addresses[apiServers], "--name", fmt.Sprintf("server-%d", i+1), "--lease", d.lease.String()}
	if i == paused {
		args = append(args, "--hold-after", strconv.Itoa(len(d.plan.Payments)/3/apiServers))
	}
	d.servers[i], err = stage.StartProcess(fmt.Sprintf("server %d", i+1), d.url, cancel, func(c *exec.Cmd) error {
		c.ExtraFiles = d.listeners[i : i+1]
		return nil
	}, args...)
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
		"--servers", strings.Join(d.addresses[:apiServers], ","), "--answers", d.answers(i), "--concurrency", strconv.Itoa(d.concurrency()),
		"--settle", d.limit.Settle.String())
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

// watch shows the progress, kills a server after each share of the work, and stops one until others have made
// its payments, until all clients have all answers.
func (d *paymentsDemo) watch(ctx context.Context, cancel context.CancelCauseFunc) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for running := true; running || d.stopped; {
		var sum clientReport
		if sum, running = d.clientState(); running {
			d.screen.Show(stage.Progress{
				Done: sum.Done, Of: d.plan.Tasks, Elapsed: time.Since(d.started), Written: sum.Sent,
				Tail: fmt.Sprintf("%s replays, %s cut off, %d killed", stage.Count(sum.Replayed), stage.Count(sum.Cut), d.kills),
			})
		}
		var err error
		kill := d.kills < d.mostKills && sum.Done*(d.mostKills+1) >= d.plan.Tasks*(d.kills+1)
		switch {
		case running && len(d.held) == 0: // the clients of payments that are held ask until they have an answer
			if d.stopped, err = d.stopServer(ctx); err == nil && d.stopped {
				d.screen.Say(fmt.Sprintf("server %d stopped with SIGSTOP, about to make %s to the bank", paused+1, calls(len(d.held))))
				kill = d.kills < d.mostKills
			}
		case d.stopped:
			var made bool
			if made, err = d.books.confirmed(ctx, d.held); err == nil && made {
				err = d.continueServer(ctx)
			}
		}
		if err == nil && running && kill {
			err = d.killServer(d.kills%paused, cancel)
		}
		if err != nil {
			return stage.Cause(ctx, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// stopServer stops the server that holds its reviews, if there are some: it has looked at the leases of payments, and
// has not ordered them yet, which are the calls that a token is for.
func (d *paymentsDemo) stopServer(ctx context.Context) (stopped bool, err error) {
	if err := d.reviews(ctx, http.MethodGet, &d.held); err != nil || len(d.held) == 0 {
		return false, err
	}
	err = d.books.alone(ctx, func() error {
		if err := d.servers[paused].Process.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return awaitStop(ctx, d.servers[paused].Process.Pid)
	})
	if err != nil {
		return false, fmt.Errorf("stop server %d: %w", paused+1, err)
	}
	return true, nil
}

// continueServer has the stopped server go on, and end its reviews.
func (d *paymentsDemo) continueServer(ctx context.Context) error {
	if err := d.servers[paused].Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue server %d: %w", paused+1, err)
	}
	d.stopped = false
	d.screen.Say(fmt.Sprintf("server %d goes on, and makes its calls", paused+1))
	var held []payments.Payment
	return d.reviews(ctx, http.MethodDelete, &held)
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

// reviews asks the server that holds its reviews for the payments.
func (d *paymentsDemo) reviews(ctx context.Context, method string, held *[]payments.Payment) error {
	r, err := http.NewRequestWithContext(ctx, method, d.addresses[paused]+reviewsPath, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("ask for the reviews of server %d: %w", paused+1, err)
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(held)
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
	Store     string `env:"DIBS_STORE"`
	Bank      string
	Name      string
	Lease     time.Duration
	HoldAfter int `default:"-1"` // reviews
}

// Run serves the API on the socket that it was started with.
func (c *paymentsServeCommand) Run(ctx context.Context, o *stage.Output) error {
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()
	log := logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.WarnLevel))
	under := &reviews{left: c.HoldAfter, goOn: make(chan struct{})}
	if c.HoldAfter < 0 {
		close(under.goOn)
	}
	api, err := newAPI(store, c.Store, payments.Config{Bank: c.Bank, Name: c.Name, TTL: c.Lease, Review: under.review, Logger: log})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc("GET "+reviewsPath, under.list)
	mux.HandleFunc("DELETE "+reviewsPath, under.end)
	return stage.Serve(ctx, mux)
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
	if r.holds(p) {
		<-r.goOn
	}
	return nil
}

func (r *reviews) holds(p payments.Payment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left--; r.left >= 0 {
		return false
	}
	select {
	case <-r.goOn:
		return false
	default:
		r.held = append(r.held, p)
		return true
	}
}

// list answers with the payments that are held.
func (r *reviews) list(w http.ResponseWriter, _ *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.NewEncoder(w).Encode(r.held) // the demo asks again
}

// end has all reviews go on.
func (r *reviews) end(w http.ResponseWriter, request *http.Request) {
	close(r.goOn)
	r.list(w, request)
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
