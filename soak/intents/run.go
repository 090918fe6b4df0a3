package intents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/server"
)

// Options say how a run is to be.
type Options struct {
	Seed       uint64
	Duration   time.Duration // of the faults, at most
	Goals      *Counts       // with which they end earlier; nil for none
	Processes  int
	Goroutines int  // of each process
	Clock      bool // the server's is moved, by up to an hour, and stands
	PgBouncer  bool // between the processes and the server, and is killed
	Calm       bool // nothing is killed, stopped or cut
	Silent     bool // nor here: the server is out of reach now and then, for longer than a lease
	Long       bool // transactions take long, while others ask for their keys
	Failovers  Failovers
	Plant      *harness.Mutant
	Program    string // of the processes, "" for this one
	Out        string // the folder of the run, which is made
	Dir        string // where the server keeps its data
}

// A run is under way.
type run struct {
	Options
	crew     *crew.Crew
	postgres *server.Postgres
	bouncer  *server.PgBouncer // nil for none
	recorder *recorder         // of the nemesis
	began    int64
	counted  atomic.Pointer[Counts] // so far
	commits  chan struct{}          // receives when a process is about to commit
}

// nemesis and healer name the histories of the harness.
const (
	nemesis = "nemesis"
	healer  = "healer"
)

// Run has processes work on intents while there are faults, and leaves all that [Check] needs. The result are
// complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	r := &run{Options: o, commits: make(chan struct{})}
	if r.crew, err = crew.New(crew.Config{
		Program: o.Program, Variable: Variable, Seed: o.Seed, Out: o.Out, Base: o.Dir, Log: log,
		Killed: func(process string) { r.recorder.Begin(Record{Call: Kill, Target: process}) }, Heard: r.hear,
	}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.crew.Close()) }()
	if r.recorder, err = crew.NewRecorder[Record](r.crew.Out, nemesis); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.crew.Stop(), r.recorder.Close()) }() // the end of a process is recorded
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	stopResource, err := r.startResource()
	if err != nil {
		return nil, err
	}
	defer stopResource()
	r.began = crew.Now()
	for i := range o.Processes {
		if err := r.add(fmt.Sprintf("client-%d", i)); err != nil {
			return nil, err
		}
	}
	if err := r.torment(ctx); err != nil {
		return nil, err
	}
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	return r.crew.Complaints(), r.dump(ctx)
}

func (r *run) open(ctx context.Context) error {
	config := &server.PostgresConfig{Clock: r.Clock}
	if r.Plant != nil {
		config.Settings = r.Plant.Settings
	}
	var err error
	if r.postgres, err = server.NewPostgres(ctx, r.crew.Dir, "pg", config); err != nil {
		return err
	}
	// Nothing is unique: the checker sees each row that was committed.
	err = crew.NewDatabase(ctx, r.postgres, r.Plant, "create table "+table+" (stream text not null, token bigint not null, result text not null)")
	if err != nil {
		return err
	}
	if r.PgBouncer {
		r.bouncer, err = server.NewPgBouncer(ctx, r.postgres, "pgbouncer")
	}
	return err
}

func (r *run) socket() string { return filepath.Join(r.crew.Dir, resourceSocket) }

