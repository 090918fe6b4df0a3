// Package store has the runs of a store and its consumers: their clients, their faults, and a look
// at the store after all faults. The promises are in package check.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
)

const (
	database  = crew.Database
	stopGrace = time.Minute
	settle    = 2 * time.Minute // how long it may take until every consumer has caught up
)

// Options are the settings of a run. All of them but the command line's are drawn from the seed.
type Options struct {
	crew.Options
	Writers   int
	Readers   int
	Consumers int
	Handlers  int
	Faults    []string // names; none for all
	SQLite    bool
	FullDisk  bool // the server is on a disk in memory that fills up
	PgBouncer bool // between the proxies and the server
	Clock     bool // the server's can be set
	Failovers Failovers
	Replicas  Replicas
	Phases    []string      // names; none for the first
	Least     promise.Goals // how much is to be done

	Missing map[string]string // the faults that are impossible on this machine, by name, with the reasons

	Gap   time.Duration // the longest wait of the nemesis between two faults
	Life  int           // how often a client passes the failpoint that it dies at, at most; 0 for ever
	Stall time.Duration // how long no consumer may get on in the end; 0 for as long as they may take altogether
	Load  work.Load
}

// Draw fills in the options that depend only on the seed.
func (o *Options) Draw() {
	random := rand.New(rand.NewPCG(o.Seed, 0x0975))
	o.Gap = crew.Dice{Rand: random}.Between(time.Second, 4*time.Second)
	o.Load = work.Load{
		Goroutines: 6 + random.IntN(7),
		Categories: 2 + random.IntN(4),
		Streams:    20 + random.IntN(200),
		Skew:       1.1 + random.Float64(),
		MaxBytes:   messagestore.MaxMessageBytes,
		Pause:      1 + random.IntN(8),
		Mix:        work.Usual.Draw(random),
		Interval:   10 + random.IntN(90),
		Batch:      20 + random.IntN(180),
	}
	o.Life = 500 + random.IntN(1000)
	o.Load.Questions, o.Load.Lanes, o.Load.Connections, o.Load.Quiet = 1, 8, 4, 0.25
}

// Press draws a load that gets further in an hour, while the server is killed every second or two:
// fewer processes and connections, because each kill restarts them, and more goroutines in each,
// because their writes are grouped. Each consumer reads its own category.
func (o *Options) Press() {
	random := rand.New(rand.NewPCG(o.Seed, 0x10af))
	o.Life = 450 + random.IntN(150)
	o.Load.Goroutines = 40 + random.IntN(16)
	o.Load.Categories = o.Consumers
	o.Load.Streams = 100 + random.IntN(200)
	o.Load.Skew = 1.1 + random.Float64()/4
	o.Load.Pause = 2 + random.IntN(4)
	o.Load.Questions, o.Load.Lanes, o.Load.Connections, o.Load.Quiet = 5, 32, 2, 0.9
	o.Load.Mix, o.Load.Interval, o.Load.Batch = work.Usual, 50, 100
}

// Crowded sets the load of a run in which members come and go: little work for each, with many
// checkpoints.
func (o *Options) Crowded() {
	o.Life, o.Load.Goroutines, o.Load.Categories, o.Load.Streams, o.Load.Pause = 5000, 2, 1, 60, 20
	o.Load.MaxBytes, o.Load.Interval, o.Load.Batch, o.Load.Lanes = 16<<10, 20, 40, 6
}

// Faults returns the names of all faults, with the effect of each.
func Faults() []string {
	all := make([]string, len(faults))
	for i, f := range faults {
		all[i] = fmt.Sprintf("%-15s %s", f.name, f.says)
	}
	return all
}

