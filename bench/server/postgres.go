package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/testserver"
)

// Postgres is a PostgreSQL server that syncs: fsync and synchronous_commit on, shared_buffers 1 GB,
// and otherwise the defaults. It is safe for concurrent use.
type Postgres struct {
	process   *process
	admin     string
	databases atomic.Int64
}

// StartPostgres starts a server, which the caller stops. It uses the binaries in the folder
// POSTGRES_BIN, or Debian's newest.
func StartPostgres(ctx context.Context, base string) (_ *Postgres, err error) {
	bin, err := testserver.PostgresBin()
	if err != nil {
		return nil, err
	}
	owner, err := testserver.Unprivileged()
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
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	p := &Postgres{admin: fmt.Sprintf("postgres://postgres@/postgres?host=%s&port=5432", dir)}
	p.process, err = start(dir, owner, syscall.SIGQUIT, filepath.Join(bin, "postgres"), "-D", "data", "-k", dir, "-p", "5432",
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

// PID returns the postmaster's process id.
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

// Drop drops a database, even if clients are still connected.
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

// Version returns the server's name and version.
func (p *Postgres) Version(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, p.admin)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, "select current_setting('server_version')").Scan(&version)
	return version, err
}

// Stop stops the server and removes its data. It does not shut down cleanly, because nobody needs
// the databases.
func (p *Postgres) Stop() error { return p.process.end(syscall.SIGQUIT) }
