package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/client"
	v1 "github.com/dibs-go/dibs/serve/gen/dibs/v1"
	"github.com/dibs-go/dibs/serve/gen/dibs/v1/dibsv1connect"
)

const processStore = "DIBS_TEST_SERVE"

// A server in a process of its own, for tests that kill or stop it.
func TestServerProcess(t *testing.T) {
	url := os.Getenv(processStore)
	if url == "" {
		return
	}
	store, err := dibs.Open(context.Background(), url, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	s := testkit.Must(serve.New(store, &serve.Config{Logger: logger.Silent()}))
	err = s.Run(context.Background(), serve.Listen{Address: os.Getenv(processStore + "_AT"), Ready: func(address string) { fmt.Println("serves at", address) }})
	t.Fatal(err)
}

// serverProcess starts a server in a process of its own.
func serverProcess(t testing.TB, url, at string) (process *os.Process, address string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerProcess$")
	cmd.Env = append(os.Environ(), processStore+"="+url, processStore+"_AT="+at)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "serves at "); ok {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return cmd.Process, address
		}
	}
	t.Fatal("the server has not started")
	return nil, ""
}

// requireOnce requires that items are completed, and that nobody counted a failure.
func requireOnce(t testing.TB, q *queue.Queue, positions []messagestore.GlobalPosition) {
	t.Helper()
	for _, at := range positions {
		item, err := q.Item(context.Background(), at)
		require.NoError(t, err)
		require.Equal(t, queue.Finished, item.State, "%+v", item)
		require.Zero(t, item.Failures)
		for _, e := range item.Log {
			require.NotContains(t, []string{"failed", "session over"}, e.What, "%+v", item.Log)
		}
	}
}

func counting(n *atomic.Int64, pause time.Duration) queue.Handler {
	mux := handler.New()
	handler.On(mux, func(context.Context, handler.Message[Send]) error {
		time.Sleep(pause)
		n.Add(1)
		return nil
	})
	return mux
}

// A network that cuts every connection loses no item, and no item gets a failure.
func TestWorkWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	server := serveAt(t, store)
	network := newProxy(t, server)
	direct := queueAt(t, server, nil)
	positions := insertAll(t, direct, 300, func(i int) *queue.InsertOpts {
		if i%3 > 0 {
			return nil
		}
		return &queue.InsertOpts{Key: fmt.Sprint(i % 10)}
	})
	ended := make(chan struct{})
	cutting := testkit.Go(func() int {
		for n := 0; ; n++ {
			select {
			case <-time.After(time.Duration(50+rand.N(150)) * time.Millisecond):
				network.cut()
			case <-ended:
				return n
			}
		}
	})
	var handled atomic.Int64
	stop := working(t, queueAt(t, network.listener.Addr().String(), nil), counting(&handled, 20*time.Millisecond), &queue.WorkConfig{MaxWorkers: 4})
	awaitStates(t, direct, queue.Finished, positions...)
	stop()
	close(ended)
	require.Greater(t, <-cutting, 3)
	requireOnce(t, direct, positions)
	require.EqualValues(t, len(positions), handled.Load())
}

// A server that is killed, and started again, loses nothing.
func TestWorkWhileTheServerIsKilled(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + t.TempDir() + "/dibs.db"
	process, address := serverProcess(t, url, "127.0.0.1:0")
	q := queueAt(t, address, nil)
	positions := insertAll(t, q, 200, nil)
	var handled atomic.Int64
	stop := working(t, q, counting(&handled, 5*time.Millisecond), &queue.WorkConfig{MaxWorkers: 4})
	for n := range 2 {
		testkit.AwaitTrue(t, "some are handled", func() bool { return handled.Load() > int64(50*n+20) })
		require.NoError(t, process.Kill())
		_, _ = process.Wait()
		process, _ = serverProcess(t, url, address)
	}
	awaitStates(t, q, queue.Finished, positions...)
	stop()
	requireOnce(t, q, positions)
}

