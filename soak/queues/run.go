package queues

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/server"
)

// Options say how a run is to be.
type Options struct {
	Seed      uint64
	Duration  time.Duration // of the faults, at most
	Drain     time.Duration // in which all is to be finished afterwards
	Goals     *Counts       // with which the faults end earlier; nil for none
	Processes int           // that work
	Workers   int           // of each
	Inserters int           // processes
	Hold      bool          // a dead item holds its key
	SQLite    bool          // over a file, and no server
	Calm      bool          // the server is not killed
	Scene     Scene         // what the run is about
	Plant     *harness.Mutant
	Program   string // of the processes, "" for this one
	Out       string // the folder of the run, which is made
	Dir       string // where the server keeps its data
}

// A run is under way.
type run struct {
	Options
	crew     *crew.Crew
	place    place
	postgres *server.Postgres       // nil for a file
	file     *sql.DB                // nil for a server
	recorder *recorder              // of the nemesis
	counted  atomic.Pointer[Counts] // so far
	busy     sync.RWMutex           // the server is killed under it
}

// A Scene is the subject of a run.
type Scene string

// The scenes. Only the first runs over a file too.
const (
	Usual   Scene = ""
	Overlap Scene = "overlap" // nothing is killed, and all is inserted in transactions that overlap
	Clock   Scene = "clock"   // the server's clock jumps and is set right
	Poison  Scene = "poison"  // some items kill their process, beside many that take their time
	HotKey  Scene = "hot-key" // thousands of items of one key are inserted before those of others
	Ending  Scene = "ending"  // sessions end while completions are on their way
)

// Scenes are those with goals of their own.
var Scenes = []Scene{Clock, Poison, HotKey, Ending}

// kills reports whether processes are killed in the scene, but by their own items.
func (s Scene) kills() bool { return s == Usual || s == Clock }

const nemesis = "nemesis" // its history

// Run has processes work on a queue while there are faults, and leaves all that [Check] needs. The result are
// complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	if o.Scene == HotKey {
		o.Processes, o.Workers, o.Inserters = 1, 1, 1
	}
	r := &run{Options: o}
	if r.crew, err = crew.New(crew.Config{
		Program: o.Program, Variable: Variable, Seed: o.Seed, Out: o.Out, Base: o.Dir, Log: log,
		Killed: func(process string) { r.recorder.Begin(Record{Call: Kill, Target: process}) },
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
	defer func() { err = errors.Join(err, r.place.close()) }()
	for i := range o.Processes {
		if err := r.add(fmt.Sprintf("worker-%d", i), false); err != nil {
			return nil, err
		}
	}
	for i := range o.Inserters {
		if err := r.add(fmt.Sprintf("inserter-%d", i), true); err != nil {
			return nil, err
		}
	}
	if err := r.torment(ctx); err != nil {
		return nil, err
	}
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	return r.crew.Complaints(), r.place.dump(ctx, r.crew.Out)
}

func (r *run) open(ctx context.Context) error {
	if r.SQLite {
		p, err := newFilePlace(ctx, r.crew.Dir)
		if err != nil {
			return err
		}
		r.place, r.file = p, p.db
		return nil
	}
	p, err := newPostgresPlace(ctx, r.crew.Dir, r.Plant, r.Scene == Clock)
	if err != nil {
		return err
	}
	r.place, r.postgres = p, p.postgres
	return nil
}

func (r *run) add(name string, inserts bool) error {
	socket := ""
	if r.postgres != nil {
		socket = r.postgres.Socket()
	}
	return r.crew.Add(name, socket, inserts, func(process, url string, random *rand.Rand, healed bool) any {
		t := &task{Process: process, Seed: random.Uint64(), Dir: r.crew.Out, URL: url, Inserts: inserts, Workers: r.Workers, Hold: r.Hold, Scene: r.Scene}
		if r.SQLite {
			t.URL = sqliteURL + filepath.Join(r.crew.Dir, fileName)
		}
		if !healed && r.Scene.kills() && !r.enough(kills) {
			points := workPoints
			if inserts {
				points = insertPoints
			}
			t.Doom.Point, t.Doom.Turn = points[random.IntN(len(points))], 3+crew.TurnOf(random, 100)
		}
		return t
	})
}

// heal ends the faults, and waits until the workers have finished what there is. Only then they are told to end.
func (r *run) heal(ctx context.Context) error {
	if r.Scene == Clock { // it is right now, and need not be set any more
		up := r.crashed()
		err := r.postgres.RealClock(ctx)
		up()
		if err != nil {
			return err
		}
	}
	if r.postgres != nil {
		if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
			return err
		}
	}
	r.crew.Heal()
	store, q, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := q.Resume(ctx); err != nil {
		return err
	}
	if r.Scene == HotKey { // to work through it would take minutes
		return r.crew.Stop()
	}
	r.crew.Log.Info().Msg("no more faults: the workers finish what there is")
	if err := r.drain(ctx, q); err != nil {
		return err
	}
	return r.crew.Stop()
}

// drain waits until nothing is left but what is dead, and held behind that.
func (r *run) drain(ctx context.Context, q *queue.Queue) error {
	call := r.recorder.Begin(Record{Call: Drain})
	limited, cancel := context.WithTimeout(ctx, r.Drain)
	defer cancel()
	a := Record{Answer: Failed}
	for {
		s, err := q.Status(ctx)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return err
		}
		a.Note = fmt.Sprintf("out %d, later %d, held %d, dead %d, waiting %v", s.Out, s.Later, s.Held, s.Dead, s.Waiting)
		if s.Out+s.Later == 0 && !s.Waiting && (s.Held == 0 || r.Hold && s.Dead > 0 && r.behind(ctx)) {
			a.Answer = OK
			break
		}
		if !crew.Pause(limited, 100*time.Millisecond) {
			break
		}
	}
	r.recorder.End(call, a)
	return ctx.Err()
}

// behind reports whether what is held is behind a row.
func (r *run) behind(ctx context.Context) bool {
	orphans, err := r.place.orphans(ctx)
	return err == nil && orphans == 0
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *queue.Queue, error) {
	driver, err := r.place.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	store := must.New(messagestore.New(driver, nil))
	q, err := queue.New(store, Category, queueConfig(r.Hold))
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, q, nil
}
