package intents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/reservation/intent"
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
	log      zerolog.Logger
	dir      string // of the keeper
	postgres *server.Postgres
	bouncer  *server.PgBouncer // nil for none
	recorder *recorder         // of the nemesis
	began    int64
	counted  atomic.Pointer[Counts] // so far
	answers  atomic.Int64           // of the server
	commits  chan struct{}          // receives when a process is about to commit

	mu         sync.Mutex
	random     *rand.Rand // for the processes
	numbers    int
	healed     bool
	complaints []string
	slots      []*slot
}

// nemesis and healer name the histories of the harness.
const (
	nemesis = "nemesis"
	healer  = "healer"
)

// Run has processes work on intents while there are faults, and leaves all that [Check] needs. The result are
// complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, err
	}
	if o.Out, err = filepath.Abs(o.Out); err != nil {
		return nil, err
	}
	r := &run{Options: o, log: log, random: rand.New(rand.NewPCG(o.Seed, 0xc11e)), commits: make(chan struct{})}
	if r.recorder, err = newRecorder(o.Out, nemesis); err != nil {
		return nil, err
	}
	keeper, err := server.NewKeeper(o.Dir)
	if err != nil {
		return nil, err
	}
	r.dir = keeper.Dir()
	defer func() { err = errors.Join(err, r.recorder.Close(), keeper.Close()) }()
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	said, err := os.Create(filepath.Join(o.Out, "processes.log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, said.Close()) }()
	stopResource, err := r.startResource(said)
	if err != nil {
		return nil, err
	}
	defer stopResource()
	r.began = now()
	defer func() { err = errors.Join(err, r.stopAll()) }()
	for i := range o.Processes {
		if err := r.add(fmt.Sprintf("client-%d", i), said); err != nil {
			return nil, err
		}
	}
	if err := r.torment(ctx); err != nil {
		return nil, err
	}
	if err := r.heal(ctx); err != nil {
		return nil, err
	}
	return r.complaints, r.dump(ctx)
}

func (r *run) open(ctx context.Context) error {
	config := &server.PostgresConfig{Clock: r.Clock}
	if r.Plant != nil {
		config.Settings = r.Plant.Settings
	}
	var err error
	if r.postgres, err = server.NewPostgres(ctx, r.dir, "pg", config); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, r.postgres.URL("postgres"))
	if err != nil {
		return err
	}
	_, err = admin.Exec(ctx, "create database "+database)
	if err := errors.Join(err, admin.Close(ctx)); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.postgres.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Up(ctx, conn, nil); err != nil {
		return err
	}
	if r.Plant != nil {
		if err := r.Plant.Plant(ctx, conn); err != nil {
			return err
		}
	}
	// Nothing is unique: the checker sees each row that was committed.
	if _, err = conn.Exec(ctx, "create table "+table+" (stream text not null, token bigint not null, result text not null)"); err != nil {
		return err
	}
	if r.PgBouncer {
		r.bouncer, err = server.NewPgBouncer(ctx, r.postgres, "pgbouncer")
	}
	return err
}

// program returns a command that runs a process of this run.
func (r *run) command(t task) (*exec.Cmd, error) {
	program := r.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	encoded, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:noctx // the supervisor ends it
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GOGC=400", Variable+"="+string(encoded))
	return cmd, nil
}

func (r *run) socket() string { return filepath.Join(r.dir, resourceSocket) }

