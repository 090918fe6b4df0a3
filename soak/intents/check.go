package intents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/reservation/intent"
)

// A Rule is an invariant of intents.
type Rule string

// String returns the rule.
func (r Rule) String() string { return string(r) }

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
	Healed    Rule = "22 nothing is held in the end"
)

// Rules are all of them.
func Rules() []Rule {
	return []Rule{Tokens, Steps, Early, Answers, Confirmed, LostTrue, Fence, Rows, Heeded, Line, Healed}
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
	Messages []*Message // those of a stream in their order
	Calls    []*Call
	Writes   []*Write // in the resource's order
	Rows     []Row
	Moved    bool // the server's clock was moved: no rule compares it with another
}

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
	if err := eachLine(filepath.Join(dir, messagesFile), func(m *Message) { in.Messages = append(in.Messages, m) }); err != nil {
		return nil, err
	}
	if err := eachLine(filepath.Join(dir, resourceFile), func(w *Write) { in.Writes = append(in.Writes, w) }); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	err = eachLine(filepath.Join(dir, rowsFile), func(r Row) { in.Rows = append(in.Rows, r) })
	return in, err
}

// A Verdict is the outcome of a check.
type Verdict struct {
	Broken   map[Rule]int
	Findings []string // the first of each rule
	Counts   Counts
}

// Passed reports whether no rule was broken.
func (v *Verdict) Passed() bool { return len(v.Broken) == 0 }

const findingsEach = 5

func (v *Verdict) broke(r Rule, format string, args ...any) {
	v.Broken[r]++
	if v.Broken[r] <= findingsEach {
		v.Findings = append(v.Findings, fmt.Sprintf("%s: %s", r, fmt.Sprintf(format, args...)))
	}
}

// Check folds the streams, and holds each call against them.
func Check(in *Inputs) *Verdict {
	c := &checker{
		Inputs: in, Verdict: &Verdict{Broken: map[Rule]int{}}, streams: map[string]*stream{}, others: map[string]bool{},
		attempts: map[confirmation][]*Call{}, requests: map[string][]*Call{}, leases: map[string][]*grant{}, told: map[string]int64{},
	}
	for _, call := range in.Calls {
		if call.Call == Reserve {
			c.others[call.Session] = call.Other
		}
	}
	for _, m := range in.Messages {
		s := c.streams[m.Stream]
		if s == nil {
			s = &stream{name: m.Stream}
			c.streams[m.Stream] = s
		}
		c.fold(s, m)
	}
	for _, call := range in.Calls {
		c.collect(call)
	}
	for _, call := range in.Calls {
		c.hold(call)
	}
	c.confirmations()
	c.resource()
	c.rows()
	return c.Verdict
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
}

// A stream is the fold of an intent's messages.
type stream struct {
	name   string
	length int64
	grants []*grant
	done   *grant
	result string
}

// A grant is one lease, from the message that granted it to the one that ended it.
type grant struct {
	intent.Grant
	token    int64
	signs    []int64 // when it was granted and extended
	released int64   // when it was, 0 if it was not
	since    int64   // of the last of these
	ended    int64   // when it was confirmed, or another came after it; Never if neither
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
		c.broke(Steps, "%s: %v", at, err)
		return
	}
	if m.Position != s.length {
		c.broke(Steps, "%s: it follows %d messages", at, s.length)
	}
	s.length++
	if s.done != nil {
		c.broke(Steps, "%s: it follows a confirmation", at)
		if m.Type == intent.TypeReserved {
			c.broke(Confirmed, "%s: a key that is done is reserved again", at)
		}
	}
	g := s.last()
	switch {
	case m.Type == intent.TypeReserved:
		c.take(s, g, m, &b, at)
		return
	case g == nil:
		c.broke(Steps, "%s: there is no lease", at)
		return
	case b.Token != g.token:
		c.broke(Steps, "%s: token %d is not that of the lease, %d", at, b.Token, g.token)
	case b.Session != g.Session || b.Attempt != g.Attempt || b.TTL != g.TTL || b.Content != g.Content:
		c.broke(Steps, "%s: the lease has changed", at)
	}
	if m.Type != intent.TypeWaiting && g.released > 0 {
		c.broke(Steps, "%s: the lease was released", at)
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
		if b.At != g.since || b.Released != (g.released > 0) {
			c.broke(Steps, "%s: a line does not change the lease", at)
		}
		if !oneMore(g.Line, b.Line) && !oneLess(g.Line, b.Line) {
			c.broke(Line, "%s: the line %v becomes %v", at, g.Line, b.Line)
		}
		g.Line = b.Line
		return
	default:
		c.broke(Steps, "%s: there is no such type", at)
	}
	if m.Type != intent.TypeConfirmed && !slices.Equal(b.Line, g.Line) {
		c.broke(Line, "%s: the line %v becomes %v", at, g.Line, b.Line)
	}
}

