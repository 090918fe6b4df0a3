package intents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
)

// A fault comes again and again, after a time between two bounds; and seldom, once there was enough of it.
type fault struct {
	least, most time.Duration
	counted     func(n *Counts) *int // nil if it has no goal
	after       func(n *Counts) *int // the goal before which it is seldom too; nil for none
	answers     int64                // of the server before the next one, so that a slow machine gets something done
	run         func(r *run, ctx context.Context, random *rand.Rand) error
}

// The faults run beside each other.
var (
	killProcess = fault{100 * time.Millisecond, 600 * time.Millisecond, kills, serverKills, 50, (*run).killProcess}
	stopProcess = fault{50 * time.Millisecond, 200 * time.Millisecond, stops, nil, 10, (*run).stopProcess}
	killServer  = fault{300 * time.Millisecond, time.Second, serverKills, nil, 150, (*run).killServer}
	killSeldom  = fault{4 * time.Second, 8 * time.Second, nil, nil, 150, (*run).killServer} // PgBouncer asks it again after a second
	cut         = fault{500 * time.Millisecond, 2 * time.Second, nil, nil, 0, (*run).cut}
	cutCommit   = fault{200 * time.Millisecond, time.Second, commits, nil, 0, (*run).cutCommit}
	jump        = fault{200 * time.Millisecond, 1500 * time.Millisecond, nil, nil, 0, (*run).jump}
	killBouncer = fault{2 * time.Second, 5 * time.Second, nil, nil, 150, (*run).killBouncer}
	silence     = fault{ttl, 2 * ttl, nil, nil, 150, (*run).silence}
)

func kills(n *Counts) *int       { return &n.Kills }
func stops(n *Counts) *int       { return &n.Stops }
func serverKills(n *Counts) *int { return &n.ServerKills }
func commits(n *Counts) *int     { return &n.UnknownCommits }

// How much longer it is to the next fault once there were enough, and before its time, and in a run without
// goals. Where the server is always down no lease is held, and a process that is killed is not late.
const (
	seldom = 10
	before = 3
)

// enough reports whether the goal of a fault is reached, as far as is known.
func (r *run) enough(counted func(n *Counts) *int) bool {
	n := r.counted.Load()
	return counted != nil && r.Goals != nil && n != nil && *counted(n) >= *counted(r.Goals)
}

// next is how long it is to the next fault.
func (r *run) next(f fault, random *rand.Rand) time.Duration {
	d := f.least + time.Duration(random.Int64N(int64(f.most-f.least)))
	switch {
	case r.enough(f.counted):
		d *= seldom
	case r.Goals == nil && f.counted != nil, f.after != nil && !r.enough(f.after):
		d *= before
	}
	return d
}

// awaitAnswers waits until the server has answered so often, but not for ever: it may be down.
func (r *run) awaitAnswers(ctx context.Context, answers int64) {
	const most = 10 * time.Second
	for deadline := time.Now().Add(most); r.answers.Load() < answers && time.Now().Before(deadline) && pause(ctx, 5*time.Millisecond); {
	}
}

// faults are the faults of the run.
func (r *run) faults() []fault {
	switch {
	case r.Calm:
		return nil
	case r.Silent:
		return []fault{silence}
	case r.Failovers.total() > 0: // there is one server at a time, and no other may end it
		return []fault{killProcess, stopProcess, cut}
	}
	all := []fault{killProcess, stopProcess, cut, cutCommit}
	switch {
	case r.PgBouncer:
		return append(all, killBouncer, killSeldom)
	case r.Clock:
		all = append(all, jump)
	}
	return append(all, killServer)
}

// torment has faults for the time of the run, or until its goals are reached, or its failovers are done.
func (r *run) torment(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		if err != nil {
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
			cancel()
		}
	}
	for i, f := range r.faults() {
		all.Go(func() {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i))) //nolint:gosec // a few
			for {
				since := r.answers.Load()
				if !pause(limited, r.next(f, random)) {
					return
				}
				r.awaitAnswers(limited, since+f.answers)
				fail(f.run(r, limited, random))
			}
		})
	}
	if r.Failovers.total() > 0 {
		all.Go(func() {
			fail(r.failovers(limited))
			cancel()
		})
	} else {
		all.Go(func() { fail(r.watch(limited, cancel)) })
	}
	all.Wait()
	return errors.Join(failed, ctx.Err())
}

