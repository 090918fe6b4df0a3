package intents

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	caller "github.com/dibs-go/dibs/serve/client"
	"github.com/dibs-go/dibs/soak/crew"
)

// Variable is set in the environment of a process of a run: its task, as JSON.
const Variable = "DIBS_SOAK_INTENTS"

// A task is the work of a process, until its standard input ends. Once something is written to
// that, the process dies at no failpoint any more.
type task struct {
	crew.Task         // of no process for the resource
	Socket     string // of the resource
	Address    string // where it serves the store, as dibs serve does; "" for others
	Began      int64  // when the run did, from which keys are counted
	Goroutines int
	Long       bool // transactions take long, while others ask for their keys
}

// connections of each process: to make one again costs the server some 20 ms.
const connections = 4

// The failpoints of a client.
const (
	atReserved    crew.Point = "intent/reserved"
	atWorked      crew.Point = "intent/worked"
	atConfirmSent crew.Point = "intent/confirm-sent"
	atCommit      crew.Point = "intent/commit"
	atConfirmed   crew.Point = "intent/confirmed"
	atReleased    crew.Point = "intent/released"
)

var points = []crew.Point{atReserved, atWorked, atConfirmSent, atCommit, atConfirmed, atReleased}

// RunProcess does the work of a process of a run, if this is such a process, and then exits. Call
// it first in main, and in the TestMain of a package with tests of runs.
func RunProcess() { crew.RunProcess(Variable, runProcess) }

func runProcess(t *task) error {
	if t.Process == "" {
		return serve(t.Dir, t.Socket)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &client{task: t}
	go crew.Listen(t.Doom.Lift, cancel)
	var err error
	if c.recorder, err = crew.NewRecorder[Record](t.Dir, t.Process); err != nil {
		return err
	}
	config := &intent.Config{TTL: ttl, Turn: turn, Grace: time.Minute, Name: t.Process}
	if strings.HasPrefix(t.URL, "http:") {
		calls, err := caller.New(t.URL, nil)
		if err != nil {
			return err
		}
		defer calls.Close()
		config.Turn = 0 // is the servers'
		if c.intents, err = calls.IntentManager(Category, config); err != nil {
			return err
		}
	} else {
		pool, err := crew.Pool(ctx, t.URL, connections)
		if err != nil {
			return err
		}
		defer pool.Close()
		store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil))
		defer store.Close()
		if t.Address != "" {
			c.recorder.Begin(Record{Call: Serve})
			return crew.ServeStore(ctx, store, t.Address)
		}
		if c.txs, err = messagestore.Transactional[pgx.Tx](store); err != nil {
			return err
		}
		if c.intents, err = intent.New(store, Category, config); err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	for i := range t.Goroutines {
		all.Go(func() { c.hand(uint64(i)).work(ctx) }) //nolint:gosec // a few
	}
	all.Wait()
	return c.recorder.Close()
}

// A client is a process that carries intents out. It is safe for concurrent use.
type client struct {
	*task
	recorder *recorder
	txs      *messagestore.TxStore[pgx.Tx] // nil if it calls a server
	intents  *intent.Manager
	sessions atomic.Int64
}

// A hand is one goroutine of a client.
type hand struct {
	*client
	random   crew.Dice
	zipf     *rand.Zipf
	customer customer
}

func (c *client) hand(i uint64) *hand {
	dice := crew.NewDice(c.Seed, i)
	return &hand{client: c, random: dice, zipf: rand.NewZipf(dice.Rand, skew, 1, keys-1), customer: customer{socket: c.Socket}}
}

// key draws a key of those now in use, which change with time.
func (h *hand) key() string {
	age, lasts := crew.Now()-h.Began, keyTime
	if h.Long { // when a key is done, the contention for it ends
		lasts /= 8
	}
	return fmt.Sprintf("%d.%d", age/lasts.Microseconds(), h.zipf.Uint64())
}

func (h *hand) stream(key string) string {
	stream, err := h.intents.Stream("", key)
	if err != nil {
		panic(err)
	}
	return string(stream)
}

// contentOf returns the content of a request for any key, because one request may name several.
func contentOf(other bool) any { return map[string]any{"pay": 1, "other": other} }

