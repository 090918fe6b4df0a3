package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stopLimit is how long a process may take to stop.
const stopLimit = 2 * time.Minute

// A Process is this program, started again in a role.
type Process struct {
	Errors bytes.Buffer // the standard error, of all that ran in its place; to be read once it has ended
	Last   bool         // it is not stopped before the verdict, which asks it

	run    *Run
	name   string
	args   []string
	socket *os.File // that it serves on, nil for none

	cmd   *exec.Cmd
	ended chan struct{}
	told  atomic.Bool // to end
}

// Start starts this program again on the run's store. If the process ends without Kill or Stop, the
// run fails.
func (r *Run) Start(name string, socket *os.File, args ...string) (*Process, error) {
	p := &Process{run: r, name: name, args: args, socket: socket}
	if err := p.start(); err != nil {
		return nil, err
	}
	r.processes = append(r.processes, p)
	return p, nil
}

func (p *Process) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd, p.ended = exec.Command(self, p.args...), make(chan struct{}) //nolint:noctx // itself; stopped by signal
	p.cmd.Stderr = &p.Errors
	p.cmd.Env = append(os.Environ(), StoreVariable+"="+p.run.URL) // not an argument: it may hold a password
	// The children have their own process group, so that Ctrl-C reaches them only through this
	// process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.socket != nil {
		p.cmd.ExtraFiles = []*os.File{p.socket}
	}
	p.told.Store(false)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		defer close(p.ended)
		if err := p.cmd.Wait(); !p.told.Load() {
			p.run.fail(fmt.Errorf("%s ended: %w\n%s", p.name, err, strings.TrimSpace(p.Errors.String())))
		}
	}()
	return nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends a process like a power cut. It does nothing if the process has ended.
func (p *Process) Kill() {
	p.told.Store(true)
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// KillAndStart kills a process, and starts another instead.
func (p *Process) KillAndStart() error {
	p.Kill()
	return p.start()
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%v to %s: %w", s, p.name, err)
	}
	return nil
}

// AwaitStop waits until all threads of a process are stopped. A running thread stops some time
// after SIGSTOP, and may take the lock of a store in a file until then. If the system does not show
// the state of threads, AwaitStop waits for a while.
func (p *Process) AwaitStop(ctx context.Context) error {
	stopped := func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
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
		Wait(ctx, time.Millisecond)
	}
	return context.Cause(ctx)
}

// Stop ends a process like a deployment. If the process has not begun its work, the signal kills
// it, or it returns that it was interrupted.
func (p *Process) Stop() error { return p.stop(stopLimit) }

func (p *Process) stop(limit time.Duration) error {
	if !p.told.Swap(true) {
		if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	select {
	case <-p.ended:
	case <-time.After(limit):
		_ = p.Signal(syscall.SIGQUIT) // its goroutines tell what it waits for
		<-p.ended
		return fmt.Errorf("%s did not end in %v after SIGTERM: %s", p.name, limit, strings.TrimSpace(p.Errors.String()))
	}
	state := p.cmd.ProcessState
	status, ok := state.Sys().(syscall.WaitStatus)
	if state.Success() || state.ExitCode() == interrupted || ok && status.Signaled() && status.Signal() == syscall.SIGTERM {
		return nil
	}
	return fmt.Errorf("%s ended: %v: %s", p.name, state, strings.TrimSpace(p.Errors.String()))
}

// Restart stops a process and starts it again.
func (p *Process) Restart() error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.start()
}

// stopAll stops all processes at once, except the processes that the verdict needs.
func (r *Run) stopAll() error {
	ended := make([]error, len(r.processes))
	var ending sync.WaitGroup
	for i, p := range r.processes {
		if !p.Last {
			ending.Go(func() { ended[i] = p.Stop() })
		}
	}
	ending.Wait()
	return errors.Join(ended...)
}

// Until calls done at intervals until it returns true or an error, or ctx ends.
func Until(ctx context.Context, interval time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Wait returns after a time, or when ctx ends.
func Wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
