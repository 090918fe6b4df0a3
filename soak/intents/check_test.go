package intents

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// A world is the history of one key: a holder dies, a second takes over while a third waits, and
// the third confirms in a transaction.
type world struct {
	Messages []*Message
	Calls    []*Call
	Writes   []*Write
	Rows     []Row
	Moved    bool // the server's clock was moved: no rule compares it with another
}

type (
	// A Message is a message of an intent's stream.
	Message struct {
		Stream   string
		Position int64
		Type     string
		At       int64
		Data     json.RawMessage
	}
	// A Call is a record with its answer.
	Call struct {
		Record
		Process string
		End     int64
		Answer  Record
		Target  string // of the nemesis
	}
	// A Write is a write to the resource.
	Write struct {
		At       int64
		Key      string
		Token    int64
		From     string
		Accepted bool
	}
	// A Row was written in the transaction of a confirmation.
	Row struct {
		Stream string
		Token  int64
		Result string
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
	calls := slices.Clone(w.Calls)
	for _, write := range w.Writes {
		result := map[bool]string{true: "accepted", false: "refused"}[write.Accepted]
		calls = append(calls, &Call{Record: Record{Call: Wrote, At: write.At, Stream: write.Key, Token: write.Token, Session: write.From, Result: result}, Process: "resource", End: promise.Never})
	}
	if w.Moved {
		calls = append(calls, &Call{Record: Record{Call: crew.Jump}, Process: "nemesis"})
	}
	for i, c := range calls {
		asked, err := json.Marshal(struct {
			Record
			Target string `json:"target,omitempty"`
		}{c.Record, c.Target})
		require.NoError(t, err)
		told, err := json.Marshal(c.Answer)
		require.NoError(t, err)
		insert("calls", c.Process, i, c.Call, c.At, c.End, c.Answer.Answer, string(asked), string(told))
	}
	for i, m := range w.Messages {
		insert("messages", i, m.Stream, m.Position, m.Type, m.At, string(m.Data))
	}
	for _, r := range w.Rows {
		insert("rows", r.Stream, r.Token, r.Result)
	}
	v, err := h.Check(ctx)
	require.NoError(t, err)
	return v
}

const (
	key     = "payment:intent-1.1"
	key2    = "payment:intent-1.2"
	key3    = "payment:intent-1.3"
	second  = int64(1_000_000)
	started = 1_700_000_000 * second
)

// at is a moment of the world, in milliseconds from its beginning.
func at(ms int64) int64 { return started + ms*1000 }

func grantOf(session string, attempt int, line ...string) intentlog.Grant {
	return intentlog.Grant{Session: session, Attempt: attempt, TTL: ttl.Milliseconds(), Content: "content", Line: line}
}

// say adds a message.
func (w *world) say(ms int64, b interface{ MessageType() string }) { w.sayOf(key, ms, b) }

func (w *world) sayOf(stream string, ms int64, b interface{ MessageType() string }) {
	data, err := json.Marshal(b)
	if err != nil {
		panic(err)
	}
	position := int64(0)
	for _, m := range w.Messages {
		if m.Stream == stream {
			position++
		}
	}
	w.Messages = append(w.Messages, &Message{stream, position, b.MessageType(), at(ms), data})
}

// drop removes the message at a position and those after it.
func (w *world) drop(stream string, position int64) {
	w.Messages = slices.DeleteFunc(w.Messages, func(m *Message) bool { return m.Stream == stream && m.Position >= position })
}

// call adds a call with its answer, 2 ms around a moment.
func (w *world) call(ms int64, process string, c, answer Record) {
	if c.At = at(ms) - 2000; c.Stream == "" {
		c.Stream = key
	}
	w.Calls = append(w.Calls, &Call{Record: c, Process: process, End: at(ms) + 2000, Answer: answer})
}

func (w *world) write(ms, token int64, accepted bool) {
	w.Writes = append(w.Writes, &Write{At: at(ms), Key: key, Token: token, From: "a-1", Accepted: accepted})
}

// The tokens and sessions of the world.
var token1, token2, token3 = at(0), at(600), at(1200)

const (
	first, other, last = "a-1/1", "b-1/1", "c-1/1"
	result             = "c-1/9"
)

func good() *world {
	w := &world{}
	ask := func(session string) Record { return Record{Call: Reserve, Session: session} }
	step := func(call, session string, token int64) Record {
		return Record{Call: call, Session: session, Token: token}
	}
	w.say(0, intentlog.Reserved{Grant: grantOf(first, 1)})
	w.call(0, "a-1", ask(first), Record{Answer: Reserved, Token: token1})
	w.call(10, "b-1", ask(other), Record{Answer: Held, By: first, ByToken: token1})
	w.call(20, "a-1", step(Work, first, token1), Record{Answer: OK})
	w.write(30, token1, true)
	w.say(50, intentlog.Extended{Grant: grantOf(first, 1), Token: token1})
	w.call(50, "a-1", step(Extend, first, token1), Record{Answer: OK})

	w.say(600, intentlog.Reserved{Grant: grantOf(other, 2), After: token1})
	w.call(600, "b-1", ask(other), Record{Answer: Reserved, Token: token2})
	w.write(610, token2, true)
	w.write(620, token1, false)
	w.call(630, "a-1", Record{Call: Confirm, Session: first, Token: token1, Result: "a-1/8"}, Record{Answer: Lost, By: other, ByToken: token2})
	w.say(650, intentlog.Waiting{Grant: grantOf(other, 2, last), Token: token2, At: at(600), Of: 2})
	w.say(700, intentlog.Released{Grant: grantOf(other, 2, last), Token: token2})
	w.call(700, "b-1", step(Release, other, token2), Record{Answer: OK})

	w.say(1200, intentlog.Reserved{Grant: grantOf(last, 3), After: token2})
	w.call(1200, "c-1", ask(last), Record{Answer: Reserved, Token: token3})
	w.call(1210, "c-1", step(Work, last, token3), Record{Answer: OK})
	w.write(1220, token3, true)
	w.say(1300, intentlog.Confirmed{Grant: grantOf(last, 3), Token: token3, Result: json.RawMessage(`"` + result + `"`)})
	w.call(1300, "c-1", Record{Call: Transact, Session: last, Token: token3, Result: result}, Record{Answer: OK})
	w.Rows = []Row{{key, token3, result}}
	w.call(1400, "d-1", ask("d-1/1"), Record{Answer: Done, By: last, ByToken: token3, Result: result})
	w.call(560, "d-1", Record{Call: Await}, Record{Answer: Free})
	w.call(1410, "d-1", Record{Call: Await}, Record{Answer: Done, By: last, ByToken: token3, Result: result})

	// One that has both keys, of which an operator releases the second.
	w.sayOf(key2, 0, intentlog.Reserved{Grant: grantOf("e-1/1", 1)})
	w.sayOf(key3, 0, intentlog.Reserved{Grant: grantOf("e-1/1", 1)})
	both := func(call string) Record {
		return Record{Call: call, Stream: key2, Session: "e-1/1", Token: at(0), With: []Key{{key3, at(0)}}}
	}
	w.call(0, "e-1", both(Reserve), Record{Answer: Reserved, Token: at(0), With: []Key{{key3, at(0)}}})
	w.sayOf(key2, 50, intentlog.Extended{Grant: grantOf("e-1/1", 1), Token: at(0)})
	w.sayOf(key3, 50, intentlog.Extended{Grant: grantOf("e-1/1", 1), Token: at(0)})
	w.call(50, "e-1", both(Extend), Record{Answer: OK})
	w.sayOf(key3, 100, intentlog.Released{Grant: grantOf("e-1/1", 1), Token: at(0), By: "d-1"})
	w.call(100, "d-1", Record{Call: Force, Stream: key3}, Record{Answer: OK})
	w.call(110, "e-1", both(Release), Record{Answer: Lost, On: key3, By: "e-1/1", ByToken: at(0)})
	w.call(1500, "nemesis", Record{Call: crew.Drain}, Record{Answer: OK})
	return w
}

// find returns the first call of a kind by a session.
func (w *world) find(call, session string) *Call {
	i := slices.IndexFunc(w.Calls, func(c *Call) bool { return c.Call == call && c.Session == session })
	return w.Calls[i]
}

// change edits a message.
func (w *world) change(position int, field string, value any) {
	m := w.Messages[position]
	var data map[string]any
	if err := json.Unmarshal(m.Data, &data); err != nil {
		panic(err)
	}
	data[field] = value
	m.Data, _ = json.Marshal(data) // it was JSON before
}

func TestAGoodHistoryPasses(t *testing.T) {
	t.Parallel()
	v := good().check(t)

	require.Empty(t, v.Broken, v.String())
	for _, f := range v.Figures {
		want := map[string]int{"takeovers": 1, "lateConfirms": 1, "lateWrites": 1, "held": 1, "done": 1, "turns": 1, "several": 1, "awaits": 2, "forced": 1, "work": 2}
		require.Equal(t, want[f.Key], f.N, f.Name)
	}
}

func TestEachRuleIsBrokenByAPlantedHistory(t *testing.T) {
	t.Parallel()
	for _, planted := range []struct {
		name  string
		rule  promise.Rule
		plant func(w *world)
	}{
		{"a token that is not after the one before", "L1", func(w *world) { w.change(2, "after", 0) }},

		{"a message is missing", "L3a", func(w *world) { w.Messages = slices.Delete(w.Messages, 1, 2) }},
		{"a step of a lease that was taken", "L3a", func(w *world) {
			w.Messages = slices.Insert(w.Messages, 3, &Message{key, 3, intentlog.TypeExtended, at(605), w.Messages[1].Data})
		}},
		{"a step after a release", "L3a", func(w *world) {
			w.say(710, intentlog.Extended{Grant: grantOf(other, 2, last), Token: token2})
			released := w.Messages[len(w.Messages)-1]
			w.Messages = slices.Insert(w.Messages[:7], 5, released)
		}},
		{"a message that is older than the one before it", "L3a", func(w *world) { w.Messages[4].At = at(640) }},

		{"a lease that is taken before it was over", "L2a", func(w *world) { w.Messages[2].At = at(540) }},

		{"a token that was never granted", "L2b", func(w *world) { w.find(Reserve, first).Answer.Token++ }},
		{"a grant that no call has asked for", "L2b", func(w *world) { w.find(Reserve, last).Answer.Answer = Failed }},
		{"held by a lease that was taken before", "L2b", func(w *world) {
			w.call(800, "d-1", Record{Call: Reserve, Session: "d-1/2"}, Record{Answer: Held, By: first, ByToken: token1})
		}},
		{"done before it was", "L2b", func(w *world) { w.find(Reserve, "d-1/1").End = at(1200) }},
		{"extended, and is not", "L2b", func(w *world) { w.find(Extend, first).At, w.find(Extend, first).End = at(100), at(110) }},

		{"free, and is held", "L2b", func(w *world) {
			w.call(610, "d-1", Record{Call: Await}, Record{Answer: Free})
		}},
		{"released by an operator, and is not", "L2b", func(w *world) { w.find(Force, "").Stream = key2 }},
		{"one of several keys was not granted", "L2b", func(w *world) { w.find(Reserve, "e-1/1").Answer.With[0].Token++ }},
		{"one of several keys is not granted with the others", "L3c", func(w *world) { w.drop(key3, 0) }},

		{"confirmed, and is not", "L5", func(w *world) { w.find(Confirm, first).Answer.Answer = OK }},
		{"reserved after it was told done", "L5", func(w *world) {
			w.call(400, "d-1", Record{Call: Reserve, Session: "d-1/3"}, Record{Answer: Done})
		}},

		{"lost, and nothing came after it", "L3b", func(w *world) { w.find(Extend, first).Answer.Answer = Lost }},
		{"lost, and confirmed", "L3b", func(w *world) { w.find(Transact, last).Answer.Answer = Lost }},

		{"a token that falls at the resource", "L4a", func(w *world) { w.Writes[2].Accepted = true }},
		{"the highest token refused", "L4a", func(w *world) { w.Writes[1].Accepted = false }},

		{"a row that is not confirmed", "L4b", func(w *world) { w.Rows = append(w.Rows, Row{key, token1, "a-1/8"}) }},
		{"a confirmation without its row", "L4b", func(w *world) { w.Rows = nil }},

		{"work after its lease", "L7", func(w *world) {
			w.call(510, "a-1", Record{Call: Work, Session: first, Token: token1}, Record{Answer: OK})
		}},

		{"work begun after its lease, though it looked before it", "L7", func(w *world) {
			w.find(Work, first).End = at(560)
		}},

		{"a line that loses a session", "waiters", func(w *world) { w.change(4, "line", nil) }},
		{"out of turn", "waiters", func(w *world) {
			w.change(5, "session", "z-1/1")
			w.Messages[5].At = at(760)
		}},

		{"something is held in the end", "L2c", func(w *world) { w.find(crew.Drain, "").Answer.Answer = Failed }},
		{"a key that cannot be had in the end", "L2c", func(w *world) {
			w.call(1600, healer, Record{Call: Reserve, Session: "healer/1"}, Record{Answer: Held, By: last, ByToken: token3})
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := good()

			planted.plant(w)

			v := w.check(t)
			require.NotZero(t, v.Broken[planted.rule], v.String())
		})
	}
}

// lose has a failover to an asynchronous standby, in which writes may be undone.
func (w *world) lose(from, to int64) {
	w.Calls = append(w.Calls, &Call{Record: Record{Call: Failover, At: at(from)}, Target: Async, Process: "nemesis", End: at(to), Answer: Record{Answer: OK}})
}

// lossy is a world in which a failover has undone a grant, and two sessions have the key after it.
func lossy() *world {
	w := &world{}
	w.lose(100, 200)
	w.call(150, "a-1", Record{Call: Reserve, Session: first}, Record{Answer: Reserved, Token: at(150)})
	w.write(160, at(150), true)
	w.call(210, "a-1", Record{Call: Extend, Session: first, Token: at(150)}, Record{Answer: Lost})
	w.say(300, intentlog.Reserved{Grant: grantOf(other, 1)})
	w.call(300, "b-1", Record{Call: Reserve, Session: other}, Record{Answer: Reserved, Token: at(300)})
	w.write(310, at(300), true)
	w.say(320, intentlog.Confirmed{Grant: grantOf(other, 1), Token: at(300), Result: json.RawMessage(`"b-1/2"`)})
	w.call(320, "b-1", Record{Call: Confirm, Session: other, Token: at(300), Result: "b-1/2"}, Record{Answer: OK})
	return w
}

func TestWhatAFailoverHasUndoneIsNotLostOtherwise(t *testing.T) {
	t.Parallel()
	v := lossy().check(t)
	require.Empty(t, v.Broken, v.String())
	require.Equal(t, 1, v.Figures.Of("above"))
	require.NotZero(t, v.Figures.Of("undone"))

	for _, planted := range []struct {
		name  string
		rule  promise.Rule
		plant func(w *world)
	}{
		{"a grant that was lost before the failover", "L2b", func(w *world) { w.Calls[0].At, w.Calls[0].End = at(151), at(200) }},
		{"a confirmation that was lost after the failover", "L5", func(w *world) { w.drop(key, 1) }},
		{"a token that is not above the lost one", "L6", func(w *world) {
			w.Messages[0].At = at(120)
			w.Calls[3].Answer.Token = at(120)
		}},
	} {
		t.Run(planted.name, func(t *testing.T) {
			t.Parallel()
			w := lossy()
			planted.plant(w)
			v := w.check(t)
			require.NotZero(t, v.Broken[planted.rule], v.String())
		})
	}
}

// A version that a failover took back is given out again, and a client that knows it from before
// writes there.
func TestAnIntentThatAnUndoneLeaseWroteToIsLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	stray := func(w *world) {
		w.say(330, intentlog.Confirmed{Grant: grantOf(first, 1), Token: at(150), Result: json.RawMessage(`"a-1/2"`)})
		w.call(330, "a-1", Record{Call: Confirm, Session: first, Token: at(150), Result: "a-1/2"}, Record{Answer: OK})
	}
	w := lossy()
	stray(w)
	// A lease that was granted with it is judged.
	w.sayOf(key2, 300, intentlog.Reserved{Grant: grantOf(other, 1)})
	w.Calls[3].With, w.Calls[3].Answer.With = []Key{{Stream: key2}}, []Key{{key2, at(300)}}
	v := w.check(t)
	require.Empty(t, v.Broken, v.String())
	require.Equal(t, 1, v.Figures.Of("strayed"))

	w = lossy()
	stray(w)
	w.Calls[1].At = at(205) // asked after the failover
	v = w.check(t)
	require.NotZero(t, v.Broken["L3a"], v.String())
	require.Zero(t, v.Figures.Of("strayed"))
}

