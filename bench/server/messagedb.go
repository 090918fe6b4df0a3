package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// MessageDBVersion is the version of the npm package @eventide/message-db.
const MessageDBVersion = "1.3.1"

const npmTimeout = 2 * time.Minute

// makeMessageDB makes the template with message-db in it, by the install.sh of its own
// package, which is installed once for each user of a machine. It needs npm and psql.
func makeMessageDB(ctx context.Context, p *Postgres) error {
	scripts, err := installMessageDB(ctx)
	if err != nil {
		return fmt.Errorf("install message-db (it needs npm, and psql): %w", err)
	}
	install := exec.CommandContext(ctx, "bash", filepath.Join(scripts, "install.sh"))
	install.Env = append(os.Environ(), "DATABASE_NAME="+MessageDB, "PGHOST="+p.process.dir, "PGPORT=5432", "PGUSER=postgres")
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("install message-db: %w\n%s", err, out)
	}
	return nil
}

func installMessageDB(ctx context.Context) (string, error) {
	keep := filepath.Join(os.TempDir(), fmt.Sprintf("dibs-message-db-%s-%d", MessageDBVersion, os.Getuid()))
	scripts := filepath.Join(keep, "node_modules", "@eventide", "message-db", "database")
	if _, err := os.Stat(scripts); err == nil {
		return scripts, nil
	}
	dir, err := os.MkdirTemp("", "dibs-message-db-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-save", "--no-package-lock", "--no-audit", "--no-fund",
		"--ignore-scripts", "@eventide/message-db@"+MessageDBVersion)
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", npm, err, out)
	}
	// Whole or not at all; another process may have been first.
	if err := os.Rename(dir, keep); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return scripts, nil
}
