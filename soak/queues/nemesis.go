package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
)

// faults returns the faults for the time of the run, or until its goals are reached.
func (r *run) faults() crew.Phase {
	var (
		killProcess = crew.Fault{Answers: 400, Goal: "kills", Run: r.killProcess}
		stopProcess = crew.Fault{Answers: 500, Goal: "stops", Run: r.stopProcess}
		killServer  = crew.Fault{Answers: 1200, Goal: "serverKills", Run: func(ctx context.Context, random *rand.Rand) error { return r.KillServer(ctx, random, 6, lease) }}
		cut         = crew.Fault{Answers: 300, Run: r.cut}
		lockFile    = crew.Fault{Answers: 600, Run: r.lockFile}
		operate     = crew.Fault{Answers: 80, Run: r.operate}
		trim        = crew.Fault{Answers: 300, Run: r.trim}
		jump        = crew.Fault{Answers: 400, Goal: "jumps", Run: func(ctx context.Context, random *rand.Rand) error { return r.JumpClock(ctx, random, lease, 2*lease) }}
		drain       = crew.Fault{Answers: 400, Goal: "drains", Run: r.drain}
		stall       = crew.Fault{Answers: 100, Goal: "stalls", Run: r.stall}
	)
	p := crew.Phase{Name: "faults", For: r.Duration, Until: r.Goals}
	switch {
	case r.Scene == Overlap:
		p.Faults = []crew.Fault{operate}
	case r.Scene == Clock:
		p.Faults, p.Beside = []crew.Fault{killProcess, stopProcess, jump}, []func(context.Context, func()) error{r.Crashes}
	case r.Scene == Ending:
		p.Faults = []crew.Fault{stall}
	case r.Scene != Usual:
	case r.SQLite:
		p.Faults = []crew.Fault{killProcess, stopProcess, lockFile, operate, trim}
	case r.Calm:
		p.Faults = []crew.Fault{killProcess, stopProcess, cut, operate, trim}
	default:
		p.Faults = []crew.Fault{killProcess, stopProcess, cut, operate, trim, killServer}
	}
	if r.Servers > 0 { // and many answers are lost
		p.Faults = append(p.Faults, drain, crew.Fault{Answers: 60, Run: r.cut})
	}
	return p
}

// any draws a process that works or, one in ten times, a process that inserts. One in three times
// it draws one that serves, if there are any.
func (r *run) any(random *rand.Rand) *crew.Slot {
	if r.Servers > 0 && random.IntN(3) == 0 {
		return r.Any(random, crew.Dibs)
	}
	if all := r.Slots(inserter); len(all) > 0 && random.IntN(10) == 0 { // they end by themselves
		return all[random.IntN(len(all))]
	}
	return r.Any(random, worker)
}

func (r *run) killProcess(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	if random.IntN(2) == 0 { // one that waits, and whose place in the line is left
		s = r.Any(random, worker)
		r.awaitLine(ctx)
	}
	s.Kill()
	return nil
}

// awaitLine waits until the workers wait in line, but not for ever.
func (r *run) awaitLine(ctx context.Context) {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && crew.Pause(ctx, 30*time.Millisecond); {
		waiting, _ := r.place.number(ctx, r.place.inLine)
		if waiting >= r.Processes/2 {
			return
		}
	}
}

// stopProcess stops a process until a session was over, or it has been long enough for its own to
// be.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	over := func() int {
		limited, cancel := context.WithTimeout(ctx, lease)
		defer cancel()
		found, _ := r.place.sorts(limited)
		return found["e"]
	}
	before := over()
	r.StopProcess(r.any(random), func(since int64) {
		for deadline := time.Now().Add(3 * lease); crew.Pause(ctx, lease/4) && time.Now().Before(deadline); {
			if crew.Now() > since+lease.Microseconds() && over() > before {
				break
			}
		}
	})
	return nil
}

// cut cuts off a process; over a file a process that serves has no connections of its own.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.any(random)
	if r.SQLite && s.Role == crew.Dibs {
		s = r.Any(random, worker)
	}
	r.CutOff(ctx, s, random)
	return nil
}

// drain tells a process that serves to end.
func (r *run) drain(_ context.Context, random *rand.Rand) error {
	r.DrainProcess(r.Any(random, crew.Dibs))
	return nil
}