// choose returns the faults with the names, or all that there are for the store.
func (o *Options) choose() ([]fault, error) {
	var chosen []fault
	for _, f := range faults {
		if slices.Contains(memberFaults, f.name) && !o.Replicas.Shares && !o.Replicas.InOrder {
			continue
		}
		if f.server && o.SQLite || f.name == diskFull && !o.FullDisk || f.name == killPgBouncer && !o.PgBouncer || f.name == clockJump && !o.Clock || o.Missing[f.name] != "" {
			continue
		}
		if len(o.Faults) == 0 || slices.Contains(o.Faults, f.name) {
			chosen = append(chosen, f)
		}
	}
	for _, name := range o.Faults {
		known := slices.ContainsFunc(faults, func(f fault) bool { return f.name == name })
		if !known && name != "none" {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
	}
	return chosen, nil
}

// A run is under way.
type run struct {
	*crew.Crew
	options Options

	logged  []string          // the errors of the former servers
	bouncer *server.PgBouncer // nil for none
	url     string            // of the store, past every proxy
	crowds  []*crowd
	memory  *sampler
	wanted  map[messagestore.Category]bool   // that consumers read
	effects map[string]messagestore.Category // the categories of consumers that have effects in the store, by name
	keyed   map[string]messagestore.Category // the categories of consumers that have one effect for each key
	parking map[string]messagestore.Category // the categories of consumers that park
	needs   []string                         // the clients, there all the time, whose handlers do nothing without the store
	turns   map[string]*sync.Mutex           // most faults are there once at a time
	rewinds int                              // how often a server took over that lacked messages which consumers may have read

	mu    sync.Mutex
	ready int // how often the server had been there by its last kill
}

// Run runs faults on a store, and leaves everything that its check needs. It returns the complaints
// about the run itself.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	chosen, err := o.choose()
	if err != nil {
		return nil, err
	}
	phases, err := o.phases(chosen)
	if err != nil {
		return nil, err
	}
	if o.Plant != nil && len(o.Plant.Go) > 0 && o.Program == "" {
		return nil, errors.New("the bug is in no program of the clients")
	}
	r := &run{
		options: o, memory: newSampler(), wanted: map[messagestore.Category]bool{}, effects: map[string]messagestore.Category{}, keyed: map[string]messagestore.Category{},
		parking: map[string]messagestore.Category{}, turns: map[string]*sync.Mutex{},
	}
	common := o.Options
	common.Goals = o.Least // of which the run tells how far it is
	return crew.Run(ctx, crew.Config{
		Options: common, Variable: work.Variable, Log: log, Promises: check.Promises, Look: r.watch, Password: work.Canary,
		Forgives: func(child *server.Child) bool { return o.Failovers.Lossy() > 0 && child.ExitCode() == work.ExitAhead },
	}, func(c *crew.Crew) (*crew.Scenario, error) {
		r.Crew = c
		if err := r.begin(ctx); err != nil {
			return nil, err
		}
		s := &crew.Scenario{Clients: r.clients(), Healed: r.heal, Left: r.left(), Drain: settle, Drained: r.rest, Dump: r.dump}
		if o.Failovers.Total() > 0 {
			s.Phases = []crew.Phase{{Name: "failovers", For: time.Hour, Beside: []func(context.Context, func()) error{r.failovers}}}
			return s, nil
		}
		for _, p := range phases {
			s.Phases = append(s.Phases, r.phase(p))
		}
		return s, nil
	})
}

func (r *run) begin(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	return r.startCrowds()
}

// open makes the store.
func (r *run) open(ctx context.Context) (err error) {
	if r.options.SQLite {
		r.url = "sqlite:" + filepath.Join(r.Dir, "soak.db")
		return nil
	}
	if r.options.FullDisk {
		if r.Disk, err = mountDisk(r.Dir); err != nil {
			return err
		}
	}
	config := &server.PostgresConfig{Clock: r.options.Clock && r.options.Missing[clockJump] == ""}
	if r.options.Failovers.Total() > 0 {
		config.Settings = []string{"wal_keep_size=1GB"} // until a standby that is made has it
	}
	if err := r.Serve(ctx, config, "create extension amcheck"); err != nil {
		return err
	}
	r.url = r.Postgres.URL(database)
	if err := r.Ask(ctx, func(conn *pgx.Conn) error { return keepRemoved(ctx, conn) }); err != nil {
		return err
	}
	if r.options.PgBouncer {
		r.bouncer, err = server.NewPgBouncer(ctx, r.Postgres, "pgbouncer")
	}
	return err
}

// watch updates the figures, and samples the memory of the clients.
func (r *run) watch(ctx context.Context) {
	r.memory.sample(r.Slots())
	if r.Postgres == nil {
		return
	}
	if n, err := r.messages(ctx); err == nil { // or else what is known stays
		_ = r.History.Exec(ctx, "insert or replace into progress values ('messages', ?)", n)
	}
}

// messages is how many there are in the table.
func (r *run) messages(ctx context.Context) (int64, error) {
	return r.Number(ctx, "select count(*) from dibs.messages")
}

// client returns a client of a role, with connections that have the faults of another role.
func (r *run) client(name string, role, of work.Role, change func(t *work.Task)) crew.Client {
	socket := ""
	switch {
	case r.bouncer != nil:
		socket = r.bouncer.Socket()
	case r.Postgres != nil:
		socket = r.Postgres.Socket()
	}
	return crew.Client{Name: name, Role: string(of), Socket: socket, Task: func(p crew.Place) any {
		t := &work.Task{
			Role: role, Process: p.Process, Before: p.Before, Seed: p.Seed, URL: p.URL, History: r.Out, Load: r.options.Load, Lease: lease,
			Rewinds: r.options.Failovers.Lossy() > 0, Alone: r.options.Failovers.Total() > 0,
		}
		if r.Postgres == nil {
			t.URL = r.url
		}
		if change != nil {
			change(t)
		}
		if r.options.Life > 0 {
			t.Death = p.Doom(role.Points(), 0, r.options.Life)
		}
		if t.Death.Point == work.Record || t.Death.Point == work.Recorded { // few are passed
			t.Death.Turn = 1 + t.Death.Turn/16
		}
		return t
	}}
}

