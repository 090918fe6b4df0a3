package sagas

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/saga"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/server"
)

// Options configure a run.
type Options struct {
	crew.Options
	Runners   int  // processes
	Customers int  // in each of two processes
	Timers    int  // a second, of each of these
	Calm      bool // the server is not killed
	Quiet     bool // no fault falls
	Flood     bool // one saga has as many signals as it takes, and is cancelled
	Clock     bool // the server's clock jumps and is set right
}

// shops is how many processes of customers there are.
const shops = 2

// A run is under way.
type run struct {
	Options
	*crew.Crew
}

//go:embed promises/*.sql
var folder embed.FS

// Promises are the promises that a run is checked for.
var Promises = testkit.Must(fs.Sub(folder, "promises"))

// rowsTable has the rows that steps write in their transactions. Nothing is unique: the checker
// sees each.
const rowsTable = "soak_rows"

const tables = "create table " + rowsTable + " (saga text not null, step text not null, what text not null, process text not null)"

// Run lets processes run sagas, timers and a relay during faults, and leaves everything that
// [promise.Check] needs. It returns the complaints about the processes themselves.
func Run(ctx context.Context, o Options, log zerolog.Logger) (complaints []string, err error) {
	return crew.Run(ctx, crew.Config{
		Options: o.Options, Variable: Variable, Log: log, Promises: Promises,
	}, func(c *crew.Crew) (*crew.Scenario, error) {
		r := &run{o, c}
		if err := r.Serve(ctx, &server.PostgresConfig{Clock: o.Clock}, tables); err != nil {
			return nil, err
		}
		s := &crew.Scenario{Phases: []crew.Phase{r.faults()}, Left: r.left(), Drain: r.Drain, Dump: r.dump}
		for i := range o.Runners {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("runner-%d", i), runner, 0))
		}
		for i := range shops {
			s.Clients = append(s.Clients, r.client(fmt.Sprintf("customers-%d", i), shop, o.Customers))
		}
		return s, nil
	})
}

// The roles of processes.
const (
	runner = "runner"
	shop   = "shop"
)

func (r *run) client(name, role string, customers int) crew.Client {
	return crew.Client{Name: name, Role: role, Socket: r.Postgres.Socket(), Ends: role == shop, Task: func(p crew.Place) any {
		dooms := points
		if role == shop || r.Quiet || r.Enough("kills") {
			dooms = nil
		}
		return &task{Task: p.Task(dooms, 3, 400), Customers: customers, Timers: r.Timers, Flood: r.Flood && name == "customers-0"}
	}}
}

// verify runs the operator's own check for damage, to find damage that the rules do not check for.
// With a planted bug only the rules count.
func (r *run) verify(ctx context.Context) error {
	if r.Plant != nil {
		return nil
	}
	driver, err := r.Open(ctx)
	if err != nil {
		return err
	}
	defer driver.Close()
	found, err := testkit.Must(saga.NewOperator(testkit.Must(messagestore.New(driver, nil)), category, "soak")).Verify(ctx, nil)
	if err != nil {
		return err
	}
	for _, v := range found.Violations {
		r.Complain(fmt.Sprintf("Operator.Verify: %+v", v))
	}
	return nil
}

// The ends of sagas, by the types of their messages.
const ends = "('Completed', 'Compensated', 'Resolved')"

// leftQuery counts the sagas that have not ended, and the items of all queues that are left.
const leftQuery = `
	select (select count(*) from dibs.messages m where m.category = $1 and m.type = 'Started'
			and not exists (select from dibs.messages e where e.stream_name = m.stream_name and e.type in ` + ends + `)),
		(select count(*) from dibs.queue_open),
		(select count(*) from dibs.messages m join dibs.queues q on q.category = m.category
			where m.category <> $1 and m.global_position > coalesce((select h.cursor from dibs.queue_heads h where h.queue = q.id order by h.version desc limit 1), 0))`

// left returns the sagas that are left. A saga that has lost several turns with their processes
// waits for minutes, so an operator offers it again soon.
func (r *run) left() func(ctx context.Context) (string, error) {
	var retry time.Time
	return func(ctx context.Context) (left string, err error) {
		if retry.IsZero() {
			retry = time.Now().Add(r.Drain / 3)
		} else if time.Now().After(retry) {
			retry = time.Now().Add(r.Drain / 6)
			store, err := r.Open(ctx)
			if err != nil {
				return "", err
			}
			defer store.Close()
			if err := offer(ctx, store); err != nil {
				return "", err
			}
		}
		var open, items, beyond int
		err = r.Ask(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, leftQuery, string(category)).Scan(&open, &items, &beyond)
		})
		if open+items+beyond > 0 {
			left = fmt.Sprintf("%d sagas that have not ended, %d items that are open, %d that nobody has met", open, items, beyond)
		}
		return left, err
	}
}

