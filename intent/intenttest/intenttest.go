// Package intenttest is the conformance suite of [intent.Store]: the promises of intents over a
// store, as tests. The test file of a store calls [Run]:
//
//	func TestIntents(t *testing.T) {
//		intenttest.Run(t, intenttest.Options{Open: func(t *testing.T) intent.Store { return open(t) }})
//	}
//
// Every sub-test is named after the promise that it would refute, L1 to L7, or after the part of
// the API that it tests. Each has been seen to fail: the package's own tests break a store in one
// way after another, and require that the right sub-test notices.
package intenttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// Options are the subject of the suite.
type Options struct {
	// Open returns a store. It is called once for each sub-test. The sub-tests run in parallel,
	// each in its own category, so all stores may use one database. Open closes its store with
	// t.Cleanup.
	Open func(t *testing.T) intent.Store

	// OpenWithClock is Open for a store that reads its time from clock.
	//
	// Defaults to nil, which skips the sub-tests that need it.
	OpenWithClock func(t *testing.T, clock func() time.Time) intent.Store

	// Over returns a manager over a service that keeps its intents in store: see [intent.NewOver]. The
	// sub-tests that need the store itself are skipped.
	//
	// Defaults to [intent.New].
	Over func(t *testing.T, store intent.Store, category messagestore.Category, config *intent.Config) (*intent.Manager, error)

	// Skip has the sub-tests that do not apply to a service, and why.
	//
	// Defaults to none.
	Skip map[string]string

	// Bubble says that the store does all its waiting inside a synctest bubble. Each sub-test then
	// runs in a bubble, and takes no time.
	//
	// Defaults to real time, and short leases.
	Bubble bool
}

// Run tests the stores that the options open. It skips sub-tests that do not apply, with the
// reason.
func Run(t *testing.T, options Options) {
	t.Helper()
	for _, test := range tests() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.needs&clock != 0 && options.OpenWithClock == nil {
				t.Skip("not applicable: the suite cannot set the store's clock")
			}
			if reason := options.Skip[test.name]; reason != "" {
				t.Skip("not applicable: " + reason)
			}
			if test.needs&direct != 0 && options.Over != nil {
				t.Skip("not applicable: a service keeps the intents")
			}
			run := func(t *testing.T) {
				f := newFixture(t, options, test.needs)
				test.run(t, f)
				if f.store != nil {
					f.verify(t, f.category)
				}
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
	run   func(t *testing.T, f *fixture)
	needs need
}

// A need is an ability of a store. Without it a sub-test is skipped.
type need uint8

const (
	clock      need = 1 << iota // the test can set the store's clock
	several                     // writes to several streams
	reading                     // the store can be read by category
	busy                        // the test computes, and waits for no time
	forgetting                  // an operator can remove the store's keys
	direct                      // the manager has the store, and no service between
)

func tests() []test {
	var all []test
	for _, subject := range [][]test{leaseTests, stateTests, sessionTests, holderTests, keyTests, waitTests, operateTests, clockTests} {
		all = append(all, subject...)
	}
	return all
}

// Times that a sub-test lets pass. No step of a holder or a waiter has to be faster: if a holder
// must be in time, its sub-test takes leases that outlive it, or tries again with longer ones.
const (
	shortTTL = 100 * time.Millisecond
	turn     = 50 * time.Millisecond
)

// Times that do not pass within a sub-test. The turn is the longest that is allowed.
const (
	longTTL  = time.Hour
	longTurn = time.Minute
)

// A fixture is the store and category of a sub-test.
type fixture struct {
	options  Options
	store    intent.Store
	category messagestore.Category // that no other sub-test uses
	m        *intent.Manager       // with leases and turns that outlive the sub-test
	hasty    *intent.Manager       // with such leases, and turns that it lets pass
	short    *intent.Manager       // with leases and turns that it lets pass
}

func newFixture(t *testing.T, options Options, needs need) *fixture {
	t.Helper()
	f := &fixture{options: options, category: Category(t)}
	if needs&clock != 0 {
		return f
	}
	f.use(t, options.Open(t))
	if _, ok := f.store.(intent.CategoryStore); needs&reading != 0 && !ok {
		t.Skip("not applicable: the store is not read by category")
	}
	if needs&forgetting != 0 && !forgets(f.store) {
		t.Skip("not applicable: no operator can remove intents of the store")
	}
	if needs&several != 0 && !f.writesStreams(t) {
		t.Skipf("not applicable: write several streams at once: %v", messagestore.ErrNotSupported)
	}
	return f
}

func forgets(store intent.Store) bool {
	s, ok := store.(intent.CategoryStore)
	return ok && s.Forgets()
}

// Category returns a category that no other test uses, so that tests share a database without
// seeing each other.
func Category(t testing.TB) messagestore.Category {
	t.Helper()
	id := uuid.NewString()
	return messagestore.Category("test" + id[:8] + id[24:] + ":intent")
}

// use makes the sub-test work on store.
func (f *fixture) use(t *testing.T, store intent.Store) {
	t.Helper()
	f.store = store
	f.m = f.manager(t, &intent.Config{TTL: longTTL, Turn: longTurn})
	f.hasty = f.manager(t, &intent.Config{TTL: longTTL, Turn: turn})
	f.short = f.manager(t, &intent.Config{TTL: shortTTL, Turn: turn})
}

func (f *fixture) manager(t *testing.T, config *intent.Config) *intent.Manager {
	t.Helper()
	if f.options.Over != nil {
		m, err := f.options.Over(t, f.store, f.category, config)
		require.NoError(t, err)
		return m
	}
	m, err := intent.New(f.store, f.category, config)
	require.NoError(t, err)
	return m
}

func (f *fixture) writesStreams(t *testing.T) bool {
	t.Helper()
	category := Category(t)
	_, _, err := f.store.TryWriteStreams(t.Context(),
		messagestore.To(category.Stream("a"), messagestore.NoStream, effect()), messagestore.To(category.Stream("b"), messagestore.NoStream, effect()))
	if errors.Is(err, messagestore.ErrNotSupported) {
		return false
	}
	require.NoError(t, err)
	return true
}

func effect() messagestore.Raw { return messagestore.Raw{Type: "Paid", Data: []byte(`{}`)} }

// key is the key of a sub-test that needs a single key, and content is the content of its requests.
const (
	key     = "k"
	content = "pay 100"
)

func request(session string) intent.Request {
	return intent.Request{Key: key, Session: session, Content: content}
}

func reserve(t *testing.T, m *intent.Manager, r intent.Request) intent.Answer {
	t.Helper()
	a, err := m.Reserve(t.Context(), r)
	require.NoError(t, err)
	return a
}

func lease(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
	t.Helper()
	a := reserve(t, m, r)
	require.Equal(t, intent.Reserved, a.Outcome)
	return a.Lease
}

// lapse waits until the lease on key is over.
func (f *fixture) lapse(t *testing.T, m *intent.Manager) {
	t.Helper()
	require.Equal(t, intent.Free, untilNotHeld(t, m, key).Status)
}

func untilNotHeld(t *testing.T, m *intent.Manager, key string) intent.Intent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	i, err := m.Await(ctx, "", key)
	require.NoError(t, err)
	return i
}

