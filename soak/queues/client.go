package queues

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/queue"
)

// Variable is set in the environment of a process of a run: its task, as JSON.
const Variable = "DIBS_SOAK_QUEUES"

// The queue of a run, its keys, and how long things last.
const (
	Category    = "mail"
	keys        = 24
	maxFailures = 4
	lease       = time.Second
	visible     = 400 * time.Millisecond
	mostBehind  = 100 // items that no worker has met, above which nothing is inserted
	connections = 6
)

// A task is the work of a process, until its standard input ends. Once something is written to that, it inserts no
// more and dies at no failpoint.
type task struct {
	Process string // a name that no other process has
	Seed    uint64
	URL     string // of the store
	Dir     string // of the histories
	Inserts bool   // and does not work
	Workers int
	Hold    bool
	Open    bool   // it inserts in transactions alone
	Point   string // the failpoint at which the process dies, "" for none
	Turn    int64  // when it passes the point for this time
}

// The failpoints of a process.
const (
	atTaken     = "queue/taken"
	atEnding    = "queue/ending"
	atCompleted = "queue/completed"
	atFinished  = "queue/finished"
	atCommitted = "queue/committed" // a completion in a transaction, and not reported
	atReceived  = "queue/received"
	atStaged    = "queue/staged"   // with its row, and not committed
	atInserted  = "queue/inserted" // a transaction that inserts was committed, and its caller not told
)

// The points that a process passes that works, and one that inserts.
var (
	workPoints   = []string{atTaken, atEnding, atCompleted, atFinished, atCommitted, atCommitted, atReceived}
	insertPoints = []string{"", atStaged, atStaged, atInserted}
)

// killedAt begins the line that a process writes to standard error before it kills itself.
const killedAt = "failpoint: killed at "

// Mail is an item.
type Mail struct {
	N int `json:"n"`
}

// MessageType returns the type.
func (Mail) MessageType() string { return "Mail" }

// RunProcess does the work of a process of a run if this is one, and then ends it. main calls it first, and
// so does the TestMain of a package whose tests have runs.
func RunProcess() {
	encoded, ok := os.LookupEnv(Variable)
	if !ok {
		return
	}
	if err := runProcess(encoded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // it is main's, here
	}
	os.Exit(0) //nolint:forbidigo // it is main's, here
}

// A process of a run. It is safe for concurrent use.
type process struct {
	task     task
	recorder *recorder
	pool     *pgxpool.Pool
	queue    *queue.Queue
	alone    *queue.Queue                // for Receive
	staged   atomic.Pointer[queue.Entry] // one that was staged last, and may be again
	spared   atomic.Bool
	passed   atomic.Int64
}

func runProcess(encoded string) error {
	var t task
	if err := json.Unmarshal([]byte(encoded), &t); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	inserting, stopInserting := context.WithCancel(ctx)
	p := &process{task: t}
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // until there are no more faults
		p.spared.Store(true)
		stopInserting()
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var err error
	if p.recorder, err = newRecorder(t.Dir, t.Process); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(t.URL)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer p.pool.Close()
	over := func(alone bool) (*messagestore.Store, *queue.Queue) {
		d := &driver{must.New(postgres.New(p.pool, &postgres.Config{Logger: logger.Silent()})), p.recorder, alone, p.pass}
		store := must.New(messagestore.New(d, nil))
		return store, must.New(queue.New(store, Category, queueConfig(t.Hold)))
	}
	store, q := over(false)
	defer store.Close()
	other, alone := over(true)
	defer other.Close()
	p.queue, p.alone = q, alone
	var all sync.WaitGroup
	if t.Inserts {
		for i := range t.Workers {
			all.Go(func() { p.hand(i).inserts(inserting) })
		}
		all.Wait()
		return nil
	}
	for i := range 2 {
		all.Go(func() { p.hand(i).receives(ctx) })
	}
	err = p.work(ctx)
	cancel()
	all.Wait()
	return err
}

func queueConfig(hold bool) *queue.Config {
	c := &queue.Config{MaxFailures: maxFailures, Logger: logger.Silent()}
	if hold {
		c.WhenDead = queue.Hold
	}
	return c
}

