// Package harness runs the soak: servers, clients and a nemesis, and when all faults are
// over a look at the store.
package harness

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/server"
	"github.com/dibs-go/dibs/soak/work"
)

const (
	database  = "soak"
	stopGrace = time.Minute
	settle    = 2 * time.Minute // how long it may take until every consumer has caught up
	progress  = 5 * time.Second
)

// The names of the connections that the nemesis passes through proxies.
var roles = []work.Role{work.Writer, work.Consumer, work.Handler}

// Options are the settings of a run. All of them but the command line's are drawn from the seed.
type Options struct {
	Seed      uint64
	Duration  time.Duration
	Writers   int
	Readers   int
	Consumers int
	Handlers  int
	Faults    []string // names; none for all
	SQLite    bool
	FullDisk  bool // the server is on a disk in memory that fills up
	PgBouncer bool // between the proxies and the server
	Clock     bool // the server\'s can be set
	Failovers Failovers
	Replicas  Replicas
	Out       string   // the folder for histories, which is made
	Dir       string   // where the servers keep their data
	Phases    []string // names; none for the first
	Goals     *Goals   // the run is over when they are reached; nil for none

	Missing map[string]string // the faults that there cannot be here, by name, and why

	Gap   time.Duration // the longest wait of the nemesis between two faults
	Life  int           // how often a client passes the failpoint that it dies at, at most; 0 for ever
	Stall time.Duration // how long no consumer may get on in the end; 0 for as long as they may take altogether
	Load  work.Load

	Mutant  *Mutant // nil for none
	Program string  // of the clients: that which [Mutant.Build] returned, "" for this one
}

