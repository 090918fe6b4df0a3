package check_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

// failover is one to an asynchronous standby that kept everything of the category up to head.
func (w *world) failover(from, to int64, head int64) {
	w.failoverTo(from, to, map[string]int64{"account": head})
}

func (w *world) failoverTo(from, to int64, heads map[string]int64) {
	w.strike(from, to, crew.Event{Call: crew.Failover, Name: "asynchronous"}, crew.Event{Heads: heads})
}

// undone is a history in which a failover undoes two acknowledged writes, and their positions are
// given out again.
func undone() (w *world, kept, lost, lostToo, after *act) {
	w = &world{}
	kept = w.write(10, 20, stream, anyVersion, 1)
	lost = w.write(110, 120, stream, anyVersion, 1)
	w.try(121, 124, stream, anyVersion, 1, history.Unknown)
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
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
	require.Equal(t, 2, v.Figures.Of("undone"))
}

func TestALossThatAFailoverDoesNotExplainIsFound(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(w *world, lost *act){
		"acknowledged before the standby stopped to follow": func(_ *world, lost *act) { lost.invoke.At, lost.end.At = 50, 60 },
		"below what the standby kept":                       func(_ *world, lost *act) { lost.end.Appends[0].Global = 1 },
		"after the failover":                                func(_ *world, lost *act) { lost.invoke.At, lost.end.At = 240, 250 },
		"and one that was begun later was kept": func(w *world, _ *act) {
			a := w.write(140, 150, "order-1", anyVersion, 1)
			w.row(a, 0).Global, a.end.Appends[0].Global = 1, 1
			w.events[0].answer.Heads["order"] = 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _, lost, _, _ := undone()
			plant(w, lost)
			v := w.verdict(t)
			require.Equal(t, 1, v.Broken["S1a"]+v.Broken["S1b"], "%v", v)
		})
	}
}

func TestVersionsAreLinearizableOnBothSidesOfAFailover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		at     int64
		told   messagestore.Version
		broken []promise.Rule
	}{
		{"before", 40, -1, []promise.Rule{"S3c"}},
		{"after", 230, 0, []promise.Rule{"S3c"}},
		{"what was undone is seen after it", 206, 3, []promise.Rule{"S3c", "S3d"}},
		{"what was kept is not seen after it", 206, -1, []promise.Rule{"S3c", "S3d"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, _, _, _, _ := undone()
			w.ask(c.at, c.at+3, stream, c.told)
			v := w.verdict(t)
			require.Equal(t, c.broken, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		})
	}
}

