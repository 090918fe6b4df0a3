package intents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation/intent"
)

// Variable is set in the environment of a process of a run: its task, as JSON.
const Variable = "DIBS_SOAK_INTENTS"

// A task is the work of a process, until its standard input ends. Once something is written to that, the
// process dies at no failpoint any more.
type task struct {
	Process    string // a name that no other process has; "" for the resource
	Seed       uint64
	URL        string // of the store
	Dir        string // of the histories
	Socket     string // of the resource
	Began      int64  // when the run did, from which keys are counted
	Goroutines int
	Point      string // the failpoint at which the process dies, "" for none
	Turn       int64  // when it passes the point for this time
	Long       bool   // transactions take long, while others ask for their keys
}

// connections of each process: to make one again costs the server some 20 ms.
const connections = 4

// The failpoints of a client.
const (
	atReserved    = "intent/reserved"
	atWorked      = "intent/worked"
	atConfirmSent = "intent/confirm-sent"
	atCommit      = "intent/commit"
	atConfirmed   = "intent/confirmed"
	atReleased    = "intent/released"
)

var points = []string{atReserved, atWorked, atConfirmSent, atCommit, atConfirmed, atReleased}

// killedAt begins the line that a process writes to standard error before it kills itself.
const killedAt = "failpoint: killed at "

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

func runProcess(encoded string) error {
	var t task
	if err := json.Unmarshal([]byte(encoded), &t); err != nil {
		return err
	}
	if t.Process == "" {
		return serve(t.Dir, t.Socket)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := &client{task: t}
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1)) // until there are no more faults
		c.spared.Store(true)
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var err error
	if c.recorder, err = newRecorder(t.Dir, t.Process); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(t.URL)
	if err != nil {
		return err
	}
	config.MaxConns = connections
	config.ConnConfig.ConnectTimeout = 2 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	store := must.New(messagestore.New(must.New(postgres.New(pool, nil)), nil))
	if c.txs, err = messagestore.Transactional[pgx.Tx](store); err != nil {
		return err
	}
	if c.intents, err = intent.New(store, Category, &intent.Config{TTL: ttl, Turn: turn, Grace: time.Minute, Name: t.Process}); err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := range t.Goroutines {
		all.Go(func() { c.hand(uint64(i)).work(ctx) }) //nolint:gosec // a few
	}
	all.Wait()
	return errors.Join(store.Close(), c.recorder.Close())
}

// A client is a process that carries intents out. It is safe for concurrent use.
type client struct {
	task     task
	recorder *recorder
	txs      *messagestore.TxStore[pgx.Tx]
	intents  *intent.Manager
	spared   atomic.Bool
	passed   atomic.Int64
	sessions atomic.Int64
}

