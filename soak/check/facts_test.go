package check_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

func goodFacts() (f check.Facts) {
	f.Add("lag", "audit", 0)
	f.Add("usable", "store", 1)
	f.Add("lasted", "writer-1-1", 1)
	f.Add("searched", "writer.log", 0)
	f.Add("searched", "postgres.log", 0)
	f.Add("amcheck", "", 0)
	f.Add("log", "57P01 terminating connection", 0)
	f.Add("log", "40001 could not serialize", 0)
	f.Add("log", "XX000 could not map dynamic shared memory segment", 0)
	addMemory(&f, 0, 0)
	return f
}

// addMemory adds what a process had in an hour, after it had warmed up.
func addMemory(f *check.Facts, from time.Duration, aMinute int64) {
	for minute := range int64(60) {
		bytes := int64(100<<20) + minute*aMinute
		if minute < 5 {
			bytes = minute << 20
		}
		f.AddAt("memory", fmt.Sprintf("writer-%v", from), bytes+minute%3<<20, from+time.Duration(minute)*time.Minute)
	}
}

const minutes = int64(60_000_000)

func healed(to int64) *world {
	w := &world{facts: goodFacts()}
	usable := true
	w.do("writer-1-1", 10, 20, history.OK, history.Event{Call: history.End}, history.Event{Usable: &usable})
	w.strike(10, to, crew.Event{Call: crew.Drain}, crew.Event{})
	return w
}

func TestGoodFactsPass(t *testing.T) {
	t.Parallel()
	w := healed(20)
	addMemory(&w.facts, 30*time.Minute, 0) // one that began late warms up too
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
	require.Empty(t, v.Figures.Missed(promise.Goals{
		"facts:lag": 1, "facts:usable": 2, "facts:goroutines": 1, "facts:memory": 1, "facts:searched": 1, "facts:amcheck": 1,
	}))
}

func TestEachBadFactBreaksItsPromise(t *testing.T) {
	t.Parallel()
	for _, planted := range []struct {
		name   string
		broken promise.Rule
		plant  func(w *world)
	}{
		{"a consumer lags", "C8a", func(w *world) { w.facts.Add("lag", "ledger", 1) }},
		{"the store is not usable", "C8a", func(w *world) { w.facts.Add("usable", "store", 0) }},
		{"a pool is used up", "C8a", func(w *world) { *w.acts[0].end.Usable = false }},
		{"a client does not say whether its pool is used up", "C8a", func(w *world) { w.facts.Add("lasted", "writer-2-7", 1) }},
		{"a goroutine is left", "C8a", func(w *world) { w.acts[0].end.Left = 1 }},
		{"it heals late", "C8a", func(w *world) { w.events[0].answer.At = 6 * minutes }},
		{"it never heals", "C8a", func(w *world) { w.events[0].answer.Answer = crew.Failed }},
		{"the harness never says that it healed", "C8a", func(w *world) { w.events[0].answer = crew.Event{At: never} }},
		{"a lock is held", "S8", func(w *world) { w.facts.Add("lock", "advisory 1 2", 0) }},
		{"a transaction is open", "S8", func(w *world) { w.facts.Add("transaction", "select 1", 0) }},
		{"an index is broken", "hygiene", func(w *world) { w.facts.Add("amcheck", "item order invariant violated", 0) }},
		{"an error that nobody expects", "hygiene", func(w *world) { w.facts.Add("log", "42703 no such column", 0) }},
		{"an error that is like one that is expected", "hygiene", func(w *world) { w.facts.Add("log", "XX000 could not map", 0) }},
		{"a secret in a log", "hygiene", func(w *world) { w.facts.Add("searched", "writer-2.log", 1) }},
		{"memory that grows", "hygiene", func(w *world) { addMemory(&w.facts, time.Minute, 1<<18) }},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := healed(20)
			planted.plant(w)
			v := w.verdict(t)
			require.Equal(t, []promise.Rule{planted.broken}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

// The effect of a fault must show. Of a few there may be none to see.
func TestAFaultThatShowsNothingIsFound(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]string{
		"sync-error": "58030", "disk-full": "53100", "connections": "53300", "deadlock": "40P01",
		"migrate": "", "release": "", "reindex": "", "raise-epoch": "", "cut": "", "lose": "", "hold": "", "drip": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			w.facts.Add("log", "57014 canceled", 1)
			for i := range int64(3) {
				require.True(t, w.verdict(t).Passed())
				w.fault(10+i, 20+i, name, "")
			}
			require.Equal(t, map[promise.Rule]int{"faults": 1}, w.verdict(t).Broken)
			if state != "" {
				w.facts.Add("log", state+" something", 1)
			} else {
				w.strike(11, never, crew.Event{Call: "did", Name: name}, crew.Event{})
			}
			require.True(t, w.verdict(t).Passed())
		})
	}
}