// watch tells how far the run is from its goals, and ends it where it has reached them.
func (r *run) watch(ctx context.Context, reached func()) error {
	const every = 5 * time.Second
	if r.Goals == nil {
		<-ctx.Done()
		return nil
	}
	store, _, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	t, began := newTally(r.Out, store), time.Now()
	for pause(ctx, every) {
		n, err := t.counts(ctx)
		if err != nil {
			return err
		}
		r.counted.Store(n)
		r.log.Info().Msg(n.Progress(r.Goals, time.Since(began)))
		if len(n.Missed(r.Goals)) == 0 {
			reached()
		}
	}
	return nil
}

func (r *run) any(random *rand.Rand) *slot { return r.slots[random.IntN(len(r.slots))] }

func (r *run) killProcess(_ context.Context, random *rand.Rand) error {
	s := r.any(random)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child.Signal(syscall.SIGKILL)
	return nil
}

// stopProcess stops a process for a time, in the middle of its work.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	s.mu.Lock()
	child, process := s.child, s.process
	s.mu.Unlock()
	d := soonest + time.Duration(random.Int64N(int64(longest-soonest)))
	stop := r.recorder.begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	pause(ctx, d)
	answer := Record{Answer: OK}
	if !child.Running() { // a kill was first
		answer.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	r.recorder.end(stop, answer)
	return nil
}

// killServer kills it at any time, or when one of the next transactions is about to commit.
func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	if random.IntN(2) == 0 {
		limited, cancel := context.WithTimeout(ctx, ttl)
		select {
		case <-r.commits:
		case <-limited.Done():
		}
		cancel()
	}
	r.recorder.begin(Record{Call: Kill, Target: Server})
	if err := r.postgres.Kill(); err != nil {
		return err
	}
	if random.IntN(4) == 0 {
		pause(ctx, time.Duration(random.Int64N(int64(2*ttl))))
	}
	return r.postgres.Start(context.WithoutCancel(ctx))
}

func (r *run) killBouncer(ctx context.Context, _ *rand.Rand) error {
	r.recorder.begin(Record{Call: Kill, Target: Bouncer})
	r.bouncer.Kill()
	return r.bouncer.Start(context.WithoutCancel(ctx))
}

// ask is the rule of a slot's proxy. It follows the rule of the present fault, if there is one, and
// tells of commits.
func (s *slot) ask(m pgproxy.Message) pgproxy.Fault {
	if m.From == pgproxy.Server && m.Name == "CommandComplete" {
		s.answers.Add(1)
	}
	if isCommit(m) {
		select {
		case s.commits <- struct{}{}:
		default:
		}
	}
	if rule := s.rule.Load(); rule != nil {
		return (*rule)(m)
	}
	return pgproxy.Pass
}

// isCommit reports whether a client asks for the COMMIT of a transaction, and committed whether that is the
// server's answer.
func isCommit(m pgproxy.Message) bool {
	return m.From == pgproxy.Client && m.Name == "Parse" && bytes.HasPrefix(m.Body, []byte("\x00commit\x00"))
}

func committed(m pgproxy.Message) bool {
	return m.From == pgproxy.Server && m.Name == "CommandComplete" && bytes.Equal(m.Body, []byte("COMMIT\x00"))
}

// under has a rule on the proxy of a slot for a time, unless there is one.
func (s *slot) under(ctx context.Context, rule pgproxy.Rule, d time.Duration) {
	if !s.rule.CompareAndSwap(nil, &rule) {
		return
	}
	pause(ctx, d)
	s.rule.Store(nil)
	s.proxy.Release()
}

// cut closes the connections of a process, or holds all that goes over them for a time.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	switch random.IntN(3) {
	case 0:
		s.proxy.Sever()
	case 1: // the next answers do not arrive
		s.under(ctx, func(m pgproxy.Message) pgproxy.Fault {
			if m.From == pgproxy.Server {
				return pgproxy.CloseBefore
			}
			return pgproxy.Pass
		}, time.Duration(random.Int64N(int64(ttl/10))))
	default:
		s.under(ctx, func(pgproxy.Message) pgproxy.Fault { return pgproxy.Hold }, time.Duration(random.Int64N(int64(2*ttl))))
	}
	return nil
}

