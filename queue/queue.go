package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/outage"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/waiting"
	"github.com/dibs-go/dibs/internal/work"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A Queue delivers the messages of one category to workers. The store knows the queue from the
// first Receive, Work, Cancel or Pause on: only then are its open items protected from a trim and a
// deletion. A Queue is safe for concurrent use. There is nothing to close. Queues with the same
// name and category are one queue.
type Queue struct {
	store  *messagestore.Store // nil if a server keeps the queue
	remote queuing.Remote      // nil if the store keeps it
	driver queuing.Keeper
	of     queuing.Queue
	policy queuing.Policy // of the config
	stored stored         // in place of it, if the config says so
	config Config

	working atomic.Bool
	looked  atomic.Int64 // when the queue last checked whether workers free unique names; in the future if they do
	source  work.Source
	counts  work.Counts
	calls   calls
	line    line
}

// WhenDead says how the items behind a dead one are treated.
type WhenDead int

const (
	GoOn WhenDead = iota // they are delivered
	Hold                 // they wait until the dead one is retried and finished, or dropped
)

// Config changes how a [Queue] works. Nil means all defaults. Processes with different settings may
// work on one queue: an item is treated according to the process that gives it back.
type Config struct {
	// Name is the queue's name: 1 to 255 bytes of visible text without white space, - and +.
	// Several queues of one category each get every item.
	//
	// Defaults to the category.
	Name string

	// MaxFailures is the number of failures after which an item is dead, 1 to 32,767.
	//
	// Defaults to 20.
	MaxFailures int

	// WhenDead says how a queue treats the items behind a dead item with the same key.
	//
	// Defaults to GoOn.
	WhenDead WhenDead

	// MaxOut is how many items may be out at a time, in all processes; 0 for no limit.
	//
	// Defaults to 0.
	MaxOut int

	// Rate is how many items are delivered in a second at most, in all processes, 1e-6 to 1e9.
	// Burst is how many may be delivered at once after a pause. A Rate of 0 means no limit. A Burst
	// of 0 means 1.
	//
	// Defaults to 0.
	Rate  float64
	Burst int

	// Stored makes the queue's policy in the store apply ([Queue.SetPolicy]) instead of MaxFailures,
	// WhenDead, MaxOut, Rate and Burst, which then must not be set. If none is stored, their
	// defaults apply. The process reads it at most once in five seconds, when it asks for items.
	//
	// Defaults to false: the policy of this Config applies to what this process takes and ends.
	Stored bool

	// Logger receives a warning for each failure of a handler, an error for each dead item, and the
	// outages of the store. Its entries never have an item's data, but they have the texts of
	// handlers' errors and panics, and the names of streams, which contain the items' keys.
	//
	// Defaults to warnings and errors on standard error ([logger.StandardError]).
	Logger logger.Logger
}

// New returns a queue over a category. The error names all mistakes and matches
// [messagestore.ErrInvalid]; it matches [messagestore.ErrNotSupported] if the store's driver keeps
// no queues. New makes no round trip.
func New(store *messagestore.Store, category messagestore.Category, config *Config) (*Queue, error) {
	q, err := configured(category, config)
	keeps, unkept := queuing.Of(store)
	if err := errors.Join(err, unkept); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q.store, q.driver = store, keeps
	q.source = work.Source{Watch: store.Watch, Outage: outage.Of(store), Driver: keeps, Queue: q.of, Policy: q.policyOf, Logger: q.config.Logger}
	return q, nil
}

// NewOver returns a queue that a server keeps: call Queue of package serve/client instead. The
// queue's policy is the one in the store ([Queue.SetPolicy]).
func NewOver(remote queuing.Remote, category messagestore.Category, config *Config) (*Queue, error) {
	var c Config
	if config != nil {
		c = *config
	}
	c.Stored = true
	q, err := configured(category, &c)
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q.remote, q.driver = remote, remote
	q.source = work.Source{Watch: remote.Watch, Outage: outage.Of(remote), Driver: remote, Queue: q.of, Policy: q.policyOf, Logger: q.config.Logger}
	return q, nil
}

// configured returns a queue that nothing keeps yet.
func configured(category messagestore.Category, config *Config) (*Queue, error) {
	q := &Queue{line: line{ended: make(chan struct{}, 1)}}
	if config != nil {
		q.config = *config
	}
	c := &q.config
	c.Name = cmp.Or(c.Name, string(category))
	q.of = queuing.Queue{Name: c.Name, Category: category}
	wrong := []error{queuing.ValidateQueue(q.of)}
	p := Policy{c.MaxFailures, c.WhenDead, c.MaxOut, c.Rate, c.Burst}
	if c.Stored && p != (Policy{}) {
		wrong = append(wrong, messagestore.NewInvalidError("Stored", c.Stored, "must not be set together with a policy of the process's own"))
	}
	wrong = append(wrong, p.check()...)
	q.policy = p.of()
	return q, errors.Join(wrong...)
}

