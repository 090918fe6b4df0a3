package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/testserver"
)

// stopTimeout bounds how long a server may take until it has ended, changeTimeout until it has
// become a standby or a primary.
const (
	stopTimeout   = 20 * time.Second
	changeTimeout = 60 * time.Second
)

// PostgresConfig configures a PostgreSQL.
type PostgresConfig struct {
	// Settings are extra settings of the server, such as "work_mem=1MB".
	//
	// Defaults to no extra settings.
	Settings []string

	// Clock allows [Postgres.SetClock] to set the server's clock. It needs libfaketime.
	//
	// Defaults to false.
	Clock bool
}

// A Postgres is a PostgreSQL server that syncs, on a Unix socket in its own folder and
// on no port. It is safe for concurrent use.
type Postgres struct {
	dir, bin string
	owner    *syscall.Credential
	settings []string
	env      []string // nil for ours

	mu      sync.Mutex
	process *testserver.Process

	reading sync.Mutex
	read    int64 // how much of the log
	ready   int
}

// NewPostgres makes a cluster in a folder below dir, which belongs to a [Keeper], and starts it. It
// uses the binaries in the folder POSTGRES_BIN, or Debian's newest.
func NewPostgres(ctx context.Context, dir, name string, config *PostgresConfig) (*Postgres, error) {
	p, err := newPostgres(dir, name)
	if err != nil {
		return nil, err
	}
	if config != nil {
		p.settings = config.Settings
	}
	if config != nil && config.Clock {
		if p.env, err = p.fakedClock(); err != nil {
			return nil, err
		}
		if err := p.SetClock(0); err != nil {
			return nil, err
		}
	}
	if err := p.command(ctx, "initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"); err != nil {
		return nil, err
	}
	return p, p.Start(ctx)
}

// newPostgres makes the folder.
func newPostgres(dir, name string) (*Postgres, error) {
	bin, err := testserver.PostgresBin()
	if err != nil {
		return nil, err
	}
	owner, err := testserver.Unprivileged()
	if err != nil {
		return nil, err
	}
	p := &Postgres{dir: filepath.Join(dir, name), bin: bin, owner: owner}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return nil, err
	}
	return p, testserver.Own(p.dir, owner)
}

// command runs a program of PostgreSQL in the folder, where a keeper ends it.
func (p *Postgres) command(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, program), args...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner, Setpgid: true}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}

// Start starts the server and waits until it answers, after its recovery if it was
// killed. It does nothing if it runs.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil && p.process.Running() {
		return nil
	}
	log, err := os.OpenFile(p.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // a log to be read
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", "data", "-k", p.dir, "-p", "5432", //nolint:noctx // it outlives the call that starts it
		"-c", "listen_addresses=", "-c", "max_connections=200", "-c", "deadlock_timeout=300ms", "-c", "log_line_prefix=%m [%p] %e ",
		"-c", "recovery_init_sync_method=syncfs") // to open each file first takes four fifths of a recovery
	for _, setting := range p.settings {
		cmd.Args = append(cmd.Args, "-c", setting)
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = p.dir, log, log, p.env
	if p.process, err = testserver.Start(cmd, p.owner, syscall.SIGQUIT); err != nil {
		return err
	}
	return p.await(ctx)
}

// Await returns when the server answers.
func (p *Postgres) Await(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.await(ctx)
}

func (p *Postgres) await(ctx context.Context) error {
	err := p.process.Await(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.lastOfLog())
	}
	return nil
}

// Kill ends all processes of the server at once, and waits until they are gone. It is like a loss
// of power, except that the kernel still writes its data.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process.Signal(syscall.SIGKILL) // first the postmaster, which would start others
	err := killBelow(filepath.Join(p.dir, "data"))
	<-p.process.Done()
	return err
}

// Stop shuts the server down, and waits until it has ended.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.process.Signal(syscall.SIGINT)
	if p.process.EndsWithin(stopTimeout) {
		return nil
	}
	p.process.Signal(syscall.SIGKILL)
	return errors.Join(errors.New("PostgreSQL did not shut down"), killBelow(filepath.Join(p.dir, "data")))
}

