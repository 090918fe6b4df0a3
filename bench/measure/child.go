package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/bench/server"
)

// childVariable is set in the environment of the processes that [Cell.Processes]
// starts: their task, as JSON.
const childVariable = "DIBS_BENCH_CHILD"

// A ChildFunc is the work of a child process of a cell. Like a Run, it calls [Cell.Callers] or
// [Cell.Once] of its own cell. The servers belong to the parent, so their addresses are in args.
type ChildFunc func(ctx context.Context, cell *Cell, args json.RawMessage) error

var children = map[string]ChildFunc{}

// RegisterChild registers the work of a child process under a name. Call it from init functions.
func RegisterChild(name string, f ChildFunc) { children[name] = f }

type childTask struct {
	Name         string
	Args         json.RawMessage
	Time, Warmup time.Duration
	Long, Smoke  bool
	Seed         uint64
}

// A childPipe is how a child speaks with its parent: it says that it is ready, waits
// for a line, works, and prints its tally.
type childPipe struct {
	in  *bufio.Reader
	out io.Writer
}

func (p *childPipe) awaitGo() error {
	if p == nil {
		return nil
	}
	if _, err := fmt.Fprintln(p.out, "ready"); err != nil {
		return err
	}
	_, err := p.in.ReadString('\n')
	return err
}

// RunChild does the work of a child if this process is a child, and then exits. Call it first in
// main, and in the TestMain of a package with tests that run cells.
func RunChild() {
	encoded, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	if err := runChild(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // it is main's, here
	}
	os.Exit(0) //nolint:forbidigo // it is main's, here
}

func runChild(encoded string) error {
	var task childTask
	if err := json.Unmarshal([]byte(encoded), &task); err != nil {
		return err
	}
	f := children[task.Name]
	if f == nil {
		return fmt.Errorf("there is no child %q", task.Name)
	}
	ctx := context.Background()
	cell := &Cell{
		Servers: server.NewSet(""), Time: task.Time, Warmup: task.Warmup, Long: task.Long, Smoke: task.Smoke, Seed: task.Seed,
		child: &childPipe{bufio.NewReader(os.Stdin), os.Stdout},
	}
	if err := errors.Join(f(ctx, cell, task.Args), cell.close(ctx)); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(cell.tally)
}

// start starts the process of a number.
func (c *Cell) start(ctx context.Context, name string, arg any, number uint64) (*childProcess, error) {
	encoded, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	return startChild(ctx, childTask{Name: name, Args: encoded, Time: c.Time, Warmup: c.Warmup, Long: c.Long, Smoke: c.Smoke, Seed: c.Seed + number<<32})
}

// Processes starts a process for each of args, and measures them while all do the work registered
// under name. Meanwhile it calls meanwhile, if it is not nil, with a context that ends when the
// processes have ended. It returns the tally of each process, and adds them up in the cell's own
// tally, except figures added by Set.
func (c *Cell) Processes(ctx context.Context, name string, args []any, meanwhile func(ctx context.Context) error) ([]Tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	processes := make([]*childProcess, len(args))
	for i, arg := range args {
		var err error
		if processes[i], err = c.start(ctx, name, arg, uint64(i)); err != nil {
			return nil, err
		}
		defer processes[i].stop(cancel)
	}
	tallies := make([]Tally, len(processes))
	err := c.window(ctx, func() error {
		return each(processes, func(_ int, p *childProcess) error { return p.awaitReady() })
	}, func() error {
		working, worked := context.WithCancel(ctx)
		other := make(chan error, 1)
		go func() {
			if meanwhile == nil {
				other <- nil
				return
			}
			other <- meanwhile(working)
		}()
		err := each(processes, func(i int, p *childProcess) (err error) {
			tallies[i], err = p.work()
			return err
		})
		worked()
		return errors.Join(err, <-other)
	})
	for _, t := range tallies {
		c.tally.Units += t.Units
		c.tally.All += t.All
		c.tally.ClientCPU += t.ClientCPU
		c.tally.Latency.Merge(t.Latency)
	}
	return tallies, err
}

type childProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(ctx context.Context, task childTask) (*childProcess, error) {
	encoded, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &childProcess{cmd: exec.CommandContext(ctx, self)}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(encoded))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

func (p *childProcess) awaitReady() error {
	line, err := p.out.ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("it said %q", line)
	}
	if err != nil {
		return fmt.Errorf("a process did not get ready: %w", err)
	}
	return nil
}

func (p *childProcess) work() (t Tally, err error) {
	if _, err := io.WriteString(p.in, "go\n"); err != nil {
		return t, fmt.Errorf("a process went away: %w", err)
	}
	if err := json.NewDecoder(p.out).Decode(&t); err != nil {
		return t, fmt.Errorf("a process did not report its work: %w", err)
	}
	return t, nil
}

// stop waits for the process to end; if its standard input's end does not, the context
// does.
func (p *childProcess) stop(cancel context.CancelFunc) {
	_ = p.in.Close() // it may have ended
	ended := time.AfterFunc(5*time.Second, cancel)
	defer ended.Stop()
	_ = p.cmd.Wait() // it has printed its results
}

// each calls f for all at once.
func each(processes []*childProcess, f func(int, *childProcess) error) error {
	errs := make([]error, len(processes))
	var all sync.WaitGroup
	for i, p := range processes {
		all.Go(func() { errs[i] = f(i, p) })
	}
	all.Wait()
	return errors.Join(errs...)
}
