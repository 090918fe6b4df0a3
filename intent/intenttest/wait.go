package intenttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
)

// The tests of waiting: that a line is served in its order, and that each wait ends.
var waitTests = []test{
	{"Wait/LineIsServedInItsOrder", lineInOrder, 0},
	{"Wait/DeadWaiterCostsATurn", deadWaiter, 0},
	{"Wait/EndsWithHeld", waitEnds, 0},
	{"Wait/EndsWithTheContext", waitEndsWithContext, 0},
	{"Wait/CallersThatLeaveKeepNobodyWaiting", leaversKeepNobody, 0},
	{"Wait/CrowdIsServed", crowdIsServed, 0},
	{"Wait/IsToldTheResult", waitIsTold, 0},
	{"Wait/TakesOverWhatIsOver", waitTakesOver, 0},
	{"Wait/OfSeveralKeysHoldsNothing", waitOfSeveral, several | direct},
	{"Await/UntilItIsNotHeld", awaits, 0},
}

// A queue lets sessions wait for key, one after the other.
type queue struct {
	mu     sync.Mutex
	served []string
	at     []time.Time
	all    sync.WaitGroup
}

// enter lets session wait, and releases the intent once the session has it.
func (q *queue) enter(t *testing.T, m *intent.Manager, session string) {
	t.Helper()
	q.all.Go(func() {
		r := request(session)
		r.Wait = time.Hour
		a, err := m.Reserve(t.Context(), r)
		if t.Context().Err() != nil {
			return
		}
		if err != nil || a.Outcome != intent.Reserved {
			t.Errorf("%s: %v %v", session, a.Outcome, err)
			return
		}
		q.mu.Lock()
		q.served, q.at = append(q.served, session), append(q.at, time.Now())
		q.mu.Unlock()
		if err := a.Lease.Release(context.WithoutCancel(t.Context()), ""); err != nil {
			t.Error(err)
		}
	})
}

// join puts session in the line: see enter.
func (q *queue) join(t *testing.T, f *fixture, m *intent.Manager, session string) {
	t.Helper()
	q.enter(t, m, session)
	testkit.Await(t, session+" is the last in the line, or was served", func() (bool, any) {
		i, err := f.m.Lookup(t.Context(), "", key)
		require.NoError(t, err)
		q.mu.Lock()
		defer q.mu.Unlock()
		n := len(i.Line)
		return n > 0 && i.Line[n-1] == session || slices.Contains(q.served, session), i
	})
}

// wait waits until all sessions of the queue were served.
func (q *queue) wait(t *testing.T) {
	t.Helper()
	untilEnd(t, "the sessions in the line are served", &q.all)
}

// untilEnd waits until the goroutines of all have ended. They end with the test's context, too.
func untilEnd(t *testing.T, what string, all *sync.WaitGroup) {
	t.Helper()
	t.Cleanup(all.Wait)
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	testkit.Receive(t, what, ended)
}

func lineInOrder(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("holder"))
	var q queue
	var want []string
	for i := range 6 {
		want = append(want, fmt.Sprint("w", i))
		q.join(t, f, f.m, want[i])
	}
	require.Equal(t, want, f.lookup(t).Line)

	require.NoError(t, l.Release(t.Context(), ""), "waiters have come since")

	q.wait(t)
	require.Equal(t, want, q.served)
	require.Empty(t, f.lookup(t).Line)
}

func deadWaiter(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("holder"))
	var q queue
	f.leaveInLine(t, f.m, key, "dead")
	q.join(t, f, f.hasty, "w1")
	q.join(t, f, f.m, "w2") // for whom a turn lasts longer than the sub-test
	began := time.Now()
	require.NoError(t, l.Release(t.Context(), ""))

	q.wait(t)

	require.Equal(t, []string{"w1", "w2"}, q.served)
	require.GreaterOrEqual(t, q.at[0].Sub(began), turn)
	if f.options.Bubble {
		require.Less(t, q.at[1].Sub(began), turn+turn/10)
	}
}

func waitEnds(t *testing.T, f *fixture) {
	lease(t, f.m, request("holder"))
	r := request("W")
	r.Wait = shortTTL
	began := time.Now()

	a := reserve(t, f.m, r)

	require.Equal(t, intent.Held, a.Outcome)
	require.Equal(t, "holder", a.Intent.Session)
	require.GreaterOrEqual(t, time.Since(began), shortTTL)
	require.Empty(t, f.lookup(t).Line, "its place in the line is free")
}

func waitEndsWithContext(t *testing.T, f *fixture) {
	lease(t, f.m, request("holder"))
	r := request("W")
	r.Wait = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := f.m.Reserve(ctx, r)
		ended <- err
	}()
	f.untilInLine(t, f.m, key, "W")

	cancelled := time.Now()
	cancel()

	require.ErrorIs(t, testkit.Receive(t, "the waiter gives up", ended), context.Canceled)
	if f.options.Bubble {
		require.Equal(t, cancelled, time.Now(), "at once")
	}
}

