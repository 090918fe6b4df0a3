package check_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

// failover is one to an asynchronous standby that kept everything of the category up to head.
func (w *world) failover(from, to int64, head messagestore.GlobalPosition) *act {
	return w.do("harness", from, to, history.OK, history.Event{Func: history.Failover, Class: "asynchronous"},
		history.Event{Appends: []history.Append{{Stream: "account", Global: head}}})
}

// undone is a history in which a failover undoes two acknowledged writes, and their positions are
// given out again.
func undone() (w *world, kept, lost, lostToo, after *act) {
	w = &world{}
	kept = w.write(10, 20, stream, anyVersion, 1)
	lost = w.write(110, 120, stream, anyVersion, 1)
	w.try(121, 124, stream, anyVersion, 1, history.Info, "")
	lostToo = w.write(125, 130, stream, anyVersion, 1)
	w.rows, w.global = w.rows[:1], 1
	w.ask(20, 30, stream, 0)
	w.failover(100, 200, 1)
	w.ask(201, 205, stream, 0)
	after = w.write(210, 220, stream, 0, 2)
	return w, kept, lost, lostToo, after
}

func TestAFailoverMayLoseTheEndOfWhatWasWritten(t *testing.T) {
	t.Parallel()
	w, _, _, _, _ := undone()
	v := w.verdict(t, nil)
	require.True(t, v.Passed(), "%v", v)
	require.EqualValues(t, 2, v.LostByFailover)
}

func TestALossThatAFailoverDoesNotExplainIsFound(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(w *world, lost *act){
		"acknowledged before the standby stopped to follow": func(_ *world, lost *act) { lost.invoke.Time, lost.end.Time = 50, 60 },
		"below what the standby kept":                       func(_ *world, lost *act) { lost.end.Appends[0].Global = 1 },
		"after the failover":                                func(_ *world, lost *act) { lost.invoke.Time, lost.end.Time = 240, 250 },
		"and one that was begun later was kept": func(w *world, _ *act) {
			a := w.write(140, 150, "order-1", anyVersion, 1)
			w.row(a, 0).Global, a.end.Appends[0].Global = 1, 1
			for _, f := range w.acts {
				if f.invoke.Func == history.Failover {
					f.end.Appends = append(f.end.Appends, history.Append{Stream: "order", Global: 1})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, lost, _, _ := undone()
			plant(w, lost)
			v := w.verdict(t, nil)
			require.Positive(t, v.Broken[check.Lost], "%v", v)
		})
	}
}

func TestVersionsAreLinearizableOnBothSidesOfAFailover(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(w *world){
		"before":                           func(w *world) { w.ask(40, 50, stream, -1) },
		"after":                            func(w *world) { w.ask(230, 240, stream, 0) },
		"what was undone is seen after it": func(w *world) { w.ask(206, 209, stream, 3) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, _, _, _ := undone()
			plant(w)
			v := w.verdict(t, nil)
			require.Equal(t, []check.Invariant{check.Linearizable}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

func TestAConsumerAheadOfTheStoreMustBeTold(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		w, kept, lost, lostToo, after := undone()
		l := w.consume("consumer-1", "audit", 5, 230, 10, 10)
		was := func(a *act) *check.Row {
			m := a.invoke.Appends[0].Messages[0]
			return &check.Row{Stream: stream, Position: a.end.Appends[0].Version, Global: a.end.Appends[0].Global, ID: m.ID, Value: m.Value, Hash: m.Hash}
		}
		l.handle(30, 35, w.row(kept, 0))
		l.handle(131, 132, was(lost))
		l.handle(133, 134, was(lostToo))
		l.record(135, 140, 4)
		if told {
			l.run.end.Kind, l.run.end.Class = history.Fail, history.Ahead
		}
		m := w.consume("consumer-2", "audit", 300, 400, 10, 10) // after it was reset
		m.run.invoke.Generation = 1
		m.handle(310, 320, w.row(after, 0))
		m.handle(330, 340, w.row(after, 1))
		v := w.verdict(t, nil)
		if told {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Equal(t, []check.Invariant{check.Rewind}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		require.Contains(t, v.String(), "a failover kept nothing after 1, and it was never told")
	}
}
