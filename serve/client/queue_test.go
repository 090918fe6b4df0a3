package client_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve"
	"github.com/dibs-go/dibs/serve/client"
)

type Send struct {
	To string `json:"to"`
	N  int    `json:"n,omitempty"`
}

func (Send) MessageType() string { return "Send" }

func openStore(t testing.TB) *messagestore.Store {
	t.Helper()
	store, err := dibs.Open(context.Background(), "sqlite:"+filepath.Join(t.TempDir(), "dibs.db"), &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// serveAt serves a store until the test ends, and returns the address.
func serveAt(t testing.TB, store *messagestore.Store) (at string) {
	t.Helper()
	s := testkit.Must(serve.New(store, &serve.Config{Logger: logger.Silent()}))
	ready, ended := make(chan string, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- s.Run(ctx, serve.Listen{Address: "127.0.0.1:0", Ready: func(address string) { ready <- address }})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	select {
	case at = <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("it does not run: %v", err)
	}
	return at
}

// queueAt returns a queue over a server at an address.
func queueAt(t testing.TB, address string, config *queue.Config) *queue.Queue {
	t.Helper()
	c := testkit.Must(client.New("http://"+address, nil))
	t.Cleanup(c.Close)
	if config == nil {
		config = &queue.Config{Logger: logger.Silent()}
	}
	return testkit.Must(c.Queue("mail", config))
}

// working runs Work until stop is called, which waits for it and requires that it ends well.
func working(t testing.TB, q *queue.Queue, h queue.Handler, config *queue.WorkConfig) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- q.Work(ctx, h, config) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, testkit.Receive(t, "the end of Work", done))
	})
	t.Cleanup(stop)
	return stop
}

func insertAll(t testing.TB, q *queue.Queue, n int, opts func(i int) *queue.InsertOpts) []messagestore.GlobalPosition {
	t.Helper()
	entries := make([]queue.Entry, n)
	for i := range entries {
		entries[i] = queue.Entry{Body: Send{To: "ann", N: i}}
		if opts != nil {
			entries[i].Opts = opts(i)
		}
	}
	inserted, err := q.InsertMany(context.Background(), entries...)
	require.NoError(t, err)
	positions := make([]messagestore.GlobalPosition, n)
	for i, one := range inserted {
		positions[i] = one.Position
	}
	return positions
}

