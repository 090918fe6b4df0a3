package queues

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// Options say how a run is to be.
type Options struct {
	crew.Options
	Processes int   // that work
	Workers   int   // of each
	Inserters int   // processes
	Hold      bool  // a dead item holds its key
	SQLite    bool  // over a file, and no server
	Calm      bool  // the server is not killed
	Scene     Scene // what the run is about
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
	return crew.Run(ctx, crew.Config{
		Options: o.Options, Variable: Variable, Log: log, Promises: Promises, Look: r.look,
	}, func(c *crew.Crew) (_ *crew.Scenario, err error) {
		r.Crew = c
		if r.SQLite {
			r.place, err = newFilePlace(ctx, c.Dir)
		} else {
			r.place, err = newPostgresPlace(ctx, c, o.Scene == Clock)
		}
		s := &crew.Scenario{Phases: []crew.Phase{r.faults()}, Healed: r.resume, Left: r.left, Drain: o.Drain, Dump: func(ctx context.Context) error {
			return errors.Join(r.place.dump(ctx, r.History), r.place.close())
		}}
		if r.Scene == HotKey { // to work through it would take minutes
			s.Left = nil
		}
		for i := range o.Processes {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("worker-%d", i), worker))
		}
		for i := range o.Inserters {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("inserter-%d", i), inserter))
		}
		return s, err
	})
}

// The roles of processes.
const (
	worker   = "worker"
	inserter = "inserter"
)

func (r *run) client(name, role string) crew.Client {
	c := crew.Client{Name: name, Role: role, Ends: role == inserter, Task: func(p crew.Place) any {
		points := workPoints
		if role == inserter {
			points = insertPoints
		}
		if !r.Scene.kills() || r.Enough("kills") {
			points = nil
		}
		t := &task{Task: p.Task(points, 3, 100), Inserts: role == inserter, Workers: r.Workers, Hold: r.Hold, Scene: r.Scene}
		if r.SQLite {
			t.URL = sqliteURL + filepath.Join(r.Dir, fileName)
		}
		return t
	}}
	if r.Postgres != nil {
		c.Socket = r.Postgres.Socket()
	}
	return c
}

func (r *run) resume(ctx context.Context) error {
	return r.ofQueue(ctx, func(q *queue.Queue) error { return q.Resume(ctx) })
}

// left tells what is left but what is dead, and held behind that.
func (r *run) left(ctx context.Context) (left string, err error) {
	err = r.ofQueue(ctx, func(q *queue.Queue) error {
		s, err := q.Status(ctx)
		if err != nil && !errors.Is(err, messagestore.ErrNotFound) {
			return err
		}
		if s.Out+s.Later > 0 || s.Waiting || s.Held > 0 && (!r.Hold || s.Dead == 0 || !r.behind(ctx)) {
			left = fmt.Sprintf("out %d, later %d, held %d, dead %d, waiting %v", s.Out, s.Later, s.Held, s.Dead, s.Waiting)
		}
		return nil
	})
	return left, err
}

// behind reports whether what is held is behind a row.
func (r *run) behind(ctx context.Context) bool {
	orphans, err := r.place.orphans(ctx)
	return err == nil && orphans == 0
}

// ofQueue has f ask the queue.
func (r *run) ofQueue(ctx context.Context, f func(q *queue.Queue) error) error {
	driver, err := r.place.open(ctx)
	if err != nil {
		return err
	}
	store := must.New(messagestore.New(driver, nil))
	defer store.Close()
	return f(must.New(queue.New(store, Category, queueConfig(r.Hold))))
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