// job draws a request.
func (h *hand) job() *job {
	j := &job{hand: h, other: h.random.Often(2)}
	j.request = intent.Request{Key: h.key(), Session: fmt.Sprintf("%s/%d", h.Process, h.sessions.Add(1)), Content: contentOf(j.other)}
	if h.txs != nil && h.random.Often(10) {
		for range 1 + h.random.IntN(2) {
			if key := h.key(); key != j.request.Key && !slices.Contains(j.request.With, key) {
				j.request.With = append(j.request.With, key)
			}
		}
	}
	if h.random.Often(30) {
		j.request.Wait = h.random.Sooner(maxWait)
	}
	j.named()
	return j
}

// work carries out one intent after the other.
func (h *hand) work(ctx context.Context) {
	defer h.customer.Close()
	for crew.Pause(ctx, h.random.Sooner(20*time.Millisecond)) {
		switch j, what := h.job(), h.random.IntN(100); {
		case what < 22:
			j.do(ctx)
		case what < 30:
			j.shared(ctx)
		case what < 34:
			j.await(ctx)
		case what < 36:
			j.force(ctx)
		case h.Long && what < 70:
			j.inTransaction(ctx)
		default:
			j.steps(ctx)
		}
	}
}

// A job is one request, and the work on its lease.
type job struct {
	*hand
	request intent.Request
	keys    []Key // with the tokens, once there are some
	other   bool
}

// named gives the job the streams of its request.
func (j *job) named() {
	j.keys = nil
	for _, key := range append([]string{j.request.Key}, j.request.With...) {
		j.keys = append(j.keys, Key{Stream: j.stream(key)})
	}
}

// has gives it the tokens of a lease.
func (j *job) has(l *intent.Lease) Record {
	for i, token := range l.Tokens() {
		j.keys[i].Token = token
	}
	return Record{Answer: Reserved, Token: j.keys[0].Token, With: slices.Clone(j.keys[1:])}
}

func (j *job) begin(call, result string) Record {
	first := j.keys[0]
	return j.recorder.Begin(Record{
		Call: call, Stream: first.Stream, Session: j.request.Session, Token: first.Token, With: slices.Clone(j.keys[1:]), Other: j.other, Result: result,
	})
}

// await waits for an end of the first key's lease.
func (j *job) await(ctx context.Context) {
	call := j.begin(Await, "")
	limited, cancel := context.WithTimeout(ctx, 2*longest)
	defer cancel()
	i, err := j.intents.Await(limited, "", j.request.Key)
	r := answerOf(err)
	switch {
	case err != nil:
	case i.Status == intent.Done:
		r = answerTo(intent.Answer{Outcome: intent.Done, Intent: i}, nil)
	case i.Status == intent.Free:
		r.Answer = Free
	default:
		r.Answer = Held
	}
	j.recorder.End(call, r)
}

// force is an operator.
func (j *job) force(ctx context.Context) {
	call := j.begin(Force, "")
	err := j.intents.ForceRelease(ctx, "", j.request.Key, "an operator has had enough")
	r := answerOf(err)
	if errors.Is(err, intent.ErrDone) {
		r.Answer = Done
	}
	j.recorder.End(call, r)
}

// answerOf is the answer to a step that returned err.
func answerOf(err error) Record {
	r := Record{Answer: Failed}
	if err != nil {
		r.Note = err.Error()
	}
	switch lost, ok := errors.AsType[*intent.LeaseLostError](err); {
	case err == nil:
		r.Answer = OK
	case ok:
		r.Answer, r.On = Lost, string(lost.Stream)
		if lost.By != nil {
			r.By, r.ByToken = lost.By.Session, lost.By.Token
		}
	case errors.Is(err, intent.ErrLeaseLost):
		r.Answer = Lost
	case errors.Is(err, messagestore.ErrOutcomeUnknown):
		r.Answer = Unknown
	}
	return r
}

// answerTo is the answer to a request that was not granted.
func answerTo(a intent.Answer, err error) Record {
	if err != nil {
		return answerOf(err)
	}
	r := Record{By: a.Intent.Session, ByToken: a.Intent.Token, On: string(a.Intent.Stream)}
	switch a.Outcome {
	case intent.Held:
		r.Answer = Held
	case intent.KeyReused:
		r.Answer = Reused
	case intent.Done:
		r.Answer = Done
		result, err := intent.Result[string](a)
		if err != nil {
			r.Note = err.Error()
		}
		r.Result = result
	default:
		panic("an answer of no kind")
	}
	return r
}

