package intenttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
)

// The tests of clocks: that tokens rise and leases are safe whatever the clock shows, and that a
// waiter outlasts a clock that goes back or stands still.
var clockTests = []test{
	{"L1/TokensRiseThoughTheClockGoesBack", tokensRiseBackwards, clock},
	{"L7/AnyClockIsSafe", anyClockIsSafe, clock | busy},
	{"L7/WaiterOutlastsAClockThatWentBack", waiterOutlastsTheClock, clock},
	{"L7/WaiterOutlastsAClockThatStands", waiterOutlastsAStoppedClock, clock},
	{"L7/ALeaseOfAClockThatWasAheadEndsInItsTime", endsInItsTime, clock},
}

// endsInItsTime grants leases while the clock is ahead, or before it is set back. A request without
// a wait restarts the lease's time: a lease without a sign of life is over after its TTL, and an
// extended lease is not.
func endsInItsTime(t *testing.T, f *fixture) {
	year2099 := 73 * 365 * 24 * time.Hour
	for i, jump := range []struct{ wrong, right time.Duration }{{time.Minute, 0}, {time.Hour, 0}, {24 * time.Hour, 0}, {year2099, 0}, {0, -time.Hour}} {
		var off atomic.Int64
		set := func(by time.Duration) { off.Store(int64(by)) }
		f.use(t, f.options.OpenWithClock(t, func() time.Time { return time.Now().Add(time.Duration(off.Load())) }))
		m := f.manager(t, &intent.Config{TTL: 10 * time.Minute, Turn: longTurn})
		of := func(key, session string) intent.Request {
			return intent.Request{Key: fmt.Sprint(key, i), Session: session, Content: content}
		}
		set(jump.wrong)
		dead, alive := lease(t, m, of("dead", "A")), lease(t, m, of("alive", "A"))

		set(jump.right)
		for _, key := range []string{"dead", "alive"} {
			a := reserve(t, m, of(key, "B"))
			require.Equal(t, intent.Held, a.Outcome)
			require.LessOrEqual(t, a.Intent.Left, 10*time.Minute+longTurn)
			require.Empty(t, a.Intent.Line)
		}
		set(jump.right + 5*time.Minute)
		require.NoError(t, alive.Extend(t.Context()))

		set(jump.right + 12*time.Minute)
		require.Equal(t, intent.Held, reserve(t, m, of("alive", "B")).Outcome)
		next := lease(t, m, of("dead", "B"))
		require.Greater(t, next.Token(), dead.Token())
		require.ErrorIs(t, dead.Confirm(t.Context(), nil), intent.ErrLeaseLost)
		require.NoError(t, alive.Confirm(t.Context(), nil))
	}
}

func tokensRiseBackwards(t *testing.T, f *fixture) {
	now := time.Now()
	f.use(t, f.options.OpenWithClock(t, func() time.Time { return now }))
	var last int64
	for i := range 10 {
		l := lease(t, f.m, request(fmt.Sprint(i)))
		require.Greater(t, l.Token(), last)
		require.Equal(t, l.Token(), f.lookup(t).Token)
		last = l.Token()
		require.NoError(t, l.Release(t.Context(), ""))
		now = now.Add(-time.Hour)
	}
	now = now.Add(1000 * time.Hour)
	l := lease(t, f.m, request("A"))
	require.Equal(t, now.UnixMicro(), l.Token(), "it is the clock's again")
}

// waiterOutlastsTheClock puts the clock back by an hour while a lease lives: a waiter that has
// seen no sign of life for the TTL takes it all the same.
func waiterOutlastsTheClock(t *testing.T, f *fixture) {
	var off atomic.Int64
	f.use(t, f.options.OpenWithClock(t, func() time.Time { return time.Now().Add(time.Duration(off.Load())) }))
	late := lease(t, f.short, request("late"))
	off.Store(int64(-time.Hour))
	began := time.Now()
	r := request("W")
	r.Wait = testkit.WaitLimit

	next := lease(t, f.hasty, r)

	require.GreaterOrEqual(t, time.Since(began), shortTTL)
	if f.options.Bubble {
		require.Less(t, time.Since(began), 2*(shortTTL+turn))
	}
	require.Greater(t, next.Token(), late.Token())
	require.ErrorIs(t, late.Confirm(t.Context(), nil), intent.ErrLeaseLost)
}

