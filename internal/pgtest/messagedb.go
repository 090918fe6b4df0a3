package pgtest

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
)

// The supported versions of message-db. MessageDBNewest is the default; its message_store_version()
// returns 1.3.0.
const (
	MessageDBNewest = "1.3.1"
	MessageDB1_2    = "1.2.6"
	MessageDB1_1    = "1.1.6"
)

// messageDBPrograms are the programs that install message-db.
var messageDBPrograms = []string{"npm", "psql"}

// npmTakes is the time for npm, which downloads the package once for each user of a machine.
const npmTakes = 2 * time.Minute

var messageDBs = map[string]func() (string, error){
	MessageDBNewest: sync.OnceValues(func() (string, error) { return installed(MessageDBNewest) }),
	MessageDB1_2:    sync.OnceValues(func() (string, error) { return installed(MessageDB1_2) }),
	MessageDB1_1:    sync.OnceValues(func() (string, error) { return installed(MessageDB1_1) }),
}

func installed(version string) (string, error) {
	modules, err := NPMModules("message-db-"+version, "@eventide/message-db@"+version)
	return filepath.Join(modules, "@eventide", "message-db", "database"), err
}

// NPMModules returns a folder with these packages, which npm downloads once: the folder stays in
// the user's cache. The folder is complete or missing, because another process may be making it.
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
	ctx, cancel := context.WithTimeout(context.Background(), npmTakes)
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

// MessageDB returns the URL of a database for this test only, with the real message-db in the
// schema message_store: from its npm package, made by its own install.sh. The database is a copy,
// because installing takes longer than a test. It is dropped when the test ends; the role
// message_store belongs to the server, and stays.
func MessageDB(t testing.TB) string {
	t.Helper()
	return MessageDBOf(t, MessageDBNewest)
}

// MessageDBOf is [MessageDB] with another version of message-db.
func MessageDBOf(t testing.TB, version string) string {
	t.Helper()
	Needs(t, messageDBPrograms...) // before it makes a database in vain
	return Copy(t, "message_db_"+strings.ReplaceAll(version, ".", "_"), func(url string) { InstallMessageDB(t, url, version) })
}

func parseURL(t testing.TB, database string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func connect(t testing.TB, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), parseURL(t, database))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func mustExec(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// InstallMessageDB makes the schema message_store in a database, with this version of the package.
func InstallMessageDB(t testing.TB, database, version string) {
	t.Helper()
	// Two installations at the same time would conflict there.
	conn := connect(t, database)
	defer conn.Close(t.Context())
	mustExec(t, conn, "do $$ begin create role message_store login; exception when duplicate_object or unique_violation then null; end $$")

	runTool(t, database, version, "install.sh", "CREATE_DATABASE=off", "PATH="+withoutCreateDB(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// withoutCreateDB returns a folder with a createdb that does nothing: older versions always call
// it.
func withoutCreateDB(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "createdb"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// RunMessageDB runs a tool of message-db on a database, with extra environment variables, and
// returns its output.
func RunMessageDB(t testing.TB, database, tool string, env ...string) string {
	t.Helper()
	return runTool(t, database, MessageDBNewest, tool, env...)
}

func runTool(t testing.TB, database, version, tool string, env ...string) string {
	t.Helper()
	Needs(t, messageDBPrograms...)
	scripts, err := messageDBs[version]()
	if err != nil {
		Missing(t, fmt.Sprintf("no message-db, which npm did not install: %v", err))
	}
	config := parseURL(t, database)
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