// silence holds all that goes over the connections of every process, for longer than a lease: no extension comes
// to the server, and the processes, which nothing has stopped, have no excuse for work that begins late.
func (r *run) silence(ctx context.Context, random *rand.Rand) error {
	d := ttl + time.Duration(random.Int64N(int64(ttl)))
	var all sync.WaitGroup
	for _, s := range r.slots {
		all.Go(func() { s.under(ctx, func(pgproxy.Message) pgproxy.Fault { return pgproxy.Hold }, d) })
	}
	all.Wait()
	return nil
}

// cutCommit closes connections in the middle of a COMMIT: before it has come to the server, or after it was
// done; or has it come late.
func (r *run) cutCommit(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	rule := func(when func(pgproxy.Message) bool, fault pgproxy.Fault) pgproxy.Rule {
		return func(m pgproxy.Message) pgproxy.Fault {
			if when(m) {
				return fault
			}
			return pgproxy.Pass
		}
	}
	switch d := time.Duration(random.Int64N(int64(ttl))); random.IntN(5) {
	case 0:
		s.under(ctx, rule(isCommit, pgproxy.CloseBefore), d)
	case 1: // it holds the category meanwhile
		s.under(ctx, rule(isCommit, pgproxy.Hold), d/2)
	default:
		s.under(ctx, rule(committed, pgproxy.CloseBefore), d)
	}
	return nil
}

// jump moves the server's clock by up to an hour, or has it stand, and puts it right.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	if random.IntN(3) == 0 {
		at := time.Now()
		call := r.recorder.begin(Record{Call: Freeze, Note: at.String()})
		if err := r.postgres.FreezeClock(at); err != nil {
			return err
		}
		pause(ctx, time.Duration(random.Int64N(int64(4*ttl))))
		r.recorder.end(call, Record{Answer: OK})
		return r.postgres.SetClock(0)
	}
	off := time.Hour
	if random.IntN(2) == 0 {
		off = time.Duration(random.Int64N(int64(time.Hour)))
	}
	if random.IntN(2) == 0 {
		off = -off
	}
	call := r.recorder.begin(Record{Call: Jump, Note: off.String()})
	if err := r.postgres.SetClock(off); err != nil {
		return err
	}
	pause(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
	r.recorder.end(call, Record{Answer: OK})
	return r.postgres.SetClock(0)
}

// Failovers are how often the primary is lost to a standby.
type Failovers struct {
	Sync  int // to a standby that commits wait for
	Async int // to a standby that lacks the last commits
}

func (f Failovers) total() int { return f.Sync + f.Async }

// failovers loses one primary after the other.
func (r *run) failovers(ctx context.Context) error {
	random := rand.New(rand.NewPCG(r.Seed, 0xfa11))
	all := make([]string, r.Failovers.total())
	for i, n := range random.Perm(len(all)) {
		if all[i] = Sync; n < r.Failovers.Async {
			all[i] = Async
		}
	}
	for i, kind := range all {
		if !pause(ctx, ttl+time.Duration(random.Int64N(int64(ttl)))) {
			return nil // the run falls short, and says so
		}
		if err := r.failOver(ctx, random, kind, fmt.Sprintf("pg-%d", i+1)); err != nil {
			return fmt.Errorf("failover %d, %s: %w", i+1, kind, err)
		}
		r.log.Info().Msgf("failover %d of %d: %s", i+1, len(all), kind)
	}
	pause(ctx, 2*ttl)
	return nil
}

func (r *run) failOver(ctx context.Context, random *rand.Rand, kind, name string) error {
	ctx = context.WithoutCancel(ctx) // it is not left in the middle
	old := r.postgres
	standby, err := old.NewStandby(ctx, name)
	if err != nil {
		return err
	}
	load := ttl + time.Duration(random.Int64N(int64(2*ttl)))
	if kind == Sync {
		if err := old.WaitForStandby(ctx); err != nil {
			return err
		}
		pause(ctx, load)
	}
	// Every write from now on, until the standby is the primary, may be undone if it is asynchronous.
	call := r.recorder.begin(Record{Call: Failover, Target: kind})
	if kind == Async {
		if err := standby.StopFollowing(ctx, old); err != nil {
			return err
		}
		pause(ctx, load)
	}
	if err := old.Kill(); err != nil {
		return err
	}
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	r.postgres = standby
	for _, s := range r.slots {
		s.proxy.Retarget(standby.Socket())
	}
	r.recorder.end(call, Record{Answer: OK})
	return old.Remove()
}
