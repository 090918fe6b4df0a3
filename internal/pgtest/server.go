package pgtest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/testkit"
)

// Server starts a server that syncs, for a test that changes its settings, and returns the URL of
// its database, for a superuser. The server ends with the test. If the programs are missing, the
// test is skipped, or fails if CI is set.
func Server(t testing.TB) string {
	t.Helper()
	return start(t, "--durable")
}

// Standby starts a standby of the server that the URL names.
func Standby(t testing.TB, primary string) string {
	t.Helper()
	return start(t, "--standby-of", primary)
}

func start(t testing.TB, options ...string) string {
	t.Helper()
	URL(t) // if no server may be used, it starts none
	return keep(t, serverCommand(t, options...))
}

func serverCommand(t testing.TB, options ...string) *exec.Cmd {
	t.Helper()
	const variable = "DIBS_OWN_SERVER"
	script := filepath.Join(root(t), "scripts", "with-postgres")
	args := append([]string{script, "--in-memory"}, options...)
	args = append(args, variable, "--", "sh", "-c", `echo "$`+variable+`"; exec cat >/dev/null`)
	return exec.Command("bash", args...) //nolint:noctx // a script of ours, which ends with its input
}

// A SharedServer is a migrated server of [Server] that the tests of one package share, because
// starting a server takes seconds. The first test that needs it starts it, and TestMain must call
// Stop. The zero value is ready to use. Each test must use its own streams.
type SharedServer struct {
	turn sync.RWMutex // a test that changes settings holds it exclusively

	mu   sync.Mutex // of the others
	url  string
	stop func() error
}

// Alone waits until no other test uses the server and returns its URL. Other tests wait until this
// test has ended and the settings are restored.
func (s *SharedServer) Alone(t testing.TB) string {
	t.Helper()
	url := s.started(t)
	s.turn.Lock()
	t.Cleanup(func() {
		defer s.turn.Unlock()
		resetSettings(t, url)
	})
	return url
}

// Together returns the server's URL, for a test that does not change settings. While it runs, no
// other test changes them.
func (s *SharedServer) Together(t testing.TB) string {
	t.Helper()
	url := s.started(t)
	s.turn.RLock()
	t.Cleanup(s.turn.RUnlock)
	return url
}

func (s *SharedServer) started(t testing.TB) string {
	t.Helper()
	URL(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return s.url
	}
	url, stop, err := startKept(serverCommand(t, "--durable"))
	if err != nil {
		notStarted(t, err)
	}
	s.url, s.stop = url, stop
	migrating(t, nil)(url)
	return url
}

// Stop ends the server, if a test has started it.
func (s *SharedServer) Stop() error {
	if s.stop == nil {
		return nil
	}
	return s.stop()
}

// resetSettings restores the settings of the server's start, and returns when new sessions have
// them.
func resetSettings(t testing.TB, url string) {
	t.Helper()
	run(t, url, "alter system reset all")
	run(t, url, "select pg_reload_conf()")
	testkit.AwaitEqual(t, "the settings that were changed", "", func() (changed string) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			defer conn.Close(ctx)
			err = conn.QueryRow(ctx, "select coalesce(string_agg(name, ' '), '') from pg_settings where sourcefile like '%/postgresql.auto.conf'").Scan(&changed)
		}
		if err != nil {
			t.Errorf("the settings of the server: %v", err)
		}
		return changed
	})
}

// A Bouncer is a PgBouncer, in transaction mode unless the settings say otherwise.
type Bouncer struct {
	URL string // of a database behind it

	t   testing.TB
	pid int
}

// PgBouncer starts a PgBouncer in front of the database, with fewer connections to the server than
// its clients have. Settings, such as "pool_mode = session", come before the defaults. It ends with
// the test. PGBOUNCER names the program if it is not on the PATH. If it is not installed, the test
// is skipped, or fails if CI is set.
func PgBouncer(t testing.TB, database string, settings ...string) *Bouncer {
	t.Helper()
	program := os.Getenv("PGBOUNCER")
	if program == "" {
		program = findProgram("pgbouncer", "/usr/sbin", "/usr/local/sbin")
	}
	if _, err := os.Stat(program); err != nil {
		Missing(t, "no PgBouncer: install the package pgbouncer")
	}
	target, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal("PgBouncer: this is no URL of a database")
	}

	dir, err := os.MkdirTemp("/tmp", "dibs-bouncer.") //nolint:usetesting // a socket's path is short, and not everybody gets to the test's folder
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	server := fmt.Sprintf("host=%s port=%d user=%s", quote(target.Host), target.Port, quote(target.User))
	if target.Password != "" {
		server += " password=" + quote(target.Password)
	}
	config := fmt.Sprintf(`[databases]
* = %[1]s
[pgbouncer]
pool_mode = transaction
default_pool_size = 3
auth_type = any
max_client_conn = 500
unix_socket_dir = %[2]s
listen_port = 6432
pidfile = %[2]s/pid
logfile = %[2]s/log
%[3]s
`, server, dir, strings.Join(settings, "\n"))
	if err := os.WriteFile(filepath.Join(dir, "ini"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}

	// PgBouncer refuses to run as root. The shell that starts it ends with the test, even if the
	// test is killed.
	command := []string{program, "-q", filepath.Join(dir, "ini")}
	if os.Geteuid() == 0 {
		command = append(asPostgres(t, dir), command...)
	}
	args := append([]string{"-c", `"$@" >/dev/null 2>&1 & echo started; cat >/dev/null; kill $!; wait`, "sh"}, command...)
	keep(t, exec.Command("sh", args...)) //nolint:noctx // ends with its input

	b := &Bouncer{t: t}
	u := url.URL{Scheme: "postgres", Path: "/" + target.Database, RawQuery: url.Values{"host": {dir}, "port": {"6432"}, "user": {target.User}}.Encode()}
	b.URL = u.String()
	awaitBouncer(t, b.URL, filepath.Join(dir, "log"))
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if b.pid, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		t.Fatal(err)
	}
	return b
}

