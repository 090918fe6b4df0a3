package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
)

// A fault comes again and again, after so many answers of the server: between least and twice as many.
type fault struct {
	least   int64
	counted func(n *Counts) *int // once there was enough of it, it is seldom; nil if it has no goal
	run     func(r *run, ctx context.Context, random *rand.Rand) error
}

// The faults run beside each other.
var (
	killProcess = fault{400, kills, (*run).killProcess}
	stopProcess = fault{500, func(n *Counts) *int { return &n.Stops }, (*run).stopProcess}
	killServer  = fault{1200, func(n *Counts) *int { return &n.ServerKills }, (*run).killServer}
	cut         = fault{300, nil, (*run).cut}
	lockFile    = fault{600, nil, (*run).lockFile}
	operate     = fault{80, nil, (*run).operate}
	trim        = fault{300, nil, (*run).trim}
	jump        = fault{400, func(n *Counts) *int { return &n.Jumps }, (*run).jump}
	stall       = fault{100, func(n *Counts) *int { return &n.Stalls }, (*run).stall}
)

func kills(n *Counts) *int { return &n.Kills }

// seldom is how many times longer it is to a fault of which there was enough.
const seldom = 8

// enough reports whether the goal of a fault is reached, as far as is known.
func (r *run) enough(counted func(n *Counts) *int) bool {
	n := r.counted.Load()
	return counted != nil && r.Goals != nil && n != nil && *counted(n) >= *counted(r.Goals)
}