// reserve asks until it is known whether the lease was granted.
func (j *job) reserve(ctx context.Context) *intent.Lease {
	for {
		call := j.begin(Reserve, "")
		a, err := j.intents.Reserve(ctx, j.request)
		if err == nil && a.Outcome == intent.Reserved {
			j.recorder.End(call, j.has(a.Lease))
			return a.Lease
		}
		answer := answerTo(a, err)
		j.recorder.End(call, answer)
		switch answer.Answer {
		case Unknown, Failed:
			if !crew.Pause(ctx, 20*time.Millisecond+j.random.Sooner(100*time.Millisecond)) {
				return nil
			}
		default:
			return nil
		}
	}
}

// newResult returns a result that no other call has.
func (j *job) newResult() string { return fmt.Sprintf("%s/%d", j.Process, j.sessions.Add(1)) }

// look looks whether work may begin, before it does.
func (j *job) look(at string, look func() error) error {
	call := j.begin(Work, "")
	err := look()
	r := answerOf(err)
	if err == nil {
		r.Note = at
	}
	j.recorder.End(call, r)
	return err
}

// effect has the resource do something.
func (j *job) effect() error {
	for _, k := range j.keys {
		if err := j.customer.write(write{k.Stream, k.Token, j.Process}); err != nil {
			return err
		}
	}
	return nil
}

// do carries the intent out by [intent.Manager.Do], and heeds the context.
func (j *job) do(ctx context.Context) {
	reserve := j.begin(Reserve, "")
	called := make(chan Record, 1) // the step that Do is to take
	answer, err := j.intents.Do(ctx, j.request, func(ctx context.Context, lease *intent.Lease) (any, error) {
		j.recorder.End(reserve, j.has(lease))
		j.Doom.Pass(atReserved)
		err := j.beats(ctx, lease)
		j.Doom.Pass(atWorked)
		if err == nil && j.random.Often(55) {
			err = errors.New("the work failed")
		}
		if err != nil {
			called <- j.begin(Release, "")
			return nil, err
		}
		result := j.newResult()
		called <- j.begin(Confirm, result)
		return result, nil
	})
	select {
	case step := <-called:
		r := answerOf(err)
		if step.Call == Release { // its outcome is not told
			r = Record{Answer: Unknown}
		} else if r.Answer == Failed {
			r.Answer = Unknown
		}
		j.recorder.End(step, r)
	default:
		if !errors.Is(err, intent.ErrGraceExceeded) {
			j.recorder.End(reserve, answerTo(answer, err))
		}
	}
}

// shared has two calls with one session carry the intent out at once.
func (j *job) shared(ctx context.Context) {
	other := &job{hand: j.client.hand(j.random.Uint64()), other: j.other, request: j.request}
	defer other.customer.Close()
	other.named()
	var both sync.WaitGroup
	both.Go(func() { other.do(ctx) })
	j.do(ctx)
	both.Wait()
}