// clients returns the clients of the beginning.
func (r *run) clients() (all []crew.Client) {
	for i := range r.options.Writers {
		all = append(all, r.client(fmt.Sprintf("writer-%d", i), work.Writer, work.Writer, nil))
	}
	for i := range r.options.Readers {
		all = append(all, r.client(fmt.Sprintf("reader-%d", i), work.Reader, work.Reader, nil))
	}
	for i := range r.options.Consumers {
		name, category, parks := fmt.Sprintf("consumer%d", i), work.Events(i%r.options.Load.Categories), i%3 == 2
		slot := fmt.Sprintf("consumer-%d", i)
		r.wanted[category] = true
		if parks {
			r.parking[name] = category
		} else {
			r.effects[name] = category
			r.needs = append(r.needs, slot)
		}
		all = append(all, r.client(slot, work.Consumer, work.Consumer, func(t *work.Task) { t.Consumer, t.Category, t.Parks = name, category, parks }))
	}
	for i := range min(r.options.Handlers, 2) { // one process for each identity
		name, category, inline := "orders", work.Orders, i == 1
		if inline {
			name, category = "payments", work.Payments
		}
		r.wanted[category], r.keyed[name] = true, category
		if !inline {
			r.wanted[work.CopiesOf(work.Task{Category: category, Consumer: name})] = true
		}
		r.needs = append(r.needs, name)
		all = append(all, r.client(name, work.Handler, work.Handler, func(t *work.Task) { t.Consumer, t.Category, t.Inline = name, category, inline }))
	}
	return all
}

// heal ends the rest of the faults. The writers resolve their writes.
func (r *run) heal(ctx context.Context) error {
	if r.Postgres != nil {
		if err := r.Ask(ctx, func(conn *pgx.Conn) error { return dropHalfIndexes(ctx, conn) }); err != nil {
			return err
		}
	}
	if r.bouncer != nil {
		if err := r.bouncer.Start(ctx); err != nil {
			return err
		}
	}
	for _, c := range r.crowds { // each group has a member
		if c.size() == 0 {
			if err := c.join(func(string) {}); err != nil {
				return err
			}
		}
	}
	r.Stop(stopGrace, string(work.Reader))
	r.Stop(2*stopGrace, string(work.Writer))
	return nil
}

// dropHalfIndexes drops the remains of a REINDEX CONCURRENTLY that was killed.
func dropHalfIndexes(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, "select indexrelid::regclass::text from pg_index where not indisvalid")
	if err != nil {
		return err
	}
	half, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, index := range half {
		_, dropped := conn.Exec(ctx, "drop index "+index)
		err = errors.Join(err, dropped)
	}
	return err
}

// store opens the store past every proxy.
func (r *run) store(ctx context.Context) (*messagestore.Store, error) {
	if path, ok := strings.CutPrefix(r.url, "sqlite:"); ok {
		driver, err := sqlite.Open(ctx, path, nil)
		if err != nil {
			return nil, err
		}
		return messagestore.New(driver, nil)
	}
	driver, err := postgres.Open(ctx, r.url, nil)
	if err != nil {
		return nil, err
	}
	return messagestore.New(driver, nil)
}

// left names the consumers that have work left. If none of them makes progress for long, it stops
// waiting.
func (r *run) left() func(ctx context.Context) (string, error) {
	before, moved := "", time.Now()
	return func(ctx context.Context) (behind string, err error) {
		store, err := r.store(ctx)
		if err != nil {
			return "", err
		}
		defer store.Close()
		for _, category := range slices.Sorted(maps.Keys(r.wanted)) {
			statuses, err := operate.Consumers(ctx, store, category)
			if err != nil {
				return "", err
			}
			behind += lag(category, statuses)
		}
		if behind != before {
			before, moved = behind, time.Now()
		} else if behind != "" && r.options.Stall > 0 && time.Since(moved) > r.options.Stall {
			return behind, crew.ErrStuck
		}
		return behind, nil
	}
}

func lag(category messagestore.Category, statuses []operate.Status) string {
	var b strings.Builder
	for _, s := range statuses {
		if s.Err != nil {
			fmt.Fprintf(&b, "%s of %s: %v; ", s.Name, category, s.Err)
		}
		if s.Lag > 0 || s.PositionErr != nil {
			fmt.Fprintf(&b, "%s of %s is %d behind, %v; ", s.Name, category, s.Lag, s.PositionErr)
		}
	}
	return b.String()
}

// rest looks at the memory of sessions while all clients are idle, and ends the clients.
func (r *run) rest(ctx context.Context) (err error) {
	if r.Postgres != nil {
		err = r.held(ctx)
	}
	r.Stop(stopGrace)
	return err
}

// Chosen returns the names of the faults from which the run could choose.
func (o *Options) Chosen() (names []string) {
	if o.Failovers.Total() > 0 {
		return o.Failovers.names()
	}
	chosen, _ := o.choose() // or else none
	phases, _ := o.phases(chosen)
	for _, f := range chosen {
		in := func(p phase) bool {
			return slices.ContainsFunc(p.faults, func(other fault) bool { return other.name == f.name })
		}
		if slices.ContainsFunc(phases, in) {
			names = append(names, f.name)
		}
	}
	return names
}
