package intenttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of leases: that one of many sessions gets the intent, that a late holder changes
// nothing, that tokens rise, and that what is confirmed stays so.
var leaseTests = []test{
	{"L1/TokensRiseWithEveryGrant", tokensRise, 0},
	{"L2/OneOfManyIsGranted", oneOfManyIsGranted, 0},
	{"L2/OneOfManyTakesOver", oneOfManyTakesOver, 0},
	{"L2/HeldAsLongAsItIsExtended", heldAsLongAsExtended, 0},
	{"L3/LateHolderIsRefused", lateHolderIsRefused, 0},
	{"L3/LateStepChangesNothing", lateStepChangesNothing, 0},
	{"L3/AnotherTokenIsNoLease", anotherTokenIsNoLease, 0},
	{"L4/ResourceRefusesASmallerToken", resourceRefuses, 0},
	{"L4/GuardedWriteIsRefused", guardedWriteIsRefused, several | direct},
	{"L5/ConfirmedIsNeverGrantedAgain", confirmedForEver, 0},
	{"L5/OneOfTwoConfirms", oneOfTwoConfirms, 0},
	{"L6/NewStreamHasAGreaterToken", newStreamHasAGreaterToken, 0},
	{"L7/HolderCountsFromBeforeItAsked", countsFromBefore, 0},
	{"L7/HolderStopsBeforeTheLeaseIsOver", stopsBefore, 0},
}

func tokensRise(t *testing.T, f *fixture) {
	var last int64
	for i := range 10 {
		// A separate manager, like a process that was started again.
		m := f.manager(t, &intent.Config{TTL: shortTTL})
		l := lease(t, m, request(fmt.Sprint(i)))
		require.Greater(t, l.Token(), last)
		require.Equal(t, i+1, l.Attempt())
		require.Equal(t, l.Token(), f.lookup(t).Token, "a reader computes the same")
		last = l.Token()
		if i%5 == 4 {
			f.lapse(t, m)
			continue
		}
		require.NoError(t, l.Release(t.Context(), ""))
	}
}

// outcomes lets sessions ask for key at once.
func (f *fixture) outcomes(t *testing.T, m *intent.Manager, sessions int) map[intent.Outcome][]intent.Answer {
	t.Helper()
	answers := make([]intent.Answer, sessions)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			a, err := m.Reserve(t.Context(), request(fmt.Sprint("s", i)))
			if err != nil {
				t.Error(err)
			}
			answers[i] = a
		})
	}
	all.Wait()
	by := map[intent.Outcome][]intent.Answer{}
	for _, a := range answers {
		by[a.Outcome] = append(by[a.Outcome], a)
	}
	return by
}

func (f *fixture) requireOneWinner(t *testing.T, by map[intent.Outcome][]intent.Answer, losers int) {
	t.Helper()
	require.Len(t, by[intent.Reserved], 1)
	require.Len(t, by[intent.Held], losers)
	winner := by[intent.Reserved][0].Lease
	for _, a := range by[intent.Held] {
		require.Equal(t, winner.Session(), a.Intent.Session)
		require.Equal(t, winner.Token(), a.Intent.Token)
		require.Equal(t, winner.Until(), a.Intent.Until)
		require.Positive(t, a.Intent.Left)
	}
	require.NoError(t, winner.Confirm(t.Context(), nil))
}

func oneOfManyIsGranted(t *testing.T, f *fixture) {
	f.requireOneWinner(t, f.outcomes(t, f.m, 12), 11)
}

func oneOfManyTakesOver(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("late"))
	f.lapse(t, f.short)

	f.requireOneWinner(t, f.outcomes(t, f.m, 12), 11)

	requireDone(t, f, late)
}

func requireDone(t *testing.T, f *fixture, late *intent.Lease) {
	t.Helper()
	require.ErrorIs(t, late.Confirm(t.Context(), "late"), intent.ErrLeaseLost)
	require.Equal(t, intent.Done, f.lookup(t).Status)
}

func heldAsLongAsExtended(t *testing.T, f *fixture) {
	f.inTime(t, func(ttl time.Duration) bool {
		r := request("holder")
		r.TTL = ttl
		l := lease(t, f.m, r)
		work, stop := l.Keep(t.Context())
		defer stop()
		for end := time.Now().Add(ttl + ttl/2); time.Now().Before(end); {
			if reserve(t, f.m, request("other")).Outcome != intent.Held {
				break // it was late, or was taken from early: the messages tell
			}
			pause(t, ttl/20)
		}
		inTime := work.Err() == nil && l.Err() == nil && f.lookup(t).Session == "holder"
		if inTime {
			stop()
			require.ErrorIs(t, work.Err(), context.Canceled)
			testkit.Await(t, "another session is granted it", func() (bool, any) {
				f.lapse(t, f.short) // an extension that was on its way may come after it
				a := reserve(t, f.m, request("other"))
				return a.Outcome == intent.Reserved, a.Outcome
			})
		}
		f.requireTakenInTime(t)
		return inTime
	})
}

