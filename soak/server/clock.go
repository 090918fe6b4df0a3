package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

// fakeClocks matches Debian's library that fakes a clock. The variant for threads, libfaketimeMT,
// reads the time under a mutex. PostgreSQL has one thread, and reads the time in signal handlers
// too: if a handler interrupted such a read, the process would wait for itself for ever.
const fakeClocks = "/usr/lib/*/faketime/libfaketime.so.1"

// FakeClock returns the path of the library that fakes a clock, or the package to
// install.
func FakeClock() (string, error) {
	found, err := filepath.Glob(fakeClocks)
	if err == nil && len(found) == 0 {
		err = errors.New("there is no libfaketime here: install it (on Debian: apt-get install libfaketime)")
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// clock is the file that says how far the clock of a server is off.
func (p *Postgres) clock() string { return filepath.Join(p.dir, "clock") }

// SetClock shifts the wall clock of all processes of a server from now on, but not the clock by
// which they measure durations. The server must have [PostgresConfig.Clock].
func (p *Postgres) SetClock(off time.Duration) error {
	return p.writeClock(fmt.Sprintf("%+d\n", int64(off.Seconds())))
}

// FreezeClock stops the clock of a server at a second, until it is set. The server must have
// [PostgresConfig.Clock].
func (p *Postgres) FreezeClock(at time.Time) error {
	return p.writeClock(at.Local().Format(time.DateTime) + "\n") //nolint:gosmopolitan // it is read so
}

func (p *Postgres) writeClock(says string) error {
	next := p.clock() + ".next"
	if err := os.WriteFile(next, []byte(says), 0o644); err != nil { //nolint:gosec // the server reads it
		return err
	}
	return os.Rename(next, p.clock())
}

// RealClock kills the server and starts it with the clock of the machine.
func (p *Postgres) RealClock(ctx context.Context) error {
	p.mu.Lock()
	p.env = nil
	p.mu.Unlock()
	return errors.Join(p.Kill(), p.Start(ctx))
}

// Crashes calls down whenever the server ends its connections, and up when it answers again, until
// ctx ends. A server with a clock that can be set crashes now and then, because the library
// allocates memory when PostgreSQL reads the time in a signal handler.
func (p *Postgres) Crashes(ctx context.Context, down func() (up func())) error {
	for {
		if conn, err := pgx.Connect(ctx, p.URL("postgres")); err == nil {
			_, _ = conn.WaitForNotification(ctx) // none comes
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-ctx.Done():
			return nil
		default:
		}
		up := down()
		whole := context.WithoutCancel(ctx)
		if err := errors.Join(p.Start(whole), p.Await(whole)); err != nil {
			return err
		}
		up()
	}
}

// fakedClock returns the environment of a server with a clock that can be set.
func (p *Postgres) fakedClock() ([]string, error) {
	library, err := FakeClock()
	if err != nil {
		return nil, err
	}
	return append(os.Environ(), "LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+p.clock(),
		"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1"), nil
}