func waiterOutlastsAStoppedClock(t *testing.T, f *fixture) {
	now := time.Now()
	f.use(t, f.options.OpenWithClock(t, func() time.Time { return now }))
	f.inTime(t, func(ttl time.Duration) bool {
		m := f.manager(t, &intent.Config{TTL: ttl, Turn: ttl / 2})
		late := lease(t, m, request("late"))
		var q queue
		_, stop := late.Keep(t.Context())
		q.join(t, f, m, "w0")
		q.join(t, f, f.m, "w1") // woken: its own turn lasts longer than the sub-test
		inTime := true
		for range 3 { // the holder shows signs of life, and so a waiter waits
			pause(t, ttl+ttl/2)
			inTime = inTime && f.lookup(t).Session == "late"
		}
		stop()

		q.wait(t)

		require.Equal(t, []string{"w0", "w1"}, q.served)
		require.Equal(t, intent.Free, untilNotHeld(t, f.m, key).Status)
		return inTime
	})
}

// anyClockIsSafe has sessions reserve, extend, confirm and release at random, on a clock that says
// something else each time. All the same an intent is confirmed once, a confirmed one stays
// confirmed, and tokens rise along each stream.
func anyClockIsSafe(t *testing.T, f *fixture) {
	histories, workers := uint64(30), 8
	var lates, grants atomic.Int64
	for seed := range histories {
		var mu sync.Mutex
		r := rand.New(rand.NewPCG(seed, 1))
		f.category = Category(t)
		f.use(t, f.options.OpenWithClock(t, func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return time.Unix(1_700_000_000+r.Int64N(200_000)-100_000, r.Int64N(1e9))
		}))
		h := &history{confirmed: make([]atomic.Pointer[string], 20)}
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() { h.work(t, f.m, rand.New(rand.NewPCG(seed, uint64(w+10))), w) })
		}
		all.Wait()
		f.verify(t, f.category)
		for k := range h.confirmed {
			i, err := f.m.Lookup(t.Context(), "", fmt.Sprint(k))
			if err != nil {
				continue
			}
			told := h.confirmed[k].Load()
			require.Equal(t, told != nil, i.Status == intent.Done, "a confirmation was lost, or made up: %v", i)
			if told != nil {
				require.Equal(t, *told, i.Session)
			}
		}
		lates.Add(h.late.Load())
		grants.Add(h.grants.Load())
	}
	t.Logf("%d grants, %d late confirmations refused", grants.Load(), lates.Load())
	require.Greater(t, lates.Load(), int64(histories/3), "the test is worth nothing without late holders")
}

// A history is one of many sessions at once.
type history struct {
	confirmed    []atomic.Pointer[string] // the session that was told that it confirmed
	late, grants atomic.Int64
}

func (h *history) work(t *testing.T, m *intent.Manager, r *rand.Rand, worker int) {
	ctx := t.Context()
	for i := range 150 {
		k := r.IntN(len(h.confirmed))
		session := fmt.Sprintf("s%d-%d", worker, i)
		done := h.confirmed[k].Load() != nil
		a, err := m.Reserve(ctx, intent.Request{Key: fmt.Sprint(k), Session: session, Content: content})
		switch {
		case err != nil:
			t.Errorf("reserve: %v", err)
			return
		case done && a.Outcome != intent.Done:
			t.Errorf("key %d was confirmed, and is %v", k, a.Outcome)
			return
		case a.Outcome != intent.Reserved:
			continue
		}
		h.grants.Add(1)
		if err := h.hold(ctx, r, a.Lease, k, session); err != nil {
			t.Error(err)
			return
		}
	}
}

func (h *history) hold(ctx context.Context, r *rand.Rand, l *intent.Lease, k int, session string) error {
	for range r.IntN(8) {
		runtime.Gosched()
		if err := l.Extend(ctx); errors.Is(err, intent.ErrLeaseLost) {
			break
		} else if err != nil {
			return err
		}
	}
	runtime.Gosched()
	switch r.IntN(20) {
	case 0, 4:
		err := l.Confirm(ctx, session)
		if err == nil {
			if earlier := h.confirmed[k].Swap(&session); earlier != nil {
				return fmt.Errorf("key %d was confirmed by %s and by %s", k, *earlier, session)
			}
			return nil
		}
		h.late.Add(1)
		return notLost(err)
	case 1, 2, 3:
		return notLost(l.Release(ctx, ""))
	}
	return nil
}

func notLost(err error) error {
	if errors.Is(err, intent.ErrLeaseLost) {
		return nil
	}
	return err
}
