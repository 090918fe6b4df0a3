package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/ticketing"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	replicas  = 3
	audience  = 16 // clients
	attempt   = 3 * time.Second
	someSeats = 400
)

type ticketingGrammar struct {
	Demo    replicasDemoCommand  `cmd:"" help:"Run the service in replicas under a rolling restart, and compare the books."`
	Replica replicasServeCommand `cmd:"" hidden:""`
}

// RunTicketing is [Run] for the program of examples/ticketing.
func RunTicketing(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return stage.Run(ctx, &ticketingGrammar{}, "ticketing",
		"The ticketing service, which sells each seat once and carries out each request once. A store is postgres://...",
		args, stdout, stderr)
}

type replicasDemoCommand struct {
	Store   string        `env:"DIBS_STORE" required:"" placeholder:"URL" help:"The store, on PostgreSQL."`
	For     time.Duration `default:"30s" placeholder:"TIME" help:"How long clients send requests, on a machine that carries the rate. Defaults to ${default}."`
	Restart time.Duration `default:"3s" placeholder:"TIME" help:"Replace a replica whenever the requests of this time are answered. Defaults to ${default}."`
	Lease   time.Duration `default:"2s" placeholder:"TIME" help:"The lease of the replicas. Defaults to ${default}."`
	Rate    int           `default:"100" placeholder:"N" help:"Requests in a second. Defaults to ${default}."`
	stage.Limit
}

// Help is printed below the command's usage.
func (replicasDemoCommand) Help() string {
	return `It starts three replicas of the service on one socket, and clients that ask for seats at a steady rate, some of them several times under one key. Whenever the requests of a few seconds are answered a replica is replaced as a deployment does it: a new one starts, and the old one is told to stop. Once a replica is killed with SIGKILL, and once one is stopped with SIGSTOP for three leases, and goes on.

Then it compares the clients' answers with the box office's table, the events and the mails. The exit code is 0 if all agree and no request was refused, and 1 if not. If the limit ends first, the clients finish the requests that they have begun, these are compared, and the exit code is 3 if they agree. A command waits for its decision for less than two leases, unless the machine is busy.`
}

// Run runs the service in processes under load, and compares the books.
func (c *replicasDemoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
	if c.Rate < 1 || c.Lease < time.Second || c.For < 4*c.Lease {
		return fmt.Errorf("%w: the rate is at least 1, the lease at least 1s, and the time at least four leases", stage.ErrUsage)
	}
	if !strings.HasPrefix(c.Store, "postgres") {
		return fmt.Errorf("%w: the service has a table in PostgreSQL", stage.ErrUsage)
	}
	preparing, cancel := c.Preparing(ctx)
	defer cancel()
	where, cleanUp, err := stage.PrepareStore(preparing, c.Store, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	d := &replicasDemo{
		replicasDemoCommand: *c, url: stage.WithSearchPath(where), out: o.Stdout,
		disturbed: make(chan struct{}), mails: map[string]int{}, asked: map[string]*asked{},
	}
	return d.run(ctx)
}

// A replicasDemo is one run.
type replicasDemo struct {
	replicasDemoCommand
	url    string
	out    io.Writer
	screen *stage.Screen

	socket   *os.File
	address  string
	mail     string // URL of the mail service, which is this process
	replicas [replicas]*stage.Process
	replaced int

	disturbed chan struct{} // closed when one was killed and one stopped

	late error          // if the limit has ended
	asks sync.WaitGroup // the clients

	mu    sync.Mutex
	asked map[string]*asked // by seat and key
	mails map[string]int    // times that each was sent, by id
	sent  int
	again int // attempts after an attempt that was cut off
	done  int
	odd   []string // answers that a client should not get
}

// An asked is a request, however often it was sent.
type asked struct {
	seat, key string
	answer    string
}

func (d *replicasDemo) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	fmt.Fprintf(d.out, "%d replicas with a lease of %v; %d clients, %d requests/s for %v; a replica is replaced every %d requests\n",
		replicas, d.Lease, audience, d.Rate, d.For, d.of(d.Restart))
	if err := d.prepare(ctx); err != nil {
		return err
	}
	service := &http.Server{Handler: http.HandlerFunc(d.takeMail), ReadHeaderTimeout: 10 * time.Second}
	mailbox, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed by Close
	if err != nil {
		return err
	}
	d.mail = "http://" + mailbox.Addr().String()
	go func() { _ = service.Serve(mailbox) }() // until Close
	defer service.Close()
	if d.socket, d.address, err = stage.Listen(); err != nil {
		return err
	}
	defer d.socket.Close()
	defer func() {
		for _, p := range d.replicas {
			p.End()
		}
	}()
	for i := range d.replicas {
		if d.replicas[i], err = d.start(i, cancel); err != nil {
			return err
		}
	}
	d.screen = stage.NewScreen(d.out)
	defer d.screen.Done()
	asking, breakOff := context.WithCancel(ctx)
	defer breakOff()
	load := make(chan error, 1)
	return d.Limit.Run(ctx, d.screen, stage.Work{
		Do: func(ctx context.Context) error {
			go func() { load <- d.load(ctx, asking) }()
			if err := d.disturb(ctx, cancel, began, load); err != nil {
				return err
			}
			return d.settle(ctx)
		},
		Settle: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, breakOff)
			defer stop()
			d.asks.Wait()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return d.settle(ctx)
		},
		Stop: func() error {
			for _, p := range d.replicas {
				if err := p.Stop(stopLimit); err != nil {
					return err
				}
			}
			return nil
		},
		Verdict: func(ctx context.Context, late error) error { return d.verdict(ctx, began, late) },
	})
}