func (r *run) startResource(said io.Writer) (stop func(), err error) {
	cmd, err := r.command(task{Dir: r.Out, Socket: r.socket()})
	if err != nil {
		return nil, err
	}
	child, err := server.StartChild(cmd, said)
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

// A slot is a place for a process. A killed process is replaced.
type slot struct {
	*run
	name  string
	proxy *pgproxy.Proxy
	rule  atomic.Pointer[pgproxy.Rule] // of a fault
	said  io.Writer
	over  chan struct{}

	mu       sync.Mutex
	child    *server.Child
	process  string
	stdin    io.WriteCloser
	stopping bool
}

func (r *run) add(name string, said io.Writer) error {
	socket := r.postgres.Socket()
	if r.bouncer != nil {
		socket = r.bouncer.Socket()
	}
	proxy, err := pgproxy.New("unix", socket)
	if err != nil {
		return err
	}
	s := &slot{run: r, name: name, proxy: proxy, said: said, over: make(chan struct{})}
	proxy.SetRule(s.ask)
	if err := s.start(); err != nil {
		return errors.Join(err, proxy.Close())
	}
	r.slots = append(r.slots, s)
	go s.supervise()
	return nil
}

func (s *slot) start() error {
	r := s.run
	r.mu.Lock()
	r.numbers++
	t := task{
		Process: fmt.Sprintf("%s-%d", s.name, r.numbers), Seed: r.random.Uint64(), Dir: r.Out, Socket: r.socket(), Began: r.began,
		Goroutines: r.Goroutines, Long: r.Long, URL: fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.proxy.Port(), database),
	}
	if !r.healed && !r.Calm && !r.Silent && !r.enough(kills) {
		t.Point, t.Turn = points[r.random.IntN(len(points))], turnOf(r.random, 15)
	}
	r.mu.Unlock()
	cmd, err := r.command(t)
	if err != nil {
		return err
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	child, err := server.StartChild(cmd, s.said)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child, s.process, s.stdin = child, t.Process, stdin
	if s.stopping {
		return stdin.Close()
	}
	return nil
}

func (s *slot) supervise() {
	defer close(s.over)
	for {
		s.mu.Lock()
		child, process := s.child, s.process
		s.mu.Unlock()
		err := child.Ended()
		if child.Killed() {
			s.recorder.begin(Record{Call: Kill, Target: process})
		} else if err != nil {
			s.complain(fmt.Sprintf("%s: %v", process, err))
		}
		s.mu.Lock()
		stopping := s.stopping
		s.mu.Unlock()
		if stopping {
			return
		}
		if err == nil {
			s.complain(process + " ended without being told to")
		}
		if err := s.start(); err != nil {
			s.complain(fmt.Sprintf("%s cannot be started again: %v", s.name, err))
			return
		}
	}
}

func (r *run) complain(about string) {
	r.log.Warn().Msg(about)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complaints = append(r.complaints, about)
}

// stop tells the process to end. It has so long before it is killed.
func (s *slot) stop(grace time.Duration) error {
	s.mu.Lock()
	s.stopping = true
	_ = s.stdin.Close() // it may have ended
	s.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-s.over:
	case <-timer.C:
		s.complain(s.name + " does not end when it is told to")
		s.mu.Lock()
		s.child.Kill()
		s.mu.Unlock()
		<-s.over
	}
	return s.proxy.Close()
}

const stopGrace = 20 * time.Second

func (r *run) stopAll() error {
	var all sync.WaitGroup
	errs := make([]error, len(r.slots))
	for i, s := range r.slots {
		all.Go(func() { errs[i] = s.stop(stopGrace) })
	}
	all.Wait()
	r.slots = nil
	return errors.Join(errs...)
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
	r.mu.Lock()
	r.healed = true
	r.mu.Unlock()
	for _, s := range r.slots {
		s.mu.Lock()
		s.child.Signal(syscall.SIGCONT)
		_, _ = s.stdin.Write([]byte("\n")) // it may have ended
		s.mu.Unlock()
		s.rule.Store(nil)
		s.proxy.Release()
	}
	r.log.Info().Msg("no more faults: the processes end")
	if err := r.stopAll(); err != nil {
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
	heal := r.recorder.begin(Record{Call: Heal})
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
		if len(held) == 0 || !pause(limited, 50*time.Millisecond) {
			break
		}
	}
	r.recorder.end(heal, answer)
	return nil
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *intent.Manager, error) {
	driver, err := postgres.Open(ctx, r.postgres.URL(database), nil)
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
	recorder, err := newRecorder(r.Out, healer)
	if err != nil {
		return err
	}
	c := &client{task: task{Process: healer, Goroutines: r.Processes * r.Goroutines}, recorder: recorder, intents: intents}
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
func (t task) line() time.Duration { return time.Duration(t.Goroutines) * turn }

// reserveOne asks with either content, and releases.
func (h *hand) reserveOne(ctx context.Context, key string) {
	for i, other := range []bool{false, true} {
		j := &job{hand: h, other: other}
		j.request = intent.Request{Key: key, Session: fmt.Sprintf("%s/%s-%d", healer, key, i), Wait: healTime + h.task.line(), Content: contentOf(other)}
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
	err = writeLines(filepath.Join(r.Out, messagesFile), func(write func(any) error) error {
		for m, err := range store.ReadCategory(ctx, Category, 0, messagestore.Filter{}) {
			if err != nil {
				return err
			}
			if err := write(message(m)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, r.postgres.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, "select stream, token, result from "+table)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		return err
	}
	return writeLines(filepath.Join(r.Out, rowsFile), func(write func(any) error) error {
		for _, row := range all {
			if err := write(row); err != nil {
				return err
			}
		}
		return nil
	})
}

func writeLines(path string, f func(write func(any) error) error) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	encoder := json.NewEncoder(file)
	return f(encoder.Encode)
}
