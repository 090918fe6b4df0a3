// Package queuetest tests the promises of [queuing.Driver]. A driver's test file calls [Run]:
//
//	func TestQueues(t *testing.T) {
//		queuetest.Run(t, queuetest.Options{Open: func(t *testing.T) queuing.Driver { return open(t) }})
//	}
//
// Every sub-test is named by the promise that it tests, Q1 to Q11 and Q16, or by a part of the
// interface. Each can fail: the package's own tests break a driver in one way after another, and
// require that the right sub-test notices.
//
// Q7 and Q12 to Q15 do not depend on the driver, and messagestore/storetest tests Q10's conditions.
package queuetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// Options describe the driver to test.
type Options struct {
	// Open returns a driver. It is called once for each sub-test. The sub-tests run in parallel,
	// each with its own queue and category, so all drivers may use one database. Open must close
	// its driver with t.Cleanup.
	Open func(t *testing.T) queuing.Driver

	// Begin begins a transaction on the database of a driver that Open returned. It returns a
	// driver over the transaction, and two functions; the sub-test calls one of them.
	//
	// Defaults to leaving out the sub-tests that need it.
	Begin func(t *testing.T, driver queuing.Driver) (tx queuing.Driver, commit, rollBack func() error)

	// OpenWithClock is Open for a driver with a clock that stands still. It also returns a function
	// that sets the clock ahead of its first time, or behind it if the duration is negative.
	//
	// Defaults to leaving out the sub-tests that need it.
	OpenWithClock func(t *testing.T) (driver queuing.Driver, ahead func(time.Duration))

	// Bubble says that the driver takes its time from the time package and can run in a synctest
	// bubble. Each sub-test then runs in a bubble, and takes no time.
	//
	// Defaults to real time, and short leases.
	Bubble bool

	spare func(*testing.T) // skips a sub-test that takes long, if it is not its turn
}

// Run tests the drivers that the options open. It skips the sub-tests that are left out, with the
// reason.
func Run(t *testing.T, options Options) {
	t.Helper()
	for _, test := range tests() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.needs&transactions != 0 && options.Begin == nil {
				t.Skip("not applicable: the suite is not told how to begin a transaction")
			}
			if test.needs&clock != 0 && options.OpenWithClock == nil {
				t.Skip("not applicable: the suite is not told how to move the clock")
			}
			if test.needs&(busy|clock) != 0 && options.spare != nil {
				options.spare(t)
			}
			run := func(t *testing.T) {
				if options.OpenWithClock == nil || test.needs&clock == 0 {
					test.run(t, newFixture(options.Open(t), options))
					return
				}
				driver, ahead := options.OpenWithClock(t)
				f := newFixture(driver, options)
				f.ahead = ahead
				test.run(t, f)
			}
			if options.Bubble && test.needs&busy == 0 {
				synctest.Test(t, run)
				return
			}
			run(t)
		})
	}
}

// A test is one sub-test of the suite.
type test struct {
	name  string
	needs need
	run   func(t *testing.T, f *fixture)
}

// A need is something that a sub-test requires.
type need uint8

const (
	transactions need = 1 << iota
	busy              // the test computes, and waits for no time
	clock             // the test alone moves the clock
)

func tests() []test {
	var all []test
	for _, subject := range [][]test{deliveryTests, sharedTests, resumedTests, endTests, keyTests, retriedTests, leaseTests, transactTests, failureTests, lineTests, boundTests, idleTests, clockTests, operatorTests, removeTests, parkedTests, streamTests, modelTests} {
		all = append(all, subject...)
	}
	return all
}

// Times that a sub-test lets pass, and a time that is longer than any sub-test. No step has to be
// in time for the first.
const (
	brief = queuing.MinLease
	long  = time.Hour
)

// A fixture is the driver and the queue of a sub-test.
type fixture struct {
	options Options
	driver  queuing.Driver
	of      queuing.Queue // that no other sub-test uses
	wakes   []string      // of a queue of streams

	ahead func(time.Duration) // moves the store's clock; nil if the sub-test does not

	mu       sync.Mutex
	sessions map[queuing.Delivery]int64 // that have, or had, what was delivered
}

