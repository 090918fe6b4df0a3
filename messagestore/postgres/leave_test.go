package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// A gate is a driver, and keeps it from having a connection while it is closed.
type gate struct {
	*postgres.Driver

	pool   *pgxpool.Pool // without the gate
	role   string        // of the driver's connections
	closed atomic.Bool
	came   chan struct{} // receives when the driver waits at the gate, and pass lets it through
	pass   chan struct{}
	opened atomic.Pointer[func()] // called where the gate is opened, before there is a connection
	ended  atomic.Pointer[func()] // called when a statement has ended then
	fails  atomic.Bool            // there is no connection, once
}

// TraceAcquireStart implements [pgxpool.AcquireTracer].
func (g *gate) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if g.closed.Load() {
		g.came <- struct{}{}
		<-g.pass
		if f := g.opened.Load(); f != nil && !g.closed.Load() {
			(*f)()
		}
	}
	return ctx
}

// TraceAcquireEnd implements [pgxpool.AcquireTracer].
func (*gate) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// TraceQueryStart implements [pgx.QueryTracer].
func (g *gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, g, data.SQL)
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (g *gate) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	sql, _ := ctx.Value(g).(string)
	if !slices.ContainsFunc([]string{"append", "queue_take", "read_stream"}, func(name string) bool { return strings.Contains(sql, name) }) {
		return // of the pool, to which no connection comes back that panics
	}
	if f := g.ended.Load(); f != nil && !g.closed.Load() {
		(*f)()
	}
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{role: "none", came: make(chan struct{}, 100), pass: make(chan struct{})}
	url := pgtest.Migrated(t)
	g.pool = pgtest.Connect(t, url)
	config := testkit.Must(pgxpool.ParseConfig(url))
	config.MaxConns = 2 // so one read is under way, and others wait for it
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		if _, err := conn.Exec(ctx, "set role "+g.role); err != nil {
			return false, err
		}
		if g.fails.Swap(false) {
			return false, errors.New("no connection")
		}
		return true, nil
	}
	config.ConnConfig.Tracer = g
	gated := testkit.Must(pgxpool.NewWithConfig(t.Context(), config))
	t.Cleanup(gated.Close)
	g.Driver = testkit.Must(postgres.New(gated, nil))
	return g
}

// close keeps the driver from having a connection until open is called.
func (g *gate) close() { g.closed.Store(true) }

func (g *gate) open() {
	g.closed.Store(false)
	g.pass <- struct{}{}
}

// A party is calls that go together, some of which end before the group has a connection.
type party struct {
	calls int
	call  func(ctx context.Context, i int) error
	waits func(n int) // until n calls wait for their turn
}

// goes has the calls go together, of which leavers end, and returns their errors.
func (g *gate) goes(t *testing.T, p party, leavers ...int) []error {
	t.Helper()
	type ended struct {
		i   int
		err error
	}
	answers := make(chan ended, p.calls)
	leave := make([]context.CancelFunc, p.calls)
	g.close()
	first := testkit.Go(func() error { return p.call(t.Context(), -1) })
	testkit.Receive(t, "the first call at the gate", g.came)
	for i := range p.calls {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		leave[i] = end
		go func() { answers <- ended{i, p.call(ctx, i)} }()
		p.waits(i + 1)
	}
	g.pass <- struct{}{}
	require.NoError(t, testkit.Receive(t, "the first call", first))
	testkit.Receive(t, "the group at the gate", g.came)
	errs := make([]error, p.calls)
	for _, i := range leavers {
		leave[i]()
		a := testkit.Receive(t, "a call that ends", answers)
		errs[a.i] = a.err
	}
	g.open()
	for range p.calls - len(leavers) {
		a := testkit.Receive(t, "a call that stays", answers)
		errs[a.i] = a.err
	}
	return errs
}

var someLeave = [][]int{nil, {0}, {1}, {3}, {0, 1, 2}, {1, 2, 3}, {0, 3}, {0, 1, 2, 3}}

