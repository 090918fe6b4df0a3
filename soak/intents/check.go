package intents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/soak/crew"
)

// Rule is an invariant of intents.
type Rule = crew.Rule

// The invariants.
const (
	Tokens    Rule = "17a tokens rise, attempts count up"
	Steps     Rule = "17b a step follows the one before"
	Early     Rule = "17c no grant before the lease is over"
	Answers   Rule = "17d an answer is of a moment of its call"
	Confirmed Rule = "17e a confirmation stands"
	LostTrue  Rule = "17f a lost lease is lost"
	Fence     Rule = "18 tokens never fall at the resource"
	Rows      Rule = "18b rows are those of the confirmations"
	Heeded    Rule = "18c no work is begun after its lease"
	Line      Rule = "18d the line keeps its order"
	Several   Rule = "18e several keys are had together"
	Above     Rule = "L6 tokens rise past the lost ones"
	Healed    Rule = "22 nothing is held in the end"
)

// Rules are all of them.
func Rules() []Rule {
	return []Rule{Tokens, Steps, Early, Answers, Confirmed, LostTrue, Fence, Rows, Heeded, Line, Several, Above, Healed}
}

// A Message is one of an intent's stream.
type Message struct {
	Stream   string          `json:"stream"`
	Position int64           `json:"position"`
	Type     string          `json:"type"`
	At       int64           `json:"at"`
	Data     json.RawMessage `json:"data"`
}

// A Row was written in the transaction of a confirmation.
type Row struct {
	Stream string `json:"stream"`
	Token  int64  `json:"token"`
	Result string `json:"result"`
}

// Inputs are all that a run leaves.
type Inputs struct {
	Messages []*Message // the messages of each stream in their order
	Calls    []*Call
	Writes   []*Write // in the resource's order
	Rows     []Row
	Moved    bool // the server's clock was moved: no rule compares it with another
}

// A span is one of time.
type span struct{ from, to int64 }

func (s span) meets(from, to int64) bool { return s.from <= to && from <= s.to }

// The files of a run, beside the histories.
const (
	messagesFile = "messages.log"
	rowsFile     = "rows.log"
)

// Read reads the folder of a run.
func Read(dir string, moved bool) (*Inputs, error) {
	in := &Inputs{Moved: moved}
	var err error
	if in.Calls, err = readCalls(dir); err != nil {
		return nil, err
	}
	if err := crew.EachLine(filepath.Join(dir, messagesFile), func(m *Message) { in.Messages = append(in.Messages, m) }); err != nil {
		return nil, err
	}
	if err := crew.EachLine(filepath.Join(dir, resourceFile), func(w *Write) { in.Writes = append(in.Writes, w) }); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	err = crew.EachLine(filepath.Join(dir, rowsFile), func(r *Row) { in.Rows = append(in.Rows, *r) })
	return in, err
}

// A Verdict is the outcome of a check.
type Verdict struct {
	crew.Findings
	Counts Counts
}

// String tells what was found.
func (v *Verdict) String() string { return v.Tell(Rules()) }

// findings is how often a rule was broken.
func (v *Verdict) findings() int {
	n := 0
	for _, times := range v.Broken {
		n += times
	}
	return n
}

func newChecker(in *Inputs) *checker {
	return &checker{
		Inputs: in, Verdict: &Verdict{}, streams: map[string]*stream{}, others: map[string]bool{},
		attempts: map[confirmation][]*Call{}, requests: map[string][]*Call{}, leases: map[string][]*grant{}, told: map[string]int64{},
		forced: map[string][]*Call{}, strayed: map[string]bool{}, stops: map[string][]span{}, undone: map[Key]bool{},
	}
}