// took records the session of deliveries.
func (f *fixture) took(q queuing.Take, taken queuing.Taken) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions == nil {
		f.sessions = map[queuing.Delivery]int64{}
	}
	for i, item := range taken.Items {
		f.sessions[item.Delivery()] = q.SessionOf(i)
	}
}

// moved records the next session of kept deliveries.
func (f *fixture) moved(l queuing.Leave) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range l.Keep {
		if l.Next != 0 && f.sessions[d] == l.Session {
			f.sessions[d] = l.Next
		}
	}
}

// sessionOf returns the session of a delivery, if it is known.
func (f *fixture) sessionOf(d queuing.Delivery, otherwise int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.sessions[d], otherwise)
}

func newFixture(driver queuing.Driver, options Options) *fixture {
	id := uuid.NewString()
	name := "test" + id[:8] + id[24:]
	return &fixture{driver: driver, options: options, of: queuing.Queue{Name: name, Category: messagestore.Category(name)}}
}

// insert writes an item for each key. An empty text stands for a key that no other item has.
func (f *fixture) insert(t require.TestingT, keys ...string) (at []messagestore.GlobalPosition) {
	for _, key := range keys {
		at = append(at, f.insertAt(t, key, time.Time{}))
	}
	return at
}

// insertAt writes an item with a date, or without a date for the zero time.
func (f *fixture) insertAt(t require.TestingT, key string, due time.Time) messagestore.GlobalPosition {
	item := messagestore.Encoded{ID: uuid.New(), Type: "Item", Data: []byte(`{}`)}
	if !due.IsZero() {
		item.Metadata = fmt.Appendf(nil, `{%q:%d}`, queuing.DueField, due.UnixMicro())
	}
	written := testkit.Do(f.driver.Append(context.Background(), messagestore.Append{
		Stream: f.of.Category.Stream(cmp.Or(key, item.ID.String())), Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{item},
	}))(t)
	return written.GlobalPosition
}

// full returns q with the missing fields filled in: session 1, a lease that does not end, five
// failures, and the sessions of the deliveries that it ends.
func (f *fixture) full(q queuing.Take) queuing.Take {
	q.Queue, q.Wakes = f.of, f.wakes
	q.Session = cmp.Or(q.Session, 1)
	q.Lease = cmp.Or(q.Lease, long)
	q.MaxFailures = cmp.Or(q.MaxFailures, 5)
	q.Finishes = slices.Clone(q.Finishes)
	for i, end := range q.Finishes {
		q.Finishes[i].Session = cmp.Or(end.Session, f.sessionOf(end.Delivery, q.Session))
	}
	return q
}

func (f *fixture) take(t testing.TB, q queuing.Take) queuing.Taken {
	t.Helper()
	q = f.full(q)
	taken := testkit.Do(f.driver.QueueTake(t.Context(), q))(t)
	f.took(q, taken)
	require.Len(t, taken.Endings, len(q.Finishes))
	if len(q.Resume) == 0 {
		require.LessOrEqual(t, len(taken.Items), q.Wants())
	}
	return taken
}

// one returns the item that is offered next.
func (f *fixture) one(t testing.TB, q queuing.Take) queuing.Taking {
	t.Helper()
	q.Want = 1
	taken := f.take(t, q)
	require.Len(t, taken.Items, 1)
	return taken.Items[0]
}

// none requires that no item is offered.
func (f *fixture) none(t testing.TB, q queuing.Take) {
	t.Helper()
	q.Want = 100
	require.Empty(t, positions(f.take(t, q)))
}

// soon returns the item that is offered next, once a time has passed.
func (f *fixture) soon(t testing.TB, q queuing.Take) (item queuing.Taking) {
	t.Helper()
	q.Want = 1
	testkit.Await(t, "an item is offered", func() (bool, any) {
		taken := f.take(t, q)
		if len(taken.Items) > 0 {
			item = taken.Items[0]
		}
		return len(taken.Items) > 0, taken
	})
	return item
}

