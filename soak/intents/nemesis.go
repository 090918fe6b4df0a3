package intents

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/soak/crew"
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
	all := []func(context.Context, func()) error{r.watch}
	if r.Failovers.total() > 0 {
		all[0] = func(ctx context.Context, end func()) error {
			defer end()
			return r.failovers(ctx)
		}
	}
	for i, f := range r.faults() {
		all = append(all, func(ctx context.Context, _ func()) error {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i))) //nolint:gosec // a few
			for {
				since := r.crew.Answers()
				if !crew.Pause(ctx, r.next(f, random)) {
					return nil
				}
				r.crew.AwaitAnswers(ctx, since+f.answers)
				if err := f.run(r, ctx, random); err != nil {
					return err
				}
			}
		})
	}
	return crew.Together(ctx, r.Duration, all...)
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
	t, began := newTally(r.crew.Out, store), time.Now()
	for crew.Pause(ctx, every) {
		n, err := t.counts(ctx)
		if err != nil {
			return err
		}
		r.counted.Store(n)
		r.crew.Log.Info().Msg(figures.Progress(n, r.Goals, time.Since(began)))
		if len(n.Missed(r.Goals)) == 0 {
			reached()
		}
	}
	return nil
}

func (r *run) any(random *rand.Rand) *crew.Slot { return r.crew.Slots[random.IntN(len(r.crew.Slots))] }

func (r *run) killProcess(_ context.Context, random *rand.Rand) error {
	r.any(random).Kill()
	return nil
}

// stopProcess stops a process for a time, in the middle of its work.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	child, process := r.any(random).Process()
	d := soonest + time.Duration(random.Int64N(int64(longest-soonest)))
	stop := r.recorder.Begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	crew.Pause(ctx, d)
	answer := Record{Answer: OK}
	if !child.Running() { // a kill was first
		answer.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	r.recorder.End(stop, answer)
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
	r.recorder.Begin(Record{Call: Kill, Target: Server})
	if err := r.postgres.Kill(); err != nil {
		return err
	}
	if random.IntN(4) == 0 {
		crew.Pause(ctx, time.Duration(random.Int64N(int64(2*ttl))))
	}
	return r.postgres.Start(context.WithoutCancel(ctx))
}

func (r *run) killBouncer(ctx context.Context, _ *rand.Rand) error {
	r.recorder.Begin(Record{Call: Kill, Target: Bouncer})
	r.bouncer.Kill()
	return r.bouncer.Start(context.WithoutCancel(ctx))
}

// hear tells of commits.
func (r *run) hear(m pgproxy.Message) {
	if isCommit(m) {
		select {
		case r.commits <- struct{}{}:
		default:
		}
	}
}

// isCommit reports whether a client asks for the COMMIT of a transaction, and committed whether that is the
// server's answer.
func isCommit(m pgproxy.Message) bool {
	return m.From == pgproxy.Client && m.Name == "Parse" && bytes.HasPrefix(m.Body, []byte("\x00commit\x00"))
}

func committed(m pgproxy.Message) bool {
	return m.From == pgproxy.Server && m.Name == "CommandComplete" && bytes.Equal(m.Body, []byte("COMMIT\x00"))
}

// cut closes the connections of a process, or holds all that goes over them for a time.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	switch random.IntN(3) {
	case 0:
		s.Sever()
	case 1: // the next answers do not arrive
		s.Under(ctx, func(m pgproxy.Message) pgproxy.Fault {
			if m.From == pgproxy.Server {
				return pgproxy.CloseBefore
			}
			return pgproxy.Pass
		}, time.Duration(random.Int64N(int64(ttl/10))))
	default:
		s.Under(ctx, func(pgproxy.Message) pgproxy.Fault { return pgproxy.Hold }, time.Duration(random.Int64N(int64(2*ttl))))
	}
	return nil
}

// silence holds all that goes over the connections of every process, for longer than a lease: no extension comes
// to the server, and the processes, which nothing has stopped, have no excuse for work that begins late.
func (r *run) silence(ctx context.Context, random *rand.Rand) error {
	d := ttl + time.Duration(random.Int64N(int64(ttl)))
	var all sync.WaitGroup
	for _, s := range r.crew.Slots {
		all.Go(func() { s.Under(ctx, func(pgproxy.Message) pgproxy.Fault { return pgproxy.Hold }, d) })
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
		s.Under(ctx, rule(isCommit, pgproxy.CloseBefore), d)
	case 1: // it holds the category meanwhile
		s.Under(ctx, rule(isCommit, pgproxy.Hold), d/2)
	default:
		s.Under(ctx, rule(committed, pgproxy.CloseBefore), d)
	}
	return nil
}

// jump moves the server's clock by up to an hour, or has it stand, and puts it right.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	if random.IntN(3) == 0 {
		at := time.Now()
		call := r.recorder.Begin(Record{Call: Freeze, Note: at.String()})
		if err := r.postgres.FreezeClock(at); err != nil {
			return err
		}
		crew.Pause(ctx, time.Duration(random.Int64N(int64(4*ttl))))
		r.recorder.End(call, Record{Answer: OK})
		return r.postgres.SetClock(0)
	}
	off := time.Hour
	if random.IntN(2) == 0 {
		off = time.Duration(random.Int64N(int64(time.Hour)))
	}
	if random.IntN(2) == 0 {
		off = -off
	}
	call := r.recorder.Begin(Record{Call: Jump, Note: off.String()})
	if err := r.postgres.SetClock(off); err != nil {
		return err
	}
	crew.Pause(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
	r.recorder.End(call, Record{Answer: OK})
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
		if !crew.Pause(ctx, ttl+time.Duration(random.Int64N(int64(ttl)))) {
			return nil // the run falls short, and says so
		}
		if err := r.failOver(ctx, random, kind, fmt.Sprintf("pg-%d", i+1)); err != nil {
			return fmt.Errorf("failover %d, %s: %w", i+1, kind, err)
		}
		r.crew.Log.Info().Msgf("failover %d of %d: %s", i+1, len(all), kind)
	}
	crew.Pause(ctx, 2*ttl)
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
		crew.Pause(ctx, load)
	}
	// Every write from now on, until the standby is the primary, may be undone if it is asynchronous.
	call := r.recorder.Begin(Record{Call: Failover, Target: kind})
	if kind == Async {
		if err := standby.StopFollowing(ctx, old); err != nil {
			return err
		}
		crew.Pause(ctx, load)
	}
	if err := old.Kill(); err != nil {
		return err
	}
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	r.postgres = standby
	for _, s := range r.crew.Slots {
		s.Retarget(standby.Socket())
	}
	r.recorder.End(call, Record{Answer: OK})
	return old.Remove()
}