// logOf returns the log of an item in one line.
func logOf(t testing.TB, q *queue.Queue, at messagestore.GlobalPosition) string {
	t.Helper()
	item, err := q.Item(context.Background(), at)
	require.NoError(t, err)
	lines := []string{string(item.State)}
	for _, e := range item.Log {
		line := fmt.Sprintf("%d %s", e.Version, e.What)
		if e.Text != "" {
			text, _, _ := strings.Cut(e.Text, "\n")
			line += " " + text
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func awaitStates(t testing.TB, q *queue.Queue, state queue.State, positions ...messagestore.GlobalPosition) {
	t.Helper()
	for _, at := range positions {
		testkit.Await(t, fmt.Sprintf("item %d is %s", at, state), func() (bool, any) {
			item, err := q.Item(context.Background(), at)
			return err == nil && item.State == state, logOrError(t, q, at, err)
		})
	}
}

func logOrError(t testing.TB, q *queue.Queue, at messagestore.GlobalPosition, err error) any {
	if err != nil {
		return err
	}
	return logOf(t, q, at)
}

type ofKey struct{}

// program is a program with a queue: what it does does not depend on where the queue is kept.
func program(t *testing.T, q *queue.Queue) map[string]string {
	require.NoError(t, q.SetPolicy(t.Context(), "the test", queue.Policy{MaxFailures: 3}))
	var (
		mu      sync.Mutex
		order   []int
		aroundN atomic.Int64
	)
	met := map[string]int{}
	mux := handler.New()
	mux.Use(func(next handler.HandlerFunc) handler.HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error {
			aroundN.Add(1)
			return next(context.WithValue(ctx, ofKey{}, "from the middleware"), m)
		}
	})
	handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
		if ctx.Value(ofKey{}) != "from the middleware" {
			return errors.New("without the middleware")
		}
		mu.Lock()
		met[m.Body.To]++
		times := met[m.Body.To]
		mu.Unlock()
		job := queue.JobOf(ctx)
		switch m.Body.To {
		case "fails once":
			if times == 1 {
				return errors.New("once")
			}
		case "fails":
			return fmt.Errorf("failure %d", job.Failures+1)
		case "panics":
			panic("as it does")
		case "later":
			if times == 1 {
				return handler.RetryAfter(50*time.Millisecond, errors.New("not yet"))
			}
		case "parked":
			return handler.Park(errors.New("look at it"))
		case "skipped":
			return handler.Skip("never mind")
		case "too long":
			if times == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
		case "completes":
			if err := job.Complete(ctx); err != nil {
				return err
			}
			return errors.New("too late to matter")
		case "defers":
			if times == 1 {
				return job.Defer(ctx, 30*time.Millisecond)
			}
		case "buries":
			return job.Bury(ctx, errors.New("by the handler"))
		case "retries":
			if times == 1 {
				return job.Retry(ctx, 10*time.Millisecond, errors.New("by the handler"))
			}
		case "extends":
			if err := job.Extend(ctx, time.Minute); !errors.Is(err, messagestore.ErrInvalid) {
				return fmt.Errorf("extended: %w", err)
			}
			if err := job.Progress("half"); err != nil {
				return err
			}
		case "in a transaction":
			if err := job.CompleteTx(ctx, 17); !errors.Is(err, messagestore.ErrNotSupported) {
				return fmt.Errorf("in a transaction: %w", err)
			}
		case "in order":
			mu.Lock()
			order = append(order, m.Body.N)
			mu.Unlock()
		}
		return nil
	})
	config := &queue.WorkConfig{Timeout: 300 * time.Millisecond, MinBackoff: 10 * time.Millisecond, MaxBackoff: 20 * time.Millisecond}
	working(t, q, mux, config)

	at := map[string]messagestore.GlobalPosition{}
	for _, to := range []string{
		"fails once", "fails", "panics", "later", "parked", "skipped", "too long", "completes", "defers", "buries", "retries", "extends", "in a transaction", "completed",
	} {
		at[to] = testkit.Must(q.Insert(t.Context(), Send{To: to}, named(to, 0))).Position
	}
	var inOrder []messagestore.GlobalPosition
	for n := range 10 {
		inOrder = append(inOrder, testkit.Must(q.Insert(t.Context(), Send{To: "in order", N: n}, named("k", 0))).Position)
	}
	at["unknown"] = testkit.Must(q.Insert(t.Context(), messagestore.Raw{Type: "Unknown", Data: []byte(`{}`)}, named("unknown", time.Hour))).Position
	at["cancelled"] = testkit.Must(q.Insert(t.Context(), Send{To: "cancelled"}, named("cancelled", time.Hour))).Position
	testkit.Do(q.Cancel(t.Context(), "as ordered", at["cancelled"]))(t)

	became := map[string]string{}
	for to, position := range at {
		switch to {
		case "unknown":
			awaitStates(t, q, queue.Later, position)
		default:
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			testkit.Must(awaited(q.Await(ctx, position)))
			cancel()
		}
		became[to] = logOf(t, q, position)
	}
	awaitStates(t, q, queue.Finished, inOrder...)
	mu.Lock()
	defer mu.Unlock()
	became["order"] = fmt.Sprint(order)
	became["counts"] = fmt.Sprintf("%+v", q.Counts())
	became["around"] = fmt.Sprint(aroundN.Load())
	return became
}

// named returns options for an item in the stream of a key, which the texts of errors name.
func named(key string, later time.Duration) *queue.InsertOpts {
	o := &queue.InsertOpts{Key: key}
	if later > 0 {
		o.ScheduledAt = time.Now().Add(later)
	}
	return o
}

func awaited(item queue.Item, _ []*messagestore.Message, err error) (queue.Item, error) {
	return item, err
}

// A program does the same with a queue that a server keeps.
func TestTheSameProgramOverAServer(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	inProcess := program(t, testkit.Must(queue.New(openStore(t), "mail", &queue.Config{Stored: true, Logger: logger.Silent()})))
	address := serveAt(t, store)
	became := program(t, queueAt(t, address, nil))
	require.Equal(t, "finished; 0 failed handle Send mail-fails once@0: once", became["fails once"])
	require.Contains(t, became["fails"], "dead; 0 failed")
	require.Equal(t, "[0 1 2 3 4 5 6 7 8 9]", became["order"])
	require.Equal(t, inProcess, became)
}

