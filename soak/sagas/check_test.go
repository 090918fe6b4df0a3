package sagas

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// A world is the history of two sagas, two timers and three letters. The saga "a" has all sorts of
// steps, is suspended and resumed, and completes; "b" is cancelled and undone.
type world struct {
	Messages []*Message
	Calls    []*Call
	Rows     []Row
	Turns    []Turn
}

type (
	// A Message is a message of a saga, a letter or a timer.
	Message struct {
		Category, Stream string
		Position         int64
		ID, Type         string
		At               int64
		Data             string
		Due              int64
	}
	// A Call is a call of a process, or of the nemesis, with its answer.
	Call struct {
		Record
		Process string
		End     int64
		Answer  Record
		Target  string
		Off     int64
	}
	// A Row was written in the transaction of a step.
	Row struct{ Saga, Step, What, Process string }
	// A Turn of a saga, or the delivery of a timer, came to nothing.
	Turn struct {
		Stream, What string
		At           int64
	}
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
	for i, c := range w.Calls {
		asked, err := json.Marshal(struct {
			Record
			Target string `json:"target,omitempty"`
			Off    int64  `json:"off,omitempty"`
		}{c.Record, c.Target, c.Off})
		require.NoError(t, err)
		told, err := json.Marshal(c.Answer)
		require.NoError(t, err)
		insert("calls", c.Process, i, c.Call, c.At, c.End, c.Answer.Answer, string(asked), string(told))
	}
	for i, m := range w.Messages {
		insert("messages", i, m.Category, m.Stream, m.Position, m.ID, m.Type, m.At, m.Data, m.Due)
	}
	for _, r := range w.Rows {
		insert("rows", r.Saga, r.Step, r.What, r.Process)
	}
	for _, turn := range w.Turns {
		insert("turns", turn.Stream, turn.What, turn.At)
	}
	v, err := h.Check(ctx)
	require.NoError(t, err)
	return v
}

// fault adds a fault of the nemesis.
func (w *world) fault(from, to int64, what, target string, off time.Duration) {
	w.call("nemesis", from, to, Record{Call: what}, Record{Answer: OK})
	last := w.Calls[len(w.Calls)-1]
	last.Target, last.Off = target, off.Microseconds()
}

const second = int64(1_000_000)

// at is a moment of the world, in milliseconds from its beginning.
func at(ms int64) int64 { return 1_700_000_000*second + ms*1000 }

func (w *world) call(process string, from, to int64, c, a Record) {
	c.At, a.At, a.Call = at(from), at(to), c.Call
	w.Calls = append(w.Calls, &Call{Record: c, Process: process, End: at(to), Answer: a})
}

// message adds a message to a saga, by runner unless it is from outside.
func (w *world) message(saga, runner string, ms int64, kind, data string) {
	position := int64(0)
	for _, m := range w.Messages {
		if strings.HasSuffix(m.Stream, "-"+saga) {
			position++
		}
	}
	m := &Message{
		Category: string(category), Stream: string(category) + "-" + saga, Position: position, ID: saga + strconv.FormatInt(position, 10), Type: kind, At: at(ms), Data: data,
	}
	w.Messages = append(w.Messages, m)
	if runner != "" {
		w.call(runner, ms-1, ms+1, Record{Call: Write, Saga: saga, IDs: []string{m.ID}}, Record{Answer: OK})
	}
}

func (w *world) do(saga, what, step string, from int64) {
	w.call("runner-1", from, from+2, Record{Call: what, Saga: saga, Step: step}, Record{Answer: OK})
}

func (w *world) begin(saga string, ms int64, o Order) {
	input, _ := json.Marshal(o)
	w.call("customers", ms-1, ms+1, Record{Call: Begin, Saga: saga}, Record{Answer: OK})
	w.message(saga, "", ms, "Started", `{"input":`+string(input)+`,"deadlineMillis":12000}`)
}

const r1 = "runner-1"

