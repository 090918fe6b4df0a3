package measure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/bench/server"
)

// A Cell is one contender's turn in one round of a case. Only the goroutine of Run may call its
// methods, except [Cell.Observe].
type Cell struct {
	// Servers starts servers on demand; they live as long as the run.
	Servers *server.Set

	// Time is how long to measure, Warmup how long to work before that.
	Time, Warmup time.Duration

	// Long is set in a long run, which has time for more rows.
	Long bool

	// Smoke is set if the run only tests that everything works, and the figures do not matter.
	Smoke bool

	// Held is how long a snapshot is held, and Backlog how many items wait, in the cases that
	// measure these; 0 for the run's default.
	Held    time.Duration
	Backlog int64

	// Seed is the same for all contenders of a round, and differs between rounds and cases.
	Seed uint64

	cleanups []func(context.Context) error
	servers  []interface{ PID() int }
	wal      *pgx.Conn
	child    *childPipe // in a process that a cell has started
	measured bool
	checks   int

	mu    sync.Mutex
	tally Tally
}

// A Tally has the measurements of a cell, or of a child process of a cell.
type Tally struct {
	Units     int64              // operations in the time that counts
	All       int64              // operations altogether, the warm-up's too
	Elapsed   time.Duration      // the time that counts
	Latency   Histogram          // of the work done in that time
	ClientCPU time.Duration      // used in that time
	ServerCPU time.Duration      //
	WAL       int64              // bytes
	Extra     map[Metric]float64 // what was Set
}

// Metrics returns the tally's figures, without operations that were never done.
func (t Tally) Metrics() map[Metric]float64 {
	m := map[Metric]float64{}
	if t.Units > 0 {
		units := float64(t.Units)
		m[Rate] = units / t.Elapsed.Seconds()
		m[ClientCPU] = t.ClientCPU.Seconds() / units
		m[ServerCPU] = t.ServerCPU.Seconds() / units
		m[WAL] = float64(t.WAL) / units
	}
	if p50 := t.Latency.Quantile(0.5); p50 > 0 {
		m[P50], m[P99] = p50, t.Latency.Quantile(0.99)
	}
	maps.Copy(m, t.Extra)
	return m
}

// Rand returns a new source of random numbers, with the same numbers for all contenders of a round.
func (c *Cell) Rand(caller int) *rand.Rand {
	return rand.New(rand.NewPCG(c.Seed, uint64(caller))) //nolint:gosec // it is to be repeatable
}

// Cleanup calls f when the cell is over, in reverse order of the calls of Cleanup.
func (c *Cell) Cleanup(f func(context.Context) error) { c.cleanups = append(c.cleanups, f) }

// Database makes a database as a copy of a template ([server.Dibs], [server.MessageDB],
// [server.Empty]), returns its URL, and measures its server. It is dropped when the cell
// is over.
func (c *Cell) Database(ctx context.Context, p *server.Postgres, template string) (string, error) {
	name, err := p.Create(ctx, template)
	if err != nil {
		return "", err
	}
	c.Cleanup(func(ctx context.Context) error { return p.Drop(ctx, name) })
	return p.URL(name), c.MeasurePostgres(ctx, p)
}

// MeasurePostgres measures the processor time of a server and the size of its log. [Cell.Database]
// calls it.
func (c *Cell) MeasurePostgres(ctx context.Context, p *server.Postgres) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	c.Cleanup(func(ctx context.Context) error { return conn.Close(ctx) })
	c.wal = conn
	c.MeasureServer(p)
	return nil
}

// MeasureServer measures the processor time of a server's processes.
func (c *Cell) MeasureServer(s interface{ PID() int }) { c.servers = append(c.servers, s) }

