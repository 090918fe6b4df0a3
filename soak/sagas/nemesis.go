package sagas

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/soak/crew"
)

// A fault comes again and again, after so many answers of the server: between least and twice as many.
type fault struct {
	least   int64
	counted func(n *Counts) *int // once there was enough of it, it is seldom
	run     func(r *run, ctx context.Context, random *rand.Rand) error
}

// The faults run beside each other.
var faults = []fault{
	{1500, kills, (*run).killRunner},
	{3000, func(n *Counts) *int { return &n.Stops }, (*run).stopRunner},
	{150, func(n *Counts) *int { return &n.Cuts }, (*run).cut},
	{8000, func(n *Counts) *int { return &n.ServerKills }, (*run).killServer},
}

var jump = fault{1000, func(n *Counts) *int { return &n.Jumps }, (*run).jump}

func kills(n *Counts) *int { return &n.Kills }

// seldom is how many times longer it is to a fault of which there was enough.
const seldom = 8

// enough reports whether the goal of a fault is reached, as far as is known.
func (r *run) enough(counted func(n *Counts) *int) bool {
	n := r.counted.Load()
	return r.Goals != nil && n != nil && *counted(n) >= *counted(r.Goals)
}

// torment has faults for the time of the run, or until its goals are reached.
func (r *run) torment(ctx context.Context) error {
	some := faults
	if r.Calm {
		some = faults[:len(faults)-1]
	}
	if r.Quiet {
		some = nil
	}
	if r.Clock {
		some = append(slices.Clip(some), jump)
	}
	all := []func(context.Context, func()) error{r.watch}
	for i, f := range some {
		all = append(all, func(ctx context.Context, _ func()) error {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i))) //nolint:gosec // a few
			for {
				n := f.least + random.Int64N(f.least)
				if r.enough(f.counted) {
					n *= seldom
				}
				if !r.crew.AwaitAnswers(ctx, r.crew.Answers()+n) {
					return nil
				}
				if err := f.run(r, ctx, random); err != nil {
					return err
				}
			}
		})
	}
	if r.Clock {
		all = append(all, func(ctx context.Context, _ func()) error { return r.postgres.Crashes(ctx, r.crashed) })
	}
	return crew.Together(ctx, r.Duration, all...)
}

// crashed records that the server is down, and up again.
func (r *run) crashed() (up func()) {
	call := r.recorder.Begin(Record{Call: Kill, Target: Server})
	return func() { r.recorder.End(call, Record{Answer: OK}) }
}

// watch tells how far the run is from its goals, and ends it where it has reached them.
func (r *run) watch(ctx context.Context, reached func()) error {
	const every = 2 * time.Second
	if r.Goals == nil {
		<-ctx.Done()
		return nil
	}
	t, began := &tally{dir: r.crew.Out, tail: map[string]int64{}}, time.Now()
	for crew.Pause(ctx, every) {
		n, err := t.counts()
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

// runner draws a process that runs sagas.
func (r *run) runner(random *rand.Rand) *crew.Slot { return r.crew.Slots[random.IntN(r.Runners)] }

func (r *run) killRunner(_ context.Context, random *rand.Rand) error {
	r.runner(random).Kill()
	return nil
}

// stopRunner stops a process for longer than its lease.
func (r *run) stopRunner(ctx context.Context, random *rand.Rand) error {
	child, process := r.runner(random).Process()
	stop := r.recorder.Begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	crew.Pause(ctx, lease+lease/5+time.Duration(random.Int64N(int64(2*lease))))
	a := Record{Answer: OK}
	if !child.Running() { // a kill was first
		a.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	r.recorder.End(stop, a)
	return nil
}

func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	call := r.recorder.Begin(Record{Call: Kill, Target: Server})
	if err := r.postgres.Kill(); err != nil {
		return err
	}
	if random.IntN(6) == 0 {
		crew.Pause(ctx, time.Duration(random.Int64N(int64(lease))))
	}
	ctx = context.WithoutCancel(ctx)
	if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
		return err
	}
	r.recorder.End(call, Record{Answer: OK})
	return nil
}

// jump sets the server's clock off by five minutes to an hour, for a moment, and right again.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	off := (5*time.Minute + time.Duration(random.Int64N(int64(55*time.Minute)))).Truncate(time.Second)
	if random.IntN(3) == 0 {
		off = -off
	}
	call := r.recorder.Begin(Record{Call: Jump, Off: off.Microseconds()})
	if err := r.postgres.SetClock(off); err != nil {
		return err
	}
	crew.Pause(ctx, lease/2+time.Duration(random.Int64N(int64(lease))))
	err := r.postgres.SetClock(0)
	r.recorder.End(call, Record{Answer: OK})
	crew.Pause(ctx, 4*lease) // in which sagas go on
	return err
}

// cut closes the connections of a process, or has the next answer to it lost.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.crew.Slots[random.IntN(len(r.crew.Slots))]
	_, process := s.Process()
	r.recorder.Begin(Record{Call: Cut, Target: process})
	if random.IntN(3) == 0 {
		s.Sever()
		return nil
	}
	s.Under(ctx, func(m pgproxy.Message) pgproxy.Fault {
		if m.From == pgproxy.Server && m.Name == "CommandComplete" {
			return pgproxy.CloseBefore
		}
		return pgproxy.Pass
	}, time.Duration(random.Int64N(int64(20*time.Millisecond))))
	return nil
}
