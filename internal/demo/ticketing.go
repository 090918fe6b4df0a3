package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/examples/ticketing"
	"github.com/dibs-go/dibs/logger"
)

// The sizes and the times of the demo of ticketing.
const (
	replicas  = 3
	audience  = 16 // clients
	attempt   = 3 * time.Second
	someSeats = 400
)

type ticketingGrammar struct {
	Demo    ticketingDemo    `cmd:"" help:"Run the service in replicas under a rolling restart, and compare the books."`
	Replica ticketingReplica `cmd:"" hidden:""`
}

// Ticketing runs a command of examples/ticketing and returns the exit code: see [Main].
func Ticketing(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return Main(ctx, &ticketingGrammar{}, "ticketing",
		"The ticketing service, which sells each seat once and carries out each request once. A store is postgres://...", args, stdout, stderr)
}

// A ticketingDemo is the command, and one run of it.
type ticketingDemo struct {
	Flags
	For     time.Duration `default:"30s" placeholder:"TIME" help:"How long clients send requests, on a machine that carries the rate. Defaults to ${default}."`
	Restart time.Duration `default:"3s" placeholder:"TIME" help:"Replace a replica whenever the requests of this time are answered. Defaults to ${default}."`
	Lease   time.Duration `default:"2s" placeholder:"TIME" help:"The lease of the replicas. Defaults to ${default}."`
	Rate    int           `default:"100" placeholder:"N" help:"Requests in a second. Defaults to ${default}."`

	run       *Run
	socket    *os.File
	address   string
	mail      string // URL of the mail service, which is this process
	replicas  [replicas]*Process
	replaced  int
	disturbed chan struct{} // closed when one was killed and one stopped

	mu    sync.Mutex
	asked []*asked
	mails map[mailed]int // times that each was sent
	sent  int
	again int // attempts after an attempt that was cut off
	done  int
	odd   []string // answers that a client should not get
}

// An asked is a request, however often it was sent, and its answer.
type asked struct{ Seat, Key, Answer string }

// A mailed is a mail that was sent.
type mailed struct{ ID, To string }

// Help is printed below the command's usage.
func (*ticketingDemo) Help() string {
	return `It starts three replicas of the service on one socket, and clients that ask for seats at a steady rate, some of them several times under one key. Whenever the requests of a few seconds are answered a replica is replaced as a deployment does it: a new one starts, and the old one is told to stop. Once a replica is killed with SIGKILL, and once one is stopped with SIGSTOP for three leases, and goes on.

Then it compares the clients' answers with the box office's table, the events and the mails. The exit code is 0 if all agree and no request was refused, and 1 if not. A command waits for its decision for less than two leases, unless the machine is busy.`
}

// Run runs the service in processes under load, and compares the books.
func (d *ticketingDemo) Run(ctx context.Context, o *Output) error {
	if d.Rate < 1 || d.Lease < time.Second || d.For < 4*d.Lease {
		return fmt.Errorf("%w: the rate is at least 1, the lease at least 1s, and the time at least four leases", ErrUsage)
	}
	if !strings.HasPrefix(d.Store, "postgres") {
		return fmt.Errorf("%w: the service has a table in PostgreSQL", ErrUsage)
	}
	d.disturbed, d.mails = make(chan struct{}), map[mailed]int{}
	fmt.Fprintf(o.Stdout, "%d replicas with a lease of %v; %d clients, %d requests/s for %v; a replica is replaced every %d requests\n",
		replicas, d.Lease, audience, d.Rate, d.For, d.of(d.Restart))
	return d.Play(ctx, o, "seat", d)
}

// of returns how many requests are sent in a time.
func (d *ticketingDemo) of(t time.Duration) int { return max(1, int(t.Seconds()*float64(d.Rate))) }

// Work implements [Show].
func (d *ticketingDemo) Work(ctx context.Context, r *Run) (err error) {
	d.run = r
	r.InSearchPath()
	db, _, err := OpenSQL(r.URL)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, ticketing.Schema); err != nil {
		return err
	}
	if d.mail, err = r.Serve(http.HandlerFunc(d.takeMail)); err != nil {
		return err
	}
	if d.socket, d.address, err = r.Listen(); err != nil {
		return err
	}
	for i := range d.replicas {
		if d.replicas[i], err = d.start(i); err != nil {
			return err
		}
	}
	ctx, breakOff := context.WithCancel(ctx)
	load := make(chan struct{})
	go func() {
		defer close(load)
		d.load(ctx)
	}()
	defer func() {
		breakOff()
		<-load
	}()
	if err := d.disturb(ctx, load); err != nil {
		return err
	}
	return Until(ctx, 10*time.Millisecond, func() (bool, error) { // until every request has its mail
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.mails) >= len(d.asked), nil
	})
}

