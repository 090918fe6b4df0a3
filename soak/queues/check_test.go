package queues

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/crew"
)

// A world is the history of five items: one that is completed; one behind it whose first session was over, and whose
// late completion is refused; one with a date, that is completed in a transaction; one that fails and is buried; and
// one that is cancelled while it is held. The first two were staged in one transaction, and the third by its unique
// name in two.
type world struct{ Inputs }

const second = int64(1_000_000)

// at is a moment of the world, in milliseconds from its beginning.
func at(ms int64) int64 { return 1_700_000_000*second + ms*1000 }

func (w *world) call(process string, from, to int64, c, a Record) *Call {
	c.At, a.At, a.Call = at(from), at(to), c.Call
	call := &Call{Record: c, Process: process, End: at(to), Answer: a}
	w.Calls = append(w.Calls, call)
	return call
}

func (w *world) insert(id, stream string) {
	w.call("inserter", 10, 20, Record{Call: Insert, New: []New{{ID: id, Stream: stream}}}, Record{Answer: OK})
}

// stage stages items in a transaction that is committed.
func (w *world) stage(op int64, items ...New) *Call {
	for _, n := range items {
		if !n.Back {
			w.Inserted = append(w.Inserted, Inserted{"inserter", op, n.ID})
		}
	}
	return w.call("inserter", 10, 20, Record{Op: op, Call: Stage, New: items}, Record{Answer: OK, New: items, Sent: at(15)})
}

// staged is the transaction of that number.
func (w *world) staged(op int64) *Call {
	return w.Calls[slices.IndexFunc(w.Calls, func(c *Call) bool { return c.Call == Stage && c.Op == op })]
}

func (w *world) give(session, from, position int64, version, failures int) {
	m := w.Messages[position-1]
	w.call("worker", from, from+10, Record{Call: Take, Session: session, Lease: second},
		Record{Answer: OK, Items: []Given{{position, version, failures, m.ID, m.Stream}}})
}

func (w *world) end(session, from, position int64, version int, kind, told string) *Call {
	e := End{Position: position, Version: version, Kind: kind}
	answered := e
	answered.Told = told
	return w.call("worker", from, from+10, Record{Call: Take, Session: session, Lease: second, Ends: []End{e}}, Record{Answer: OK, Ends: []End{answered}})
}

func (w *world) line(position int64, version int, what string, ms, session int64) {
	w.Lines = append(w.Lines, &Line{position, version, what, at(ms), session})
}

func newWorld() *world {
	w := &world{}
	for i, m := range []Message{{Stream: "mail-k1"}, {Stream: "mail-k1", Place: 1}, {Stream: "mail-c", Due: at(500)}, {Stream: "mail-d"}, {Stream: "mail-k1", Place: 2}} {
		m.Position, m.ID = int64(i+1), fmt.Sprintf("id-%d", i+1)
		w.Messages = append(w.Messages, &m)
		if i >= 3 {
			w.insert(m.ID, m.Stream)
		}
	}
	w.stage(1, New{ID: "id-1", Stream: "mail-k1"}, New{ID: "id-2", Stream: "mail-k1"}, New{ID: "id-7", Stream: "mail-s", Back: true})
	w.stage(2, New{ID: "id-3", Stream: "mail-c", Unique: true})
	w.stage(3, New{ID: "id-8", Stream: "mail-c", Unique: true})
	early := w.stage(5, New{ID: "id-3", Stream: "mail-c", Unique: true, Back: true}) // which does not insert it
	early.At, early.End = at(5), at(8)
	rolledBack := w.stage(4, New{ID: "id-9", Stream: "mail-t"})
	rolledBack.Answer.Answer, rolledBack.Answer.Sent, w.Inserted = Undone, 0, w.Inserted[:4]
	w.give(1, 100, 1, 0, 0)
	w.end(1, 200, 1, 0, "c", "d")
	w.give(1, 220, 2, 0, 0)
	w.line(2, 0, "e", 2000, 1)
	w.give(2, 2010, 2, 1, 1)
	w.end(1, 2100, 2, 0, "c", "l")
	w.end(2, 2200, 2, 1, "c", "d")
	w.give(2, 600, 3, 0, 0)
	committed := []End{{Position: 3, Kind: "c"}}
	w.call("worker", 620, 640, Record{Call: Finish, Ends: committed}, Record{Answer: OK, Ends: committed})
	w.Effects = append(w.Effects, Effect{3, 0})
	w.end(2, 650, 3, 0, "t", "d")
	w.give(2, 660, 4, 0, 0)
	w.end(2, 700, 4, 0, "r", "d")
	w.line(4, 0, "r", 705, 2)
	w.end(2, 790, 4, 0, "r", "d").Ends[0].Delay = 50_000 // again: an answer was lost
	w.Calls[len(w.Calls)-1].Answer.Ends[0].Delay = 50_000
	w.give(2, 800, 4, 1, 1)
	w.end(2, 900, 4, 1, "x", "d")
	w.line(4, 1, "x", 905, 2)
	w.Rows = append(w.Rows, &Row{Position: 4, Version: 2, State: "d", Failures: 2})
	w.line(5, 0, "C", 1000, 0)
	w.call(nemesis, 3000, 3100, Record{Call: Drain}, Record{Answer: OK})
	w.Head = &Head{Cursor: 5, Taken: 6, Finished: 1, Returned: 2, Buried: 1}
	return w
}

