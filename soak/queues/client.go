package queues

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/serve/client"
	"github.com/dibs-go/dibs/soak/crew"
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

// A task is the work of a process, until its standard input ends. Once something is written to
// that, it inserts no more and dies at no failpoint.
type task struct {
	crew.Task
	Address string // where it serves the store, as dibs serve does; "" for others
	Inserts bool   // and does not work
	Workers int
	Hold    bool
	Scene   Scene
}

// The failpoints of a process.
const (
	atTaken     crew.Point = "queue/taken"
	atEnding    crew.Point = "queue/ending"
	atCompleted crew.Point = "queue/completed"
	atFinished  crew.Point = "queue/finished"
	atCommitted crew.Point = "queue/committed" // a completion in a transaction, and not reported
	atReceived  crew.Point = "queue/received"
	atStaged    crew.Point = "queue/staged"   // with its row, and not committed
	atInserted  crew.Point = "queue/inserted" // a transaction that inserts was committed, and its caller not told
)

// The points that a working process passes, an inserting process, one that serves, and one that
// works by its calls.
var (
	workPoints   = []crew.Point{atTaken, atEnding, atCompleted, atFinished, atCommitted, atCommitted, atReceived}
	insertPoints = []crew.Point{"", atStaged, atStaged, atInserted}
	servePoints  = []crew.Point{atTaken, atEnding}
	callPoints   = []crew.Point{atCompleted, atReceived}
)

// Mail is an item.
type Mail struct {
	N int `json:"n"`
}

// MessageType implements [messagestore.Body].
func (Mail) MessageType() string { return "Mail" }

// RunProcess does the work of a process of a run, if this is such a process, and then exits. Call
// it first in main, and in the TestMain of a package with tests of runs.
func RunProcess() { crew.RunProcess(Variable, runProcess) }

// A process of a run. It is safe for concurrent use.
type process struct {
	*task
	recorder *recorder
	database database // nil if it calls a server
	queue    *queue.Queue
	staged   atomic.Pointer[queue.Entry] // one that was staged last, and may be again
	killers  atomic.Int64                // items inserted that kill their process
	received atomic.Int64                // calls that receive
}

func runProcess(t *task) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	inserting, stopInserting := context.WithCancel(ctx)
	p := &process{task: t}
	go crew.Listen(func() {
		t.Doom.Lift()
		stopInserting()
	}, cancel)
	var err error
	if p.recorder, err = crew.NewRecorder[Record](t.Dir, t.Process); err != nil {
		return err
	}
	if t.calls() {
		c, err := client.New(t.URL, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		if p.queue, err = c.Queue(Category, &queue.Config{Logger: logger.Silent()}); err != nil { // its policy is stored
			return err
		}
	} else {
		if p.database, err = openDatabase(ctx, t.URL); err != nil {
			return err
		}
		defer p.database.close()
		store, err := p.database.store(ctx, func(d queuing.Driver) *recording { return &recording{d, p.recorder, p.Doom.Pass} })
		if err != nil {
			return err
		}
		defer store.Close()
		if t.Address != "" {
			return crew.ServeStore(ctx, store, t.Address)
		}
		p.queue = testkit.Must(queue.New(store, Category, queueConfig(t.Hold)))
	}
	var all sync.WaitGroup
	if t.Inserts {
		insert := (*hand).inserts
		switch t.Scene {
		case Poison:
			insert = (*hand).poisons
		case HotKey:
			insert, t.Workers = (*hand).heats, 1
		}
		for i := range t.Workers {
			all.Go(func() { insert(p.hand(i), inserting) })
		}
		all.Wait()
		return nil
	}
	for i := range 2 {
		if t.Scene.kills() {
			all.Go(func() { p.hand(i).receives(ctx) })
		}
	}
	err = p.work(ctx)
	cancel()
	all.Wait()
	return err
}

// calls reports whether the process calls a server.
func (t *task) calls() bool { return strings.HasPrefix(t.URL, "http:") }

func queueConfig(hold bool) *queue.Config {
	c := &queue.Config{MaxFailures: maxFailures, Logger: logger.Silent()}
	if hold {
		c.WhenDead = queue.Hold
	}
	return c
}