func (d *ticketingDemo) start(i int) (*Process, error) {
	return d.run.Start(fmt.Sprintf("replica %d", i+1), d.socket, "replica", "--mail", d.mail, "--lease", d.Lease.String())
}

// disturb replaces replicas, kills one and stops one, each after a number of answered requests,
// until the clients are done.
func (d *ticketingDemo) disturb(ctx context.Context, load <-chan struct{}) error {
	next, frozen, killed, froze := 0, -1, false, false
	var thaw time.Time
	return Until(ctx, 20*time.Millisecond, func() (bool, error) {
		ended := false
		select {
		case <-load:
			ended = true
		default:
		}
		done := d.show()
		switch {
		case frozen >= 0 && (ended || time.Now().After(thaw)):
			d.run.Screen.Say(fmt.Sprintf("replica %d goes on", frozen+1))
			goesOn := d.replicas[frozen]
			frozen = -1
			return ended, goesOn.Signal(syscall.SIGCONT)
		case ended:
			return true, nil
		case !killed && done >= d.of(d.For)/3:
			killed = true
			i := (next + 2) % replicas
			d.run.Screen.Say(fmt.Sprintf("replica %d killed with SIGKILL, and started again", i+1))
			return false, d.replicas[i].KillAndStart()
		case !froze && done >= d.of(d.For)*2/3:
			froze, frozen, thaw = true, (next+2)%replicas, time.Now().Add(3*d.Lease)
			d.run.Screen.Say(fmt.Sprintf("replica %d stopped with SIGSTOP for three leases", frozen+1))
			close(d.disturbed)
			return false, d.replicas[frozen].Signal(syscall.SIGSTOP)
		case done >= (d.replaced+1)*d.of(d.Restart):
			if next++; next%replicas == frozen {
				next++
			}
			return false, d.replace(next % replicas)
		}
		return false, nil
	})
}

// replace starts a replica and then ends the replica that it replaces.
func (d *ticketingDemo) replace(i int) error {
	next, err := d.start(i)
	if err != nil {
		return err
	}
	before := d.replicas[i]
	d.replicas[i] = next
	d.replaced++
	return before.Stop()
}

// show shows the progress, and returns how many requests have been answered.
func (d *ticketingDemo) show() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run.Screen.Show(Progress{
		Done: d.done, Of: d.of(d.For), Count: d.sent, Unit: "req", Tail: fmt.Sprintf("%d replaced, %s sent again", d.replaced, Count(d.again)),
	})
	return d.done
}

// load sends the requests of the demo at the rate, without waiting for earlier requests, and more
// requests until a replica has been killed and another stopped.
func (d *ticketingDemo) load(ctx context.Context) {
	orders := make(chan *asked)
	var asks sync.WaitGroup
	for range audience {
		asks.Go(func() {
			for a := range orders {
				d.ask(ctx, a)
			}
		})
	}
	n := 0
	_ = Until(ctx, time.Second/time.Duration(d.Rate), func() (bool, error) { // of ctx alone
		n++
		a := &asked{Seat: fmt.Sprintf("%d%c", 1+rand.IntN(someSeats/10), 'A'+rand.IntN(10)), Key: fmt.Sprintf("k%d", n)} //nolint:gosec // any seat will do
		select {
		case orders <- a:
		case <-ctx.Done():
		}
		select {
		case <-d.disturbed:
			return n >= d.of(d.For), nil
		default:
			return false, nil
		}
	})
	close(orders)
	asks.Wait()
}

