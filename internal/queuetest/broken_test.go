package queuetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// bugVariable names, in the environment, the bug of the driver that TestQueuesInMemory runs the
// suite on.
const bugVariable = "QUEUETEST_BUG"

// It passes on a sound driver, with transactions made by the test. TestEveryBugIsFound starts it on
// broken drivers, each in a separate process, and there it must fail.
func TestQueuesInMemory(t *testing.T) {
	t.Parallel()
	broken := bug{breaks: func(*driver) {}}
	if name := os.Getenv(bugVariable); name != "" {
		i := slices.IndexFunc(bugs, func(b bug) bool { return b.name == name })
		require.GreaterOrEqual(t, i, 0, "no bug %q", name)
		broken = bugs[i]
	}
	open := func(clock func() time.Time) *driver {
		d := &driver{}
		d.Driver = memory.NewWithClock(func() time.Time { return d.time(clock()) })
		broken.breaks(d)
		return d
	}
	Run(t, Options{
		Open: func(*testing.T) queuing.Driver { return open(time.Now) },
		OpenWithClock: func(*testing.T) (queuing.Driver, func(time.Duration)) {
			stood, ahead := time.Now(), time.Duration(0)
			return open(func() time.Time { return stood.Add(ahead) }), func(by time.Duration) { ahead = by }
		},
		Begin: func(_ *testing.T, d queuing.Driver) (queuing.Driver, func() error, func() error) {
			return d.(*driver).begin() //nolint:errcheck // as opened
		},
		Bubble: true,
	})
}

// A suite is worth as much as the bugs that it has been seen to catch.
func TestEveryBugIsFound(t *testing.T) {
	testkit.NeedsChange(t)
	t.Parallel()
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			output, err := b.suite(t)

			require.Error(t, err, "the suite passed:\n%s", output)
			require.NotContains(t, output, "panic:")
			for _, name := range b.foundBy {
				require.Contains(t, output, "--- FAIL: TestQueuesInMemory/"+name+" ")
			}
		})
	}
}

func TestEverySubTestHasFoundABug(t *testing.T) {
	testkit.NeedsChange(t)
	t.Parallel()
	all, found := map[string]bool{}, map[string]bool{}
	for _, test := range tests() {
		require.False(t, all[test.name], "%s is the name of two", test.name)
		all[test.name] = true
	}
	for _, b := range bugs {
		require.NotEmpty(t, b.foundBy, b.name)
		for _, name := range b.foundBy {
			found[name] = true
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(found)))
}

// suite runs the sub-tests that must find the bug in another process, on a driver with it.
func (b bug) suite(t *testing.T) (output string, err error) {
	t.Helper()
	var subjects, names []string
	for _, name := range b.foundBy {
		subject, rest, _ := strings.Cut(name, "/")
		subjects, names = append(subjects, subject), append(names, rest)
	}
	pattern := "^TestQueuesInMemory$/^(" + strings.Join(subjects, "|") + ")$/^(" + strings.Join(names, "|") + ")$"
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+pattern, "-test.timeout=1m", "-rapid.nofailfile", "-rapid.shrinktime=100ms", "-rapid.seed=1", "-rapid.checks=1000")
	command.Env = append(os.Environ(), bugVariable+"="+b.name)
	combined, err := command.CombinedOutput()
	return string(combined), err
}

// A driver is a sound driver with changes to the arguments and answers of some calls.
type driver struct {
	*memory.Driver

	ask    func(*queuing.Take)
	answer func(queuing.Take, *queuing.Taken)
	take   func(queuing.Take) (queuing.Taken, error)
	ready  func(queuing.Queue) (queuing.Ready, error)
	extend func(*queuing.Extension)
	lost   func([]queuing.Delivery) []queuing.Delivery
	leave  func(*queuing.Leave) bool // reports whether it is made
	finish func(queuing.Queue, int64, []queuing.Delivery) ([]queuing.Ending, error)
	change func(*queuing.Change) bool // reports whether it is made, and not only answered
	park   func(queuing.Parking) (bool, error)
	remove func(queuing.Removal) (queuing.RemovedQueue, error)
	item   func(queuing.Queue, messagestore.GlobalPosition) (queuing.Item, error)
	list   func(*queuing.List)
	large  bool // lists end at no size
	status func(*queuing.Status)
	alone  func(*queuing.Status) // of one queue

	back   func(t, latest time.Time) time.Time // what it takes for the time where its clock goes back
	latest time.Time                           // that it took for the time

	commits, rollsBack func(queuing.Driver, pending) error
	anyVersion         bool // of completions in a transaction
	anySession         bool
}

// time returns the time that the driver uses when its clock shows t. It is called by one goroutine
// at a time.
func (d *driver) time(t time.Time) time.Time {
	if t.Before(d.latest) && d.back != nil {
		return d.back(t, d.latest)
	}
	d.latest = t
	return t
}

// isBehind reports whether the clock has gone back, and has not caught up.
func (d *driver) isBehind() bool {
	now, _ := d.Now(context.Background())
	return now.Before(d.latest)
}

func same(t, _ time.Time) time.Time { return t }

func (d *driver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if d.take != nil {
		return d.take(t)
	}
	asked := t
	if d.ask != nil {
		t.Finishes = slices.Clone(t.Finishes)
		d.ask(&t)
	}
	taken, err := d.Driver.QueueTake(ctx, t)
	if err == nil && d.answer != nil {
		d.answer(asked, &taken)
	}
	return taken, err
}

func (d *driver) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	if d.ready != nil {
		return d.ready(q)
	}
	return d.Driver.QueueReady(ctx, q)
}

func (d *driver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if d.extend != nil {
		d.extend(&e)
	}
	lost, err := d.Driver.QueueExtend(ctx, e)
	if d.lost != nil {
		lost = d.lost(lost)
	}
	return lost, err
}

func (d *driver) QueueLeave(ctx context.Context, l queuing.Leave) error {
	if d.leave != nil && !d.leave(&l) {
		return nil
	}
	return d.Driver.QueueLeave(ctx, l)
}