// Callers leave a group of writes before it is sent, and the take that goes with it is refused, or
// not. The callers that stay get their answers, and the callers that left have written nothing.
func TestCallersLeaveAGroupWhoseTakeIsRefused(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(t *testing.T, g *gate, take *queuing.Take){
		"is done":            func(*testing.T, *gate, *queuing.Take) {},
		"is against a rule":  func(_ *testing.T, _ *gate, take *queuing.Take) { take.Lease = time.Nanosecond },
		"waits for too long": func(t *testing.T, g *gate, _ *queuing.Take) { t.Helper(); g.stuck(t) },
		"has no right": func(t *testing.T, g *gate, _ *queuing.Take) {
			t.Helper()
			testkit.Do(g.pool.Exec(t.Context(), "revoke execute on function dibs.queue_take from dibs_writer"))(t)
			g.role = "dibs_writer"
		},
	} {
		t.Run("the take "+name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			take := takeOf(7)
			refuse(t, g, &take)
			for kind, write := range g.writes() {
				for n, leavers := range someLeave {
					stop, told, end := g.worker(take)
					one := func(i int) messagestore.StreamName {
						return turnsOf.Category.Stream(fmt.Sprintf("%s%d-%d", kind, n, i))
					}
					errs := g.goes(t, party{4, func(ctx context.Context, i int) error {
						if i == 2 {
							ctx = queuing.WithStop(ctx, stop)
						}
						return write(ctx, one(i))
					}, func(n int) { awaitWaiting(t, g.Driver, n) }}, leavers...)

					for i, err := range errs {
						version := testkit.Must(g.Version(t.Context(), one(i)))
						if slices.Contains(leavers, i) {
							require.ErrorIs(t, err, context.Canceled, "%s, %v", kind, leavers)
							require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)
							require.Equal(t, messagestore.NoStream, version)
							continue
						}
						require.NoError(t, err, "%s, %v", kind, leavers)
						require.Zero(t, version)
					}
					end()
					if taken, rode := <-told; rode && name != "is done" {
						require.ErrorIs(t, taken.err, queuing.ErrAlone)
					} else if rode {
						require.NoError(t, taken.err)
					}
				}
			}
		})
	}
}

// stuck has takes from the queue wait for too long.
func (g *gate) stuck(t *testing.T) {
	t.Helper()
	other := testkit.Do(g.pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = other.Rollback(context.WithoutCancel(t.Context())) })
	testkit.Do(other.Exec(t.Context(), "select dibs.queue_lock('turns', 'turns', true)"))(t)
	testkit.Do(g.pool.Exec(t.Context(), "alter function dibs.queue_take set lock_timeout = '20ms'"))(t)
}

// writes are the kinds of writes that go together.
func (g *gate) writes() map[string]func(ctx context.Context, stream messagestore.StreamName) error {
	return map[string]func(ctx context.Context, stream messagestore.StreamName) error{
		"one": func(ctx context.Context, stream messagestore.StreamName) error {
			_, err := g.Append(ctx, record(stream))
			return err
		},
		"several": func(ctx context.Context, stream messagestore.StreamName) error {
			_, err := g.AppendAll(ctx, []messagestore.Append{record(stream), record(stream + "+b")})
			return err
		},
		"meets": func(ctx context.Context, stream messagestore.StreamName) error {
			_, _, err := g.TryAppend(ctx, []messagestore.Append{record(stream)})
			return err
		},
	}
}

// worker waits for a write that takes its take along, until end is called, and gets the take's
// result.
func (*gate) worker(take queuing.Take) (stop *queuing.Stop, told <-chan rode, end func()) {
	stop = queuing.NewStop()
	stop.Wait(true)
	answers, ended := make(chan rode, 1), make(chan struct{})
	go func() {
		defer close(answers)
		select {
		case call := <-stop.Calls():
			stop.Wait(false)
			ride := queuing.NewRide(take)
			call <- ride
			taken, err := ride.Told()
			answers <- rode{taken, err}
		case <-ended:
			stop.Wait(false)
		}
	}()
	return stop, answers, func() { close(ended) }
}