// ask sends a request, some of them several times, and asks for the answer. An attempt that is cut
// off is made again.
func (d *ticketingDemo) ask(ctx context.Context, a *asked) {
	d.mu.Lock()
	d.asked = append(d.asked, a)
	d.mu.Unlock()
	for range 1 + rand.IntN(2) { //nolint:gosec // any number will do
		d.until(ctx, http.StatusAccepted, http.MethodPost, "/seats/"+a.Seat+"/holds", a.Key, map[string]string{"email": a.Key + "@example.com"})
	}
	answer := d.until(ctx, http.StatusOK, http.MethodGet, "/seats/"+a.Seat+"/holds/"+a.Key, a.Key, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.Answer = answer; answer != "" {
		d.done++
	}
}

func (d *ticketingDemo) until(ctx context.Context, want int, method, path, key string, body any) (answer string) {
	for ctx.Err() == nil {
		trying, cancel := context.WithTimeout(ctx, attempt+d.Lease)
		a, err := Call(trying, http.DefaultClient, method, d.address+path, map[string]string{"Idempotency-Key": key}, body)
		cancel()
		d.mu.Lock()
		d.sent++
		switch {
		case err != nil:
			d.again++ // the replica was killed or stopped
		case a.Status != want && (want != http.StatusOK || a.Status != http.StatusAccepted):
			d.odd = append(d.odd, fmt.Sprintf("%s %s: %d %s", method, path, a.Status, a.Body))
		}
		d.mu.Unlock()
		if err == nil && a.Status == want {
			return string(a.Body)
		}
	}
	return ""
}

// takeMail is the mail service. It shows a mail once, however often that is sent.
func (d *ticketingDemo) takeMail(w http.ResponseWriter, r *http.Request) {
	var m ticketing.Mail
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mails[mailed{m.ID, m.To}]++
}

// Verdict implements [Show].
func (d *ticketingDemo) Verdict(ctx context.Context, r *Run, b *Books) (string, error) {
	db, schema, err := OpenSQL(r.URL)
	if err != nil {
		return "", err
	}
	defer db.Close()
	b.Messages(ctx, r.URL)
	b.Copy(ctx, db, "hold", "select seat, key, held from "+schema+"holds")
	var answers []asked
	for _, a := range d.asked {
		answers = append(answers, *a)
	}
	Add(b, "asked", answers)
	repeated := 0
	for _, n := range d.mails {
		repeated += n - 1
	}
	all := len(answers)
	b.Equal("rows of the box office, one a request", all, "select count(*) from hold")
	b.Equal("seats sold, of those asked for", "select count(distinct seat) from hold", "select count(*) from hold where held")
	b.Equal("seats sold twice", 0, "select count(*) - count(distinct seat) from hold where held")
	b.Equal("events, one for each request", all, "select count(*) from messages where category = 'seat'")
	b.Equal("answers that differ from the table", 0, `select count(*) from asked a where case when json_valid(answer)
		then not exists (select 1 from hold h where h.seat = a.seat and h.key = a.key and answer->>'seat' = a.seat and answer->>'held' = h.held) else 1 end`)
	b.Equal("requests that were refused", 0, len(d.odd))
	b.Equal("mails, one for each request", all, len(d.mails))
	b.Detail("mails sent again, and shown once", repeated)
	b.Detail("requests sent", d.sent)
	b.Detail("sent again, after a kill or a stop", d.again)
	b.Detail("replicas replaced", d.replaced)
	for _, odd := range d.odd {
		b.Odd(odd)
	}
	const longest = "select %s from messages e join messages c on c.place = e.cause where e.category = 'seat' and c.type = 'HoldSeat' order by e.at - c.at desc limit 1"
	for _, stream := range b.Texts(fmt.Sprintf(longest, "e.stream")) {
		wait := time.Duration(b.Number(fmt.Sprintf(longest, "e.at - c.at"))) * time.Microsecond
		b.Say("\nThe longest wait for a decision was %v, in %s, with a lease of %v.", wait.Round(time.Millisecond), stream, d.Lease)
	}
	return fmt.Sprintf("Every request was carried out once, through %d replacements, a kill and a stop", d.replaced), nil
}

type ticketingReplica struct {
	Store string `env:"DIBS_STORE"`
	Mail  string
	Lease time.Duration
}

// Run serves on the socket that it was started with.
func (c *ticketingReplica) Run(ctx context.Context, o *Output) error {
	listener, err := Inherited()
	if err != nil {
		return err
	}
	return ticketing.Run(ctx, listener, ticketing.Config{
		Database: c.Store, Mail: c.Mail, Lease: c.Lease, Logger: logger.Zerolog(zerolog.New(o.Stderr).Level(zerolog.WarnLevel)),
	})
}
