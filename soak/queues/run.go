package queues

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// Options configure a run.
type Options struct {
	crew.Options
	Processes int   // that work
	Workers   int   // of each
	Inserters int   // processes
	Hold      bool  // a dead item holds its key
	SQLite    bool  // over a file, and no server
	Servers   int   // processes that serve the store, which the others call; 0 for none
	Calm      bool  // the server is not killed
	Scene     Scene // what the run is about
}

// A run is under way.
type run struct {
	Options
	*crew.Crew
	place     *place
	addresses []string // of processes that serve
}

//go:embed promises/*.sql
var folder embed.FS

// Promises are the promises that a run is checked for.
var Promises = testkit.Must(fs.Sub(folder, "promises"))

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

// Scenes are the scenes with their own goals.
var Scenes = []Scene{Clock, Poison, HotKey, Ending}

// kills reports whether processes are killed in the scene, but by their own items.
func (s Scene) kills() bool { return s == Usual || s == Clock }

// Run lets processes work on a queue during faults, and leaves everything that [promise.Check]
// needs. It returns the complaints about the processes themselves.
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
			r.place, err = newFilePlace(ctx, c)
		} else {
			r.place, err = newPostgresPlace(ctx, c, o.Scene == Clock)
		}
		if err != nil {
			return nil, err
		}
		if r.addresses, err = crew.Addresses(o.Servers); err == nil && o.Servers > 0 { // which follow the stored policy
			config := queueConfig(r.Hold)
			err = r.ofQueue(ctx, func(q *queue.Queue) error {
				return q.SetPolicy(ctx, "soak", queue.Policy{MaxFailures: config.MaxFailures, WhenDead: config.WhenDead})
			})
		}
		if err != nil {
			return nil, err
		}
		s := &crew.Scenario{Phases: []crew.Phase{r.faults()}, Healed: r.resume, Left: r.left, Drain: o.Drain, Drained: r.stopClients, Dump: r.place.dump}
		if r.Scene == HotKey { // to work through it would take minutes
			s.Left = nil
		}
		for i, address := range r.addresses {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("%s-%d", crew.Dibs, i), crew.Dibs, address))
		}
		for i := range o.Processes {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("worker-%d", i), worker, ""))
		}
		for i := range o.Inserters {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("inserter-%d", i), inserter, ""))
		}
		return s, err
	})
}

// The roles of processes.
const (
	worker   = "worker"
	inserter = "inserter"
)

func (r *run) client(name, role, address string) crew.Client {
	calls := r.Servers > 0 && role != crew.Dibs
	c := crew.Client{Name: name, Role: role, Ends: role == inserter, Task: func(p crew.Place) any {
		points := workPoints
		switch {
		case !r.Scene.kills() || r.Enough("kills"):
			points = nil
		case role == crew.Dibs:
			points = servePoints
		case calls:
			points = callPoints
		case role == inserter:
			points = insertPoints
		}
		t := &task{Task: p.Task(points, 3, 100), Address: address, Inserts: role == inserter, Workers: r.Workers, Hold: r.Hold, Scene: r.Scene}
		if r.SQLite && !calls {
			t.URL = sqliteURL + filepath.Join(r.Dir, fileName)
		}
		return t
	}}
	switch {
	case calls:
		c.Servers = r.addresses
	case r.Postgres != nil:
		c.Socket = r.Postgres.Socket()
	}
	return c
}

// stopClients ends those who call a server before the server.
func (r *run) stopClients(context.Context) error {
	r.Stop(crew.Grace, worker, inserter)
	return nil
}

func (r *run) resume(ctx context.Context) error {
	return r.ofQueue(ctx, func(q *queue.Queue) error { return q.Resume(ctx) })
}

// left returns the items that are left, except items that are dead or held behind a dead item.
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

// behind reports whether held items are behind a row.
func (r *run) behind(ctx context.Context) bool {
	orphans, err := r.place.number(ctx, r.place.orphans)
	return err == nil && orphans == 0
}

// ofQueue calls f with the queue.
func (r *run) ofQueue(ctx context.Context, f func(q *queue.Queue) error) error {
	driver, err := r.place.open(ctx)
	if err != nil {
		return err
	}
	store := testkit.Must(messagestore.New(driver, nil))
	defer store.Close()
	return f(testkit.Must(queue.New(store, Category, queueConfig(r.Hold))))
}

// look has the figures know how many lines the logs have.
func (r *run) look(ctx context.Context) {
	found, err := r.place.sorts(ctx)
	if err != nil {
		return // the server is down: what is known of it stays
	}
	for what, n := range found {
		if err := r.History.Exec(ctx, "insert into sorts values (?, ?) on conflict do update set lines = excluded.lines", what, n); err != nil {
			return // it is told soon again
		}
	}
}

// The goals of a run, by the keys of figures.sql: of make ci/long, what differs where a store is
// served, and of a run of a minute.
var (
	Issue = promise.Goals{
		"serverKills": 100, "kills": 500, "stops": 100, "cuts": 100, "items": 100_000, "undone": 1000, "staged": 1000, "leftOut": 100, "unstaged": 100, "reused": 100,
		"named": 500, "taken": 500, "deliveries": 100_000, "tickets": 100, "refused": 100, "transactions": 1000, "rolledBack": 100, "again": 100, "unknown": 100, "trims": 100, "pauses": 20,
		"expiries": 100, "retries": 1000, "defers": 1000, "givenBack": 1, "buried": 100, "redriven": 50, "cancelled": 100,
	}
	Served = promise.Goals{
		"undone": 0, "staged": 0, "leftOut": 0, "unstaged": 0, "reused": 0, "transactions": 0, "rolledBack": 0, "again": 0, "unknown": 0,
		"items": 300, "named": 2, "deliveries": 400, "retries": 10, "buried": 1, "dibsKills": 3, "drains": 3, "resumed": 1, "hungUp": 5, "prolonged": 3,
	}
	Short = promise.Goals{
		"serverKills": 3, "kills": 10, "stops": 3, "cuts": 5, "items": 1000, "undone": 20, "staged": 100, "leftOut": 5, "unstaged": 20, "reused": 3,
		"named": 10, "taken": 10, "deliveries": 1000, "tickets": 5, "refused": 3, "transactions": 50, "rolledBack": 5, "again": 3, "unknown": 2, "trims": 3, "pauses": 1,
		"expiries": 10, "retries": 20, "defers": 20, "buried": 5, "redriven": 2, "cancelled": 3,
	}
)

// Goals returns the goals of a scene's run of about a minute.
func (s Scene) Goals() promise.Goals {
	switch s {
	case Clock:
		return promise.Goals{"jumps": 5, "kills": 5, "items": 500, "deliveries": 500, "expiries": 10}
	case Poison:
		return promise.Goals{"poisons": 3, "kills": 9, "items": 200, "deliveries": 200}
	case HotKey:
		return promise.Goals{"others": 20, "items": hotItems}
	case Ending:
		return promise.Goals{"stalls": 5, "items": 300, "deliveries": 300, "expiries": 5}
	}
	return Short
}