// Callers leave a group of reads before it is sent, and the group fails, or not. The callers that
// stay read the right messages.
func TestCallersLeaveAGroupOfReads(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.Patient()
	stream := turnsOf.Category.Stream("1")
	testkit.Must(g.Append(t.Context(), record(stream)))
	for _, fails := range []bool{false, true} {
		for _, leavers := range someLeave {
			found := make([]int, 4)
			g.opened.Store(new(func() { g.opened.Store(nil); g.fails.Store(fails) }))
			errs := g.goes(t, party{4, func(ctx context.Context, i int) error {
				messages, err := g.ReadStream(ctx, messagestore.StreamQuery{Stream: stream, Limit: 10})
				if i >= 0 {
					found[i] = len(messages)
				}
				return err
			}, func(n int) { testkit.AwaitEqual(t, "the reads that wait", n, g.WaitingReads) }}, leavers...)

			for i, err := range errs {
				if slices.Contains(leavers, i) {
					require.ErrorIs(t, err, context.Canceled)
					continue
				}
				require.NoError(t, err)
				require.Equal(t, 1, found[i])
			}
		}
	}
}

// A hook or a tracer of the pool that panics, or ends its goroutine, ends no process: the writes
// that went together have the error.
func TestAPanicIsAnErrorOfTheWritesThatWentTogether(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	n := 0
	for what, breaks := range ends {
		for _, sent := range []bool{false, true} {
			for kind, write := range g.writes() {
				n++
				one := func(i int) messagestore.StreamName { return turnsOf.Category.Stream(fmt.Sprintf("%d%d", n, i)) }
				g.breaks(sent, breaks)
				stop, told, end := g.worker(takeOf(7))
				errs := g.goes(t, party{3, func(ctx context.Context, i int) error {
					if i == 1 {
						ctx = queuing.WithStop(ctx, stop)
					}
					return write(ctx, one(i))
				}, func(n int) { awaitWaiting(t, g.Driver, n) }})

				for i, err := range errs {
					require.NotNil(t, calling.PanicOf(err), "%s, %s: %v", what, kind, err)
					require.Equal(t, sent, errors.Is(err, messagestore.ErrOutcomeUnknown), "%s, %s: %v", what, kind, err)
					if !sent {
						require.Equal(t, messagestore.NoStream, testkit.Must(g.Version(t.Context(), one(i))))
					}
				}
				end()
				if taken, rode := <-told; rode {
					require.ErrorIs(t, taken.err, messagestore.ErrOutcomeUnknown)
				}
				require.NoError(t, write(t.Context(), one(9)), "the next write")
			}
		}
	}
}

// A group of reads that panics is read one by one.
func TestAPanicOfAGroupOfReadsHarmsNone(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.Patient()
	stream := turnsOf.Category.Stream("1")
	testkit.Must(g.Append(t.Context(), record(stream)))
	for what, breaks := range ends {
		g.breaks(true, breaks)
		errs := g.goes(t, party{3, func(ctx context.Context, _ int) error {
			_, err := g.ReadStream(ctx, messagestore.StreamQuery{Stream: stream, Limit: 10})
			return err
		}, func(n int) { testkit.AwaitEqual(t, "the reads that wait", n, g.WaitingReads) }})

		require.Equal(t, make([]error, 3), errs, what)
	}
}

// ends do not return.
var ends = map[string]func(){"a panic": func() { panic("broken") }, "the end of a goroutine": runtime.Goexit}

// breaks has a function called once, when the gate is opened: before the group is sent, or when its
// answer is there.
func (g *gate) breaks(sent bool, f func()) {
	if sent {
		g.ended.Store(new(sync.OnceFunc(func() { g.ended.Store(nil); f() })))
		return
	}
	g.opened.Store(new(func() { g.opened.Store(nil); f() }))
}
