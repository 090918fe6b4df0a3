package check_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

func goodFacts() *check.Facts {
	f := &check.Facts{
		Lag: map[string]int64{"audit": 0}, Usable: map[string]bool{"store": true, "writer-1.1": true},
		Goroutines: []check.Goroutines{{Proc: "writer-1", Before: 3, After: 3}},
		Canaries:   2,
		PostgreSQL: &check.PostgreSQL{Amcheck: true, Log: []check.LogLine{
			{SQLState: "57P01", Text: "terminating connection"}, {SQLState: "40001", Text: "could not serialize"},
		}},
	}
	memory := check.Memory{Proc: "writer-1"}
	for minute := range 60 {
		bytes := int64(100 << 20)
		if minute < 5 {
			bytes = int64(minute) << 20 // it warms up
		}
		memory.Samples = append(memory.Samples, check.Sample{Seconds: 60 * float64(minute), Bytes: bytes + int64(minute%3)<<20})
	}
	f.Memory = []check.Memory{memory}
	return f
}

func healed(to int64) *world {
	w := &world{facts: goodFacts()}
	w.do("harness", 10, to, history.OK, history.Event{Func: history.Heal}, history.Event{})
	return w
}

func TestGoodFactsPass(t *testing.T) {
	t.Parallel()
	w := healed(20)
	text, err := json.Marshal(w.facts)
	require.NoError(t, err)
	w.facts = &check.Facts{}
	require.NoError(t, json.Unmarshal(text, w.facts))
	v := w.verdict(t, &check.Config{Guards: &check.Guards{Facts: true}})
	require.True(t, v.Passed(), "%v", v)
	require.Positive(t, v.Checked[check.Liveness])
	require.Positive(t, v.Checked[check.Hygiene])
}

func TestAProcessThatBeganLateWarmsUpToo(t *testing.T) {
	t.Parallel()
	w := healed(20)
	for i := range w.facts.Memory[0].Samples {
		w.facts.Memory[0].Samples[i].Seconds += 1800
	}
	v := w.verdict(t, nil)
	require.True(t, v.Passed(), "%v", v)
}

func TestAnErrorMayBeExpectedByItsText(t *testing.T) {
	t.Parallel()
	w := healed(20)
	w.facts.PostgreSQL.Log = append(w.facts.PostgreSQL.Log, check.LogLine{SQLState: "55000", Text: "could not map"})
	require.True(t, w.verdict(t, &check.Config{AllowedTexts: []string{"could not map"}}).Passed())
	require.False(t, w.verdict(t, &check.Config{AllowedTexts: []string{"could not"}}).Passed())
}

