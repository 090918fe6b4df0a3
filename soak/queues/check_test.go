package queues

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// A world is the history of five items: one that is completed; one behind it whose first session
// was over, and whose late completion is refused; one with a date, that is completed in a
// transaction; one that fails and is buried; and one that is cancelled while it is held. The first
// two were staged in one transaction, and the third by its unique name in two.
type world struct {
	Messages []*Message
	Calls    []*Call
	Events   []Event // of the nemesis
	Rows     []*Row
	Lines    []*Line
	Effects  []Effect
	Inserted []Inserted
	Head     *Head
}

type (
	// A Message is a message of the queue's category: an item.
	Message struct {
		Position   int64
		Stream     string
		Place      int64
		ID         string
		N          int
		Due        int64
		Gone, Open bool
	}
	// A Row is the row of an unfinished item.
	Row struct {
		Position       int64
		Version        int
		State          string
		Failures       int
		Session, After int64
	}
	// A Line is a line of an item's log.
	Line struct {
		Position    int64
		Version     int
		What        string
		At, Session int64
	}
	// An Effect was written in the transaction of a completion.
	Effect struct {
		Position int64
		Version  int
	}
	// An Inserted is a row that a caller wrote in the transaction in which it staged an item.
	Inserted struct {
		Process string
		Op      int64
		ID      string
	}
	// A Head has the counts of the queue.
	Head struct {
		Cursor                            int64
		Taken, Finished, Returned, Buried int
	}
	// A Call is a record with its answer.
	Call struct {
		Record
		Process string
		End     int64
		Answer  Record
	}
	// An Event is a record of the nemesis with its answer.
	Event struct{ call, answer crew.Event }
)

// check holds the history of the world against each promise.
func (w *world) check(t *testing.T) *promise.Verdict {
	t.Helper()
	ctx := t.Context()
	h, err := promise.Open(ctx, t.TempDir(), Promises)
	require.NoError(t, err)
	defer func() { require.NoError(t, h.Close()) }()
	insert := func(table string, values ...any) {
		require.NoError(t, h.Exec(ctx, "insert into "+table+" values (?"+strings.Repeat(", ?", len(values)-1)+")", values...))
	}
	call := func(process string, op int, call string, at, end int64, answer string, asked, told any) {
		a, err := json.Marshal(asked)
		require.NoError(t, err)
		b, err := json.Marshal(told)
		require.NoError(t, err)
		insert("calls", process, op, call, at, end, answer, string(a), string(b))
	}
	for i, c := range w.Calls {
		op := 1000 + i
		if c.Op > 0 {
			op = int(c.Op)
		}
		call(c.Process, op, c.Call, c.At, c.End, c.Answer.Answer, c.Record, c.Answer)
	}
	for i, e := range w.Events {
		call("nemesis", i, e.call.Call, e.call.At, e.answer.At, e.answer.Answer, e.call, e.answer)
	}
	for _, m := range w.Messages {
		insert("messages", m.Position, m.Stream, m.Place, m.ID, m.N, m.Due, m.Gone, m.Open)
	}
	for _, r := range w.Rows {
		insert("rows", r.Position, r.Version, r.State, r.Failures, r.Session, r.After)
	}
	for _, l := range w.Lines {
		insert("log", l.Position, l.Version, l.What, l.At, l.Session)
	}
	for _, e := range w.Effects {
		insert("effects", e.Position, e.Version)
	}
	for _, i := range w.Inserted {
		insert("inserted", i.Process, i.Op, i.ID)
	}
	insert("head", w.Head.Cursor, 0, w.Head.Taken, w.Head.Finished, w.Head.Returned, w.Head.Buried)
	v, err := h.Check(ctx)
	require.NoError(t, err)
	return v
}

// event adds an event of the nemesis.
func (w *world) event(from, to int64, call crew.Event) {
	call.At = at(from)
	w.Events = append(w.Events, Event{call, crew.Event{At: at(to), Answer: crew.OK}})
}

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

// receives has a caller receive what is given then, and perhaps hear of it.
func (w *world) receives(given, to int64, answer string, items ...Given) {
	lease := second + given // of no other call
	for _, c := range w.Calls {
		if c.At == at(given) {
			c.Lease = lease
		}
	}
	w.call("caller", given-5, to, Record{Call: Receive, Lease: lease}, Record{Answer: answer, Items: items})
}

// asks has the caller ask something for a delivery.
func (w *world) asks(call string, from, position int64, version int, kind, answer string) {
	e := []End{{Position: position, Version: version, Kind: kind}}
	w.call("caller", from, from+15, Record{Call: call, Ends: e}, Record{Answer: answer, Ends: e})
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
	w.event(3000, 3100, crew.Event{Call: crew.Drain})
	w.Head = &Head{Cursor: 5, Taken: 6, Finished: 1, Returned: 2, Buried: 1}
	return w
}

// named adds items of two unique names: one that was free again once it was finished, and one once
// it was delivered. Of each, a sender met it taken before.
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
	v := w.check(t)
	require.True(t, v.Passed(), v.String())
	require.Equal(t, 2, v.Figures.Of("named"))
	require.Equal(t, 2, v.Figures.Of("taken"))
}

