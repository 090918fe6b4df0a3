// Package server starts the PostgreSQL that the soak torments, a direct child of the
// harness: kills all its processes at once, pauses some of them, and starts it again.
package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A process is a child that the kernel ends if this process dies. A server that is
// paused by then is what a [Keeper] is for.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has ended and was waited for
}

// startProcess starts cmd, in a group of its own so that Ctrl-C at the terminal is ours
// to pass on.
func startProcess(cmd *exec.Cmd, owner *syscall.Credential, ifWeDie syscall.Signal) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Setpgid: true, Pdeathsig: ifWeDie}
	started := make(chan error)
	go func() {
		// The kernel's signal comes when the thread that forked ends: this one stays
		// for as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// A Child is a process of the harness: a client that may be killed. It is safe for
// concurrent use.
type Child struct {
	process *process
	stderr  *tail
}

// StartChild starts cmd, which dies with this process however that ends. What it says on
// standard error is kept, the last of it, and written to said.
func StartChild(cmd *exec.Cmd, said io.Writer) (*Child, error) {
	c := &Child{stderr: &tail{}}
	cmd.Stderr = io.MultiWriter(c.stderr, said)
	cmd.WaitDelay = time.Second
	var err error
	c.process, err = startProcess(cmd, nil, syscall.SIGKILL)
	return c, err
}

// PID is the child's.
func (c *Child) PID() int { return c.process.cmd.Process.Pid }

// Done is closed once the child has ended.
func (c *Child) Done() <-chan struct{} { return c.process.done }

// Signal sends a signal. A child that has ended hears of none.
func (c *Child) Signal(s syscall.Signal) { _ = c.process.cmd.Process.Signal(s) }

// Kill ends the child at once, paused or not, and waits until it has.
func (c *Child) Kill() {
	c.Signal(syscall.SIGKILL)
	<-c.process.done
}

// Ended says how the child ended: nil for exit status 0. It waits for it.
func (c *Child) Ended() error {
	<-c.process.done
	state := c.process.cmd.ProcessState
	if state.Success() {
		return nil
	}
	return fmt.Errorf("%s: %s", state, c.stderr.String())
}

// ExitCode is the child's exit status, -1 if a signal ended it. It waits for the end.
func (c *Child) ExitCode() int {
	<-c.process.done
	return c.process.cmd.ProcessState.ExitCode()
}

// Killed reports whether a SIGKILL ended the child. It waits for the end.
func (c *Child) Killed() bool {
	<-c.process.done
	status, ok := c.process.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// A tail keeps the last of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 8 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > tailBytes {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}

// below returns the processes whose working folder is dir or below it: those of a server
// that runs there, whoever their parent is by now.
func below(dir string) []int {
	entries, _ := os.ReadDir("/proc") // of nothing there is nothing below
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", entry.Name(), "cwd"))
		if err != nil {
			continue
		}
		if cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			found = append(found, pid)
		}
	}
	return found
}

// killBelow kills every process whose working folder is dir or below it, until there is
// none.
func killBelow(dir string) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(stopTimeout); ; <-again.C {
		found := below(dir)
		if len(found) == 0 {
			return nil
		}
		for _, pid := range found {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s do not end", found, dir)
		}
	}
}

// unprivileged returns who PostgreSQL runs as: postgres if we are root, which it
// refuses, and else nil for ourselves.
func unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("run by root PostgreSQL needs a user postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