// inTime calls try with longer and longer TTLs, each time in another category, until try says that
// its holder kept its lease: until the machine was fast enough for one.
func (f *fixture) inTime(t *testing.T, try func(ttl time.Duration) bool) {
	t.Helper()
	ttl := shortTTL
	testkit.Await(t, "a holder keeps its lease", func() (bool, any) {
		if try(ttl) {
			return true, nil
		}
		f.verify(t, f.category)
		f.category = Category(t)
		f.use(t, f.store)
		ttl *= 2
		return false, fmt.Sprintf("it lost one of %v", ttl/2)
	})
}

// overtaken returns a lease that is over, and the lease of the session that took the intent.
func (f *fixture) overtaken(t *testing.T) (late, next *intent.Lease) {
	t.Helper()
	late = lease(t, f.short, request("late"))
	f.lapse(t, f.short)
	return late, lease(t, f.m, request("next"))
}

func (f *fixture) lookup(t *testing.T) intent.Intent {
	t.Helper()
	i, err := f.m.Lookup(t.Context(), "", key)
	require.NoError(t, err)
	return i
}

// messages returns the messages of category. If the store has no history, it returns nil.
func (f *fixture) messages(t *testing.T, category messagestore.Category) []*messagestore.Message {
	t.Helper()
	store, ok := f.store.(intent.CategoryStore)
	if !ok {
		return nil
	}
	var all []*messagestore.Message
	q := messagestore.CategoryQuery{Category: category, Limit: 1000}
	for more := true; more; {
		page, err := store.ReadCategoryPage(t.Context(), q)
		require.NoError(t, err)
		all = append(all, page.Messages...)
		q.From, more = page.Next, page.More
	}
	return all
}

// verify requires that each stream of the category is a valid intent.
func (f *fixture) verify(t *testing.T, category messagestore.Category) {
	t.Helper()
	last := map[messagestore.StreamName]*intentlog.State{}
	for _, m := range f.messages(t, category) {
		step, err := intentlog.Read(m)
		require.NoError(t, err)
		require.Empty(t, step.Violations(last[m.Stream]), "%v", m)
		last[m.Stream] = step
	}
}

// requireTypes requires the types of the messages of a sub-test's only intent, if the store has a
// history.
func (f *fixture) requireTypes(t *testing.T, want ...string) {
	t.Helper()
	if _, ok := f.store.(intent.CategoryStore); !ok {
		return
	}
	var types []string
	for _, m := range f.messages(t, f.category) {
		types = append(types, m.Type)
	}
	require.Equal(t, want, types)
}

func requireLost(t *testing.T, err error, by string) {
	t.Helper()
	require.ErrorIs(t, err, intent.ErrLeaseLost)
	lost, ok := errors.AsType[*intent.LeaseLostError](err)
	require.True(t, ok)
	require.NotNil(t, lost.By)
	require.Equal(t, by, lost.By.Session)
}

// steps are the steps of a lease by name.
var steps = map[string]func(ctx context.Context, l *intent.Lease) error{
	"Extend":  func(ctx context.Context, l *intent.Lease) error { return l.Extend(ctx) },
	"Confirm": func(ctx context.Context, l *intent.Lease) error { return l.Confirm(ctx, "result") },
	"Release": func(ctx context.Context, l *intent.Lease) error { return l.Release(ctx, "reason") },
}