// Callers measures n concurrent callers that call op again and again. An op returns how many
// operations it did: 1, or the rows of a batch. Callers returns the number of all operations,
// including the warm-up; the first error ends it. The warm-up lasts at least until each caller has
// done op once, because opening a connection may take longer than a short turn.
func (c *Cell) Callers(ctx context.Context, n int, op func(ctx context.Context, caller int) (units int, err error)) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	const (
		warming = iota
		counting
		over
	)
	var phase atomic.Int32
	var some atomic.Bool
	var warm atomic.Int64 // callers that have done an operation
	tallies := make([]Tally, n)
	var callers sync.WaitGroup
	begin := func() {
		for i := range n {
			callers.Go(func() {
				t, first := &tallies[i], true
				for phase.Load() != over && ctx.Err() == nil {
					began := time.Now()
					units, err := op(ctx, i)
					if err != nil {
						cancel(fmt.Errorf("caller %d: %w", i, err))
						return
					}
					if first {
						first = false
						warm.Add(1)
					}
					t.All += int64(units)
					if phase.Load() == counting && units > 0 {
						t.Units += int64(units)
						t.Latency.Add(time.Since(began))
						some.Store(true)
					}
				}
			})
		}
	}
	err := c.window(ctx, func() error {
		begin()
		err := Wait(ctx, c.Warmup)
		for err == nil && warm.Load() < int64(n) {
			err = Wait(ctx, time.Millisecond)
		}
		return err
	}, func() error {
		phase.Store(counting)
		err := Wait(ctx, c.Time)
		for err == nil && !some.Load() { // a busy machine, and little time
			err = Wait(ctx, c.Time/10)
		}
		phase.Store(over)
		return err
	})
	phase.Store(over)
	callers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	for _, t := range tallies {
		c.tally.Units += t.Units
		c.tally.All += t.All
		c.tally.Latency.Merge(t.Latency)
	}
	return c.tally.All, err
}

// Once measures work that has an end, and returns the number of operations.
func (c *Cell) Once(ctx context.Context, work func(ctx context.Context) (units int64, err error)) error {
	return c.window(ctx, func() error { return nil }, func() error {
		units, err := work(ctx)
		c.tally.Units, c.tally.All = units, units
		return err
	})
}

// window measures the time and the resources of work.
func (c *Cell) window(ctx context.Context, warmUp, work func() error) error {
	if c.measured {
		return errors.New("a cell measures once")
	}
	c.measured = true
	if c.wal != nil && !c.Smoke {
		if _, err := c.wal.Exec(ctx, "checkpoint"); err != nil {
			return err
		}
	}
	runtime.GC()
	if err := warmUp(); err != nil {
		return err
	}
	if err := c.child.awaitGo(); err != nil {
		return err
	}
	before, err := c.spent(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	err = work()
	c.tally.Elapsed = time.Since(began)
	after, spentErr := c.spent(context.WithoutCancel(ctx))
	c.tally.ClientCPU += after.client - before.client
	c.tally.ServerCPU, c.tally.WAL = after.server-before.server, after.wal-before.wal
	return errors.Join(err, spentErr)
}

type spent struct {
	client, server time.Duration
	wal            int64
}

func (c *Cell) spent(ctx context.Context) (s spent, err error) {
	if c.wal != nil {
		err := c.wal.QueryRow(ctx, "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&s.wal)
		if err != nil {
			return s, err
		}
	}
	for _, measured := range c.servers {
		used, err := server.CPU(measured.PID())
		if err != nil {
			return s, err
		}
		s.server += used
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return s, err
	}
	s.client = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return s, nil
}

// Wait returns after a time, or when ctx ends, with the cause.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Observe counts a latency that the work has measured itself. It is safe for concurrent use.
func (c *Cell) Observe(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally.Latency.Add(d)
}

// Set adds a figure to the cell.
func (c *Cell) Set(metric Metric, value float64) {
	if c.tally.Extra == nil {
		c.tally.Extra = map[Metric]float64{}
	}
	c.tally.Extra[metric] = value
}

// Tally returns the measurements so far, to derive a figure from others.
func (c *Cell) Tally() Tally { return c.tally }

// Check fails the run unless the count in the store equals the count of the work: each cell must
// show that it did its work.
func (c *Cell) Check(what string, got, want int64) error {
	c.checks++
	if got != want || want == 0 {
		return fmt.Errorf("%s: there are %d, and %d were done", what, got, want)
	}
	return nil
}

func (c *Cell) close(ctx context.Context) error {
	var errs []error
	for _, cleanup := range slices.Backward(c.cleanups) {
		errs = append(errs, cleanup(ctx))
	}
	c.cleanups = nil
	return errors.Join(errs...)
}
