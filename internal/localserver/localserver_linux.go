// Package localserver starts servers as children of this process, which end with it however
// that ends. The bench measures them, and the soak torments them.
package localserver

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

const (
	answersWithin = 60 * time.Second // a server, its recovery included
	askEvery      = 10 * time.Millisecond
)

// A Process is a child that the kernel ends if this process dies. It is safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts cmd as the user owner, nil for ours, and sets its SysProcAttr: it is in a group of
// its own, so that Ctrl-C at the terminal is ours to pass on, and the kernel sends it ifWeDie if
// this process dies.
func Start(cmd *exec.Cmd, owner *syscall.Credential, ifWeDie syscall.Signal) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
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
			_ = cmd.Wait() // State has how it ended
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID is the child's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal. A child that has ended hears of none.
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

// EndsWithin reports whether the child ends in so long.
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

// State says how the child ended. It waits for the end.
func (p *Process) State() *os.ProcessState {
	<-p.done
	return p.cmd.ProcessState
}

// Await returns once answers returns nil, which it is asked again and again. It returns the error
// of answers if ctx is done or a minute is over, and another error if the child has ended.
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

// PostgresBin returns the folder of PostgreSQL's programs: the folder that POSTGRES_BIN names, or
// the newest of Debian's, or the one in the PATH.
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

// newest returns the path of the highest version: 15 in /usr/lib/postgresql/15/bin/postgres.
func newest(paths []string) string {
	version := func(path string) int {
		n, _ := strconv.Atoi(strings.Split(path, "/")[4]) // 0 if it is not a number
		return n
	}
	return slices.MaxFunc(paths, func(a, b string) int { return version(a) - version(b) })
}

// Unprivileged returns the user that runs PostgreSQL: postgres if this process is root, because PostgreSQL
// refuses root, and else nil for the same user.
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