// take adds a grant to a stream that had the lease g last, or none.
func (c *checker) take(s *stream, g *grant, m *Message, b *body, at string) {
	next := &grant{Grant: b.Grant, token: max(b.After+1, m.At), signs: []int64{m.At}, since: m.At, ended: Never}
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
		c.broke(Tokens, "%s: token %d, after %d, follows %d", at, next.token, b.After, before.token)
	}
	if b.Attempt != before.Attempt+1 {
		c.broke(Tokens, "%s: attempt %d follows %d", at, b.Attempt, before.Attempt)
	}
	if g == nil {
		if len(b.Line) > 0 {
			c.broke(Line, "%s: it begins with the line %v", at, b.Line)
		}
		return
	}
	if g.released == 0 {
		c.Counts.Takeovers++
		if b.Content != g.Content {
			c.broke(Steps, "%s: the content is another, and nothing was released", at)
		}
		if !c.Moved && m.At < g.free() {
			c.broke(Early, "%s: %v before the lease of %s was over", at, micros(g.free()-m.At), g.Session)
		}
	}
	place, rest := len(before.Line), []string(nil)
	if i := slices.Index(before.Line, b.Session); i >= 0 {
		place, rest = i, before.Line[i+1:]
		c.Counts.Turns++
	}
	if !slices.Equal(b.Line, rest) {
		c.broke(Line, "%s: after the line %v comes %v", at, before.Line, b.Line)
	}
	if free := g.free() + int64(place)*turn.Microseconds(); !c.Moved && place > 0 && m.At < free {
		c.broke(Line, "%s: %v before its turn, after %d in the line", at, micros(free-m.At), place)
	}
}

func oneMore(before, after []string) bool {
	return len(after) == len(before)+1 && slices.Equal(after[:len(before)], before)
}

