package intents

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/server"
)

// Options configure a run.
type Options struct {
	crew.Options
	Processes  int
	Goroutines int  // of each process
	Servers    int  // processes that serve the store, which the others call; 0 for none
	Clock      bool // the server's is moved, by up to an hour, and stands
	PgBouncer  bool // between the processes and the server, and is killed
	Calm       bool // there are no faults
	Silent     bool // the only faults: the server is sometimes out of reach for longer than a lease
	Long       bool // transactions take long, while others ask for their keys
	Failovers  Failovers
}

// A run is under way.
type run struct {
	Options
	*crew.Crew
	bouncer   *server.PgBouncer // nil for none
	addresses []string          // of processes that serve
	began     int64
	commits   chan struct{} // receives when a process is about to commit
}

// healer names the history of the harness's own requests.
const healer = "healer"

//go:embed promises/*.sql
var folder embed.FS

// Promises are the promises that a run is checked for.
var Promises = testkit.Must(fs.Sub(folder, "promises"))

// Run lets processes work on intents during faults, and leaves everything that [promise.Check]
// needs. It returns the complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	r := &run{Options: o, commits: make(chan struct{})}
	return crew.Run(ctx, crew.Config{
		Options: o.Options, Variable: Variable, Log: log, Promises: Promises,
		Look: func(ctx context.Context) { _ = r.copyMessages(ctx) }, Heard: r.hear, // while the server is down, what is known stays
	}, func(c *crew.Crew) (*crew.Scenario, error) {
		r.Crew, r.began = c, crew.Now()
		// Nothing is unique: the checker sees each row that was committed.
		err := r.Serve(ctx, &server.PostgresConfig{Clock: r.Clock}, "create table "+table+" (stream text not null, token bigint not null, result text not null)")
		if err == nil && r.PgBouncer {
			r.bouncer, err = server.NewPgBouncer(ctx, r.Postgres, "pgbouncer")
		}
		if err == nil {
			err = r.startResource()
		}
		if err == nil {
			r.addresses, err = crew.Addresses(r.Servers)
		}
		if err != nil {
			return nil, err
		}
		s := &crew.Scenario{Phases: []crew.Phase{r.phase()}, Healed: r.heal, Left: r.left, Drain: 2 * healTime, Drained: r.reserveAll, Dump: func(ctx context.Context) error {
			return errors.Join(r.History.Exec(ctx, "delete from messages"), r.copyMessages(ctx), // some may have been undone
				r.Copy(ctx, "rows", "select stream, token, result from "+table))
		}}
		if r.Clock { // a lease of an hour's time ends for those alone that wait
			s.Left = nil
		}
		for i, address := range r.addresses {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("%s-%d", crew.Dibs, i), crew.Dibs, address))
		}
		for i := range o.Processes {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("client-%d", i), holder, ""))
		}
		return s, nil
	})
}

// copyMessages copies the messages that the history has not.
func (r *run) copyMessages(ctx context.Context) error {
	last := int64(0)
	err := r.History.Each(ctx, "select coalesce(max(global), 0) from messages", func(scan func(...any) error) error { return scan(&last) })
	if err != nil {
		return err
	}
	return r.Copy(ctx, "messages", `
		select global_position, stream_name, position, type, (extract(epoch from "time") * 1000000)::bigint, data::text from dibs.messages
		where category = $1 and global_position > $2 and global_position <= dibs.readable($1) order by 1`, string(Category), last)
}

func (r *run) socket() string { return filepath.Join(r.Dir, resourceSocket) }

// startResource starts the resource, which ends with the run.
func (r *run) startResource() error {
	child, err := r.Start(&task{Task: crew.Task{Dir: r.Crew.Out}, Socket: r.socket()})
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := os.Stat(r.socket()); err == nil {
			return nil
		}
		if !child.Running() || time.Now().After(deadline) {
			child.Kill()
			return fmt.Errorf("the resource does not start: %w", child.Ended())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// holder is the role of processes that hold leases.
const holder = "holder"

func (r *run) client(name, role, address string) crew.Client {
	c := crew.Client{Name: name, Role: role, Socket: r.Postgres.Socket(), Task: func(p crew.Place) any {
		dooms := points
		if r.Calm || r.Silent || r.Enough("kills") {
			dooms = nil
		}
		return &task{Task: p.Task(dooms, 0, 15), Socket: r.socket(), Address: address, Began: r.began, Goroutines: r.Goroutines, Long: r.Long}
	}}
	switch {
	case r.Servers > 0 && role == holder:
		c.Servers = r.addresses
	case r.bouncer != nil:
		c.Socket = r.bouncer.Socket()
	}
	return c
}

// heal ends the processes, those who call a server first.
func (r *run) heal(ctx context.Context) error {
	if r.bouncer != nil {
		if err := r.bouncer.Start(ctx); err != nil {
			return err
		}
	}
	r.Stop(crew.Grace, holder)
	r.Stop(crew.Grace)
	return nil
}

// left returns the intents that are held.
func (r *run) left(ctx context.Context) (left string, err error) {
	store, intents, err := r.store(ctx)
	if err != nil {
		return "", err
	}
	defer store.Close()
	held, err := intents.List(ctx, intent.Filter{})
	if len(held) > 0 {
		left = fmt.Sprintf("%d are held", len(held))
	}
	return left, err
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *intent.Manager, error) {
	driver, err := r.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	store := testkit.Must(messagestore.New(driver, nil))
	intents, err := intent.New(store, Category, &intent.Config{TTL: ttl, Turn: turn, Name: healer, Logger: logger.Silent()})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, intents, nil
}

// mostHealed is how many of the last keys are tried in the end.
const mostHealed = 200

// reserveAll tries whether each of the last keys can be had, or is done.
func (r *run) reserveAll(ctx context.Context) error {
	store, intents, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	last := map[string]messagestore.GlobalPosition{}
	for m, err := range store.ReadCategory(ctx, Category, 0, messagestore.Filter{}) {
		if err != nil {
			return err
		}
		last[m.Stream.ID()] = m.GlobalPosition
	}
	names := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return int(last[b] - last[a]) })
	recorder, err := crew.NewRecorder[Record](r.Crew.Out, healer)
	if err != nil {
		return err
	}
	c := &client{task: &task{Task: crew.Task{Process: healer}, Goroutines: r.Processes * r.Goroutines}, recorder: recorder, intents: intents}
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

// The goals of a run, by the keys of figures.sql: of the full run, and of a run of a minute.
var (
	Issue = promise.Goals{
		"serverKills": 200, "kills": 1000, "stops": 300, "bouncerKills": 5, "jumps": 10, "freezes": 5, "syncFailovers": 5, "asyncFailovers": 5,
		"takeovers": 1000, "lateConfirms": 200, "lateWrites": 200, "reentrant": 100,
		"unknownReserves": 50, "unknownConfirms": 50, "unknownCommits": 50, "held": 500, "done": 500, "reused": 50, "turns": 100,
		"several": 100, "awaits": 100, "forced": 20, "work": 1000, "undone": 1, "above": 1,
	}
	Short = promise.Goals{
		"serverKills": 1, "kills": 3, "stops": 1, "takeovers": 5, "lateConfirms": 1, "lateWrites": 1, "reentrant": 1, "held": 10, "done": 10, "several": 1, "work": 10,
	}
)