// A read may see the state before a grant that is not committed yet.
func TestALeaseIsFreeUntilTheNextGrantIsCommitted(t *testing.T) {
	t.Parallel()
	w := good()
	request := w.find(Reserve, other)
	for _, call := range w.Calls {
		if call.Call == Reserve && call.Session == other && call.Answer.Answer == Reserved {
			request = call
		}
	}
	request.End = at(608)
	w.call(605, "d-1", Record{Call: Await}, Record{Answer: Free})
	require.Empty(t, w.check(t).Broken)

	request.End = at(602)
	require.NotZero(t, w.check(t).Broken["L2b"])
}

// A process that is stopped between its look and its work begins late.
func TestWorkOfAStoppedProcessMayBeginLate(t *testing.T) {
	t.Parallel()
	w := good()
	w.find(Work, first).End = at(560)
	w.Calls = append(w.Calls, &Call{Record: Record{Call: crew.Stop, At: at(30)}, Target: "a-1", Process: "nemesis", End: at(555), Answer: Record{Answer: OK}})
	v := w.check(t)
	require.Empty(t, v.Broken, v.String())
	require.Equal(t, 1, v.Figures.Of("paused"))
	require.Equal(t, 1, v.Figures.Of("stops"))
}

// Where the clock was moved, its times say nothing.
func TestAMovedClockIsComparedWithNothing(t *testing.T) {
	t.Parallel()
	w := good()
	w.Moved = true
	w.Messages[2].At = at(540)
	w.call(510, "a-1", Record{Call: Work, Session: first, Token: token1}, Record{Answer: OK})

	v := w.check(t)
	require.Zero(t, v.Broken["L2a"])
	require.Zero(t, v.Broken["L7"])
}

