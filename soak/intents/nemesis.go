package intents

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/soak/crew"
)

// faults are the faults of the run.
func (r *run) faults() []crew.Fault {
	const ms = time.Millisecond
	killProcess := crew.Fault{Least: 100 * ms, Most: 600 * ms, Goal: "kills", After: "serverKills", Answers: 50, Run: r.killProcess}
	stopProcess := crew.Fault{Least: 50 * ms, Most: 200 * ms, Goal: "stops", Answers: 10, Run: r.stopProcess}
	cut := crew.Fault{Least: 500 * ms, Most: 2 * time.Second, Run: r.cut}
	killServer := crew.Fault{Least: 300 * ms, Most: time.Second, Goal: "serverKills", Answers: 150, Run: r.killServer}
	switch {
	case r.Calm:
		return nil
	case r.Silent:
		return []crew.Fault{{Least: ttl, Most: 2 * ttl, Answers: 150, Run: r.silence}}
	case r.Failovers.total() > 0: // there is one server at a time, and no other may end it
		return []crew.Fault{killProcess, stopProcess, cut}
	}
	if r.Servers > 0 {
		return []crew.Fault{killProcess, stopProcess, cut, killServer, {Least: 500 * ms, Most: 2 * time.Second, Goal: "drains", Run: r.drain}}
	}
	all := []crew.Fault{killProcess, stopProcess, cut, {Least: 200 * ms, Most: time.Second, Goal: "unknownCommits", Run: r.cutCommit}}
	switch {
	case r.PgBouncer:
		killServer.Least, killServer.Most, killServer.Goal = 4*time.Second, 8*time.Second, "" // PgBouncer asks it again after a second
		all = append(all, crew.Fault{Least: 2 * time.Second, Most: 5 * time.Second, Answers: 150, Run: r.killBouncer})
	case r.Clock:
		all = append(all, crew.Fault{Least: 200 * ms, Most: 1500 * ms, Run: r.jump})
	}
	return append(all, killServer)
}

// phase has faults for the time of the run, or until its goals are reached, or its failovers are
// done.
func (r *run) phase() crew.Phase {
	p := crew.Phase{Name: "faults", For: r.Duration, Until: r.Goals, Faults: r.faults()}
	if r.Failovers.total() > 0 {
		p.Beside = []func(context.Context, func()) error{func(ctx context.Context, end func()) error {
			defer end()
			return r.failovers(ctx)
		}}
	}
	return p
}

// drain tells a process that serves to end.
func (r *run) drain(_ context.Context, random *rand.Rand) error {
	r.DrainProcess(r.Any(random, crew.Dibs))
	return nil
}

func (r *run) killProcess(_ context.Context, random *rand.Rand) error {
	r.Any(random).Kill()
	return nil
}

// stopProcess stops a process for a time, in the middle of its work.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	r.StopProcess(r.Any(random), func(int64) { crew.Pause(ctx, soonest+crew.Dice{Rand: random}.Sooner(longest-soonest)) })
	return nil
}

// killServer kills the server at any time, or when one of the next transactions is about to commit.
func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	if random.IntN(2) == 0 {
		limited, cancel := context.WithTimeout(ctx, ttl)
		select {
		case <-r.commits:
		case <-limited.Done():
		}
		cancel()
	}
	return r.KillServer(ctx, random, 4, 2*ttl)
}

func (r *run) killBouncer(ctx context.Context, _ *rand.Rand) error {
	r.Nemesis.Begin(crew.Event{Call: crew.Kill, Target: Bouncer})
	r.bouncer.Kill()
	return r.bouncer.Start(context.WithoutCancel(ctx))
}

// hear tells of commits.
func (r *run) hear(m testserver.Message) {
	if isCommit(m) {
		select {
		case r.commits <- struct{}{}:
		default:
		}
	}
}

// isCommit reports whether a client asks for the COMMIT of a transaction, and committed whether
// that is the server's answer.
func isCommit(m testserver.Message) bool {
	return m.From == testserver.FromClient && m.Name == "Parse" && bytes.HasPrefix(m.Body, []byte("\x00commit\x00"))
}

func committed(m testserver.Message) bool {
	return m.From == testserver.FromServer && m.Name == "CommandComplete" && bytes.Equal(m.Body, []byte("COMMIT\x00"))
}