// offer has failed items offered now.
func offer(ctx context.Context, d *postgres.Driver) error {
	queues, err := d.Queues(ctx)
	if err != nil {
		return err
	}
	for _, q := range queues {
		later, err := d.QueueItems(ctx, queuing.List{Queue: q.Queue, State: queuing.Later, Limit: 1000})
		if err != nil {
			return err
		}
		var failed []messagestore.GlobalPosition
		for _, item := range later {
			if item.Failures > 0 {
				failed = append(failed, item.Position)
			}
		}
		if len(failed) == 0 {
			continue
		}
		if _, err := d.QueueChange(ctx, queuing.Change{Queue: q.Queue, Action: queuing.RetryNow, Positions: failed, Reason: "no more faults"}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) dump(ctx context.Context) error {
	return errors.Join(
		r.verify(ctx),
		r.Copy(ctx, "messages", `
			select global_position, category, stream_name, position, id::text, type, (extract(epoch from "time") * 1000000)::bigint,
				case when category = $1 then data::text else '' end, coalesce((metadata ->> 'dueAt')::bigint, 0)
			from dibs.messages where category in ($1, $2, $3) order by 1`, string(category), string(posts), string(rings)),
		r.Copy(ctx, "turns", `
			select m.stream_name, l.what::text, (extract(epoch from l.at) * 1000000)::bigint
			from dibs.queue_log l join dibs.queues q on q.id = l.queue and q.category in ($1, $2) join dibs.messages m on m.global_position = l.position
			order by l.position, l.version`, string(category), string(rings)),
		r.Copy(ctx, "rows", "select saga, step, what, process from public."+rowsTable),
	)
}

// faults returns the faults for the time of the run, or until its goals are reached.
func (r *run) faults() crew.Phase {
	p := crew.Phase{Name: "faults", For: r.Duration, Until: r.Goals}
	if r.Quiet {
		return p
	}
	p.Faults = []crew.Fault{
		{Answers: 1500, Goal: "kills", Run: func(_ context.Context, random *rand.Rand) error {
			r.Any(random, runner).Kill()
			return nil
		}},
		{Answers: 3000, Goal: "stops", Run: func(ctx context.Context, random *rand.Rand) error { // for longer than its lease
			r.StopProcess(r.Any(random, runner), func(int64) { crew.Pause(ctx, crew.Dice{Rand: random}.Between(lease+lease/5, 3*lease+lease/5)) })
			return nil
		}},
		{Answers: 150, Goal: "cuts", Run: func(ctx context.Context, random *rand.Rand) error {
			r.CutOff(ctx, r.Any(random), random)
			return nil
		}},
	}
	if !r.Calm {
		p.Faults = append(p.Faults, crew.Fault{Answers: 8000, Goal: "serverKills", Run: func(ctx context.Context, random *rand.Rand) error { return r.KillServer(ctx, random, 6, lease) }})
	}
	if r.Clock {
		jump := func(ctx context.Context, random *rand.Rand) error { return r.JumpClock(ctx, random, lease, 4*lease) } // in which sagas go on
		p.Faults, p.Beside = append(p.Faults, crew.Fault{Answers: 1000, Goal: "jumps", Run: jump}), []func(context.Context, func()) error{r.Crashes}
	}
	return p
}

// The goals of a run, by the keys of figures.sql: of make ci/long, of a run of a minute, and of a
// run with a jumping clock.
var (
	Issue = promise.Goals{
		"serverKills": 20, "kills": 100, "stops": 30, "cuts": 1000, "sagas": 10_000, "completed": 3000, "compensated": 1000, "suspended": 200, "cancels": 300, "resumes": 100,
		"replies": 1000, "steps": 10_000, "undos": 1000, "timers": 100_000, "rung": 100_000, "letters": 5000, "refused": 500,
	}
	Short = promise.Goals{
		"serverKills": 1, "kills": 5, "stops": 2, "cuts": 30, "sagas": 200, "completed": 50, "compensated": 30, "suspended": 5, "cancels": 5, "resumes": 3,
		"replies": 20, "steps": 300, "undos": 30, "timers": 2000, "rung": 1000, "letters": 100, "refused": 20,
	}
	Jumpy = promise.Goals{"jumps": 5, "setBacks": 10, "kills": 5, "sagas": 100, "completed": 30, "steps": 200, "rung": 500, "letters": 50}
)
