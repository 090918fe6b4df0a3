package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/serve"
)

// dibsVariable is set in the environment of a process that [StartService] starts: the address for
// clients, the one for operators, and the store.
const dibsVariable = "DIBS_BENCH_SERVE"

// Service is a server of package serve, in a process of its own.
type Service struct {
	process        *process
	address, admin string
}

// StartService serves a store. The caller stops it.
func StartService(ctx context.Context, base, storeURL string) (*Service, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	d := &Service{address: address, admin: admin}
	variables := []string{"-u", "GOGC", dibsVariable + "=" + address + " " + admin + " " + storeURL, self}
	if d.process, err = startListening(ctx, base, "serve", address, "env", variables...); err != nil {
		return nil, err
	}
	return d, nil
}

// RunService serves if this process is to, and then exits. Call it first in main.
func RunService() {
	var address, admin, store string
	if _, err := fmt.Sscan(os.Getenv(dibsVariable), &address, &admin, &store); err != nil {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := serveStore(ctx, address, admin, store); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // it is main's, here
	}
	os.Exit(0) //nolint:forbidigo // it is main's, here
}

func serveStore(ctx context.Context, address, admin, url string) error {
	store, err := dibs.Open(ctx, url, &messagestore.Config{Logger: logger.Silent()})
	if err != nil {
		return err
	}
	s, err := serve.New(store, &serve.Config{Logger: logger.Silent()})
	if err == nil {
		err = s.Run(ctx, serve.Listen{Address: address, Admin: admin})
	}
	return errors.Join(err, store.Close())
}

// PID returns the server's process id.
func (d *Service) PID() int { return d.process.PID() }

// URL returns where clients call.
func (d *Service) URL() string { return "http://" + d.address }

// Waiting returns how many calls wait.
func (d *Service) Waiting(ctx context.Context) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	const name = "dibs_serve_waiting_calls "
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), name); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, errors.New("there is no metric " + name)
}

// Stop stops the server.
func (d *Service) Stop() error { return d.process.end(syscall.SIGTERM) }

// Querator is a server of Querator, in a process of its own.
type Querator struct {
	process *process
	address string
}

// StartQuerator starts Querator with a store: badger, which is durable, or memory. The caller stops
// it.
func StartQuerator(ctx context.Context, base, driver string) (*Querator, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(os.TempDir(), "dibs-bench-querator")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/kapetan-io/querator/cmd/querator").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build querator: %w\n%s", err, out)
	}
	config, err := os.CreateTemp(base, "querator-*.yaml")
	if err != nil {
		return nil, err
	}
	storage, err := os.MkdirTemp(base, "dibs-bench-querator-data.")
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(config, `address: %s
logging:
  handler: text
  level: error
queue-storage:
  driver: %s
  config:
    storage-dir: %s/queues
partition-storage:
  - name: one
    driver: %s
    affinity: 1
    config:
      storage-dir: %s/partitions
`, address, driver, storage, driver, storage)
	if err = errors.Join(err, config.Close()); err != nil {
		return nil, err
	}
	q := &Querator{address: address}
	q.process, err = startListening(ctx, base, "querator", address, bin, "server", "--config", config.Name())
	return q, err
}

// PID returns the server's process id.
func (q *Querator) PID() int { return q.process.PID() }

// URL returns where clients call.
func (q *Querator) URL() string { return "http://" + q.address }

// Stop stops the server.
func (q *Querator) Stop() error { return q.process.end(syscall.SIGKILL) }

// startListening starts a program and waits until it listens.
func startListening(ctx context.Context, base, name, address string, program string, args ...string) (*process, error) {
	dir, err := folder(base, name, nil)
	if err != nil {
		return nil, err
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, err
	}
	p, err := start(dir, nil, syscall.SIGKILL, path, args...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = p.await(ctx, func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, errors.Join(err, p.end(syscall.SIGKILL))
	}
	return p, nil
}

// freeAddress returns an address that nobody listens at.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