func (d *driver) QueueFinish(ctx context.Context, q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
	if d.finish != nil {
		return d.finish(q, session, deliveries)
	}
	return d.Driver.QueueFinish(ctx, q, session, deliveries)
}

func (d *driver) QueueChange(ctx context.Context, c queuing.Change) ([]messagestore.GlobalPosition, error) {
	if d.change != nil && !d.change(&c) {
		return c.Positions, nil
	}
	return d.Driver.QueueChange(ctx, c)
}

func (d *driver) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	if d.park != nil {
		return d.park(p)
	}
	return d.Driver.QueuePark(ctx, p)
}

func (d *driver) QueueRemove(ctx context.Context, r queuing.Removal) (queuing.RemovedQueue, error) {
	if d.remove != nil {
		return d.remove(r)
	}
	return d.Driver.QueueRemove(ctx, r)
}

func (d *driver) QueueItem(ctx context.Context, q queuing.Queue, at messagestore.GlobalPosition) (queuing.Item, error) {
	if d.item != nil {
		return d.item(q, at)
	}
	return d.Driver.QueueItem(ctx, q, at)
}

func (d *driver) QueueItems(ctx context.Context, l queuing.List) ([]queuing.Item, error) {
	if d.list != nil {
		d.list(&l)
	}
	items, err := d.Driver.QueueItems(ctx, l)
	for d.large && err == nil && len(items) > 0 && len(items) < l.Limit {
		l.From = items[len(items)-1].Position + 1
		var more []queuing.Item
		if more, err = d.Driver.QueueItems(ctx, l); len(more) == 0 {
			break
		}
		items = append(items, more...)
	}
	return items, err
}

func (d *driver) QueueStatus(ctx context.Context, q queuing.Queue) (queuing.Status, error) {
	status, err := d.Driver.QueueStatus(ctx, q)
	for _, breaks := range []func(*queuing.Status){d.status, d.alone} {
		if breaks != nil && err == nil {
			breaks(&status)
		}
	}
	return status, err
}

func (d *driver) Queues(ctx context.Context) ([]queuing.Status, error) {
	all, err := d.Driver.Queues(ctx)
	if d.status != nil {
		for i := range all {
			d.status(&all[i])
		}
	}
	return all, err
}

// known returns the state of an item, or a zero item.
func (d *driver) known(q queuing.Queue, at messagestore.GlobalPosition) queuing.Item {
	item, _ := d.Driver.QueueItem(context.Background(), q, at)
	return item
}

// expiries returns how often an item's session was over.
func (d *driver) expiries(q queuing.Queue, at messagestore.GlobalPosition) (n int) {
	for _, e := range d.known(q, at).Log {
		if e.What == queuing.SessionOver {
			n++
		}
	}
	return n
}

// offer has takes answer with items of a state too, which are not theirs.
func (d *driver) offer(state queuing.State, which func(queuing.Queue, queuing.Item) bool) {
	d.answer = func(q queuing.Take, taken *queuing.Taken) {
		items, _ := d.Driver.QueueItems(context.Background(), queuing.List{Queue: q.Queue, State: state, Limit: queuing.MaxItems})
		for _, item := range items {
			if len(taken.Items) < q.Want && which(q.Queue, item) {
				taken.Items = append(taken.Items, queuing.Taking{Message: item.Message, Version: item.Version, Failures: item.Failures})
			}
		}
	}
}

// A pending completion is one of a transaction that is open.
type pending struct {
	queue      queuing.Queue
	session    int64
	deliveries []queuing.Delivery
}

// A transaction of the caller's has its completions until it is committed.
type transaction struct {
	queuing.Driver

	of      *driver
	pending []pending
}

func (d *driver) begin() (tx queuing.Driver, commit, rollBack func() error) {
	t := &transaction{Driver: d.Driver, of: d}
	end := func(each func(queuing.Driver, pending) error) error {
		for _, p := range t.pending {
			if err := each(d.Driver, p); err != nil {
				return err
			}
		}
		return nil
	}
	commit = func() error {
		if d.commits != nil {
			return end(d.commits)
		}
		return end(finishAll)
	}
	rollBack = func() error {
		if d.rollsBack != nil {
			return end(d.rollsBack)
		}
		return nil
	}
	return t, commit, rollBack
}

func finishAll(d queuing.Driver, p pending) error {
	_, err := d.QueueFinish(context.Background(), p.queue, p.session, p.deliveries)
	return err
}

func (t *transaction) QueueFinish(_ context.Context, q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
	endings := make([]queuing.Ending, len(deliveries))
	for i, delivery := range deliveries {
		endings[i] = queuing.Lost
		if item := t.of.known(q, delivery.Position); item.State == queuing.Out && (item.Version == delivery.Version || t.of.anyVersion) && (item.Session == session || t.of.anySession) {
			endings[i] = queuing.Done
		}
	}
	t.pending = append(t.pending, pending{q, session, deliveries})
	return endings, nil
}

func (t *transaction) QueueTake(ctx context.Context, q queuing.Take) (queuing.Taken, error) {
	if t.of.take != nil {
		return t.Driver.QueueTake(ctx, q)
	}
	return queuing.Taken{}, messagestore.ErrNotSupported
}

func (*transaction) QueueExtend(context.Context, queuing.Extension) ([]queuing.Delivery, error) {
	return nil, messagestore.ErrNotSupported
}

func (*transaction) QueueLeave(context.Context, queuing.Leave) error {
	return messagestore.ErrNotSupported
}

func (*transaction) QueueChange(context.Context, queuing.Change) ([]messagestore.GlobalPosition, error) {
	return nil, messagestore.ErrNotSupported
}

func (*transaction) QueuePark(context.Context, queuing.Parking) (bool, error) {
	return false, messagestore.ErrNotSupported
}

func (*transaction) QueueRemove(context.Context, queuing.Removal) (queuing.RemovedQueue, error) {
	return queuing.RemovedQueue{}, messagestore.ErrNotSupported
}

