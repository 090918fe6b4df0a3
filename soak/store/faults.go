package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
)

// A fault is something that goes wrong, from its beginning to its end. It calls begin
// once it knows its target, and the function that begin returns when all is well again.
type fault struct {
	weight int // how often it comes, beside the others
	name   string
	says   string
	server bool // needs a PostgreSQL
	run    func(r *run, ctx context.Context, random *rand.Rand, begin func(target string) (end func())) error
}

// faults are all there are, in the order of --faults list.
var faults = []fault{
	{12, "kill-backend", "SIGKILL to a process that serves a client: the server recovers", true, (*run).killBackend},
	{6, "kill-server", "SIGKILL to all processes of the server at once, and a start", true, (*run).killServer},
	{12, "kill-client", "SIGKILL to a client, which is replaced", false, (*run).killClient},
	{4, "pause-client", "SIGSTOP to a client for up to 3 s", false, (*run).pauseClient},
	{6, "pause-server", "SIGSTOP to a process of the server for up to a second", true, (*run).pauseServer},
	{12, cut, "connections closed and reset at any byte, and before and after any message", true, (*run).cut},
	{3, lose, "answers that are lost while the connection stays", true, (*run).lose},
	{3, hold, "everything held up on its way, past the deadlines of some, and then let go", true, (*run).hold},
	{3, drip, "messages that arrive byte by byte", true, (*run).drip},
	{1, "past-deadline", "SIGSTOP to every process that serves a client, for longer than any deadline of a write", true, (*run).pastDeadline},
	{4, "twin", "a second process of a consumer, for up to 5 s", false, (*run).twin},
	{4, joinLeave, "a member more of a group whose members come and go, or one that ends in order", false, (*run).joinLeave},
	{2, killMember, "SIGKILL to such a member, which is not replaced", false, (*run).killMember},
	{2, stopMember, "SIGSTOP to such a member for longer than its lease", false, (*run).stopMember},
	{4, "deadlock", "transactions that write to two categories in opposite order", true, (*run).deadlock},
	{2, "connections", "no connection left for anybody", true, (*run).connections},
	{2, reindex, "REINDEX CONCURRENTLY of each index of messages, or VACUUM, or ANALYZE", true, (*run).reindex},
	{2, migrate, "dibs migrate up, from the version before", true, (*run).migrate},
	{2, release, "all functions of the schema anew, and a change of the table of messages, in one transaction", true, (*run).release},
	{2, raiseEpoch, "an operator reports a rollback of the store that did not happen", true, (*run).raiseEpoch},
	{4, killPgBouncer, "SIGKILL to PgBouncer, and a start; with --pgbouncer", true, (*run).killPgBouncer},
	{2, syncError, "EIO instead of a sync of data or WAL: the server ends with a PANIC, and recovers; with strace", true, (*run).failSync},
	{4, clockJump, "the clock of the server up to an hour ahead or back, and right again; with --clock", true, (*run).jump},
	{4, diskFull, "no room for data and WAL for up to 3 s; with --full-disk", true, (*run).fillDisk},
}

// The faults of connections.
const (
	cut  = "cut"
	lose = "lose"
	hold = "hold"
	drip = "drip"
)

// killed records that the server was killed, when the processes that served clients are gone: they
// serve on until the postmaster has noticed.
func (r *run) killed(ctx context.Context, served []server.Backend) error {
	call := r.Nemesis.Begin(crew.Event{Call: crew.Kill, Target: crew.Server})
	ready, err := r.Postgres.Ready()
	r.mu.Lock()
	r.ready = ready
	r.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for slices.ContainsFunc(r.Postgres.Backends(), func(b server.Backend) bool { return slices.Contains(served, b) }) {
		if !crew.Pause(limited, time.Millisecond) {
			break // a process that another fault has stopped serves no client either
		}
	}
	r.Nemesis.End(call, crew.Event{Answer: crew.OK})
	return err
}

func (r *run) backends(client bool) []server.Backend {
	return slices.DeleteFunc(r.Postgres.Backends(), func(b server.Backend) bool { return (b.Kind == server.ClientBackend) != client })
}

func (r *run) killBackend(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	if !r.Busy.TryRLock() {
		return nil // it is down
	}
	defer r.Busy.RUnlock()
	if back, err := r.back(); err != nil || !back {
		return err // it is dying, or recovers
	}
	serving := r.backends(true)
	if len(serving) == 0 {
		return nil
	}
	victim := serving[random.IntN(len(serving))]
	defer begin(fmt.Sprintf("%s %d", victim.Kind, victim.PID))()
	if !r.Postgres.Signal(victim.PID, syscall.SIGKILL) {
		return nil
	}
	return r.killed(ctx, serving)
}

func (r *run) killServer(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	r.Busy.Lock()
	defer r.Busy.Unlock()
	defer begin("postmaster")()
	back, err := r.back()
	if err := errors.Join(err, r.Postgres.Kill()); err != nil {
		return err
	}
	if random.IntN(2) == 0 {
		crew.Pause(ctx, between(random, 0, 500*time.Millisecond))
	}
	if back { // or else it was down already, and is killed while it recovers
		err = r.killed(ctx, nil)
	}
	return errors.Join(err, r.Postgres.Start(context.WithoutCancel(ctx)))
}

