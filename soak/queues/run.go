package queues

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/queue"
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
	Calm      bool          // the server is not killed
	Open      bool          // nor is anything else, and all is inserted in transactions that overlap
	Plant     *harness.Mutant
	Program   string // of the processes, "" for this one
	Out       string // the folder of the run, which is made
	Dir       string // where the server keeps its data
}

// A run is under way.
type run struct {
	Options
	log      zerolog.Logger
	dir      string // of the keeper
	postgres *server.Postgres
	recorder *recorder              // of the nemesis
	counted  atomic.Pointer[Counts] // so far
	answers  atomic.Int64           // of the server
	busy     sync.RWMutex           // the server is killed under it

	mu         sync.Mutex
	random     *rand.Rand // for the processes
	numbers    int
	healed     bool
	complaints []string
	slots      []*slot
}

const (
	database = "soak"
	effects  = "soak_effects"  // rows that handlers write with their completions
	inserted = "soak_inserted" // rows that callers write with the items that they stage
	removed  = "soak_removed"  // messages that were trimmed
	nemesis  = "nemesis"
)

// schema has what a run writes beside Dibs. Nothing is unique: the checker sees each row that was committed. The
// trigger looks at each message that is removed, and whether its item was open.
const schema = `
create table ` + effects + ` (position bigint not null, version integer not null);
create table ` + inserted + ` (process text not null, op bigint not null, id text not null);
create table ` + removed + ` (global_position bigint, position bigint, stream_name text, id uuid, data json, metadata json, open boolean);
create function soak_remember() returns trigger language plpgsql security definer as $$
declare
	q constant integer := (select x.id from dibs.queues x where x.name = '` + Category + `');
begin
	if old.category = '` + Category + `' then
		insert into public.` + removed + ` values (old.global_position, old.position, old.stream_name, old.id, old.data, old.metadata,
			old.global_position > coalesce((select x.cursor from dibs.queue_heads x where x.queue = q order by x.version desc limit 1), 0)
			or exists (select from dibs.queue_open x where x.queue = q and x.position = old.global_position and x.state <> 'z'));
	end if;
	return null;
end $$;
create trigger soak_remember after delete on dibs.messages for each row execute function soak_remember();
`

// Run has processes work on a queue while there are faults, and leaves all that [Check] needs. The result are
// complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, err
	}
	if o.Out, err = filepath.Abs(o.Out); err != nil {
		return nil, err
	}
	r := &run{Options: o, log: log, random: rand.New(rand.NewPCG(o.Seed, 0x9e0e))}
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
	defer func() { err = errors.Join(err, r.stopAll(r.slots)) }()
	for i := range o.Processes {
		if err := r.add(fmt.Sprintf("worker-%d", i), false, said); err != nil {
			return nil, err
		}
	}
	for i := range o.Inserters {
		if err := r.add(fmt.Sprintf("inserter-%d", i), true, said); err != nil {
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
	config := &server.PostgresConfig{}
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
	_, err = conn.Exec(ctx, schema)
	return err
}

// A slot is a place for a process. A killed process is replaced.
type slot struct {
	*run
	name    string
	inserts bool
	proxy   *pgproxy.Proxy
	rule    atomic.Pointer[pgproxy.Rule] // of a fault
	said    io.Writer
	over    chan struct{}

	mu       sync.Mutex
	child    *server.Child
	process  string
	stdin    io.WriteCloser
	stopping bool
}

func (r *run) add(name string, inserts bool, said io.Writer) error {
	proxy, err := pgproxy.New("unix", r.postgres.Socket())
	if err != nil {
		return err
	}
	s := &slot{run: r, name: name, inserts: inserts, proxy: proxy, said: said, over: make(chan struct{})}
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
		Process: fmt.Sprintf("%s-%d", s.name, r.numbers), Seed: r.random.Uint64(), Dir: r.Out, Inserts: s.inserts, Workers: r.Workers, Hold: r.Hold, Open: r.Open,
		URL: fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.proxy.Port(), database),
	}
	if !r.healed && !r.Open && !r.enough(kills) {
		points := workPoints
		if s.inserts {
			points = insertPoints
		}
		t.Point, t.Turn = points[r.random.IntN(len(points))], 3+turnOf(r.random, 100)
	}
	r.mu.Unlock()
	program := r.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	encoded, err := json.Marshal(t)
	if err != nil {
		return err
	}
	cmd := exec.Command(program) //nolint:noctx // the supervisor ends it
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GOGC=400", Variable+"="+string(encoded))
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
		s.run.mu.Lock()
		stopping = stopping || s.inserts && s.healed && err == nil
		s.run.mu.Unlock()
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