func (r *run) startResource() (stop func(), err error) {
	child, err := r.crew.Start(&task{Dir: r.crew.Out, Socket: r.socket()})
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := os.Stat(r.socket()); err == nil {
			return child.Kill, nil
		}
		if !child.Running() || time.Now().After(deadline) {
			child.Kill()
			return nil, fmt.Errorf("the resource does not start: %w", child.Ended())
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (r *run) add(name string) error {
	socket := r.postgres.Socket()
	if r.bouncer != nil {
		socket = r.bouncer.Socket()
	}
	return r.crew.Add(name, socket, false, func(process, url string, random *rand.Rand, healed bool) any {
		t := &task{
			Process: process, Seed: random.Uint64(), URL: url, Dir: r.crew.Out, Socket: r.socket(), Began: r.began,
			Goroutines: r.Goroutines, Long: r.Long,
		}
		if !healed && !r.Calm && !r.Silent && !r.enough(kills) {
			t.Doom.Point, t.Doom.Turn = points[random.IntN(len(points))], crew.TurnOf(random, 15)
		}
		return t
	})
}

// heal ends the faults and the processes, and waits until nothing is held.
func (r *run) heal(ctx context.Context) error {
	if r.Clock {
		if err := r.postgres.SetClock(0); err != nil {
			return err
		}
	}
	if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
		return err
	}
	if r.bouncer != nil {
		if err := r.bouncer.Start(ctx); err != nil {
			return err
		}
	}
	r.crew.Heal()
	r.crew.Log.Info().Msg("no more faults: the processes end")
	if err := r.crew.Stop(); err != nil {
		return err
	}
	store, intents, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if !r.Clock { // a lease of an hour's time ends for those alone that wait
		if err := r.awaitFree(ctx, intents); err != nil {
			return err
		}
	}
	return r.reserveAll(ctx, store, intents)
}

// awaitFree waits until nothing is held.
func (r *run) awaitFree(ctx context.Context, intents *intent.Manager) error {
	heal := r.recorder.Begin(Record{Call: Heal})
	limited, cancel := context.WithTimeout(ctx, 2*healTime)
	defer cancel()
	answer := Record{Answer: Failed}
	for {
		held, err := intents.List(ctx, intent.Filter{})
		if err != nil {
			return err
		}
		answer.Note = fmt.Sprintf("%d are held", len(held))
		if len(held) == 0 {
			answer.Answer = OK
		}
		if len(held) == 0 || !crew.Pause(limited, 50*time.Millisecond) {
			break
		}
	}
	r.recorder.End(heal, answer)
	return nil
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *intent.Manager, error) {
	driver, err := postgres.Open(ctx, r.postgres.URL(crew.Database), nil)
	if err != nil {
		return nil, nil, err
	}
	store := must.New(messagestore.New(driver, nil))
	intents, err := intent.New(store, Category, &intent.Config{TTL: ttl, Turn: turn, Name: healer})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, intents, nil
}

// mostHealed is how many of the last keys are tried in the end.
const mostHealed = 200

// reserveAll tries whether each of the last keys can be had, or is done.
func (r *run) reserveAll(ctx context.Context, store *messagestore.Store, intents *intent.Manager) error {
	last := map[string]messagestore.GlobalPosition{}
	for m, err := range store.ReadCategory(ctx, Category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		last[m.Stream.ID()] = m.GlobalPosition
	}
	names := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return int(last[b] - last[a]) })
	recorder, err := crew.NewRecorder[Record](r.crew.Out, healer)
	if err != nil {
		return err
	}
	c := &client{task: &task{Process: healer, Goroutines: r.Processes * r.Goroutines}, recorder: recorder, intents: intents}
	var all sync.WaitGroup
	const hands = 4
	for i := range hands {
		all.Go(func() {
			h := c.hand(uint64(i)) //nolint:gosec // a few
			for n, key := range names[:min(len(names), mostHealed)] {
				if n%hands == i {
					h.reserveOne(ctx, key)
				}
			}
		})
	}
	all.Wait()
	return recorder.Close()
}

// line is how long the longest line takes if each of its waiters is gone, and costs a turn.
func (t *task) line() time.Duration { return time.Duration(t.Goroutines) * turn }

// reserveOne asks with either content, and releases.
func (h *hand) reserveOne(ctx context.Context, key string) {
	for i, other := range []bool{false, true} {
		j := &job{hand: h, other: other}
		j.request = intent.Request{Key: key, Session: fmt.Sprintf("%s/%s-%d", healer, key, i), Wait: healTime + h.line(), Content: contentOf(other)}
		j.named()
		if lease := j.reserve(ctx); lease != nil {
			j.step(Release, func() error { return lease.Release(ctx, "healed") })
			return
		}
	}
}

func message(m *messagestore.Message) *Message {
	return &Message{string(m.Stream), int64(m.Position), m.Type, m.Time.UnixMicro(), m.Data}
}

// dump writes the contents of the store.
func (r *run) dump(ctx context.Context) error {
	store, _, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	var all []*Message
	for m, err := range store.ReadCategory(ctx, Category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		all = append(all, message(m))
	}
	if err := crew.WriteLines(filepath.Join(r.crew.Out, messagesFile), all); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.postgres.URL(crew.Database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return crew.Dump[Row](ctx, conn, filepath.Join(r.crew.Out, rowsFile), "select stream, token, result from "+table)
}