// Check folds the streams, and holds each call against them.
func Check(in *Inputs) *Verdict {
	c := newChecker(in)
	for _, call := range in.Calls {
		switch {
		case call.Call == Reserve:
			c.others[call.Session] = call.Other
		case call.Call == Stop:
			c.stops[call.Target] = append(c.stops[call.Target], span{call.At, call.End})
		case call.Call == Failover && call.Target == Async:
			c.losses = append(c.losses, span{call.At, call.End})
		}
	}
	c.findStrays()
	for _, m := range in.Messages {
		if !c.strayed[m.Stream] {
			c.add(m)
		}
	}
	for _, call := range in.Calls {
		c.collect(call)
	}
	for _, call := range in.Calls {
		if !c.strays(call) {
			c.hold(call)
		}
	}
	c.confirmations()
	c.together()
	c.resource()
	c.above()
	c.rows()
	return c.Verdict
}

// strays reports whether a call was about such a stream.
func (c *checker) strays(call *Call) bool {
	return slices.ContainsFunc(call.keys(), func(k Key) bool { return c.strayed[k.Stream] })
}

// findStrays finds the streams that a session has written to which had met what was undone, at a version that was
// there again: a lossy failover gives versions out twice, and the version is all that the store compares. They
// are counted, and nothing else is said of them.
func (c *checker) findStrays() {
	if len(c.losses) == 0 {
		return
	}
	began := map[string]int64{}
	for _, call := range c.Calls {
		if at, ok := began[call.Session]; call.Call == Reserve && (!ok || call.At < at) {
			began[call.Session] = call.At
		}
	}
	fold := newChecker(&Inputs{})
	for _, m := range c.Messages {
		before := fold.findings()
		line := []string(nil)
		if s := fold.streams[m.Stream]; s != nil && s.last() != nil {
			line = s.last().Line
		}
		fold.add(m)
		if fold.findings() == before || c.strayed[m.Stream] {
			continue
		}
		var b body
		if json.Unmarshal(m.Data, &b) != nil {
			continue
		}
		writers := []string{b.Session}
		if m.Type == intent.TypeWaiting {
			writers = append(line, b.Line...)
		}
		if slices.ContainsFunc(c.losses, func(l span) bool {
			return l.to < m.At && slices.ContainsFunc(writers, func(w string) bool { return began[w] <= l.to })
		}) {
			c.strayed[m.Stream] = true
			c.Counts.Strayed++
		}
	}
}

// add folds a message into its stream.
func (c *checker) add(m *Message) {
	s := c.streams[m.Stream]
	if s == nil {
		s = &stream{name: m.Stream, own: map[string]int{}}
		c.streams[m.Stream] = s
	}
	c.fold(s, m)
}

type confirmation struct {
	stream string
	token  int64
	result string
}

type checker struct {
	*Inputs
	*Verdict
	streams  map[string]*stream
	others   map[string]bool          // by session: the content of its request
	attempts map[confirmation][]*Call // to confirm
	requests map[string][]*Call       // by session
	leases   map[string][]*grant      // by process
	told     map[string]int64         // by stream: when a request was first told that it is done
	forced   map[string][]*Call       // by stream: releases by operators
	stops    map[string][]span        // by process
	losses   []span                   // in which writes may be undone
	strayed  map[string]bool          // streams that are left out
	undone   map[Key]bool             // tokens that were
}

// lossy reports whether a call's writes, or its answer, may have been undone.
func (c *checker) lossy(from, to int64) bool {
	return slices.ContainsFunc(c.losses, func(s span) bool { return s.meets(from, to) })
}

// lost reports whether a token without a grant may be of a grant that a failover undid, and if so keeps
// it. A token is about the time of its grant.
func (c *checker) lost(k Key) bool {
	if !c.lossy(k.Token, k.Token) {
		return false
	}
	c.undone[k] = true
	return true
}

// broken counts what a call breaks, unless a failover explains it.
func (c *checker) broken(call *Call, r Rule, format string, args ...any) {
	if c.lossy(call.At, call.End) {
		c.Counts.Undone++
		return
	}
	c.Broke(r, "%s %s of %s by %s: %s", call.Call, call.Stream, call.Session, call.Process, fmt.Sprintf(format, args...))
}