func oneLess(before, after []string) bool {
	for i := range before {
		if slices.Equal(slices.Delete(slices.Clone(before), i, i+1), after) {
			return true
		}
	}
	return false
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// collect indexes a call, before any is held against another.
func (c *checker) collect(call *Call) {
	switch call.Call {
	case Confirm, Transact:
		k := confirmation{call.Stream, call.Token, call.Result}
		c.attempts[k] = append(c.attempts[k], call)
	case Reserve:
		c.requests[call.Session] = append(c.requests[call.Session], call)
		if end, ok := c.told[call.Stream]; call.Answer.Answer == Done && (!ok || call.End < end) {
			c.told[call.Stream] = call.End
		}
	}
}

// hold holds a call against the stream that it was about.
func (c *checker) hold(call *Call) {
	s := c.streams[call.Stream]
	c.Counts.count(call)
	at := func() string {
		return fmt.Sprintf("%s %s of %s by %s", call.Call, call.Stream, call.Session, call.Process)
	}
	switch call.Call {
	case Reserve:
		c.request(s, call, at)
	case Extend, Resume, Release, Confirm, Transact:
		c.step(s, call, at)
	case Work:
		c.work(s, call, at)
	case Kill:
		c.kill(call)
	case Stop:
		if call.End-call.At > ttl.Microseconds() {
			c.Counts.Stops++
		}
	case Jump:
		c.Counts.Jumps++
	case Heal:
		if call.End-call.At > healTime.Microseconds() || call.Answer.Answer != OK {
			c.broke(Healed, "after %v: %q", micros(call.End-call.At), call.Answer.Note)
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

func (c *checker) request(s *stream, call *Call, at func() string) {
	a := call.Answer
	switch a.Answer {
	case Reserved:
		g := s.grant(a.Token)
		if g == nil || g.Session != call.Session {
			c.broke(Answers, "%s: no grant has token %d", at(), a.Token)
			return
		}
		if !slices.ContainsFunc(g.signs, func(at int64) bool { return c.within(at, call) }) {
			c.broke(Answers, "%s: it was neither granted nor extended meanwhile", at())
		}
		if slices.ContainsFunc(c.requests[call.Session], func(one *Call) bool { return one.Answer.Token == a.Token && one.End < call.At }) {
			c.Counts.Reentrant++
		}
		if end, ok := c.told[call.Stream]; ok && end < call.At {
			c.broke(Confirmed, "%s: it was told done before", at())
		}
	case Held, Reused:
		g := s.grant(a.ByToken)
		switch {
		case g == nil || g.Session != a.By || !c.live(g, call) && (a.Answer == Held || g.why != "confirmed"):
			c.broke(Answers, "%s: it is said to be %s by %s with token %d", at(), a.Answer, a.By, a.ByToken)
		case a.Answer == Held && g.released == 0 && c.others[g.Session] != call.Other:
			c.broke(Answers, "%s: the holder %s has other content", at(), a.By)
		case a.Answer == Reused && c.others[g.Session] == call.Other:
			c.broke(Answers, "%s: the holder %s has the same content", at(), a.By)
		}
	case Done:
		if s == nil || s.done == nil || s.done.ended > call.End && !c.Moved {
			c.broke(Answers, "%s: it is not done", at())
			return
		}
		if a.Result != s.result || a.ByToken != s.done.token {
			c.broke(Answers, "%s: the result %q of token %d is %q of %d", at(), a.Result, a.ByToken, s.result, s.done.token)
		}
		if c.others[s.done.Session] != call.Other {
			c.broke(Answers, "%s: what is done has other content", at())
		}
	}
	if call.Process == healer && a.Answer != Reserved && a.Answer != Done && a.Answer != Reused {
		c.broke(Healed, "%s: %s %s", at(), a.Answer, a.Note)
	}
}

func (c *checker) step(s *stream, call *Call, at func() string) {
	g := s.grant(call.Token)
	if g == nil {
		c.broke(Answers, "%s: no grant has token %d", at(), call.Token)
		return
	}
	confirmed := s.done == g && s.result == call.Result
	switch call.Answer.Answer {
	case OK:
		switch call.Call {
		case Confirm, Transact:
			if !confirmed {
				c.broke(Confirmed, "%s: %q with token %d is not there", at(), call.Result, call.Token)
			}
		case Release:
			if g.released == 0 {
				c.broke(Answers, "%s: it is not released", at())
			}
		default:
			if !slices.ContainsFunc(g.signs, func(at int64) bool { return c.within(at, call) }) {
				c.broke(Answers, "%s: it was not extended meanwhile", at())
			}
		}
	case Lost:
		over := g.ended
		if g.released > 0 {
			over = min(over, g.released)
		}
		if over == Never || over > call.End && !c.Moved {
			c.broke(LostTrue, "%s: nothing came after token %d", at(), call.Token)
		}
		if confirmed && (call.Call == Confirm || call.Call == Transact) {
			c.broke(LostTrue, "%s: %q is confirmed with token %d", at(), call.Result, call.Token)
		}
		if by := call.Answer.ByToken; by != 0 && s.grant(by) == nil {
			c.broke(LostTrue, "%s: token %d, that came after it, is nowhere", at(), by)
		}
	}
}

// work looks at work that looked at its lease: its holder must have known of a sign of life that was not over
// then, less the margin.
func (c *checker) work(s *stream, call *Call, at func() string) {
	if call.Answer.Answer != OK {
		return
	}
	c.Counts.Work++
	g := s.grant(call.Token)
	if g == nil {
		c.broke(Answers, "%s: no grant has token %d", at(), call.Token)
		return
	}
	last := int64(0)
	for _, sign := range g.signs {
		if sign <= call.End {
			last = max(last, sign)
		}
	}
	const drift = 2 * time.Millisecond // of two clocks within a lease
	if over := last + (ttl - margin + drift).Microseconds(); !c.Moved && call.At > over {
		c.broke(Heeded, "%s: %v too late", at(), micros(call.At-over))
	}
}

// kill counts a kill of the server, or of a process that had a lease then.
func (c *checker) kill(call *Call) {
	if call.Target == Server {
		c.Counts.ServerKills++
		return
	}
	if slices.ContainsFunc(c.leases[call.Target], func(g *grant) bool {
		return g.signs[0] < call.At && call.At < g.ended && call.At < g.free()
	}) {
		c.Counts.Kills++
	}
}

// confirmations looks for the call that made each confirmation, and for the one that asked for each grant.
func (c *checker) confirmations() {
	could := func(call *Call, yes string) bool {
		a := call.Answer.Answer
		return a == yes || a == Unknown || a == ""
	}
	for _, s := range c.streams {
		for _, g := range s.grants {
			if !slices.ContainsFunc(c.requests[g.Session], func(call *Call) bool { return call.Stream == s.name && could(call, Reserved) }) {
				c.broke(Answers, "%s: token %d was granted to %s, and no call may have done that", s.name, g.token, g.Session)
			}
		}
		if s.done == nil {
			continue
		}
		made := c.attempts[confirmation{s.name, s.done.token, s.result}]
		if !slices.ContainsFunc(made, func(call *Call) bool { return could(call, OK) }) {
			c.broke(Confirmed, "%s: %q with token %d is confirmed, and no call may have done that", s.name, s.result, s.done.token)
		}
	}
}

// resource folds the log of the resource.
func (c *checker) resource() {
	highest := map[string]int64{}
	for _, w := range c.Writes {
		before := highest[w.Key]
		switch {
		case c.streams[w.Key].grant(w.Token) == nil:
			c.broke(Fence, "%s: token %d of %s is of no grant", w.Key, w.Token, w.From)
		case w.Accepted && w.Token < before:
			c.broke(Fence, "%s: token %d of %s is accepted after %d", w.Key, w.Token, w.From, before)
		case !w.Accepted && w.Token >= before:
			c.broke(Fence, "%s: token %d of %s is refused after %d", w.Key, w.Token, w.From, before)
		case w.Accepted && w.Token > before:
			highest[w.Key] = w.Token
		case !w.Accepted:
			c.Counts.LateWrites++
		}
		// A holder that comes later has the greater token, also if nothing was accepted.
		if g := c.streams[w.Key].grant(w.Token); w.Accepted && g != nil && !c.Moved && g.signs[0] > w.At {
			c.broke(Fence, "%s: token %d of %s is there before it was granted", w.Key, w.Token, w.From)
		}
	}
}

// rows compares the rows with the confirmations that were made in transactions.
func (c *checker) rows() {
	there := map[confirmation]int{}
	for _, r := range c.Rows {
		k := confirmation{r.Stream, r.Token, r.Result}
		there[k]++
		s := c.streams[r.Stream]
		if s == nil || s.done == nil || s.done.token != r.Token || s.result != r.Result {
			c.broke(Rows, "%s: a row has %q of token %d, which is not confirmed", r.Stream, r.Result, r.Token)
		}
		if there[k] > 1 {
			c.broke(Rows, "%s: %q of token %d has %d rows", r.Stream, r.Result, r.Token, there[k])
		}
	}
	for _, s := range c.streams {
		if s.done == nil {
			continue
		}
		k := confirmation{s.name, s.done.token, s.result}
		inTx := slices.ContainsFunc(c.attempts[k], func(call *Call) bool { return call.Call == Transact })
		if inTx && there[k] == 0 {
			c.broke(Rows, "%s: %q of token %d was confirmed in a transaction, and has no row", s.name, s.result, s.done.token)
		}
	}
}

// String returns the findings, and how often each rule was broken.
func (v *Verdict) String() string {
	var b strings.Builder
	for _, r := range Rules() {
		fmt.Fprintf(&b, "%-44s %d broken\n", r, v.Broken[r])
	}
	for _, f := range v.Findings {
		fmt.Fprintln(&b, "a promise was broken:", f)
	}
	return b.String()
}