func TestAConsumerAheadOfTheStoreMustBeTold(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		w, kept, lost, lostToo, after := undone()
		w.strike(205, 225, crew.Event{Call: crew.Overtake}, crew.Event{Heads: map[string]int64{"account": 3}})
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
			l.run.end.Answer = history.Ahead
		}
		m := w.consume("consumer-2", "audit", 300, 400, 10, 10) // after it was reset
		m.handle(310, 320, w.row(after, 0))
		m.handle(330, 340, w.row(after, 1))
		v := w.verdict(t)
		require.Equal(t, 1, v.Figures.Of("ahead"))
		require.Equal(t, 1, v.Figures.Of("overtaken"))
		if told {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Equal(t, []promise.Rule{"C6a"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
		require.Equal(t, 1, v.Figures.Of("silent"))
		require.Contains(t, v.String(), "kept nothing after 1, and it was never told")
	}
}

// rewritten is a history in which messages that a failover undid are written again under the same
// id, and delivered before and after.
func rewritten(handAgain bool) *world {
	w, kept, lost, _, after := undone()
	m := lost.invoke.Appends[0].Messages[0]
	was := &check.Row{Stream: stream, Position: lost.end.Appends[0].Version, Global: lost.end.Appends[0].Global, ID: m.ID, Value: m.Value, Hash: m.Hash}
	again := w.do("writer-4", 240, 250, history.OK,
		history.Event{Call: history.Write, Appends: []history.Append{{Stream: stream, Expected: anyVersion, Messages: []history.Message{m}}}},
		history.Event{Appends: []history.Append{w.commit(stream, m)}})
	first := w.consume("consumer-1", "audit", 5, 230, 10, 10)
	first.handle(30, 35, w.row(kept, 0))
	first.handle(131, 132, was)
	first.record(133, 134, 3)
	first.run.end.Answer = history.Ahead
	second := w.consume("consumer-2", "audit", 300, 400, 10, 10)
	second.handle(310, 320, w.row(after, 0))
	second.handle(330, 340, w.row(after, 1))
	if handAgain {
		second.handle(350, 360, w.row(again, 0))
	}
	return w
}

func TestWhatAFailoverUndidMayBeWrittenAgain(t *testing.T) {
	t.Parallel()
	w := rewritten(true)
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
	require.Equal(t, 2, v.Figures.Of("undone"))
	require.Equal(t, 1, v.Figures.Of("ahead"))
}

func TestWhatWasHandedOverBeforeAFailoverIsNotWhatWasWrittenAgain(t *testing.T) {
	t.Parallel()
	w := rewritten(false)
	v := w.verdict(t)
	require.Equal(t, []promise.Rule{"C1a"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
}

// A checkpoint that a failover took away allows for redeliveries, and one that it kept does not.
func TestAFailoverAllowsWhatItsPositionsDoNotCoverToBeHandedOverAgain(t *testing.T) {
	t.Parallel()
	for from, fine := range map[int]bool{2: true, 1: false} {
		w := &world{}
		all := w.write(10, 20, stream, anyVersion, 5)
		first := w.consume("consumer-1", "audit", 5, 150, 0, 0)
		for i := range 5 {
			first.handle(int64(30+2*i), int64(31+2*i), w.row(all, i))
		}
		first.record(50, 55, 3)
		first.record(110, 120, 6)
		w.failover(100, 200, 5)
		second := w.consume("consumer-2", "audit", 250, 400, 0, 0)
		for i := from; i < 5; i++ {
			second.handle(int64(300+2*i), int64(301+2*i), w.row(all, i))
		}
		v := w.verdict(t)
		if fine {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Equal(t, []promise.Rule{"C4a"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
	}
}

func TestACommandThatAFailoverUndidIsOwedNothing(t *testing.T) {
	t.Parallel()
	for _, began := range []int64{5, 202} {
		w := &world{}
		before, late := w.commandsOf("consumer-1", 5, 250), w.commandsOf("consumer-1", began, 250)
		a := before.send(10, 77)
		before.handle(20, "k", a, history.OK)
		before.reserve(20, "k", a, history.Won)
		before.win("k", a)
		other, acknowledged := before.send(110, 88), before.send(120, 99)
		w.rows, w.global = w.rows[:3], 3
		before.reserve(140, "k", other, history.Unknown)
		late.reserve(140, "l", acknowledged, history.Unknown)
		late.handle(210, "l", acknowledged, history.OK)
		for _, c := range []*commands{before, late} {
			c.l.run.end.Answer = history.Ahead
		}
		before.l.record(130, 135, 6)
		w.failoverTo(100, 200, map[string]int64{"account:command": 1, "reservation": 2})
		v := w.verdict(t, unrecordedEffects...)
		if began == 5 { // its earlier messages are still in flight
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Positive(t, v.Broken["R2"], "%v", v)
	}
}

// A consumer that is behind may have read nothing that a backup does not have. Only the epoch tells
// it that the messages it has handled since are undone.
func TestAConsumerWhoseWorkABackupUndidMustBeTold(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"told", "not told", "it had recorded", "it had read on", "it had handled it before"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := &world{}
			all := w.write(10, 20, stream, anyVersion, 2)
			first := w.consume("consumer-1", "audit", 5, 230, 10, 10)
			first.handle(30, 35, w.row(all, 0))
			w.failover(100, 200, 2)
			w.fault(120, 190, "asynchronous", "")
			at := int64(130)
			if how == "it had handled it before" {
				at = 105
			}
			first.handle(at, at+5, w.row(all, 1))
			switch how {
			case "told":
				first.run.end.Answer = history.Epoch
			case "it had recorded":
				first.record(140, 145, 3)
			case "it had read on":
				first.fetch(140, 5)
				first.run.end.Answer = history.Ahead
			}
			v := w.verdict(t)
			if how != "not told" {
				require.True(t, v.Passed(), "%v", v)
				require.Equal(t, how == "told", v.Figures.Of("byEpoch") == 1)
				return
			}
			require.Equal(t, []promise.Rule{"C6c"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
			require.Equal(t, 1, v.Figures.Of("silent"))
		})
	}
}