func (d *replicasDemo) prepare(ctx context.Context) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, ticketing.Schema)
	return err
}

// connect returns a connection for the demo's own SQL.
func (d *replicasDemo) connect(ctx context.Context) (*pgx.Conn, error) {
	u, err := url.Parse(d.url)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Del("schema")
	u.RawQuery = query.Encode()
	return stage.Connect(ctx, u.String())
}

func (d *replicasDemo) start(i int, cancel context.CancelCauseFunc) (*stage.Process, error) {
	return stage.StartProcess(fmt.Sprintf("replica %d", i+1), d.url, cancel, func(c *exec.Cmd) error {
		c.ExtraFiles = []*os.File{d.socket}
		return nil
	}, "replica", "--mail", d.mail, "--lease", d.Lease.String())
}

// replace starts a replica and then ends the one in whose place it is.
func (d *replicasDemo) replace(i int, cancel context.CancelCauseFunc) error {
	next, err := d.start(i, cancel)
	if err != nil {
		return err
	}
	if err := d.replicas[i].Stop(stopLimit); err != nil {
		next.End()
		return err
	}
	d.replicas[i] = next
	d.replaced++
	return nil
}

// of returns how many requests are sent in a time.
func (d *replicasDemo) of(t time.Duration) int { return max(1, int(t.Seconds()*float64(d.Rate))) }

// disturb replaces replicas, kills one and stops one, each when so many requests have been answered, until the
// clients are done.
func (d *replicasDemo) disturb(ctx context.Context, cancel context.CancelCauseFunc, began time.Time, load <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var thaw <-chan time.Time
	next, frozen, killed, froze := 0, -1, false, false
	for {
		done := d.show(began)
		switch {
		case !killed && done >= d.of(d.For)/3:
			killed = true
			if err := d.kill((next+2)%replicas, cancel); err != nil {
				return err
			}
		case !froze && done >= d.of(d.For)*2/3:
			froze, frozen = true, (next+2)%replicas
			if err := d.replicas[frozen].Process.Signal(syscall.SIGSTOP); err != nil {
				return fmt.Errorf("stop replica %d: %w", frozen+1, err)
			}
			d.screen.Say(fmt.Sprintf("replica %d stopped with SIGSTOP for three leases", frozen+1))
			thaw = time.After(3 * d.Lease)
			close(d.disturbed)
		case done >= (d.replaced+1)*d.of(d.Restart):
			if next++; next%replicas == frozen {
				next++
			}
			if err := d.replace(next%replicas, cancel); err != nil {
				return err
			}
		}
		select {
		case err := <-load:
			if thaw != nil {
				return errors.Join(err, d.replicas[frozen].Process.Signal(syscall.SIGCONT))
			}
			return err
		case <-ctx.Done():
			if thaw != nil {
				return errors.Join(ctx.Err(), d.replicas[frozen].Process.Signal(syscall.SIGCONT))
			}
			return ctx.Err()
		case <-tick.C:
		case <-thaw:
			if err := d.replicas[frozen].Process.Signal(syscall.SIGCONT); err != nil {
				return fmt.Errorf("continue replica %d: %w", frozen+1, err)
			}
			d.screen.Say(fmt.Sprintf("replica %d goes on", frozen+1))
			thaw, frozen = nil, -1
		}
	}
}

