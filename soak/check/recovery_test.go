package check_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
)

const second = int64(1_000_000)

// killed is a kill of the server, whose processes are gone a while later.
func (w *world) killed(at, dead int64) {
	w.strike(at, dead, crew.Event{Call: crew.Kill, Target: crew.Server}, crew.Event{})
}

// recovering has a consumer that needs the store, and a message for it.
func recovering() (w *world, l *life, r *check.Row) {
	w = &world{}
	w.facts.Add("needs", "consumer-1", 1)
	r = w.row(w.write(10, 20, stream, anyVersion, 1), 0)
	return w, w.consume("consumer-1-7", "audit", 5, 1000*second, 100, 100), r
}

func TestRecoveryIsUntilAMessageThatWasDeliveredAfterTheKillIsHandled(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		at, dead     int64
		first, never int
	}{
		{"delivered after it", 100 * second, 100 * second, 4000, 0},
		{"delivered before it", 102 * second, 102 * second, 0, 1},
		{"delivered by a process of the server that was not gone yet", 100 * second, 103 * second, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, l, r := recovering()
			l.handle(101*second, 104*second, r)
			twin := w.consume("consumer-1-twin-8", "audit", 5, 1000*second, 100, 100) // of another slot
			twin.handle(110*second, 111*second, r).invoke.Attempt = 2
			w.killed(c.at, c.dead)
			v := w.verdict(t, messagestore.Category("none"))
			require.Equal(t, c.first, v.Figures.Of("recoveredFirstp99"), "%v", v.Figures)
			require.Equal(t, c.first, v.Figures.Of("recoveredEachp50"))
			require.Equal(t, c.never, v.Figures.Of("unrecovered"))
		})
	}
}

func TestRecoveryThatTakesLongerThanUntilTheNextKillIsNotLeftOut(t *testing.T) {
	t.Parallel()
	w, l, r := recovering()
	w.killed(100*second, 100*second)
	w.killed(105*second, 105*second)
	l.handle(106*second, 109*second, r)
	v := w.verdict(t)
	require.Equal(t, 9000, v.Figures.Of("recoveredEachp99"))
	require.Equal(t, 4000, v.Figures.Of("recoveredEachp50"))
}

func TestAKillIsAloneIfNothingElseIsWrongAroundIt(t *testing.T) {
	t.Parallel()
	at := func(tenths int64) int64 { return 100*second + tenths*second/10 }
	for name, c := range map[string]struct {
		plant func(w *world)
		alone bool
	}{
		"nothing else":          {func(*world) {}, true},
		"another kill long ago": {func(w *world) { w.killed(at(-30), at(-30)) }, true},
		"another kill before":   {func(w *world) { w.killed(at(-5), at(-5)) }, false},
		"another kill after":    {func(w *world) { w.killed(at(10), at(10)) }, false},
		"a cut meanwhile":       {func(w *world) { w.fault(at(-600), at(600), "cut", "") }, false},
		"a cut after":           {func(w *world) { w.fault(at(10), at(600), "cut", "") }, false},
		"a cut much later":      {func(w *world) { w.fault(at(30), at(600), "cut", "") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, l, r := recovering()
			w.fault(at(-1), at(10), "kill-server", "")
			w.killed(at(0), at(0))
			c.plant(w)
			l.handle(at(50), at(51), r)
			v := w.verdict(t)
			require.Equal(t, c.alone, v.Figures.Of("recoveredFirstp50") == 5100 || v.Figures.Of("recoveredFirstp99") == 5100, "%v", v.Figures)
		})
	}
}
