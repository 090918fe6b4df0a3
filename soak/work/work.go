// Package work has the clients of the soak, each in its own process, which may be killed at any
// moment: writers, readers, consumers with effects, and handlers of reservations. Each keeps a
// history: see package history.
package work

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
)

// Variable is set in the environment of a client: its [Task], as JSON.
const Variable = "DIBS_SOAK_CLIENT"

// ExitAhead is the exit status of a consumer that has found that the store has lost messages. When
// it is started again, it goes on from its position in the store.
const ExitAhead = 4

// A Role is a kind of client.
type Role string

// The roles.
const (
	Writer   Role = "writer"
	Reader   Role = "reader"
	Consumer Role = "consumer"
	Handler  Role = "handler"
	Opposed  Role = "opposed" // a writer whose transactions deadlock
)

// A Task is the work of a client, until its standard input ends. After something is written to its
// input, the client does not die at failpoints any longer.
type Task struct {
	Role    Role
	Process string // its name, which ends in a number; no other process has this name or number
	Before  string // the name of the process that was in the slot before, "" if none was
	Seed    uint64
	URL     string // of the store: postgres://... or sqlite:...
	History string // the folder
	Load    Load
	Death   crew.Death // at a failpoint; none for the zero value

	// For consumers and handlers.
	Consumer string
	Category messagestore.Category
	Alone    bool // no other process joins its group, and a failover may undo the states of that
	Lease    time.Duration
	InOrder  bool // the whole category, so that the others stand by
	Parks    bool // its handler parks some messages, and its effects do not depend on the order
	Inline   bool // reserves by Inline, and else by Copy
	Rewinds  bool // the store may go back
}

// Load is the load on the store, the same for all clients of a run.
type Load struct {
	Goroutines  int     // of each writer
	Questions   int     // that a reader asks at once, each on a connection of its own
	Lanes       int     // of each consumer, at most
	Connections int32   // of each other client; each kill of the server makes them connect again
	Quiet       float64 // of all processes: they neither listen nor notify
	Categories  int     // of events
	Streams     int     // of each category
	Skew        float64 // of Zipf's law, above 1
	MaxBytes    int     // of a message
	Pause       int     // about how many milliseconds a goroutine waits between two writes
	Mix         Mix     // how often writers make each kind of call
	Interval    int     // of messages, after which a consumer checkpoints
	Batch       int     // of messages that it reads at once
}

// A Mix has the relative frequency of each kind of call by writers.
type Mix struct{ Ask, Read, Send, Repeat, ReuseID, Streams, Tx, Write int }

// Usual is the mix around which other mixes are drawn.
var Usual = Mix{Ask: 20, Read: 5, Send: 8, Repeat: 3, ReuseID: 1, Streams: 3, Tx: 13, Write: 47}

// Draw returns a mix in which each kind has between half and twice its usual part.
func (m Mix) Draw(random *rand.Rand) Mix {
	for _, part := range []*int{&m.Ask, &m.Read, &m.Send, &m.Repeat, &m.ReuseID, &m.Streams, &m.Tx, &m.Write} {
		*part *= 50 + random.IntN(151)
	}
	return m
}

// number returns the number of the process.
func (t Task) number() uint64 {
	n, _ := strconv.ParseUint(t.Process[strings.LastIndexByte(t.Process, '-')+1:], 10, 64) // as it was made
	return n
}

// A client is this process.
type client struct {
	task    Task
	history journal
	store   *recorder
	pool    *pgxpool.Pool // nil on SQLite
	gate    *gate         // nil on SQLite
	doom    *crew.Doom
	log     zerolog.Logger
	behind  *atomic.Bool // a consumer has much left to do
}

// RunClient does the work of a client, if this process is a client, and then exits. Call it first
// in main, and in the TestMain of a package with tests that start clients.
func RunClient() {
	crew.RunProcess(Variable, func(task Task) error {
		err := run(task)
		if errors.Is(err, consumer.ErrPositionAhead) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(ExitAhead) //nolint:forbidigo // it is main's, here
		}
		return err
	})
}