// A Backend is one process of the server.
type Backend struct {
	PID  int
	Kind string // "client backend", "checkpointer", "walwriter"
}

// Backends returns the processes of the server except the postmaster. It asks the kernel, because
// the server may be paused.
func (p *Postgres) Backends() []Backend {
	postmaster := p.PID()
	var backends []Backend
	for _, pid := range below(filepath.Join(p.dir, "data")) {
		if pid == postmaster {
			continue
		}
		title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // ended since
		}
		backends = append(backends, Backend{pid, kind(string(bytes.Trim(title, "\x00 ")))})
	}
	return backends
}

// Signal sends a signal to a process of the server, and reports whether the process still exists.
func (p *Postgres) Signal(pid int, sig syscall.Signal) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && cwd == filepath.Join(p.dir, "data") && syscall.Kill(pid, sig) == nil
}

// ClientBackend is the kind of a process that serves a client.
const ClientBackend = "client backend"

// kind reads the title of a process: "postgres: checkpointer " or "postgres: user
// database [local] idle".
func kind(title string) string {
	_, what, _ := strings.Cut(title, ": ")
	for _, own := range []string{"checkpointer", "background writer", "walwriter", "autovacuum", "logical replication launcher", "startup", "stats collector", "walsender", "walreceiver"} {
		if strings.HasPrefix(what, own) {
			return own
		}
	}
	return ClientBackend
}

// Amcheck runs pg_amcheck on all tables and indexes of a database, and returns its findings.
func (p *Postgres) Amcheck(ctx context.Context, database string) (found string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "pg_amcheck"), "--host", p.dir, "--port", "5432", "--username", "postgres", database)
	said, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 {
		return string(said), nil
	}
	if err != nil {
		return "", fmt.Errorf("pg_amcheck: %w\n%s", err, said)
	}
	return "", nil
}

// PID returns the postmaster's process id.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process.PID()
}

// Running reports whether the postmaster exists.
func (p *Postgres) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process != nil && p.process.Running()
}

// URL returns the URL of a database, past every proxy.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=5432", database, p.dir)
}

// Socket returns the path of the server's socket.
func (p *Postgres) Socket() string { return filepath.Join(p.dir, ".s.PGSQL.5432") }

// Name returns the name of the server.
func (p *Postgres) Name() string { return filepath.Base(p.dir) }

// Ready returns how often the server has logged that it is ready for connections. It reads on from
// where it stopped before.
func (p *Postgres) Ready() (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	log, err := os.Open(p.Log())
	if err != nil {
		return 0, err
	}
	defer log.Close()
	if _, err := log.Seek(p.read, io.SeekStart); err != nil {
		return 0, err
	}
	more, err := io.ReadAll(log)
	if err != nil {
		return 0, err
	}
	more = more[:1+bytes.LastIndexByte(more, '\n')] // the rest of a line comes later
	p.read += int64(len(more))
	p.ready += bytes.Count(more, []byte("LOG:  database system is ready to accept connections\n"))
	return p.ready, nil
}

// Log returns the path of the server's log.
func (p *Postgres) Log() string { return filepath.Join(p.dir, "log") }

func (p *Postgres) lastOfLog() string {
	log, err := os.Open(p.Log())
	if err != nil {
		return ""
	}
	defer log.Close()
	if size, err := log.Seek(0, io.SeekEnd); err == nil {
		_, _ = log.Seek(max(0, size-4<<10), io.SeekStart)
	}
	said, _ := io.ReadAll(log) // or else nothing
	return string(bytes.TrimSpace(said))
}

// NewDatabase makes a database, and connects to it. The caller closes the connection.
func (p *Postgres) NewDatabase(ctx context.Context, name string) (*pgx.Conn, error) {
	admin, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return nil, err
	}
	_, err = admin.Exec(ctx, "create database "+name)
	if err := errors.Join(err, admin.Close(ctx)); err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, p.URL(name))
}