func TestAHistoryWithoutAMistakePasses(t *testing.T) {
	t.Parallel()
	v := newWorld().check(t)
	require.True(t, v.Passed(), v.String())
	require.Equal(t, 6, v.Figures.Of("deliveries"))
	require.Equal(t, 1, v.Figures.Of("refused"))
	require.Equal(t, 1, v.Figures.Of("expiries"))
	require.NotContains(t, v.String(), "broken")
}

func TestWhatIsReceivedPasses(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.receives(100, 120, OK, Given{Position: 1})
	w.asks(Prolong, 150, 1, 0, "", OK)
	w.asks(Complete, 195, 1, 0, "c", OK)
	w.asks(Complete, 295, 1, 0, "c", OK) // again
	w.receives(220, 240, OK, Given{Position: 2})
	w.asks(Prolong, 2050, 2, 0, "", Lost)
	w.asks(Complete, 2095, 2, 0, "c", Lost)
	v := w.check(t)
	require.True(t, v.Passed(), v.String())
}

func TestWhatIsOutAsItsCallerWasGoneWhileTheAnswerWasOnItsWayPasses(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(w *world){
		"it hung up then": func(w *world) { w.receives(220, 235, Failed) },
		"it was killed then": func(w *world) {
			w.receives(220, 9000, "")
			w.event(235, 235, crew.Event{Call: crew.Kill, Target: "caller"})
		},
		"it was given back too late": func(w *world) {
			w.receives(220, 235, OK)
			w.end(1, 1200, 2, 0, "f", "l")
		},
		"it took too long": func(w *world) { w.receives(220, 1400, OK) },
		"who took it was ended": func(w *world) {
			w.receives(220, 240, OK)
			w.event(230, 230, crew.Event{Call: crew.Kill, Target: "worker"})
		},
	} {
		w := newWorld()
		change(w)
		w.asks(Complete, 2095, 2, 0, "c", Lost)
		v := w.check(t)
		require.True(t, v.Passed(), "%s: %s", what, v)
	}
}

func TestADeliveryIsGivenAgainToTheRepeatedCallOnly(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.give(7, 110, 1, 0, 0)
	w.Calls[len(w.Calls)-1].Resume = []int64{1}
	v := w.check(t)
	require.True(t, v.Passed(), v.String())
}

// jumps has the server's clock be off for a time.
func (w *world) jumps(from, to int64, off time.Duration) {
	w.event(from, to, crew.Event{Call: crew.Jump, Off: off.Microseconds()})
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
		v := w.check(t)
		require.NotContains(t, v.Broken, promise.Rule("Q9"), v.String())
		require.NotContains(t, v.Broken, promise.Rule("Q1b"), v.String())
		require.NotContains(t, v.Broken, promise.Rule("Q3"), v.String())
	}
}

func TestAnItemThatItsTransactionStagesTwiceHasItsFirstPlace(t *testing.T) {
	t.Parallel()
	w := newWorld()
	staged := w.staged(1)
	staged.New = append(staged.New, New{ID: "id-1", Stream: "mail-k1"})
	w.Inserted = append(w.Inserted, Inserted{"inserter", 1, "id-1"})
	v := w.check(t)
	require.True(t, v.Passed(), v.String())
}

