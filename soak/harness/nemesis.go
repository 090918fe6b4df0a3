package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
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
	run    func(n *nemesis, ctx context.Context, random *rand.Rand, begin func(target string) (end func())) error
}

// faults are all there are, in the order of --faults list.
var faults = []fault{
	{12, "kill-backend", "SIGKILL to a process that serves a client: the server recovers", true, (*nemesis).killBackend},
	{6, "kill-server", "SIGKILL to all processes of the server at once, and a start", true, (*nemesis).killServer},
	{12, "kill-client", "SIGKILL to a client, which is replaced", false, (*nemesis).killClient},
	{4, "pause-client", "SIGSTOP to a client for up to 3 s", false, (*nemesis).pauseClient},
	{6, "pause-server", "SIGSTOP to a process of the server for up to a second", true, (*nemesis).pauseServer},
	{12, cut, "connections closed and reset at any byte, and before and after any message", true, (*nemesis).cut},
	{3, lose, "answers that are lost while the connection stays", true, (*nemesis).lose},
	{3, hold, "everything held up on its way, past the deadlines of some, and then let go", true, (*nemesis).hold},
	{3, drip, "messages that arrive byte by byte", true, (*nemesis).drip},
	{1, "past-deadline", "SIGSTOP to every process that serves a client, for longer than any deadline of a write", true, (*nemesis).pastDeadline},
	{4, "twin", "a second process of a consumer, for up to 5 s", false, (*nemesis).twin},
	{4, check.JoinLeave, "a member more of a group whose members come and go, or one that ends in order", false, (*nemesis).joinLeave},
	{2, check.KillMember, "SIGKILL to such a member, which is not replaced", false, (*nemesis).killMember},
	{2, check.StopMember, "SIGSTOP to such a member for longer than its lease", false, (*nemesis).stopMember},
	{4, "deadlock", "transactions that write to two categories in opposite order", true, (*nemesis).deadlock},
	{2, "connections", "no connection left for anybody", true, (*nemesis).connections},
	{2, reindex, "REINDEX CONCURRENTLY of each index of messages, or VACUUM, or ANALYZE", true, (*nemesis).reindex},
	{2, migrate, "dibs migrate up, from the version before", true, (*nemesis).migrate},
	{2, release, "all functions of the schema anew, and a change of the table of messages, in one transaction", true, (*nemesis).release},
	{2, raiseEpoch, "an operator reports a rollback of the store that did not happen", true, (*nemesis).raiseEpoch},
	{4, killPgBouncer, "SIGKILL to PgBouncer, and a start; with --pgbouncer", true, (*nemesis).killPgBouncer},
	{2, syncError, "EIO instead of a sync of data or WAL: the server ends with a PANIC, and recovers; with strace", true, (*nemesis).failSync},
	{4, clockJump, "the clock of the server up to an hour ahead or back, and right again; with --clock", true, (*nemesis).jump},
	{4, diskFull, "no room for data and WAL for up to 3 s; with --full-disk", true, (*nemesis).fillDisk},
}

// The faults of connections.
const (
	cut  = "cut"
	lose = "lose"
	hold = "hold"
	drip = "drip"
)

// A nemesis has things go wrong, as a seed decides.
type nemesis struct {
	*run
	phases []phase
	seed   uint64

	mu      sync.Mutex
	counts  map[string]int
	turns   map[string]*sync.Mutex // most faults are there once at a time
	failed  []error
	crashes []crash        // of the server
	ready   int            // how often it had been there by the last of them
	done    map[string]int // how often the fault had its effect, before any other fault

	// Of failovers.
	rewinds int // how often a server took over that lacked messages which consumers may have read
}

func newNemesis(r *run, phases []phase) *nemesis {
	n := &nemesis{run: r, phases: phases, seed: r.options.Seed, counts: map[string]int{}, done: map[string]int{}, turns: map[string]*sync.Mutex{}}
	for _, f := range faults {
		if !slices.Contains(memberFaults, f.name) { // several members may come and go at a time
			n.turns[f.name] = &sync.Mutex{}
		}
	}
	n.turns[release] = n.turns[migrate] // as releases do, by a lock
	return n
}

