package intents

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
)

// A fault comes again and again, after a time between two bounds.
type fault struct {
	least, most time.Duration
	run         func(r *run, ctx context.Context, random *rand.Rand) error
}

// faults run beside each other.
var faults = []fault{
	{300 * time.Millisecond, 900 * time.Millisecond, (*run).killProcess},
	{200 * time.Millisecond, 600 * time.Millisecond, (*run).stopProcess},
	{1500 * time.Millisecond, 3500 * time.Millisecond, (*run).killServer},
	{500 * time.Millisecond, 2 * time.Second, (*run).cut},
}

// jumps are those of a run that moves the server's clock.
var jumps = fault{200 * time.Millisecond, 1500 * time.Millisecond, (*run).jump}

// torment has faults for the time of the run, or until its goals are reached.
func (r *run) torment(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	chosen := faults
	if r.Calm {
		chosen = nil
	}
	if r.Clock {
		chosen = append(slices.Clip(chosen), jumps)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i, f := range chosen {
		all.Go(func() {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i))) //nolint:gosec // a few
			for pause(limited, f.least+time.Duration(random.Int64N(int64(f.most-f.least)))) {
				if err := f.run(r, limited, random); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	const progress = 10 * time.Second
	for pause(limited, progress) {
		r.mu.Lock()
		n := r.counts
		r.mu.Unlock()
		r.log.Info().Int("kills of the server", n.ServerKills).Int("of processes", n.Kills).Int("long stops", n.Stops).Msg("running")
		if g := r.Goals; g != nil && r.reached(&n) {
			cancel()
		}
	}
	all.Wait()
	return errors.Join(failed, ctx.Err())
}

// reached reports whether there were so many faults. Not each process that is killed has a lease; all else
// comes more often than these.
func (r *run) reached(n *Counts) bool {
	const more = 5 // a fifth
	return n.ServerKills >= r.Goals.ServerKills && n.Kills >= r.Goals.Kills+r.Goals.Kills/more && n.Stops >= r.Goals.Stops
}

func (r *run) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
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
	if d > ttl {
		r.count(&r.counts.Stops)
	}
	stop := r.recorder.begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	pause(ctx, d)
	child.Signal(syscall.SIGCONT)
	r.recorder.end(stop, Record{Answer: OK})
	return nil
}

func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	r.recorder.begin(Record{Call: Kill, Target: Server})
	if err := r.postgres.Kill(); err != nil {
		return err
	}
	r.count(&r.counts.ServerKills)
	if random.IntN(2) == 0 {
		pause(ctx, time.Duration(random.Int64N(int64(ttl))))
	}
	return r.postgres.Start(context.WithoutCancel(ctx))
}

// cut closes the connections of a process, or holds all that goes over them for a time.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	switch random.IntN(3) {
	case 0:
		s.proxy.Sever()
		return nil
	case 1: // the next answers do not arrive
		s.proxy.SetRule(func(m pgproxy.Message) pgproxy.Fault {
			if m.From == pgproxy.Server {
				return pgproxy.CloseBefore
			}
			return pgproxy.Pass
		})
		pause(ctx, time.Duration(random.Int64N(int64(ttl/10))))
	default:
		s.proxy.SetRule(func(pgproxy.Message) pgproxy.Fault { return pgproxy.Hold })
		pause(ctx, time.Duration(random.Int64N(int64(2*ttl))))
	}
	s.proxy.SetRule(nil)
	s.proxy.Release()
	return nil
}

// jump moves the server's clock, and moves it back.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	off := time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour
	call := r.recorder.begin(Record{Call: Jump, Note: off.String()})
	if err := r.postgres.SetClock(off); err != nil {
		return err
	}
	r.count(&r.counts.Jumps)
	pause(ctx, time.Duration(random.Int64N(int64(2*time.Second))))
	r.recorder.end(call, Record{Answer: OK})
	return r.postgres.SetClock(0)
}