// stall keeps all that the server says to a process on its way, for several leases.
func (r *run) stall(ctx context.Context, random *rand.Rand) error {
	s := r.Any(random, worker)
	c := r.Nemesis.Begin(crew.Event{Call: crew.Cut, Target: s.Name, Note: "stall"})
	s.Under(ctx, crew.When(crew.FromServer, testserver.Hold), 5*lease)
	r.Nemesis.End(c, crew.Event{Answer: crew.OK})
	return nil
}

// lockFile has another program write to the file for longer than a lease, so that no process can.
func (r *run) lockFile(ctx context.Context, random *rand.Rand) error {
	r.place.lock(ctx, func() {
		r.Nemesis.Begin(crew.Event{Call: crew.Cut, Target: fileName})
		crew.Pause(ctx, crew.Dice{Rand: random}.Sooner(2*lease))
	})
	return nil
}

// operate does one random thing that an operator does. The server is not killed meanwhile.
func (r *run) operate(ctx context.Context, random *rand.Rand) error {
	r.Busy.RLock()
	defer r.Busy.RUnlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return r.ofQueue(ctx, func(q *queue.Queue) error {
		if _, err := q.Status(ctx); errors.Is(err, messagestore.ErrNotFound) {
			return nil
		}
		switch random.IntN(7) {
		case 0, 1:
			r.pauses(ctx, q, random)
			return nil
		case 2, 3, 4:
			return r.redrive(ctx, q, random)
		}
		return r.cancel(ctx, q, random)
	})
}

// change records an operator's change. The server is up, so an error needs a person's attention.
func (r *run) change(note string, f func() error) {
	c := r.Nemesis.Begin(crew.Event{Call: Change, Note: note})
	err := f()
	r.Nemesis.End(c, crew.Event{Answer: answerOf(err).Answer, Note: note})
	if err != nil {
		r.Complain(fmt.Sprintf("%s: %v", note, err))
	}
}

func (r *run) pauses(ctx context.Context, q *queue.Queue, random *rand.Rand) {
	r.change("pause", func() error { return q.Pause(ctx) })
	crew.Pause(ctx, crew.Dice{Rand: random}.Sooner(700*time.Millisecond))
	r.change("resume", func() error { return q.Resume(ctx) })
}

// redrive retries some of the dead items, and drops one.
func (r *run) redrive(ctx context.Context, q *queue.Queue, random *rand.Rand) error {
	dead, err := q.Items(ctx, queue.Dead, 0, 200)
	if err != nil || len(dead) == 0 {
		return err
	}
	random.Shuffle(len(dead), func(i, j int) { dead[i], dead[j] = dead[j], dead[i] })
	if random.IntN(5) == 0 {
		r.change("drop", func() error {
			_, err := q.Drop(ctx, "it was drawn", dead[0].Position)
			return err
		})
		return nil
	}
	positions := positionsOf(dead[:min(len(dead), 20)])
	r.change("retry", func() error {
		_, err := q.Retry(ctx, "it was drawn", positions...)
		return err
	})
	return nil
}

func positionsOf(items []queue.Item) (positions []messagestore.GlobalPosition) {
	for _, item := range items {
		positions = append(positions, item.Position)
	}
	return positions
}

// cancel cancels an item in any state.
func (r *run) cancel(ctx context.Context, q *queue.Queue, random *rand.Rand) error {
	states := []queue.State{queue.Waiting, queue.Out, queue.Later, queue.Held, queue.Held}
	items, err := q.Items(ctx, states[random.IntN(len(states))], 0, 50)
	if err != nil || len(items) == 0 {
		return err
	}
	item := items[random.IntN(len(items))]
	r.change("cancel", func() error {
		_, err := q.Cancel(ctx, "it was drawn", item.Position)
		return err
	})
	return nil
}

// trim removes the beginning of a key's stream.
func (r *run) trim(ctx context.Context, random *rand.Rand) error {
	r.Busy.RLock()
	defer r.Busy.RUnlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	stream := fmt.Sprintf("%s-k%d", Category, random.IntN(keys))
	c := r.Nemesis.Begin(crew.Event{Call: Trim, Target: stream})
	n, err := r.place.trim(ctx, messagestore.StreamName(stream))
	r.Nemesis.End(c, crew.Event{Answer: answerOf(err).Answer, Note: fmt.Sprint(n)})
	if err != nil {
		r.Complain(fmt.Sprintf("trim %s: %v", stream, err))
	}
	return nil
}