func TestARunGoesOnToItsGoalsAndPasses(t *testing.T) {
	dir := t.TempDir()
	goals := promise.Goals{"serverKills": 1, "kills": 1, "takeovers": 3, "held": 5, "done": 5, "several": 1, "work": 10}
	o := Options{Options: crew.Options{Seed: 1, Duration: time.Minute, Goals: goals, Out: dir + "/run", Dir: "/var/tmp"}, Processes: 3, Goroutines: 4}

	complaints, err := Run(t.Context(), o, zerolog.Nop())

	require.NoError(t, err)
	require.Empty(t, complaints)
	v, err := promise.Check(t.Context(), o.Out, Promises)
	require.NoError(t, err)
	require.Empty(t, v.Broken, v.String())
	require.Empty(t, v.Figures.Missed(goals))
}

func TestACalmRunWorksForItsTime(t *testing.T) {
	dir := t.TempDir()
	o := Options{Options: crew.Options{Seed: 1, Duration: 3 * time.Second, Out: dir + "/run", Dir: "/var/tmp"}, Calm: true, Processes: 2, Goroutines: 4}

	complaints, err := Run(t.Context(), o, zerolog.Nop())

	require.NoError(t, err)
	require.Empty(t, complaints)
	v, err := promise.Check(t.Context(), o.Out, Promises)
	require.NoError(t, err)
	require.Empty(t, v.Broken, v.String())
	require.NotZero(t, v.Figures.Of("work"))
	require.Zero(t, v.Figures.Of("kills")+v.Figures.Of("serverKills")+v.Figures.Of("stops")+v.Figures.Of("paused"))
}