// beats works for some time, while the lease is extended.
func (j *job) beats(ctx context.Context, lease *intent.Lease) error {
	for range 1 + j.random.IntN(3) {
		d := j.random.Sooner(60 * time.Millisecond)
		if j.random.Often(15) {
			d = j.random.Sooner(3 * ttl)
		}
		if !crew.Pause(ctx, d) {
			return context.Cause(ctx)
		}
		var err error
		if j.random.Often(50) {
			err = j.look(ofContext, func() error { return context.Cause(ctx) })
		} else {
			err = j.look("", lease.Err)
		}
		if err == nil {
			err = j.effect()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// steps takes each step in a separate call.
func (j *job) steps(ctx context.Context) {
	lease := j.reserve(ctx)
	if lease == nil {
		return
	}
	j.Doom.Pass(atReserved)
	if j.random.Often(15) { // an answer was lost
		if lease = j.reserve(ctx); lease == nil {
			return
		}
	}
	if len(j.keys) == 1 && j.random.Often(15) { // one of several is not resumed
		if lease = j.resume(ctx, lease); lease == nil {
			return
		}
	}
	if j.look("", lease.Err) != nil || j.effect() != nil {
		return
	}
	late := j.random.Often(50)
	for range j.random.IntN(3) {
		if crew.Pause(ctx, j.random.Sooner(ttl/4)); j.step(Extend, func() error { return lease.Extend(ctx) }) == Lost {
			return
		}
	}
	if late { // and looks at nothing
		crew.Pause(ctx, ttl*3/4+j.random.Sooner(ttl))
		if j.random.Often(20) { // its session asks again, and what it had stays lost
			newer := &job{hand: j.hand, request: j.request, other: j.other}
			newer.named()
			if l := newer.reserve(ctx); l != nil {
				defer newer.step(Release, func() error { return l.Release(ctx, "enough") })
			}
		}
	} else {
		crew.Pause(ctx, j.random.Sooner(ttl/3))
		if j.look("", lease.Err) != nil {
			return
		}
	}
	if j.effect() != nil {
		return
	}
	j.Doom.Pass(atWorked)
	// A key that is done ends the contention for it. So a late client confirms, and another mostly
	// releases.
	confirms := 25
	if late {
		confirms = 90
	}
	switch what := j.random.IntN(100); {
	case what < confirms/2, what < confirms && j.txs == nil:
		j.confirm(ctx, Confirm, func(result string) error { return lease.Confirm(ctx, result) })
	case what < confirms:
		j.confirm(ctx, Transact, func(result string) error { return j.transact(ctx, lease, result) })
	case what < 85:
		j.step(Release, func() error { return lease.Release(ctx, "enough") })
		j.Doom.Pass(atReleased)
	default: // and leaves
	}
	if late && crew.Pause(ctx, j.random.Sooner(ttl)) { // and goes on
		_ = j.effect()
	}
}

// inTransaction confirms at once, in a transaction that takes its time.
func (j *job) inTransaction(ctx context.Context) {
	lease := j.reserve(ctx)
	if lease == nil || j.look("", lease.Err) != nil || j.effect() != nil {
		return
	}
	j.confirm(ctx, Transact, func(result string) error { return j.transact(ctx, lease, result) })
}

func (j *job) step(call string, f func() error) (answer string) {
	c := j.begin(call, "")
	r := answerOf(f())
	j.recorder.End(c, r)
	return r.Answer
}

func (j *job) resume(ctx context.Context, lease *intent.Lease) *intent.Lease {
	call := j.begin(Resume, "")
	resumed, err := j.intents.Resume(ctx, "", j.request.Key, lease.Session(), lease.Token())
	j.recorder.End(call, answerOf(err))
	return resumed
}

// confirm tries again with the same result until it knows the outcome.
func (j *job) confirm(ctx context.Context, call string, f func(result string) error) {
	result := j.newResult()
	for range 4 {
		c := j.begin(call, result)
		if point := map[string]crew.Point{Confirm: atConfirmSent, Transact: atCommit}[call]; point == j.Doom.Point {
			soon := time.AfterFunc(j.random.Sooner(3*time.Millisecond), func() { j.Doom.Pass(point) })
			defer soon.Stop()
		}
		err := f(result)
		r := answerOf(err)
		j.recorder.End(c, r)
		if r.Answer != Unknown && r.Answer != Failed {
			break
		}
		if !crew.Pause(ctx, 20*time.Millisecond+j.random.Sooner(200*time.Millisecond)) {
			return
		}
	}
	j.Doom.Pass(atConfirmed)
}

// transact confirms in a transaction with a row of its own table.
func (j *job) transact(ctx context.Context, lease *intent.Lease, result string) error {
	_, err := j.txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.Exec(ctx, "insert into "+table+" (stream, token, result) values ($1, $2, $3)", j.keys[0].Stream, lease.Token(), result)
		switch { // and has more to do
		case j.Long:
			crew.Pause(ctx, j.random.Sooner(ttl/4))
		case j.random.Often(30):
			crew.Pause(ctx, j.random.Sooner(ttl/10))
		}
		return lease.Confirmation(result), err
	})
	if err != nil && lease.Lost(err) {
		err = fmt.Errorf("%w: %w", intent.ErrLeaseLost, err)
	}
	return err
}
