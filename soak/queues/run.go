package queues

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/promise"
)

// Options say how a run is to be.
type Options struct {
	Seed      uint64
	Duration  time.Duration // of the faults, at most
	Drain     time.Duration // in which all is to be finished afterwards
	Goals     promise.Goals // with which the faults end earlier; nil for none
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
	*crew.Crew
	place place
}

//go:embed promises/*.sql
var folder embed.FS

// Promises are what a run is checked for.
var Promises = must.New(fs.Sub(folder, "promises"))

// Check holds the history of a run against each promise.
func Check(ctx context.Context, dir string) (*promise.Verdict, error) {
	return promise.Check(ctx, dir, Promises)
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

// Run has processes work on a queue while there are faults, and leaves all that [Check] needs. The result are
// complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	if o.Scene == HotKey {
		o.Processes, o.Workers, o.Inserters = 1, 1, 1
	}
	r := &run{Options: o}
	if r.Crew, err = crew.New(ctx, crew.Config{
		Program: o.Program, Variable: Variable, Seed: o.Seed, Out: o.Out, Base: o.Dir, Log: log, Promises: Promises, Goals: o.Goals, Look: r.look,
	}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if r.SQLite {
		r.place, err = newFilePlace(ctx, r.Crew.Dir)
	} else {
		r.place, err = newPostgresPlace(ctx, r.Crew, o.Plant, o.Scene == Clock)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.place.close()) }()
	for i := range o.Processes + o.Inserters {
		name, inserts := fmt.Sprintf("worker-%d", i), i >= o.Processes
		if inserts {
			name = fmt.Sprintf("inserter-%d", i-o.Processes)
		}
		if err := r.add(name, inserts); err != nil {
			return nil, err
		}
	}
	if err := r.torment(ctx); err != nil {
		return nil, err
	}
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	return r.Complaints(), errors.Join(r.History.Gather(ctx), r.place.dump(ctx, r.History))
}

func (r *run) add(name string, inserts bool) error {
	socket := ""
	if r.Postgres != nil {
		socket = r.Postgres.Socket()
	}
	return r.Add(name, socket, inserts, func(process, url string, random *rand.Rand, healed bool) any {
		t := &task{Process: process, Seed: random.Uint64(), Dir: r.Crew.Out, URL: url, Inserts: inserts, Workers: r.Workers, Hold: r.Hold, Scene: r.Scene}
		if r.SQLite {
			t.URL = sqliteURL + filepath.Join(r.Crew.Dir, fileName)
		}
		if !healed && r.Scene.kills() && !r.Enough("kills") {
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
	if r.Postgres != nil {
		if err := r.Rest(ctx); err != nil {
			return err
		}
	}
	r.Heal()
	store, q, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := q.Resume(ctx); err != nil {
		return err
	}
	if r.Scene == HotKey { // to work through it would take minutes
		return r.Stop()
	}
	r.Log.Info().Msg("no more faults: the workers finish what there is")
	if err := r.drain(ctx, q); err != nil {
		return err
	}
	return r.Stop()
}

// drain waits until nothing is left but what is dead, and held behind that.
func (r *run) drain(ctx context.Context, q *queue.Queue) error {
	call := r.Nemesis.Begin(crew.Event{Call: crew.Drain})
	limited, cancel := context.WithTimeout(ctx, r.Drain)
	defer cancel()
	a := crew.Event{Answer: crew.Failed}
	for {
		s, err := q.Status(ctx)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return err
		}
		a.Note = fmt.Sprintf("out %d, later %d, held %d, dead %d, waiting %v", s.Out, s.Later, s.Held, s.Dead, s.Waiting)
		if s.Out+s.Later == 0 && !s.Waiting && (s.Held == 0 || r.Hold && s.Dead > 0 && r.behind(ctx)) {
			a.Answer = crew.OK
			break
		}
		if !crew.Pause(limited, 100*time.Millisecond) {
			break
		}
	}
	r.Nemesis.End(call, a)
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

// look has the figures know how many lines the logs have.
func (r *run) look(ctx context.Context) {
	found, err := r.place.lines(ctx)
	if err != nil {
		return // the server is down: what is known of it stays
	}
	for what, n := range found {
		if err := r.History.Exec(ctx, "insert into sorts values (?, ?) on conflict do update set lines = excluded.lines", what, n); err != nil {
			return // it is told soon again
		}
	}
}
