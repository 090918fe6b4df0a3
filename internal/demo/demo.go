package demo

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	senders   = 4
	consumers = 2 // processes
	lease     = 2 * time.Second

	stopLimit = 2 * time.Minute // for a process that is told to end
)

type demoCommand struct {
	Store  string `env:"DIBS_STORE" placeholder:"URL" help:"The store, without accounts. Defaults to SQLite in a throwaway folder."`
	Orders string `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to 4,334 orders of a Czech bank."`
	Seed   uint64 `placeholder:"N" help:"Draw duplicates and order from this. Defaults to the time."`
	stage.Limit
}

// Help is printed below the command's usage.
func (demoCommand) Help() string {
	return `It starts two consumers and four senders as processes on this machine. Each command is sent one to five times, by any sender. A consumer is killed with SIGKILL in mid-flight and started again.

Then it compares the file with the messages in the store, and tells what became of one withdrawal. The exit code is 0 if both agree, and 1 if not. If the limit ends first, the senders finish the writes that they have begun, the commands that were sent are handled and compared, and the exit code is 3 if they agree.`
}

// Run runs the component in processes, sends it every order several times, kills a
// consumer, and compares the books.
func (c *demoCommand) Run(ctx context.Context, o *stage.Output) (err error) {
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

	seed := cmp.Or(c.Seed, uint64(time.Now().UnixNano())) // any bits will do
	d := &demo{
		url: where, file: c.Orders, seed: seed, dir: dir, out: o.Stdout,
		limit: c.Limit, orders: orders, plan: newPlan(orders, seed, senders), started: time.Now(),
	}
	return d.run(ctx)
}

// A demo is one run.
type demo struct {
	url, file, dir string
	seed           uint64
	out            io.Writer
	limit          stage.Limit
	orders         []Order
	plan           *plan
	started        time.Time

	store   *messagestore.Store
	watcher *watcher
	screen  *stage.Screen
	senders []*senderProcess
	group   [consumers]*stage.Process
	killed  bool

	mu      sync.Mutex
	reports [senders]report
}

func (d *demo) run(ctx context.Context) (err error) {
	fmt.Fprintf(d.out, "%s standing orders, %d months: %s commands, each sent 1 to 5 times\nby any of %d senders: %s in all (seed %d)\n",
		stage.Count(len(d.orders)), len(months), stage.Count(d.plan.Distinct), senders, stage.Count(d.plan.Sent), d.seed)
	if d.store, err = dibs.Open(ctx, d.url, nil); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer func() { err = errors.Join(err, d.store.Close()) }()
	page, err := d.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: account.Commands, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Messages) > 0 {
		return fmt.Errorf("%w: the store holds accounts already, and the demo counts on an empty one", stage.ErrUsage)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.screen = stage.NewScreen(d.out)
	defer d.screen.Done()
	defer d.killAll()
	for i := range d.group {
		if err := d.startConsumer(i, cancel); err != nil {
			return err
		}
	}
	for i := range senders {
		if err := d.startSender(i, cancel); err != nil {
			return err
		}
	}
	d.watcher = newWatcher(d.store)
	return d.limit.Run(ctx, d.screen, stage.Work{
		Do:     func(ctx context.Context) error { return d.watch(ctx, cancel) },
		Settle: d.settle, Stop: d.stopConsumers, Verdict: d.verdict,
	})
}

