package consumer_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// How a test tells its own binary to be a consumer that can be killed.
const (
	crashStore    = "DIBS_TEST_CRASH_STORE"
	crashCategory = "DIBS_TEST_CRASH_CATEGORY"
	crashLanes    = "DIBS_TEST_CRASH_LANES" // the concurrency, if it is another
	crashHangs    = "DIBS_TEST_CRASH_HANGS" // after so many messages, if it hangs
	crashAhead    = "DIBS_TEST_CRASH_AHEAD" // the file before which it handles nothing; it reads far ahead and is slow
)

var crashConfig = &consumer.Config{Concurrency: 3, BatchSize: 10, CheckpointMessages: 15, PollInterval: 5 * time.Millisecond, Lease: time.Second}

// done is where the handler of the child writes which messages it has handled.
func done(category messagestore.Category) messagestore.Category { return category.WithType("done") }

// handledBy is written for each message that the handler was given to its end.
type handledBy struct {
	PID int `json:"pid"`
}

func (handledBy) MessageType() string { return "Handled" }

// doneHandler writes that a message was handled, in a stream for each stream.
func doneHandler(store *messagestore.Store) consumer.Handler {
	return handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		_, err := store.Write(ctx, done(m.Stream.Category()).Stream(m.Stream.ID()), messagestore.AnyVersion, messagestore.Follow(m, handledBy{os.Getpid()}))
		return err
	})
}

// slowly has each message take 20 milliseconds more, and wait until there is a file.
func slowly(next consumer.Handler, file string) consumer.Handler {
	return handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		for waits := true; waits && ctx.Err() == nil; {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
			_, err := os.Stat(file)
			waits = err != nil
		}
		return next.Handle(ctx, m)
	})
}

// hangingAfter handles so many messages, and never returns from a later one.
func hangingAfter(next consumer.Handler, after int64) consumer.Handler {
	var calls atomic.Int64
	return handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if calls.Add(1) > after {
			select {} // the parent kills the process
		}
		return next.Handle(ctx, m)
	})
}

// crashChild runs a consumer until it is killed or told to stop, or its parent is gone.
func crashChild(storeURL string, category messagestore.Category) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		os.Exit(3)
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("ready") // to startCrashChild
	config := *crashConfig
	if lanes := os.Getenv(crashLanes); lanes != "" {
		config.Concurrency, _ = strconv.Atoi(lanes)
	}
	store, err := dibs.Open(ctx, storeURL, nil)
	if err == nil {
		h := doneHandler(store)
		if file := os.Getenv(crashAhead); file != "" {
			h, config.BatchSize, config.CheckpointMessages = slowly(h, file), 1000, 1000
		}
		if after, err := strconv.ParseInt(os.Getenv(crashHangs), 10, 64); err == nil {
			h, config.CheckpointInterval = hangingAfter(h, after), time.Hour
		}
		err = newNamed(store, category, "crash", h, &config).Run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// Promise C4 with real processes: kill -9 loses nothing, keeps the order, and hands
// no more over again than was said.
func TestAConsumerThatIsKilledLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		testCrashes(t, "sqlite:"+filepath.Join(t.TempDir(), "store.db"))
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		pgtest.Pool(t) // migrates the database
		testCrashes(t, pgtest.URL(t))
	})
	t.Run("Postgres through PgBouncer", func(t *testing.T) {
		t.Parallel()
		pgtest.Pool(t)
		testCrashes(t, pgtest.PgBouncer(t, pgtest.URL(t)).URL)
	})
}

func testCrashes(t *testing.T, storeURL string) {
	t.Helper()
	const streams, hangsAfter = 7, 23
	messages, kills := 200, 3
	if testkit.Long() {
		messages, kills = 1000, 12
	}
	ctx := t.Context()
	category := storetest.Category(t)
	store, err := dibs.Open(ctx, storeURL, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for i := range messages {
		write(t, store, category.Stream(fmt.Sprint(i*5%streams)), Deposited{i})
	}

	killed := 0
	for range kills {
		before := len(allDone(t, store, category))
		child := startChild(t, crashStore+"="+storeURL, crashCategory+"="+string(category), crashHangs+"="+strconv.Itoa(hangsAfter))
		testkit.AwaitEqual(t, "messages that are handled before it is killed", before+hangsAfter, func() int { return len(allDone(t, store, category)) })
		kill(t, child)
		killed++
	}
	require.NoError(t, newNamed(store, category, "crash", doneHandler(store), crashConfig).CatchUp(ctx))

	first := map[messagestore.GlobalPosition]bool{}
	next := map[messagestore.StreamName]messagestore.Version{}
	again := 0
	for _, m := range allDone(t, store, category) {
		cause := m.Metadata
		if first[cause.CausationGlobalPosition] {
			again++
			continue
		}
		first[cause.CausationGlobalPosition] = true
		require.Equal(t, next[cause.CausationStream], cause.CausationPosition, "first deliveries of %s", cause.CausationStream)
		next[cause.CausationStream]++
	}
	require.Len(t, first, messages)
	require.NotZero(t, again, "no kill hit anything")
	require.LessOrEqual(t, again, killed*(crashConfig.CheckpointMessages+crashConfig.BatchSize))
}

// startChild runs this binary with more in its environment.
func startChild(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	child := newChild(t, env...)
	require.NoError(t, child.Start())
	return child
}

// startCrashChild starts a process that ends in order if it is told to stop.
func startCrashChild(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	child := newChild(t, env...)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	ready := make(chan error, 1)
	go func() {
		_, err := fmt.Fscanln(out, new(string))
		ready <- err
	}()
	require.NoError(t, testkit.Receive(t, "the process is ready", ready))
	return child
}

func newChild(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), env...)
	child.Stderr = os.Stderr
	_, err := child.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		if child.Process != nil {
			_ = child.Process.Kill()
		}
	})
	return child
}

// kill kills a process that lives.
func kill(t *testing.T, child *exec.Cmd) {
	t.Helper()
	require.NoError(t, child.Process.Kill())
	require.ErrorContains(t, endOfProcess(t, child), "killed")
}

// endOfProcess waits until a process has ended.
func endOfProcess(t *testing.T, child *exec.Cmd) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	return testkit.Receive(t, "the process ends", ended)
}

func allDone(t *testing.T, store *messagestore.Store, category messagestore.Category) []*messagestore.Message {
	t.Helper()
	var all []*messagestore.Message
	for m, err := range store.ReadCategory(t.Context(), done(category), 0, messagestore.Filter{}) {
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

func TestRunStopsAtADatabaseThatIsNotMigrated(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, pgtest.Database(t)), nil)), nil))

	require.ErrorIs(t, runForAWhile(t, newConsumer(t, store, &journal{}, nil)), postgres.ErrNotMigrated)
}
