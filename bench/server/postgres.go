package server

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/localserver"
)

//go:embed shim/slow_fdatasync.c
var slowFdatasync []byte

// PostgresConfig says how a PostgreSQL is started.
type PostgresConfig struct {
	// Dir is where the server keeps its folder: a place on a disk.
	//
	// Defaults to /var/tmp.
	Dir string

	// SlowSync is how much longer each fdatasync takes. It needs gcc.
	//
	// Defaults to 0, the disk as it is.
	SlowSync time.Duration
}

// Postgres is a PostgreSQL server that syncs: fsync and synchronous_commit on,
// shared_buffers 1 GB, and otherwise as it comes. It is safe for concurrent use.
type Postgres struct {
	process   *process
	admin     string
	databases atomic.Int64
}

// StartPostgres starts a server, which the caller stops. The binaries are those in the
// folder that POSTGRES_BIN names, or the newest of Debian's.
func StartPostgres(ctx context.Context, config *PostgresConfig) (_ *Postgres, err error) {
	base, slow := "/var/tmp", time.Duration(0)
	if config != nil {
		slow = config.SlowSync
		if config.Dir != "" {
			base = config.Dir
		}
	}
	bin, err := localserver.PostgresBin()
	if err != nil {
		return nil, err
	}
	owner, err := localserver.Unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := folder(base, "pg", owner)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	var env []string
	if slow > 0 {
		shim, err := buildShim(ctx, dir)
		if err != nil {
			return nil, err
		}
		env = []string{"LD_PRELOAD=" + shim, fmt.Sprintf("DIBS_FDATASYNC_US=%d", slow.Microseconds())}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	p := &Postgres{admin: fmt.Sprintf("postgres://postgres@/postgres?host=%s&port=5432", dir)}
	p.process, err = start(dir, owner, syscall.SIGQUIT, env, filepath.Join(bin, "postgres"), "-D", "data", "-k", dir, "-p", "5432",
		"-c", "listen_addresses=", "-c", "shared_buffers=1GB", "-c", "max_connections=400")
	if err != nil {
		return nil, err
	}
	err = p.process.await(ctx, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.admin)
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

func buildShim(ctx context.Context, dir string) (string, error) {
	source, shim := filepath.Join(dir, "slow_fdatasync.c"), filepath.Join(dir, "slow_fdatasync.so")
	if err := os.WriteFile(source, slowFdatasync, 0o644); err != nil { //nolint:gosec // the server's user reads it
		return "", err
	}
	gcc := exec.CommandContext(ctx, "gcc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl")
	if out, err := gcc.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the library that makes fdatasync slow: %w\n%s", err, out)
	}
	return shim, nil
}

// PID is the postmaster's.
func (p *Postgres) PID() int { return p.process.PID() }

// URL returns the URL of a database.
func (p *Postgres) URL(database string) string {
	return strings.Replace(p.admin, "/postgres?", "/"+database+"?", 1)
}

// Create makes a database as a copy of another and returns its name.
func (p *Postgres) Create(ctx context.Context, template string) (string, error) {
	name := fmt.Sprintf("bench_%d", p.databases.Add(1))
	// A copy of the files is followed by a checkpoint; through the log it is not.
	return name, p.Exec(ctx, "create database "+name+" template "+template)
}

// Drop drops a database, also if clients are connected to it still.
func (p *Postgres) Drop(ctx context.Context, database string) error {
	return p.Exec(ctx, "drop database "+database+" with (force)")
}

// Exec runs a statement in the database postgres.
func (p *Postgres) Exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, p.admin)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement)
	return err
}

// Version is the server's name and version.
func (p *Postgres) Version(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, p.admin)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, "select current_setting('server_version')").Scan(&version)
	return version, err
}

// Stop stops the server and removes its data. Its databases are no longer needed, so it
// does not take leave of them.
func (p *Postgres) Stop() error { return p.process.end(syscall.SIGQUIT) }