// cut closes the connections of a process, or holds all that goes over them for a time.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.Any(random)
	switch random.IntN(3) {
	case 0:
		s.Sever()
	case 1: // the next answers do not arrive
		s.Under(ctx, crew.When(crew.FromServer, testserver.CloseBefore), crew.Dice{Rand: random}.Sooner(ttl/10))
	default:
		s.Under(ctx, func(testserver.Message) testserver.Fault { return testserver.Hold }, crew.Dice{Rand: random}.Sooner(2*ttl))
	}
	return nil
}

// silence holds all that goes over the connections of every process, for longer than a lease: no
// extension comes to the server, and the processes, which nothing has stopped, have no excuse for
// work that begins late.
func (r *run) silence(ctx context.Context, random *rand.Rand) error {
	d := ttl + crew.Dice{Rand: random}.Sooner(ttl)
	var all sync.WaitGroup
	for _, s := range r.Slots() {
		all.Go(func() { s.Under(ctx, func(testserver.Message) testserver.Fault { return testserver.Hold }, d) })
	}
	all.Wait()
	return nil
}

// cutCommit closes connections in the middle of a COMMIT, before it has reached the server or after
// it was done, or delays it.
func (r *run) cutCommit(ctx context.Context, random *rand.Rand) error {
	s := r.Any(random)
	switch d := (crew.Dice{Rand: random}).Sooner(ttl); random.IntN(5) {
	case 0:
		s.Under(ctx, crew.When(isCommit, testserver.CloseBefore), d)
	case 1: // it holds the category meanwhile
		s.Under(ctx, crew.When(isCommit, testserver.Hold), d/2)
	default:
		s.Under(ctx, crew.When(committed, testserver.CloseBefore), d)
	}
	return nil
}

// jump moves the server's clock by up to an hour, or stops it, and then sets it right.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	if random.IntN(3) == 0 {
		at := time.Now()
		call := r.Nemesis.Begin(crew.Event{Call: Freeze, Note: at.String()})
		if err := r.Postgres.FreezeClock(at); err != nil {
			return err
		}
		crew.Pause(ctx, crew.Dice{Rand: random}.Sooner(4*ttl))
		r.Nemesis.End(call, crew.Event{Answer: OK})
		return r.Postgres.SetClock(0)
	}
	off := time.Hour
	if random.IntN(2) == 0 {
		off = crew.Dice{Rand: random}.Sooner(time.Hour)
	}
	if random.IntN(2) == 0 {
		off = -off
	}
	call := r.Nemesis.Begin(crew.Event{Call: crew.Jump, Note: off.String()})
	if err := r.Postgres.SetClock(off); err != nil {
		return err
	}
	crew.Pause(ctx, crew.Dice{Rand: random}.Sooner(2*time.Second))
	r.Nemesis.End(call, crew.Event{Answer: OK})
	return r.Postgres.SetClock(0)
}

// Failovers has the number of times that the primary is lost to a standby.
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
		if !crew.Pause(ctx, ttl+crew.Dice{Rand: random}.Sooner(ttl)) {
			return nil // the run falls short, and says so
		}
		if err := r.failOver(ctx, random, kind, fmt.Sprintf("pg-%d", i+1)); err != nil {
			return fmt.Errorf("failover %d, %s: %w", i+1, kind, err)
		}
		r.Log.Info().Msgf("failover %d of %d: %s", i+1, len(all), kind)
	}
	crew.Pause(ctx, 2*ttl)
	return nil
}

func (r *run) failOver(ctx context.Context, random *rand.Rand, kind, name string) error {
	ctx = context.WithoutCancel(ctx) // it is not left in the middle
	old := r.Postgres
	standby, err := old.NewStandby(ctx, name)
	if err != nil {
		return err
	}
	load := ttl + crew.Dice{Rand: random}.Sooner(2*ttl)
	if kind == Sync {
		if err := old.WaitForStandby(ctx); err != nil {
			return err
		}
		crew.Pause(ctx, load)
	}
	// Every write from now on, until the standby is the primary, may be undone if it is
	// asynchronous.
	call := r.Nemesis.Begin(crew.Event{Call: Failover, Target: kind})
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
	r.Postgres = standby
	for _, s := range r.Slots() {
		s.Retarget(standby.Socket())
	}
	r.Nemesis.End(call, crew.Event{Answer: OK})
	return old.Remove()
}