// errRemote is the error of a call that needs the database of a queue that a server keeps.
func (q *Queue) errRemote() error {
	if q.remote == nil {
		return nil
	}
	return fmt.Errorf("%w: a server keeps the queue, and this needs its database", messagestore.ErrNotSupported)
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.of.Name }

// Category returns the category that the queue reads.
func (q *Queue) Category() messagestore.Category { return q.of.Category }

func (q *Queue) fail(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("queue %s: %s: %w", q.of.Name, what, err)
}

// use refuses a queue that New did not make, and a nil context.
func (q *Queue) use(ctx context.Context) error {
	if q == nil || q.driver == nil {
		return messagestore.NewInvalidError("queue", nil, "must be made by New")
	}
	return q.fail("call", checkContext(ctx))
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	return nil
}

// keepsParked reports whether it is the queue of a consumer's parked messages, which only the consumer makes and works on.
func (q *Queue) keepsParked() bool {
	return strings.HasPrefix(q.of.Name, queuing.ParkedPrefix(q.of.Category))
}

func (q *Queue) refuseParked() error {
	if !q.keepsParked() {
		return nil
	}
	return messagestore.NewInvalidError("queue", q.of.Name, "it keeps parked messages, and their consumer works on it")
}

// Status returns the queue's state in its store, in a time that does not grow with the number of
// its items: see [Status].Partial. The error matches [messagestore.ErrNotFound] if nothing was ever
// reserved from the queue by Receive or Work, and nothing was changed in it.
func (q *Queue) Status(ctx context.Context) (Status, error) {
	if err := q.use(ctx); err != nil {
		return Status{}, err
	}
	found, err := q.driver.QueueStatus(ctx, q.of)
	return statusOf(found), q.fail("status", err)
}

// Item returns the facts about the item at a position, with its log. The error matches
// [messagestore.ErrNotFound] if it does not exist.
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

// awaitPoll is how often Await looks at its item at first, and slowestPoll later: no write shows
// that an item is finished.
const (
	awaitPoll   = 100 * time.Millisecond
	slowestPoll = time.Second
)

// Await waits until the item at a position is finished or dead, and returns it. It also returns the
// messages in the given streams that have the item as their cause ([messagestore.Follow]), in the
// order of the streams: the item's result, if the handler wrote one before it ended. The item's log
// has its failures, and whether it was cancelled or dropped. A dead item may be retried later.
//
// Await looks when something was written to the category of a given stream, and every 100 ms, after
// ten seconds every second. If ctx ends first, it returns the item's last state with the error of
// ctx. The error matches [messagestore.ErrNotFound] if the queue's category has no message at the
// position: the message belongs to another category, is not committed yet, or was removed. The
// error matches [messagestore.ErrInvalid] for an impossible position or name.
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
		some, err = waiting.FollowersIn(ctx, q.messages(), in[i], position, func(m *messagestore.Message) bool {
			return m.Metadata.CausationStream == item.Message.Stream && m.Metadata.CausationPosition == item.Message.Position
		})
		found = append(found, some...)
	}
	return item, found, q.fail(fmt.Sprintf("await %d", position), err)
}

// messages returns what reads the messages of the queue's store.
func (q *Queue) messages() interface {
	waiting.Reader
	Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error)
} {
	if q.remote != nil {
		return q.remote
	}
	return q.store
}