// requireTakenInTime requires that no lease was taken over before its end.
func (f *fixture) requireTakenInTime(t *testing.T) {
	t.Helper()
	for before, m := range pairs(f.messages(t, f.category)) {
		was, err := intentlog.Read(before)
		require.NoError(t, err)
		step, err := intentlog.Read(m)
		require.NoError(t, err)
		require.False(t, step.TookEarly(was), "%v after %v", m, before)
	}
}

func pairs(all []*messagestore.Message) func(func(before, after *messagestore.Message) bool) {
	return func(yield func(before, after *messagestore.Message) bool) {
		for i := 1; i < len(all); i++ {
			if !yield(all[i-1], all[i]) {
				return
			}
		}
	}
}

func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

func lateHolderIsRefused(t *testing.T, f *fixture) {
	late, next := f.overtaken(t)
	for name, step := range steps {
		requireLost(t, step(t.Context(), late), next.Session())
		require.Error(t, late.Err(), name)
		require.Zero(t, late.Left())
	}
	require.NoError(t, next.Err())
}

func lateStepChangesNothing(t *testing.T, f *fixture) {
	late, next := f.overtaken(t)
	before := f.lookup(t)
	history := len(f.messages(t, f.category))

	for range 3 {
		for _, step := range steps {
			require.ErrorIs(t, step(t.Context(), late), intent.ErrLeaseLost)
		}
	}

	after := f.lookup(t)
	after.Left = before.Left
	require.Equal(t, before, after)
	require.Len(t, f.messages(t, f.category), history)
	require.NoError(t, next.Extend(t.Context()))
	require.NoError(t, next.Confirm(t.Context(), "next's"))
	require.JSONEq(t, `"next's"`, string(f.lookup(t).Result))
}

// anotherTokenIsNoLease makes the same session hold the intent twice: only the token distinguishes
// its leases.
func anotherTokenIsNoLease(t *testing.T, f *fixture) {
	late := lease(t, f.short, request("A"))
	f.lapse(t, f.short)
	next := lease(t, f.m, request("A"))

	require.Greater(t, next.Token(), late.Token())
	for name, step := range steps {
		require.ErrorIs(t, step(t.Context(), late), intent.ErrLeaseLost, name)
	}
	for _, token := range []int64{late.Token(), next.Token() - 1, next.Token() + 1} {
		_, err := f.m.Resume(t.Context(), "", key, "A", token)
		require.ErrorIs(t, err, intent.ErrLeaseLost)
	}
	_, err := f.m.Resume(t.Context(), "", key, "B", next.Token())
	require.ErrorIs(t, err, intent.ErrLeaseLost)
	require.NoError(t, next.Confirm(t.Context(), nil))
}

// A resource is outside the store, and keeps the greatest token that it has seen.
type resource struct{ greatest int64 }

func (r *resource) write(token int64) bool {
	if token < r.greatest {
		return false
	}
	r.greatest = token
	return true
}

func resourceRefuses(t *testing.T, f *fixture) {
	var r resource
	late, next := f.overtaken(t)
	require.True(t, r.write(late.Token()))
	require.True(t, r.write(next.Token()))
	require.False(t, r.write(late.Token()), "a late write came through")
	require.True(t, r.write(next.Token()))
	require.NoError(t, next.Release(t.Context(), ""))
	last := lease(t, f.m, request("last"))
	require.True(t, r.write(last.Token()))
	require.False(t, r.write(next.Token()), "a late write came through")
}

func guardedWriteIsRefused(t *testing.T, f *fixture) {
	other := f.category.WithType("other").Stream("1")
	guarded := func(l *intent.Lease) *messagestore.Conflict {
		_, met, err := f.store.TryWriteStreams(t.Context(), append(l.Guarded(), messagestore.To(other, messagestore.AnyVersion, effect()))...)
		require.NoError(t, err)
		return met
	}
	long := lease(t, f.m, with("A", "long"))
	require.Nil(t, guarded(long))
	require.NoError(t, long.Extend(t.Context()))
	require.Nil(t, guarded(long), "past an extension")
	late := lease(t, f.short, request("late"))
	f.lapse(t, f.short)
	require.Nil(t, guarded(late), "over, but not taken: the version decides")
	next := lease(t, f.m, request("next"))
	require.NotNil(t, guarded(late))
	require.Nil(t, guarded(next))
	require.NoError(t, next.Confirm(t.Context(), nil))
	require.NotNil(t, guarded(next))
	last, err := f.store.Last(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(3), last.Position)
}

