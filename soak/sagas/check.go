package sagas

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/promise"
)

// The rules that are no queries: they fold the streams of sagas.
const (
	Recorded promise.Rule = "G1a"
	Rows     promise.Rule = "G1b"
	Story    promise.Rule = "G2"
	Ended    promise.Rule = "G3"
	Fenced   promise.Rule = "G5a"
	Replies  promise.Rule = "G5b"
	Reversed promise.Rule = "G6"
	Heeded   promise.Rule = "G8a"
	Woken    promise.Rule = "G8b"
	Punctual promise.Rule = "G10"
)

// folds says what each of them says.
var folds = []struct {
	rule promise.Rule
	says string
}{
	{Recorded, "what is recorded is not done again"},
	{Rows, "a step in a transaction has the rows of its record"},
	{Story, "a saga's record is one that its function can have"},
	{Ended, "a saga has one end, and its customer is told of it"},
	{Fenced, "no step begins after an end, or in a process that is too late"},
	{Replies, "the reply counts that is to the attempt that waits"},
	{Reversed, "steps are undone in reverse, each once"},
	{Heeded, "a cancel and a deadline are heeded"},
	{Woken, "a saga goes on when its message or its time comes"},
	{Punctual, "no time of a saga comes early"},
}

// A Message is one of a saga.
type Message struct {
	Stream   string
	Position int64
	ID       string
	Type     string
	At       int64 // microseconds since 1970, by the database's clock, which is that of all processes
	Data     string
	off      int64 // by how much the clock was off, which is not in At any more
}

// A Row was written in the transaction of a step.
type Row struct{ Saga, Step, What, Process string }

// A Turn of a saga came to nothing. It explains that the saga went on late, and nothing else.
type Turn struct {
	Stream string
	What   string // e: its process was gone, or had no server for a lease; f: the store failed, or another process went on
	At     int64
}

// A Call is a record with its answer.
type Call struct {
	Record
	Process string
	End     int64 // of the answer; promise.Never if there is none
	Answer  Record
}

// Check holds the history of a run against each promise.
func Check(ctx context.Context, dir string) (*promise.Verdict, error) {
	h, err := promise.Open(ctx, dir, Promises)
	if err != nil {
		return nil, err
	}
	v, err := check(ctx, h)
	return v, errors.Join(err, h.Close())
}