func newWorld() *world {
	w := &world{}
	w.begin("a", 0, Order{Lines: 1, Pay: true, Nap: 100, Ship: true, Seal: true, Pivot: true, Fail: true})
	w.message("a", r1, 10, "Began", `{"step":"reserve+0","attempt":1}`)
	w.do("a", Do, "reserve+0", 12)
	w.message("a", r1, 20, "Failed", `{"step":"reserve+0","attempt":1,"error":"it was drawn","retryAt":`+strconv.FormatInt(at(50), 10)+`}`)
	w.message("a", r1, 60, "Began", `{"step":"reserve+0","attempt":2}`)
	w.do("a", Do, "reserve+0", 62)
	w.message("a", r1, 70, "Done", `{"step":"reserve+0"}`)
	w.message("a", "", 80, "Began", `{"step":"pay","attempt":1,"kind":"tx"}`)
	w.message("a", "", 80, "Done", `{"step":"pay"}`)
	w.Rows = append(w.Rows, Row{"a", "pay", Do, r1})
	w.message("a", r1, 90, "Waiting", `{"name":"nap","until":`+strconv.FormatInt(at(190), 10)+`}`)
	w.message("a", r1, 200, "Began", `{"step":"ship","attempt":1,"kind":"ask","replyBy":`+strconv.FormatInt(at(5200), 10)+`}`)
	w.message("a", "", 250, "Replied", `{"step":"ship","attempt":1}`)
	w.message("a", r1, 260, "Began", `{"step":"seal","attempt":1,"kind":"ask","replyBy":`+strconv.FormatInt(at(860), 10)+`}`)
	w.message("a", r1, 870, "Failed", `{"step":"seal","attempt":1,"error":"no reply came in time"}`)
	w.message("a", r1, 871, "Suspended", `{"why":"failed","step":"seal"}`)
	w.message("a", "", 900, "Resumed", `{}`)
	w.message("a", r1, 910, "Began", `{"step":"seal","attempt":2,"kind":"ask","replyBy":`+strconv.FormatInt(at(1510), 10)+`}`)
	w.message("a", "", 920, "Replied", `{"step":"seal","attempt":1}`)
	w.message("a", "", 930, "Replied", `{"step":"seal","attempt":2}`)
	w.message("a", r1, 940, "Began", `{"step":"book","attempt":1}`)
	w.do("a", Do, "book", 942)
	w.message("a", r1, 950, "Done", `{"step":"book"}`)
	w.message("a", r1, 960, "Completed", `{}`)
	w.call("customers", 2, 980, Record{Call: Wait, Saga: "a"}, Record{Answer: OK, State: "completed"})

	w.begin("b", 5, Order{Lines: 1, Pay: true, Approve: true})
	w.message("b", r1, 15, "Began", `{"step":"reserve+0","attempt":1}`)
	w.do("b", Do, "reserve+0", 16)
	w.message("b", r1, 25, "Done", `{"step":"reserve+0"}`)
	w.message("b", "", 35, "Began", `{"step":"pay","attempt":1,"kind":"tx"}`)
	w.message("b", "", 35, "Done", `{"step":"pay"}`)
	w.message("b", r1, 38, "Began", `{"step":"approve","attempt":1,"kind":"ask","replyBy":`+strconv.FormatInt(at(24_000), 10)+`}`)
	w.message("b", r1, 39, "Failed", `{"step":"approve","attempt":1,"error":"lock timeout","retryAt":`+strconv.FormatInt(at(40), 10)+`}`)
	w.message("b", r1, 45, "Began", `{"step":"approve","attempt":2,"kind":"ask","replyBy":`+strconv.FormatInt(at(24_000), 10)+`}`)
	w.message("b", "", 300, "CancelRequested", `{}`)
	w.message("b", r1, 310, "Compensating", `{"reason":"cancelled"}`)
	w.do("b", Undo, "approve", 312)
	w.message("b", r1, 320, "Undone", `{"step":"approve"}`)
	w.message("b", "", 330, "Undone", `{"step":"pay"}`)
	w.do("b", Undo, "reserve+0", 335)
	w.message("b", r1, 340, "Undone", `{"step":"reserve+0"}`)
	w.message("b", r1, 341, "Compensated", `{}`)
	w.Rows = append(w.Rows, Row{"b", "pay", Do, r1}, Row{"b", "pay", Undo, r1})
	w.call("customers", 6, 350, Record{Call: Wait, Saga: "b"}, Record{Answer: OK, State: "compensated"})

	w.call("customers", 10, 12, Record{Call: Set, IDs: []string{"t1", "t2"}}, Record{Answer: OK})
	for i, due := range []int64{500, 600} {
		id := "t" + strconv.Itoa(i+1)
		w.Messages = append(w.Messages, &Message{Category: string(rings), Due: at(due), Stream: "ring-" + id, ID: id, At: at(11)})
		w.call(r1, due+5, due+6, Record{Call: Ring, IDs: []string{id}, Due: at(due)}, Record{Answer: OK})
	}
	w.call(r1, 2600, 2605, Record{Call: Ring, IDs: []string{"t2"}, Due: at(600)}, Record{Answer: OK}) // again, after a cut
	w.fault(2500, 2501, crew.Cut, r1, 0)
	for i := range int64(3) {
		id := "l" + strconv.FormatInt(i, 10)
		w.Messages = append(w.Messages, &Message{Category: string(posts), Stream: "post-1", Position: i, ID: id, At: at(100)})
		w.send(200+10*i, i)
	}
	w.send(300, 1) // again
	w.fault(3000, 3100, crew.Drain, "", 0)
	return w
}

