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
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pgtest"
)

// version is of the package. What message_store_version() answers is 1.3.0.
const version = "1.3.1"

// patience is for npm, which fetches the package once for each user of a machine.
const patience = 2 * time.Minute

var installed = sync.OnceValues(func() (string, error) {
	keep := filepath.Join(os.TempDir(), fmt.Sprintf("dibs-message-db-%s-%d", version, os.Getuid()))
	scripts := filepath.Join(keep, "node_modules", "@eventide", "message-db", "database")
	if _, err := os.Stat(scripts); err == nil {
		return scripts, nil
	}
	dir, err := os.MkdirTemp("", "dibs-message-db-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-save", "--no-package-lock", "--no-audit", "--no-fund",
		"--ignore-scripts", "@eventide/message-db@"+version)
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", npm, err, out)
	}
	// Whole or not at all; another process may have been first.
	if err := os.Rename(dir, keep); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return scripts, nil
})

// Database returns the URL of a database of its own with message-db in the schema
// message_store, which is dropped when the test ends. The role message_store is the
// server's, and stays.
func Database(t testing.TB) string {
	t.Helper()
	database := pgtest.Database(t)
	scripts, err := installed()
	if err != nil {
		t.Fatalf("install message-db (it needs npm, and psql): %v", err)
	}
	config, err := pgx.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	// Two that install side by side would be in each other's way there.
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "do $$ begin create role message_store login; exception when duplicate_object or unique_violation then null; end $$")
	_ = conn.Close(t.Context())
	if err != nil {
		t.Fatalf("create the role message_store: %v", err)
	}
	install := exec.CommandContext(t.Context(), "bash", filepath.Join(scripts, "install.sh"))
	install.Env = append(os.Environ(),
		"CREATE_DATABASE=off", "DATABASE_NAME="+config.Database,
		"PGHOST="+config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER="+config.User, "PGPASSWORD="+config.Password)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", install, err, out)
	}
	return database
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
