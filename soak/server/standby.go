package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/testserver"
)

// NewStandby makes a streaming standby of p in a folder next to it, from a backup that is taken
// while p works, and returns when it follows. It is asynchronous at first.
func (p *Postgres) NewStandby(ctx context.Context, name string) (*Postgres, error) {
	s, err := p.backup(ctx, name, "-R")
	if err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		return nil, err
	}
	return s, p.until(ctx, "select exists (select from pg_stat_replication where state = 'streaming')")
}

// NewBackup takes a backup of p while it works, for [Postgres.Restore] or [Postgres.Start].
func (p *Postgres) NewBackup(ctx context.Context, name string) (*Postgres, error) {
	return p.backup(ctx, name)
}

func (p *Postgres) backup(ctx context.Context, name string, options ...string) (*Postgres, error) {
	b, err := newPostgres(filepath.Dir(p.dir), name)
	if err != nil {
		return nil, err
	}
	b.settings = p.settings
	args := append([]string{"-d", fmt.Sprintf("host=%s port=5432 user=postgres", p.dir), "-D", "data", "-c", "fast", "--no-sync"}, options...)
	return b, b.command(ctx, "pg_basebackup", args...)
}

// WaitForStandby makes commits of p wait from now on until its standby has them, and returns when
// all commits do.
func (p *Postgres) WaitForStandby(ctx context.Context) error {
	if err := p.exec(ctx, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"); err != nil {
		return err
	}
	if err := p.until(ctx, "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = 'sync')"); err != nil {
		return err
	}
	// The checkpointer informs the other processes that there are standbys to wait for. It reads
	// its settings before it begins with a checkpoint.
	return p.exec(ctx, "checkpoint")
}

// StopFollowing makes the standby stop following its primary. Every commit before the call is on
// the standby.
//
// Pausing the process that receives would not be enough, because the bytes in its socket would
// arrive.
func (p *Postgres) StopFollowing(ctx context.Context, primary *Postgres) error {
	var end string
	conn, err := pgx.Connect(ctx, primary.URL("postgres"))
	if err != nil {
		return err
	}
	err = conn.QueryRow(ctx, "select pg_current_wal_flush_lsn()::text").Scan(&end)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return err
	}
	if err := p.until(ctx, fmt.Sprintf("select pg_last_wal_receive_lsn() >= '%s'", end)); err != nil {
		return err
	}
	if err := p.exec(ctx, "alter system set primary_conninfo = ''", "select pg_reload_conf()"); err != nil {
		return err
	}
	return p.until(ctx, "select not exists (select from pg_stat_wal_receiver)")
}

// Promote promotes the standby, and returns when it is a primary.
func (p *Postgres) Promote(ctx context.Context) error {
	if err := p.exec(ctx, "select pg_promote(false)"); err != nil {
		return err
	}
	return p.until(ctx, "select not pg_is_in_recovery()")
}

// Restore starts p, which is a backup of a server, with the state at the end of the backup, on a
// new timeline, like [docs/dba.md] says.
//
// [docs/dba.md]: https://github.com/dibs-go/dibs/blob/main/docs/dba.md#backup-and-restore
func (p *Postgres) Restore(ctx context.Context) error {
	signal := filepath.Join(p.dir, "data", "recovery.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), testserver.Own(signal, p.owner)); err != nil {
		return err
	}
	p.settings = append([]string{"restore_command=false"}, p.settings...) // there is no archive
	if err := p.Start(ctx); err != nil {
		return err
	}
	return p.until(ctx, "select not pg_is_in_recovery()")
}

// Remove removes all files of a server that has ended.
func (p *Postgres) Remove() error { return os.RemoveAll(p.dir) }

// exec runs statements one after the other.
func (p *Postgres) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err = conn.Exec(ctx, statement); err != nil {
			err = fmt.Errorf("%s: %w", statement, err)
			break
		}
	}
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}

// until repeats the query until the answer is true, also while the server does not answer yet.
func (p *Postgres) until(ctx context.Context, question string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		answer, err := p.ask(ctx, question)
		if answer {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s: %w: %s\n%s", p.Name(), ctx.Err(), question, p.lastOfLog()), err)
		}
	}
}

func (p *Postgres) ask(ctx context.Context, question string) (answer bool, err error) {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = conn.QueryRow(ctx, question).Scan(&answer)
	return answer, err
}
