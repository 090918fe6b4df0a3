package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
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
	operate     = fault{80, nil, (*run).operate}
	trim        = fault{300, nil, (*run).trim}
)

func kills(n *Counts) *int { return &n.Kills }

// seldom is how many times longer it is to a fault of which there was enough.
const seldom = 8

// enough reports whether the goal of a fault is reached, as far as is known.
func (r *run) enough(counted func(n *Counts) *int) bool {
	n := r.counted.Load()
	return counted != nil && r.Goals != nil && n != nil && *counted(n) >= *counted(r.Goals)
}

// awaitAnswers waits until the server has answered so often, but not for ever: it may be down, or nothing goes on.
func (r *run) awaitAnswers(ctx context.Context, answers int64) bool {
	const most = 10 * time.Second
	for deadline := time.Now().Add(most); r.answers.Load() < answers && time.Now().Before(deadline); {
		if !pause(ctx, 2*time.Millisecond) {
			return false
		}
	}
	return ctx.Err() == nil
}

// torment has faults for the time of the run, or until its goals are reached.
func (r *run) torment(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	faults := []fault{killProcess, stopProcess, cut, operate, trim}
	switch {
	case r.Open:
		faults = []fault{operate}
	case !r.Calm:
		faults = append(faults, killServer)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i, f := range faults {
		all.Go(func() {
			random := rand.New(rand.NewPCG(r.Seed, uint64(i))) //nolint:gosec // a few
			for {
				n := f.least + random.Int64N(f.least)
				if r.enough(f.counted) {
					n *= seldom
				}
				if !r.awaitAnswers(limited, r.answers.Load()+n) {
					return
				}
				if err := f.run(r, limited, random); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					cancel()
				}
			}
		})
	}
	all.Go(func() {
		if err := r.watch(limited, cancel); err != nil {
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
			cancel()
		}
	})
	all.Wait()
	return errors.Join(failed, ctx.Err())
}

// watch tells how far the run is from its goals, and ends it where it has reached them.
func (r *run) watch(ctx context.Context, reached func()) error {
	const every = 2 * time.Second
	if r.Goals == nil {
		<-ctx.Done()
		return nil
	}
	t, began := newTally(r.Out), time.Now()
	for pause(ctx, every) {
		n, err := t.counts()
		if err != nil {
			return err
		}
		r.lines(ctx, n)
		r.counted.Store(n)
		r.log.Info().Msg(n.Progress(r.Goals, time.Since(began)))
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
	_ = r.ask(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select what::text, count(*)::integer from dibs.queue_log group by 1")
		if err != nil {
			return err
		}
		found := map[string]int{}
		_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
			var what string
			var times int
			err := row.Scan(&what, &times)
			found[what] = times
			return struct{}{}, err
		})
		if err == nil {
			n.setLines(found)
		}
		return err
	})
}

// ask has a connection of its own, that no fault meets but those of the server.
func (r *run) ask(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, r.postgres.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// worker draws a process that works; one in ten times one that inserts.
func (r *run) worker(random *rand.Rand) *slot {
	if random.IntN(10) == 0 {
		return r.slots[r.Processes+random.IntN(r.Inserters)]
	}
	return r.slots[random.IntN(r.Processes)]
}

func (r *run) killProcess(ctx context.Context, random *rand.Rand) error {
	s := r.worker(random)
	if random.IntN(2) == 0 { // one that waits, and whose place in the line is left
		s = r.slots[random.IntN(r.Processes)]
		r.awaitLine(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child.Signal(syscall.SIGKILL)
	return nil
}

// awaitLine waits until the workers wait in line, but not for ever.
func (r *run) awaitLine(ctx context.Context) {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline) && pause(ctx, 30*time.Millisecond); {
		waiting := 0
		_ = r.ask(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "select count(*) from dibs.queue_tickets where until > now() + interval '1 minute'").Scan(&waiting)
		})
		if waiting >= r.Processes/2 {
			return
		}
	}
}