func confirmedForEver(t *testing.T, f *fixture) {
	late, next := f.overtaken(t)
	require.NoError(t, next.Confirm(t.Context(), map[string]int{"paid": 100}))

	for name, step := range steps {
		require.ErrorIs(t, step(t.Context(), late), intent.ErrLeaseLost, name)
		require.ErrorIs(t, step(t.Context(), next), intent.ErrLeaseLost, name)
	}
	for _, session := range []string{"late", "next", "another", ""} {
		r := request(session)
		r.Wait = time.Second
		a := reserve(t, f.m, r)
		require.Equal(t, intent.Done, a.Outcome)
		result, err := intent.Result[map[string]int](a)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"paid": 100}, result)
	}
	require.ErrorIs(t, f.m.ForceRelease(t.Context(), "", key, "because"), intent.ErrDone)
	f.requireTypes(t, intentlog.TypeReserved, intentlog.TypeReserved, intentlog.TypeConfirmed)
}

// oneOfTwoConfirms lets a holder confirm while an operator gives the intent to another session,
// which confirms too.
func oneOfTwoConfirms(t *testing.T, f *fixture) {
	for round := range 20 {
		r := request("A")
		r.Key = fmt.Sprint("k", round)
		first := lease(t, f.m, r)

		confirmed := make(chan string, 2)
		var all sync.WaitGroup
		all.Go(func() {
			if err := first.Confirm(t.Context(), "A"); err == nil {
				confirmed <- "A"
			} else if !errors.Is(err, intent.ErrLeaseLost) {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := f.m.ForceRelease(t.Context(), "", r.Key, "a race is wanted"); err != nil && !errors.Is(err, intent.ErrDone) {
				t.Error(err)
			}
			other := r
			other.Session = "B"
			a, err := f.m.Reserve(t.Context(), other)
			if err == nil && a.Outcome == intent.Reserved {
				err = a.Lease.Confirm(t.Context(), "B")
				confirmed <- "B"
			}
			if err != nil {
				t.Error(err)
			}
		})
		all.Wait()

		require.Len(t, confirmed, 1)
		i, err := f.m.Lookup(t.Context(), "", r.Key)
		require.NoError(t, err)
		require.JSONEq(t, `"`+<-confirmed+`"`, string(i.Result))
	}
}

// newStreamHasAGreaterToken simulates a store that lost an intent: its next grant is the first in
// an empty stream.
func newStreamHasAGreaterToken(t *testing.T, f *fixture) {
	lost := lease(t, f.m, request("A"))
	pause(t, 2*time.Millisecond)

	f.category = Category(t)
	f.use(t, f.store)
	again := lease(t, f.m, request("B"))

	require.Equal(t, 1, again.Attempt())
	require.Greater(t, again.Token(), lost.Token())
}

// A slowStore answers late.
type slowStore struct {
	intent.Store
	late time.Duration
}

func (s slowStore) TryWrite(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := s.Store.TryWrite(ctx, stream, expected, bodies...)
	timer := time.NewTimer(s.late)
	defer timer.Stop()
	<-timer.C
	return written, met, err
}

func countsFromBefore(t *testing.T, f *fixture) {
	const late = 10 * time.Millisecond
	fast := f.store
	f.use(t, slowStore{fast, late})
	defer f.use(t, fast)
	most := longTTL - longTTL/10 - late

	l := lease(t, f.m, request("A"))
	require.LessOrEqual(t, l.Left(), most)
	require.NoError(t, l.Extend(t.Context()))
	require.LessOrEqual(t, l.Left(), most)
	again := lease(t, f.m, request("A"))
	require.LessOrEqual(t, again.Left(), most)
}

func stopsBefore(t *testing.T, f *fixture) {
	f.inTime(t, func(ttl time.Duration) bool {
		r := request("A")
		r.TTL = ttl
		l := lease(t, f.m, r)
		pause(t, l.Left()+time.Millisecond)
		require.ErrorIs(t, l.Err(), intent.ErrLeaseLost)
		now, err := f.store.Now(t.Context())
		require.NoError(t, err)
		return now.Before(l.Until().Add(-ttl / 20)) // half of the margin
	})
}