// While the server is stopped, no handler goes on after the lease of its item. The item comes again.
func TestHandlersEndInTimeIfTheServerStops(t *testing.T) {
	t.Parallel()
	process, address := serverProcess(t, "sqlite:"+t.TempDir()+"/dibs.db", "127.0.0.1:0")
	q := queueAt(t, address, nil)
	const lease = 2 * time.Second
	began, causes := make(chan struct{}, 10), make(chan error, 10)
	var again atomic.Bool
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, _ handler.Message[Send]) error {
		if again.Load() {
			return nil
		}
		began <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	})
	stop := working(t, q, mux, &queue.WorkConfig{Lease: lease})
	positions := insertAll(t, q, 2, nil)
	for range positions {
		testkit.Receive(t, "a handler", began)
	}
	require.Empty(t, causes)
	stopped := time.Now()
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	for range positions {
		require.ErrorIs(t, testkit.Receive(t, "the end of a handler's context", causes), queue.ErrLost)
	}
	require.Less(t, time.Since(stopped), lease)
	again.Store(true)
	require.NoError(t, process.Signal(syscall.SIGCONT))
	awaitStates(t, q, queue.Finished, positions...)
	stop()
}

// An item whose time was over before the worker heard of it is another's: no handler is called for it.
func TestALateAnswerIsNotWorkedOn(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	server := serveAt(t, store)
	network := newProxy(t, server)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	var handled atomic.Int64
	stop := working(t, queueAt(t, network.listener.Addr().String(), nil), counting(&handled, 0), &queue.WorkConfig{Lease: 500 * time.Millisecond})
	first := insertAll(t, local, 1, nil)
	awaitStates(t, local, queue.Finished, first...)
	awaitWaiting(t, server, 1)

	network.hangs.Store(true)
	positions := insertAll(t, local, 1, nil)
	awaitStates(t, local, queue.Out, positions...)
	jobs, err := local.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute, VisibilityTimeout: time.Minute})
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	network.hangs.Store(false)

	second := insertAll(t, local, 1, nil)
	awaitStates(t, local, queue.Finished, second...)
	require.EqualValues(t, 2, handled.Load(), "not of the one that has another worker")
	require.NoError(t, jobs[0].Complete(t.Context()))
	stop()
}

// What a call reserved whose answer was lost for good is the next call's, and no failure.
func TestALostAnswerIsTakenUp(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	server := serveAt(t, store)
	network := newProxy(t, server)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	c := testkit.Must(client.New("http://"+network.listener.Addr().String(), &client.Config{Patience: -1}))
	t.Cleanup(c.Close)
	q := testkit.Must(c.Queue("mail", &queue.Config{Logger: logger.Silent()}))
	lose := func() []messagestore.GlobalPosition {
		awaitWaiting(t, server, 1)
		network.hangs.Store(true)
		positions := insertAll(t, local, 1, nil)
		awaitStates(t, local, queue.Out, positions...)
		awaitWaiting(t, server, 0) // a call that is cut off before it has an answer gives the item back
		network.cut()
		network.hangs.Store(false)
		return positions
	}
	var handled atomic.Int64
	stop := working(t, q, counting(&handled, 0), &queue.WorkConfig{Lease: time.Hour})
	positions := lose()
	awaitStates(t, local, queue.Finished, positions...)
	requireOnce(t, local, positions)
	stop()

	id, patient := uuid.New(), queueAt(t, network.listener.Addr().String(), nil)
	received := testkit.Go(func() error {
		_, err := patient.Receive(context.Background(), 1, &queue.ReceiveOpts{ID: id, Wait: time.Minute, VisibilityTimeout: time.Hour})
		return err
	})
	lose()
	require.ErrorIs(t, testkit.Receive(t, "the error", received), messagestore.ErrOutcomeUnknown)
	jobs, err := queueAt(t, server, nil).Receive(t.Context(), 1, &queue.ReceiveOpts{ID: id, Attempt: 1})
	require.NoError(t, err)
	require.Len(t, jobs, 1)
	require.Zero(t, jobs[0].Deliveries)

	gone := testkit.Go(func() error {
		_, err := q.Receive(context.Background(), 1, &queue.ReceiveOpts{Wait: time.Minute, VisibilityTimeout: time.Hour})
		return err
	})
	positions = lose()
	require.ErrorIs(t, testkit.Receive(t, "the error", gone), messagestore.ErrOutcomeUnknown)
	jobs, err = local.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute})
	require.NoError(t, err)
	require.Equal(t, positions[0], jobs[0].Message.GlobalPosition)
	require.Zero(t, jobs[0].Failures)
}

