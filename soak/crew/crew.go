package crew

import (
	"context"
	"encoding/json"
	"errors"
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

	"github.com/dibs-go/dibs/internal/pgproxy"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/harness"
	"github.com/dibs-go/dibs/soak/server"
)

// Config says what a crew is of.
type Config struct {
	Program  string // of the processes, "" for this one
	Variable string // of the environment, for their task
	Seed     uint64
	Out      string // the folder of the run, which is made
	Base     string // the folder in which one is made for what ends with the run
	Log      zerolog.Logger

	Killed func(process string)    // is called when a process was killed, by the nemesis or itself
	Heard  func(m pgproxy.Message) // is called with all that goes between processes and server; nil for nothing
}

// A Crew is processes that are killed and replaced. It is safe for concurrent use, but for Add, Stop and Close.
type Crew struct {
	Config
	Dir   string  // has what ends with the run
	Slots []*Slot // by [Crew.Add]

	keeper     *server.Keeper
	said       *os.File     // by processes
	answers    atomic.Int64 // of the server
	serverless bool

	mu         sync.Mutex
	random     *rand.Rand
	numbers    int
	healed     bool
	complaints []string
}

// New makes the folders of a run. Its caller closes the crew.
func New(c Config) (*Crew, error) {
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return nil, err
	}
	var err error
	if c.Out, err = filepath.Abs(c.Out); err != nil {
		return nil, err
	}
	crew := &Crew{Config: c, random: rand.New(rand.NewPCG(c.Seed, 0xc11e))}
	if crew.keeper, err = server.NewKeeper(c.Base); err != nil {
		return nil, err
	}
	crew.Dir = crew.keeper.Dir()
	if crew.said, err = os.Create(filepath.Join(c.Out, "processes.log")); err != nil {
		return nil, errors.Join(err, crew.keeper.Close())
	}
	return crew, nil
}

// Close ends the processes, and removes what ends with the run.
func (c *Crew) Close() error {
	return errors.Join(c.Stop(), c.said.Close(), c.keeper.Close())
}

// Database is the name of a run's database.
const Database = "soak"

// NewDatabase makes the database of a run, with a bug unless plant is nil, and with tables that are not of Dibs.
func NewDatabase(ctx context.Context, p *server.Postgres, plant *harness.Mutant, tables string) error {
	conn, err := p.NewDatabase(ctx, Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrations.Up(ctx, conn, nil); err != nil {
		return err
	}
	if plant != nil {
		if err := plant.Plant(ctx, conn); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, tables)
	return err
}

// Dump writes the rows of a query down.
func Dump[T any](ctx context.Context, conn *pgx.Conn, path, query string, args ...any) error {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return err
	}
	return WriteLines(path, all)
}

// Start starts a process that no slot is for.
func (c *Crew) Start(task any) (*server.Child, error) {
	child, in, err := c.start(task)
	if err != nil {
		return nil, err
	}
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

// Complain takes in that something is wrong with the run itself.
func (c *Crew) Complain(about string) {
	c.Log.Warn().Msg(about)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complaints = append(c.complaints, about)
}

// Complaints are about the run itself.
func (c *Crew) Complaints() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.complaints
}

// Answers is how often the server has answered, and without one how many records there are, about.
func (c *Crew) Answers() int64 {
	if !c.serverless {
		return c.answers.Load()
	}
	const record = 200 // bytes, about
	paths, _ := filepath.Glob(filepath.Join(c.Out, "*"+Ending))
	n := int64(0)
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			n += info.Size()
		}
	}
	return n / record
}

// AwaitAnswers waits until there are so many answers, but not for ever: the server may be down, or nothing goes on. It
// reports whether ctx did not end.
func (c *Crew) AwaitAnswers(ctx context.Context, answers int64) bool {
	const most = 10 * time.Second
	every := 2 * time.Millisecond
	if c.serverless {
		every = 50 * time.Millisecond // to look at files takes longer
	}
	for deadline := time.Now().Add(most); c.Answers() < answers && time.Now().Before(deadline); {
		if !Pause(ctx, every) {
			return false
		}
	}
	return ctx.Err() == nil
}

// Together calls all functions at once, until the duration is over, one of them fails, or one calls end. A function
// ends when its context does.
func Together(ctx context.Context, d time.Duration, all ...func(ctx context.Context, end func()) error) error {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, len(all))
	for i, f := range all {
		group.Go(func() {
			if errs[i] = f(limited, cancel); errs[i] != nil {
				cancel()
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// Heal tells the processes that there are no more faults.
func (c *Crew) Heal() {
	c.mu.Lock()
	c.healed = true
	c.mu.Unlock()
	for _, s := range c.Slots {
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

// Stop ends the processes.
func (c *Crew) Stop() error {
	var all sync.WaitGroup
	errs := make([]error, len(c.Slots))
	for i, s := range c.Slots {
		all.Go(func() { errs[i] = s.stop() })
	}
	all.Wait()
	c.Slots = nil
	return errors.Join(errs...)
}