// awaitBouncer returns when a connection succeeds.
func awaitBouncer(t testing.TB, database, logFile string) {
	t.Helper()
	testkit.Await(t, "a connection through PgBouncer", func() (bool, any) {
		conn, err := pgx.Connect(t.Context(), database)
		if err == nil {
			conn.Close(t.Context())
			return true, nil
		}
		log, _ := os.ReadFile(logFile)
		if _, refused := errors.AsType[*pgconn.PgError](err); refused {
			t.Fatalf("PgBouncer: %v\n%.2000s", err, log)
		}
		return false, fmt.Sprintf("%v\n%.2000s", err, log)
	})
}

// Kill ends PgBouncer at once.
func (b *Bouncer) Kill() {
	b.t.Helper()
	process, err := os.FindProcess(b.pid)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// asPostgres gives dir and its content to the user postgres, and returns the prefix of a command
// that runs as that user.
func asPostgres(t testing.TB, dir string) []string {
	t.Helper()
	owner, err := user.Lookup("postgres")
	if err != nil {
		Missing(t, "run by root, PgBouncer needs a user postgres")
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	for _, path := range []string{dir, filepath.Join(dir, "ini")} {
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	return userPostgres()
}

// userPostgres returns the prefix of a command that root runs as the user postgres.
func userPostgres() []string {
	if program := findProgram("setpriv"); program != "" {
		return []string{program, "--reuid=postgres", "--regid=postgres", "--init-groups", "--"}
	}
	return []string{"runuser", "-u", "postgres", "--"}
}

// keep starts a command that prints a line when it is ready, and ends when its input does: at the
// end of the test, or of its process. It returns the line.
func keep(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	line, stop, err := startKept(cmd)
	if err != nil {
		notStarted(t, err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return line
}

// startKept is keep for a command that the caller stops.
func startKept(cmd *exec.Cmd) (line string, stop func() error, err error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		stdin.Close()
		return "", nil, fmt.Errorf("%w: %s", cmp.Or(cmd.Wait(), err), strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(line), func() error {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd.Path, err, stderr.String())
		}
		return nil
	}, nil
}

// notStarted ends a test because a command did not start. A server that fails to start is a
// failure, not a missing program.
func notStarted(t testing.TB, err error) {
	t.Helper()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() == 2 { // as scripts/with-postgres says
		t.Fatal(err)
	}
	Missing(t, err.Error())
}

// findProgram looks for a program on the PATH, and in folders for administrators, which the PATH
// may lack.
func findProgram(name string, folders ...string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, folder := range folders {
		if path, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
			return path
		}
	}
	return ""
}

// root returns the folder of the module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "with-postgres")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("scripts/with-postgres is in no folder above this one")
		}
		dir = parent
	}
}

// Stop stops a server of [Server] at once, like a crash, and returns a function that starts it
// again. The URL stays the same.
func Stop(t testing.TB, url string) (start func()) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	var data, programs string
	err = conn.QueryRow(ctx, "select current_setting('data_directory'), setting from pg_config where name = 'BINDIR'").Scan(&data, &programs)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(ctx)
	control := func(args ...string) {
		t.Helper()
		command := append([]string{filepath.Join(programs, "pg_ctl"), "-D", data, "-w", "-t", "60"}, args...)
		if os.Getuid() == 0 {
			command = append(userPostgres(), command...)
		}
		cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it ends without help
		cmd.Dir = filepath.Dir(data)                    // the options of before may name folders from there
		if out, err := cmd.CombinedOutput(); err != nil {
			text, _ := os.ReadFile(filepath.Join(data, "log-of-restart"))
			t.Fatalf("%v: %v\n%s\n%s", cmd, err, out, text)
		}
	}
	control("-m", "immediate", "stop")
	return func() {
		t.Helper()
		control("-l", filepath.Join(data, "log-of-restart"), "restart") // with the options of before
	}
}