func (w *world) dropLine(position int64, version int) {
	w.Lines = slices.DeleteFunc(w.Lines, func(l *Line) bool { return l.Position == position && l.Version == version })
}

// named adds items of two unique names: one that was free again once it was finished, and one once it was delivered.
// Of each, a sender met it taken before.
func (w *world) named() {
	sent := func(from int64, id, until string, had int64) {
		n := []New{{ID: id, Stream: "mail-" + until + "+unique", N: 1, Until: until}}
		w.call("inserter", from, from+5, Record{Call: Unique, New: n}, Record{Answer: OK, New: n, Had: had})
	}
	for i, until := range []string{finished, delivered} {
		first, from := int64(6+2*i), int64(1100+500*i)
		for place := range int64(2) {
			id := fmt.Sprintf("named-%d", first+place)
			w.Messages = append(w.Messages, &Message{Position: first + place, ID: id, Stream: "mail-" + until + "+unique", Place: place, N: 1})
		}
		sent(from, w.Messages[first-1].ID, until, 0)
		sent(from+10, "taken", until, first)
		w.give(2, from+20, first, 0, 0)
		again := from + 40 // while it is out
		if until == finished {
			again = from + 120
		}
		w.end(2, from+100, first, 0, "c", "d")
		sent(again, w.Messages[first].ID, until, 0)
		w.give(2, from+200, first+1, 0, 0)
		w.end(2, from+300, first+1, 0, "c", "d")
	}
	w.Head.Cursor, w.Head.Taken = 9, w.Head.Taken+4
}

// sent is the call of a sender that began then.
func (w *world) sent(ms int64) *Call {
	return w.Calls[slices.IndexFunc(w.Calls, func(c *Call) bool { return c.Call == Unique && c.At == at(ms) })]
}

func TestUniqueNamesThatAreFreeAgainPass(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.named()
	v := Check(&w.Inputs)
	require.True(t, v.Passed(), v.String())
	require.Equal(t, 2, v.Again)
	require.Equal(t, 2, v.Counts.Named)
	require.Equal(t, 2, v.Counts.Taken)
}

func TestAHistoryWithoutAMistakePasses(t *testing.T) {
	t.Parallel()
	v := Check(&newWorld().Inputs)
	require.True(t, v.Passed(), v.String())
	require.Equal(t, 2, v.Pairs)
	require.Equal(t, 6, v.Counts.Deliveries)
	require.Equal(t, 1, v.Counts.Refused)
	require.Equal(t, 1, v.Counts.Expiries)
	require.NotContains(t, v.String(), "broken")
}

// jumps has the server's clock be off for a time.
func (w *world) jumps(from, to int64, off time.Duration) {
	w.call(nemesis, from, to, Record{Call: Jump, Off: off.Microseconds()}, Record{Answer: OK})
}

