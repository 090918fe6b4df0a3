package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/retry"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/wakeups"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A Queue delivers the messages of one category to workers. The store knows it from the first Receive, Work, Cancel or Pause on: only
// then are its open items kept from a trim and a deletion. It is safe for concurrent use, and nothing has to close
// it. Two with the same name and category are the same queue.
type Queue struct {
	store  *messagestore.Store
	driver queuing.Driver
	of     queuing.Queue
	policy queuing.Policy
	config Config

	working atomic.Bool
	looked  atomic.Int64 // when it was looked whether workers free unique names; in the future where they do
	source  work.Source
	counts  work.Counts
}

// WhenDead says what becomes of the items behind one that is dead.
type WhenDead int

const (
	GoOn WhenDead = iota // they are delivered
	Hold                 // they wait until the dead one is retried and finished, or dropped
)

// Config changes how a [Queue] works. A nil *Config is a good one. Processes with different settings may work on one
// queue: an item is treated as the process says that gives it back.
type Config struct {
	// Name is the queue's: 1 to 255 bytes of visible text without white space, - and +. Several queues of one category each get
	// every item.
	//
	// Defaults to the category.
	Name string

	// MaxFailures is with how many failures an item is dead, 1 to 32,767.
	//
	// Defaults to 20.
	MaxFailures int

	// WhenDead says what becomes of the items of its key behind a dead one.
	//
	// Defaults to GoOn.
	WhenDead WhenDead

	// MaxOut is how many items may be out at a time, in all processes, 0 for any number.
	//
	// Defaults to 0.
	MaxOut int

	// Rate is how many items are delivered in a second at most, in all processes, 1e-6 to 1e9, and Burst how many at
	// once after a pause. A Rate of 0 is any number. A Burst of 0 is 1.
	//
	// Defaults to 0.
	Rate  float64
	Burst int

	// Logger receives a warning for each failure of a handler, an error for each dead item, and the outages of the
	// store. There is never an item's data in it, but the texts of handlers' errors and panics, and the names of streams, which have
	// the items' keys.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// New returns a queue over a category. The error names all mistakes and matches [messagestore.ErrInvalid]; it matches
// [messagestore.ErrNotSupported] for a store whose driver keeps no queues. New makes no round trip.
func New(store *messagestore.Store, category messagestore.Category, config *Config) (*Queue, error) {
	q := &Queue{store: store}
	if config != nil {
		q.config = *config
	}
	c := &q.config
	c.Name = cmp.Or(c.Name, string(category))
	c.MaxFailures = cmp.Or(c.MaxFailures, 20)
	wrong := []error{queuing.ValidateQueue(queuing.Queue{Name: c.Name, Category: category})}
	invalid := func(field string, value any, rule string) {
		wrong = append(wrong, messagestore.NewInvalidError(field, value, rule))
	}
	if c.MaxFailures < 1 || c.MaxFailures > queuing.MaxFailures {
		invalid("MaxFailures", c.MaxFailures, fmt.Sprintf("it is 1 to %d", queuing.MaxFailures))
	}
	if c.WhenDead != GoOn && c.WhenDead != Hold {
		invalid("WhenDead", int(c.WhenDead), "it is GoOn or Hold")
	}
	if c.MaxOut < 0 || c.MaxOut > math.MaxInt32 {
		invalid("MaxOut", c.MaxOut, "it is at least 1, or 0 for any number")
	}
	if !(c.Rate == 0 || c.Rate >= 1e-6 && c.Rate <= 1e9) { // not NaN
		invalid("Rate", c.Rate, "it is 1e-6 to 1e9 a second, or 0 for any number")
	}
	if c.Burst < 0 || c.Burst > math.MaxInt32 || c.Burst > 0 && c.Rate == 0 {
		invalid("Burst", c.Burst, "it is at least 1, with a Rate")
	}
	keeps, err := queuing.Of(store)
	wrong = append(wrong, err)
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q.driver = keeps
	q.of = queuing.Queue{Name: c.Name, Category: category}
	q.policy = queuing.Policy{MaxFailures: c.MaxFailures, Hold: c.WhenDead == Hold, MaxOut: c.MaxOut, Rate: c.Rate}
	if c.Rate > 0 {
		q.policy.Burst = max(c.Burst, 1)
	}
	q.source = work.Source{Watch: store.Watch, Outage: outage.Of(store), Driver: keeps, Queue: q.of, Policy: q.policy, Logger: c.Logger}
	return q, nil
}

// Name returns the queue's name, and Category the category that it reads.
func (q *Queue) Name() string { return q.of.Name }

// Category returns the category that the queue reads.
func (q *Queue) Category() messagestore.Category { return q.of.Category }

func (q *Queue) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("queue %s: %s: %w", q.of.Name, what, err)
}