// paused reports whether a process was stopped at some time between two moments, or had been just before.
func (c *checker) paused(process string, from, to int64) bool {
	const waking = 100 * time.Millisecond
	return slices.ContainsFunc(c.stops[process], func(s span) bool { return s.meets(from-waking.Microseconds(), to) })
}

// A stream is the fold of an intent's messages.
type stream struct {
	name   string
	length int64
	at     int64          // of the last message
	own    map[string]int // by session: its messages, but of the line and of operators
	grants []*grant
	done   *grant
	result string
}

// A grant is one lease, from the message that granted it to the message that ended it.
type grant struct {
	intent.Grant
	token    int64
	signs    []int64 // when it was granted and extended
	released int64   // when it was, 0 if it was not
	since    int64   // of the last of these
	ended    int64   // when it was confirmed, or another came after it; crew.Never if neither
	why      string  // "confirmed", "taken", "released" and then taken, or "" if it is the last
	by       string  // the operator, if one released it
}

func (g *grant) free() int64 {
	if g.released > 0 {
		return g.released
	}
	return g.since + time.Duration(g.TTL*int64(time.Millisecond)).Microseconds()
}

func (s *stream) last() *grant {
	if len(s.grants) == 0 {
		return nil
	}
	return s.grants[len(s.grants)-1]
}

func (s *stream) grant(token int64) *grant {
	if s == nil {
		return nil
	}
	for _, g := range s.grants {
		if g.token == token {
			return g
		}
	}
	return nil
}

// A body has the fields of all types of messages.
type body struct {
	intent.Grant
	After    int64  `json:"after"`
	Token    int64  `json:"token"`
	At       int64  `json:"at"`
	Released bool   `json:"released"`
	By       string `json:"by"`
	Result   string `json:"result"`
}

// fold adds a message to its stream.
func (c *checker) fold(s *stream, m *Message) {
	at := fmt.Sprintf("%s@%d %s", m.Stream, m.Position, m.Type)
	var b body
	if err := json.Unmarshal(m.Data, &b); err != nil {
		c.Broke(Steps, "%s: %v", at, err)
		return
	}
	if m.Position != s.length {
		c.Broke(Steps, "%s: it follows %d messages", at, s.length)
	}
	s.length++
	if !c.Moved && m.At < s.at {
		c.Broke(Steps, "%s: it is %v before the message that it follows", at, micros(s.at-m.At))
	}
	s.at = m.At
	if m.Type != intent.TypeWaiting && b.By == "" {
		s.own[b.Session]++
	}
	if s.done != nil {
		c.Broke(Steps, "%s: it follows a confirmation", at)
		if m.Type == intent.TypeReserved {
			c.Broke(Confirmed, "%s: a key that is done is reserved again", at)
		}
	}
	g := s.last()
	switch {
	case m.Type == intent.TypeReserved:
		c.take(s, g, m, &b, at)
		return
	case g == nil:
		c.Broke(Steps, "%s: there is no lease", at)
		return
	case b.Token != g.token:
		c.Broke(Steps, "%s: token %d is not that of the lease, %d", at, b.Token, g.token)
	case b.Session != g.Session || b.Attempt != g.Attempt || b.TTL != g.TTL || b.Content != g.Content:
		c.Broke(Steps, "%s: the lease has changed", at)
	}
	if m.Type != intent.TypeWaiting && g.released > 0 {
		c.Broke(Steps, "%s: the lease was released", at)
	}
	switch m.Type {
	case intent.TypeExtended:
		g.signs, g.since = append(g.signs, m.At), m.At
	case intent.TypeReleased:
		g.released, g.since, g.by = m.At, m.At, b.By
	case intent.TypeConfirmed:
		g.ended, g.why = m.At, "confirmed"
		s.done, s.result = g, b.Result
	case intent.TypeWaiting:
		isSetBack := c.Moved && b.At < g.since // the clock was ahead
		if b.At != g.since && !isSetBack || b.Released != (g.released > 0) {
			c.Broke(Steps, "%s: a line does not change the lease", at)
		}
		if isSetBack {
			g.since = b.At
		}
		if !oneMore(g.Line, b.Line) && !fewer(g.Line, b.Line) && (!isSetBack || !slices.Equal(g.Line, b.Line)) {
			c.Broke(Line, "%s: the line %v becomes %v", at, g.Line, b.Line)
		}
		g.Line = b.Line
		return
	default:
		c.Broke(Steps, "%s: there is no such type", at)
	}
	if m.Type != intent.TypeConfirmed && !slices.Equal(b.Line, g.Line) {
		c.Broke(Line, "%s: the line %v becomes %v", at, g.Line, b.Line)
	}
}

