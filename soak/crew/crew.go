package crew

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/dibs-go/dibs/internal/testserver"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/plant"
	"github.com/dibs-go/dibs/soak/promise"
	"github.com/dibs-go/dibs/soak/server"
)

// Options are the options of every run.
type Options struct {
	Seed     uint64
	Duration time.Duration // of the faults, at most
	Drain    time.Duration // in which all is to be finished afterwards
	Goals    promise.Goals // with which the faults end earlier; nil for none
	Plant    *plant.Mutant // nil for none
	Program  string        // of the processes, "" for this one
	Out      string        // the folder of the run, which is made
	Dir      string        // where the server keeps its data
}

// Config describes a kind of run.
type Config struct {
	Options
	Variable string // of the environment, for the task of a process
	Log      zerolog.Logger

	Promises fs.FS                      // of the scenario
	Look     func(ctx context.Context)  // asks the store, for as long as ctx lasts, for what figures need; nil for nothing
	Heard    func(m testserver.Message) // is called with all that goes between processes and server; nil for nothing

	Password string                         // of processes, for the server, which takes any
	Forgives func(child *server.Child) bool // an end that is no failure; nil for none
}

// A Crew has the processes that are killed and replaced, their server, and the nemesis of both. It
// is safe for concurrent use, except Serve and Close.
type Crew struct {
	Config
	Dir      string // of files that are removed at the end of the run
	Disk     string // the folder of the server, "" for Dir
	History  *promise.History
	Nemesis  *Recorder[Event, *Event]
	Postgres *server.Postgres // by [Crew.Serve]
	Busy     sync.RWMutex     // is held while the server is killed

	keeper     *server.Keeper
	said       *os.File     // by processes
	answers    atomic.Int64 // of the server
	counted    atomic.Pointer[promise.Figures]
	serverless atomic.Bool
	clock      bool // of the server, which is set

	mu         sync.Mutex
	random     *rand.Rand
	slots      []*Slot
	numbers    int
	healed     bool
	complaints []string
	others     []*server.Child // by [Crew.Start]
	lasted     []string        // processes that ended as they should after the faults were over
}

// New begins the folder of a run, and its history. The caller closes the crew.
func New(ctx context.Context, c Config) (crew *Crew, err error) {
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return nil, err
	}
	if c.Out, err = filepath.Abs(c.Out); err != nil {
		return nil, err
	}
	crew = &Crew{Config: c, random: rand.New(rand.NewPCG(c.Seed, 0xc11e))}
	if crew.keeper, err = server.NewKeeper(c.Dir); err != nil {
		return nil, err
	}
	crew.Dir = crew.keeper.Dir()
	if crew.said, err = os.Create(filepath.Join(c.Out, "processes.log")); err == nil {
		if crew.Nemesis, err = NewRecorder[Event](c.Out, "nemesis"); err == nil {
			crew.History, err = promise.Open(ctx, c.Out, c.Promises)
		}
	}
	if err != nil {
		return nil, errors.Join(err, crew.keeper.Close())
	}
	return crew, nil
}

// Close ends the processes, and removes everything that lives only as long as the run.
func (c *Crew) Close() error {
	c.Stop(0)
	for _, child := range c.others {
		child.Kill()
	}
	return errors.Join(c.Nemesis.Close(), c.History.Close(), c.said.Close(), c.keeper.Close())
}

// Database is the name of a run's database.
const Database = "soak"

