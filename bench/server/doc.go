// Package server starts the servers that are measured: a durable PostgreSQL of the
// bench's own, and Redis. Each answers on a Unix socket in a folder of its own, on no
// port, and ends with the process that started it, however that ends.
package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// startTimeout bounds how long a server may take until it answers, stopTimeout until
// it has ended.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 20 * time.Second
)

// A process is a server that runs.
type process struct {
	dir  string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed once it has ended
}

// start runs a server in dir, as the user owner if there is one. It is told to end by
// the signal stop, also by the kernel if this process dies.
func start(dir string, owner *syscall.Credential, stop syscall.Signal, env []string, name string, args ...string) (*process, error) {
	p := &process{dir: dir, log: filepath.Join(dir, "log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(name, args...) //nolint:noctx // it outlives the call that starts it; Stop ends it
	p.cmd.Dir = dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// In a group of its own, so that Ctrl-C at the terminal is ours to pass on.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner, Setpgid: true, Pdeathsig: stop}

	started := make(chan error)
	go func() {
		// The kernel's signal comes when the thread that forked ends: this one stays
		// for as long as the server does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in its log
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// await calls answers until it does, or the server has ended.
func (p *process) await(ctx context.Context, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		retry := time.NewTimer(20 * time.Millisecond)
		select {
		case <-retry.C:
			continue
		case <-p.done:
			err = errors.New("it ended")
		case <-ctx.Done():
		}
		retry.Stop()
		said, _ := os.ReadFile(p.log) // or else nothing
		return fmt.Errorf("%s does not answer: %w\n%s", p.cmd.Path, err, bytes.TrimSpace(said))
	}
}

// end sends the signal, waits, and removes the folder.
func (p *process) end(signal syscall.Signal) error {
	_ = p.cmd.Process.Signal(signal) // it may have ended
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return os.RemoveAll(p.dir)
}

// folder makes a folder for a server below base, which has to be on a disk: on memory a
// sync costs nothing. It belongs to the owner, if there is one.
func folder(base, name string, owner *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp(base, "dibs-bench-"+name+".")
	if err != nil {
		return "", err
	}
	if owner != nil {
		err = os.Chown(dir, int(owner.Uid), int(owner.Gid))
	}
	return dir, err
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
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
