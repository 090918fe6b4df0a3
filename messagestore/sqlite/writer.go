package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// The limits of the queue of jobs and of a group commit.
const (
	queueLength   = 1024     // jobs that wait; further jobs wait to enter the queue
	maxGroupBytes = 16 << 20 // of one commit, unless a single job has more

	// outcomeGrace is how long a caller waits for a commit under way after its context has ended.
	// So a call returns within a second after its deadline.
	outcomeGrace = 500 * time.Millisecond
)

// writer is the only connection that writes, and its goroutine. All jobs that come while a commit
// is under way go into the next commit.
type writer struct {
	connection
	db      *sql.DB
	timeout time.Duration
	most    int

	queue chan *ticket
	group []*ticket     // of the turn
	quit  chan struct{} // closed to stop
	done  chan struct{} // closed when stopped

	held chan struct{} // holds a token while this process, or a caller's function, writes

	turns   turns
	commits atomic.Int64 // for the tests
	written atomic.Int64 // jobs in those commits
}

func (w *writer) start() {
	w.queue, w.quit, w.done = make(chan *ticket, queueLength), make(chan struct{}), make(chan struct{})
	w.held = make(chan struct{}, 1)
	go w.loop()
}

// stop waits for the commit under way.
func (w *writer) stop() {
	close(w.quit)
	<-w.done
}

// A ticket is a job in the queue. Until it is taken its caller may leave, and then it never runs.
// Once it is taken, its caller may only abandon it, and the outcome is unknown. An abandoned ticket
// does not run after the write lock was released, because Find may already have looked for its
// messages.
type ticket struct {
	*job
	since time.Time
	state atomic.Int32
	done  chan struct{}
	err   error // once done
}

const (
	waiting int32 = iota
	taken
	left
	abandoned
)

func (t *ticket) take() bool  { return t.state.CompareAndSwap(waiting, taken) }
func (t *ticket) leave() bool { return t.state.CompareAndSwap(waiting, left) }
func (t *ticket) abandon()    { t.state.CompareAndSwap(taken, abandoned) }

func (t *ticket) isAnswered() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

func (t *ticket) answer(err error) {
	t.err = err
	close(t.done)
}

// do queues a job and waits for its outcome. If the context ends before the job is taken, do
// returns the context's error, and nothing was written.
func (w *writer) do(ctx context.Context, j *job) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	t := &ticket{job: j, since: time.Now(), done: make(chan struct{})}
	select {
	case w.queue <- t:
	case <-ctx.Done():
		return ctx.Err()
	case <-w.quit:
		return messagestore.ErrClosed
	}
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		if t.leave() {
			return ctx.Err()
		}
	case <-w.done:
		if t.leave() {
			return messagestore.ErrClosed
		}
	}
	grace := time.NewTimer(outcomeGrace)
	defer grace.Stop()
	select {
	case <-t.done:
		return t.err
	case <-grace.C:
		t.abandon()
		return j.unknown(ctx.Err())
	}
}

func (w *writer) loop() {
	defer close(w.done)
	defer w.drop()
	for {
		select {
		case <-w.quit:
			return // callers in the queue see w.done
		case first := <-w.queue:
			if err := calling.Call(func() error { w.turn(first); return nil }); err != nil {
				w.broken(err, first)
			}
		}
	}
}

// broken ends a turn after a panic: the panic is the error of all jobs without an answer. It drops
// the connection, which rolls back their writes unless they are committed already.
func (w *writer) broken(err error, first *ticket) {
	w.refuse(first, err)
	for _, t := range w.group {
		if !t.isAnswered() {
			t.answer(t.unknown(err))
		}
	}
	w.group = nil
	_ = calling.Call(func() error { w.rollback(); return nil })
	_ = calling.Call(func() error { w.drop(); return nil })
}

// turn commits first, and the tickets that are queued behind it by then, as one group.
func (w *writer) turn(first *ticket) {
	if pause := w.turns.pause(time.Now()); pause > 0 && !w.sleep(pause) {
		w.refuse(first, messagestore.ErrClosed)
		return
	}
	if err := w.lock(context.Background(), first.since); err != nil {
		w.refuse(first, err)
		return
	}
	defer w.release()
	if err := w.begin(first); err != nil {
		w.refuse(first, err)
		return
	}
	group := w.gather(first)
	if len(group) == 0 {
		w.rollback()
		return
	}
	w.commit(group)
	w.group = nil
	w.turns.released = time.Now()
}

// errTransacting is the reason when a writer waits for its own process.
var errTransacting = errors.New("a transaction of this process is under way")

// lock makes the two writing connections of the process take turns, in the order of asking; SQLite
// would let them ask again and again.
func (w *writer) lock(ctx context.Context, since time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-w.quit:
		return messagestore.ErrClosed
	default:
	}
	select {
	case w.held <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(max(0, w.timeout-time.Since(since)))
	defer timer.Stop()
	select {
	case w.held <- struct{}{}:
		return nil
	case <-timer.C:
		return &busyError{waited: time.Since(since), cause: errTransacting}
	case <-ctx.Done():
		return ctx.Err()
	case <-w.quit:
		return messagestore.ErrClosed
	}
}

func (w *writer) release() { <-w.held }

