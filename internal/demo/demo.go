package demo

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/messagestore"
)

const (
	senders   = 4
	consumers = 2
)

type demoCommand struct {
	Store  string        `env:"DIBS_STORE" placeholder:"URL" help:"The store, without accounts. Defaults to SQLite in a throwaway folder."`
	Orders string        `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to 4,334 orders of a Czech bank."`
	Seed   uint64        `placeholder:"N" help:"Draw duplicates and order from this. Defaults to the time."`
	Limit  time.Duration `default:"5m" placeholder:"TIME" help:"Give up after this time. Defaults to ${default}."`
}

// Run runs the component in processes, sends it every order several times, kills a
// consumer, and compares the books.
func (c *demoCommand) Run(ctx context.Context, o *output) (err error) {
	orders, err := readOrders(c.Orders)
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
	where, cleanUp, err := prepareStore(ctx, c.Store, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()

	seed := cmp.Or(c.Seed, uint64(time.Now().UnixNano())) // any bits will do
	d := &demo{
		url: where, file: c.Orders, seed: seed, dir: dir, out: o.stdout,
		orders: orders, plan: newPlan(orders, seed, senders), started: time.Now(),
	}
	return d.run(ctx)
}

// A demo is one run.
type demo struct {
	url, file, dir string
	seed           uint64
	out            io.Writer
	orders         []order
	plan           *plan
	started        time.Time

	store   *messagestore.Store
	screen  *screen
	senders []*senderProcess
	group   [consumers]*process
	killed  bool

	mu      sync.Mutex
	reports [senders]report
}

func (d *demo) run(ctx context.Context) (err error) {
	fmt.Fprintf(d.out, "%s standing orders, %d months: %s commands, each sent 1 to 5 times\nby any of %d senders: %s in all (seed %d)\n",
		count(len(d.orders)), len(months), count(d.plan.Distinct), senders, count(d.plan.Sent), d.seed)
	if d.store, err = dibs.Open(ctx, d.url, nil); err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer func() { err = errors.Join(err, d.store.Close()) }()
	page, err := d.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: account.Commands, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Messages) > 0 {
		return fmt.Errorf("%w: the store holds accounts already, and the demo counts on an empty one", errUsage)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.screen = newScreen(d.out)
	defer d.screen.done()
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
	w := newWatcher(d.store)
	if err := d.watch(ctx, w, cancel); err != nil {
		return err
	}
	if err := d.stopConsumers(); err != nil {
		return err
	}
	d.screen.done()
	return d.verdict(ctx)
}

// watch shows the progress until everything is handled, lets the senders go on to
// the second phase when all are done with the first, and kills a consumer.
func (d *demo) watch(ctx context.Context, w *watcher, cancel context.CancelCauseFunc) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for phase := 1; ; {
		if err := w.look(ctx); err != nil {
			return cause(ctx, err)
		}
		sent, done := d.senderState(phase)
		if done && phase == 1 {
			phase = 2
			for _, s := range d.senders {
				if _, err := io.WriteString(s.stdin, "go\n"); err != nil {
					return fmt.Errorf("start a sender's second phase: %w", err)
				}
			}
			done = false
		}
		withdrawals := len(d.plan.Repeats)
		d.screen.show(progress{
			Done: w.decided, Of: withdrawals, Duplicates: w.duplicates + int(sent.Refused), Lag: w.lag(),
			Written: w.messages, Elapsed: time.Since(d.started),
		})
		if !d.killed && w.decided > withdrawals/4 {
			d.killed = true
			if err := d.killConsumer(0, w, cancel); err != nil {
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

// cause prefers why the context ended to the error that its end led to.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (d *demo) senderState(phase int) (sum report, done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	done = true
	for _, r := range d.reports {
		sum.Sent += r.Sent
		sum.Refused += r.Refused
		done = done && r.Phase >= phase
	}
	return sum, done
}

// A process is a child process and its standard error.
type process struct {
	*exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
	killed atomic.Bool
}

// end kills a process that has not ended.
func (p *process) end() {
	if p == nil {
		return
	}
	select {
	case <-p.ended:
	default:
		p.killed.Store(true)
		_ = p.Process.Kill() // it may have ended in the meantime
		<-p.ended
	}
}

func (d *demo) start(name string, cancel context.CancelCauseFunc, prepare func(*exec.Cmd) error, args ...string) (*process, error) {
	return startProcess(name, d.url, cancel, prepare, args...)
}

// startProcess starts this program again, on the store of a URL. If the process fails, ctx ends.
func startProcess(name, storeURL string, cancel context.CancelCauseFunc, prepare func(*exec.Cmd) error, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{Cmd: exec.Command(self, args...), ended: make(chan struct{})} //nolint:noctx // itself; stopped by signal
	p.Stderr = &p.stderr
	p.Env = append(os.Environ(), storeVariable+"="+storeURL) // not an argument: it may hold a password
	// A group of its own, so that Ctrl-C reaches the children through this process only.
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if prepare != nil {
		if err := prepare(p.Cmd); err != nil {
			return nil, err
		}
	}
	if err := p.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		err := p.Wait()
		if err != nil && !p.killed.Load() {
			cancel(fmt.Errorf("%s ended: %w\n%s", name, err, strings.TrimSpace(p.stderr.String())))
		}
	}()
	return p, nil
}

func (d *demo) startConsumer(i int, cancel context.CancelCauseFunc) error {
	p, err := d.start(fmt.Sprintf("consumer %d", i+1), cancel, nil, "run",
		"--group-size", strconv.Itoa(consumers), "--group-member", strconv.Itoa(i))
	d.group[i] = p
	return err
}

// A senderProcess is a child that reports line by line and waits for one.
type senderProcess struct {
	*process
	stdin io.WriteCloser
}

func (d *demo) startSender(i int, cancel context.CancelCauseFunc) error {
	s := &senderProcess{}
	var stdout io.Reader
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
		"--sender", strconv.Itoa(i), "--of", strconv.Itoa(senders))
	if err != nil {
		return err
	}
	s.process = p
	if w, ok := p.Stdout.(*os.File); ok {
		if err := w.Close(); err != nil { // the child has it now
			return err
		}
	}
	d.senders = append(d.senders, s)
	go func() {
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
func (d *demo) killConsumer(i int, w *watcher, cancel context.CancelCauseFunc) error {
	p := d.group[i]
	p.killed.Store(true)
	if err := p.Process.Kill(); err != nil {
		return fmt.Errorf("kill consumer %d: %w", i+1, err)
	}
	<-p.ended
	d.screen.say(fmt.Sprintf("consumer %d killed with SIGKILL in mid-flight, %s behind; started again",
		i+1, count(w.lag())))
	return d.startConsumer(i, cancel)
}

// stopConsumers ends the consumers as a deployment would: they finish the messages in
// flight, checkpoint, and exit with 0.
func (d *demo) stopConsumers() error {
	for i, p := range d.group {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("stop consumer %d: %w", i+1, err)
		}
	}
	for i, p := range d.group {
		select {
		case <-p.ended:
		case <-time.After(15 * time.Second):
			return fmt.Errorf("consumer %d did not stop", i+1)
		}
		if code := p.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("consumer %d ended with status %d: %s", i+1, code, strings.TrimSpace(p.stderr.String()))
		}
	}
	return nil
}

func (d *demo) killAll() {
	all := d.group[:]
	for _, s := range d.senders {
		all = append(all, s.process)
	}
	for _, p := range all {
		p.end()
	}
}

// prepareStore returns the URL of a store of the run's own, and a function that removes it.
func prepareStore(ctx context.Context, url, dir string) (string, func() error, error) {
	switch {
	case url == "":
		return "sqlite:" + filepath.Join(dir, "demo.db"), func() error { return nil }, nil
	case strings.HasPrefix(url, "postgres://"), strings.HasPrefix(url, "postgresql://"):
		return preparePostgres(ctx, url)
	case strings.HasPrefix(url, "memory:"):
		return "", nil, fmt.Errorf("%w: processes cannot share a store in memory", errUsage)
	}
	return url, func() error { return nil }, nil
}