// A worker that stops gives back what its last calls have reserved, and reserves no other item: that
// would leave an entry in the item's log, or a failure if the process died.
func TestAWorkerThatStopsReservesNothing(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	address := serveAt(t, store)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	c := testkit.Must(client.New("http://"+address, nil))
	t.Cleanup(c.Close)
	inserted := make(chan []messagestore.GlobalPosition, 1)
	c.Queues = beforeRepeat{c.Queues, func() {
		awaitWaiting(t, address, 0)
		inserted <- insertAll(t, local, 3, nil)
	}}
	q := testkit.Must(c.Queue("mail", &queue.Config{Logger: logger.Silent()}))
	var handled atomic.Int64
	stop := working(t, q, counting(&handled, 0), &queue.WorkConfig{MaxWorkers: 8, Lease: time.Hour})
	awaitWaiting(t, address, 1)

	stop()

	for _, p := range testkit.Receive(t, "the items", inserted) {
		item, err := local.Item(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, queue.Waiting, item.State)
		require.Empty(t, item.Log)
	}
}

// A beforeRepeat calls a function before each repeated Receive.
type beforeRepeat struct {
	dibsv1connect.QueueServiceClient

	f func()
}

func (b beforeRepeat) Receive(ctx context.Context, r *v1.ReceiveRequest) (*v1.ReceiveResponse, error) {
	if r.GetAttempt() > 0 {
		b.f()
	}
	return b.QueueServiceClient.Receive(ctx, r)
}

// However many callers hang up at once, the calls that give back what they may have reserved do not
// come at once, and nothing stays out.
func TestCallersWhoHangUpLeaveOneAfterTheOther(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	address := serveAt(t, store)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	c := testkit.Must(client.New("http://"+address, nil))
	t.Cleanup(c.Close)
	var begun, leaving atomic.Int64
	var all sync.WaitGroup
	all.Add(20)
	c.Queues = beforeRepeat{c.Queues, func() {
		begun.Add(1)
		if leaving.Add(1) == 1 {
			all.Wait() // the others have hung up too
		}
		runtime.Gosched()
		if n := leaving.Add(-1); n != 0 {
			t.Errorf("%d others leave", n)
		}
	}}
	q := testkit.Must(c.Queue("mail", &queue.Config{Logger: logger.Silent()}))
	require.NoError(t, testkit.ErrorOf(q.Policy(t.Context())))
	ctx, hangUp := context.WithCancel(t.Context())
	for range 20 {
		go func() {
			defer all.Done()
			_, err := q.Receive(ctx, 1, &queue.ReceiveOpts{Wait: time.Minute, VisibilityTimeout: time.Hour})
			if err == nil {
				t.Error("it has not hung up")
			}
		}()
	}
	awaitWaiting(t, address, 20)
	hangUp()

	testkit.AwaitEqual(t, "calls that leave", 20, begun.Load)
	requireAllFree(t, local, insertAll(t, local, 20, nil))
}

// awaitWaiting waits until n calls wait at the server.
func awaitWaiting(t testing.TB, address string, n int32) {
	t.Helper()
	c := testkit.Must(client.New("http://"+address, nil))
	defer c.Close()
	testkit.AwaitEqual(t, "calls that wait", n, func() int32 {
		answer, _ := c.Queues.GetQueue(context.Background(), &v1.GetQueueRequest{Queue: &v1.QueueName{Category: "mail"}})
		return answer.GetWaitingReceives()
	})
}