// planted are histories with one mistake each.
var planted = []struct {
	name  string
	rules []promise.Rule // all that it breaks
	plant func(w *world)
}{
	{"what was inserted is not there", []promise.Rule{"Q1a"}, func(w *world) {
		w.insert("id-10", "mail-e")
	}},
	{"an item passed without a delivery", []promise.Rule{"Q1a"}, func(w *world) {
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: "mail-f", ID: "id-6"})
		w.insert("id-6", "mail-f")
		w.Head.Cursor, w.Head.Taken = 6, 7
	}},
	{"the workers did not finish in the end", []promise.Rule{"Q1b"}, func(w *world) { w.Events[0].answer.Answer = Failed }},
	{"an open item was trimmed", []promise.Rule{"Q1c"}, func(w *world) { w.Messages[1].Gone, w.Messages[1].Open = true, true }},
	{"a late completion was accepted", []promise.Rule{"Q2a", "Q2d", "Q2c"}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(2100) {
				c.Answer.Ends[0].Told = "d"
			}
		}
	}},
	{"a delivery that had ended was made longer", []promise.Rule{"Q2e"}, func(w *world) { w.asks(Prolong, 2300, 2, 0, "", OK) }},
	{"what was received ended, and nobody asked for that", []promise.Rule{"Q21"}, func(w *world) { w.receives(100, 120, OK, Given{Position: 1}) }},
	{"the repeated call did not get what was taken", []promise.Rule{"Q22"}, func(w *world) {
		w.receives(220, 240, OK)
		w.asks(Complete, 2095, 2, 0, "c", Lost)
	}},
	{"the repeated call got another item than what was taken", []promise.Rule{"Q22"}, func(w *world) {
		w.receives(220, 640, OK, Given{Position: 3})
		for _, c := range w.Calls {
			if c.At == at(600) {
				c.Lease = second + 220
			}
		}
		w.asks(Complete, 2095, 2, 0, "c", Lost)
		w.event(300, 300, crew.Event{Call: crew.Kill, Target: "worker"}) // is no reason for that
	}},
	{"what was taken after its caller had hung up was not given back", []promise.Rule{"Q22"}, func(w *world) {
		w.receives(220, 0, Failed)
		w.Calls[len(w.Calls)-1].At, w.Calls[len(w.Calls)-1].End = at(-2000), at(-1500)
		w.asks(Complete, 2095, 2, 0, "c", Lost)
	}},
	{"a delivery was given twice", []promise.Rule{"Q2b"}, func(w *world) { w.give(2, 110, 1, 0, 0) }},
	{"an item was given before the one before it was completed", []promise.Rule{"Q3"}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(220) {
				c.At, c.End = at(150), at(160)
			}
		}
	}},
	{"a committed completion has no effect", []promise.Rule{"Q5"}, func(w *world) { w.Effects = nil }},
	{"a completion that was rolled back counts", []promise.Rule{"Q5"}, func(w *world) {
		e := []End{{Position: 1, Kind: "c"}}
		w.call("worker", 120, 130, Record{Call: Finish, Ends: e}, Record{Answer: Undone, Ends: e})
	}},
	{"a failure was not counted", []promise.Rule{"Q6a"}, func(w *world) {
		for _, c := range w.Calls {
			if c.At == at(800) {
				c.Answer.Items[0].Failures = 0
			}
		}
	}},
	{"a count is off", []promise.Rule{"Q6b"}, func(w *world) { w.Head.Finished++ }},
	{"a staged item is not there, and its row is", []promise.Rule{"Q10a"}, func(w *world) {
		w.stage(6, New{ID: "id-11", Stream: "mail-g"})
	}},
	{"a transaction of unknown outcome has one of its rows", []promise.Rule{"Q10a"}, func(w *world) {
		w.staged(1).Answer.Answer, w.Inserted = Unknown, w.Inserted[1:]
	}},
	{"a staged item took its place before COMMIT", []promise.Rule{"Q10b"}, func(w *world) { w.staged(2).Answer.Sent = at(30) }},
	{"a name was free while its item was out", []promise.Rule{"Q10c"}, func(w *world) {
		w.named()
		w.sent(1220).At, w.sent(1220).End = at(1140), at(1145)
	}},
	{"a name was taken though its item was finished", []promise.Rule{"Q10c"}, func(w *world) {
		w.named()
		w.sent(1110).At, w.sent(1110).End = at(1215), at(1218)
	}},
	{"an item was given before its date", []promise.Rule{"Q9"}, func(w *world) { w.Messages[2].Due = at(650) }},
	{"a handler went on after its item was given to another", []promise.Rule{"Q4"}, func(w *world) {
		e := []End{{Position: 2, Kind: "c"}}
		w.call("worker", 225, 4900, Record{Call: Handle, Ends: e}, Record{Answer: OK, Ends: e})
	}},
	{"an item is dead beside one that killed its process", []promise.Rule{"Q6c"}, func(w *world) {
		w.Messages[4].N = poison
		for _, l := range w.Lines {
			if l.Position == 4 {
				l.What = "e"
			}
		}
		w.Rows[0].Failures = maxFailures
	}},
	{"an item waited behind those of another key", []promise.Rule{"Q7"}, func(w *world) {
		w.insert("id-20", Category+"-"+hot)
		w.insert("id-21", "mail-i")
		w.Messages = append(w.Messages, &Message{Position: 6, Stream: Category + "-" + hot, ID: "id-20"}, &Message{Position: 7, Stream: "mail-i", ID: "id-21"})
		w.give(2, 900, 6, 0, 0)
		w.end(2, 910, 6, 0, "c", "d")
		w.give(2, 15_000, 7, 0, 0)
		w.end(2, 15_010, 7, 0, "c", "d")
		w.Head.Cursor, w.Head.Taken = 7, 8
	}},
	{"an item was given before its date, after a jump of the clock", []promise.Rule{"Q9"}, func(w *world) {
		w.jumps(300, 400, time.Hour)
		w.Messages[2].Due = at(650)
	}},
	{"an item was given while the queue was paused", []promise.Rule{"Q9"}, func(w *world) {
		w.event(580, 590, crew.Event{Call: Change, Note: "pause"})
		w.event(620, 630, crew.Event{Call: Change, Note: "resume"})
	}},
}

func TestEachRuleIsBrokenByAPlantedHistory(t *testing.T) {
	t.Parallel()
	rules, err := promise.Rules(Promises)
	require.NoError(t, err)
	broken := map[promise.Rule]bool{}
	for _, p := range planted {
		w := newWorld()
		p.plant(w)
		v := w.check(t)
		require.Len(t, v.Broken, len(p.rules), "%s\n%s", p.name, v)
		for _, r := range p.rules {
			broken[r] = true
			require.Positive(t, v.Broken[r], "%s: %s\n%s", p.name, r, v)
		}
	}
	for _, r := range rules {
		require.True(t, broken[r], "no history breaks %s", r)
	}
}