// unlock is release for the other connection of this process, so that its commits do not count as
// another process's.
func (w *writer) unlock() {
	w.turns.commits = 0
	w.release()
}

func (w *writer) refuse(t *ticket, err error) {
	if t.take() {
		t.answer(err)
	}
}

// begin takes the write lock for t, and stops waiting when t is abandoned.
func (w *writer) begin(t *ticket) error {
	for {
		err := w.exec(beginSQL)
		now := time.Now()
		if err == nil {
			if _, err = scanOne(context.Background(), w.on, dataVersionSQL, nil, dataVersion{&w.turns, now}); err != nil {
				w.rollback()
			}
			return err
		}
		if !isBusy(err) {
			w.drop()
			return err
		}
		w.turns.saw(now)
		if waited := now.Sub(t.since); waited >= w.timeout {
			return &busyError{waited: waited, cause: err}
		}
		if t.state.Load() == left {
			return context.Canceled // nobody hears it
		}
		if !w.sleep(jitter(askEvery)) {
			return messagestore.ErrClosed
		}
	}
}

// dataVersion scans the result of PRAGMA data_version.
type dataVersion struct {
	turns *turns
	now   time.Time
}

// Scan implements [sql.Scanner].
func (d dataVersion) Scan(value any) error {
	n, ok := value.(int64)
	if !ok {
		return fmt.Errorf("data_version is %T", value)
	}
	d.turns.took(n, d.now)
	return nil
}

// gather takes tickets from the queue, up to the bounds of a group.
func (w *writer) gather(first *ticket) []*ticket {
	runtime.Gosched() // callers of the last group may be about to ask again
	w.group = nil
	size := 0
	add := func(t *ticket) {
		if t.take() {
			w.group = append(w.group, t)
			size += t.size
		}
	}
	add(first)
	for len(w.group) < w.most && size < maxGroupBytes {
		select {
		case t := <-w.queue:
			add(t)
		default:
			return w.group
		}
	}
	return w.group
}

// commit runs a group in the transaction that was begun, and answers all of it.
func (w *writer) commit(group []*ticket) {
	ctx := context.Background() // not a caller's: if one caller leaves, the others go on
	outcomes := make([]error, len(group))
	for i, t := range group {
		if outcomes[i] = t.run(ctx, w.on); isAnswer(outcomes[i]) {
			continue
		}
		// SQLite may or may not have rolled back the whole transaction. This makes sure.
		w.rollback()
		w.drop()
		if len(group) == 1 {
			t.answer(outcomes[i])
			return
		}
		w.commitOneByOne(group)
		return
	}
	err := w.commitNow()
	if err == nil {
		w.commits.Add(1)
		w.written.Add(int64(len(group)))
	}
	for i, t := range group {
		switch {
		case err == nil:
			t.answer(outcomes[i])
		case isBusy(err):
			t.answer(&busyError{waited: w.timeout, cause: err})
		default:
			t.answer(t.unknown(err))
		}
	}
}

// commitOneByOne runs each job of a group in its own transaction, so that a failing job does not
// affect the others. If another process keeps the lock, they wait for it together.
func (w *writer) commitOneByOne(group []*ticket) {
	since := time.Now()
	for _, t := range group {
		switch err := w.begin(&ticket{job: t.job, since: since}); {
		case err != nil:
			t.answer(err)
		case t.state.Load() == abandoned:
			w.rollback()
			t.answer(context.Canceled) // nobody hears it
		default: // a caller that abandons it from here on cannot look for it before the commit
			w.commit([]*ticket{t})
		}
	}
}

// commitNow commits. If a lock prevents that, the transaction goes on and commitNow tries again
// (https://www.sqlite.org/lang_transaction.html); in the end it rolls back, and nothing was
// written.
//
// After any other failure the outcome is unknown, although the transaction is rolled back: it may
// have reached the log before the failure, and SQLite would find it there after a crash.
// [Driver.Find] settles it.
func (w *writer) commitNow() error {
	err := retry(context.Background(), w.timeout, func() error { return w.exec(commitSQL) })
	if err != nil {
		w.rollback()
		w.drop()
	}
	return err
}

func (w *writer) exec(statement string) error {
	if w.conn == nil {
		conn, err := w.db.Conn(context.Background())
		if err != nil {
			return err
		}
		w.connection = connection{conn, newPrepared(conn)}
	}
	_, err := w.on.ExecContext(context.Background(), statement)
	return err
}

// rollback ends the transaction. If that fails, it closes the connection, which ends it too.
func (w *writer) rollback() {
	if err := w.exec(rollbackSQL); err != nil {
		w.drop()
	}
}

// sleep returns false if the writer is to stop.
func (w *writer) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-w.quit:
		return false
	case <-timer.C:
		return true
	}
}

// writes runs a job in a transaction that can write: the writer's next one, or the caller's.
type writes interface {
	do(ctx context.Context, j *job) error
}

// A job is one call's part of a transaction. It may run again if the transaction did not happen.
type job struct {
	run func(ctx context.Context, db queryer) error

	// unknown makes the call's error if nobody knows whether the transaction was committed.
	unknown func(cause error) error

	size int // bytes that it writes, roughly
}