func TestARunLosesThePrimary(t *testing.T) {
	dir := t.TempDir()
	o := Options{Options: crew.Options{Seed: 1, Duration: time.Minute, Out: dir + "/run", Dir: "/var/tmp"}, Failovers: Failovers{Sync: 1, Async: 1}, Processes: 3, Goroutines: 4}

	complaints, err := Run(t.Context(), o, zerolog.Nop())

	require.NoError(t, err)
	require.Empty(t, complaints)
	v, err := promise.Check(t.Context(), o.Out, Promises)
	require.NoError(t, err)
	require.Empty(t, v.Broken, v.String())
	require.Equal(t, 1, v.Figures.Of("syncFailovers"))
	require.Equal(t, 1, v.Figures.Of("asyncFailovers"))
}

// The waiters of one process that leave together leave by one message.
func TestALineIsLeftByTheWaitersOfOneProcess(t *testing.T) {
	t.Parallel()
	before := []string{"a-1/1", "b-1/1", "c-1/1", "b-1/2", "a-1/2"}
	for name, c := range map[string]struct {
		after []string
		want  bool
	}{
		"one":                       {[]string{"a-1/1", "c-1/1", "b-1/2", "a-1/2"}, true},
		"two of a process":          {[]string{"a-1/1", "c-1/1", "a-1/2"}, true},
		"none":                      {before, false},
		"two of two":                {[]string{"c-1/1", "b-1/2", "a-1/2"}, false},
		"all":                       {[]string{}, false},
		"one, and another order":    {[]string{"c-1/1", "a-1/1", "b-1/2", "a-1/2"}, false},
		"one, and another has come": {[]string{"a-1/1", "c-1/1", "b-1/2", "a-1/2", "d-1/1"}, false},
	} {
		w := &world{}
		w.say(0, intentlog.Reserved{Grant: grantOf(first, 1, before...)}) // a line that nobody has come to
		w.say(10, intentlog.Waiting{Grant: grantOf(first, 1, c.after...), Token: token1, At: at(0)})
		require.Equal(t, c.want, w.check(t).Broken["waiters"] == 1, name)
	}
}