// What was inserted is told of each item, as by a store.
func TestInsertOverAServer(t *testing.T) {
	t.Parallel()
	address := serveAt(t, openStore(t))
	q := queueAt(t, address, nil)
	id := uuid.New()
	first := testkit.Must(q.Insert(t.Context(), Send{To: "ann"}, &queue.InsertOpts{ID: id, Metadata: messagestore.Metadata{SchemaVersion: "7"}}))
	require.Equal(t, queue.Inserted{ID: id, Stream: messagestore.StreamName("mail-" + id.String()), Position: first.Position}, first)
	item := testkit.Must(q.Item(t.Context(), first.Position))
	require.Equal(t, "7", item.Message.Metadata.SchemaVersion)
	require.Equal(t, first.Stream, item.Message.Stream)
	require.JSONEq(t, `{"to":"ann"}`, string(item.Message.Data))

	report := testkit.Must(q.Insert(t.Context(), Send{To: "bob"}, &queue.InsertOpts{Unique: "report", UniqueUntil: queue.UntilFinished}))
	all, err := q.InsertMany(t.Context(),
		queue.Entry{Body: Send{To: "ann"}, Opts: &queue.InsertOpts{ID: id}},
		queue.Entry{Body: Send{To: "carl"}, Opts: &queue.InsertOpts{Key: "carl"}},
		queue.Entry{Body: Send{To: "bob"}, Opts: &queue.InsertOpts{Unique: "report", UniqueUntil: queue.UntilFinished}},
		queue.Entry{Body: Send{To: "eve"}, Opts: &queue.InsertOpts{Unique: "report", UniqueUntil: queue.UntilFinished}},
	)
	require.ErrorContains(t, err, "item 3")
	require.True(t, all[0].Duplicate)
	require.Equal(t, first.Position, all[0].Position)
	require.Equal(t, messagestore.StreamName("mail-carl"), all[1].Stream)
	require.True(t, all[2].Duplicate)
	require.Equal(t, report.ID, all[2].ID)
	reused := testkit.As[*queue.KeyReusedError](t, all[3].Err)
	require.Equal(t, report.Position, reused.Met.GlobalPosition)
	_, err = q.Insert(t.Context(), Send{To: "other"}, &queue.InsertOpts{ID: id})
	require.ErrorIs(t, err, messagestore.ErrIDConflict)

	large := make([]queue.Entry, 8) // more than a request may have
	for i := range large {
		large[i] = queue.Entry{Body: Send{To: strings.Repeat("x", 800<<10), N: i}, Opts: &queue.InsertOpts{Key: "large"}}
	}
	all, err = q.InsertMany(t.Context(), large...)
	require.NoError(t, err)
	for i, one := range all[1:] {
		require.Greater(t, one.Position, all[i].Position)
	}
}

// Items are received, settled and awaited over a server, by any process.
func TestReceiveOverAServer(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	address := serveAt(t, store)
	q, other, local := queueAt(t, address, nil), queueAt(t, address, nil), testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	positions := insertAll(t, q, 6, nil)
	jobs, err := q.Receive(t.Context(), 3, &queue.ReceiveOpts{VisibilityTimeout: time.Minute})
	require.NoError(t, err)
	require.Len(t, jobs, 3)
	require.NoError(t, jobs[0].Extend(t.Context(), time.Hour))
	require.Equal(t, []error{nil, nil}, testkit.Must(other.ExtendAll(t.Context(), time.Hour, jobs[0].Delivery(), jobs[1].Delivery())))
	require.NoError(t, jobs[0].Complete(t.Context()))
	require.NoError(t, jobs[0].Complete(t.Context()), "again")
	outcomes := testkit.Must(other.Settle(t.Context(), queue.Settlement{Delivery: jobs[0].Delivery(), Action: queue.Bury}, queue.Settlement{Delivery: jobs[1].Delivery(), Action: queue.Retry, Delay: time.Hour, Error: "x"}))
	require.ErrorIs(t, outcomes[0], queue.ErrLost)
	require.NoError(t, outcomes[1])
	require.Equal(t, "later; 0 failed x", logOf(t, q, positions[1]))
	require.ErrorIs(t, jobs[1].Extend(t.Context(), time.Hour), queue.ErrLost)
	require.Equal(t, []error{nil}, testkit.Must(local.Settle(t.Context(), queue.Settlement{Delivery: jobs[2].Delivery(), Action: queue.Complete})), "a process with the store may, too")

	id := uuid.New()
	jobs, err = q.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: id, VisibilityTimeout: time.Minute})
	require.NoError(t, err)
	again, err := other.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: id, Attempt: 1, VisibilityTimeout: time.Minute})
	require.NoError(t, err)
	require.Equal(t, jobs[0].Message.ID, again[0].Message.ID)
	require.ErrorIs(t, jobs[0].Complete(t.Context()), queue.ErrLost, "it moved to the second attempt")
	outcomes, jobs, err = q.SettleAndReceive(t.Context(), []queue.Settlement{{Delivery: again[0].Delivery(), Action: queue.Bury, Error: "y"}}, 5, nil)
	require.NoError(t, err)
	require.Equal(t, []error{nil}, outcomes)
	require.Len(t, jobs, 2)

	awaits := testkit.Go(func() error {
		item, found, err := q.Await(t.Context(), jobs[0].Message.GlobalPosition, "receipt-1", "receipt-1", "none-1")
		if err == nil && (item.State != queue.Finished || len(found) != 2 || found[0].Type != "Send") {
			return fmt.Errorf("awaited %+v and %v", item, found)
		}
		return err
	})
	for n := range 150 { // so that its page is not the last
		body := messagestore.Envelope{Body: Send{N: n}}
		if n == 20 || n == 149 {
			body = messagestore.Follow(jobs[0].Message, Send{N: n})
		}
		testkit.Must(store.Write(t.Context(), "receipt-1", messagestore.AnyVersion, body))
	}
	require.NoError(t, jobs[0].Complete(t.Context()))
	require.NoError(t, testkit.Receive(t, "what Await returns", awaits))
	testkit.Await(t, "the last state after a short wait", func() (bool, any) {
		short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		last, _, err := q.Await(short, jobs[1].Message.GlobalPosition)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return last.State == queue.Out, last.State
	})

	received := testkit.Go(func() error {
		_, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute})
		return err
	})
	awaitWaiting(t, address, 1)
	gone, hangUp := context.WithCancel(t.Context())
	left := testkit.Go(func() error {
		_, err := q.Receive(gone, 1, &queue.ReceiveOpts{Wait: time.Minute})
		return err
	})
	hangUp()
	require.ErrorIs(t, testkit.Receive(t, "a Receive that was left", left), context.Canceled)
	insertAll(t, q, 1, nil)
	require.NoError(t, testkit.Receive(t, "a Receive that waits", received))
}

