package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/soak/crew"
)

// diskBytes is the size of a disk in memory that fills up: the writes of a run of minutes have
// room.
const diskBytes = 1 << 30

const diskFull = "disk-full"

// mountDisk mounts a disk in memory below dir, and returns its path. Its keeper unmounts it.
func mountDisk(dir string) (string, error) {
	path := filepath.Join(dir, "disk")
	if err := os.Mkdir(path, 0o755); err != nil { //nolint:gosec // the server runs as somebody else
		return "", err
	}
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", int64(diskBytes))); err != nil {
		return "", fmt.Errorf("a disk that fills up is mounted by root alone: %w", err)
	}
	return path, nil
}

// fillDisk has the disk full for a while. Data cannot grow then, which fails a statement. Half the
// time the WAL has to grow too, and cannot, which ends the server: it may not even start then.
func (r *run) fillDisk(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	r.Busy.Lock()
	defer r.Busy.Unlock()
	what := []string{"data", "data and WAL"}[random.IntN(2)]
	defer begin(what)()
	ballast := filepath.Join(r.Disk, "ballast")
	err := fill(ballast)
	if what != "data" {
		r.useWAL(ctx)
	}
	crew.Pause(ctx, between(random, 500*time.Millisecond, 3*time.Second))
	if err := errors.Join(err, os.Remove(ballast)); err != nil {
		return err
	}
	return r.startAgain(context.WithoutCancel(ctx))
}

// useWAL fills one segment of the WAL after the other, until the server has no segment left to
// reuse, and ends.
func (r *run) useWAL(ctx context.Context) {
	const segments = 100 // more than there are
	limited, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := pgx.Connect(limited, r.Postgres.URL(database))
	if err != nil {
		return // it has ended already
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for range segments {
		if _, err := conn.Exec(limited, "select pg_logical_emit_message(false, 'soak', 'x'), pg_switch_wal()"); err != nil {
			return
		}
	}
}

// startAgain starts a server that may have ended, or may be about to.
func (r *run) startAgain(ctx context.Context) (err error) {
	for range 5 {
		if err = r.Postgres.Start(ctx); err == nil {
			err = r.Postgres.Await(ctx)
		}
		if err == nil || r.Postgres.Running() {
			return err
		}
	}
	return err
}

// fill makes a file of all the free space, to the last page: a part that does not fit is
// tried in halves. It takes small steps, since a signal to the process undoes the one it
// meets.
func fill(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	at := int64(0)
	for step := int64(64 << 20); step >= 4<<10; {
		err := syscall.Fallocate(int(file.Fd()), 0, at, step) //nolint:gosec // a descriptor is small
		switch {
		case err == nil:
			at += step
		case errors.Is(err, syscall.ENOSPC):
			step /= 2
		case !errors.Is(err, syscall.EINTR):
			return err
		}
	}
	return nil
}