// What one process does for many by its calls, one with the store would not do.
func TestAProcessThatServesActsForOthers(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		rule  promise.Rule
		world func(w *world)
	}{
		"waiters of several leave": {"waiters", func(w *world) {
			w.say(0, intentlog.Reserved{Grant: grantOf(first, 1)})
			for ms, line := range [][]string{{other}, {other, last}, nil} {
				w.say(int64(ms), intentlog.Waiting{Grant: grantOf(first, 1, line...), Token: token1, At: at(0)})
			}
		}},
		"an operator releases": {"L2b", func(w *world) {
			w.say(0, intentlog.Reserved{Grant: grantOf(first, 1)})
			w.say(50, intentlog.Released{Grant: grantOf(first, 1), Token: token1, By: "operator"})
			w.call(0, "a-1", Record{Call: Reserve, Session: first}, Record{Answer: Reserved, Token: token1})
			w.call(50, "d-1", Record{Call: Force}, Record{Answer: OK})
		}},
		"a request is sent again, and the lease was over": {"L2b", func(w *world) {
			w.say(0, intentlog.Reserved{Grant: grantOf(first, 1)})
			w.call(0, "a-1", Record{Call: Reserve, Session: first}, Record{Answer: Held, By: other, ByToken: token2})
			w.Calls[0].End = at(610)
			w.say(600, intentlog.Reserved{Grant: grantOf(other, 2), After: token1})
			w.call(600, "b-1", Record{Call: Reserve, Session: other}, Record{Answer: Reserved, Token: token2})
		}},
	} {
		w := &world{}
		c.world(w)
		require.NotZero(t, w.check(t).Broken[c.rule], what)
		w.call(0, "dibs-0-1", Record{Call: Serve}, Record{})
		v := w.check(t)
		require.Zero(t, v.Broken[c.rule], "%s: %s", what, v)
	}
}