// A hand is one goroutine of a process.
type hand struct {
	*process
	random crew.Dice
}

func (p *process) hand(i int) *hand {
	return &hand{p, crew.NewDice(p.Seed, uint64(i))} //nolint:gosec // a few
}

// work handles items until ctx ends. The behaviour of each handler call is random.
func (p *process) work(ctx context.Context) error {
	mux := handler.New()
	var n atomic.Int64
	handler.On(mux, func(ctx context.Context, m handler.Message[Mail]) error {
		return p.hand(1000+int(n.Add(1))).handled(ctx, queue.JobOf(ctx), m.Body.N)
	})
	for ctx.Err() == nil {
		err := p.queue.Work(ctx, mux, &queue.WorkConfig{
			MaxWorkers: p.Workers, Lease: lease, Timeout: 10 * time.Second, Grace: 5 * time.Second,
			MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		})
		if err != nil && !errors.Is(err, messagestore.ErrOutcomeUnknown) {
			return err
		}
	}
	return nil
}

var errDrawn = errors.New("it was drawn")

// handled does the work of a handler in this scene.
func (h *hand) handled(ctx context.Context, job *queue.Job, n int) error {
	switch h.Scene {
	case Poison:
		if n == poison {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		crew.Pause(ctx, 50*time.Millisecond+h.random.Sooner(200*time.Millisecond))
		return ctx.Err()
	case HotKey:
		crew.Pause(ctx, 20*time.Millisecond)
		return ctx.Err()
	case Ending:
		return h.ends(ctx, job)
	}
	return h.handle(ctx, job)
}

// ends completes an item while its session may end, and writes down when its context did.
func (h *hand) ends(ctx context.Context, job *queue.Job) error {
	c := h.recorder.Begin(Record{Call: Handle, Ends: delivery(job)})
	over := sync.OnceFunc(func() { h.recorder.End(c, Record{Answer: OK, Ends: c.Ends}) })
	defer over()
	defer context.AfterFunc(ctx, over)()
	crew.Pause(ctx, h.random.Sooner(20*time.Millisecond))
	h.complete(context.WithoutCancel(ctx), job)
	return nil
}

func (h *hand) handle(ctx context.Context, job *queue.Job) error {
	crew.Pause(ctx, h.random.Sooner(6*time.Millisecond))
	switch what := h.random.IntN(100); {
	case what < 60:
		return nil
	case what < 70:
		h.complete(ctx, job)
		if h.random.Often(30) {
			return errDrawn // it changes nothing
		}
		return nil
	case what < 86:
		return h.finish(ctx, job)
	case what < 91:
		return errDrawn
	case what < 96:
		return handler.RetryAfter(h.random.Sooner(200*time.Millisecond), errDrawn)
	case what < 98:
		crew.Pause(context.WithoutCancel(ctx), h.random.Sooner(lease/2)) // whatever becomes of its session
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

// ask makes a call about a delivery.
func (h *hand) ask(call, kind string, job *queue.Job, f func() error) {
	c := Record{Call: call, Ends: delivery(job)}
	c.Ends[0].Kind = kind
	c = h.recorder.Begin(c)
	h.told(c, f())
}

func (h *hand) told(c Record, err error) {
	a := answerOf(err)
	if errors.Is(err, queue.ErrLost) {
		a.Answer = Lost
	}
	a.Ends = c.Ends
	h.recorder.End(c, a)
}

func (h *hand) complete(ctx context.Context, job *queue.Job) {
	h.ask(Complete, "c", job, func() error { return job.Complete(ctx) })
	h.Doom.Pass(atCompleted)
}

// finish completes in a transaction with a row, and rolls it back now and then. Whoever calls a
// server has none.
func (h *hand) finish(ctx context.Context, job *queue.Job) error {
	if h.database == nil {
		h.complete(ctx, job)
		return nil
	}
	c := h.recorder.Begin(Record{Call: Finish, Ends: delivery(job), Tx: true})
	tx, err := h.database.begin(ctx)
	if err != nil {
		h.told(c, err)
		return err
	}
	defer tx.rollback(ctx)
	if err := tx.insert(ctx, effects, int64(job.Message.GlobalPosition), job.Deliveries); err != nil {
		h.told(c, err)
		return err
	}
	if err = job.CompleteTx(ctx, tx.of); err != nil { // nothing is committed
		a := answerOf(nil)
		if a.Answer = Undone; errors.Is(err, queue.ErrLost) {
			a.Answer = Lost
		}
		a.Ends = c.Ends
		h.recorder.End(c, a)
		return err
	}
	crew.Pause(ctx, h.random.Sooner(h.open(5*time.Millisecond)))
	h.Doom.Pass(atFinished)
	if h.random.Often(15) {
		tx.rollback(ctx)
		h.recorder.End(c, Record{Answer: Undone, Ends: c.Ends})
		return errDrawn
	}
	if err := tx.commit(ctx); err != nil {
		h.recorder.End(c, Record{Answer: Unknown, Ends: c.Ends, Note: err.Error()})
		return err
	}
	h.recorder.End(c, Record{Answer: OK, Ends: c.Ends})
	h.Doom.Pass(atCommitted)
	if h.random.Often(20) {
		return errDrawn // it was committed
	}
	return nil
}

// receives reserves items with their own visibility timeout, and may leave them or be late. It
// completes some as it gets the next ones.
func (h *hand) receives(ctx context.Context) {
	var last []*queue.Job
	for ctx.Err() == nil {
		lasts := visible + h.ownTime()
		if h.database == nil { // a call goes a long way
			lasts += 2 * lease
		}
		jobs := h.next(ctx, last, &queue.ReceiveOpts{Wait: 500 * time.Millisecond, VisibilityTimeout: lasts})
		if last = nil; len(jobs) > 0 {
			h.Doom.Pass(atReceived)
		}
		for _, job := range jobs {
			if h.random.Often(10) {
				last = append(last, job)
			} else {
				h.receive(ctx, job, lasts)
			}
		}
		crew.Pause(ctx, h.random.Sooner(30*time.Millisecond))
	}
}

// ownTime returns a time below 100 ms that no other call has for a minute or more, by its process and
// number: so the takes of a call are known by their lease.
func (h *hand) ownTime() time.Duration {
	process, _ := strconv.ParseInt(h.Process[strings.LastIndexByte(h.Process, '-')+1:], 10, 64)
	return time.Duration(process%100*1000+h.received.Add(1)%1000) * time.Microsecond
}

// next completes the last jobs and receives others. Now and then it hangs up.
func (h *hand) next(ctx context.Context, last []*queue.Job, opts *queue.ReceiveOpts) []*queue.Job {
	if h.random.Often(10) {
		limited, hangUp := context.WithCancel(ctx)
		defer time.AfterFunc(h.random.Sooner(opts.Wait), hangUp).Stop()
		defer hangUp()
		ctx, opts.Wait = limited, 10*opts.Wait
	}
	settlements, completions := make([]queue.Settlement, len(last)), make([]Record, len(last))
	for i, job := range last {
		settlements[i] = queue.Settlement{Delivery: job.Delivery(), Action: queue.Complete}
		completions[i] = h.recorder.Begin(Record{Call: Complete, Ends: delivery(job)})
	}
	c := h.recorder.Begin(Record{Call: Receive, Lease: opts.VisibilityTimeout.Microseconds()})
	outcomes, jobs, err := h.queue.SettleAndReceive(ctx, settlements, 1+h.random.IntN(3), opts)
	a := answerOf(err)
	for _, job := range jobs {
		a.Items = append(a.Items, given(job.Message, job.Deliveries, job.Failures))
	}
	h.recorder.End(c, a)
	for i, c := range completions {
		outcome := err
		if outcomes != nil {
			outcome = outcomes[i]
		}
		h.told(c, outcome)
	}
	if err != nil {
		crew.Pause(ctx, 20*time.Millisecond)
	}
	return jobs
}

// receive ends a delivery that lasts for a time.
func (h *hand) receive(ctx context.Context, job *queue.Job, lasts time.Duration) {
	prolong := func() { h.ask(Prolong, "", job, func() error { return job.Extend(ctx, 2*lasts) }) }
	late := h.random.Often(6)
	if late {
		crew.Pause(ctx, lasts+h.random.Sooner(lasts))
		if h.random.Often(50) {
			prolong()
		}
	}
	switch what := h.random.IntN(100); {
	case what < 60 || late:
		h.complete(ctx, job)
		if h.random.Often(20) {
			h.complete(ctx, job) // again is no mistake
		}
	case what < 70:
		_ = h.finish(ctx, job)
	case what < 78:
		h.ask(Settle, "r", job, func() error { return job.Retry(ctx, h.random.Sooner(100*time.Millisecond), errDrawn) })
	case what < 88:
		h.ask(Settle, "f", job, func() error { return job.Defer(ctx, h.random.Sooner(200*time.Millisecond)) })
	case what < 90:
		h.ask(Settle, "x", job, func() error { return job.Bury(ctx, errDrawn) })
	case what < 97:
		prolong()
		h.complete(ctx, job)
	}
}

// inserts inserts items, in one way or another, until ctx ends.
func (h *hand) inserts(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		// Transactions alone overlap: other inserts keep them apart. Only workers that are not
		// behind meet them open.
		second := time.Now().Unix()
		overlap := h.Scene == Overlap || second%3 == 0 && h.database != nil
		if overlap && !h.mayInsert(ctx, 8) || n%10 == 0 && !h.mayInsert(ctx, mostBehind) {
			crew.Pause(ctx, 10*time.Millisecond+h.random.Sooner(40*time.Millisecond))
			n--
			continue
		}
		what := h.random.IntN(100)
		if h.database == nil {
			what %= 55 // without transactions
		}
		switch {
		case overlap && (h.Scene == Overlap || what < 70):
			h.insertTx(ctx)
		case overlap:
			h.stage(ctx)
		case what < 25:
			h.insertOne(ctx)
		case what < 40:
			h.insertUnique(ctx)
		case what < 55:
			h.insertMany(ctx)
		case what < 70:
			h.insertTx(ctx)
		default:
			h.stage(ctx)
		}
		if second%5 == 4 && h.Scene.kills() { // workers wait in line
			crew.Pause(ctx, h.random.Sooner(500*time.Millisecond))
		}
		crew.Pause(ctx, h.random.Sooner(10*time.Millisecond))
	}
}

// The items of scenes.
const (
	poison   = 5000 // the content of an item that kills its process
	poisoned = 4    // how many of these there are
	hot      = "hot"
	hotItems = 30_000
)

// poisons inserts items until ctx ends, and now and then an item that kills its process.
func (h *hand) poisons(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		if !h.mayInsert(ctx, mostBehind) {
			crew.Pause(ctx, 50*time.Millisecond)
			continue
		}
		e, is := h.item()
		e.Opts.Key, e.Opts.ScheduledAt, e.Body = "", time.Time{}, Mail{0}
		is.Stream = Category + "-" + e.Opts.ID.String()
		if n%20 == 10 && h.killers.Add(1) <= poisoned {
			e.Body = Mail{poison}
		}
		h.insert(ctx, []queue.Entry{e}, []New{is})
		crew.Pause(ctx, h.random.Sooner(100*time.Millisecond))
	}
}

// heats inserts thousands of items of a key at once, and then items of others until ctx ends.
func (h *hand) heats(ctx context.Context) {
	const page = 1000
	for range hotItems / page {
		var entries []queue.Entry
		var all []New
		for range page {
			id := testkit.Must(uuid.NewV7())
			entries = append(entries, queue.Entry{Body: Mail{1}, Opts: &queue.InsertOpts{ID: id, Key: hot}})
			all = append(all, New{ID: id.String(), Stream: Category + "-" + hot})
		}
		h.insert(ctx, entries, all)
	}
	for ctx.Err() == nil {
		id := testkit.Must(uuid.NewV7())
		h.insert(ctx, []queue.Entry{{Body: Mail{2}, Opts: &queue.InsertOpts{ID: id}}}, []New{{ID: id.String(), Stream: Category + "-" + id.String()}})
		crew.Pause(ctx, 100*time.Millisecond)
	}
}

func (h *hand) insert(ctx context.Context, entries []queue.Entry, all []New) {
	c := h.recorder.Begin(Record{Call: Insert, New: all})
	_, err := h.queue.InsertMany(ctx, entries...)
	h.inserted(c, err)
}

// mayInsert reports whether there are fewer items than most that no worker has met.
func (h *hand) mayInsert(ctx context.Context, most int) bool {
	waiting, err := h.queue.Items(ctx, queue.Waiting, 0, most)
	return err == nil && len(waiting) < most
}

func (h *hand) item() (queue.Entry, New) {
	opts := &queue.InsertOpts{ID: testkit.Must(uuid.NewV7())}
	stream := Category + "-" + opts.ID.String()
	if h.random.Often(60) {
		opts.Key = fmt.Sprintf("k%d", h.random.IntN(keys))
		stream = Category + "-" + opts.Key
	}
	if h.random.Often(12) {
		opts.ScheduledAt = time.Now().Add(h.random.Sooner(400 * time.Millisecond))
	}
	return queue.Entry{Body: Mail{h.random.IntN(1000)}, Opts: opts}, New{ID: opts.ID.String(), Stream: stream}
}

func (h *hand) insertOne(ctx context.Context) {
	e, is := h.item()
	c := h.recorder.Begin(Record{Call: Insert, New: []New{is}})
	_, err := h.queue.Insert(ctx, e.Body, e.Opts)
	h.inserted(c, err)
	if err == nil && e.Opts.Key == "" && h.random.Often(5) { // the same item
		c := h.recorder.Begin(Record{Call: Insert, New: []New{is}, Note: "again"})
		again, err := h.queue.Insert(ctx, e.Body, e.Opts)
		if err == nil && !again.Duplicate {
			err = errors.New("it was inserted twice")
		}
		h.recorder.End(c, answerOf(err))
	}
}

func (h *hand) inserted(c Record, err error) {
	a := answerOf(err)
	a.New = c.New
	h.recorder.End(c, a)
}

func (h *hand) insertMany(ctx context.Context) {
	var entries []queue.Entry
	var all []New
	for range 2 + h.random.IntN(8) {
		e, is := h.item()
		entries, all = append(entries, e), append(all, is)
	}
	h.insert(ctx, entries, all) // in one step: there are few
}

// open is how long a transaction stays open at most: over a file all others wait for it.
func (h *hand) open(d time.Duration) time.Duration {
	if strings.HasPrefix(h.URL, sqliteURL) {
		return d / 10
	}
	return d
}

// insertTx inserts in a transaction that stays open for a moment, and is rolled back now and then.
func (h *hand) insertTx(ctx context.Context) {
	e, is := h.item()
	c := h.recorder.Begin(Record{Call: Insert, New: []New{is}, Tx: true})
	tx, err := h.database.begin(ctx)
	if err != nil {
		h.recorder.End(c, Record{Answer: Failed, Note: err.Error()})
		return
	}
	defer tx.rollback(ctx)
	over, err := tx.store()
	var q *queue.Queue
	if err == nil {
		q, err = queue.New(over, Category, queueConfig(h.Hold))
	}
	if err == nil {
		_, err = q.Insert(ctx, e.Body, e.Opts)
	}
	if err != nil {
		h.recorder.End(c, Record{Answer: Undone, Note: err.Error()})
		return
	}
	crew.Pause(ctx, h.random.Sooner(h.open(25*time.Millisecond)))
	if h.random.Often(25) {
		tx.rollback(ctx)
		h.recorder.End(c, Record{Answer: Undone})
		return
	}
	if err := tx.commit(ctx); err != nil {
		h.recorder.End(c, Record{Answer: Unknown, Note: err.Error()})
		return
	}
	h.Doom.Pass(atInserted)
	h.inserted(c, nil)
}