// parks returns a bug of the parking of messages.
func parks(f func(*driver, queuing.Parking) (bool, error)) func(*driver) {
	return func(d *driver) {
		d.park = func(p queuing.Parking) (bool, error) { return f(d, p) }
	}
}

// A bug is one way to break a driver, and the sub-tests that must find it.
type bug struct {
	name    string
	foundBy []string
	breaks  func(d *driver)
}

// asks changes the arguments of a take, answers its answer.
func asks(f func(*queuing.Take)) func(*driver) { return func(d *driver) { d.ask = f } }

func answers(f func(queuing.Take, *queuing.Taken)) func(*driver) {
	return func(d *driver) { d.answer = f }
}

// finishes changes the ends of deliveries in a take.
func finishes(f func(*queuing.Finish)) func(*driver) {
	return asks(func(q *queuing.Take) {
		for i := range q.Finishes {
			f(&q.Finishes[i])
		}
	})
}

// turns changes the ends of deliveries in a take of a queue of streams.
func turns(f func(*queuing.Finish)) func(*driver) {
	return asks(func(q *queuing.Take) {
		for i := range q.Finishes {
			if q.Wakes != nil {
				f(&q.Finishes[i])
			}
		}
	})
}

// ignores has an operator's action answered, and not made.
func ignores(action queuing.Action) func(*driver) {
	return func(d *driver) { d.change = func(c *queuing.Change) bool { return c.Action != action } }
}

// removes changes the arguments of a removal.
func removes(change func(*queuing.Removal)) func(*driver) {
	return func(d *driver) {
		d.remove = func(r queuing.Removal) (queuing.RemovedQueue, error) {
			change(&r)
			return d.Driver.QueueRemove(context.Background(), r)
		}
	}
}