// torment has faults for the time of the run, or until its goals are reached.
func (r *run) torment(ctx context.Context) error {
	faults := []fault{killProcess, stopProcess, cut, operate, trim}
	switch {
	case r.Scene == Overlap:
		faults = []fault{operate}
	case r.Scene == Clock:
		faults = []fault{killProcess, stopProcess, jump}
	case r.Scene == Ending:
		faults = []fault{stall}
	case r.Scene != Usual:
		faults = nil
	case r.SQLite:
		faults = []fault{killProcess, stopProcess, lockFile, operate, trim}
	case !r.Calm:
		faults = append(faults, killServer)
	}
	all := []func(context.Context, func()) error{r.watch}
	for i, f := range faults {
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
	if r.Scene == Clock {
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
	t, began := newTally(r.crew.Out), time.Now()
	for crew.Pause(ctx, every) {
		n, err := t.counts()
		if err != nil {
			return err
		}
		r.lines(ctx, n)
		r.counted.Store(n)
		r.crew.Log.Info().Msg(figures.Progress(n, r.Goals, time.Since(began)))
		if len(n.Missed(r.Goals)) == 0 {
			reached()
		}
	}
	return nil
}

// lines counts the lines of the logs, or what is known of them if the server is down.
func (r *run) lines(ctx context.Context, n *Counts) {
	if last := r.counted.Load(); last != nil {
		n.addLines(last)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if found, err := r.place.lines(ctx); err == nil {
		n.setLines(found)
	}
}

// worker draws a process that works; one in ten times one that inserts.
func (r *run) worker(random *rand.Rand) *crew.Slot {
	if random.IntN(10) == 0 {
		return r.crew.Slots[r.Processes+random.IntN(r.Inserters)]
	}
	return r.crew.Slots[random.IntN(r.Processes)]
}

func (r *run) killProcess(ctx context.Context, random *rand.Rand) error {
	s := r.worker(random)
	if random.IntN(2) == 0 { // one that waits, and whose place in the line is left
		s = r.crew.Slots[random.IntN(r.Processes)]
		r.awaitLine(ctx)
	}
	s.Kill()
	return nil
}

// awaitLine waits until the workers wait in line, but not for ever.
func (r *run) awaitLine(ctx context.Context) {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && crew.Pause(ctx, 30*time.Millisecond); {
		waiting, _ := r.place.inLine(ctx)
		if waiting >= r.Processes/2 {
			return
		}
	}
}

// stopProcess stops a process until a session was over, or it has been long enough for its own to be.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	child, process := r.crew.Slots[random.IntN(r.Processes)].Process()
	over := func() int {
		limited, cancel := context.WithTimeout(ctx, lease)
		defer cancel()
		found, _ := r.place.lines(limited)
		return found["e"]
	}
	before := over()
	stop := r.recorder.Begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(3 * lease); crew.Pause(ctx, lease/4) && time.Now().Before(deadline); {
		if crew.Now() > stop.At+lease.Microseconds() && over() > before {
			break
		}
	}
	a := Record{Answer: OK}
	if !child.Running() { // a kill was first
		a.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	r.recorder.End(stop, a)
	return nil
}

func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	r.busy.Lock()
	defer r.busy.Unlock()
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

// cut closes the connections of a process, or has the next answer to it lost.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.worker(random)
	r.recorder.Begin(Record{Call: Cut, Target: s.Name})
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

// jump sets the server's clock off by five minutes to an hour, for a moment, and right again.
func (r *run) jump(ctx context.Context, random *rand.Rand) error {
	off := 5*time.Minute + time.Duration(random.Int64N(int64(55*time.Minute)))
	if random.IntN(3) == 0 {
		off = -off
	}
	off = off.Truncate(time.Second)
	call := r.recorder.Begin(Record{Call: Jump, Off: off.Microseconds()})
	if err := r.postgres.SetClock(off); err != nil {
		return err
	}
	crew.Pause(ctx, lease/2+time.Duration(random.Int64N(int64(lease))))
	err := r.postgres.SetClock(0)
	r.recorder.End(call, Record{Answer: OK, Off: off.Microseconds()})
	crew.Pause(ctx, 2*lease)
	return err
}

// stall keeps all that the server says to a process on its way, for several leases.
func (r *run) stall(ctx context.Context, random *rand.Rand) error {
	s := r.crew.Slots[random.IntN(r.Processes)]
	c := r.recorder.Begin(Record{Call: Cut, Target: s.Name, Note: "stall"})
	s.Under(ctx, func(m pgproxy.Message) pgproxy.Fault {
		if m.From == pgproxy.Server {
			return pgproxy.Hold
		}
		return pgproxy.Pass
	}, 5*lease)
	r.recorder.End(c, Record{Answer: OK, Note: c.Note})
	return nil
}

// lockFile has another program write to the file for longer than a lease, so that no process can.
func (r *run) lockFile(ctx context.Context, random *rand.Rand) error {
	tx, err := r.file.BeginTx(ctx, nil)
	if err != nil {
		return nil //nolint:nilerr // another process has the file, or the run is over
	}
	r.recorder.Begin(Record{Call: Cut, Target: fileName})
	crew.Pause(ctx, time.Duration(random.Int64N(int64(2*lease))))
	_ = tx.Rollback() // it was, if the run is over
	return nil
}

// operate does one of the things that an operator does. The server is not killed meanwhile.
func (r *run) operate(ctx context.Context, random *rand.Rand) error {
	r.busy.RLock()
	defer r.busy.RUnlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	store, q, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := q.Status(ctx); errors.Is(err, messagestore.ErrNotFound) {
		return nil
	}
	switch random.IntN(7) {
	case 0, 1:
		r.pauses(ctx, q, random)
		return nil
	case 2, 3, 4:
		return r.redrive(ctx, q, random)
	default:
		return r.cancel(ctx, q, random)
	}
}

// change records what an operator asks for. The server is up: an error is for a person to look at.
func (r *run) change(note string, f func() error) {
	c := r.recorder.Begin(Record{Call: Change, Note: note})
	err := f()
	a := answerOf(err)
	a.Note = note
	r.recorder.End(c, a)
	if err != nil {
		r.crew.Complain(fmt.Sprintf("%s: %v", note, err))
	}
}

// The changes that the checker looks at.
const (
	pausing  = "pause"
	resuming = "resume"
)

func (r *run) pauses(ctx context.Context, q *queue.Queue, random *rand.Rand) {
	r.change(pausing, func() error { return q.Pause(ctx) })
	crew.Pause(ctx, time.Duration(random.Int64N(int64(700*time.Millisecond))))
	r.change(resuming, func() error { return q.Resume(ctx) })
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
	r.busy.RLock()
	defer r.busy.RUnlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	stream := fmt.Sprintf("%s-k%d", Category, random.IntN(keys))
	c := r.recorder.Begin(Record{Call: Trim, Target: stream})
	n, err := r.place.trim(ctx, messagestore.StreamName(stream))
	a := answerOf(err)
	a.Note = fmt.Sprint(n)
	r.recorder.End(c, a)
	if err != nil {
		r.crew.Complain(fmt.Sprintf("trim %s: %v", stream, err))
	}
	return nil
}
