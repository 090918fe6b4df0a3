package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// How long [Process.Await] asks a process for an answer, and how often.
const (
	answersWithin = 60 * time.Second // a server, its recovery included
	askEvery      = 10 * time.Millisecond
)

// A Process is a child that the kernel ends if this process dies. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts cmd as the user owner, nil for the current user, and sets its SysProcAttr: the child
// has its own process group, so that this process decides whether to pass on Ctrl-C, and the kernel
// sends it ifWeDie if this process dies.
func Start(cmd *exec.Cmd, owner *syscall.Credential, ifWeDie syscall.Signal) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Setpgid: true, Pdeathsig: ifWeDie}
	started := make(chan error)
	go func() {
		// The kernel's signal comes when the thread that forked ends, so this thread must live as
		// long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // State has how it ended
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal. If the child has ended, nothing happens.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Done is closed once the child has ended and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the child has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// EndsWithin reports whether the child ends within d.
func (p *Process) EndsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// State waits for the end of the child, and returns how it ended.
func (p *Process) State() *os.ProcessState {
	<-p.done
	return p.cmd.ProcessState
}

// Await calls answers repeatedly until it returns nil. It returns the error of answers if ctx is
// done or a minute has passed, and another error if the child has ended.
func (p *Process) Await(ctx context.Context, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		retry := time.NewTimer(askEvery)
		select {
		case <-retry.C:
			continue
		case <-p.done:
			err = errors.New("it ended")
		case <-ctx.Done():
		}
		retry.Stop()
		return fmt.Errorf("%s does not answer: %w", filepath.Base(p.cmd.Path), err)
	}
}

// PostgresBin returns the folder of PostgreSQL's programs: the folder in POSTGRES_BIN, Debian's
// newest version, or the folder in the PATH.
func PostgresBin() (string, error) {
	if bin := os.Getenv("POSTGRES_BIN"); bin != "" {
		return bin, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return filepath.Dir(newest(found)), nil
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		return "", errors.New("there is no PostgreSQL here: install it (on Debian: apt-get install postgresql), or name the folder of its binaries in POSTGRES_BIN")
	}
	return filepath.Dir(path), nil
}

// newest returns the path with the highest version: 15 in /usr/lib/postgresql/15/bin/postgres.
func newest(paths []string) string {
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4]) // 0 if it is not a number
		return n
	}
	return slices.MaxFunc(paths, func(a, b string) int { return version(a) - version(b) })
}

// Unprivileged returns the user that runs PostgreSQL: postgres if this process is root, because
// PostgreSQL refuses root, and otherwise nil, which means the same user.
func Unprivileged() (*syscall.Credential, error) {
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

// Own gives a file to the owner, if that is not nil.
func Own(path string, owner *syscall.Credential) error {
	if owner == nil {
		return nil
	}
	return os.Chown(path, int(owner.Uid), int(owner.Gid))
}