// stopProcess stops a process until a session was over, or it has been long enough for its own to be.
func (r *run) stopProcess(ctx context.Context, random *rand.Rand) error {
	s := r.slots[random.IntN(r.Processes)]
	s.mu.Lock()
	child, process := s.child, s.process
	s.mu.Unlock()
	over := func() (n int) {
		limited, cancel := context.WithTimeout(ctx, lease)
		defer cancel()
		_ = r.ask(limited, func(conn *pgx.Conn) error {
			return conn.QueryRow(limited, "select count(*) from dibs.queue_log where what = 'e'").Scan(&n)
		})
		return n
	}
	before := over()
	stop := r.recorder.begin(Record{Call: Stop, Target: process})
	child.Signal(syscall.SIGSTOP)
	for deadline := time.Now().Add(3 * lease); pause(ctx, lease/4) && time.Now().Before(deadline); {
		if now() > stop.At+lease.Microseconds() && over() > before {
			break
		}
	}
	a := Record{Answer: OK}
	if !child.Running() { // a kill was first
		a.Answer = Failed
	}
	child.Signal(syscall.SIGCONT)
	r.recorder.end(stop, a)
	return nil
}

func (r *run) killServer(ctx context.Context, random *rand.Rand) error {
	r.busy.Lock()
	defer r.busy.Unlock()
	call := r.recorder.begin(Record{Call: Kill, Target: Server})
	if err := r.postgres.Kill(); err != nil {
		return err
	}
	if random.IntN(6) == 0 {
		pause(ctx, time.Duration(random.Int64N(int64(lease))))
	}
	ctx = context.WithoutCancel(ctx)
	if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
		return err
	}
	r.recorder.end(call, Record{Answer: OK})
	return nil
}

// ask is the rule of a slot's proxy. It follows the rule of the present fault, if there is one, and counts answers.
func (s *slot) ask(m pgproxy.Message) pgproxy.Fault {
	if m.From == pgproxy.Server && m.Name == "CommandComplete" {
		s.answers.Add(1)
	}
	if rule := s.rule.Load(); rule != nil {
		return (*rule)(m)
	}
	return pgproxy.Pass
}

// cut closes the connections of a process, or has the next answer to it lost.
func (r *run) cut(ctx context.Context, random *rand.Rand) error {
	s := r.worker(random)
	r.recorder.begin(Record{Call: Cut, Target: s.name})
	if random.IntN(3) == 0 {
		s.proxy.Sever()
		return nil
	}
	rule := pgproxy.Rule(func(m pgproxy.Message) pgproxy.Fault {
		if m.From == pgproxy.Server && m.Name == "CommandComplete" {
			return pgproxy.CloseBefore
		}
		return pgproxy.Pass
	})
	s.rule.Store(&rule)
	pause(ctx, time.Duration(random.Int64N(int64(20*time.Millisecond))))
	s.rule.Store(nil)
	s.proxy.Release()
	return nil
}

// operate does one of the things that an operator does. The server is not killed meanwhile.
func (r *run) operate(ctx context.Context, random *rand.Rand) error {
	r.busy.RLock()
	defer r.busy.RUnlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
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
	c := r.recorder.begin(Record{Call: Change, Note: note})
	err := f()
	a := answerOf(err)
	a.Note = note
	r.recorder.end(c, a)
	if err != nil {
		r.complain(fmt.Sprintf("%s: %v", note, err))
	}
}

// The changes that the checker looks at.
const (
	pausing  = "pause"
	resuming = "resume"
)

func (r *run) pauses(ctx context.Context, q *queue.Queue, random *rand.Rand) {
	r.change(pausing, func() error { return q.Pause(ctx) })
	pause(ctx, time.Duration(random.Int64N(int64(700*time.Millisecond))))
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	stream := fmt.Sprintf("%s-k%d", Category, random.IntN(keys))
	c := r.recorder.begin(Record{Call: Trim, Target: stream})
	var n int64
	err := r.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "select coalesce(removed, 0) from dibs.trim($1, keep => 1, min_age => '0')", stream).Scan(&n)
	})
	a := answerOf(err)
	a.Note = fmt.Sprint(n)
	r.recorder.end(c, a)
	if err != nil {
		r.complain(fmt.Sprintf("trim %s: %v", stream, err))
	}
	return nil
}