// torment has one thing after the other go wrong, in one phase after the other, until ctx
// is done. When it returns, the faults that began have ended.
func (n *nemesis) torment(ctx context.Context) error {
	if n.options.Failovers.Total() > 0 {
		return errors.Join(append(n.failed, n.failovers(ctx))...)
	}
	for i, p := range n.phases {
		if ctx.Err() == nil {
			n.log.Info().Str("phase", p.name).Msg("running")
			n.phase(ctx, p, uint64(i)<<32)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return errors.Join(n.failed...)
}

// phase is over with ctx, after its time, or when the server was killed often enough.
func (n *nemesis) phase(ctx context.Context, p phase, stream uint64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if p.atMost > 0 {
		ctx, cancel = context.WithTimeout(ctx, p.atMost)
		defer cancel()
	}
	if len(p.faults) == 0 {
		<-ctx.Done()
		return
	}
	opening := p.opening(rand.New(rand.NewPCG(n.seed, stream)))
	var all sync.WaitGroup
	for lane := range p.lanes {
		all.Go(func() {
			random := rand.New(rand.NewPCG(n.seed, stream|uint64(lane+1)))
			for alone, after := false, false; wait(ctx, p.wait(random, alone, after)); after, alone = alone, p.alone > 0 && random.IntN(p.alone) == 0 {
				f, first := opening.next()
				if !first {
					f = p.draw(random)
				}
				n.one(ctx, f, random)
				if _, crashes := n.count(); p.crashes > 0 && crashes >= p.crashes {
					cancel()
				}
			}
		})
	}
	all.Wait()
}

// count returns how often there was each fault, and how often the server was killed.
func (n *nemesis) count() (counts map[string]int, crashes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.counts), len(n.crashes)
}

func (n *nemesis) one(ctx context.Context, f fault, random *rand.Rand) {
	if turn, once := n.turns[f.name]; once {
		if !turn.TryLock() {
			return
		}
		defer turn.Unlock()
	}
	begin := func(target string) func() { return n.begin(f.name, target) }
	if err := f.run(n, ctx, random, begin); err != nil {
		n.note(fmt.Errorf("%s: %w", f.name, err))
	}
}

// begin writes down that a fault begins, and when the function that it returns is called
// that it has ended.
func (n *nemesis) begin(name, target string) (end func()) {
	op, err := n.history.Begin(&history.Event{Func: history.Fault, Class: name, Target: target})
	n.note(err)
	n.mu.Lock()
	n.counts[name]++
	n.mu.Unlock()
	return func() {
		n.note(n.history.End(op, history.OK, &history.Event{Func: history.Fault, Class: name}))
	}
}

func (n *nemesis) note(err error) {
	if err == nil {
		return
	}
	n.log.Error().Err(err).Msg("nemesis")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failed = append(n.failed, err)
}

func (n *nemesis) crashed() error {
	now, err := history.Now()
	ready, readyErr := n.postgres.Ready()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.crashes = append(n.crashes, crash{now, now})
	n.ready = ready
	return errors.Join(err, readyErr)
}

// died waits until all processes have ended that served clients when one of them was killed. They
// serve on until the postmaster has noticed.
func (n *nemesis) died(ctx context.Context, served []server.Backend) error {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for slices.ContainsFunc(n.postgres.Backends(), func(b server.Backend) bool { return slices.Contains(served, b) }) {
		if !wait(limited, time.Millisecond) {
			break // a process that another fault has stopped serves no client either
		}
	}
	now, err := history.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.crashes[len(n.crashes)-1].dead = now
	return err
}

// wait reports whether it has waited for d, and ctx is not done.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

func (n *nemesis) backends(client bool) []server.Backend {
	return slices.DeleteFunc(n.postgres.Backends(), func(b server.Backend) bool { return (b.Kind == server.ClientBackend) != client })
}

func (n *nemesis) killBackend(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	if !n.up.TryRLock() {
		return nil // it is down
	}
	defer n.up.RUnlock()
	if back, err := n.back(); err != nil || !back {
		return err // it is dying, or recovers
	}
	serving := n.backends(true)
	if len(serving) == 0 {
		return nil
	}
	victim := serving[random.IntN(len(serving))]
	defer begin(fmt.Sprintf("%s %d", victim.Kind, victim.PID))()
	if !n.postgres.Signal(victim.PID, syscall.SIGKILL) {
		return nil
	}
	return errors.Join(n.crashed(), n.died(ctx, serving))
}

func (n *nemesis) killServer(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	n.up.Lock()
	defer n.up.Unlock()
	defer begin("postmaster")()
	back, err := n.back()
	if err := errors.Join(err, n.postgres.Kill()); err != nil {
		return err
	}
	if random.IntN(2) == 0 {
		wait(ctx, between(random, 0, 500*time.Millisecond))
	}
	if back { // or else it was down already, and is killed while it recovers
		err = n.crashed()
	}
	return errors.Join(err, n.postgres.Start(context.WithoutCancel(ctx)))
}

// back reports whether the server has been there since it was killed last.
func (n *nemesis) back() (bool, error) {
	ready, err := n.postgres.Ready()
	n.mu.Lock()
	defer n.mu.Unlock()
	return ready > n.ready, err
}

func (n *nemesis) anyClient(random *rand.Rand) *slot {
	all := n.clients.all("")
	return all[random.IntN(len(all))]
}

func (n *nemesis) killClient(_ context.Context, random *rand.Rand, begin func(string) func()) error {
	victim := n.anyClient(random)
	defer begin(victim.name)()
	victim.kill()
	return nil
}

func (n *nemesis) pauseClient(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	victim := n.anyClient(random)
	defer begin(victim.name)()
	child := victim.signal(syscall.SIGSTOP)
	wait(ctx, between(random, 50*time.Millisecond, 3*time.Second))
	child.Signal(syscall.SIGCONT)
	return nil
}

func (n *nemesis) pauseServer(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	pid, kind := n.postgres.PID(), "postmaster"
	if all := n.postgres.Backends(); len(all) > 0 && random.IntN(8) > 0 {
		victim := all[random.IntN(len(all))]
		pid, kind = victim.PID, victim.Kind
	}
	defer begin(fmt.Sprintf("%s %d", kind, pid))()
	n.postgres.Signal(pid, syscall.SIGSTOP)
	wait(ctx, between(random, 50*time.Millisecond, time.Second))
	n.postgres.Signal(pid, syscall.SIGCONT)
	return nil
}

func (n *nemesis) pastDeadline(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	serving := n.backends(true)
	defer begin(fmt.Sprintf("%d backends", len(serving)))()
	for _, b := range serving {
		n.postgres.Signal(b.PID, syscall.SIGSTOP)
	}
	wait(ctx, work.Patience+between(random, 0, time.Second))
	for _, b := range serving {
		n.postgres.Signal(b.PID, syscall.SIGCONT)
	}
	return nil
}

// ruled puts a rule on one of the proxies for a while. If the rule may leave a connection dead
// without the client's knowing, sever cuts it in the end: nothing else here would find it.
func (n *nemesis) ruled(
	ctx context.Context, random *rand.Rand, begin func(string) func(), name string, most time.Duration, sever bool, rule pgproxy.Rule,
) error {
	role := roles[random.IntN(len(roles))]
	proxy := n.proxies[role]
	if !proxy.turn.TryLock() {
		return nil
	}
	defer proxy.turn.Unlock()
	defer begin("connections of each " + string(role))()
	proxy.SetRule(func(m pgproxy.Message) pgproxy.Fault {
		fault := rule(m)
		if fault != pgproxy.Pass {
			n.did(name)
		}
		return fault
	})
	wait(ctx, between(random, most/10, most))
	proxy.SetRule(nil)
	proxy.Release()
	if sever {
		proxy.Sever()
	}
	return nil
}

var cuts = []pgproxy.Fault{
	pgproxy.CloseBefore, pgproxy.CloseWithin, pgproxy.CloseAfter, pgproxy.ResetBefore, pgproxy.ResetWithin, pgproxy.ResetAfter, pgproxy.Forsake,
}

// seldom has one of the faults happen to a few messages.
func seldom(random *rand.Rand, chance float64, which ...pgproxy.Fault) pgproxy.Rule {
	own := rand.New(rand.NewPCG(random.Uint64(), 0)) // the rule outlives this call, in another goroutine
	return func(pgproxy.Message) pgproxy.Fault {
		if own.Float64() >= chance {
			return pgproxy.Pass
		}
		return which[own.IntN(len(which))]
	}
}

func (n *nemesis) cut(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return n.ruled(ctx, random, begin, cut, 2*time.Second, true, seldom(random, 0.02, cuts...))
}

func (n *nemesis) lose(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return n.ruled(ctx, random, begin, lose, time.Second, true, seldom(random, 0.01, pgproxy.Lose))
}

func (n *nemesis) hold(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return n.ruled(ctx, random, begin, hold, 4*time.Second, false, seldom(random, 0.5, pgproxy.Hold))
}

func (n *nemesis) drip(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return n.ruled(ctx, random, begin, drip, time.Second, false, seldom(random, 0.2, pgproxy.Drip))
}

func (n *nemesis) twin(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	all := slices.Concat(n.clients.all(work.Consumer), n.clients.all(work.Handler))
	original := all[random.IntN(len(all))]
	defer begin(original.name)()
	twin, err := n.clients.add(original.name+"-twin", original.task)
	if err != nil {
		return err
	}
	wait(ctx, between(random, time.Second, 5*time.Second))
	twin.abandon()
	return nil
}

func (n *nemesis) deadlock(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	defer begin("two categories")()
	task := n.task(work.Opposed, work.Writer)
	task.Name = "opposed"
	s, err := n.clients.add(task.Name, task)
	if err != nil {
		return err
	}
	wait(ctx, between(random, time.Second, 3*time.Second))
	if !s.stop(stopGrace) {
		return errors.New("a deadlocking client does not end")
	}
	return nil
}

func (n *nemesis) connections(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
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
		conn, err := pgx.Connect(deadline, n.postgres.URL(database))
		if err != nil {
			if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "53300" {
				return nil // another fault was first
			}
			break
		}
		held = append(held, conn)
	}
	wait(ctx, between(random, 200*time.Millisecond, 2*time.Second))
	return nil
}
