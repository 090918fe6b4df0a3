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
func (w *world) failover(from, to int64, head int64) *nemesis {
	return w.failoverTo(from, to, map[string]int64{"account": head})
}

func (w *world) failoverTo(from, to int64, heads map[string]int64) *nemesis {
	return w.strike(from, to, crew.Event{Call: crew.Failover, Name: "asynchronous"}, crew.Event{Heads: heads})
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

func TestAConsumerOfWhichNothingWasUndoneIsNotToldThatItIsAhead(t *testing.T) {
	t.Parallel()
	w, kept, _, _, after := undone()
	l := w.consume("consumer-1", "audit", 5, 230, 10, 10)
	l.handle(30, 35, w.row(kept, 0))
	l.record(40, 50, 2)
	l.run.end.Answer = history.Ahead
	m := w.consume("consumer-2", "audit", 300, 400, 10, 10)
	m.handle(310, 320, w.row(after, 0))
	m.handle(330, 340, w.row(after, 1))
	v := w.verdict(t)
	require.Equal(t, []promise.Rule{"C6b"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
	require.Contains(t, v.String(), "was told that it is ahead of the store, and nothing of it was undone")
	require.Zero(t, v.Figures.Of("silent"))
}

// rewritten is a history in which messages that a failover undid are written again under the same id, and
// delivered before and after.
func rewritten(handAgain bool) (w *world, again *act) {
	w, kept, lost, _, after := undone()
	m := lost.invoke.Appends[0].Messages[0]
	was := &check.Row{Stream: stream, Position: lost.end.Appends[0].Version, Global: lost.end.Appends[0].Global, ID: m.ID, Value: m.Value, Hash: m.Hash}
	again = w.do("writer-4", 240, 250, history.OK,
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
	return w, again
}

func TestWhatAFailoverUndidMayBeWrittenAgain(t *testing.T) {
	t.Parallel()
	w, _ := rewritten(true)
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
	require.Equal(t, 2, v.Figures.Of("undone"))
	require.Equal(t, 1, v.Figures.Of("ahead"))
}

func TestWhatWasHandedOverBeforeAFailoverIsNotWhatWasWrittenAgain(t *testing.T) {
	t.Parallel()
	w, _ := rewritten(false)
	v := w.verdict(t)
	require.Equal(t, []promise.Rule{"C1a"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
}

func TestTwoThatWereTheFirstAreFoundBesideAFailover(t *testing.T) {
	t.Parallel()
	w, again := rewritten(true)
	w.do("writer-5", 260, 270, history.OK, *again.invoke, *again.end) // after the failover, so it undid neither
	v := w.verdict(t)
	require.Positive(t, v.Broken["S5c"], "%v", v)
}

func TestOnlyWhoReadItBeforeAFailoverMayStillHandleWhatItUndid(t *testing.T) {
	t.Parallel()
	for began, fine := range map[int64]bool{5: true, 206: false} {
		w, kept, lost, _, after := undone()
		m := lost.invoke.Appends[0].Messages[0]
		was := &check.Row{Stream: stream, Position: lost.end.Appends[0].Version, Global: lost.end.Appends[0].Global, ID: m.ID, Value: m.Value, Hash: m.Hash}
		first := w.consume("consumer-1", "audit", began, 230, 10, 10)
		first.handle(207, 208, w.row(kept, 0))
		first.handle(209, 229, was)
		if fine {
			first.run.end.Answer = history.Ahead
		}
		second := w.consume("consumer-2", "audit", 300, 400, 10, 10)
		second.handle(310, 320, w.row(after, 0))
		second.handle(330, 340, w.row(after, 1))
		v := w.verdict(t)
		if fine {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Equal(t, []promise.Rule{"S4b"}, slices.Sorted(maps.Keys(v.Broken)), "%v", v)
	}
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

func TestAKeyWhoseReservationAFailoverUndidMayBeReservedForSomethingElse(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{false, true} {
		w := &world{}
		before := w.commandsOf("consumer-1", 5, 150)
		a, b := before.sendTo("account:command-1", 10, 77), before.sendTo("account:command-2", 20, 88)
		before.handle(110, "k", a, history.OK)
		before.reserve(110, "k", a, history.Won)
		head := int64(2)
		f := w.failover(100, 200, 0)
		after := w.commandsOf("consumer-2", 205, 1000)
		after.handle(210, "k", b, history.OK)
		after.reserve(210, "k", b, history.Won)
		after.win("k", b)
		after.handle(230, "k", a, history.Failed)
		after.reserve(230, "k", a, history.KeyReused)
		f.answer.Heads = map[string]int64{"account:command": head}
		if kept {
			f.answer.Heads["reservation"] = head + 1
		}
		v := w.verdict(t, "reservation", "effect")
		if !kept {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Positive(t, v.Broken["R5"], "%v", v)
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

func TestWhoHadACommandInHandThatAFailoverUndidMayHaveItsEffect(t *testing.T) {
	t.Parallel()
	for _, global := range []int64{0, 9} { // of the failover's head: undone, and kept
		w := &world{}
		before, after := w.commandsOf("consumer-1", 5, 250), w.commandsOf("consumer-2", 255, 1000)
		undone := before.send(110, 77)
		if global == 0 {
			w.rows, w.global = nil, 0
		}
		before.reserve(120, "k", undone, history.Won)
		before.handle(210, "k", undone, history.OK)
		before.effect("k")
		before.l.record(130, 135, 6)
		before.l.run.end.Answer = history.Ahead
		again := after.send(300, 77)
		after.handle(310, "k", again, history.OK)
		after.reserve(310, "k", again, history.Won)
		after.win("k", again)
		w.failoverTo(100, 200, map[string]int64{"account:command": global})
		v := w.verdict(t, unrecordedEffects...)
		if global == 0 {
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Positive(t, v.Broken["R4a"], "%v", v)
	}
}

func TestWhatAFailoverUndidMayBeWrittenAgainElsewhereAtItsGlobalPosition(t *testing.T) {
	t.Parallel()
	for _, position := range []messagestore.Version{1, 3} {
		w, kept, lost, _, after := undone()
		m := lost.invoke.Appends[0].Messages[0]
		lost.end.Appends[0].Global = 4
		was := &check.Row{Stream: stream, Position: position, Global: 4, ID: m.ID, Value: m.Value, Hash: m.Hash}
		again := w.do("writer-4", 240, 250, history.OK,
			history.Event{Call: history.Write, Appends: []history.Append{{Stream: stream, Expected: anyVersion, Messages: []history.Message{m}}}},
			history.Event{Appends: []history.Append{w.commit(stream, m)}})
		require.EqualValues(t, 4, w.row(again, 0).Global)
		first := w.consume("consumer-1", "audit", 5, 230, 10, 10)
		first.handle(30, 35, w.row(kept, 0))
		first.handle(131, 132, was)
		first.record(133, 134, 5)
		first.run.end.Answer = history.Ahead
		second := w.consume("consumer-2", "audit", 300, 400, 10, 10)
		second.handle(310, 320, w.row(after, 0))
		second.handle(330, 340, w.row(after, 1))
		second.handle(350, 360, w.row(again, 0))
		v := w.verdict(t)
		if position == 1 { // where it was before the failover
			require.True(t, v.Passed(), "%v", v)
			continue
		}
		require.Positive(t, v.Broken["C2a"], "%v", v) // no process can have read it there then
	}
}

// A consumer that is behind may have read nothing that a backup does not have. Only the epoch tells it that the
// messages it has handled since are undone.
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

// A checkpoint that one failover took away is not one that another keeps.
func TestAPositionThatAFailoverUndidIsNotKeptByTheNext(t *testing.T) {
	t.Parallel()
	w := &world{}
	all := w.write(10, 20, stream, anyVersion, 5)
	handle := func(l *life, from int64) {
		for i := range 5 {
			l.handle(from+int64(2*i), from+int64(2*i+1), w.row(all, i))
		}
	}
	first := w.consume("consumer-1", "audit", 5, 150, 0, 0)
	handle(first, 110)
	first.record(130, 140, 6)
	w.failover(100, 200, 5)
	second := w.consume("consumer-2", "audit", 250, 450, 0, 0)
	handle(second, 310)
	w.failover(300, 400, 5)
	handle(w.consume("consumer-3", "audit", 450, 600, 0, 0), 500)
	v := w.verdict(t)
	require.True(t, v.Passed(), "%v", v)
}
