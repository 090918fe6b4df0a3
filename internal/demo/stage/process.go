package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Process is a child process and its standard error.
type Process struct {
	*exec.Cmd
	Errors bytes.Buffer
	Ended  chan struct{}
	Killed atomic.Bool

	name string
}

// End kills a process that has not ended.
func (p *Process) End() {
	if p == nil {
		return
	}
	select {
	case <-p.Ended:
	default:
		p.Killed.Store(true)
		_ = p.Process.Kill() // it may have ended in the meantime
		<-p.Ended
	}
}

// Stop ends a process as a deployment does, within a limit. A process that is stopped before it has
// begun ends by the signal itself, or interrupted.
func (p *Process) Stop(limit time.Duration) error {
	p.Killed.Store(true)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.Ended:
	case <-time.After(limit):
		// Its goroutines tell what it waits for.
		_ = p.Process.Signal(syscall.SIGQUIT)
		<-p.Ended
		return fmt.Errorf("%s did not end in %v after SIGTERM: %s", p.name, limit, strings.TrimSpace(p.Errors.String()))
	}
	return p.result()
}

// result is the error of a process that has ended.
func (p *Process) result() error {
	status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
	if p.ProcessState.Success() || p.ProcessState.ExitCode() == interrupted || ok && status.Signaled() && status.Signal() == syscall.SIGTERM {
		return nil
	}
	return fmt.Errorf("%s ended: %v: %s", p.name, p.ProcessState, strings.TrimSpace(p.Errors.String()))
}

// Finish stops all processes that have not ended, at once.
func Finish(limit time.Duration, processes ...*Process) error {
	ended := make([]error, len(processes))
	var ending sync.WaitGroup
	for i, p := range processes {
		ending.Go(func() {
			select {
			case <-p.Ended:
				ended[i] = p.result()
			default:
				ended[i] = p.Stop(limit)
			}
		})
	}
	ending.Wait()
	return errors.Join(ended...)
}

// StartProcess starts this program again, on the store of a URL. If the process fails, ctx ends.
func StartProcess(name, storeURL string, cancel context.CancelCauseFunc, prepare func(*exec.Cmd) error, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{Cmd: exec.Command(self, args...), Ended: make(chan struct{}), name: name} //nolint:noctx // itself; stopped by signal
	p.Stderr = &p.Errors
	p.Env = append(os.Environ(), StoreVariable+"="+storeURL) // not an argument: it may hold a password
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
		defer close(p.Ended)
		err := p.Wait()
		if err != nil && !p.Killed.Load() {
			cancel(fmt.Errorf("%s ended: %w\n%s", name, err, strings.TrimSpace(p.Errors.String())))
		}
	}()
	return p, nil
}

// Cause prefers why the context ended to the error that its end led to.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Listen returns a socket for processes to inherit, and its URL.
func Listen() (*os.File, string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed below
	if err != nil {
		return nil, "", err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, "", errors.New("a listener that is none of TCP")
	}
	file, err := shared(tcp)
	if err := errors.Join(err, listener.Close()); err != nil {
		return nil, "", err
	}
	return file, "http://" + listener.Addr().String(), nil
}

// shared returns the socket of a listener for processes to inherit. The file that TCPListener.File
// returns is set to block each time that a process is started with it. The processes share that
// setting, so the accept of a running process would block too, and its Close would wait for the
// next client.
func shared(listener *net.TCPListener) (file *os.File, err error) {
	conn, err := listener.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := conn.Control(func(fd uintptr) {
		var copied int
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if copied, err = syscall.Dup(int(fd)); err == nil { //nolint:gosec // a descriptor is small
			syscall.CloseOnExec(copied)
			file = os.NewFile(uintptr(copied), "listener") //nolint:gosec // as above
		}
	})
	return file, errors.Join(failed, err)
}

// Inherited returns the socket that the process was started with.
func Inherited() (net.Listener, error) {
	const first = 3
	listener, err := net.FileListener(os.NewFile(first, "listener"))
	if err != nil {
		return nil, fmt.Errorf("the socket of the demo: %w", err)
	}
	return listener, nil
}

// Serve serves on the socket that the process was started with, until ctx ends.
func Serve(ctx context.Context, h http.Handler) error {
	listener, err := Inherited()
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return server.Shutdown(ending)
}