// take adds a grant to a stream that had the lease g last, or none.
func (c *checker) take(s *stream, g *grant, m *Message, b *body, at string) {
	next := &grant{Grant: b.Grant, token: max(b.After+1, m.At), signs: []int64{m.At}, since: m.At, ended: crew.Never}
	s.grants = append(s.grants, next)
	process, _, _ := strings.Cut(b.Session, "/")
	c.leases[process] = append(c.leases[process], next)
	before := grant{}
	if g != nil {
		before = *g
		if g.why != "confirmed" {
			g.ended, g.why = m.At, "taken"
		}
	}
	if next.token <= before.token || b.After != before.token {
		c.Broke(Tokens, "%s: token %d, after %d, follows %d", at, next.token, b.After, before.token)
	}
	if b.Attempt != before.Attempt+1 {
		c.Broke(Tokens, "%s: attempt %d follows %d", at, b.Attempt, before.Attempt)
	}
	if g == nil {
		if len(b.Line) > 0 {
			c.Broke(Line, "%s: it begins with the line %v", at, b.Line)
		}
		return
	}
	if g.released == 0 {
		c.Counts.Takeovers++
		if b.Content != g.Content {
			c.Broke(Steps, "%s: the content is another, and nothing was released", at)
		}
		if !c.Moved && m.At < g.free() {
			c.Broke(Early, "%s: %v before the lease of %s was over", at, micros(g.free()-m.At), g.Session)
		}
	}
	place, rest := len(before.Line), []string(nil)
	if i := slices.Index(before.Line, b.Session); i >= 0 {
		place, rest = i, before.Line[i+1:]
		c.Counts.Turns++
	}
	if !slices.Equal(b.Line, rest) {
		c.Broke(Line, "%s: after the line %v comes %v", at, before.Line, b.Line)
	}
	if free := g.free() + int64(place)*turn.Microseconds(); !c.Moved && place > 0 && m.At < free {
		c.Broke(Line, "%s: %v before its turn, after %d in the line", at, micros(free-m.At), place)
	}
}

func oneMore(before, after []string) bool {
	return len(after) == len(before)+1 && slices.Equal(after[:len(before)], before)
}