// leaversKeepNobody lets callers leave the line, all at once, because their context ends. The next
// session gets the intent at once.
func leaversKeepNobody(t *testing.T, f *fixture) {
	callers := 40
	if !f.options.Bubble { // each that comes costs all others a step
		callers = 12
	}
	l := lease(t, f.m, request("holder"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	processes := make([]*intent.Manager, 4) // each takes its own callers out of the line together
	for i := range processes {
		processes[i] = f.manager(t, &intent.Config{TTL: longTTL, Turn: longTurn})
	}
	var all sync.WaitGroup
	for i := range callers {
		r := request(fmt.Sprint("w", i))
		r.Wait = time.Hour
		all.Go(func() {
			if _, err := processes[i%len(processes)].Reserve(ctx, r); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", r.Session, err)
			}
		})
	}
	testkit.AwaitEqual(t, "sessions in the line", min(callers, 8*len(processes)), func() int { return len(f.lookup(t).Line) }) // the others stand behind

	cancel()

	untilEnd(t, "the callers leave", &all)
	require.Empty(t, f.lookup(t).Line)
	require.NoError(t, l.Release(t.Context(), ""))
	require.Equal(t, intent.Reserved, reserve(t, f.m, request("next")).Outcome)
}

// crowdIsServed lets more callers wait than fit into the line.
func crowdIsServed(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("holder"))
	var q queue
	for i := range 130 {
		q.enter(t, f.m, fmt.Sprint("w", i))
	}
	testkit.AwaitEqual(t, "sessions in the line", 8, func() int { return len(f.lookup(t).Line) })

	require.NoError(t, l.Release(t.Context(), ""))

	q.wait(t)
	require.Len(t, q.served, 130)
	require.Empty(t, f.lookup(t).Line)
}

func waitIsTold(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("holder"))
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			r := request(fmt.Sprint("w", i))
			r.Wait = time.Hour
			a, err := f.m.Reserve(t.Context(), r)
			if t.Context().Err() != nil {
				return
			}
			result, decodeErr := intent.Result[string](a)
			if err != nil || decodeErr != nil || a.Outcome != intent.Done || result != "paid" {
				t.Errorf("%v %q %v %v", a.Outcome, result, err, decodeErr)
			}
		})
	}
	testkit.AwaitEqual(t, "sessions in the line", 3, func() int { return len(f.lookup(t).Line) })

	require.NoError(t, l.Confirm(t.Context(), "paid"))

	untilEnd(t, "the waiters are told", &all)
}

func waitTakesOver(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("late"))
	r := request("W")
	r.Wait = testkit.WaitLimit

	next := lease(t, f.m, r)

	now, err := f.store.Now(t.Context())
	require.NoError(t, err)
	require.False(t, now.Before(late.Until()))
	if f.options.Bubble {
		require.Less(t, now, late.Until().Add(turn))
	}
	require.Equal(t, 2, next.Attempt())
}

func waitOfSeveral(t *testing.T, f *fixture) {
	b := lease(t, f.m, with("B", "b"))
	got := make(chan intent.Answer, 1)
	go func() {
		r := with("W", "a", "b")
		r.Wait = time.Hour
		a, err := f.m.Reserve(t.Context(), r)
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		got <- a
	}()
	pause(t, shortTTL)
	a := lease(t, f.m, with("A", "a"))
	require.NoError(t, a.Release(t.Context(), ""))
	require.NoError(t, b.Release(t.Context(), ""))

	require.Equal(t, intent.Reserved, testkit.Receive(t, "the waiter has both keys", got).Outcome)
}

func awaits(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("A"))
	i := untilNotHeld(t, f.m, key)
	require.Equal(t, intent.Free, i.Status)
	require.Equal(t, late.Token(), i.Token)

	for _, end := range []string{"Release", "Confirm"} {
		l := lease(t, f.m, request("A"))
		got := make(chan intent.Intent, 1)
		go func() {
			i, err := f.m.Await(t.Context(), "", key)
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			got <- i
		}()
		pause(t, shortTTL/3)
		require.NoError(t, steps[end](t.Context(), l))
		i = testkit.Receive(t, "the end of the lease is told", got)
		require.NotEqual(t, intent.Held, i.Status)
		require.Equal(t, l.Token(), i.Token)
	}
	require.Equal(t, intent.Done, i.Status)

	ctx, cancel := context.WithTimeout(t.Context(), shortTTL/3)
	defer cancel()
	lease(t, f.m, with("A", "other"))
	_, err := f.m.Await(ctx, "", "other")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
