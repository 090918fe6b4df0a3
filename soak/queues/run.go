package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
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
	crew     *crew.Crew
	postgres *server.Postgres
	recorder *recorder              // of the nemesis
	counted  atomic.Pointer[Counts] // so far
	busy     sync.RWMutex           // the server is killed under it
}

const (
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
	if r.postgres, err = server.NewPostgres(ctx, r.crew.Dir, "pg", nil); err != nil {
		return nil, err
	}
	if err := crew.NewDatabase(ctx, r.postgres, o.Plant, schema); err != nil {
		return nil, err
	}
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
	return r.crew.Complaints(), r.dump(ctx)
}

func (r *run) add(name string, inserts bool) error {
	return r.crew.Add(name, r.postgres.Socket(), inserts, func(process, url string, random *rand.Rand, healed bool) any {
		t := &task{Process: process, Seed: random.Uint64(), Dir: r.crew.Out, URL: url, Inserts: inserts, Workers: r.Workers, Hold: r.Hold, Open: r.Open}
		if !healed && !r.Open && !r.enough(kills) {
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
	if err := errors.Join(r.postgres.Start(ctx), r.postgres.Await(ctx)); err != nil {
		return err
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
	var orphans int
	err := r.ask(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			select count(*) from dibs.queue_open h
			where h.state in ('h', 'z') and not exists (select from dibs.queue_open b where b.position = h.after)`).Scan(&orphans)
	})
	return err == nil && orphans == 0
}

func (r *run) store(ctx context.Context) (*messagestore.Store, *queue.Queue, error) {
	driver, err := postgres.Open(ctx, r.postgres.URL(crew.Database), &postgres.Config{Logger: logger.Silent()})
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
	conn, err := pgx.Connect(ctx, r.postgres.URL(crew.Database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const (
		n   = "coalesce((data ->> 'n')::integer, 0)"
		due = "coalesce((metadata ->> 'dueAt')::bigint, 0)"
	)
	return errors.Join(
		crew.Dump[Message](ctx, conn, filepath.Join(r.crew.Out, messagesFile), `
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, false, false from dibs.messages where category = $1
			union all
			select global_position, stream_name, position, id::text, `+n+`, `+due+`, true, open from public.`+removed+`
			order by 1`, Category),
		crew.Dump[Row](ctx, conn, filepath.Join(r.crew.Out, openFile), `
			select position, version, state::text, failures::integer, coalesce(session, 0), coalesce(after, 0) from dibs.queue_open order by 1`),
		crew.Dump[Line](ctx, conn, filepath.Join(r.crew.Out, logFile), `
			select position, version, what::text, (extract(epoch from at) * 1000000)::bigint, coalesce(session, 0) from dibs.queue_log order by 1, 2`),
		crew.Dump[Effect](ctx, conn, filepath.Join(r.crew.Out, effectsFile), "select position, version from public."+effects+" order by 1, 2"),
		crew.Dump[Inserted](ctx, conn, filepath.Join(r.crew.Out, insertedFile), "select process, op, id from public."+inserted+" order by 1, 2, 3"),
		crew.Dump[Head](ctx, conn, filepath.Join(r.crew.Out, headFile), `
			select cursor, held, taken, finished, returned, buried from dibs.queue_heads order by version desc limit 1`),
	)
}
