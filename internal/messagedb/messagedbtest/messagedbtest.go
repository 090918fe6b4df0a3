// Package messagedbtest gives a test a database with message-db in it: the real
// one, from its npm package, made by its own install.sh.
package messagedbtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// The versions of the package that a test may ask for. Newest is the default; its message_store_version()
// returns 1.3.0.
const (
	Newest = "1.3.1"
	V1_2   = "1.2.6"
	V1_1   = "1.1.6"
)

// programs are the programs that install message-db.
var programs = []string{"npm", "psql"}

// patience is for npm, which fetches the package once for each user of a machine.
const patience = 2 * time.Minute

var installed = map[string]func() (string, error){
	Newest: sync.OnceValues(func() (string, error) { return install(Newest) }),
	V1_2:   sync.OnceValues(func() (string, error) { return install(V1_2) }),
	V1_1:   sync.OnceValues(func() (string, error) { return install(V1_1) }),
}

func install(version string) (string, error) {
	modules, err := NPMModules("message-db-"+version, "@eventide/message-db@"+version)
	return filepath.Join(modules, "@eventide", "message-db", "database"), err
}

// NPMModules returns the folder of packages that npm fetches once for each user of a machine, and
// that stay in the user's cache. The folder is there whole or not at all, since another process may
// be first.
func NPMModules(name string, packages ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "dibs")
	keep := filepath.Join(cache, name)
	modules := filepath.Join(keep, "node_modules")
	if _, err := os.Stat(modules); err == nil {
		return modules, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args := []string{"install", "--prefix", dir, "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"}
	npm := exec.CommandContext(ctx, "npm", append(args, packages...)...)
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", npm, err, out)
	}
	if err := os.Rename(dir, keep); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return modules, nil
}

// Database returns the URL of a database with message-db in the schema message_store, which no
// other test uses. It is a copy, since to install takes longer than a test does. It is dropped
// when the test ends; the role message_store is the server's, and stays.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseOf(t, Newest)
}

// DatabaseOf is [Database] with that version of message-db.
func DatabaseOf(t testing.TB, version string) string {
	t.Helper()
	pgtest.Needs(t, programs...) // before a database is made for nothing
	return pgtest.Copy(t, "message_db_"+strings.ReplaceAll(version, ".", "_"), func(url string) { Install(t, url, version) })
}

func parse(t testing.TB, database string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func connect(t testing.TB, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), parse(t, database))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func run(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Install makes the schema message_store in a database, as that version of the package
// does.
func Install(t testing.TB, database, version string) {
	t.Helper()
	// Two that install side by side would be in each other's way there.
	conn := connect(t, database)
	defer conn.Close(t.Context())
	run(t, conn, "do $$ begin create role message_store login; exception when duplicate_object or unique_violation then null; end $$")

	runTool(t, database, version, "install.sh", "CREATE_DATABASE=off", "PATH="+withoutCreateDB(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// withoutCreateDB returns a folder with a createdb that does nothing: older versions always call it.
func withoutCreateDB(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "createdb"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Run runs one of message-db's tools on a database, with extra environment variables, and returns its output.
func Run(t testing.TB, database, tool string, env ...string) string {
	t.Helper()
	return runTool(t, database, Newest, tool, env...)
}

func runTool(t testing.TB, database, version, tool string, env ...string) string {
	t.Helper()
	pgtest.Needs(t, programs...)
	scripts, err := installed[version]()
	if err != nil {
		pgtest.Missing(t, fmt.Sprintf("no message-db, which npm did not install: %v", err))
	}
	config := parse(t, database)
	command := exec.CommandContext(t.Context(), "bash", filepath.Join(scripts, tool))
	command.Env = append(os.Environ(), "DATABASE_NAME="+config.Database,
		"PGHOST="+config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER="+config.User, "PGPASSWORD="+config.Password)
	command.Env = append(command.Env, env...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return string(out)
}

// As returns the URL of the same database for another user, without a password.
func As(t testing.TB, database, user string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(user)
	return u.String()
}
