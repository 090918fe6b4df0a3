// Package server starts the PostgreSQL that the soak torments, a direct child of the
// harness: kills all its processes at once, pauses some of them, and starts it again.
package server

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
)

// A Child is a process of the harness: a client that may be killed. It is safe for
// concurrent use.
type Child struct {
	*testserver.Process
	stderr *tail
}

// StartChild starts cmd, which dies with this process even if that is killed. The last part of its
// standard error is kept, and written to said.
func StartChild(cmd *exec.Cmd, said io.Writer) (*Child, error) {
	c := &Child{stderr: &tail{}}
	cmd.Stderr = io.MultiWriter(c.stderr, said)
	cmd.WaitDelay = time.Second
	var err error
	c.Process, err = testserver.Start(cmd, nil, syscall.SIGKILL)
	return c, err
}

// Kill ends the child at once, paused or not, and waits until it has.
func (c *Child) Kill() {
	c.Signal(syscall.SIGKILL)
	<-c.Done()
}

// Ended waits for the child's end and returns how it ended: nil for exit status 0.
func (c *Child) Ended() error {
	state := c.State()
	if state.Success() {
		return nil
	}
	return fmt.Errorf("%s: %s", state, c.stderr.String())
}

// ExitCode waits for the child's end and returns its exit status, or -1 if a signal ended it.
func (c *Child) ExitCode() int { return c.State().ExitCode() }

// Killed waits for the child's end and reports whether a SIGKILL ended it.
func (c *Child) Killed() bool {
	status, ok := c.State().Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// A tail keeps the last bytes that are written to it.
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

// below returns the processes with dir, or a folder below it, as the working folder: all processes
// of a server that runs there, even if their parent has ended.
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

// killBelow kills the processes of [below] until no process is left.
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