var bugs = []bug{
	// Q1
	{"items in the reverse order", []string{"Q1/EachItemIsDeliveredInItsOrder"}, answers(func(_ queuing.Take, taken *queuing.Taken) {
		slices.Reverse(taken.Items)
	})},
	{"an item to two", []string{"Q1/EachItemIsDeliveredInItsOrder", "Q3/ManyTakersKeepTheOrder", "Q9/NoMoreThanMaxOut"}, func(d *driver) {
		d.offer(queuing.Out, func(queuing.Queue, queuing.Item) bool { return true })
	}},
	{"an item that gets lost", []string{"Q1/EachItemIsDeliveredInItsOrder"}, answers(func(_ queuing.Take, taken *queuing.Taken) {
		taken.Items = taken.Items[:min(len(taken.Items), 9)]
	})},
	{"one queue for all of a category", []string{"Q1/EachQueueGetsEachMessage"}, asks(func(q *queuing.Take) { q.Name = string(q.Category) })},
	{"a lease that does not end", []string{"Q1/SessionThatIsOverGivesBack", "Q4/SessionThatIsOverIsNotExtended", "Q11/ReadyTellsOfAllThatIsOffered"}, asks(func(q *queuing.Take) {
		q.Lease = queuing.MaxLease
	})},
	{"a session that is over and keeps the version", []string{"Q1/SessionThatIsOverGivesBack", "Q2/LateEndIsLost"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			for i, f := range q.Finishes {
				q.Finishes[i].Version += d.expiries(q.Queue, f.Position)
				q.Finishes[i].Session = d.known(q.Queue, f.Position).Session
			}
		}
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			for i, item := range taken.Items {
				taken.Items[i].Version -= d.expiries(q.Queue, item.Message.GlobalPosition)
			}
		}
	}},
	{"a session that cannot be left", []string{"Q1/LeftSessionGivesBack", "Q8/APlaceEndsWithItsSession"}, func(d *driver) { d.leave = func(*queuing.Leave) bool { return false } }},
	{"a session that keeps nothing", []string{"Q1/KeptDeliveriesGoToTheNextSession"}, func(d *driver) { d.leave = func(l *queuing.Leave) bool { l.Keep = nil; return true } }},
	{"a next session without an end", []string{"Q1/KeptDeliveriesGoToTheNextSession"}, func(d *driver) {
		d.leave = func(l *queuing.Leave) bool { l.Lease = queuing.MaxLease; return true }
	}},
	{"an extension for a moment", []string{"Q1/ExtendedSessionLasts"}, func(d *driver) { d.extend = func(e *queuing.Extension) { e.Lease = queuing.MinLease } }},
	{"a session that keeps its first lease", []string{"Q1/SessionThatTakesLasts"}, func(d *driver) {
		leases := map[int64]time.Duration{}
		d.ask = func(q *queuing.Take) {
			if leases[q.Session] == 0 {
				leases[q.Session] = q.Lease
			}
			q.Lease = leases[q.Session]
		}
	}},
	{"a shared take that is one session's", []string{
		"Q8/ASharedTakeServesEachInTurn", "Q6/SessionsOfASharedTakeEndApart", "Q8/ASharedTakeTakesNothingFromTheLine", "Q8/ASharedTakeThatCannotBeIsRefused",
	}, asks(func(q *queuing.Take) { q.Want, q.Others = q.Wants(), nil })},
	{"a shared take without bounds", []string{"Q9/BoundsHoldForASharedTake"}, asks(func(q *queuing.Take) {
		if q.Others != nil {
			q.MaxOut, q.Rate, q.Burst = 0, 0, 0
		}
	})},
	{"a shared take that brings others beside a suspect", []string{"Q6/ASharedTakeDeliversASuspectAlone"}, func(d *driver) {
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			if q.Others != nil {
				q.Session, q.Others, q.Finishes = q.Others[0].Session, nil, nil
				more, _ := d.Driver.QueueTake(context.Background(), q)
				taken.Items = append(taken.Items, more.Items...)
			}
		}
	}},
	{"a repeated take that begins anew", []string{"Q1/ARepeatedTakeGetsWhatEarlierOnesHave", "Q1/ARepeatedTakeEndsBeforeItMoves"}, asks(func(q *queuing.Take) { q.Resume = nil })},
	{"a repeated take that gets no lease", []string{"Q1/ARepeatedTakeGetsWhatEarlierOnesHave"}, asks(func(q *queuing.Take) {
		if q.Resume != nil {
			q.Lease = queuing.MinLease
		}
	})},
	{"a repeated take that gets what it ends", []string{"Q1/ARepeatedTakeEndsBeforeItMoves"}, answers(func(q queuing.Take, taken *queuing.Taken) {
		for _, f := range q.Finishes {
			if q.Resume != nil {
				taken.Items = append(taken.Items, queuing.Taking{Message: &messagestore.Message{GlobalPosition: f.Position}})
			}
		}
	})},
	{"a repeated take that gets what is lost", []string{"Q1/NothingMovesFromASessionThatIsOver"}, func(d *driver) {
		var had []queuing.Item
		d.ask = func(q *queuing.Take) {
			had = nil
			out, _ := d.Driver.QueueItems(context.Background(), queuing.List{Queue: q.Queue, State: queuing.Out, Limit: queuing.MaxItems})
			for _, item := range out {
				if slices.Contains(q.Resume, item.Session) {
					had = append(had, item)
				}
			}
		}
		d.answer = func(_ queuing.Take, taken *queuing.Taken) {
			for _, item := range had {
				taken.Items = append(taken.Items, queuing.Taking{Message: item.Message, Version: item.Version})
			}
		}
	}},
	{"an extension of one session alone", []string{"Q4/SessionsAreExtendedTogether"}, func(d *driver) { d.extend = func(e *queuing.Extension) { e.Sessions = nil } }},
	{"an order by position", []string{"Order/WhatIsDueComesFirst"}, answers(func(_ queuing.Take, taken *queuing.Taken) {
		slices.SortFunc(taken.Items, func(a, b queuing.Taking) int { return cmp.Compare(a.Message.GlobalPosition, b.Message.GlobalPosition) })
	})},
	// Q2
	{"a completion without a version", []string{"Q2/LateEndIsLost", "Q2/WhatWasNotDeliveredIsLost"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			for i, f := range q.Finishes {
				item := d.known(q.Queue, f.Position)
				q.Finishes[i].Version, q.Finishes[i].Session = item.Version, item.Session
			}
		}
	}},
	{"a completion apart without a version", []string{"Q2/LateEndIsLost"}, func(d *driver) {
		d.finish = func(q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
			for i, f := range deliveries {
				item := d.known(q, f.Position)
				deliveries[i].Version, session = item.Version, item.Session
			}
			return d.Driver.QueueFinish(context.Background(), q, session, deliveries)
		}
	}},
	{"a completion by any session", []string{"Q2/OtherSessionsEndNothing"}, finishes(func(f *queuing.Finish) { f.Session = 0 })},
	{"a completion apart by any session", []string{"Q2/OtherSessionsEndNothing"}, func(d *driver) {
		d.finish = func(q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
			if item := d.known(q, deliveries[0].Position); item.State == queuing.Out {
				session = item.Session
			}
			return d.Driver.QueueFinish(context.Background(), q, session, deliveries)
		}
	}},
	{"an end by anyone, if the delivery ended in that way", []string{"Q2/AnEndedDeliveryIsOfItsSession"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			for i, f := range q.Finishes {
				if d.known(q.Queue, f.Position).State != queuing.Out {
					q.Finishes[i].Session = 0
				}
			}
		}
	}},
	{"a completion in a transaction by any session", []string{"Q5/OtherSessionsFinishNothing"}, func(d *driver) { d.anySession = true }},
	{"a completion apart that finishes nothing", []string{"Q2/FinishedApart", "Q3/ReportedCompletionLetsGo", "Q3/UnreportedCompletionLetsGoInTheEnd"}, func(d *driver) {
		d.finish = func(_ queuing.Queue, _ int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
			return slices.Repeat([]queuing.Ending{queuing.Done}, len(deliveries)), nil
		}
	}},
	{"an end that is forgotten", []string{"Q2/EndingAgainIsTheSame"}, func(d *driver) {
		var were []queuing.State
		d.ask = func(q *queuing.Take) {
			were = nil
			for _, f := range q.Finishes {
				were = append(were, d.known(q.Queue, f.Position).State)
			}
		}
		d.answer = func(_ queuing.Take, taken *queuing.Taken) {
			for i, state := range were {
				if state != queuing.Out {
					taken.Endings[i] = queuing.Lost
				}
			}
		}
	}},
	{"each end is told that it counts", []string{"Q2/OneOfManyEnds", "Q2/EndingAgainIsTheSame", "Q2/LateEndIsLost", "Q2/WhatWasNotDeliveredIsLost"}, answers(func(_ queuing.Take, taken *queuing.Taken) {
		for i := range taken.Endings {
			taken.Endings[i] = queuing.Done
		}
	})},
	{"a cancelled item that is not finished", []string{"Q2/CancelledIsLost", "Q3/CancelledItemKeepsTheOrder", "Operate/CancelFinishesInAnyState"}, ignores(queuing.Cancel)},
	// Q3
	{"a held item that is completed whatever becomes of the one before it", []string{"Q3/HeldItemsAreCompletedWithTheOneBefore"}, answers(func(t queuing.Take, taken *queuing.Taken) {
		for i, f := range t.Finishes {
			if f.Kind == queuing.Behind {
				taken.Endings[i] = queuing.Done
			}
		}
	})},
	{"a key that holds nothing", []string{"Q3/OneOfAKeyIsOutAtATime", "Q3/OrderOutlivesFailures", "Q3/ManyTakersKeepTheOrder"}, func(d *driver) {
		d.offer(queuing.Held, func(queuing.Queue, queuing.Item) bool { return true })
	}},
	{"an item that is given back and loses its place", []string{"Q3/OrderOutlivesFailures"}, func(d *driver) {
		d.offer(queuing.Held, func(q queuing.Queue, item queuing.Item) bool { return d.known(q, item.Behind).State == queuing.Later })
	}},
	{"a dead item that keeps its key", []string{"Q3/DeadItemLetsGo"}, asks(func(q *queuing.Take) { q.Hold = true })},
	{"a dead item that lets go though it is to hold", []string{"Q3/DeadItemHoldsIfAsked"}, asks(func(q *queuing.Take) { q.Hold = false })},
	{"a cancelled item that lets go what is behind another", []string{"Q3/CancelledItemKeepsTheOrder", "Q3/WhatComesWhileARetriedItemIsOutWaits"}, func(d *driver) {
		d.offer(queuing.Held, func(q queuing.Queue, item queuing.Item) bool {
			return d.known(q, item.Behind).State == queuing.Finished
		})
	}},
	{"a retried item that waits for no other of its key", []string{"Q3/ARetriedItemIsNextHoweverTheOneThatIsOutEnds", "Q3/ARetriedItemIsNextAfterATransaction", "Q3/RetriedItemsGoInTheirOrder", "Q3/ARetriedItemGoesBeforeAClosedOne"}, func(d *driver) {
		d.offer(queuing.Held, func(_ queuing.Queue, item queuing.Item) bool { return item.Version > 0 })
	}},
	{"a report that lets nothing go", []string{"Q3/ReportedCompletionLetsGo"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			q.Finishes = slices.DeleteFunc(q.Finishes, func(f queuing.Finish) bool { return f.Kind == queuing.Committed })
		}
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			for len(taken.Endings) < len(q.Finishes) {
				taken.Endings = append(taken.Endings, queuing.Done)
			}
		}
	}},
	{"a completion apart whose key stays held", []string{"Q3/UnreportedCompletionLetsGoInTheEnd"}, func(d *driver) {
		held := map[messagestore.StreamName]bool{}
		d.finish = func(q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
			for _, f := range deliveries {
				held[d.known(q, f.Position).Message.Stream] = true
			}
			return d.Driver.QueueFinish(context.Background(), q, session, deliveries)
		}
		d.answer = func(_ queuing.Take, taken *queuing.Taken) {
			taken.Items = slices.DeleteFunc(taken.Items, func(item queuing.Taking) bool { return held[item.Message.Stream] })
		}
	}},
	// Q4
	{"an extension that tells of nothing", []string{"Q4/ExtensionTellsWhatIsLost", "Q4/SessionThatIsOverIsNotExtended", "Q2/CancelledIsLost"}, func(d *driver) {
		d.lost = func([]queuing.Delivery) []queuing.Delivery { return nil }
	}},

	{"notes that are those of any version", []string{"Operate/NotesAreOfOneDelivery"}, func(d *driver) {
		d.extend = func(e *queuing.Extension) {
			all := queuing.Notes{}
			for of, note := range e.Notes {
				for version := range 2 {
					all[queuing.Delivery{Position: of.Position, Version: version}] = note
				}
			}
			if e.Notes != nil && len(e.Notes) <= queuing.MaxItems {
				e.Notes = all
			}
		}
	}},
	// Q5
	{"a commit without its completions", []string{"Q5/CommittedIsFinished"}, func(d *driver) { d.commits = func(queuing.Driver, pending) error { return nil } }},
	{"a completion that outlives its rollback", []string{"Q5/RolledBackIsOut"}, func(d *driver) { d.rollsBack = finishAll }},
	{"a completion in a transaction without a version", []string{"Q5/LateCompletionIsLost"}, func(d *driver) { d.anyVersion, d.anySession = true, true }},
	{"a take in a transaction", []string{"Q5/OtherCallsAreNotSupported"}, func(d *driver) {
		d.take = func(q queuing.Take) (queuing.Taken, error) { return d.Driver.QueueTake(context.Background(), q) }
	}},
	// Q6
	{"an error that is not kept", []string{"Q6/FailuresAreInTheLog"}, finishes(func(f *queuing.Finish) { f.Error = "" })},
	{"failures without end", []string{"Q6/TheLastFailureBuries", "Model/AnswersRandomCallsAsInMemory"}, asks(func(q *queuing.Take) { q.MaxFailures = queuing.MaxFailures })},
	{"an item that is given back as a failure", []string{"Q6/WhatIsNoFailureDoesNotCount", "Q2/EndingAgainIsTheSame"}, finishes(func(f *queuing.Finish) {
		if f.Kind == queuing.Unhandled {
			f.Kind = queuing.Retry
		}
	})},
	{"an item that takes one process after the other", []string{"Q6/SessionsThatAreOverAreBackedOffFrom"}, func(d *driver) {
		d.offer(queuing.Later, func(q queuing.Queue, item queuing.Item) bool { return d.expiries(q, item.Position) > 1 })
	}},
	// Q8
	{"an attempt that keeps its place", []string{"Q8/ARepeatedTakeEndsTheEarlierPlace"}, asks(func(q *queuing.Take) { q.Resume = nil })},
	{"a line in which each is the first", []string{"Q8/ServedInTheirOrder"}, func(d *driver) {
		d.ask = func(q *queuing.Take) { q.Wait, q.Ticket = 0, 0 }
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			if q.Wait > 0 && len(taken.Items) == 0 {
				taken.Ticket = q.Session
			}
		}
	}},
	{"a line that waits for its first for ever", []string{"Q8/ACallerThatDoesNotComeIsPassedOver", "Q8/WhatIsLeftIsOffered", "Q8/APlaceEndsWithItsWait", "Q8/APlaceEndsWithItsSession"}, func(d *driver) {
		first := int64(0)
		d.ask = func(q *queuing.Take) {
			if first != 0 && first != q.Session {
				q.Want = 0
			}
		}
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			if q.Wait > 0 && first == 0 {
				first = q.Session
			}
			if q.Wait > 0 {
				taken.Ticket = q.Session
			}
		}
	}},
	{"a session that waits for itself", []string{"Q8/ASessionDoesNotWaitForItself"}, func(d *driver) {
		waits := map[int64]bool{}
		d.ask = func(q *queuing.Take) {
			if waits[q.Session] && q.Ticket == 0 {
				q.Want = 0
			}
			waits[q.Session] = q.Wait > 0
		}
	}},
	// Q9
	{"a date that is a microsecond off", []string{"Q9/DatesAreExact", "Q9/NotBeforeItsDate"}, func(d *driver) {
		d.item = func(q queuing.Queue, at messagestore.GlobalPosition) (queuing.Item, error) {
			item, err := d.Driver.QueueItem(context.Background(), q, at)
			if !item.Due.IsZero() {
				item.Due = item.Due.Add(time.Microsecond)
			}
			return item, err
		}
	}},
	{"a date that does not count", []string{"Q9/NotBeforeItsDate"}, func(d *driver) {
		d.offer(queuing.Later, func(_ queuing.Queue, item queuing.Item) bool { return item.Version == 0 })
	}},
	{"a delay that does not count", []string{"Q9/NotBeforeItsDelay", "Model/AnswersRandomCallsAsInMemory"}, finishes(func(f *queuing.Finish) { f.Delay = 0 })},
	{"an item that ends its sessions in company", []string{"Q6/OnlyWhatEndsItsSessionIsBuried", "Q6/OneSessionWaitsToHaveAnItemAlone"}, func(d *driver) {
		d.offer(queuing.Later, func(q queuing.Queue, item queuing.Item) bool { return d.expiries(q, item.Position) > 1 })
	}},
	{"more than MaxOut", []string{"Q9/NoMoreThanMaxOut"}, asks(func(q *queuing.Take) { q.MaxOut = 0 })},
	{"MaxOut of each session", []string{"Q9/NoMoreThanMaxOut"}, func(d *driver) {
		has := map[int64]bool{}
		d.ask = func(q *queuing.Take) {
			if !has[q.Session] {
				has[q.Session] = true
				q.MaxOut = 0
			}
		}
	}},
	{"more than the rate", []string{"Q9/NoMoreThanTheRate"}, asks(func(q *queuing.Take) { q.Rate = 0 })},
	{"a rate without a burst", []string{"Q9/NoMoreThanTheRate"}, asks(func(q *queuing.Take) { q.Burst = min(q.Burst, 1) })},
	{"a pause that does not count", []string{"Q9/NothingWhilePaused"}, ignores(queuing.Pause)},
	{"a queue that cannot be resumed", []string{"Q9/NothingWhilePaused"}, ignores(queuing.Resume)},
	{"a queue that is there from its first take on", []string{"Operate/PausedBeforeTheFirstTake", "Operate/CancelledBeforeTheFirstTake"}, func(d *driver) {
		d.change = func(c *queuing.Change) bool {
			all, _ := d.Driver.Queues(context.Background())
			return slices.ContainsFunc(all, func(s queuing.Status) bool { return s.Queue == c.Queue })
		}
	}},
	{"nothing that comes by itself", []string{"Q9/WakeTellsWhen"}, answers(func(_ queuing.Take, taken *queuing.Taken) { taken.Wake = -1 })},
	{"nothing more", []string{"Q9/WakeTellsWhen"}, answers(func(_ queuing.Take, taken *queuing.Taken) { taken.More = false })},
	// Clock
	{"a time that stands where the clock goes back", []string{"Clock/DelaysGoOn", "Clock/DatesStay", "Clock/ADeadWorkersItemsComeBack", "Clock/TheRateGoesOn", "Clock/NothingIsKeptForACallerThatHasGone", "Clock/TurnsAreOffered", "Clock/StatusTells", "Model/AnswersRandomCallsAsInMemoryWhileTheClockJumps"}, func(d *driver) {
		d.back = func(_, latest time.Time) time.Time { return latest }
	}},
	{"a time that goes back far", []string{"Clock/ASmallStepChangesNothing", "Clock/DelaysFromBeforeStay"}, func(d *driver) {
		d.back = func(t, _ time.Time) time.Time { return t.Add(-time.Hour) }
	}},
	{"extensions for a moment while the clock is behind", []string{"Clock/AWorkerThatLivesKeepsItsItems"}, func(d *driver) {
		d.back = same
		d.extend = func(e *queuing.Extension) {
			if d.isBehind() {
				e.Lease = queuing.MinLease
			}
		}
	}},
	{"takes of none while the clock is behind", []string{"Clock/WhatWasLetGoIsOffered", "Clock/OperatorsRetryNow"}, func(d *driver) {
		d.back = same
		d.ask = func(q *queuing.Take) {
			if d.isBehind() {
				q.Want = 0
			}
		}
	}},
	// Q11
	{"a question that takes", []string{"Q11/ReadyChangesNothing"}, func(d *driver) {
		d.ready = func(q queuing.Queue) (queuing.Ready, error) {
			taken, err := d.Driver.QueueTake(context.Background(), queuing.Take{
				Queue: q, Policy: queuing.Policy{MaxFailures: 5}, Session: 77, Lease: queuing.MaxLease,
			})
			return queuing.Ready{Ready: taken.More, Wake: taken.Wake}, err
		}
	}},
	{"never ready", []string{"Q11/ReadyTellsOfAllThatIsOffered"}, func(d *driver) {
		d.ready = func(queuing.Queue) (queuing.Ready, error) { return queuing.Ready{Wake: -1}, nil }
	}},
	// A removal
	{"a removal that does not look", []string{"Remove/LeavesAQueueWithItems", "Remove/CountsStreams"}, removes(func(r *queuing.Removal) { r.Unfinished = true })},
	{"a removal that counts messages of streams", []string{"Remove/CountsStreams"}, func(d *driver) {
		d.remove = func(r queuing.Removal) (queuing.RemovedQueue, error) {
			removed, err := d.Driver.QueueRemove(context.Background(), r)
			removed.Waiting *= 3
			return removed, err
		}
	}},
	{"a removal that keeps the queue", []string{"Remove/KeepsNothingButTheName", "Remove/ANameThatNeverTookIsFree"}, func(d *driver) {
		d.remove = func(queuing.Removal) (queuing.RemovedQueue, error) {
			return queuing.RemovedQueue{Done: true, NameKept: true}, nil
		}
	}},
	{"a name that is free at once", []string{"Remove/KeepsNothingButTheName"}, func(d *driver) {
		d.remove = func(r queuing.Removal) (queuing.RemovedQueue, error) {
			r.FreeName = true
			removed, err := d.Driver.QueueRemove(context.Background(), r)
			removed.NameKept = true
			return removed, err
		}
	}},
	{"a name that is never free", []string{"Remove/AFreeNameBeginsAnew"}, removes(func(r *queuing.Removal) { r.FreeName = false })},
	{"a removal from any category", []string{"Remove/AnotherCategoryIsRefused"}, removes(func(r *queuing.Removal) { r.Category = messagestore.Category(r.Name) })},

	{"queues without bound", []string{"Remove/ACategoryHasSoManyQueues"}, func(d *driver) {
		d.take = func(t queuing.Take) (queuing.Taken, error) {
			taken, err := d.Driver.QueueTake(context.Background(), t)
			if errors.Is(err, queuing.ErrTooManyQueues) {
				return queuing.Taken{Wake: -1}, nil
			}
			return taken, err
		}
	}},
	// An operator's calls, and refusals
	{"a retry that does nothing", []string{"Operate/RetryOffersNow", "Q3/ARetriedItemGoesBeforeOneThatWaitsForItsTime", "Q3/ADeadItemAndOneThatWaitsAreRetriedTogether", "Q3/HeldItemsAreCompletedBesideARetriedOne"}, ignores(queuing.RetryNow)},
	{"a reason that is not kept", []string{"Operate/RetryOffersNow", "Q2/CancelledIsLost"}, func(d *driver) {
		d.change = func(c *queuing.Change) bool { c.Reason = ""; return true }
	}},
	{"what is out can be dropped", []string{"Operate/DropFinishesWhatIsNotOut", "Model/AnswersRandomCallsAsInMemory"}, func(d *driver) {
		d.change = func(c *queuing.Change) bool {
			if c.Action == queuing.Drop {
				c.Action = queuing.Cancel
			}
			return true
		}
	}},
	{"a list from its beginning", []string{"Operate/ListsByState"}, func(d *driver) { d.list = func(l *queuing.List) { l.From = 0 } }},
	{"a list without end", []string{"Operate/ListsByState"}, func(d *driver) { d.list = func(l *queuing.List) { l.Limit = queuing.MaxItems } }},
	{"a list of any size", []string{"Operate/ListsEndAtFourMiB"}, func(d *driver) { d.large = true }},
	{"finished items that are not counted", []string{"Operate/StatusCounts", "Operate/StatusCountsWhatIsCommitted", "Operate/StatusCountsWhatIsCancelled", "Model/AnswersRandomCallsAsInMemory"}, func(d *driver) {
		d.status = func(s *queuing.Status) { s.Finished = 0 }
	}},
	{"a status that is not said to be partial", []string{"Operate/StatusOfOneQueueIsBounded"}, func(d *driver) { d.alone = func(s *queuing.Status) { s.Partial = false } }},
	{"a status without the oldest", []string{"Operate/StatusCounts"}, func(d *driver) { d.status = func(s *queuing.Status) { s.Oldest = s.Oldest.Add(long) } }},
	{"sessions that are over and count", []string{"Operate/StatusCountsSessionsAndWhatIsDue"}, func(d *driver) {
		d.status = func(s *queuing.Status) { s.Sessions = max(s.Sessions, 2) }
	}},
	{"what is later and counts as due", []string{"Operate/StatusCountsSessionsAndWhatIsDue"}, func(d *driver) { d.status = func(s *queuing.Status) { s.Due = s.Later } }},
	{"an item that is out without an end", []string{"Operate/StatusCountsSessionsAndWhatIsDue"}, func(d *driver) {
		d.item = func(q queuing.Queue, at messagestore.GlobalPosition) (queuing.Item, error) {
			item, err := d.Driver.QueueItem(context.Background(), q, at)
			item.Until = time.Time{}
			return item, err
		}
	}},
	{"an item where there is none", []string{"Operate/WhatIsNoItemIsNotFound"}, func(d *driver) {
		d.item = func(q queuing.Queue, at messagestore.GlobalPosition) (queuing.Item, error) {
			item := d.known(q, at)
			item.Position = at
			return item, nil
		}
	}},
	{"a queue of two categories", []string{"Refused/AnotherCategory"}, asks(func(q *queuing.Take) { q.Name = fmt.Sprint(q.Name, ":", q.Category) })},
	{"a take without bounds", []string{"Refused/WhatBreaksTheState"}, asks(func(q *queuing.Take) { q.Want = min(q.Want, queuing.MaxItems) })},
	// Q16
	{"each message is an item", []string{"Q16/EachStreamIsOneItem", "Q16/OneTurnAtATime"}, func(d *driver) {
		d.ask = func(q *queuing.Take) { q.Wakes = nil }
		d.offer(queuing.Held, func(queuing.Queue, queuing.Item) bool { return true })
	}},
	{"a turn to two", []string{"Q16/OneTurnAtATime"}, func(d *driver) { d.offer(queuing.Out, func(queuing.Queue, queuing.Item) bool { return true }) }},
	{"a completion that waits for what came", []string{"Q16/CompletedWhateverCame"}, turns(func(f *queuing.Finish) {
		if f.Kind == queuing.Complete {
			f.Kind = queuing.Wait
		}
	})},
	{"what came while the item was out is forgotten", []string{"Q16/WokenWhileOutIsOfferedAgain", "Model/AnswersRandomCallsOfStreamsAsInMemory"}, turns(func(f *queuing.Finish) {
		f.Seen = 1 << 60
	})},
	{"nothing wakes", []string{"Q16/WokenWhileItWaits", "Q16/WokenBeforeItsDate", "Q16/SuspendedIsOfferedByAll"}, asks(func(q *queuing.Take) {
		if q.Wakes != nil {
			q.Wakes = []string{"Nothing"}
		}
	})},
	{"each message wakes", []string{"Q16/WokenWhileItWaits"}, asks(func(q *queuing.Take) {
		if q.Wakes != nil {
			q.Wakes = []string{signal, note}
		}
	})},
	{"what was seen wakes", []string{"Q16/WhatWasSeenDoesNotWake", "Q16/OneTurnAtATime"}, turns(func(f *queuing.Finish) { f.Seen = 0 })},
	{"a turn before its time", []string{"Q16/NotBeforeItsTime", "Model/AnswersRandomCallsOfStreamsAsInMemory"}, turns(func(f *queuing.Finish) { f.Delay = 0 })},
	{"suspended as one that waits", []string{"Q16/SuspendedIsListed"}, turns(func(f *queuing.Finish) {
		if f.Kind == queuing.Suspend {
			f.Kind = queuing.Wait
		}
	})},
	{"suspended is not counted", []string{"Q16/SuspendedIsListed"}, func(d *driver) { d.status = func(s *queuing.Status) { s.Suspended = 0 } }},
	{"suspended for ever", []string{"Q16/SuspendedIsOfferedByAll"}, turns(func(f *queuing.Finish) {
		if f.Kind == queuing.Suspend {
			f.Delay = queuing.MaxDelay
		}
	})},
	{"suspended and not dropped", []string{"Q16/SuspendedIsDropped"}, ignores(queuing.Drop)},
	{"a retry that is hastened", []string{"Q16/RetryKeepsItsBackOff"}, turns(func(f *queuing.Finish) {
		if f.Kind == queuing.Retry {
			f.Delay = 0
		}
	})},
	{"failures that add up", []string{"Q16/FailuresCountAnew"}, turns(func(f *queuing.Finish) {
		if f.Kind == queuing.Wait {
			f.Kind = queuing.Defer
		}
	})},
	{"a dead item is woken", []string{"Q16/DeadIsNotWoken"}, func(d *driver) { d.offer(queuing.Dead, func(queuing.Queue, queuing.Item) bool { return true }) }},
	{"the end of a turn that is forgotten", []string{"Q16/EndingAgainIsTheSame"}, func(d *driver) {
		var were []queuing.Item
		d.ask = func(q *queuing.Take) {
			were = nil
			for _, f := range q.Finishes {
				were = append(were, d.known(q.Queue, f.Position))
			}
		}
		d.answer = func(q queuing.Take, taken *queuing.Taken) {
			for i, item := range were {
				if item.State != queuing.Out || item.Version != q.Finishes[i].Version {
					taken.Endings[i] = queuing.Lost
				}
			}
		}
	}},
	{"the end of a turn without a version", []string{"Q16/LateEndIsLost"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			for i, f := range q.Finishes {
				item := d.known(q.Queue, f.Position)
				q.Finishes[i].Version, q.Finishes[i].Session = item.Version, item.Session
			}
		}
	}},
	{"a cursor that stops where nothing is offered", []string{"Q16/MessagesThatOfferNothingAreNoEnd", "Q3/AHotKeyDelaysNoOther"}, func(d *driver) {
		var before messagestore.GlobalPosition
		cursor := func() messagestore.GlobalPosition {
			all, _ := d.Driver.Queues(context.Background())
			for _, s := range all {
				return s.Cursor
			}
			return 0
		}
		d.ask = func(*queuing.Take) { before = cursor() }
		d.answer = func(_ queuing.Take, taken *queuing.Taken) {
			if cursor() > before+100 {
				taken.Items = nil
			}
		}
	}},
	{"every park told that it was the first", []string{"Parked/IsOneItemHoweverManyParkIt", "Parked/ARemovedMessageIsNotParked"}, parks(func(d *driver, p queuing.Parking) (bool, error) {
		_, err := d.Driver.QueuePark(context.Background(), p)
		return true, err
	})},
	{"a take that makes a queue where nothing was parked", []string{"Parked/NothingElseIsAnItem", "Parked/ItsNameIsFreeOnceItIsRemoved"}, func(d *driver) {
		d.ask = func(q *queuing.Take) {
			if q.Slots != 0 {
				c := queuing.Change{Queue: q.Queue, Action: queuing.Pause}
				_, _ = d.Driver.QueueChange(context.Background(), c)
				c.Action = queuing.Resume
				_, _ = d.Driver.QueueChange(context.Background(), c)
			}
		}
	}},
	{"parked messages of a stream that go side by side", []string{"Parked/RetriedGoInTheOrderOfTheirStream"}, func(d *driver) {
		d.offer(queuing.Held, func(queuing.Queue, queuing.Item) bool { return true })
	}},
	{"parked messages taken by any member", []string{"Parked/IsTakenByTheSlotsAlone", "Parked/WhatEndedItsSessionTwiceIsOfItsSlot"}, asks(func(q *queuing.Take) {
		if q.Slots != 0 {
			q.Slots = allSlots
		}
	})},
	{"what was finished is not parked again", []string{"Parked/IsParkedAnewOnceItIsFinished", "Parked/IsParkedBesideARetriedOneOfItsStream"}, parks(func(d *driver, p queuing.Parking) (bool, error) {
		if d.known(p.Queue, p.Position).State == queuing.Finished {
			return false, nil
		}
		return d.Driver.QueuePark(context.Background(), p)
	})},
	{"what is to be parked is parked at once", []string{"Parked/IsSuspendedWhileItIsToBeParked"}, parks(func(d *driver, p queuing.Parking) (bool, error) {
		p.Asked = false
		return d.Driver.QueuePark(context.Background(), p)
	})},
	{"a queue of parked messages and of others", []string{"Parked/OfOneKindForEver"}, asks(func(q *queuing.Take) {
		if q.Slots != 0 {
			q.Name += ":parked"
		}
	})},
	{"a queue of either kind", []string{"Q16/OfOneKindForEver"}, asks(func(q *queuing.Take) {
		if q.Wakes != nil {
			q.Name += ":streams"
		}
	})},
}
