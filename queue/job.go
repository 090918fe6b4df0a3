package queue

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/messagestore"
)

// A Job is a delivery of an item: to a handler, which finds it with [JobOf], or by [Queue.Receive].
// It is safe for concurrent use. Complete, Retry, Defer or Bury ends it for good, and so does the
// return of its handler. A second, different call returns [ErrLost].
//
// After such a call you are done with the item, even if the answer is lost, unless the call is
// refused as invalid. Another worker may have the item or the next one of its key at once, while
// the handler and its context go on.
type Job struct {
	// Message is the item. It is read-only.
	Message *messagestore.Message

	// Failures is how many failures the item had before. Deliveries is how often it was delivered
	// before.
	Failures   int
	Deliveries int

	queue     *Queue
	delivery  queuing.Delivery
	end       func(ctx context.Context, f queuing.Finish, why error) (queuing.Ending, error)
	sessions  func() []int64 // the sessions that may have it
	notes     *work.Notes    // of the session
	lost      func() bool    // whether it has ended, as far as this process knows
	lease     time.Duration  // of its own session; 0 in a worker
	committed *atomic.Bool   // CompleteTx was called
}

// JobOf returns the job that a handler works on, or nil if ctx does not come from a handler of a
// queue.
func JobOf(ctx context.Context) *Job {
	job, _ := calling.CallerOf(ctx).Job.(*Job)
	return job
}

// Delivery names the delivery, so that another process can end or extend it: see [Queue.Settle]. It
// is for jobs of [Queue.Receive]: a job of a handler has the zero Delivery, because its worker may
// move it to another session.
func (j *Job) Delivery() Delivery {
	if j == nil || j.queue == nil || j.lease == 0 {
		return Delivery{}
	}
	return Delivery{Position: j.delivery.Position, Version: j.delivery.Version, Session: j.sessions()[0]}
}

// Complete finishes the item. Call it before the handler returns if something may still fail, such
// as logging, without causing another delivery: from then on the handler's error is logged and
// changes nothing. The error matches [ErrLost] if another worker has the item by then. You may call
// again after an error, even if it matches [messagestore.ErrOutcomeUnknown]. After [Job.CompleteTx]
// it reports whether that transaction was committed.
func (j *Job) Complete(ctx context.Context) error {
	return j.finish(ctx, "complete", queuing.Complete, 0, nil)
}

// Retry gives the item back as a failure, to be delivered again after d, up to 100 years, or dead
// if that was its last failure. A d below 0 is 0. The error is kept in the item's log.
func (j *Job) Retry(ctx context.Context, d time.Duration, err error) error {
	return j.finish(ctx, "retry", queuing.Retry, d, err)
}

// Defer gives the item back without a failure, to be delivered again after d, up to 100 years. A d
// below 0 is 0.
func (j *Job) Defer(ctx context.Context, d time.Duration) error {
	return j.finish(ctx, "defer", queuing.Defer, d, nil)
}

// Bury makes the item dead. The error is kept in its log.
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
	if kind == queuing.Complete && j.committed.Load() { // completing it again would wait for the transaction
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

// CompleteTx finishes the item in your transaction on the queue's database, so that its writes and
// SQL take effect once: a pgx.Tx, or on SQLite a *sql.Tx, or the transaction of a function of
// [messagestore.TxStore.Transact], with that function's context. For any other tx the error matches
// [messagestore.ErrNotSupported], and nothing is done.
//
// The error matches [ErrLost] if another worker has the item, or if tx belongs to another database:
// then roll back. When the handler returns, its worker asks the store whether the transaction was
// committed. If it was, an error of the handler is logged and changes nothing. If it was not, the
// handler's error decides as usual. If the handler returned nil, the worker waits for the commit
// for as long as a handler may take, and then counts a failure.
func (j *Job) CompleteTx(ctx context.Context, tx any) error {
	if err := j.use(ctx); err != nil {
		return err
	}
	if err := j.queue.errRemote(); err != nil {
		return j.fail("complete", err)
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

// finishIn completes the delivery in a transaction, and reports whether it did. The worker may move
// the delivery to another session meanwhile.
func (j *Job) finishIn(ctx context.Context, driver queuing.Keeper) (bool, error) {
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

// Extend makes a job of [Queue.Receive] last for d from now on, 10 ms to 24 hours, and with it all
// jobs of that call; it never shortens their time. The error matches [ErrLost] if the item is not
// yours any more. A worker extends the jobs of its handlers, up to [WorkConfig.Timeout], so there
// Extend fails.
func (j *Job) Extend(ctx context.Context, d time.Duration) error {
	if err := j.use(ctx); err != nil {
		return err
	}
	if j.lease == 0 {
		return j.fail("extend", messagestore.NewInvalidError("job", nil, "must not be extended: its worker does that; give the worker a longer Timeout"))
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

// Progress sets a note on the job's progress: at most 1 KiB of visible text, which [Queue.Items]
// and dibs queue jobs show while the job runs. It makes no call of the store: the next extension of
// the session stores the note, at most once a second. A worker extends each third of its lease; for
// a job of [Queue.Receive], [Job.Extend] does. The last note wins; an empty note removes it. A note
// is never shown after its delivery has ended. A server keeps no notes for its clients. The error
// matches [ErrLost] if the process knows that the delivery has ended.
func (j *Job) Progress(note string) error {
	switch {
	case j == nil || j.queue == nil:
		return messagestore.NewInvalidError("job", nil, "must be a job of a queue")
	case !isNote(note):
		return j.fail("progress", messagestore.NewInvalidError("note", note, fmt.Sprintf("must be at most %d bytes of visible text", queuing.MaxNoteBytes)))
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

// use refuses a job that no queue made, and a nil context.
func (j *Job) use(ctx context.Context) error {
	if j == nil || j.queue == nil {
		return messagestore.NewInvalidError("job", nil, "must be a job of a queue")
	}
	return j.fail("call", checkContext(ctx))
}

func (j *Job) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	return j.queue.fail(fmt.Sprintf("%s %s", what, j.Message), err)
}

// errorText returns the text of an error as the store keeps it.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return text.Log(err)
}