func TestEachBadFactBreaksItsInvariant(t *testing.T) {
	t.Parallel()
	for _, planted := range []struct {
		name   string
		broken check.Invariant
		plant  func(w *world)
	}{
		{"a consumer lags", check.Liveness, func(w *world) { w.facts.Lag["audit"] = 1 }},
		{"a pool is used up", check.Liveness, func(w *world) { w.facts.Usable["writer-1.1"] = false }},
		{"a goroutine is left", check.Liveness, func(w *world) { w.facts.Goroutines[0].After = 4 }},
		{"a lock is held", check.Liveness, func(w *world) { w.facts.PostgreSQL.Locks = []string{"advisory 1 2"} }},
		{"a transaction is open", check.Liveness, func(w *world) { w.facts.PostgreSQL.IdleTransactions = []string{"select 1"} }},
		{"it heals late", check.Liveness, func(w *world) { w.acts[0].end.Time = int64(3 * time.Minute) }},
		{"it never heals", check.Liveness, func(w *world) { w.acts[0].end.Kind = history.Fail }},
		{"the harness never says that it healed", check.Liveness, func(w *world) { w.acts[0].end = nil }},
		{"an index is broken", check.Hygiene, func(w *world) { w.facts.PostgreSQL.AmcheckOutput = "item order invariant violated" }},
		{"an error that nobody expects", check.Hygiene, func(w *world) {
			w.facts.PostgreSQL.Log = append(w.facts.PostgreSQL.Log, check.LogLine{SQLState: "42703", Text: "no such column"})
		}},
		{"a secret in a log", check.Hygiene, func(w *world) { w.facts.CanariesFound = []string{"writer-1's log"} }},
		{"memory that grows", check.Hygiene, func(w *world) {
			for i := range w.facts.Memory[0].Samples {
				w.facts.Memory[0].Samples[i].Bytes += int64(i) << 18
			}
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := healed(20)
			planted.plant(w)
			v := w.verdict(t, nil)
			require.Equal(t, []check.Invariant{planted.broken}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

func TestARunInWhichTooLittleHappenedFails(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.do("harness", 1, 2, history.OK, history.Event{Func: history.Fault, Class: "kill-server"}, history.Event{})
	w.try(10, 20, stream, anyVersion, 1, history.Fail, "unavailable")
	guards := check.DefaultGuards(1)
	guards.Faults = []string{"kill-server", "disk-full"}
	v := w.verdict(t, &check.Config{Guards: guards})
	require.False(t, v.Passed())
	require.Empty(t, v.Broken)
	for _, short := range []string{
		"0 write operations were done, and there must be 1000", "0 write-tx operations", "0 version operations", "0 read operations",
		"0 resolve operations", "0 handle operations", "0 position operations", "0 reserve operations", "0 effect operations",
		"0 of 1 writes outside faults were answered, and 60 % must be", "0 writes had an unknown outcome", "0 were resolved as written",
		"0 were resolved as not written", "0 version conflicts, and there must be 100", "0 batches were written", "0 writes to several streams", "0 transactions were rolled back",
		"0 writes were duplicates", "0 writes met an id that was taken", "0 messages were given up on", "0 runs of consumers took over",
		"0 reservations met a key used for something else", "fault kill-server never met a write in flight", "fault disk-full never happened",
		"the harness handed over no facts",
	} {
		require.Contains(t, v.String(), short)
	}
	require.Len(t, v.Vacuous, 25)
}

func TestFactsThatSayNothingFail(t *testing.T) {
	t.Parallel()
	w := &world{facts: &check.Facts{PostgreSQL: &check.PostgreSQL{}}}
	w.write(10, 20, stream, anyVersion, 1)
	v := w.verdict(t, &check.Config{Guards: &check.Guards{Facts: true}})
	require.Len(t, v.Vacuous, 6, "%v", v)
}

func TestGuardsAreScaled(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1000, check.DefaultGuards(1).Done[history.Write])
	require.Equal(t, 10, check.DefaultGuards(0.1).Conflicts)
	require.Equal(t, 1, check.DefaultGuards(0.001).Conflicts)
}

func TestAFaultCountsIfAWriteWasInFlight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to int64
		met      bool
	}{{5, 12, true}, {12, 15, true}, {19, 30, true}, {5, 30, true}, {5, 9, false}, {21, 30, false}} {
		w := &world{}
		w.do("harness", c.from, c.to, history.OK, history.Event{Func: history.Fault, Class: "cut"}, history.Event{})
		w.do("harness", 1, 2, history.OK, history.Event{Func: history.Fault, Class: "pause"}, history.Event{})
		w.write(10, 20, stream, anyVersion, 1)
		v := w.verdict(t, &check.Config{Guards: &check.Guards{Faults: []string{"cut"}}})
		require.Equal(t, c.met, v.Passed(), "%v", c)
	}
}

// Nor is a write in flight for ever after its process has died.
func TestAWriteThatNeverEndedMeetsOnlyWhatItBeganIn(t *testing.T) {
	t.Parallel()
	for from, met := range map[int64]bool{8: true, 11: false, 500: false} {
		w := &world{}
		w.do("harness", from, from+10, history.OK, history.Event{Func: history.Fault, Class: "cut"}, history.Event{})
		w.try(10, history.Never, stream, anyVersion, 1, history.Info, "")
		v := w.verdict(t, &check.Config{Guards: &check.Guards{Faults: []string{"cut"}}})
		require.Equal(t, met, v.Passed(), "%v", v)
	}
}

func TestHealthyWritesThatFailAreToldFromThoseUnderFaults(t *testing.T) {
	t.Parallel()
	for failing, passes := range map[int64]bool{100: true, 200: false} {
		w := &world{}
		w.do("harness", 90, 150, history.OK, history.Event{Func: history.Fault, Class: "cut"}, history.Event{})
		w.write(10, 20, stream, anyVersion, 1)
		for n := range int64(2) {
			w.try(failing+n, failing+5, stream, anyVersion, 1, history.Fail, "unavailable")
		}
		v := w.verdict(t, &check.Config{Guards: &check.Guards{HealthyOK: 0.6}})
		require.Equal(t, passes, v.Passed(), "%v", v)
	}
}

func TestFaultsThatStruckAWriteAreCounted(t *testing.T) {
	t.Parallel()
	w := &world{}
	for _, at := range []int64{5, 15, 25, 45} {
		w.do("harness", at, at+1, history.OK, history.Event{Func: history.Fault, Class: "cut"}, history.Event{})
	}
	w.try(10, 30, stream, anyVersion, 1, history.Info, "")
	w.try(12, 14, stream, anyVersion, 1, history.Info, "")
	w.write(40, 50, stream, anyVersion, 1) // is answered
	v := w.verdict(t, nil)
	require.Equal(t, map[string]check.Struck{"cut": {Faults: 4, Struck: 2}}, v.Struck)
	require.Contains(t, v.String(), "begun in the middle of a write of unknown outcome: cut 2 of 4\n")
}
