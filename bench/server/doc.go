// Package server starts the servers to measure: a durable PostgreSQL, and Redis. Each listens only
// on a Unix socket, in its own folder, and ends with the process that started it, even if that is
// killed.
package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
)

// stopTimeout bounds how long a server may take until it has ended.
const stopTimeout = 20 * time.Second

// A process is a running server, in its own folder.
type process struct {
	*testserver.Process
	dir string
	log string
}

// start runs a server in dir, as the user owner if owner is not nil. The signal stop ends it; the
// kernel sends that if this process dies.
func start(dir string, owner *syscall.Credential, stop syscall.Signal, name string, args ...string) (*process, error) {
	p := &process{dir: dir, log: filepath.Join(dir, "log")}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(name, args...) //nolint:noctx // it outlives the call that starts it; Stop ends it
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = log, log
	p.Process, err = testserver.Start(cmd, owner, stop)
	return p, err
}

// await calls answers until it does, or the server has ended.
func (p *process) await(ctx context.Context, answers func(context.Context) error) error {
	if err := p.Await(ctx, answers); err != nil {
		said, _ := os.ReadFile(p.log) // or else nothing
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(said))
	}
	return nil
}

// end sends the signal, waits, and removes the folder.
func (p *process) end(signal syscall.Signal) error {
	p.Signal(signal)
	if !p.EndsWithin(stopTimeout) {
		p.Signal(syscall.SIGKILL)
		<-p.Done()
	}
	return os.RemoveAll(p.dir)
}

// folder makes a folder for a server below base. base must be on a disk, because in memory a sync
// costs nothing. It belongs to the owner, if there is one.
func folder(base, name string, owner *syscall.Credential) (string, error) {
	dir, err := os.MkdirTemp(base, "dibs-bench-"+name+".")
	if err != nil {
		return "", err
	}
	return dir, testserver.Own(dir, owner)
}