// pass dies if this is the moment.
func (p *process) pass(point string) {
	if point != p.task.Point || p.passed.Add(1) != p.task.Turn || p.spared.Load() {
		return
	}
	fmt.Fprintln(os.Stderr, killedAt+point)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

// A hand is one goroutine of a process.
type hand struct {
	*process
	random *rand.Rand
}

func (p *process) hand(i int) *hand {
	return &hand{p, rand.New(rand.NewPCG(p.task.Seed, uint64(i)))} //nolint:gosec // a few
}

func (h *hand) sooner(d time.Duration) time.Duration { return time.Duration(h.random.Int64N(int64(d))) }

func (h *hand) often(percent int) bool { return h.random.IntN(100) < percent }

// pause waits, and reports whether ctx did not end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// work handles items until ctx ends. What each handler does is drawn anew.
func (p *process) work(ctx context.Context) error {
	mux := handler.New()
	var n atomic.Int64
	handler.On(mux, func(ctx context.Context, _ handler.Message[Mail]) error {
		return p.hand(1000+int(n.Add(1))).handle(ctx, queue.JobOf(ctx))
	})
	for ctx.Err() == nil {
		err := p.queue.Work(ctx, mux, &queue.WorkConfig{
			MaxWorkers: p.task.Workers, Lease: lease, Timeout: 10 * time.Second, Grace: 5 * time.Second,
			MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		})
		if err != nil && !errors.Is(err, messagestore.ErrOutcomeUnknown) {
			return err
		}
	}
	return nil
}

var errDrawn = errors.New("it was drawn")

func (h *hand) handle(ctx context.Context, job *queue.Job) error {
	pause(ctx, h.sooner(6*time.Millisecond))
	switch what := h.random.IntN(100); {
	case what < 60:
		return nil
	case what < 70:
		h.complete(ctx, job)
		if h.often(30) {
			return errDrawn // it changes nothing
		}
		return nil
	case what < 86:
		return h.finish(ctx, job)
	case what < 91:
		return errDrawn
	case what < 96:
		return handler.RetryAfter(h.sooner(200*time.Millisecond), errDrawn)
	case what < 98:
		pause(context.WithoutCancel(ctx), h.sooner(lease/2)) // whatever becomes of its session
		h.complete(ctx, job)
		return nil
	case what < 99:
		return handler.Park(errDrawn)
	default:
		panic(errDrawn)
	}
}

func delivery(job *queue.Job) []End {
	return []End{{Position: int64(job.Message.GlobalPosition), Version: job.Deliveries, Kind: "c"}}
}

func (h *hand) told(c Record, err error) {
	a := answerOf(err)
	if errors.Is(err, queue.ErrLost) {
		a.Answer = Lost
	}
	a.Ends = c.Ends
	h.recorder.end(c, a)
}

func (h *hand) complete(ctx context.Context, job *queue.Job) {
	c := h.recorder.begin(Record{Call: Complete, Ends: delivery(job)})
	err := job.Complete(ctx)
	h.told(c, err)
	h.pass(atCompleted)
}

// finish completes in a transaction with a row, and rolls it back now and then.
func (h *hand) finish(ctx context.Context, job *queue.Job) error {
	c := h.recorder.begin(Record{Call: Finish, Ends: delivery(job), Tx: true})
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		h.told(c, err)
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "insert into "+effects+" (position, version) values ($1, $2)", int64(job.Message.GlobalPosition), job.Deliveries); err != nil {
		h.told(c, err)
		return err
	}
	over, err := messagestore.New(must.New(postgres.New(tx, &postgres.Config{Logger: logger.Silent()})), nil)
	if err == nil {
		err = job.CompleteTx(ctx, over)
	}
	if err != nil { // nothing is committed
		a := answerOf(nil)
		if a.Answer = Undone; errors.Is(err, queue.ErrLost) {
			a.Answer = Lost
		}
		a.Ends = c.Ends
		h.recorder.end(c, a)
		return err
	}
	pause(ctx, h.sooner(5*time.Millisecond))
	h.pass(atFinished)
	if h.often(15) {
		_ = tx.Rollback(ctx) // if it fails, its connection is closed
		h.recorder.end(c, Record{Answer: Undone, Ends: c.Ends})
		return errDrawn
	}
	if err := tx.Commit(ctx); err != nil {
		h.recorder.end(c, Record{Answer: Unknown, Ends: c.Ends, Note: err.Error()})
		return err
	}
	h.recorder.end(c, Record{Answer: OK, Ends: c.Ends})
	h.pass(atCommitted)
	if h.often(20) {
		return errDrawn // it was committed
	}
	return nil
}