// settle has the senders finish the writes that they have begun, and waits until everything that was sent is handled.
func (d *demo) settle(ctx context.Context) error {
	senders := make([]*stage.Process, len(d.senders))
	for i, s := range d.senders {
		senders[i] = s.Process
	}
	// A sender breaks off what it has begun after the time to settle.
	err := stage.Finish(d.limit.Settle+stopLimit, senders...)
	for _, s := range d.senders {
		<-s.reported
	}
	if err != nil {
		return err
	}
	for {
		if err := d.watcher.look(ctx); err != nil {
			return err
		}
		if d.watcher.lag() == 0 {
			return nil
		}
		if wait(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// watch shows the progress until everything is handled, lets the senders go on to
// the next phase when all are done with one, and kills a consumer.
func (d *demo) watch(ctx context.Context, cancel context.CancelCauseFunc) error {
	w := d.watcher
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for phase := 1; ; {
		if err := w.look(ctx); err != nil {
			return stage.Cause(ctx, err)
		}
		sent, done := d.senderState(phase)
		if done && phase < len(d.plan.phases) {
			phase++
			for _, s := range d.senders {
				if _, err := io.WriteString(s.stdin, "go\n"); err != nil {
					return fmt.Errorf("start a sender's phase %d: %w", phase, err)
				}
			}
			done = false
		}
		withdrawals := len(d.plan.Repeats)
		d.screen.Show(stage.Progress{
			Done: w.decided, Of: withdrawals, Duplicates: w.duplicates + int(sent.Refused), Lag: w.lag(),
			Written: w.messages, Elapsed: time.Since(d.started),
		})
		if !d.killed && w.decided > withdrawals/4 {
			d.killed = true
			if err := d.killConsumer(0, cancel); err != nil {
				return err
			}
		}
		if done && w.lag() == 0 && w.decided >= withdrawals {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (d *demo) senderState(phase int) (sum report, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	done = true
	for _, r := range d.reports {
		sum.Begun += r.Begun
		sum.Sent += r.Sent
		sum.Refused += r.Refused
		done = done && r.Phase >= phase
	}
	return sum, done
}

func (d *demo) start(name string, cancel context.CancelCauseFunc, prepare func(*exec.Cmd) error, args ...string) (*stage.Process, error) {
	return stage.StartProcess(name, d.url, cancel, prepare, args...)
}

func (d *demo) startConsumer(i int, cancel context.CancelCauseFunc) error {
	p, err := d.start(fmt.Sprintf("consumer %d", i+1), cancel, nil, "run", "--lease", lease.String())
	d.group[i] = p
	return err
}

// A senderProcess is a child that reports line by line and waits for one.
type senderProcess struct {
	*stage.Process
	stdin    io.WriteCloser
	reported chan struct{} // closed when its last report is read
}

func (d *demo) startSender(i int, cancel context.CancelCauseFunc) error {
	s := &senderProcess{reported: make(chan struct{})}
	var stdout *os.File
	p, err := d.start(fmt.Sprintf("sender %d", i+1), cancel, func(c *exec.Cmd) (err error) {
		if s.stdin, err = c.StdinPipe(); err != nil {
			return err
		}
		var w *os.File
		if stdout, w, err = os.Pipe(); err != nil {
			return err
		}
		c.Stdout = w
		return nil
	}, "send", "--orders", d.file, "--seed", strconv.FormatUint(d.seed, 10),
		"--sender", strconv.Itoa(i), "--of", strconv.Itoa(senders), "--settle", d.limit.Settle.String())
	if err != nil {
		return err
	}
	s.Process = p
	if w, ok := p.Stdout.(*os.File); ok {
		if err := w.Close(); err != nil { // the child has it now
			return err
		}
	}
	d.senders = append(d.senders, s)
	go func() {
		defer close(s.reported)
		defer stdout.Close()
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue
			}
			d.mu.Lock()
			r.Phase = max(r.Phase, d.reports[i].Phase)
			d.reports[i] = r
			d.mu.Unlock()
		}
	}()
	return nil
}

// killConsumer ends a consumer as a power cut would, and starts another in its
// place.
func (d *demo) killConsumer(i int, cancel context.CancelCauseFunc) error {
	p := d.group[i]
	p.Killed.Store(true)
	if err := p.Process.Kill(); err != nil {
		return fmt.Errorf("kill consumer %d: %w", i+1, err)
	}
	<-p.Ended
	d.screen.Say(fmt.Sprintf("consumer %d killed with SIGKILL in mid-flight, %s behind; started again",
		i+1, stage.Count(d.watcher.lag())))
	return d.startConsumer(i, cancel)
}

// stopConsumers ends the consumers as a deployment would: they finish the messages in
// flight, and checkpoint.
func (d *demo) stopConsumers() error {
	return stage.Finish(stopLimit, d.group[:]...)
}

func (d *demo) killAll() {
	all := d.group[:]
	for _, s := range d.senders {
		all = append(all, s.Process)
	}
	for _, p := range all {
		p.End()
	}
}