func (w *world) send(ms, position int64) {
	w.call(r1, ms, ms+2, Record{Call: Send, Stream: "post-1", Position: position, IDs: []string{"l" + strconv.FormatInt(position, 10)}}, Record{Answer: OK})
}

// of returns the message of a saga that was written then.
func (w *world) of(saga string, ms int64) *Message {
	return w.Messages[slices.IndexFunc(w.Messages, func(m *Message) bool { return strings.HasSuffix(m.Stream, "-"+saga) && m.At == at(ms) })]
}

// drop removes messages, and those behind them move up.
func (w *world) drop(saga string, from, to int64) {
	position := int64(0)
	w.Messages = slices.DeleteFunc(w.Messages, func(m *Message) bool {
		if !strings.HasSuffix(m.Stream, "-"+saga) {
			return false
		}
		if m.At >= at(from) && m.At <= at(to) {
			return true
		}
		m.Position, position = position, position+1
		return false
	})
}

// sorted puts the messages in the order of their times.
func (w *world) sorted() {
	slices.SortStableFunc(w.Messages, func(a, b *Message) int { return cmp.Compare(a.At, b.At) })
	next := map[string]int64{}
	for _, m := range w.Messages {
		m.Position = next[m.Stream]
		next[m.Stream]++
	}
}

// jump has the server's clock off for a time.
func (w *world) jump(from, to int64, off time.Duration) {
	w.fault(from, to, crew.Jump, "", off)
	for _, m := range w.Messages {
		if m.At >= at(from) && m.At <= at(to) {
			m.At += off.Microseconds()
		}
	}
}

func (w *world) called(what string, ms int64) *Call {
	return w.Calls[slices.IndexFunc(w.Calls, func(c *Call) bool { return c.Call == what && c.At == at(ms) })]
}

func TestAHistoryWithoutAMistakePasses(t *testing.T) {
	t.Parallel()
	v := newWorld().check(t)
	require.True(t, v.Passed(), v.String())
	for key, n := range map[string]int{
		"sagas": 2, "completed": 1, "compensated": 1, "cuts": 1, "steps": 4, "undos": 2, "timers": 2, "rung": 3, "letters": 4, "known": 22, "outrun": 0, "kills": 0,
	} {
		require.Equal(t, n, v.Figures.Of(key), key)
	}
	table := v.Figures.Table(nil)
	for name, n := range map[string]string{
		"timers rung late by, p50 in ms": "5", "timers rung again": "1", "letters taken again": "1", "from a reply to the next record, p50 in ms": "10",
	} {
		require.Regexp(t, name+` +0 +`+n+`\n`, table)
	}
}