// An operator has the same calls, as far as a server offers them.
func TestOperateOverAServer(t *testing.T) {
	t.Parallel()
	address := serveAt(t, openStore(t))
	q := queueAt(t, address, nil)
	positions := insertAll(t, q, 3, nil)
	require.NoError(t, q.SetPolicy(t.Context(), "me", queue.Policy{MaxFailures: 1, WhenDead: queue.Hold, MaxOut: 2, Rate: 1000, Burst: 3}))
	stored := testkit.Must(q.Policy(t.Context()))
	require.Equal(t, queue.Policy{MaxFailures: 1, WhenDead: queue.Hold, MaxOut: 2, Rate: 1000, Burst: 3}, stored.Policy)
	require.NoError(t, q.Pause(t.Context()))
	require.Empty(t, testkit.Must(q.Receive(t.Context(), 3, nil)))
	require.True(t, testkit.Must(q.Status(t.Context())).Paused)
	require.NoError(t, q.Resume(t.Context()))
	jobs := testkit.Must(q.Receive(t.Context(), 3, nil))
	require.Len(t, jobs, 2, "of the policy")
	require.NoError(t, jobs[0].Retry(t.Context(), 0, errors.New("x")))
	require.NoError(t, jobs[1].Bury(t.Context(), errors.New("y")))
	dead := testkit.Must(q.Items(t.Context(), queue.Dead, 0, 10))
	require.Len(t, dead, 2)
	require.Equal(t, positions[1], testkit.Must(q.Items(t.Context(), queue.Dead, positions[0].Next(), 10))[0].Position)
	require.Equal(t, positions[:1], testkit.Must(q.Retry(t.Context(), "mended", positions[0])))
	require.Equal(t, positions[1:2], testkit.Must(q.Drop(t.Context(), "old", positions[1])))
	require.Equal(t, "later; 0 failed x; 1 retried mended", logOf(t, q, positions[0]))
	_, err := q.Item(t.Context(), positions[2]+1000)
	require.ErrorIs(t, err, messagestore.ErrNotFound)
	_, err = q.Remove(t.Context(), nil)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}

// Bad input is refused before anything is sent: nobody listens at the address.
func TestANilContextMakesNoCall(t *testing.T) {
	t.Parallel()
	c := testkit.Must(client.New("http://127.0.0.1:1", nil))
	defer c.Close()
	errs := testkit.NilContext(testkit.Must(c.Queue("mail", nil)))
	require.NotEmpty(t, errs)
	for method, err := range errs {
		require.ErrorContains(t, err, "invalid context: must not be nil", method)
		require.ErrorIs(t, err, messagestore.ErrInvalid, method)
	}
	for method, err := range testkit.NilContext(testkit.Must(c.IntentManager("pay:intent", nil))) {
		require.ErrorIs(t, err, messagestore.ErrInvalid, method)
	}
}