const stopGrace = 25 * time.Second

func (r *run) stopAll(slots []*slot) error {
	var all sync.WaitGroup
	errs := make([]error, len(slots))
	for i, s := range slots {
		all.Go(func() { errs[i] = s.stop(stopGrace) })
	}
	all.Wait()
	r.slots = nil
	return errors.Join(errs...)
}

// heal ends the faults, and waits until the workers have finished what there is. Only then they are told to end.
func (r *run) heal(ctx context.Context) error {
	if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
		return err
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
	store, q, err := r.store(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	if err := q.Resume(ctx); err != nil {
		return err
	}
	r.log.Info().Msg("no more faults: the workers finish what there is")
	if err := r.drain(ctx, q); err != nil {
		return err
	}
	return r.stopAll(r.slots)
}

// drain waits until nothing is left but what is dead, and held behind that.
func (r *run) drain(ctx context.Context, q *queue.Queue) error {
	call := r.recorder.begin(Record{Call: Drain})
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
		if !pause(limited, 100*time.Millisecond) {
			break
		}
	}
	r.recorder.end(call, a)
	return ctx.Err()
}

// behind reports whether what is held is behind a row.
func (r *run) behind(ctx context.Context) bool {
	var orphans int
	err := r.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			select count(*) from dibs.queue_open h
			where h.state in ('h', 'z') and not exists (select from dibs.queue_open b where b.position = h.after)`).Scan(&orphans)
	})
	return err == nil && orphans == 0
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *queue.Queue, error) {
	driver, err := postgres.Open(ctx, r.postgres.URL(database), &postgres.Config{Logger: logger.Silent()})
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

// dump writes down what is in the store.
func (r *run) dump(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, r.postgres.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const (
		n   = "coalesce((data ->> 'n')::integer, 0)"
		due = "coalesce((metadata ->> 'dueAt')::bigint, 0)"
	)
	return errors.Join(
		dump[Message](ctx, conn, filepath.Join(r.Out, messagesFile), `
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, false, false from dibs.messages where category = $1
			union all
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, true, open from public.`+removed+`
			order by 1`, Category),
		dump[Row](ctx, conn, filepath.Join(r.Out, openFile), `
			select position, version, state::text, failures::integer, coalesce(session, 0), coalesce(after, 0) from dibs.queue_open order by 1`),
		dump[Line](ctx, conn, filepath.Join(r.Out, logFile), `
			select position, version, what::text, (extract(epoch from at) * 1000000)::bigint, coalesce(session, 0) from dibs.queue_log order by 1, 2`),
		dump[Effect](ctx, conn, filepath.Join(r.Out, effectsFile), "select position, version from public."+effects+" order by 1, 2"),
		dump[Inserted](ctx, conn, filepath.Join(r.Out, insertedFile), "select process, op, id from public."+inserted+" order by 1, 2, 3"),
		dump[Head](ctx, conn, filepath.Join(r.Out, headFile), `
			select cursor, held, taken, finished, returned, buried from dibs.queue_heads order by version desc limit 1`),
	)
}

func dump[T any](ctx context.Context, conn *pgx.Conn, path, query string, args ...any) error {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return err
	}
	return writeLines(path, all)
}