// planted are histories with one mistake each.
var planted = []struct {
	name  string
	rules []promise.Rule // all that it breaks
	plant func(w *world)
}{
	{"a saga was begun and is not there", []promise.Rule{"G3"}, func(w *world) {
		w.call("customers", 1, 2, Record{Call: Begin, Saga: "c"}, Record{Answer: OK})
	}},
	{"a saga has two ends", []promise.Rule{"G3"}, func(w *world) { w.message("a", r1, 970, "Completed", `{}`) }},
	{"a step was left out", []promise.Rule{"G2"}, func(w *world) {
		w.drop("a", 80, 80)
		w.Rows = w.Rows[1:]
	}},
	{"a suspended saga went on", []promise.Rule{"G2"}, func(w *world) {
		w.message("a", r1, 75, "Suspended", `{"why":"invalid"}`)
		w.sorted()
	}},
	{"a clock was taken for one that went back", []promise.Rule{"G10"}, func(w *world) {
		w.message("a", r1, 75, "SetBack", `{"from":2,"to":1}`)
		w.sorted()
	}},
	{"a recorded transaction has no row", []promise.Rule{"G1b"}, func(w *world) { w.Rows = w.Rows[1:] }},
	{"a transaction was committed twice", []promise.Rule{"G1b"}, func(w *world) { w.Rows = append(w.Rows, Row{"b", "pay", Undo, r1}) }},
	{"a step began after another process went on", []promise.Rule{"G5a"}, func(w *world) {
		w.called(Do, 942).At = at(2500)
		w.called(Write, 949).Process = "runner-2"
	}},
	{"a step began while the saga was undone", []promise.Rule{"G5a", "G6"}, func(w *world) {
		w.of("b", 310).At = at(44)
		w.of("b", 300).At = at(43)
		w.called(Undo, 312).At = at(40)
		w.sorted()
	}},
	{"a step that waits began again", []promise.Rule{"G1a"}, func(w *world) { w.drop("b", 39, 39) }},
	{"a step began after its end", []promise.Rule{"G1a"}, func(w *world) {
		w.message("a", r1, 75, "Began", `{"step":"reserve+0","attempt":3}`)
		w.sorted()
	}},
	{"the reply to an earlier attempt was taken", []promise.Rule{"G5b"}, func(w *world) { w.drop("a", 930, 930) }},
	{"steps were undone in their order", []promise.Rule{"G6"}, func(w *world) {
		w.of("b", 320).Data, w.of("b", 330).Data = w.of("b", 330).Data, w.of("b", 320).Data
	}},
	{"a cancelled saga began a step", []promise.Rule{"G8a"}, func(w *world) {
		w.of("b", 300).At = at(40)
		w.sorted()
	}},
	{"a deadline was not heeded", []promise.Rule{"G8a"}, func(w *world) {
		w.Messages[slices.Index(w.Messages, w.of("b", 5))].Data = strings.Replace(w.of("b", 5).Data, "12000", "1", 1)
		for _, m := range w.Messages {
			if strings.HasSuffix(m.Stream, "-b") && m.At >= at(300) {
				m.At += 6 * second
			}
		}
		for _, c := range w.Calls {
			if c.Call == Undo {
				c.At += 6 * second
			}
		}
	}},
	{"a sleep ended early", []promise.Rule{"G10"}, func(w *world) { w.of("a", 200).At = at(180) }},
	{"a reply was met late", []promise.Rule{"G8b"}, func(w *world) {
		for _, m := range w.Messages {
			if strings.HasSuffix(m.Stream, "-a") && m.At >= at(940) {
				m.At += 6 * second
			}
		}
		w.called(Do, 942).At += 6 * second
	}},
	{"a timer did not ring", []promise.Rule{"Q1"}, func(w *world) { w.called(Ring, 505).Call = "x" }},
	{"a timer rang again, and no fault fell", []promise.Rule{"Q2"}, func(w *world) { w.called(crew.Cut, 2500).Target = "runner-2" }},
	{"a timer rang early", []promise.Rule{"Q9"}, func(w *world) { w.called(Ring, 505).At = at(490) }},
	{"a timer rang early, long after a jump of the clock", []promise.Rule{"Q9"}, func(w *world) {
		w.jump(-2000, -1900, time.Hour)
		w.called(Ring, 505).At = at(490)
	}},
	{"a letter did not arrive", []promise.Rule{"O1"}, func(w *world) { w.called(Send, 220).Answer.Answer = Failed }},
	{"a letter was passed", []promise.Rule{"O3"}, func(w *world) { w.called(Send, 210).Answer.Answer = Failed }},
}