func run(task Task) error {
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var healed atomic.Bool
	death := &crew.Doom{Death: task.Death}
	go crew.Listen(func() {
		healed.Store(true)
		death.Lift()
	}, cancel)
	w, err := crew.NewRecorder[history.Event](task.History, task.Process)
	if err != nil {
		return err
	}
	c := &client{task: task, history: journal{w}, doom: death, behind: &atomic.Bool{}}
	if err := c.open(ctx); err != nil {
		return err
	}
	work := map[Role]func(context.Context) error{Writer: c.write, Reader: c.look, Consumer: c.consume, Handler: c.handle, Opposed: c.oppose}[task.Role]
	if work == nil {
		return fmt.Errorf("there is no role %q", task.Role)
	}
	err = work(ctx)
	call, end := c.history.begin(&history.Event{Call: history.End}), &history.Event{}
	if healed.Load() {
		usable := c.usable()
		end.Usable = &usable
	}
	err = errors.Join(err, c.close())
	if ctx.Err() != nil {
		end.Left = left(before)
		c.history.end(call, history.OK, end)
	}
	return errors.Join(err, w.Close())
}

// left waits for a moment until no more goroutines are left than there were before, and returns how
// many there are more.
func left(before int) int {
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(deadline); {
		<-time.After(10 * time.Millisecond)
	}
	return max(0, runtime.NumGoroutine()-before)
}

// Probes is the category for testing, at the end, whether the store works: it is not part of the
// history.
const Probes messagestore.Category = "probe"

// usable reports whether this client's own store, with the connections that have been through
// the faults, takes a write and answers.
func (c *client) usable() bool {
	ctx, cancel := context.WithTimeout(context.Background(), resolveWithin)
	defer cancel()
	stream := Probes.Stream(c.task.Process)
	written, err := c.store.Store.Write(ctx, stream, messagestore.NoStream, messagestore.Raw{Type: "Probe", Data: json.RawMessage(`{}`)})
	if err != nil {
		c.log.Error().Err(err).Msg("the store is not usable")
		return false
	}
	version, err := c.store.Store.Version(ctx, stream)
	return err == nil && version == written.Version
}

func (c *client) close() error {
	err := c.store.Close()
	if c.pool != nil {
		c.pool.Close()
	}
	return err
}

// open opens the store, which need not answer yet.
func (c *client) open(ctx context.Context) error {
	log := zerolog.New(os.Stderr).Level(zerolog.InfoLevel).With().Str("process", c.task.Process).Logger()
	c.log = log
	var driver messagestore.Driver
	if path, ok := strings.CutPrefix(c.task.URL, "sqlite:"); ok {
		opened, err := sqlite.Open(ctx, path, nil)
		if err != nil {
			return err
		}
		driver = sqliteDriver{losing{opened}, deepSQLite{opened}}
	} else {
		config, err := pgxpool.ParseConfig(c.task.URL)
		if err != nil {
			return err
		}
		config.MaxConns = c.task.Load.Connections
		if c.task.Role == Reader {
			config.MaxConns = int32(c.task.Load.Questions) //nolint:gosec // a few
		}
		config.ConnConfig.ConnectTimeout = connectTimeout
		config.ConnConfig.Tracer = doomedTracer{c.doom}
		postgres.WatchReplication(config.ConnConfig)
		if c.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return err
		}
		c.gate = newGate(c.pool.Ping)
		quiet := rand.New(rand.NewPCG(c.task.Seed, 0x9)).Float64() < c.task.Load.Quiet
		opened := testkit.Must(postgres.New(c.pool, &postgres.Config{Logger: logger.Zerolog(log), NoNotify: quiet}))
		driver = postgresDriver{losing{opened}, deepPostgres{opened}}
	}
	c.store = newRecorder(testkit.Must(messagestore.New(driver, &messagestore.Config{Logger: logger.Zerolog(log)})), driver, c.history, c.task.Process)
	return nil
}