// pass dies if this is the moment.
func (c *client) pass(point string) {
	if point != c.task.Point || c.passed.Add(1) != c.task.Turn || c.spared.Load() {
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
	select {} // until the signal is here
}

// A hand is one goroutine of a client.
type hand struct {
	*client
	random   *rand.Rand
	zipf     *rand.Zipf
	customer customer
}

func (c *client) hand(i uint64) *hand {
	random := rand.New(rand.NewPCG(c.task.Seed, i))
	return &hand{client: c, random: random, zipf: rand.NewZipf(random, skew, 1, keys-1), customer: customer{socket: c.task.Socket}}
}

// sooner returns a time of up to d.
func (h *hand) sooner(d time.Duration) time.Duration { return time.Duration(h.random.Int64N(int64(d))) }

// often is true so many times in a hundred.
func (h *hand) often(percent int) bool { return h.random.IntN(100) < percent }

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

// key draws one of the keys that are in use now: they change with time.
func (h *hand) key() string {
	age, lasts := now()-h.task.Began, keyTime
	if h.task.Long { // when a key is done, the contention for it ends
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

// contentOf returns the content of a request for any key: several are asked for by one request.
func contentOf(other bool) any { return map[string]any{"pay": 1, "other": other} }

// job draws a request.
func (h *hand) job() *job {
	j := &job{hand: h, other: h.often(2)}
	j.request = intent.Request{Key: h.key(), Session: fmt.Sprintf("%s/%d", h.task.Process, h.sessions.Add(1)), Content: contentOf(j.other)}
	if h.often(10) {
		for range 1 + h.random.IntN(2) {
			if key := h.key(); key != j.request.Key && !slices.Contains(j.request.With, key) {
				j.request.With = append(j.request.With, key)
			}
		}
	}
	if h.often(30) {
		j.request.Wait = h.sooner(maxWait)
	}
	j.named()
	return j
}

// work carries out one intent after the other.
func (h *hand) work(ctx context.Context) {
	defer h.customer.Close()
	for pause(ctx, h.sooner(20*time.Millisecond)) {
		switch j, what := h.job(), h.random.IntN(100); {
		case what < 22:
			j.do(ctx)
		case what < 30:
			j.shared(ctx)
		case what < 34:
			j.await(ctx)
		case what < 36:
			j.force(ctx)
		case h.task.Long && what < 70:
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
	return j.recorder.begin(Record{
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
	j.recorder.end(call, r)
}

// force is an operator.
func (j *job) force(ctx context.Context) {
	call := j.begin(Force, "")
	err := j.intents.ForceRelease(ctx, "", j.request.Key, "an operator has had enough")
	r := answerOf(err)
	if errors.Is(err, intent.ErrDone) {
		r.Answer = Done
	}
	j.recorder.end(call, r)
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
			j.recorder.end(call, j.has(a.Lease))
			return a.Lease
		}
		answer := answerTo(a, err)
		j.recorder.end(call, answer)
		switch answer.Answer {
		case Unknown, Failed:
			if !pause(ctx, 20*time.Millisecond+j.sooner(100*time.Millisecond)) {
				return nil
			}
		default:
			return nil
		}
	}
}

// newResult returns a result that no other call has.
func (j *job) newResult() string { return fmt.Sprintf("%s/%d", j.task.Process, j.sessions.Add(1)) }

// look looks whether work may begin, before it does.
func (j *job) look(at string, look func() error) error {
	call := j.begin(Work, "")
	err := look()
	r := answerOf(err)
	if err == nil {
		r.Note = at
	}
	j.recorder.end(call, r)
	return err
}

// effect has the resource do something.
func (j *job) effect() error {
	for _, k := range j.keys {
		if err := j.customer.write(Write{Key: k.Stream, Token: k.Token, From: j.task.Process}); err != nil {
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
		j.recorder.end(reserve, j.has(lease))
		j.pass(atReserved)
		err := j.beats(ctx, lease)
		j.pass(atWorked)
		if err == nil && j.often(55) {
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
		j.recorder.end(step, r)
	default:
		if !errors.Is(err, intent.ErrGraceExceeded) {
			j.recorder.end(reserve, answerTo(answer, err))
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
		d := j.sooner(60 * time.Millisecond)
		if j.often(15) {
			d = j.sooner(3 * ttl)
		}
		if !pause(ctx, d) {
			return context.Cause(ctx)
		}
		var err error
		if j.often(50) {
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

// steps takes each step by itself.
func (j *job) steps(ctx context.Context) {
	lease := j.reserve(ctx)
	if lease == nil {
		return
	}
	j.pass(atReserved)
	if j.often(15) { // an answer was lost
		if lease = j.reserve(ctx); lease == nil {
			return
		}
	}
	if len(j.keys) == 1 && j.often(15) { // one of several is not resumed
		if lease = j.resume(ctx, lease); lease == nil {
			return
		}
	}
	if j.look("", lease.Err) != nil || j.effect() != nil {
		return
	}
	late := j.often(50)
	for range j.random.IntN(3) {
		if pause(ctx, j.sooner(ttl/4)); j.step(Extend, func() error { return lease.Extend(ctx) }) == Lost {
			return
		}
	}
	if late { // and looks at nothing
		pause(ctx, ttl*3/4+j.sooner(ttl))
	} else {
		pause(ctx, j.sooner(ttl/3))
		if j.look("", lease.Err) != nil {
			return
		}
	}
	if j.effect() != nil {
		return
	}
	j.pass(atWorked)
	// A key that is done ends the contention for it. So a late client confirms, and another mostly releases.
	confirms := 25
	if late {
		confirms = 90
	}
	switch what := j.random.IntN(100); {
	case what < confirms/2:
		j.confirm(ctx, Confirm, func(result string) error { return lease.Confirm(ctx, result) })
	case what < confirms:
		j.confirm(ctx, Transact, func(result string) error { return j.transact(ctx, lease, result) })
	case what < 85:
		j.step(Release, func() error { return lease.Release(ctx, "enough") })
		j.pass(atReleased)
	default: // and leaves
	}
	if late && pause(ctx, j.sooner(ttl)) { // and goes on
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
	j.recorder.end(c, r)
	return r.Answer
}

func (j *job) resume(ctx context.Context, lease *intent.Lease) *intent.Lease {
	call := j.begin(Resume, "")
	resumed, err := j.intents.Resume(ctx, "", j.request.Key, lease.Session(), lease.Token())
	j.recorder.end(call, answerOf(err))
	return resumed
}

// confirm tries again with the same result until it knows the outcome.
func (j *job) confirm(ctx context.Context, call string, f func(result string) error) {
	result := j.newResult()
	for range 4 {
		c := j.begin(call, result)
		if point := map[string]string{Confirm: atConfirmSent, Transact: atCommit}[call]; point == j.task.Point {
			soon := time.AfterFunc(j.sooner(3*time.Millisecond), func() { j.pass(point) })
			defer soon.Stop()
		}
		err := f(result)
		r := answerOf(err)
		j.recorder.end(c, r)
		if r.Answer != Unknown && r.Answer != Failed {
			break
		}
		if !pause(ctx, 20*time.Millisecond+j.sooner(200*time.Millisecond)) {
			return
		}
	}
	j.pass(atConfirmed)
}

// transact confirms with a row of its own.
func (j *job) transact(ctx context.Context, lease *intent.Lease, result string) error {
	_, err := j.txs.Transact(ctx, "", func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.StreamWrite, error) {
		_, err := tx.Exec(ctx, "insert into "+table+" (stream, token, result) values ($1, $2, $3)", j.keys[0].Stream, lease.Token(), result)
		switch { // and has more to do
		case j.task.Long:
			pause(ctx, j.sooner(ttl/4))
		case j.often(30):
			pause(ctx, j.sooner(ttl/10))
		}
		return lease.Confirmation(result), err
	})
	if err != nil && lease.Lost(err) {
		err = fmt.Errorf("%w: %w", intent.ErrLeaseLost, err)
	}
	return err
}

// turnOf draws a turn: any order of magnitude is as likely as another.
func turnOf(random *rand.Rand, most int) int64 {
	return int64(math.Exp(random.Float64() * math.Log(float64(most))))
}
