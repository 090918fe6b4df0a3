package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/dibs-go/dibs/internal/testserver"
)

// A PgBouncer stands in front of a server and runs its clients' transactions on fewer connections.
// It listens on a Unix socket in its own folder. It is safe for concurrent use.
type PgBouncer struct {
	dir, program string
	owner        *syscall.Credential

	mu      sync.Mutex
	process *testserver.Process
}

// NewPgBouncer starts a PgBouncer in transaction mode, in a folder next to the server's. PgBouncer
// must be installed.
func NewPgBouncer(ctx context.Context, to *Postgres, name string) (*PgBouncer, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // which is on the path of administrators only
	}
	if _, err := os.Stat(program); err != nil {
		return nil, errors.New("there is no PgBouncer here: install it (on Debian: apt-get install pgbouncer)")
	}
	b := &PgBouncer{dir: filepath.Join(filepath.Dir(to.dir), name), program: program, owner: to.owner}
	if err := errors.Join(os.Mkdir(b.dir, 0o700), testserver.Own(b.dir, b.owner)); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`[databases]
* = host=%[1]s port=5432 user=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
auth_type = any
unix_socket_dir = %[2]s
listen_port = 6432
log_connections = 0
log_disconnections = 0
query_wait_timeout = 30
server_login_retry = 1
`, to.dir, b.dir)
	path := filepath.Join(b.dir, "ini")
	if err := errors.Join(os.WriteFile(path, []byte(config), 0o600), testserver.Own(path, b.owner)); err != nil {
		return nil, err
	}
	return b, b.Start(ctx)
}

// Start starts it and waits until it answers. It does nothing if it runs.
func (b *PgBouncer) Start(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process != nil && b.process.Running() {
		return nil
	}
	log, err := os.OpenFile(b.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // a log to be read
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(b.program, "ini") //nolint:noctx // it outlives the call that starts it
	cmd.Dir, cmd.Stdout, cmd.Stderr = b.dir, log, log
	if b.process, err = testserver.Start(cmd, b.owner, syscall.SIGKILL); err != nil {
		return err
	}
	return b.await(ctx)
}

func (b *PgBouncer) await(ctx context.Context) error {
	err := b.process.Await(ctx, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", b.Socket())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		said, _ := os.ReadFile(b.Log()) // or else nothing
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// Kill ends it at once, with all connections through it, and waits until it is gone.
func (b *PgBouncer) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.process.Signal(syscall.SIGKILL)
	<-b.process.Done()
}

// Socket returns the path of its socket.
func (b *PgBouncer) Socket() string { return filepath.Join(b.dir, ".s.PGSQL.6432") }

// Log returns the path of its log.
func (b *PgBouncer) Log() string { return filepath.Join(b.dir, "log") }

// url returns the URL of a database behind it.
func (b *PgBouncer) url(database string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=6432", database, b.dir)
}
