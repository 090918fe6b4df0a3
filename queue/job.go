package queue

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// A Job is a delivery of an item: to a handler, which finds it with [JobOf], or by [Queue.Receive]. It is safe for
// concurrent use. One of Complete, Retry, Defer and Bury ends it, for ever, and so does the return of its handler; a second
// is [ErrLost] unless it is the same.
//
// From such a call on, unless it is refused as invalid, its caller is done with the item, also if the answer is lost: the item, or
// the next of its key, may be with another worker at once, while the handler and its context go on.
type Job struct {
	// Message is the item. It is read-only.
	Message *messagestore.Message

	// Failures is how many failures the item had before, and Deliveries how often it was delivered before.
	Failures   int
	Deliveries int

	queue     *Queue
	delivery  queuing.Delivery
	end       func(ctx context.Context, f queuing.Finish, why error) (queuing.Ending, error)
	sessions  func() []int64 // that may have it
	notes     *work.Notes    // of the session
	lost      func() bool    // whether it has ended, as far as the process knows
	lease     time.Duration  // of a session of its own; 0 in a worker
	committed *atomic.Bool   // CompleteTx was called
}

type jobKey struct{}

// JobOf returns the job that a handler works on, or nil if ctx is of no handler of a queue.
func JobOf(ctx context.Context) *Job {
	if ctx == nil {
		return nil
	}
	job, _ := ctx.Value(jobKey{}).(*Job)
	return job
}

// Complete finishes the item. A handler may call it before it returns, and do then what may fail without the item being
// delivered again, such as to log; its error is logged then, and changes nothing. The error matches [ErrLost] if the
// item was given to another worker by then. An error that matches [messagestore.ErrOutcomeUnknown], or any other, may be
// followed by another call. After [Job.CompleteTx] it tells whether that was committed.
func (j *Job) Complete(ctx context.Context) error {
	return j.finish(ctx, "complete", queuing.Complete, 0, nil)
}

// Retry gives the item back as a failure, to be delivered again after d, up to 100 years, or dead with the last one. A d below
// 0 is 0.
// Err is kept in the item's log.
func (j *Job) Retry(ctx context.Context, d time.Duration, err error) error {
	return j.finish(ctx, "retry", queuing.Retry, d, err)
}

// Defer gives the item back, to be delivered again after d, up to 100 years. It counts no failure. A d below 0 is 0.
func (j *Job) Defer(ctx context.Context, d time.Duration) error {
	return j.finish(ctx, "defer", queuing.Defer, d, nil)
}

// Bury makes the item dead. Err is kept in its log.
func (j *Job) Bury(ctx context.Context, err error) error {
	return j.finish(ctx, "bury", queuing.Bury, 0, err)
}

func (j *Job) finish(ctx context.Context, what string, kind queuing.Kind, delay time.Duration, why error) error {
	if err := j.use(ctx); err != nil {
		return err
	}
	delay = max(delay, 0)
	if err := checkDuration("delay", delay, 0, queuing.MaxDelay); err != nil {
		return j.fail(what, err)
	}
	if kind == queuing.Complete && j.committed.Load() { // to complete it again would wait for the transaction
		kind = queuing.Committed
	}
	finish := queuing.Finish{Delivery: j.delivery, Kind: kind, Delay: delay, Error: errorText(why)}
	ending, err := j.end(ctx, finish, why)
	switch {
	case err != nil || ending == queuing.Done:
	case ending == queuing.Open:
		err = work.ErrUncommitted
	default:
		err = ErrLost
	}
	return j.fail(what, err)
}