// kill ends a replica as a power cut would, and starts another in its place.
func (d *replicasDemo) kill(i int, cancel context.CancelCauseFunc) (err error) {
	d.replicas[i].End()
	d.screen.Say(fmt.Sprintf("replica %d killed with SIGKILL, and started again", i+1))
	d.replicas[i], err = d.start(i, cancel)
	return err
}

// show shows the progress, and returns how many requests have been answered.
func (d *replicasDemo) show(began time.Time) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.screen.Show(stage.Progress{
		Done: d.done, Of: d.of(d.For), Elapsed: time.Since(began), Written: d.sent,
		Tail: fmt.Sprintf("%d replaced, %s sent again", d.replaced, stage.Count(d.again)),
	})
	return d.done
}

// load sends the requests of the demo, at the rate, whatever becomes of those before, and more if a
// replica has not been killed and another stopped by then. When ctx ends it sends no other; requests that
// were begun go on until asking ends.
func (d *replicasDemo) load(ctx, asking context.Context) error {
	orders := make(chan *asked)
	for range audience {
		d.asks.Go(func() {
			for a := range orders {
				d.ask(asking, a)
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(d.Rate))
	defer tick.Stop()
	disturbed := false
	for n := 1; n <= d.of(d.For) || !disturbed; n++ {
		a := &asked{seat: fmt.Sprintf("%d%c", 1+rand.IntN(someSeats/10), 'A'+rand.IntN(10)), key: fmt.Sprintf("k%d", n)} //nolint:gosec // any seat will do
		select {
		case orders <- a:
		case <-ctx.Done():
			close(orders)
			d.asks.Wait()
			return ctx.Err()
		}
		select {
		case <-d.disturbed:
			disturbed = true
		default:
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	close(orders)
	d.asks.Wait()
	return ctx.Err()
}

// ask sends a request, some of them several times, and asks for the answer. An attempt that is cut
// off is made again.
func (d *replicasDemo) ask(ctx context.Context, a *asked) {
	d.mu.Lock()
	d.asked[a.seat+" "+a.key] = a
	d.mu.Unlock()
	location := "/seats/" + a.seat + "/holds/" + a.key
	for range 1 + rand.IntN(2) { //nolint:gosec // any number will do
		d.until(ctx, http.StatusAccepted, http.MethodPost, "/seats/"+a.seat+"/holds", a.key, `{"email":"`+a.key+`@example.com"}`)
	}
	answer := d.until(ctx, http.StatusOK, http.MethodGet, location, "", "")
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.answer = answer; answer != "" {
		d.done++
	}
}

func (d *replicasDemo) until(ctx context.Context, want int, method, path, key, body string) (answer string) {
	for tries := 0; ctx.Err() == nil; tries++ {
		status, answer, err := d.call(ctx, method, path, key, body)
		d.mu.Lock()
		d.sent++
		switch {
		case err != nil:
			d.again++ // the replica was killed or stopped
		case status != want && (want != http.StatusOK || status != http.StatusAccepted):
			d.odd = append(d.odd, fmt.Sprintf("%s %s: %d %s", method, path, status, strings.TrimSpace(answer)))
		}
		d.mu.Unlock()
		if err == nil && status == want {
			return answer
		}
	}
	return ""
}

func (d *replicasDemo) call(ctx context.Context, method, path, key, body string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt+d.Lease)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, d.address+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// takeMail is the mail service. It shows a mail once, however often that is sent.
func (d *replicasDemo) takeMail(w http.ResponseWriter, r *http.Request) {
	var m ticketing.Mail
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mails[m.ID+" "+m.To]++
}

// settle waits until every request has its mail.
func (d *replicasDemo) settle(ctx context.Context) error {
	for {
		d.mu.Lock()
		behind := len(d.asked) - len(d.mails)
		d.mu.Unlock()
		if behind <= 0 {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A delay is the time from a command to the event that came of it.
type delay struct {
	stream messagestore.StreamName
	time.Duration
}

func (d *replicasDemo) verdict(ctx context.Context, began time.Time, late error) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var rows, seats, sold, twice int
	err = conn.QueryRow(ctx, `
		select count(*), count(distinct seat), count(*) filter (where held),
		  count(*) filter (where held) - count(distinct seat) filter (where held)
		from holds`).Scan(&rows, &seats, &sold, &twice)
	if err != nil {
		return err
	}
	differing := 0
	for _, a := range d.asked {
		if a.answer == "" && late != nil {
			continue // it may have been carried out, or not
		}
		var held bool
		if err := conn.QueryRow(ctx, "select held from holds where seat = $1 and key = $2", a.seat, a.key).Scan(&held); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		var answer ticketing.Answer
		if json.Unmarshal([]byte(a.answer), &answer) != nil || answer != (ticketing.Answer{Seat: a.seat, Held: held}) {
			differing++
		}
	}
	events, longest, err := d.waits(ctx)
	if err != nil {
		return err
	}
	repeated := 0
	for _, n := range d.mails {
		repeated += n - 1
	}
	answered := len(d.asked)
	if late != nil {
		answered = d.done
	}
	mailed := answered
	if errors.Is(late, stage.ErrNotSettled) {
		mailed = 0
	}
	stage.PrintPart(d.out, late, answered, d.of(d.For), "requests")
	same := stage.PrintTable(d.out, "expected", "found", []stage.Row{
		stage.Between("rows of the box office, one for each request", answered, len(d.asked), rows),
		stage.Compare("seats sold, of those asked for", seats, sold),
		stage.Compare("seats sold twice", 0, twice),
		stage.Between("events, one for each request", answered, len(d.asked), events),
		stage.Compare("answers that differ from the table", 0, differing),
		stage.Compare("requests that were refused", 0, len(d.odd)),
		stage.Between("mails, one for each request", mailed, len(d.asked), len(d.mails)),
		stage.Detail("mails sent again, and shown once", repeated),
		stage.Detail("requests sent", d.sent),
		stage.Detail("sent again, after a kill or a stop", d.again),
		stage.Detail("replicas replaced", d.replaced),
	})
	for _, odd := range d.odd[:min(len(d.odd), 5)] {
		fmt.Fprintln(d.out, "refused:", odd)
	}
	if !same {
		fmt.Fprintf(d.out, "\nThe books differ (%.1f s).\n", time.Since(began).Seconds())
		return errBooksDiffer
	}
	fmt.Fprintf(d.out, "\nThe longest wait for a decision was %v, in %s, with a lease of %v.\n", longest.Round(time.Millisecond), longest.stream, d.Lease)
	if d.late = late; d.late != nil {
		fmt.Fprintf(d.out, "Every request that was answered was carried out once, through %d replacements; the others were not done in time (%.1f s).\n", d.replaced, time.Since(began).Seconds())
		return nil
	}
	fmt.Fprintf(d.out, "Every request was carried out once, through %d replacements, a kill and a stop (%.1f s).\n", d.replaced, time.Since(began).Seconds())
	return nil
}

// waits returns the number of events, and the longest time between the first command with a key
// and its event.
func (d *replicasDemo) waits(ctx context.Context) (events int, longest delay, err error) {
	store, err := dibs.Open(ctx, d.url, nil)
	if err != nil {
		return 0, delay{}, err
	}
	defer store.Close()
	commands := map[string]time.Time{}
	for m, err := range store.ReadCategory(ctx, "seat:command", 0, messagestore.Filter{Types: []string{ticketing.HoldSeat{}.MessageType()}}) {
		if err != nil {
			return 0, delay{}, err
		}
		commands[place(m.Stream, m.Position)] = m.Time
	}
	for m, err := range store.ReadCategory(ctx, "seat", 0, messagestore.Filter{}) {
		if err != nil {
			return 0, delay{}, err
		}
		events++
		if at, ok := commands[place(m.Metadata.CausationStream, m.Metadata.CausationPosition)]; ok && m.Time.Sub(at) > longest.Duration {
			longest = delay{m.Stream, m.Time.Sub(at)}
		}
	}
	return events, longest, nil
}

func place(stream messagestore.StreamName, position messagestore.Version) string {
	return fmt.Sprint(stream, " ", position)
}

type replicasServeCommand struct {
	Store string `env:"DIBS_STORE"`
	Mail  string
	Lease time.Duration
}

// Run serves on the socket that it was started with.
func (c *replicasServeCommand) Run(ctx context.Context, o *stage.Output) error {
	listener, err := stage.Inherited()
	if err != nil {
		return err
	}
	return ticketing.Run(ctx, listener, ticketing.Config{
		Database: c.Store, Mail: c.Mail, Lease: c.Lease,
		Logger: logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.WarnLevel)),
	})
}