func TestARunInWhichTooLittleHappenedMissesItsGoals(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.fault(1, 2, "kill-server", "")
	w.try(10, 20, stream, anyVersion, 1, "unavailable")
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
	goals := check.Goals(1).With(promise.Goals{"met:kill-server": 1, "met:disk-full": 1})
	require.Len(t, v.Figures.Missed(goals), len(goals), "%v", v.Figures.Missed(goals))
}

func TestGoalsAreScaled(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1000, check.Goals(1)["done:write"])
	require.Equal(t, 10, check.Goals(0.1)["conflicts"])
	require.Equal(t, 1, check.Goals(0.001)["conflicts"])
	require.Equal(t, 60, check.Goals(0.001)["healthy"])
}

func TestAFaultCountsIfAWriteWasInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to int64
		met      bool
	}{{5, 12, true}, {12, 15, true}, {19, 30, true}, {5, 30, true}, {5, 9, false}, {21, 30, false}} {
		w := &world{}
		w.fault(c.from, c.to, "cut", "")
		w.fault(1, 2, "pause", "")
		w.write(10, 20, stream, anyVersion, 1)
		require.Equal(t, c.met, w.verdict(t).Figures.Of("met:cut") == 1, "%v", c)
	}
}

// Nor is a write in flight for ever after its process has died.
func TestAWriteThatNeverEndedMeetsOnlyWhatItBeganIn(t *testing.T) {
	t.Parallel()
	for from, met := range map[int64]bool{8: true, 11: false, 500: false} {
		w := &world{}
		w.fault(from, from+10, "cut", "")
		w.try(10, never, stream, anyVersion, 1, history.Unknown)
		require.Equal(t, met, w.verdict(t).Figures.Of("met:cut") == 1)
	}
}

func TestHealthyWritesThatFailAreToldFromThoseUnderFaults(t *testing.T) {
	t.Parallel()
	for failing, healthy := range map[int64]int{100: 100, 200: 33} {
		w := &world{}
		w.fault(90, 150, "cut", "")
		w.write(10, 20, stream, anyVersion, 1)
		for n := range int64(2) {
			w.try(failing+n, failing+5, stream, anyVersion, 1, "unavailable")
		}
		require.Equal(t, healthy, w.verdict(t).Figures.Of("healthy"))
	}
}

func TestFaultsThatStruckAWriteAreCounted(t *testing.T) {
	t.Parallel()
	w := &world{}
	for _, at := range []int64{5, 15, 25, 45} {
		w.fault(at, at+1, "cut", "")
	}
	w.try(10, 30, stream, anyVersion, 1, history.Unknown)
	w.try(12, 14, stream, anyVersion, 1, history.Unknown)
	w.write(40, 50, stream, anyVersion, 1) // is answered
	v := w.verdict(t)
	require.Equal(t, 4, v.Figures.Of("fault:cut"))
	require.Equal(t, 2, v.Figures.Of("struck:cut"))
}
