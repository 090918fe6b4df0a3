package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/server"
)

// The faults that take a tool which is not everywhere.
const (
	clockJump = "clock"
	syncError = "sync-error"
)

// Missing returns the faults that are impossible here, by name, with the reasons.
func Missing(ctx context.Context) map[string]string {
	missing := map[string]string{}
	if _, err := server.FakeClock(); err != nil {
		missing[clockJump] = err.Error()
	}
	if err := canTrace(ctx); err != nil {
		missing[syncError] = err.Error()
	}
	return missing
}

// NotDone returns the faults that were requested and are impossible, with the reasons.
func (o *Options) NotDone() (faults []string) {
	for _, name := range slices.Sorted(maps.Keys(o.Missing)) {
		asked := len(o.Faults) == 0 || slices.Contains(o.Faults, name)
		if asked && (name != clockJump || o.Clock) {
			faults = append(faults, name+": "+o.Missing[name])
		}
	}
	return faults
}

// canTrace tries whether strace may attach to a process, which is not allowed everywhere.
func canTrace(ctx context.Context) error {
	path, err := exec.LookPath("strace")
	if err != nil {
		return errors.New("there is no strace here: install it (on Debian: apt-get install strace)")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	subject := exec.CommandContext(ctx, "cat")
	end, err := subject.StdinPipe()
	if err == nil {
		err = subject.Start()
	}
	if err != nil {
		return err
	}
	defer func() { _ = subject.Wait() }() // it has nothing to say
	defer end.Close()
	tracer := exec.CommandContext(ctx, path, "-qq", "-o", "/dev/null", "-p", strconv.Itoa(subject.Process.Pid))
	said, err := tracer.StderrPipe()
	if err == nil {
		err = tracer.Start()
	}
	if err != nil {
		return err
	}
	go func() {
		for !traced(subject.Process.Pid) && crew.Pause(ctx, 5*time.Millisecond) {
		}
		end.Close() // it ends, and its tracer with it
	}()
	text, _ := io.ReadAll(said)
	if err := tracer.Wait(); err != nil {
		return fmt.Errorf("strace may not attach to a process here: %w: %s", err, text)
	}
	return nil
}

// traced reports whether a tracer is attached to a process.
func traced(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "TracerPid:\t0\n")
}

// tracing bounds how long a process is traced, which slows it, until it syncs.
const tracing = 3 * time.Second

// failSync has a sync of the server fail as on a broken disk: a sync of the WAL, at the next
// commit, or of data. PostgreSQL does not know the contents of the disk then, and reads its WAL
// again.
func (r *run) failSync(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	if !r.Busy.TryRLock() {
		return nil // it is down
	}
	defer r.Busy.RUnlock()
	kind := []string{server.ClientBackend, "checkpointer"}[random.IntN(2)]
	args := []string{"-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO:when=1"}
	victims := 0
	for _, b := range r.Postgres.Backends() {
		if b.Kind == kind {
			args = append(args, "-p", strconv.Itoa(b.PID))
			victims++
		}
	}
	if victims == 0 {
		return nil
	}
	defer begin(fmt.Sprintf("%s, %d of them", kind, victims))()
	limited, cancel := context.WithTimeout(ctx, tracing)
	defer cancel()
	var asked sync.WaitGroup
	defer asked.Wait()
	if kind == "checkpointer" {
		asked.Go(func() { r.checkpoint(limited) })
	}
	strace := exec.CommandContext(limited, "strace", args...)
	strace.Cancel = func() error { return strace.Process.Signal(syscall.SIGINT) } // it lets go
	strace.WaitDelay = tracing
	_ = strace.Run() // ends with the processes that it traces, which may have ended before
	return nil
}

// checkpoint has the checkpointer sync.
func (r *run) checkpoint(ctx context.Context) {
	if conn, err := pgx.Connect(ctx, r.Postgres.URL(database)); err == nil {
		_, _ = conn.Exec(ctx, "checkpoint")        // it fails with the server
		_ = conn.Close(context.WithoutCancel(ctx)) // which may be gone
	}
}

// jump sets the clock of the server, and sets it right again.
func (r *run) jump(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	off := between(random, time.Minute, time.Hour)
	if random.IntN(2) == 0 {
		off = -off
	}
	defer begin(fmt.Sprintf("%+d s", int64(off.Seconds())))()
	if err := r.Postgres.SetClock(off); err != nil {
		return err
	}
	crew.Pause(ctx, between(random, 200*time.Millisecond, 3*time.Second))
	return errors.Join(r.isOff(ctx, off), r.Postgres.SetClock(0))
}

// isOff returns an error if the server answers and its clock is not off by this time.
func (r *run) isOff(ctx context.Context, off time.Duration) error {
	const nearly = 30 * time.Second
	conn, err := pgx.Connect(ctx, r.Postgres.URL(database))
	if err != nil {
		return nil // another fault was first
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var there time.Time
	before := time.Now()
	if conn.QueryRow(ctx, "select clock_timestamp()").Scan(&there) != nil {
		return nil
	}
	if is := there.Sub(before); (is - off).Abs() > nearly {
		return fmt.Errorf("the clock was to be off by %v, and is by %v", off, is)
	}
	return nil
}