// back reports whether the server has been there since it was killed last.
func (r *run) back() (bool, error) {
	ready, err := r.Postgres.Ready()
	r.mu.Lock()
	defer r.mu.Unlock()
	return ready > r.ready, err
}

func (r *run) killClient(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	victim := r.Any(random)
	defer begin(victim.Name)()
	victim.Kill()
	return nil
}

func (r *run) pauseClient(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	victim := r.Any(random)
	defer begin(victim.Name)()
	child := victim.Signal(syscall.SIGSTOP)
	crew.Pause(ctx, between(random, 50*time.Millisecond, 3*time.Second))
	child.Signal(syscall.SIGCONT)
	return nil
}

func (r *run) pauseServer(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	pid, kind := r.Postgres.PID(), "postmaster"
	if all := r.Postgres.Backends(); len(all) > 0 && random.IntN(8) > 0 {
		victim := all[random.IntN(len(all))]
		pid, kind = victim.PID, victim.Kind
	}
	defer begin(fmt.Sprintf("%s %d", kind, pid))()
	r.Postgres.Signal(pid, syscall.SIGSTOP)
	crew.Pause(ctx, between(random, 50*time.Millisecond, time.Second))
	r.Postgres.Signal(pid, syscall.SIGCONT)
	return nil
}

func (r *run) pastDeadline(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	serving := r.backends(true)
	defer begin(fmt.Sprintf("%d backends", len(serving)))()
	for _, b := range serving {
		r.Postgres.Signal(b.PID, syscall.SIGSTOP)
	}
	crew.Pause(ctx, work.Patience+between(random, 0, time.Second))
	for _, b := range serving {
		r.Postgres.Signal(b.PID, syscall.SIGCONT)
	}
	return nil
}

// ruled has a rule for the connections of all clients of a role for a while. If the rule may leave
// a connection dead without the client's knowing, sever cuts it in the end: nothing else here would
// find it.
func (r *run) ruled(
	ctx context.Context, random *rand.Rand, begin func(string) func(), name string, most time.Duration, sever bool, rule func() testserver.Rule,
) error {
	role := []work.Role{work.Writer, work.Consumer, work.Handler}[random.IntN(3)]
	slots := r.Slots(string(role))
	if len(slots) == 0 {
		return nil
	}
	defer begin("connections of each " + string(role))()
	d := between(random, most/10, most)
	did := sync.OnceFunc(func() { r.did(name) })
	var all sync.WaitGroup
	for _, s := range slots {
		own := rule()
		all.Go(func() {
			if s.Under(ctx, func(m testserver.Message) testserver.Fault {
				fault := own(m)
				if fault != testserver.Pass {
					did()
				}
				return fault
			}, d) && sever {
				s.Sever()
			}
		})
	}
	all.Wait()
	return nil
}

var cuts = []testserver.Fault{
	testserver.CloseBefore, testserver.CloseWithin, testserver.CloseAfter, testserver.ResetBefore, testserver.ResetWithin, testserver.ResetAfter, testserver.Forsake,
}

// seldom returns rules by which a random fault happens to a few messages of a client.
func seldom(random *rand.Rand, chance float64, which ...testserver.Fault) func() testserver.Rule {
	return func() testserver.Rule {
		var mu sync.Mutex
		own := rand.New(rand.NewPCG(random.Uint64(), 0)) // the rule outlives this call, in other goroutines
		return func(testserver.Message) testserver.Fault {
			mu.Lock()
			defer mu.Unlock()
			if own.Float64() >= chance {
				return testserver.Pass
			}
			return which[own.IntN(len(which))]
		}
	}
}

func (r *run) cut(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return r.ruled(ctx, random, begin, cut, 2*time.Second, true, seldom(random, 0.02, cuts...))
}

func (r *run) lose(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return r.ruled(ctx, random, begin, lose, time.Second, true, seldom(random, 0.01, testserver.Lose))
}

func (r *run) hold(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return r.ruled(ctx, random, begin, hold, 4*time.Second, false, seldom(random, 0.5, testserver.Hold))
}

func (r *run) drip(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return r.ruled(ctx, random, begin, drip, time.Second, false, seldom(random, 0.2, testserver.Drip))
}

func (r *run) twin(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	original := r.Any(random, string(work.Consumer), string(work.Handler))
	defer begin(original.Name)()
	client := original.Client
	client.Name += "-twin"
	twin, err := r.Add(client)
	if err != nil {
		return err
	}
	crew.Pause(ctx, between(random, time.Second, 5*time.Second))
	twin.Stop(0)
	return nil
}

func (r *run) deadlock(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	defer begin("two categories")()
	s, err := r.Add(r.client("opposed", work.Opposed, work.Writer, nil))
	if err != nil {
		return err
	}
	crew.Pause(ctx, between(random, time.Second, 3*time.Second))
	if !s.Stop(stopGrace) {
		return errors.New("a deadlocking client does not end")
	}
	return nil
}

func (r *run) connections(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	defer begin("all connections")()
	var held []*pgx.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close(context.WithoutCancel(ctx)) // the server may be gone
		}
	}()
	deadline, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(deadline, r.Postgres.URL(database))
		if err != nil {
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "53300" {
				return nil // another fault was first
			}
			break
		}
		held = append(held, conn)
	}
	crew.Pause(ctx, between(random, 200*time.Millisecond, 2*time.Second))
	return nil
}