// CompleteTx finishes the item in a transaction of the caller's on the queue's database, whose writes and SQL are then made
// once: a pgx.Tx, or on SQLite a *sql.Tx, or the transaction of a function of [messagestore.TxStore.Transact], with that
// function's context. Any other is refused before anything is done: the error matches [messagestore.ErrNotSupported].
//
// The error matches [ErrLost] if the item was given to another worker, or tx is of another database: roll back then. When the
// handler returns, its worker asks the store whether the transaction was committed. If it was, an error of the handler is
// logged and changes nothing. If it was not, the error says what becomes of the item as ever; after nil the worker waits
// for the commit for as long as a handler may take, and then counts a failure.
func (j *Job) CompleteTx(ctx context.Context, tx any) error {
	if err := j.use(ctx); err != nil {
		return err
	}
	over, err := j.queue.store.Over(ctx, tx)
	if err != nil {
		return j.fail("complete", err)
	}
	driver, err := queuing.Of(over)
	if err != nil {
		return j.fail("complete", err)
	}
	done, err := j.finishIn(ctx, driver)
	if err == nil && !done {
		err = ErrLost
	} else {
		j.committed.Store(true) // or an unknown outcome
	}
	return j.fail("complete", err)
}

// finishIn completes the delivery in a transaction, and reports whether it has. The worker may move it to another session
// meanwhile.
func (j *Job) finishIn(ctx context.Context, driver queuing.Driver) (bool, error) {
	var tried []int64
	for {
		sessions := slices.DeleteFunc(j.sessions(), func(session int64) bool { return slices.Contains(tried, session) })
		if len(sessions) == 0 {
			return false, nil
		}
		endings, err := driver.QueueFinish(ctx, j.queue.of, sessions[0], []queuing.Delivery{j.delivery})
		if err != nil || len(endings) == 1 && endings[0] == queuing.Done {
			return err == nil, err
		}
		tried = append(tried, sessions[0])
	}
}

// Extend has a job of [Queue.Receive] last for d from now on, 10 ms to 24 hours, and with it all jobs of that call; it never
// shortens their time. The error matches [ErrLost] if the item is the caller's no more. A worker extends the jobs of its
// handlers by itself, up to [WorkConfig.Timeout], and refuses this.
func (j *Job) Extend(ctx context.Context, d time.Duration) error {
	if err := j.use(ctx); err != nil {
		return err
	}
	if j.lease == 0 {
		return j.fail("extend", messagestore.NewInvalidError("job", nil, "a worker extends its jobs by itself: give the worker a longer Timeout"))
	}
	if err := checkDuration("time", d, queuing.MinLease, queuing.MaxLease); err != nil {
		return j.fail("extend", err)
	}
	news, version := j.notes.News()
	lost, err := j.queue.driver.QueueExtend(ctx, queuing.Extension{
		Queue: j.queue.of, Session: j.sessions()[0], Lease: d, Deliveries: []queuing.Delivery{j.delivery}, Notes: news,
	})
	if err == nil {
		j.notes.Stored(version)
	}
	if err == nil && len(lost) > 0 {
		err = ErrLost
	}
	return j.fail("extend", err)
}

// Progress notes how far the job is: at most 1 KiB of visible text, which [Queue.Items] and dibs queue jobs show while it runs. It
// makes no call of the store: the note goes with the next extension of the session, of a worker each third of its lease,
// of a job of [Queue.Receive] by [Job.Extend], and at most once a second. The last note wins; an empty one removes it. A note
// of a delivery that has ended is never shown, and none outlives its delivery. The error matches [ErrLost] if the
// process knows that the delivery has ended.
func (j *Job) Progress(note string) error {
	switch {
	case j == nil || j.queue == nil:
		return messagestore.NewInvalidError("job", nil, "it is of no queue")
	case !isNote(note):
		return j.fail("progress", messagestore.NewInvalidError("note", note, fmt.Sprintf("it is at most %d bytes of visible text", queuing.MaxNoteBytes)))
	case j.lost():
		return j.fail("progress", ErrLost)
	}
	j.notes.Set(j.delivery, note)
	return nil
}

func isNote(note string) bool {
	if len(note) > queuing.MaxNoteBytes || !utf8.ValidString(note) {
		return false
	}
	for _, r := range note {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

func (j *Job) use(ctx context.Context) error {
	switch {
	case j == nil || j.queue == nil:
		return messagestore.NewInvalidError("job", nil, "it is of no queue")
	case ctx == nil:
		return messagestore.NewInvalidError("context", nil, "it is nil")
	}
	return nil
}

func (j *Job) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	return j.queue.fail(fmt.Sprintf("%s %s", what, j.Message), err)
}

// errorText is the text of an error that the store keeps.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return text.Log(err)
}