// use refuses a queue or a context that is nil.
func (q *Queue) use(ctx context.Context) error {
	switch {
	case q == nil || q.driver == nil:
		return messagestore.NewInvalidError("queue", nil, "it is not one of New")
	case ctx == nil:
		return messagestore.NewInvalidError("context", nil, "it is nil")
	}
	return nil
}

// Status returns how the queue stands in its store. The error matches [messagestore.ErrNotFound] for a queue that nothing
// was ever reserved from by Receive or Work, nor changed.
func (q *Queue) Status(ctx context.Context) (Status, error) {
	if err := q.use(ctx); err != nil {
		return Status{}, err
	}
	all, err := q.driver.Queues(ctx)
	if err != nil {
		return Status{}, q.fail("status", err)
	}
	for _, s := range all {
		if s.Queue == q.of {
			return statusOf(s), nil
		}
	}
	return Status{}, q.fail("status", messagestore.ErrNotFound)
}

// Item returns what is known of the item at a position, with its log. The error matches [messagestore.ErrNotFound] if
// there is none.
func (q *Queue) Item(ctx context.Context, position messagestore.GlobalPosition) (Item, error) {
	if err := q.use(ctx); err != nil {
		return Item{}, err
	}
	if err := checkPosition(position); err != nil {
		return Item{}, q.fail("item", err)
	}
	item, err := q.driver.QueueItem(ctx, q.of, position)
	return itemOf(item), q.fail(fmt.Sprintf("item %d", position), err)
}

// awaitPoll is how often Await looks at its item at first, and slowestPoll later: no write tells that an item is finished.
const (
	awaitPoll   = 100 * time.Millisecond
	slowestPoll = time.Second
)

// Await waits until the item at a position is finished or dead, and returns it, and in the order of the streams in the messages
// there that have it as their cause ([messagestore.Follow]): its result, if the handler wrote one before it ended. The item's log
// has its failures, and whether it was cancelled or dropped. A dead item may be retried later.
//
// It looks when something was written to the category of a stream in in, and every 100 ms, after ten seconds every second.
// If ctx ends first, the item as it was last comes with the error of ctx. The error matches [messagestore.ErrNotFound] for
// a position at which the queue's category has no message: of another category, not committed yet, or removed; and
// [messagestore.ErrInvalid] for a position or name that cannot be.
func (q *Queue) Await(ctx context.Context, position messagestore.GlobalPosition, in ...messagestore.StreamName) (Item, []*messagestore.Message, error) {
	if err := q.use(ctx); err != nil {
		return Item{}, nil, err
	}
	err := checkPosition(position)
	for _, name := range in {
		err = errors.Join(err, name.Validate())
	}
	if err != nil {
		return Item{}, nil, q.fail("await", err)
	}
	item, err := q.awaitEnd(ctx, position, in)
	var found []*messagestore.Message
	for i := 0; i < len(in) && err == nil && item.Message != nil; i++ {
		var some []*messagestore.Message
		if slices.Contains(in[:i], in[i]) {
			continue
		}
		some, err = wakeups.FollowersIn(ctx, q.store, in[i], position, func(m *messagestore.Message) bool {
			return m.Metadata.CausationStream == item.Message.Stream && m.Metadata.CausationPosition == item.Message.Position
		})
		found = append(found, some...)
	}
	return item, found, q.fail(fmt.Sprintf("await %d", position), err)
}

func (q *Queue) awaitEnd(ctx context.Context, position messagestore.GlobalPosition, in []messagestore.StreamName) (last Item, err error) {
	changed, stop := wakeups.WatchStreams(q.store, awaitPoll, in...)
	defer stop()
	for began := time.Now(); ; {
		found, err := q.driver.QueueItem(ctx, q.of, position)
		item := itemOf(found)
		switch {
		case err != nil && ctx.Err() != nil:
			return last, ctx.Err()
		case err != nil || item.State == Finished || item.State == Dead:
			return item, err
		}
		last = item
		timer := time.NewTimer(min(max(time.Since(began)/10, awaitPoll), slowestPoll))
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return last, ctx.Err()
		}
	}
}

// Items returns items that are not finished and in a state, in order of position from one on: at most limit, 1 to 1,000, and no more
// after the one with which their messages have 4 MiB of data. To list all, ask on from behind the last until none comes.
func (q *Queue) Items(ctx context.Context, state State, from messagestore.GlobalPosition, limit int) ([]Item, error) {
	err := q.use(ctx)
	switch {
	case err != nil:
		return nil, err
	case state != Waiting && state != Out && state != Later && state != Suspended && state != Held && state != Dead:
		err = messagestore.NewInvalidError("state", string(state), "it is waiting, out, later, held or dead")
	case from < 0:
		err = messagestore.NewInvalidError("from", int64(from), "it is a position from 0")
	case limit < 1 || limit > queuing.MaxItems:
		err = messagestore.NewInvalidError("limit", limit, fmt.Sprintf("it is 1 to %d", queuing.MaxItems))
	}
	var found []queuing.Item
	if err == nil {
		found, err = q.driver.QueueItems(ctx, queuing.List{Queue: q.of, State: queuing.State(state), From: from, Limit: limit})
	}
	var items []Item
	for _, item := range found {
		items = append(items, itemOf(item))
	}
	return items, q.fail("items", err)
}