// A worker that is stopped gives back all it has, and all that is on the way to it.
func TestAStoppedWorkerGivesBackAll(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	address := serveAt(t, store)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	positions := insertAll(t, local, 20, nil)
	began := make(chan struct{}, 20)
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, _ handler.Message[Send]) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	stop := working(t, queueAt(t, address, nil), mux, &queue.WorkConfig{MaxWorkers: 2, Prefetch: 10, Grace: 10 * time.Millisecond, Lease: time.Hour})
	testkit.Receive(t, "a handler", began)
	stop()
	requireAllFree(t, local, positions)

	for turn := range 20 { // what comes as the worker stops
		stop := working(t, queueAt(t, address, nil), mux, &queue.WorkConfig{Grace: 10 * time.Millisecond, Lease: time.Hour})
		awaitWaiting(t, address, 1)
		at := testkit.Go(func() []messagestore.GlobalPosition { return insertAll(t, local, 1, nil) })
		time.Sleep(time.Duration(turn) * 200 * time.Microsecond)
		stop()
		requireAllFree(t, local, <-at)
	}
}

// requireAllFree takes items long before a lease would end, finds no failure, and completes them. The server may still be giving
// back what its caller has left.
func requireAllFree(t testing.TB, q *queue.Queue, positions []messagestore.GlobalPosition) {
	t.Helper()
	var jobs []*queue.Job
	testkit.AwaitEqual(t, "items that are free", len(positions), func() int {
		more, err := q.Receive(context.Background(), 100, nil)
		require.NoError(t, err)
		jobs = append(jobs, more...)
		return len(jobs)
	})
	for _, job := range jobs {
		require.Zero(t, job.Failures)
		require.NoError(t, job.Complete(context.Background()))
	}
	requireOnce(t, q, positions)
}

// Workers at two servers share the items of one store.
func TestWorkersAtTwoServers(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	var handled [2]atomic.Int64
	var q *queue.Queue
	for i := range handled {
		address := serveAt(t, store)
		q = queueAt(t, address, nil)
		working(t, q, counting(&handled[i], time.Millisecond), &queue.WorkConfig{MaxWorkers: 4})
	}
	positions := insertAll(t, q, 100, func(i int) *queue.InsertOpts { return &queue.InsertOpts{Key: fmt.Sprint(i % 20)} })
	awaitStates(t, q, queue.Finished, positions...)
	requireOnce(t, q, positions)
	require.EqualValues(t, 100, handled[0].Load()+handled[1].Load())
	require.Positive(t, handled[0].Load())
	require.Positive(t, handled[1].Load())
}

// An idle worker waits at the server instead of asking it again and again.
func TestAnIdleWorkerMakesFewCalls(t *testing.T) {
	t.Parallel()
	s := testkit.Must(serve.New(openStore(t), &serve.Config{Logger: logger.Silent()}))
	var calls atomic.Int64
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/dibs.v1.QueueService/") && !strings.HasSuffix(r.URL.Path, "/GetQueue") {
			calls.Add(1)
		}
		s.Handler().ServeHTTP(w, r)
	}))
	h.Config.Protocols = &http.Protocols{}
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(func() {
		s.Drain()
		h.Close()
	})
	q := queueAt(t, h.Listener.Addr().String(), nil)
	var handled atomic.Int64
	working(t, q, counting(&handled, 0), &queue.WorkConfig{PollInterval: 10 * time.Millisecond})
	awaitWaiting(t, h.Listener.Addr().String(), 1)
	before := calls.Load()
	require.LessOrEqual(t, before, int64(2))
	time.Sleep(300 * time.Millisecond)
	require.Equal(t, before, calls.Load())
	testkit.Must(q.Insert(t.Context(), Send{To: "ann"}, nil))
	testkit.AwaitEqual(t, "handled items", 1, handled.Load)
	awaitWaiting(t, h.Listener.Addr().String(), 1)
	require.LessOrEqual(t, calls.Load()-before, int64(5), "an insert, the answer, a settlement, and two calls until it waits again")
}