// end ends a delivery, with an error for its log if it failed.
func (f *fixture) end(t testing.TB, kind queuing.Kind, d queuing.Delivery) queuing.Ending {
	t.Helper()
	finish := queuing.Finish{Delivery: d, Kind: kind}
	if kind == queuing.Retry || kind == queuing.Bury {
		finish.Error = "no answer"
	}
	return f.take(t, queuing.Take{Finishes: []queuing.Finish{finish}}).Endings[0]
}

// done ends a delivery, and requires that it was not lost.
func (f *fixture) done(t testing.TB, kind queuing.Kind, d queuing.Delivery) {
	t.Helper()
	requireEnding(t, queuing.Done, f.end(t, kind, d))
}

func requireEnding(t testing.TB, want, got queuing.Ending) {
	t.Helper()
	require.Equal(t, string(rune(want)), string(rune(got)))
}

func (f *fixture) extend(t testing.TB, session int64, lease time.Duration, deliveries ...queuing.Delivery) (lost []queuing.Delivery) {
	t.Helper()
	lost = testkit.Do(f.driver.QueueExtend(t.Context(), queuing.Extension{Queue: f.of, Session: session, Lease: lease, Deliveries: deliveries}))(t)
	return lost
}

func (f *fixture) leave(t testing.TB, l queuing.Leave) {
	t.Helper()
	l.Queue = f.of
	require.NoError(t, f.driver.QueueLeave(t.Context(), l))
	f.moved(l)
}

func (f *fixture) change(t testing.TB, action queuing.Action, at ...messagestore.GlobalPosition) []messagestore.GlobalPosition {
	t.Helper()
	c := queuing.Change{Queue: f.of, Action: action, Positions: at}
	if len(at) > 0 {
		c.Reason = "sent twice"
	}
	return testkit.Do(f.driver.QueueChange(t.Context(), c))(t)
}

func (f *fixture) item(t testing.TB, at messagestore.GlobalPosition) queuing.Item {
	t.Helper()
	item := testkit.Do(f.driver.QueueItem(t.Context(), f.of, at))(t)
	require.Equal(t, at, item.Position)
	return item
}

// is requires an item's state, version and failures, and the kinds of its log's entries.
func (f *fixture) is(t testing.TB, at messagestore.GlobalPosition, want string) {
	t.Helper()
	require.Equal(t, want, describe(f.item(t, at)))
}

// describe returns an item's state, version/failures, and the kinds of the entries of its log:
// "later 2/1 ru".
func describe(item queuing.Item) string {
	text := fmt.Appendf(nil, "%s %d/%d ", item.State, item.Version, item.Failures)
	for _, e := range item.Log {
		text = append(text, byte(e.What))
	}
	return string(text)
}

func (f *fixture) ready(t testing.TB) queuing.Ready {
	t.Helper()
	return testkit.Do(f.driver.QueueReady(t.Context(), f.of))(t)
}

// status returns the status of the queue, or nil if it does not exist.
func (f *fixture) status(t require.TestingT) *queuing.Status {
	all := testkit.Do(f.driver.Queues(context.Background()))(t)
	for _, status := range all {
		if status.Name == f.of.Name {
			return &status
		}
	}
	return nil
}

func (f *fixture) now(t testing.TB) time.Time {
	t.Helper()
	return testkit.Do(f.driver.Now(t.Context()))(t)
}

func positions(taken queuing.Taken) (at []messagestore.GlobalPosition) {
	for _, item := range taken.Items {
		at = append(at, item.Message.GlobalPosition)
	}
	return at
}

// pass lets time pass; brief leases end in it.
func pass(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// letters returns the letters of endings.
func letters(endings []queuing.Ending) (all string) {
	for _, e := range endings {
		all += string(rune(e))
	}
	return all
}