// Retry has later and dead items, at 1 to 1,000 positions, offered now, and returns the positions of those that were. The failures of a dead one count
// anew, and it takes its place in its key again: it waits for the one that is out and for earlier ones that are open, and goes before
// all later ones. One that would wait for an item that a transaction is completing just then stays dead: ask again. The reason is for
// the item's log, and may be empty.
func (q *Queue) Retry(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.RetryNow, reason, positions)
}

// Drop finishes later, held and dead items, at 1 to 1,000 positions, without a worker, and returns the positions of those that were. The reason is for the
// item's log.
func (q *Queue) Drop(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.Drop, reason, positions)
}

// Cancel finishes items at 1 to 1,000 positions in any state, also those that no worker has met yet, and returns the positions of those that were
// not finished. The context of a handler that works on one ends with [ErrLost], within a third of its worker's lease.
func (q *Queue) Cancel(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.Cancel, reason, positions)
}

// Pause has no process reserve an item until [Queue.Resume]. Items that are out go on. It outlives restarts.
func (q *Queue) Pause(ctx context.Context) error {
	_, err := q.change(ctx, queuing.Pause, "", nil)
	return err
}

// Resume ends a pause.
func (q *Queue) Resume(ctx context.Context) error {
	_, err := q.change(ctx, queuing.Resume, "", nil)
	return err
}

// RemoveOpts change a call of [Queue.Remove]. A nil *RemoveOpts is a good one.
type RemoveOpts struct {
	// Unfinished removes the queue also if there are items that are not finished.
	Unfinished bool

	// FreeName keeps no name: a worker that begins, or still runs, has a new queue, and is given every message that its category
	// still has. It frees the name of a queue that was removed before, too.
	FreeName bool
}

// Remove ends the queue: the store keeps no message for it any more, and forgets what it knew of its items. The messages stay. It
// removes a queue that nothing works on any more, and that would keep its category from being trimmed.
//
// The name is kept: a worker that still runs, or begins later, ends with [ErrRemoved], since it would begin with the first message
// of the category. The name of a queue that no worker ever took from is free. The error is an [*UnfinishedError] if there are items
// that are not finished, and nothing is removed then. A queue that is not there is no error. On PostgreSQL it needs the role
// dibs_admin.
func (q *Queue) Remove(ctx context.Context, opts *RemoveOpts) (nameKept bool, err error) {
	if err := q.use(ctx); err != nil {
		return false, err
	}
	if opts == nil {
		opts = &RemoveOpts{}
	}
	var o retry.Outcome
	removal := queuing.Removal{Queue: q.of, Unfinished: opts.Unfinished, FreeName: opts.FreeName}
	removed, err := q.driver.QueueRemove(ctx, removal)
	if err = o.Of(err); o.IsUnknown() && ctx.Err() == nil {
		removed, err = q.driver.QueueRemove(ctx, removal)
		err = o.Of(err)
	}
	if err == nil && !removed.Done {
		err = &UnfinishedError{removed.Waiting, removed.Out, removed.Later, removed.Suspended, removed.Held, removed.Dead}
	}
	return removed.NameKept, q.fail("remove", err)
}

func (q *Queue) change(ctx context.Context, action queuing.Action, reason string, positions []messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	if err := q.use(ctx); err != nil {
		return nil, err
	}
	ofItems := action != queuing.Pause && action != queuing.Resume
	var err error
	switch {
	case ofItems && (len(positions) == 0 || len(positions) > queuing.MaxItems):
		err = messagestore.NewInvalidError("positions", len(positions), fmt.Sprintf("they are 1 to %d", queuing.MaxItems))
	case reason != "" && text.TypeRule(reason) != "":
		err = messagestore.NewInvalidError("reason", reason, "it is at most 255 bytes of visible text, without white space at either end")
	}
	for i := 0; i < len(positions) && err == nil; i++ {
		err = checkPosition(positions[i])
	}
	var changed []messagestore.GlobalPosition
	if err == nil {
		changed, err = q.driver.QueueChange(ctx, queuing.Change{Queue: q.of, Action: action, Positions: positions, Reason: reason})
	}
	return changed, q.fail(string(action), err)
}

func checkPosition(position messagestore.GlobalPosition) error {
	if position < 1 {
		return messagestore.NewInvalidError("position", int64(position), "it is at least 1")
	}
	return nil
}

// checkDuration refuses a duration that is out of bounds.
func checkDuration(field string, d, least, most time.Duration) error {
	if d < least || d > most {
		return messagestore.NewInvalidError(field, d, fmt.Sprintf("it is %v to %v", least, most))
	}
	return nil
}