// receives reserves items with a time of their own, and may leave them or be late.
func (h *hand) receives(ctx context.Context) {
	for ctx.Err() == nil {
		jobs, err := h.alone.Receive(ctx, 1+h.random.IntN(3), &queue.ReceiveOpts{Wait: 500 * time.Millisecond, VisibilityTimeout: visible})
		if err != nil {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		if len(jobs) > 0 {
			h.pass(atReceived)
		}
		for _, job := range jobs {
			h.receive(ctx, job)
		}
		pause(ctx, h.sooner(30*time.Millisecond))
	}
}

func (h *hand) receive(ctx context.Context, job *queue.Job) {
	late := h.often(6)
	if late {
		pause(ctx, visible+h.sooner(visible))
	}
	switch what := h.random.IntN(100); {
	case what < 60 || late:
		h.complete(ctx, job)
		if h.often(20) {
			h.complete(ctx, job) // again is no mistake
		}
	case what < 70:
		_ = h.finish(ctx, job)
	case what < 78:
		_ = job.Retry(ctx, h.sooner(100*time.Millisecond), errDrawn)
	case what < 88:
		_ = job.Defer(ctx, h.sooner(200*time.Millisecond))
	case what < 90:
		_ = job.Bury(ctx, errDrawn)
	case what < 97:
		_ = job.Extend(ctx, 2*visible)
		h.complete(ctx, job)
	}
}

// inserts inserts items, in one way or another, until ctx ends.
func (h *hand) inserts(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		// Transactions alone overlap: other inserts keep them apart. Only workers that are not behind meet them open.
		second := time.Now().Unix()
		overlap := h.task.Open || second%3 == 0
		if overlap && !h.mayInsert(ctx, 8) || n%10 == 0 && !h.mayInsert(ctx, mostBehind) {
			pause(ctx, 10*time.Millisecond+h.sooner(40*time.Millisecond))
			n--
			continue
		}
		switch what := h.random.IntN(100); {
		case overlap && (h.task.Open || what < 70):
			h.insertTx(ctx)
		case overlap:
			h.stage(ctx)
		case what < 40:
			h.insertOne(ctx)
		case what < 55:
			h.insertMany(ctx)
		case what < 70:
			h.insertTx(ctx)
		default:
			h.stage(ctx)
		}
		if second%5 == 4 && !h.task.Open { // workers wait in line
			pause(ctx, h.sooner(500*time.Millisecond))
		}
		pause(ctx, h.sooner(10*time.Millisecond))
	}
}

// mayInsert reports whether there are fewer items than most that no worker has met.
func (h *hand) mayInsert(ctx context.Context, most int) bool {
	waiting, err := h.queue.Items(ctx, queue.Waiting, 0, most)
	return err == nil && len(waiting) < most
}

func (h *hand) item() (queue.Entry, New) {
	opts := &queue.InsertOpts{ID: must.New(uuid.NewV7())}
	stream := Category + "-" + opts.ID.String()
	if h.often(60) {
		opts.Key = fmt.Sprintf("k%d", h.random.IntN(keys))
		stream = Category + "-" + opts.Key
	}
	if h.often(12) {
		opts.ScheduledAt = time.Now().Add(h.sooner(400 * time.Millisecond))
	}
	return queue.Entry{Body: Mail{h.random.IntN(1000)}, Opts: opts}, New{ID: opts.ID.String(), Stream: stream}
}

func (h *hand) insertOne(ctx context.Context) {
	e, is := h.item()
	c := h.recorder.begin(Record{Call: Insert, New: []New{is}})
	_, err := h.queue.Insert(ctx, e.Body, e.Opts)
	h.inserted(c, err)
	if err == nil && e.Opts.Key == "" && h.often(5) { // the same item
		c := h.recorder.begin(Record{Call: Insert, New: []New{is}, Note: "again"})
		again, err := h.queue.Insert(ctx, e.Body, e.Opts)
		if err == nil && !again.Duplicate {
			err = errors.New("it was inserted twice")
		}
		h.recorder.end(c, answerOf(err))
	}
}

func (h *hand) inserted(c Record, err error) {
	a := answerOf(err)
	a.New = c.New
	h.recorder.end(c, a)
}

func (h *hand) insertMany(ctx context.Context) {
	var entries []queue.Entry
	c := Record{Call: Insert}
	for range 2 + h.random.IntN(8) {
		e, is := h.item()
		entries, c.New = append(entries, e), append(c.New, is)
	}
	c = h.recorder.begin(c)
	_, err := h.queue.InsertMany(ctx, entries...) // in one step: there are few
	h.inserted(c, err)
}

// insertTx inserts in a transaction that stays open for a moment, and is rolled back now and then.
func (h *hand) insertTx(ctx context.Context) {
	e, is := h.item()
	c := h.recorder.begin(Record{Call: Insert, New: []New{is}, Tx: true})
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		h.recorder.end(c, Record{Answer: Failed, Note: err.Error()})
		return
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	over, err := messagestore.New(must.New(postgres.New(tx, &postgres.Config{Logger: logger.Silent()})), nil)
	var q *queue.Queue
	if err == nil {
		q, err = queue.New(over, Category, queueConfig(h.task.Hold))
	}
	if err == nil {
		_, err = q.Insert(ctx, e.Body, e.Opts)
	}
	if err != nil {
		h.recorder.end(c, Record{Answer: Undone, Note: err.Error()})
		return
	}
	pause(ctx, h.sooner(25*time.Millisecond))
	if h.often(25) {
		_ = tx.Rollback(ctx) // if it fails, its connection is closed
		h.recorder.end(c, Record{Answer: Undone})
		return
	}
	if err := tx.Commit(ctx); err != nil {
		h.recorder.end(c, Record{Answer: Unknown, Note: err.Error()})
		return
	}
	h.pass(atInserted)
	h.inserted(c, nil)
}

// turnOf draws a turn: any order of magnitude is as likely as another.
func turnOf(random *rand.Rand, most int) int64 {
	return int64(math.Exp(random.Float64() * math.Log(float64(most))))
}