func TestBadInputMakesNoCall(t *testing.T) {
	t.Parallel()
	c := testkit.Must(client.New("http://127.0.0.1:1", &client.Config{Patience: -1}))
	defer c.Close()
	for address, key := range map[string]string{
		"http://user:secret@127.0.0.1:1": "", "http://127.0.0.1:1?a=b": "", "http://127.0.0.1:1#a": "", "http://127.0.0.1:1": "dibs_a_1\n", "ftp://127.0.0.1": "", "https://127.0.0.1:1": "a b",
	} {
		_, err := client.New(address, &client.Config{Key: key})
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%s", address)
		require.NotContains(t, err.Error(), "secret")
	}
	require.ErrorIs(t, testkit.ErrorOf(testkit.Must(c.IntentManager("pay:intent", nil)).ExtendMany(nil, intent.Holder{Key: "a", Session: "s", Token: 5})), messagestore.ErrInvalid) //nolint:staticcheck // nil
	for _, config := range []*queue.Config{{Name: "with space"}, {MaxFailures: 3}, {WhenDead: queue.Hold}, {Rate: 1}} {
		_, err := c.Queue("mail", config)
		require.ErrorIs(t, err, messagestore.ErrInvalid, "%+v", config)
	}
	_, err := c.Queue("no-category", nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	q := testkit.Must(c.Queue("mail", &queue.Config{Logger: logger.Silent()}))
	ctx := t.Context()
	for what, err := range map[string]error{
		"body":       testkit.ErrorOf(q.Insert(ctx, nil, nil)),
		"JSON":       testkit.ErrorOf(q.Insert(ctx, messagestore.Raw{Type: "Send", Data: []byte("not json")}, nil)),
		"type":       testkit.ErrorOf(q.Insert(ctx, messagestore.Raw{Type: "", Data: []byte(`{}`)}, nil)),
		"size":       testkit.ErrorOf(q.Insert(ctx, Send{To: strings.Repeat("x", 1<<20)}, nil)),
		"key":        testkit.ErrorOf(q.Insert(ctx, Send{}, &queue.InsertOpts{Key: "a", Unique: "b"})),
		"items":      testkit.ErrorOf(q.InsertMany(ctx)),
		"n":          testkit.ErrorOf(q.Receive(ctx, 0, nil)),
		"wait":       testkit.ErrorOf(q.Receive(ctx, 1, &queue.ReceiveOpts{Wait: time.Hour})),
		"settlement": testkit.ErrorOf(q.Settle(ctx, queue.Settlement{})),
		"position":   testkit.ErrorOf(q.Item(ctx, 0)),
		"state":      testkit.ErrorOf(q.Items(ctx, queue.Finished, 0, 1)),
		"positions":  testkit.ErrorOf(q.Retry(ctx, "")),
		"policy":     q.SetPolicy(ctx, "me", queue.Policy{MaxFailures: -1}),
		"handler":    q.Work(ctx, nil, nil),
		"workers":    q.Work(ctx, counting(new(atomic.Int64), 0), &queue.WorkConfig{MaxWorkers: 1001}),
	} {
		require.ErrorIs(t, err, messagestore.ErrInvalid, what)
	}
	for what, err := range map[string]error{
		"InsertTx": testkit.ErrorOf(q.InsertTx(ctx, 17, Send{}, nil)), "Write": testkit.ErrorOf(q.Write(Send{}, nil)), "Remove": testkit.ErrorOf(q.Remove(ctx, nil)),
	} {
		require.ErrorIs(t, err, messagestore.ErrNotSupported, what)
	}
	_, err = q.Insert(ctx, Send{}, nil)
	require.Error(t, err)
	require.NotErrorIs(t, err, messagestore.ErrInvalid)
}

// A queue that was removed ends the worker, as it does in a process with the store.
func TestARemovedQueueEndsItsWorker(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	address := serveAt(t, store)
	local := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	insertAll(t, local, 1, nil)
	require.Len(t, testkit.Must(local.Receive(t.Context(), 1, nil)), 1)
	require.True(t, testkit.Must(local.Remove(t.Context(), &queue.RemoveOpts{Unfinished: true})))
	ended := testkit.Go(func() error {
		return queueAt(t, address, nil).Work(t.Context(), counting(new(atomic.Int64), 0), nil)
	})
	require.ErrorIs(t, testkit.Receive(t, "the end of Work", ended), queue.ErrRemoved)
}