func TestWhatTheServerDatedWhileItsClockWasOffIsReadAsItWas(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		w := newWorld()
		w.jumps(1900, 2050, off)
		w.Messages[1].Due = at(2500) // it had come by the clock
		for _, l := range w.Lines {
			if l.What == "e" {
				l.At += off.Microseconds()
			}
		}
		w.Calls = slices.DeleteFunc(w.Calls, func(c *Call) bool { return c.At == at(220) })
		w.Head.Taken, w.Head.Returned = 5, 2
		v := Check(&w.Inputs)
		require.NotContains(t, v.Broken, Early, v.String())
		require.NotContains(t, v.Broken, Met, v.String())
		require.NotContains(t, v.Broken, Order, v.String())
	}
}

func TestAnItemThatItsTransactionStagesTwiceHasItsFirstPlace(t *testing.T) {
	t.Parallel()
	w := newWorld()
	staged := w.staged(1)
	staged.New = append(staged.New, New{ID: "id-1", Stream: "mail-k1"})
	w.Inserted = append(w.Inserted, Inserted{"inserter", 1, "id-1"})
	v := Check(&w.Inputs)
	require.True(t, v.Passed(), v.String())
}

// planted are histories with one mistake each.
var planted = []struct {
	name  string
	rules []Rule // all that it breaks
	plant func(w *world)
}{
	{"what was inserted is not there", []Rule{Nothing}, func(w *world) {
		w.insert("id-10", "mail-e")
	}},
	{"what was rolled back is there", []Rule{Nothing}, func(w *world) { w.Calls[0].Answer.Answer = Undone }},
	{"an item passed without a delivery", []Rule{Nothing}, func(w *world) {
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: "mail-f", ID: "id-6"})
		w.insert("id-6", "mail-f")
		w.Head.Cursor, w.Head.Taken = 6, 7
	}},
	{"an item is left out", []Rule{Met}, func(w *world) {
		w.Rows = append(w.Rows, &Row{Position: 5, State: "o", Session: 2})
		w.dropLine(5, 0)
		w.Head.Taken, w.Head.Finished = 7, 0
	}},
	{"the end of a session was met late", []Rule{Met}, func(w *world) {
		for _, l := range w.Lines {
			if l.What == "e" {
				l.At = at(230) + second + endOfSession.Microseconds() + 2_000_000
			}
		}
		w.Calls = slices.DeleteFunc(w.Calls, func(c *Call) bool { return c.Session == 1 && c.At > at(300) })
	}},
	{"the workers did not finish in the end", []Rule{Met}, func(w *world) { w.Calls[len(w.Calls)-1].Answer.Answer = Failed }},
	{"an open item was trimmed", []Rule{Trimmed}, func(w *world) { w.Messages[1].Gone, w.Messages[1].Open = true, true }},
	{"the message of an item was removed before its row", []Rule{Trimmed}, func(w *world) {
		w.Lines[slices.IndexFunc(w.Lines, func(l *Line) bool { return l.What == "C" })].What = "M"
		w.Head.Taken, w.Head.Finished = 7, 0
	}},
	{"a late completion was accepted", []Rule{Twice, Late, After}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(2100) {
				c.Answer.Ends[0].Told = "d"
			}
		}
	}},
	{"a caller was told of a completion that was none", []Rule{Late}, func(w *world) {
		e := []End{{Position: 2, Kind: "c"}}
		w.call("worker", 2090, 2120, Record{Call: Complete, Ends: e}, Record{Answer: OK, Ends: e})
	}},
	{"a delivery was given twice", []Rule{Fenced}, func(w *world) { w.give(2, 110, 1, 0, 0) }},
	{"an item was given after its completion", []Rule{After, Lines}, func(w *world) { w.give(2, 400, 1, 1, 0) }},
	{"an item was given before the one before it was completed", []Rule{Order}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(220) {
				c.At, c.End = at(150), at(160)
			}
		}
	}},
	{"a cancelled item did not keep its place", []Rule{Order}, func(w *world) {
		w.insert("id-6", "mail-k1")
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: "mail-k1", Place: 3, ID: "id-6"})
		w.give(2, 1100, 6, 0, 0)
		w.end(2, 1200, 6, 0, "c", "d")
		w.Head.Cursor, w.Head.Taken = 6, 7
	}},
	{"a committed completion has no effect", []Rule{Effects}, func(w *world) { w.Effects = nil }},
	{"a completion that was rolled back counts", []Rule{Effects}, func(w *world) {
		e := []End{{Position: 1, Kind: "c"}}
		w.call("worker", 120, 130, Record{Call: Finish, Ends: e}, Record{Answer: Undone, Ends: e})
	}},
	{"an effect is there twice", []Rule{Effects}, func(w *world) { w.Effects = append(w.Effects, Effect{3, 0}) }},
	{"a failure was not counted", []Rule{Failures}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(800) {
				c.Answer.Items[0].Failures = 0
			}
		}
	}},
	{"an item is dead too early", []Rule{Failures}, func(w *world) {
		w.Lines[slices.IndexFunc(w.Lines, func(l *Line) bool { return l.What == "x" })].What = "r"
	}},
	{"a delivery has no line", []Rule{Lines, Failures}, func(w *world) { w.dropLine(4, 1) }},
	{"a count is off", []Rule{Lines}, func(w *world) { w.Head.Finished++ }},
	{"a delivery was counted that was none", []Rule{Lines}, func(w *world) { w.Head.Taken++ }},
	{"a staged item is not there, and its row is", []Rule{Staged}, func(w *world) {
		w.stage(6, New{ID: "id-11", Stream: "mail-g"})
	}},
	{"a staged item is there, and its row is not", []Rule{Staged}, func(w *world) {
		w.staged(1).Answer.Answer, w.staged(1).Answer.Sent, w.Inserted = Undone, 0, w.Inserted[2:]
	}},
	{"the row of a transaction that was rolled back is there", []Rule{Staged}, func(w *world) {
		w.Inserted = append(w.Inserted, Inserted{"inserter", 4, "id-9"})
	}},
	{"a committed transaction has no row", []Rule{Staged}, func(w *world) { w.Inserted = w.Inserted[:3] }},
	{"a transaction of unknown outcome has one of its rows", []Rule{Staged}, func(w *world) {
		w.staged(1).Answer.Answer, w.Inserted = Unknown, w.Inserted[1:]
	}},
	{"a savepoint that was rolled back left its item", []Rule{Staged}, func(w *world) {
		w.staged(1).New[2] = New{ID: "id-5", Stream: "mail-k1", Back: true}
	}},
	{"two items have a unique name", []Rule{Staged}, func(w *world) {
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: "mail-c", Place: 1, ID: "id-8"})
		w.give(2, 700, 6, 0, 0)
		w.end(2, 710, 6, 0, "c", "d")
		w.Head.Cursor, w.Head.Taken = 6, 7
	}},
	{"a unique name was committed with another content", []Rule{Staged}, func(w *world) { w.staged(3).New[0].N = 2 }},
	{"a staged item took its place before COMMIT", []Rule{Placed}, func(w *world) { w.staged(2).Answer.Sent = at(30) }},
	{"staged items are in another order than their calls", []Rule{Placed}, func(w *world) { slices.Reverse(w.staged(1).New) }},
	{"a name was free while its item was out", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1220).At, w.sent(1220).End = at(1140), at(1145)
	}},
	{"a name was free while its item was not given", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1640).At, w.sent(1640).End = at(1606), at(1608)
	}},
	{"two items have a name that is for ever", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1220).New[0].Until = forgotten
	}},
	{"a name was taken though its item was finished", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1110).At, w.sent(1110).End = at(1215), at(1218)
	}},
	{"a name was taken though its item was out", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1610).At, w.sent(1610).End = at(1635), at(1638)
	}},
	{"a name was taken by another content, and its sender not told", []Rule{Named}, func(w *world) {
		w.named()
		w.sent(1110).New[0].N = 2
	}},
	{"an item was given before its date", []Rule{Early}, func(w *world) { w.Messages[2].Due = at(650) }},
	{"a failed item was given before its time", []Rule{Early}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(700) {
				c.Answer.Ends[0].Delay = 2 * second
			}
		}
	}},
	{"a handler went on after its item was given to another", []Rule{Knows}, func(w *world) {
		e := []End{{Position: 2, Kind: "c"}}
		w.call("worker", 225, 4900, Record{Call: Handle, Ends: e}, Record{Answer: OK, Ends: e})
	}},
	{"the end of a session was a failure of each item that it had", []Rule{Failures}, func(w *world) {
		w.line(3, 0, "e", 2000, 1)
		w.Effects = nil
		w.Calls = slices.DeleteFunc(w.Calls, func(c *Call) bool {
			return c.Call == Finish || c.Call == Take && len(c.Ends) > 0 && c.Ends[0].Position == 3
		})
		w.give(2, 2010, 3, 1, 0)
		w.end(2, 2200, 3, 1, "c", "d")
		w.Head.Taken, w.Head.Returned = 7, 3
	}},
	{"an item is dead beside one that killed its process", []Rule{Guilty}, func(w *world) {
		w.Messages[4].N = poison
		for _, l := range w.Lines {
			if l.Position == 4 {
				l.What = "e"
			}
		}
		w.Rows[0].Failures = maxFailures
	}},
	{"an item waited behind those of another key", []Rule{Reached}, func(w *world) {
		w.insert("id-20", Category+"-"+hot)
		w.insert("id-21", "mail-i")
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: Category + "-" + hot, ID: "id-20"}, &Message{Position: 7, Stream: "mail-i", ID: "id-21"})
		w.give(2, 900, 6, 0, 0)
		w.end(2, 910, 6, 0, "c", "d")
		w.give(2, 15_000, 7, 0, 0)
		w.end(2, 15_010, 7, 0, "c", "d")
		w.Head.Cursor, w.Head.Taken = 7, 8
	}},
	{"an item was given before its date, after a jump of the clock", []Rule{Early}, func(w *world) {
		w.jumps(300, 400, time.Hour)
		w.Messages[2].Due = at(650)
	}},
	{"an item was given while the queue was paused", []Rule{Early}, func(w *world) {
		w.call(nemesis, 580, 590, Record{Call: Change, Note: pausing}, Record{Answer: OK, Note: pausing})
		w.call(nemesis, 620, 630, Record{Call: Change, Note: resuming}, Record{Answer: OK, Note: resuming})
	}},
}