func TestEachRuleIsBrokenByAPlantedHistory(t *testing.T) {
	t.Parallel()
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
	rules, err := promise.Rules(Promises)
	require.NoError(t, err)
	for _, r := range rules {
		require.True(t, broken[r], "no history breaks %s", r)
	}
}

// A turn that was lost with its process explains its lease, and the second one its pause too.
func TestTurnsThatWereLostExplainThatASagaGoesOnLate(t *testing.T) {
	t.Parallel()
	late := func(ms int64, turns ...Turn) *promise.Verdict {
		w := newWorld()
		for _, m := range w.Messages {
			if strings.HasSuffix(m.Stream, "-a") && m.At >= at(940) {
				m.At += ms * 1000
			}
		}
		w.called(Do, 942).At += ms * 1000
		w.Turns = turns
		return w.check(t)
	}
	stream := string(category) + "-a"
	first, second := Turn{stream, "e", at(1000)}, Turn{stream, "e", at(2000)}
	require.True(t, late(5900, first).Passed())
	require.Contains(t, late(6100, first).Broken, promise.Rule("G8b"))
	require.True(t, late(8900, first, second).Passed())
	require.Contains(t, late(9100, first, second).Broken, promise.Rule("G8b"))

	// That of another saga is one that its process has alone.
	stream = string(category) + "-b"
	first, second = Turn{stream, "e", at(1000)}, Turn{stream, "e", at(2000)}
	require.True(t, late(7900, first, second).Passed())
	require.Contains(t, late(8100, first, second).Broken, promise.Rule("G8b"))
}

// What a server's clock showed while it was off is held against the time as it was, and what came
// early by it is no mistake.
func TestAJumpOfTheClockIsAllowedFor(t *testing.T) {
	t.Parallel()
	w := newWorld()
	for range 2 {
		w.message("a", r1, 220, "SetBack", `{"from":2,"to":1}`)
	}
	w.sorted()
	w.of("a", 90).Data = strings.ReplaceAll(w.of("a", 90).Data, strconv.FormatInt(at(190), 10), strconv.FormatInt(at(230), 10))
	w.called(Ring, 505).At = at(490)
	w.jump(195, 205, time.Hour)
	v := w.check(t)
	require.True(t, v.Passed(), v.String())
	require.Equal(t, 2, v.Figures.Of("setBacks"))
	require.Equal(t, 1, v.Figures.Of("jumps"))

	w = newWorld()
	w.jump(195, 205, time.Hour)
	w.Calls = slices.DeleteFunc(w.Calls, func(c *Call) bool { return c.Call == crew.Jump })
	require.Contains(t, w.check(t).Broken, promise.Rule("G8b"))
}

// A machine that stands for longer than a lease has a timer ring again, where its delivery came to
// nothing.
func TestADeliveryThatWasLostExplainsThatATimerRingsAgain(t *testing.T) {
	t.Parallel()
	again := func(ms int64, turns ...Turn) *promise.Verdict {
		w := newWorld()
		w.called(crew.Cut, 2500).Target = "runner-2"
		w.called(Ring, 2600).At = at(ms)
		w.Turns = turns
		return w.check(t)
	}
	lost := Turn{"ring-t2", "e", at(2000)}
	require.True(t, again(2600, lost).Passed())
	require.Contains(t, again(2600).Broken, promise.Rule("Q2"))
	require.Contains(t, again(1000, lost).Broken, promise.Rule("Q2"), "before the lease can be over")
}