// Serve starts the server of a run, with a database that has the bug of the run, and extra tables.
func (c *Crew) Serve(ctx context.Context, config *server.PostgresConfig, tables string) (err error) {
	c.clock = config.Clock
	if c.Plant != nil {
		config.Settings = append(config.Settings, c.Plant.Settings...)
	}
	if c.Postgres, err = server.NewPostgres(ctx, cmp.Or(c.Disk, c.Dir), "pg", config); err != nil {
		return err
	}
	conn, err := c.Postgres.NewDatabase(ctx, Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Up(ctx, conn, nil); err != nil {
		return err
	}
	if _, err = conn.Exec(ctx, tables); err == nil && c.Plant != nil {
		err = c.Plant.Plant(ctx, conn)
	}
	if err == nil && c.Plant != nil { // a server that loses committed messages does not lose its schema
		_, err = conn.Exec(ctx, "checkpoint")
	}
	return err
}

// Open connects to the store, on a connection that only faults of the server affect. The caller
// closes it.
func (c *Crew) Open(ctx context.Context) (*postgres.Driver, error) {
	return postgres.Open(ctx, c.Postgres.URL(Database), &postgres.Config{Logger: logger.Silent()})
}

// Ask calls f with a connection to the database.
func (c *Crew) Ask(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.Postgres.URL(Database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(conn)
}

// Number returns the number that a query of the database returns.
func (c *Crew) Number(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = c.Ask(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, query, args...).Scan(&n) })
	return n, err
}

// Copy fills a table of the history with the result of a query of the database.
func (c *Crew) Copy(ctx context.Context, table, query string, args ...any) error {
	return c.Ask(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query, args...)
		if err != nil {
			return fmt.Errorf("copy %s: %w", table, err)
		}
		defer rows.Close()
		return errors.Join(c.History.Fill(ctx, table, rows), rows.Err())
	})
}

// Rest ends the faults of the server: after it the server is up, and its clock stays right.
func (c *Crew) Rest(ctx context.Context) error {
	if c.clock {
		up := c.Crashed()
		err := c.Postgres.RealClock(ctx)
		up()
		if err != nil {
			return err
		}
	}
	return errors.Join(c.Postgres.Start(ctx), c.Postgres.Await(ctx))
}

// Start starts a process without a slot, which ends with the run.
func (c *Crew) Start(task any) (*server.Child, error) {
	child, in, err := c.start(task)
	if err != nil {
		return nil, err
	}
	c.others = append(c.others, child)
	return child, in.Close()
}

func (c *Crew) start(task any) (*server.Child, io.WriteCloser, error) {
	program := c.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, nil, err
		}
	}
	encoded, err := json.Marshal(task)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(program) //nolint:noctx // the supervisor ends it
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), "GOGC=400", c.Variable+"="+string(encoded))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	child, err := server.StartChild(cmd, c.said)
	return child, stdin, err
}

// Complain records that something is wrong with the run itself.
func (c *Crew) Complain(about string) {
	c.Log.Warn().Msg(about)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complaints = append(c.complaints, about)
}

// Complaints returns the complaints about the run itself.
func (c *Crew) Complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.complaints)
}

// Survivors returns the processes that were alive when the faults were over, and ended as they
// should.
func (c *Crew) Survivors() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lasted)
}

// Answers returns how often the server has answered or, without a server, roughly how many records
// there are.
func (c *Crew) Answers() int64 {
	if !c.serverless.Load() {
		return c.answers.Load()
	}
	const record = 200 // bytes, about
	paths, _ := filepath.Glob(filepath.Join(c.Out, "*"+promise.Ending))
	n := int64(0)
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			n += info.Size()
		}
	}
	return n / record
}

// AwaitAnswers waits until there are this many answers, but not for ever, because the server may be
// down. It returns false if ctx has ended.
func (c *Crew) AwaitAnswers(ctx context.Context, answers int64) bool {
	const most = 10 * time.Second
	every := 2 * time.Millisecond
	if c.serverless.Load() {
		every = 50 * time.Millisecond // to look at files takes longer
	}
	for deadline := time.Now().Add(most); c.Answers() < answers && time.Now().Before(deadline); {
		if !Pause(ctx, every) {
			return false
		}
	}
	return ctx.Err() == nil
}

// Heal tells the processes that the faults are over.
func (c *Crew) Heal() {
	c.mu.Lock()
	c.healed = true
	c.mu.Unlock()
	for _, s := range c.Slots() {
		s.mu.Lock()
		s.child.Signal(syscall.SIGCONT)
		_, _ = s.stdin.Write([]byte("\n")) // it may have ended
		s.mu.Unlock()
		s.rule.Store(nil)
		if s.proxy != nil {
			s.proxy.Release()
		}
	}
}