func TestEachRuleIsBrokenByAPlantedHistory(t *testing.T) {
	t.Parallel()
	broken := map[Rule]bool{}
	for _, p := range planted {
		w := newWorld()
		p.plant(w)
		v := Check(&w.Inputs)
		require.Len(t, v.Broken, len(p.rules), "%s\n%s", p.name, v)
		for _, r := range p.rules {
			broken[r] = true
			require.Positive(t, v.Broken[r], "%s: %s\n%s", p.name, r, v)
		}
	}
	for _, r := range Rules() {
		require.True(t, broken[r], "no history breaks %s", r)
	}
}

func TestATornLineIsLeftOutAndAnotherIsNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := crew.NewRecorder[Record](dir, "worker")
	require.NoError(t, err)
	c := r.Begin(Record{Call: Take, Session: 7})
	r.End(c, Record{Answer: OK, Items: []Given{{Position: 1}}})
	r.Begin(Record{Call: Take, Session: 8})
	require.NoError(t, r.Close())
	path := filepath.Join(dir, "worker"+crew.Ending)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(whole, []byte(`{"op":3,"ca`)...), 0o600))

	calls, err := readCalls(dir)
	require.NoError(t, err)
	require.Len(t, calls, 2)
	require.Equal(t, OK, calls[0].Answer.Answer)
	require.Equal(t, crew.Never, calls[1].End)
	counted, err := newTally(dir).counts()
	require.NoError(t, err)
	require.Equal(t, 1, counted.Deliveries)

	require.NoError(t, os.WriteFile(path, append(slices.Clone(whole), []byte("{\n")...), 0o600))
	_, err = readCalls(dir)
	require.ErrorContains(t, err, "line 4")
}

func TestGoalsThatAreMissedAreNamed(t *testing.T) {
	t.Parallel()
	n := Short
	require.Empty(t, n.Missed(&Short))
	n.Kills--
	require.Equal(t, []string{"kill -9 of processes: 9 of 10"}, n.Missed(&Short))
	require.Contains(t, n.Table(&Short), "missed")
	require.Contains(t, figures.Progress(&n, &Short, time.Second), "after 1s: kill -9")
	require.Equal(t, 10*Short.Cuts, Short.Times(10).Cuts)
	require.Equal(t, 5, Short.Cuts, "Times changes nothing")
}