// fewer reports whether sessions of one process have left a line, and the others keep their order.
// Sessions of a process that leave together leave by one message.
func fewer(before, after []string) bool {
	process := ""
	left := after
	for _, session := range before {
		if len(left) > 0 && left[0] == session {
			left = left[1:]
			continue
		}
		of, _, _ := strings.Cut(session, "/")
		if process != "" && of != process {
			return false
		}
		process = of
	}
	return len(left) == 0 && len(after) < len(before)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// collect indexes a call, before any is held against another.
func (c *checker) collect(call *Call) {
	switch call.Call {
	case Confirm, Transact:
		for _, k := range call.keys() {
			made := confirmation{k.Stream, k.Token, call.Result}
			c.attempts[made] = append(c.attempts[made], call)
		}
	case Force:
		c.forced[call.Stream] = append(c.forced[call.Stream], call)
	case Reserve:
		c.requests[call.Session] = append(c.requests[call.Session], call)
		on := call.on()
		if end, ok := c.told[on]; call.Answer.Answer == Done && (!ok || call.End < end) && !c.lossy(call.At, call.End) {
			c.told[on] = call.End
		}
	}
}

// on is the stream that an answer is about.
func (call *Call) on() string {
	if call.Answer.On != "" {
		return call.Answer.On
	}
	return call.Stream
}

// hold holds a call against the streams that it was about.
func (c *checker) hold(call *Call) {
	c.Counts.count(call)
	switch call.Call {
	case Reserve:
		c.request(call)
	case Extend, Resume, Release, Confirm, Transact:
		c.step(call)
	case Await:
		c.await(call)
	case Force:
		c.force(call)
	case Work:
		c.work(call)
	case Kill:
		c.kill(call)
	case Heal:
		if call.End-call.At > healTime.Microseconds() || call.Answer.Answer != OK {
			c.Broke(Healed, "after %v: %q", micros(call.End-call.At), call.Answer.Note)
		}
	}
}

// within reports whether a moment of the server is within a call.
func (c *checker) within(at int64, call *Call) bool {
	return c.Moved || call.At <= at && at <= call.End
}

// live reports whether a grant was the last one at some moment of a call.
func (c *checker) live(g *grant, call *Call) bool {
	return c.Moved || g.signs[0] <= call.End && g.ended >= call.At
}

func (c *checker) request(call *Call) {
	a := call.Answer
	s := c.streams[call.on()]
	switch a.Answer {
	case Reserved:
		if len(a.With) > 0 {
			c.Counts.Several++
		}
		for _, k := range call.granted() {
			c.granted(call, k)
		}
		if slices.ContainsFunc(c.requests[call.Session], func(one *Call) bool { return one.Answer.Token == a.Token && one.End < call.At }) {
			c.Counts.Reentrant++
		}
	case Held, Reused:
		g := s.grant(a.ByToken)
		switch {
		case g == nil && c.lost(Key{call.on(), a.ByToken}):
			c.Counts.Undone++
		case g == nil || g.Session != a.By || !c.live(g, call) && (a.Answer == Held || g.why != "confirmed"):
			c.broken(call, Answers, "%s is said to be %s by %s with token %d", call.on(), a.Answer, a.By, a.ByToken)
		case a.Answer == Held && g.released == 0 && c.others[g.Session] != call.Other:
			c.broken(call, Answers, "the holder %s has other content", a.By)
		case a.Answer == Reused && c.others[g.Session] == call.Other:
			c.broken(call, Answers, "the holder %s has the same content", a.By)
		}
	case Done:
		if c.done(s, call) && c.others[s.done.Session] != call.Other {
			c.broken(call, Answers, "what is done has other content")
		}
	}
	if call.Process == healer && a.Answer != Reserved && a.Answer != Done && a.Answer != Reused {
		c.Broke(Healed, "%s: %s %s", call.Stream, a.Answer, a.Note)
	}
}

// granted looks at one key of a request that was granted.
func (c *checker) granted(call *Call, k Key) {
	g := c.streams[k.Stream].grant(k.Token)
	if g == nil && c.lost(k) {
		c.Counts.Undone++
		return
	}
	if g == nil || g.Session != call.Session {
		c.broken(call, Answers, "no grant of %s has token %d", k.Stream, k.Token)
		return
	}
	if !slices.ContainsFunc(g.signs, func(at int64) bool { return c.within(at, call) }) {
		c.broken(call, Answers, "%s was neither granted nor extended meanwhile", k.Stream)
	}
	if end, ok := c.told[k.Stream]; ok && end < call.At {
		c.Broke(Confirmed, "%s of %s: %s was told done before", call.Session, call.Process, k.Stream)
	}
}

// done looks at an answer that says so, and reports whether it is.
func (c *checker) done(s *stream, call *Call) bool {
	if s == nil || s.done == nil || s.done.ended > call.End && !c.Moved {
		c.broken(call, Answers, "%s is not done", call.on())
		return false
	}
	if a := call.Answer; a.Result != s.result || a.ByToken != s.done.token {
		c.broken(call, Answers, "the result %q of token %d is %q of %d", a.Result, a.ByToken, s.result, s.done.token)
	}
	return true
}

// await looks at the answer to a call that waited for an end.
func (c *checker) await(call *Call) {
	s := c.streams[call.Stream]
	switch call.Answer.Answer {
	case Done:
		c.Counts.Awaits++
		c.done(s, call)
	case Free:
		c.Counts.Awaits++
		if s == nil || !c.Moved && !c.free(s, call) {
			c.broken(call, Answers, "it was not free meanwhile")
		}
	case Held:
		c.broken(call, Answers, "it ended with a lease")
	}
}

// free reports whether nothing was held at some moment of a call that reads. A read takes no lock: a message
// has the time of its lock, and is there for it when its transaction has committed.
func (c *checker) free(s *stream, call *Call) bool {
	for i, g := range s.grants {
		ended := g.ended
		switch g.why {
		case "confirmed": // after its time, which nothing refuses if no other had taken it
			ended += commit.Microseconds()
		case "taken":
			for _, request := range c.requests[s.grants[i+1].Session] {
				if request.At <= ended && ended <= request.End {
					ended = request.End
				}
			}
		}
		if g.freeIn(call, ended) {
			return true
		}
	}
	return false
}

// commit is how long a message may be on its way from its time, which it has under the lock, to where a
// read meets it.
const commit = time.Second / 2

// freeIn reports whether nothing was held at some moment of a call, since g was over, and before it ended.
func (g *grant) freeIn(call *Call, ended int64) bool {
	lasts := (time.Duration(g.TTL) * time.Millisecond).Microseconds()
	signs := g.signs
	if g.released > 0 {
		signs = append(slices.Clone(signs), g.released)
	}
	for i, sign := range signs[1:] { // it was extended, or released, and that was not there yet
		if over, there := signs[i]+lasts, sign+commit.Microseconds(); over <= there && (span{over, there}).meets(call.At, call.End) {
			return true
		}
	}
	return g.free() <= ended && span{g.free(), ended}.meets(call.At, call.End)
}

// force looks at a release by an operator.
func (c *checker) force(call *Call) {
	s := c.streams[call.Stream]
	switch call.Answer.Answer {
	case OK:
		c.Counts.Forced++
		if s == nil || !slices.ContainsFunc(s.grants, func(g *grant) bool {
			return g.released > 0 && (c.Moved || g.released <= call.End && g.ended+commit.Microseconds() >= call.At)
		}) {
			c.broken(call, Answers, "it was not released")
		}
	case Done:
		if s == nil || s.done == nil || s.done.ended > call.End && !c.Moved {
			c.broken(call, Answers, "it is not done")
		}
	}
}

// step looks at a step on a lease, of all of its keys.
func (c *checker) step(call *Call) {
	isLost, confirmed := false, 0
	for _, k := range call.keys() {
		s := c.streams[k.Stream]
		g := s.grant(k.Token)
		switch {
		case g == nil && c.lost(k):
			c.Counts.Undone++
			return
		case g == nil:
			c.broken(call, Answers, "no grant of %s has token %d", k.Stream, k.Token)
			return
		case s.done == g && s.result == call.Result:
			confirmed++
		}
		if call.Answer.Answer == OK {
			c.did(call, s, g)
		}
		over := g.ended
		if g.released > 0 {
			over = min(over, g.released)
		}
		// A holder that has seen an undone message is told so.
		isLost = isLost || over != crew.Never && (over <= call.End || c.Moved) || c.lossy(g.signs[0], call.End)
	}
	if call.Answer.Answer != Lost {
		return
	}
	if !isLost {
		c.broken(call, LostTrue, "nothing came after token %d", call.Token)
	}
	if confirmed > 0 && (call.Call == Confirm || call.Call == Transact) {
		c.broken(call, LostTrue, "%q is confirmed with token %d", call.Result, call.Token)
	}
	by := Key{call.on(), call.Answer.ByToken}
	if by.Token != 0 && c.streams[by.Stream].grant(by.Token) == nil && !c.lost(by) {
		c.broken(call, LostTrue, "token %d, that came after it, is nowhere", by.Token)
	}
}

// did looks at a step that was taken.
func (c *checker) did(call *Call, s *stream, g *grant) {
	switch call.Call {
	case Confirm, Transact:
		if s.done != g || s.result != call.Result {
			c.broken(call, Confirmed, "%q with token %d of %s is not there", call.Result, g.token, s.name)
		}
	case Release:
		if g.released == 0 {
			c.broken(call, Answers, "%s is not released", s.name)
		}
	default:
		if !slices.ContainsFunc(g.signs, func(at int64) bool { return c.within(at, call) }) {
			c.broken(call, Answers, "%s was not extended meanwhile", s.name)
		}
	}
}

// work looks at work that looked at its lease, or at its context, and began. Its holder must have known of a
// sign of life that was not over by then, less the margin. Between the look and the beginning it may be
// stopped, and its context ends when it wakes: so work of a process that was stopped may begin late.
func (c *checker) work(call *Call) {
	if call.Answer.Answer != OK {
		return
	}
	c.Counts.Work++
	g := c.streams[call.Stream].grant(call.Token)
	lost := g == nil && c.lost(Key{call.Stream, call.Token})
	if lost || c.Moved || c.lossy(call.At-2*ttl.Microseconds(), call.End) {
		return
	}
	if g == nil {
		c.broken(call, Answers, "no grant has token %d", call.Token)
		return
	}
	last := int64(0)
	for _, sign := range g.signs {
		if sign <= call.End {
			last = max(last, sign)
		}
	}
	const drift = 2 * time.Millisecond // of two clocks within a lease
	over := last + ttl.Microseconds()
	if known := over - (margin - drift).Microseconds(); call.Answer.Note != ofContext && call.At > known {
		c.broken(call, Heeded, "%v after its lease was to be left", micros(call.At-known))
	}
	switch {
	case call.End <= over:
	case c.paused(call.Process, last, call.End):
		c.Counts.Paused++
	default:
		c.broken(call, Heeded, "%v after its lease, and nothing was stopped", micros(call.End-over))
	}
}

// kill counts a kill of the server, or of a process that had a lease then.
func (c *checker) kill(call *Call) {
	if call.Target == Server || call.Target == Bouncer {
		return
	}
	if slices.ContainsFunc(c.leases[call.Target], func(g *grant) bool {
		return g.signs[0] < call.At && call.At < g.ended && call.At < g.free()
	}) {
		c.Counts.Kills++
	}
}

// confirmations looks for the calls that asked for each grant, released it by force, and confirmed it.
func (c *checker) confirmations() {
	could := func(call *Call, yes string) bool {
		a := call.Answer.Answer
		return a == yes || a == Unknown || a == ""
	}
	for _, s := range c.streams {
		for _, g := range s.grants {
			asked := func(call *Call) bool {
				return could(call, Reserved) && slices.ContainsFunc(call.keys(), func(k Key) bool { return k.Stream == s.name })
			}
			if !slices.ContainsFunc(c.requests[g.Session], asked) {
				c.Broke(Answers, "%s: token %d was granted to %s, and no call may have done that", s.name, g.token, g.Session)
			}
			if g.by != "" && !slices.ContainsFunc(c.forced[s.name], func(call *Call) bool { return call.Process == g.by && could(call, OK) }) {
				c.Broke(Answers, "%s: %s released token %d, and no call may have done that", s.name, g.by, g.token)
			}
		}
		if s.done == nil {
			continue
		}
		made := c.attempts[confirmation{s.name, s.done.token, s.result}]
		if !slices.ContainsFunc(made, func(call *Call) bool { return could(call, OK) }) {
			c.Broke(Confirmed, "%s: %q with token %d is confirmed, and no call may have done that", s.name, s.result, s.done.token)
		}
	}
}

// resource folds the log of the resource.
func (c *checker) resource() {
	highest := map[string]int64{}
	for _, w := range c.Writes {
		if c.strayed[w.Key] {
			continue
		}
		before := highest[w.Key]
		g := c.streams[w.Key].grant(w.Token)
		if g == nil && !c.lost(Key{w.Key, w.Token}) {
			c.Broke(Fence, "%s: token %d of %s is of no grant", w.Key, w.Token, w.From)
		}
		switch {
		case w.Accepted && w.Token < before:
			c.Broke(Fence, "%s: token %d of %s is accepted after %d", w.Key, w.Token, w.From, before)
		case !w.Accepted && w.Token >= before:
			c.Broke(Fence, "%s: token %d of %s is refused after %d", w.Key, w.Token, w.From, before)
		case w.Accepted && w.Token > before:
			highest[w.Key] = w.Token
		case !w.Accepted:
			c.Counts.LateWrites++
		}
		if w.Accepted && g != nil && !c.Moved && g.signs[0] > w.At {
			c.Broke(Fence, "%s: token %d of %s is there before it was granted", w.Key, w.Token, w.From)
		}
	}
}

// together looks at requests of several keys: each of their steps was taken on all or on none.
func (c *checker) together() {
	seen := map[string]bool{}
	for session, calls := range c.requests {
		for _, call := range calls {
			if len(call.With) == 0 || seen[session] || c.strays(call) {
				continue
			}
			seen[session] = true
			first := c.own(call.Stream, session)
			for _, k := range call.With {
				if n := c.own(k.Stream, session); n != first {
					c.Broke(Several, "%s has %d messages in %s, and %d in %s", session, first, call.Stream, n, k.Stream)
				}
			}
		}
	}
}

func (c *checker) own(name, session string) int {
	if s := c.streams[name]; s != nil {
		return s.own[session]
	}
	return 0
}

// above compares the tokens that a failover has undone with the tokens that were asked for and granted
// after it.
func (c *checker) above() {
	undone := map[string][]int64{}
	for k := range c.undone {
		undone[k.Stream] = append(undone[k.Stream], k.Token)
	}
	for _, call := range c.Calls {
		if call.Call != Reserve || call.Answer.Answer != Reserved {
			continue
		}
		for _, k := range call.granted() {
			for _, lost := range undone[k.Stream] {
				if !slices.ContainsFunc(c.losses, func(l span) bool { return l.meets(lost, lost) && l.to < call.At }) {
					continue
				}
				c.Counts.Above++
				if k.Token <= lost {
					c.Broke(Above, "%s: token %d is granted after %d, which is lost", k.Stream, k.Token, lost)
				}
			}
		}
	}
}

// granted returns the keys of a request with their tokens.
func (call *Call) granted() []Key {
	keys := call.keys()
	keys[0].Token = call.Answer.Token
	for i, k := range call.Answer.With {
		keys[i+1].Token = k.Token
	}
	return keys
}

// rows compares the rows with the confirmations that were made in transactions.
func (c *checker) rows() {
	there := map[confirmation]int{}
	for _, r := range c.Rows {
		if c.strayed[r.Stream] {
			continue
		}
		k := confirmation{r.Stream, r.Token, r.Result}
		there[k]++
		s := c.streams[r.Stream]
		if s == nil || s.done == nil || s.done.token != r.Token || s.result != r.Result {
			c.Broke(Rows, "%s: a row has %q of token %d, which is not confirmed", r.Stream, r.Result, r.Token)
		}
		if there[k] > 1 {
			c.Broke(Rows, "%s: %q of token %d has %d rows", r.Stream, r.Result, r.Token, there[k])
		}
	}
	for _, s := range c.streams {
		if s.done == nil {
			continue
		}
		k := confirmation{s.name, s.done.token, s.result}
		inTx := slices.ContainsFunc(c.attempts[k], func(call *Call) bool { return call.Call == Transact && call.Stream == s.name })
		if inTx && there[k] == 0 {
			c.Broke(Rows, "%s: %q of token %d was confirmed in a transaction, and has no row", s.name, s.result, s.done.token)
		}
	}
}