func (q *Queue) awaitEnd(ctx context.Context, position messagestore.GlobalPosition, in []messagestore.StreamName) (last Item, err error) {
	var changed <-chan struct{}
	if q.remote == nil {
		told, stop := waiting.WatchStreams(q.store, awaitPoll, in...)
		defer stop()
		changed = told
	}
	look := q.driver.QueueItem
	for began := time.Now(); ; {
		found, err := look(ctx, q.of, position)
		item := itemOf(found)
		switch {
		case err != nil && ctx.Err() != nil:
			return last, ctx.Err()
		case err != nil || item.State == Finished || item.State == Dead:
			return item, err
		}
		last = item
		if q.remote != nil {
			look = q.remote.AwaitItem
			continue
		}
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

// Items returns unfinished items in a state, in order of position, starting at from: at most limit,
// 1 to 1,000. It returns fewer if their messages would exceed 4 MiB of data, but at least one. To
// list all, ask again from after the last item until the result is empty.
func (q *Queue) Items(ctx context.Context, state State, from messagestore.GlobalPosition, limit int) ([]Item, error) {
	err := q.use(ctx)
	switch {
	case err != nil:
		return nil, err
	case state != Waiting && state != Out && state != Later && state != Suspended && state != Held && state != Dead:
		err = messagestore.NewInvalidError("state", string(state), "must be waiting, out, later, held or dead")
	case from < 0:
		err = messagestore.NewInvalidError("from", int64(from), "must be a position from 0")
	case limit < 1 || limit > queuing.MaxItems:
		err = messagestore.NewInvalidError("limit", limit, fmt.Sprintf("must be between 1 and %d", queuing.MaxItems))
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

// Retry offers later and dead items at 1 to 1,000 positions now, and returns the positions that it
// offered. A dead item's failures restart at 0, and it takes its place in its key again: it waits
// for the item that is out and for earlier open ones, and goes before all later ones. If it would
// wait for an item that a transaction is just completing, it stays dead: ask again. The reason goes
// to the item's log, and may be empty.
func (q *Queue) Retry(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.RetryNow, reason, positions)
}

// Drop finishes later, held and dead items at 1 to 1,000 positions without a worker, and returns
// the positions that it finished. The reason goes to the item's log.
func (q *Queue) Drop(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.Drop, reason, positions)
}

// Cancel finishes items in any state at 1 to 1,000 positions, even those that no worker has met
// yet, and returns the positions that it finished. If a handler works on one, the handler's context
// is cancelled with [ErrLost] within a third of its worker's lease.
func (q *Queue) Cancel(ctx context.Context, reason string, positions ...messagestore.GlobalPosition) ([]messagestore.GlobalPosition, error) {
	return q.change(ctx, queuing.Cancel, reason, positions)
}

// Pause stops all processes from reserving items until [Queue.Resume]. Items that are out go on. A
// pause outlives restarts.
func (q *Queue) Pause(ctx context.Context) error {
	_, err := q.change(ctx, queuing.Pause, "", nil)
	return err
}

// Resume ends a pause.
func (q *Queue) Resume(ctx context.Context) error {
	_, err := q.change(ctx, queuing.Resume, "", nil)
	return err
}

// RemoveOpts change a call of [Queue.Remove]. Nil means all defaults.
type RemoveOpts struct {
	// Unfinished removes the queue even if it has unfinished items.
	Unfinished bool

	// FreeName also frees the name: a worker that begins or still runs then has a new queue, and
	// gets every message that its category still has. It frees the name of a queue that was removed
	// before, too.
	FreeName bool
}

// Remove ends the queue: the store stops keeping messages for it, and forgets its items. The
// messages stay. Use it for a queue that nothing works on any more, because such a queue keeps its
// category from being trimmed.
//
// The name stays: a worker that still runs, or begins later, ends with [ErrRemoved], because
// otherwise it would start with the first message of the category. The name of a queue that no
// worker ever took from becomes free. If the queue has unfinished items, the error is an
// [*UnfinishedError] and nothing is removed. Removing a queue that does not exist is not an error.
// On PostgreSQL it needs the role dibs_admin.
func (q *Queue) Remove(ctx context.Context, opts *RemoveOpts) (nameKept bool, err error) {
	if err := q.use(ctx); err != nil {
		return false, err
	}
	if opts == nil {
		opts = &RemoveOpts{}
	}
	var o waiting.Outcome
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
		err = messagestore.NewInvalidError("positions", len(positions), fmt.Sprintf("must be between 1 and %d", queuing.MaxItems))
	case reason != "" && text.TypeRule(reason) != "":
		err = messagestore.NewInvalidError("reason", reason, "must be at most 255 bytes of visible text, without white space at either end")
	}
	for i := 0; i < len(positions) && err == nil; i++ {
		err = checkPosition(positions[i])
	}
	if err == nil && (action == queuing.Pause || action == queuing.Cancel) && q.keepsParked() { // others make no queue
		if _, err = q.Status(ctx); errors.Is(err, messagestore.ErrNotFound) {
			err = messagestore.NewInvalidError("queue", q.of.Name, "its consumer has parked no message yet")
		}
	}
	var changed []messagestore.GlobalPosition
	if err == nil {
		changed, err = q.driver.QueueChange(ctx, queuing.Change{Queue: q.of, Action: action, Positions: positions, Reason: reason})
	}
	return changed, q.fail(string(action), err)
}

func checkPosition(position messagestore.GlobalPosition) error {
	if position < 1 {
		return messagestore.NewInvalidError("position", int64(position), "must be at least 1")
	}
	return nil
}

// checkDuration refuses a duration that is out of bounds.
func checkDuration(field string, d, least, most time.Duration) error {
	if d < least || d > most {
		return messagestore.NewInvalidError(field, d, fmt.Sprintf("must be between %v and %v", least, most))
	}
	return nil
}
