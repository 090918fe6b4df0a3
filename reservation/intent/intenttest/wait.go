package intenttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/reservation/intent"
)

var waitTests = []test{
	{"Wait/LineIsServedInItsOrder", lineInOrder, 0},
	{"Wait/DeadWaiterCostsATurn", deadWaiter, 0},
	{"Wait/EndsWithHeld", waitEnds, 0},
	{"Wait/EndsWithTheContext", waitEndsWithContext, 0},
	{"Wait/IsToldTheResult", waitIsTold, 0},
	{"Wait/TakesOverWhatIsOver", waitTakesOver, 0},
	{"Wait/OfSeveralKeysHoldsNothing", waitOfSeveral, several},
	{"Await/UntilItIsNotHeld", await, 0},
}

// promptly is far less than the leases of the manager m last, and enough for a busy machine.
const promptly = 10 * time.Second

// A queue has sessions wait for key, one behind the other.
type queue struct {
	mu     sync.Mutex
	served []string
	at     []time.Time
	all    sync.WaitGroup
}

// join has session stand in the line, and release the intent once it has it.
func (q *queue) join(t *testing.T, f *fixture, m *intent.Manager, session string) {
	t.Helper()
	q.all.Go(func() {
		r := request(session)
		r.Wait = time.Minute
		a, err := m.Reserve(t.Context(), r)
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
	f.untilInLine(t, m, key, session)
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
	began := time.Now()

	q.all.Wait()
	require.Less(t, time.Since(began), promptly, "they were not woken")
	require.Equal(t, want, q.served)
	require.Empty(t, f.lookup(t).Line)
}

func deadWaiter(t *testing.T, f *fixture) {
	// The turn is long, so that it is told from the time that a machine needs.
	const turn = time.Second
	m := f.manager(t, &intent.Config{Turn: turn})
	l := lease(t, m, request("holder"))
	var q queue
	q.join(t, f, m, "w0")
	f.leaveInLine(t, m, key, "dead")
	q.join(t, f, m, "w1")
	q.join(t, f, m, "w2")
	require.NoError(t, l.Release(t.Context(), ""))

	q.all.Wait()

	require.Equal(t, []string{"w0", "w1", "w2"}, q.served)
	most := turn + turn/10
	if !f.options.Bubble {
		most = promptly // of a busy machine
	}
	gap := q.at[1].Sub(q.at[0])
	require.GreaterOrEqual(t, gap, turn-turn/10)
	require.Less(t, gap, most)
	require.Less(t, q.at[2].Sub(q.at[1]), most)
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
	r.Wait = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), shortTTL)
	defer cancel()
	began := time.Now()

	_, err := f.m.Reserve(ctx, r)

	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(began), promptly)
}

func waitIsTold(t *testing.T, f *fixture) {
	l := lease(t, f.m, request("holder"))
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			r := request(fmt.Sprint("w", i))
			r.Wait = time.Minute
			a, err := f.m.Reserve(t.Context(), r)
			result, decodeErr := intent.Result[string](a)
			if err != nil || decodeErr != nil || a.Outcome != intent.Done || result != "paid" {
				t.Errorf("%v %q %v %v", a.Outcome, result, err, decodeErr)
			}
		})
	}
	for len(f.lookup(t).Line) < 3 {
		pause(t, time.Millisecond)
	}

	require.NoError(t, l.Confirm(t.Context(), "paid"))
	began := time.Now()

	all.Wait()
	require.Less(t, time.Since(began), promptly, "they were not woken")
}

func waitTakesOver(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("late"))
	r := request("W")
	r.Wait = time.Minute

	next := lease(t, f.m, r)

	now, err := f.store.Now(t.Context())
	require.NoError(t, err)
	require.False(t, now.Before(late.Until()))
	require.Less(t, now, late.Until().Add(promptly))
	require.Equal(t, 2, next.Attempt())
}

func waitOfSeveral(t *testing.T, f *fixture) {
	b := lease(t, f.m, with("B", "b"))
	got := make(chan intent.Answer)
	go func() {
		r := with("W", "a", "b")
		r.Wait = time.Minute
		a, err := f.m.Reserve(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	pause(t, shortTTL)
	a := lease(t, f.m, with("A", "a"))
	require.NoError(t, a.Release(t.Context(), ""))
	require.NoError(t, b.Release(t.Context(), ""))

	began := time.Now()
	require.Equal(t, intent.Reserved, (<-got).Outcome)
	require.Less(t, time.Since(began), promptly, "it was not woken")
}

func await(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("A"))
	i, err := f.m.Await(t.Context(), "", key)
	require.NoError(t, err)
	require.Equal(t, intent.Free, i.Status)
	require.Equal(t, late.Token(), i.Token)

	for _, end := range []string{"Release", "Confirm"} {
		l := lease(t, f.m, request("A"))
		got := make(chan intent.Intent)
		go func() {
			i, err := f.m.Await(t.Context(), "", key)
			if err != nil {
				t.Error(err)
			}
			got <- i
		}()
		pause(t, shortTTL/3)
		require.NoError(t, steps[end](t.Context(), l))
		began := time.Now()
		i = <-got
		require.Less(t, time.Since(began), promptly, "it was not woken")
		require.NotEqual(t, intent.Held, i.Status)
		require.Equal(t, l.Token(), i.Token)
	}
	require.Equal(t, intent.Done, i.Status)

	ctx, cancel := context.WithTimeout(t.Context(), shortTTL/3)
	defer cancel()
	lease(t, f.m, with("A", "other"))
	_, err = f.m.Await(ctx, "", "other")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