func check(ctx context.Context, h *promise.History) (*promise.Verdict, error) {
	v, err := h.Check(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range folds {
		v.Looked(f.rule, f.says)
	}
	c := &checker{Verdict: v, sagas: map[string]*tale{}, writer: map[string]string{}, stops: map[string][]span{}}
	if err := c.read(ctx, h); err != nil {
		return nil, err
	}
	c.patience = leastPatience + c.slowest()
	for _, t := range c.sagas {
		c.lone(t)
	}
	slices.SortFunc(c.alone, func(a, b lone) int { return cmp.Compare(a.from, b.from) })
	for _, t := range c.sagas {
		c.check(t)
	}
	slices.Sort(c.answered)
	for _, q := range []struct {
		name string
		of   float64
	}{{"from a reply to the next record, p50 in ms", 0.5}, {"  p99", 0.99}, {"  max", 1}} {
		ms := 0
		if last := len(c.answered) - 1; last >= 0 {
			ms = int(c.answered[int(q.of*float64(last))].Milliseconds())
		}
		v.Figures = append(v.Figures, promise.Figure{Name: q.name, N: ms})
	}
	v.Figures = append(v.Figures, promise.Figure{Key: "outrun", Name: "answered, and ended by the deadline", N: c.outrun})
	return v, nil
}

// read sorts the history by saga.
func (c *checker) read(ctx context.Context, h *promise.History) error {
	return errors.Join(
		h.Each(ctx, `
			select process, call, at, ended, answer, asked, told, asked ->> 'target', asked ->> 'off' from calls
			where call in ('begin', 'wait', 'do', 'undo', 'write', 'jump', 'stop', 'drain') or call = 'kill' and asked ->> 'target' = 'server' order by at`, func(scan func(...any) error) error {
			call := &Call{}
			var asked, told []byte
			var target *string
			var off *int64
			if err := scan(&call.Process, &call.Call, &call.At, &call.End, new(string), &asked, &told, &target, &off); err != nil {
				return err
			}
			if err := errors.Join(json.Unmarshal(asked, &call.Record), json.Unmarshal(told, &call.Answer)); err != nil {
				return err
			}
			c.take(call, target, off)
			return nil
		}),
		h.Each(ctx, "select stream, position, id, type, at, data from messages where category = 'order:saga' order by rowid", func(scan func(...any) error) error {
			m := &Message{}
			if err := scan(&m.Stream, &m.Position, &m.ID, &m.Type, &m.At, &m.Data); err != nil {
				return err
			}
			m.off = c.off(m.At)
			m.At -= m.off
			t := c.tale(strings.TrimPrefix(m.Stream, string(category)+"-"))
			t.messages = append(t.messages, m)
			return nil
		}),
		h.Each(ctx, "select saga, step, what, process from rows", func(scan func(...any) error) error {
			var r Row
			err := scan(&r.Saga, &r.Step, &r.What, &r.Process)
			t := c.tale(r.Saga)
			t.rows = append(t.rows, r)
			return err
		}),
		h.Each(ctx, "select stream, what, at from turns where stream like 'order:saga-%' order by rowid", func(scan func(...any) error) error {
			var turn Turn
			err := scan(&turn.Stream, &turn.What, &turn.At)
			turn.At -= c.off(turn.At)
			t := c.tale(strings.TrimPrefix(turn.Stream, string(category)+"-"))
			t.turns = append(t.turns, turn)
			return err
		}),
	)
}

type checker struct {
	*promise.Verdict
	sagas    map[string]*tale
	writer   map[string]string // of a message, by its id
	stops    map[string][]span // by process
	outages  []span
	jumps    []jumped
	alone    []lone // in their order
	took     []int64
	answered []time.Duration // from a reply that counts to the next record of its saga
	outrun   int             // sagas that were answered and then ended by their deadline

	patience int64 // how long something takes at most that takes no time
}

func (c *checker) broke(r promise.Rule, format string, args ...any) {
	c.Broke(r, fmt.Sprintf(format, args...))
}

// A jumped is the time for which the server's clock was off.
type jumped struct {
	span
	off int64
}

// jumpedIn reports whether the server's clock was off at some moment of a time.
func (c *checker) jumpedIn(from, to int64) bool {
	return slices.ContainsFunc(c.jumps, func(j jumped) bool { return j.from <= to && from <= j.to })
}

// off is by how much the server's clock was off when it showed a time. A runner counts on from a time that it has read.
func (c *checker) off(at int64) int64 {
	for _, j := range c.jumps {
		if real := at - j.off; j.from <= real && real <= j.to+second {
			return j.off
		}
	}
	return 0
}

// A span is one of time.
type span struct{ from, to int64 }

// within is how much of the span is in another.
func (s span) within(from, to int64) int64 { return max(0, min(s.to, to)-max(s.from, from)) }

func (c *checker) tale(id string) *tale {
	t := c.sagas[id]
	if t == nil {
		t = &tale{id: id, steps: map[string]*step{}, early: map[string]*body{}}
		c.sagas[id] = t
	}
	return t
}

// take sorts a call.
func (c *checker) take(call *Call, target *string, off *int64) {
	during := span{call.At, call.End}
	switch call.Call {
	case Begin, Wait, Do, Undo:
		t := c.tale(call.Saga)
		t.calls = append(t.calls, call)
		if call.Call == Begin && call.Answer.Answer == OK {
			c.took = append(c.took, call.End-call.At)
		}
	case Write:
		for _, id := range call.IDs {
			c.writer[id] = call.Process
		}
	case crew.Kill:
		c.outages = append(c.outages, during)
	case crew.Jump:
		c.jumps = append(c.jumps, jumped{during, *off})
	case crew.Stop:
		c.stops[*target] = append(c.stops[*target], during)
	case crew.Drain:
		if call.Answer.Answer != OK {
			c.broke(Ended, "in the end there was left: %s", call.Answer.Note)
		}
	}
}

const (
	second = int64(1_000_000)

	// leastPatience is how long something takes at most that takes no time, beside what customers wait for an answer to a write.
	leastPatience = 5 * second

	leaseTime = int64(lease / time.Microsecond)
)

// explained is how much of the time between two moments faults account for. A saga whose process is gone has another turn
// after the lease: the first time at once, and then after 2, 4, 8 and more seconds, as docs/queue.md says.
func (c *checker) explained(t *tale, from, to int64) (d int64) {
	for _, o := range c.outages {
		if o.from < to && o.to > from {
			d += o.within(from, to) + second
		}
	}
	for _, j := range c.jumps {
		d += j.within(from, to)
	}
	d += c.waited(t, from, to)
	lost := 0
	for _, turn := range t.turns {
		pause := second
		if turn.What == "e" {
			if pause = leaseTime; lost > 0 {
				pause += second << min(lost, 12)
			}
			lost++
		}
		if turn.At < to && turn.At+pause > from {
			d += pause
		}
	}
	return d
}

// A lone is the time in which a saga is to have a session alone.
type lone struct {
	span
	saga string
}

// lone finds the sagas that have lost two turns in a row with their processes. The next turn of such a saga is one that its process
// has alone, so that the turns of others wait for it.
func (c *checker) lone(t *tale) {
	var next, lost int
	var last int64
	for _, m := range append(slices.Clip(t.messages), &Message{At: promise.Never}) {
		if fromOutside(m.Type) {
			continue
		}
		for ; next < len(t.turns) && t.turns[next].At < m.At; next++ {
			last = t.turns[next].At
			if t.turns[next].What != "e" {
				lost = 0
			} else {
				lost++
			}
		}
		if lost > 1 { // and then the others have theirs
			due := last + second<<min(lost-1, 12)
			c.alone = append(c.alone, lone{span{due, min(m.At, due+c.patience-3*second) + second}, t.id})
		}
		lost = 0
	}
}

// waited is for how long others than a saga were to have a session alone between two moments.
func (c *checker) waited(t *tale, from, to int64) (d int64) {
	for _, s := range c.alone {
		if s.from >= to {
			break
		}
		if s.saga != t.id {
			d += s.within(from, to)
			from = max(from, s.to)
		}
	}
	return d
}

// slowest is how long one in a hundred of those that begin a saga waits for the answer: so busy is the machine.
func (c *checker) slowest() int64 {
	if len(c.took) == 0 {
		return 0
	}
	slices.Sort(c.took)
	return c.took[len(c.took)*99/100]
}

// stopped is for how long a process was stopped between two moments.
func (c *checker) stopped(process string, from, to int64) (d int64) {
	for _, s := range c.stops[process] {
		d += s.within(from, to)
	}
	return d
}

// A body has the fields of all messages of a saga.
type body struct {
	Step           string          `json:"step"`
	Attempt        int             `json:"attempt"`
	Kind           string          `json:"kind"`
	Error          string          `json:"error"`
	Refused        bool            `json:"refused"`
	At             int64           `json:"at"` // by which the times below were computed, 0 for that of the message
	RetryAt        int64           `json:"retryAt"`
	ReplyBy        int64           `json:"replyBy"`
	Until          int64           `json:"until"`
	Reason         string          `json:"reason"`
	Why            string          `json:"why"`
	Nothing        bool            `json:"nothing"`
	DeadlineMillis int64           `json:"deadlineMillis"`
	Input          json.RawMessage `json:"input"`
}

// A step is what a saga's record tells of one.
type step struct {
	name    string
	kind    string
	attempt int
	done    bool
	failed  bool // for good
	again   bool // a person wants it to begin again
	retryAt int64
	replyBy int64
	undone  int64 // when, 0 if it is not
	nothing bool
	order   int // among the steps, by their first beginning

	begun []*Message
}

func (s *step) settled() bool { return s.done || s.failed }

// A tale is all that is known of a saga.
type tale struct {
	id       string
	messages []*Message
	calls    []*Call
	rows     []Row
	turns    []Turn

	order        Order
	deadline     int64
	lasts        int64 // from its beginning to its deadline
	steps        map[string]*step
	begun        []*step
	early        map[string]*body // replies
	asleep       int64            // until when, 0 if it is not
	suspended    *body
	cancelled    bool
	compensating *Message
	pivoted      int64 // when, 0 if it is not
	end          *Message
	outrun       bool // its deadline ended it after a reply that nothing came of
}

// fromOutside reports whether a message is one that no runner writes.
func fromOutside(kind string) bool {
	return slices.Contains([]string{"Started", "Replied", "Signalled", "CancelRequested", "Resumed", "Resolved"}, kind)
}

// check looks at a saga.
func (c *checker) check(t *tale) {
	began := false
	for _, call := range t.calls {
		began = began || call.Call == Begin
		if call.Call == Begin && call.Answer.Answer == OK && len(t.messages) == 0 {
			c.broke(Ended, "saga %s was begun, and is not there", t.id)
		}
	}
	if !began {
		c.broke(Ended, "saga %s was begun by nobody", t.id)
	}
	woken := int64(0) // since then a runner may go on, 0 for not
	answered := false
	for i, m := range t.messages {
		var b body
		if err := json.Unmarshal([]byte(m.Data), &b); err != nil {
			c.broke(Story, "saga %s has a %s that cannot be read at %d: %v", t.id, m.Type, m.Position, err)
			return
		}
		off := m.off
		if b.At != 0 {
			off = c.off(b.At)
		}
		for _, at := range []*int64{&b.RetryAt, &b.ReplyBy, &b.Until} {
			if *at != 0 {
				*at -= off
			}
		}
		if m.Position != int64(i) || (i == 0) != (m.Type == "Started") {
			c.broke(Story, "saga %s has a %s at %d, in place %d", t.id, m.Type, m.Position, i)
		}
		if byRunner := !fromOutside(m.Type); byRunner {
			if i > 0 && t.end == nil && m.Type != "SetBack" && m.Type == t.messages[i-1].Type && m.Data == t.messages[i-1].Data {
				c.broke(Story, "saga %s has one %s twice in a row at %d", t.id, m.Type, m.Position)
			}
			if woken != 0 {
				took := m.At - woken
				if answered {
					c.answered = append(c.answered, time.Duration(took)*time.Microsecond)
				}
				if took > c.patience+c.explained(t, woken, m.At) {
					c.broke(Woken, "saga %s could go on at %s, and has its next record, %s, after %v, of which faults explain %v",
						t.id, clock(woken), m.Type, time.Duration(took)*time.Microsecond, time.Duration(c.explained(t, woken, m.At))*time.Microsecond)
				}
				t.outrun = answered && m.Type == "Compensating" && b.Reason == "the deadline is over"
			}
			woken, answered = 0, false
			if t.end != nil {
				c.broke(Ended, "saga %s has a %s at %d, after its end", t.id, m.Type, m.Position)
			}
		}
		if wakes, reply := c.fold(t, m, &b); wakes && woken == 0 && t.end == nil {
			woken, answered = m.At, reply
		}
		if m.Type == "Waiting" && t.end == nil {
			woken = b.Until // unless a message from outside comes first, which is no reason to be late
		}
	}
	if t.outrun {
		c.outrun++
	}
	if t.end == nil {
		if len(t.messages) > 0 {
			c.broke(Ended, "saga %s has no end: its last message is %s", t.id, t.messages[len(t.messages)-1].Type)
		}
		return
	}
	c.late(t)
	c.told(t)
	c.rows(t)
	c.called(t)
}

func clock(micros int64) string { return time.UnixMicro(micros).UTC().Format("15:04:05.000") }

// fold adds a message to what is known, and holds it against that. It reports whether the message is a reason to go on,
// and whether that is a reply.
func (c *checker) fold(t *tale, m *Message, b *body) (wakes, reply bool) {
	wrong := func(r promise.Rule, format string, args ...any) {
		if r == Punctual && c.jumpedIn(t.messages[0].At, m.At) {
			return // by the clock as it was
		}
		c.broke(r, "saga %s, %s at %d: %s", t.id, m.Type, m.Position, fmt.Sprintf(format, args...))
	}
	s := t.steps[b.Step]
	if s == nil && slices.Contains([]string{"Done", "Undone", "UndoFailed"}, m.Type) {
		wrong(Story, "%s has not begun", b.Step)
		return false, false
	}
	if m.Type == "SetBack" { // what it waits for takes as long from now on
		if !c.jumpedIn(t.messages[0].At, m.At) {
			wrong(Punctual, "the clock has not gone back")
		}
		t.asleep, t.deadline = 0, max(t.deadline, m.At+t.lasts)
		return false, false
	}
	if t.asleep > m.At && !fromOutside(m.Type) && m.Type != "Waiting" && m.Type != "Compensating" {
		wrong(Punctual, "it sleeps for another %v", time.Duration(t.asleep-m.At)*time.Microsecond)
	}
	if !fromOutside(m.Type) {
		t.asleep = 0
	}
	if t.suspended != nil && !fromOutside(m.Type) && m.Type != "Compensating" {
		wrong(Story, "the saga is suspended")
	}
	switch m.Type {
	case "Started":
		if err := json.Unmarshal(b.Input, &t.order); err != nil {
			wrong(Story, "its input: %v", err)
		}
		t.lasts = b.DeadlineMillis * 1000
		t.deadline = m.At + t.lasts
	case "Began":
		c.began(t, m, b, wrong)
	case "Done":
		if s.settled() {
			wrong(Recorded, "%s has ended before", b.Step)
		}
		if s.done = true; s.name == "book" {
			t.pivoted = m.At
		}
	case "Failed":
		c.failed(t, m, b, wrong)
	case "Waiting":
		t.asleep = b.Until
		if m.At > b.Until {
			t.asleep = 0
		}
	case "Replied":
		return c.replied(t, s, b)
	case "CancelRequested":
		t.cancelled = true
		if t.compensating == nil && t.pivoted == 0 {
			t.suspended = nil
			return true, false
		}
	case "Resumed":
		wakes = t.suspended != nil && t.compensating == nil
		c.resumed(t)
		return wakes, false
	case "Resolved":
		if t.suspended != nil && t.pivoted != 0 {
			t.end = m
		}
	case "Compensating":
		c.compensating(t, m, b, wrong)
	case "Undone":
		c.undone(t, m, s, b, wrong)
	case "Suspended":
		t.suspended = b
	case "Completed":
		t.end = m
		c.completed(t, wrong)
	case "Compensated":
		t.end = m
		for _, s := range t.begun {
			if s.undone == 0 {
				wrong(Reversed, "%s is not undone", s.name)
			}
		}
		if t.compensating == nil {
			wrong(Reversed, "nothing asked for that")
		}
	}
	return false, false
}

func (c *checker) began(t *tale, m *Message, b *body, wrong func(promise.Rule, string, ...any)) {
	s := t.steps[b.Step]
	if s == nil {
		for _, before := range t.begun {
			if !before.done && !beside(before.name, b.Step) {
				wrong(Replies, "%s begins while %s has not ended well", b.Step, before.name)
			}
		}
		s = &step{name: b.Step, kind: b.Kind, order: len(t.begun)}
		t.steps[b.Step] = s
		t.begun = append(t.begun, s)
	}
	switch {
	case t.compensating != nil:
		wrong(Fenced, "%s begins though the saga is undone", b.Step)
	case t.cancelled && t.pivoted == 0:
		wrong(Heeded, "%s begins though the saga is cancelled", b.Step)
	case s.settled():
		wrong(Recorded, "%s begins though it has ended", b.Step)
	case b.Attempt != s.attempt+1:
		wrong(Story, "%s begins attempt %d after %d", b.Step, b.Attempt, s.attempt)
	case m.At < s.retryAt:
		wrong(Punctual, "%s begins %v before its time", b.Step, time.Duration(s.retryAt-m.At)*time.Microsecond)
	case s.kind == "ask" && s.attempt > 0 && !s.again:
		wrong(Recorded, "%s begins again, and is waiting", b.Step)
	}
	s.attempt, s.again, s.retryAt, s.replyBy = b.Attempt, false, 0, b.ReplyBy
	s.begun = append(s.begun, m)
	if early := t.early[b.Step]; early != nil && b.Attempt == 1 && s.kind == "ask" {
		s.done, s.failed = early.Error == "", early.Error != ""
	}
}

// beside reports whether two steps are done side by side.
func beside(a, b string) bool {
	pair := []string{"reserve+a", "reserve+b"}
	return slices.Contains(pair, a) && slices.Contains(pair, b)
}

func (c *checker) failed(t *tale, m *Message, b *body, wrong func(promise.Rule, string, ...any)) {
	s := t.steps[b.Step]
	switch {
	case s == nil:
		wrong(Story, "%s has not begun", b.Step)
		return
	case s.settled():
		wrong(Recorded, "%s has ended before", b.Step)
	case b.Attempt != s.attempt:
		wrong(Story, "attempt %d of %s has failed, and %d is under way", b.Attempt, b.Step, s.attempt)
	case s.kind == "ask" && m.At < s.replyBy:
		wrong(Punctual, "%s has no reply %v before its time", b.Step, time.Duration(s.replyBy-m.At)*time.Microsecond)
	}
	s.retryAt, s.failed = b.RetryAt, b.RetryAt == 0
}

func (c *checker) replied(t *tale, s *step, b *body) (wakes, reply bool) {
	switch {
	case s == nil:
		if t.early[b.Step] == nil {
			t.early[b.Step] = b
		}
		return false, false
	case s.settled() || s.again || b.Attempt != 0 && b.Attempt != s.attempt:
		return false, false
	}
	s.done, s.failed = b.Error == "", b.Error != ""
	goesOn := t.compensating == nil && t.suspended == nil
	return goesOn, goesOn
}

func (c *checker) resumed(t *tale) {
	for _, s := range t.begun {
		if s.retryAt = 0; t.suspended != nil && t.suspended.Why == "failed" && t.suspended.Step == s.name && !s.done {
			s.failed, s.again = false, true
		}
	}
	t.suspended = nil
}

func (c *checker) compensating(t *tale, m *Message, b *body, wrong func(promise.Rule, string, ...any)) {
	if t.compensating != nil {
		wrong(Reversed, "the saga is undone already")
	}
	switch {
	case t.pivoted != 0:
		wrong(Story, "the saga is behind its pivot")
	case b.Reason == "the deadline is over" && m.At < t.deadline:
		wrong(Punctual, "the deadline is %v later", time.Duration(t.deadline-m.At)*time.Microsecond)
	}
	t.compensating, t.suspended = m, nil
}

func (c *checker) undone(t *tale, m *Message, s *step, b *body, wrong func(promise.Rule, string, ...any)) {
	switch {
	case t.compensating == nil:
		wrong(Reversed, "nothing asked for that")
	case s.undone != 0:
		wrong(Reversed, "%s is undone twice", b.Step)
	}
	for _, later := range t.begun[s.order+1:] {
		if later.undone == 0 {
			wrong(Reversed, "%s is undone before %s, which began later", b.Step, later.name)
		}
	}
	s.undone, s.nothing = m.At, b.Nothing
}

// completed holds the steps against those that the saga's input asks for.
func (c *checker) completed(t *tale, wrong func(promise.Rule, string, ...any)) {
	o := t.order
	var want []string
	for i := range o.Lines {
		want = append(want, "reserve+"+strconv.Itoa(i))
	}
	for _, s := range []struct {
		has   bool
		names []string
	}{
		{o.Beside, []string{"reserve+a", "reserve+b"}},
		{o.Pay, []string{"pay"}},
		{o.Ship, []string{"ship"}},
		{o.Seal, []string{"seal"}},
		{o.Approve, []string{"approve"}},
		{o.Pivot, []string{"book"}},
		{o.Last, []string{"pay+last"}},
	} {
		if s.has {
			want = append(want, s.names...)
		}
	}
	var got []string
	for _, s := range t.begun {
		if got = append(got, s.name); !s.done {
			wrong(Replies, "%s has not ended well", s.name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) || o.Fail && !o.Pivot {
		wrong(Story, "it has done %v, and wants %v", got, want)
	}
	if t.compensating != nil {
		wrong(Reversed, "it is undone")
	}
	if t.cancelled && t.pivoted == 0 {
		for _, m := range t.messages { // one that came with the end came too late
			if m.Type == "CancelRequested" && m.Position < t.end.Position {
				wrong(Heeded, "it was cancelled at %d", m.Position)
				break
			}
		}
	}
}

// late looks at what happened behind the deadline.
func (c *checker) late(t *tale) {
	allowed := func(at int64) int64 { return t.deadline + c.patience + c.explained(t, t.deadline, at) }
	if t.pivoted != 0 && t.pivoted <= allowed(t.pivoted) {
		return
	}
	for _, s := range t.begun {
		for _, m := range s.begun {
			if m.At > allowed(m.At) {
				c.broke(Heeded, "saga %s has begun %s %v behind its deadline", t.id, s.name, time.Duration(m.At-t.deadline)*time.Microsecond)
			}
		}
	}
	turned := t.end
	if t.compensating != nil {
		turned = t.compensating
	}
	if turned.At > allowed(turned.At) {
		c.broke(Heeded, "saga %s has its %s %v behind its deadline", t.id, turned.Type, time.Duration(turned.At-t.deadline)*time.Microsecond)
	}
}

// told looks at what the customer was told in the end.
func (c *checker) told(t *tale) {
	state := ""
	for _, call := range t.calls {
		if call.Call == Wait && call.Answer.Answer == OK {
			state = call.Answer.State
		}
	}
	if want := strings.ToLower(t.end.Type); state != want {
		c.broke(Ended, "the customer of saga %s, which is %s, was told %q in the end", t.id, want, state)
	}
}

// rows holds the rows of transactions against the records.
func (c *checker) rows(t *tale) {
	count := map[[2]string]int{}
	for _, r := range t.rows {
		count[[2]string{r.Step, r.What}]++
		if t.steps[r.Step] == nil {
			c.broke(Rows, "saga %s has a row of %s, which has not begun", t.id, r.Step)
		}
	}
	for _, s := range t.begun {
		if s.kind != "tx" {
			continue
		}
		want := map[string]int{Do: 0, Undo: 0}
		if s.done {
			want[Do] = 1
		}
		if s.undone != 0 && !s.nothing {
			want[Undo] = 1
		}
		for what, n := range want {
			if got := count[[2]string{s.name, what}]; got != n {
				c.broke(Rows, "saga %s has %d rows of %s %s, and %d by its record", t.id, got, what, s.name, n)
			}
		}
	}
}

// called holds the calls of functions against the records. Each call of a step has its own beginning, by its process.
// A process knows of the records of others as soon as it is not stopped, but not for longer than its lease lasts.
func (c *checker) called(t *tale) {
	used := map[*Message]bool{}
	for _, call := range t.calls {
		s := t.steps[call.Step]
		late := func(at, since int64) bool {
			return call.At > at+leaseTime+c.stopped(call.Process, since, call.At)
		}
		switch {
		case call.Call != Do && call.Call != Undo:
		case call.Note == "tx": // its row tells
			if call.Answer.Answer == OK && late(t.end.At, t.end.At-c.patience) {
				c.broke(Fenced, "saga %s: %s had %s called %v after the end", t.id, call.Process, call.Step, time.Duration(call.At-t.end.At)*time.Microsecond)
			}
		case s == nil:
			c.broke(Fenced, "saga %s: %s had %s called, which has not begun", t.id, call.Process, call.Step)
		case call.Call == Undo:
			c.undoCalled(t, s, call, late)
		default:
			c.stepCalled(t, s, call, used, late)
		}
	}
}

func (c *checker) stepCalled(t *tale, s *step, call *Call, used map[*Message]bool, late func(at, since int64) bool) {
	var own *Message
	for _, m := range s.begun {
		if by := c.writer[m.ID]; m.At <= call.At && !used[m] && (by == call.Process || by == "") {
			own = m
		}
	}
	if own == nil {
		c.broke(Recorded, "saga %s: %s had %s called at %s, and has not begun it then", t.id, call.Process, s.name, clock(call.At))
		return
	}
	used[own] = true
	for _, m := range t.messages[own.Position+1:] {
		by := c.writer[m.ID]
		if !fromOutside(m.Type) && by != "" && by != call.Process && late(m.At, own.At) {
			c.broke(Fenced, "saga %s: %s had %s called %v after %s went on with %s", t.id, call.Process, s.name, time.Duration(call.At-m.At)*time.Microsecond, by, m.Type)
			return
		}
	}
}

func (c *checker) undoCalled(t *tale, s *step, call *Call, late func(at, since int64) bool) {
	switch {
	case t.compensating == nil || t.compensating.At > call.At:
		c.broke(Reversed, "saga %s: %s had %s undone, and the saga is not undone then", t.id, call.Process, s.name)
	case s.undone != 0 && late(s.undone, t.compensating.At):
		c.broke(Recorded, "saga %s: %s had %s undone %v after that was recorded", t.id, call.Process, s.name, time.Duration(call.At-s.undone)*time.Microsecond)
	}
	for _, later := range t.begun[s.order+1:] {
		if later.undone == 0 || later.undone > call.At {
			c.broke(Reversed, "saga %s: %s had %s undone before %s, which began later", t.id, call.Process, s.name, later.name)
		}
	}
}