// Draw fills in the options that depend on the seed alone.
func (o *Options) Draw() {
	random := rand.New(rand.NewPCG(o.Seed, 0x0975))
	o.Gap = between(random, time.Second, 4*time.Second)
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

// Press draws a load that gets further in an hour, while the server is killed each second or
// two: fewer processes and connections, which each such kill starts again, and in each more
// goroutines, whose writes go in groups. The consumers read a category each.
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

// Crowded sets the load of a run in which members come and go: a little for each, with many checkpoints.
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

// A run is all that there is of one.
type run struct {
	options Options
	log     zerolog.Logger
	history *history.Writer

	postgres *server.Postgres  // the present server; nil for SQLite
	logged   []check.LogLine   // of the former servers
	bouncer  *server.PgBouncer // nil for none
	disk     string            // that fills up, "" for none
	up       sync.RWMutex      // held for writing while the server is down by our own doing
	url      string            // of the store, past every proxy
	proxies  map[work.Role]*proxy
	clients  *clients
	crowds   []*crowd
	memory   *sampler
	quiet    held                             // when all was done, and the clients were there
	wanted   map[messagestore.Category]bool   // that consumers read
	effects  map[string]messagestore.Category // the categories of consumers that have effects in the store, by name
	keyed    map[string]messagestore.Category // the categories of consumers that have one effect for each key
	parking  map[string]messagestore.Category // the categories of consumers that park

	// needStore are the clients, there all the time, whose handlers do nothing without the
	// store. A message that another handles after a kill may have been read before.
	needStore []string
}

// A proxy is between the clients of one role and the server.
type proxy struct {
	*pgproxy.Proxy
	turn sync.Mutex // of the faults
}

// A Result has the findings of a run, beside the histories that it left in
// [Options.Out].
type Result struct {
	Faults     map[string]int // how often there was each
	Done       map[string]int // how often each fault had its effect, of some
	Ends       map[string]int // how the clients ended
	Complaints []string       // of the harness: its own observations
	Quiet      time.Duration  // from the last fault until every consumer had caught up
	Recovery   Recovery
	Crashes    int   // of the server
	Messages   int64 // that there are
	MadeInHand int   // messages that were made of undone ones, by the consumer that had them in flight
	Facts      *check.Facts
}

// ClientKills is how many clients died at failpoints.
func (r *Result) ClientKills() int { return killedAtFailpoints(r.Ends) }

// Run does the soak until its duration is over or ctx is done, which is an error. Its
// processes have ended when it returns.
func Run(ctx context.Context, options Options, log zerolog.Logger) (result *Result, err error) {
	chosen, err := options.choose()
	if err != nil {
		return nil, err
	}
	phases, err := options.phases(chosen)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(options.Out, 0o755); err != nil {
		return nil, err
	}
	if options.Out, err = filepath.Abs(options.Out); err != nil {
		return nil, err
	}
	r := &run{
		options: options, log: log, proxies: map[work.Role]*proxy{}, memory: newSampler(), wanted: map[messagestore.Category]bool{}, effects: map[string]messagestore.Category{},
		keyed: map[string]messagestore.Category{}, parking: map[string]messagestore.Category{},
	}
	if r.history, err = history.Create(options.Out, "nemesis"); err != nil {
		return nil, err
	}
	keeper, err := server.NewKeeper(options.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.history.Close(), keeper.Close()) }()
	if err := r.open(ctx, keeper.Dir()); err != nil {
		return nil, err
	}
	defer func() {
		for _, p := range r.proxies {
			err = errors.Join(err, p.Close())
		}
	}()
	said, err := os.Create(filepath.Join(options.Out, "clients.log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, said.Close()) }()
	r.clients = newClients(keeper.Dir(), options.Seed, options.Life, log, said)
	r.clients.rewinds = options.Failovers.Lossy() > 0
	if options.Mutant != nil && len(options.Mutant.Go) > 0 && options.Program == "" {
		return nil, errors.New("the bug is in no program of the clients")
	}
	r.clients.program = options.Program
	defer r.clients.stopAll("", 0)
	if err := r.populate(); err != nil {
		return nil, err
	}
	nemesis := newNemesis(r, phases)
	if err := r.torment(ctx, nemesis); err != nil {
		return nil, err
	}
	result = &Result{Faults: nemesis.counts, Done: nemesis.done, Crashes: len(nemesis.crashes)}
	if err := r.heal(ctx, result); err != nil {
		return nil, err
	}
	result.Ends = r.clients.tally()
	result.Complaints = append(result.Complaints, r.clients.complaints()...)
	if err := r.look(ctx, result); err != nil {
		return nil, err
	}
	result.Recovery, err = recoveries(options.Out, nemesis.crashes, r.needStore)
	return result, err
}

// open makes the store, and the proxies to it.
func (r *run) open(ctx context.Context, dir string) error {
	if r.options.SQLite {
		r.url = "sqlite:" + filepath.Join(dir, "soak.db")
		return nil
	}
	var err error
	if r.options.FullDisk {
		if r.disk, err = mountDisk(dir); err != nil {
			return err
		}
		dir = r.disk
	}
	var planted Mutant
	if r.options.Mutant != nil {
		planted = *r.options.Mutant
	}
	config := &server.PostgresConfig{Settings: planted.Settings, Clock: r.options.Clock && r.options.Missing[clockJump] == ""}
	if r.options.Failovers.Total() > 0 {
		config.Settings = append(config.Settings, "wal_keep_size=1GB") // until a standby that is made has it
	}
	if r.postgres, err = server.NewPostgres(ctx, dir, "pg", config); err != nil {
		return err
	}
	r.url = r.postgres.URL(database)
	conn, err := r.postgres.NewDatabase(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "create extension amcheck"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, conn, nil); err != nil {
		return err
	}
	if err := keepRemoved(ctx, conn); err != nil {
		return err
	}
	if err := planted.Plant(ctx, conn); err != nil {
		return err
	}
	if len(planted.Settings) > 0 { // a server that loses committed messages does not lose its schema
		if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
			return err
		}
	}
	socket := r.postgres.Socket()
	if r.options.PgBouncer {
		if r.bouncer, err = server.NewPgBouncer(ctx, r.postgres, "pgbouncer"); err != nil {
			return err
		}
		socket = r.bouncer.Socket()
	}
	for _, role := range roles {
		p, err := pgproxy.New("unix", socket)
		if err != nil {
			return err
		}
		r.proxies[role] = &proxy{Proxy: p}
	}
	return nil
}

// task is the task of a client of a role, by way of the proxy of another if it has none.
func (r *run) task(role, by work.Role) work.Task {
	task := work.Task{Role: role, URL: r.url, History: r.options.Out, Load: r.options.Load, Rewinds: r.options.Failovers.Lossy() > 0, Lease: lease, Alone: r.options.Failovers.Total() > 0}
	if p := r.proxies[by]; p != nil {
		task.URL = fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/%s?sslmode=disable", work.Canary, p.Port(), database)
	}
	return task
}

// populate starts the clients.
func (r *run) populate() error {
	for i := range r.options.Writers {
		task := r.task(work.Writer, work.Writer)
		task.Name = fmt.Sprintf("writer-%d", i)
		if _, err := r.clients.add(task.Name, task); err != nil {
			return err
		}
	}
	for i := range r.options.Readers {
		task := r.task(work.Reader, work.Writer)
		task.Name = fmt.Sprintf("reader-%d", i)
		if _, err := r.clients.add(task.Name, task); err != nil {
			return err
		}
	}
	for i := range r.options.Consumers {
		task := r.task(work.Consumer, work.Consumer)
		task.Name, task.Consumer = fmt.Sprintf("consumer-%d", i), fmt.Sprintf("consumer%d", i)
		task.Category = work.Events(i % r.options.Load.Categories)
		task.Parks = i%3 == 2
		if task.Parks {
			r.parking[task.Consumer] = task.Category
		} else {
			r.needStore = append(r.needStore, task.Name)
			r.effects[task.Consumer] = task.Category
		}
		if _, err := r.clients.add(task.Name, task); err != nil {
			return err
		}
	}
	for i := range r.options.Handlers {
		task := r.task(work.Handler, work.Handler)
		task.Inline = i%2 == 1
		task.Category, task.Consumer = work.Orders, "orders"
		if task.Inline {
			task.Category, task.Consumer = work.Payments, "payments"
		}
		task.Name = task.Consumer
		if i > 1 {
			break // one process for each identity
		}
		r.keyed[task.Consumer] = task.Category
		r.needStore = append(r.needStore, task.Name)
		if _, err := r.clients.add(task.Name, task); err != nil {
			return err
		}
	}
	return r.startCrowds()
}

// torment has the nemesis do its work for the duration of the run, or until its goals are
// reached, or all failovers are done.
func (r *run) torment(ctx context.Context, n *nemesis) error {
	limited, cancel := context.WithTimeout(ctx, r.options.Duration)
	if r.options.Failovers.Total() > 0 {
		cancel()
		limited, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	var told sync.WaitGroup
	told.Go(func() {
		began := time.Now()
		for done := newTally(r.options.Out); wait(limited, progress); {
			r.memory.sample(r.clients)
			err := done.read()
			n.note(err)
			counts, crashes := n.count()
			r.log.Info().Stringer("after", time.Since(began).Round(time.Second)).Interface("faults", counts).Interface("ends", r.clients.tally()).
				Int64("history MB", size(r.options.Out)>>20).Int("operations", done.checked).Int("resolved", done.resolved).Int("lines", done.lines).Msg("running")
			if g := r.options.Goals; g != nil && g.reached(crashes, killedAtFailpoints(r.clients.tally()), done) && r.messages(limited) >= g.Messages {
				cancel()
			}
		}
	})
	err := n.torment(limited)
	cancel()
	told.Wait()
	return errors.Join(err, ctx.Err())
}

// messages is how many there are in the store, 0 if that is not known at the moment.
func (r *run) messages(ctx context.Context) (n int) {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return 0
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "select count(*) from dibs.messages").Scan(&n); err != nil {
		return 0
	}
	return n
}

// size is how much there is in a folder.
func size(dir string) (total int64) {
	entries, _ := os.ReadDir(dir) // of nothing there is nothing
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

// heal ends the rest of the faults and waits until every consumer has caught up.
func (r *run) heal(ctx context.Context, result *Result) error {
	op, err := r.history.Begin(&history.Event{Func: history.Heal})
	if err != nil {
		return err
	}
	began := time.Now()
	if r.postgres != nil {
		if err := r.postgres.Start(ctx); err != nil {
			return err
		}
		if err := errors.Join(r.postgres.Await(ctx), r.dropHalfIndexes(ctx)); err != nil {
			return err
		}
	}
	if r.bouncer != nil {
		if err := r.bouncer.Start(ctx); err != nil {
			return err
		}
	}
	r.clients.heal()
	if err := r.healCrowds(); err != nil {
		return err
	}
	r.log.Info().Msg("no more faults: the writers resolve their writes")
	for _, name := range r.clients.stopAll(work.Reader, stopGrace) {
		result.Complaints = append(result.Complaints, name+" does not end: a question has no answer")
	}
	for _, name := range r.clients.stopAll(work.Writer, 2*stopGrace) {
		result.Complaints = append(result.Complaints, name+" does not end: a write could not be resolved")
	}
	r.log.Info().Msg("the consumers catch up")
	behind, err := r.catchUp(ctx)
	if err != nil {
		return err
	}
	if behind == "" && r.postgres != nil {
		if r.quiet, err = r.held(ctx); err != nil {
			return err
		}
	}
	kind := history.OK
	if behind != "" {
		kind = history.Fail
		result.Complaints = append(result.Complaints, "after "+settle.String()+" "+behind)
	}
	result.Quiet = time.Since(began)
	if err := r.history.End(op, kind, &history.Event{Func: history.Heal, Note: behind}); err != nil {
		return err
	}
	for _, name := range r.clients.stopAll("", stopGrace) {
		result.Complaints = append(result.Complaints, name+" does not end when it is told to")
	}
	return nil
}

// dropHalfIndexes drops the remains of a REINDEX CONCURRENTLY that was killed.
func (r *run) dropHalfIndexes(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, r.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
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

// catchUp waits until no consumer has anything left to do, and names the unfinished ones if that
// takes too long.
func (r *run) catchUp(ctx context.Context) (behind string, err error) {
	store, err := r.store(ctx)
	if err != nil {
		return "", err
	}
	defer store.Close()
	for _, s := range r.clients.all("") {
		r.wanted[s.task.Category] = true
		if s.task.Role == work.Handler && !s.task.Inline {
			r.wanted[work.CopiesOf(s.task)] = true
		}
	}
	deadline, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	before, moved := "", time.Now()
	for told := time.Now(); ; {
		behind = ""
		for _, category := range slices.Sorted(maps.Keys(r.wanted)) {
			statuses, err := operate.Consumers(ctx, store, category)
			if err != nil {
				return "", err
			}
			behind += lag(category, statuses)
		}
		if behind == "" {
			return "", nil
		}
		if behind != before {
			before, moved = behind, time.Now()
		} else if r.options.Stall > 0 && time.Since(moved) > r.options.Stall {
			return behind, nil
		}
		if time.Since(told) > progress {
			told = time.Now()
			r.log.Info().Str("behind", behind).Msg("catching up")
		}
		if !wait(deadline, 100*time.Millisecond) {
			return behind, ctx.Err()
		}
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

// look writes down the contents of the store, and checks the database itself.
func (r *run) look(ctx context.Context, result *Result) error {
	store, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if result.Messages, err = r.writeRows(ctx, store); err != nil {
		return err
	}
	if r.postgres != nil {
		if there := r.messages(ctx); int64(there) != result.Messages {
			result.Complaints = append(result.Complaints, fmt.Sprintf("the categories have %d messages, and the table has %d", result.Messages, there))
		}
	}
	if result.Facts, err = r.facts(ctx, store); err != nil {
		return err
	}
	if r.postgres == nil {
		damage, err := damageOf(ctx, strings.TrimPrefix(r.url, "sqlite:"))
		result.Complaints = append(result.Complaints, damage...)
		return err
	}
	if r.options.Mutant == nil { // which may be in the schema
		complaints, err := asMigrated(ctx, r.url)
		if err != nil {
			return err
		}
		result.Complaints = append(result.Complaints, complaints...)
	}
	pool, err := pgxpool.New(ctx, r.url)
	if err != nil {
		return err
	}
	defer pool.Close()
	verification, err := must.New(admin.New(pool, nil)).Verify(ctx, &retention.VerifyConfig{Amcheck: true})
	if err != nil {
		return err
	}
	if r.options.Failovers.Lossy() > 0 {
		missing, err := r.missingEffects(ctx, pool)
		if err != nil {
			return err
		}
		result.Complaints = append(result.Complaints, missing...)
	}
	result.Complaints = append(result.Complaints, shown(result)...)
	for _, v := range verification.Violations {
		if r.options.Failovers.Lossy() > 0 && madeInHand(v) {
			result.MadeInHand++
			continue
		}
		result.Complaints = append(result.Complaints, "verify: "+v.String())
	}
	return nil
}

// damageOf returns the damage that SQLite itself finds in a file.
func damageOf(ctx context.Context, path string) (damage []string, err error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return nil, err
		}
		if line != "ok" {
			damage = append(damage, "integrity_check: "+line)
		}
	}
	return damage, rows.Err()
}

// Chosen returns the names of the faults that there were to choose from.
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
