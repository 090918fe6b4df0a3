package queues

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/soak/crew"
)

// Rule is a promise of queues.
type Rule = crew.Rule

// The rules. The letters before them are those of the promises in docs/guarantees.md.
const (
	Nothing  Rule = "Q1a nothing is lost"
	Twice    Rule = "Q2a an item is completed once"
	Fenced   Rule = "Q2b a delivery is given once"
	After    Rule = "Q2c nothing is given after its completion"
	Late     Rule = "Q2d a late completion is refused"
	Order    Rule = "Q3 of a key one after the other"
	Effects  Rule = "Q5 an effect is there with its completion"
	Failures Rule = "Q6a failures end"
	Lines    Rule = "Q6b each delivery that did not finish its item has a line"
	Met      Rule = "Q1b what a dead process had is out again"
	Early    Rule = "Q9 nothing is given early, or while the queue is paused"
	Trimmed  Rule = "Q1c nothing is removed that is open"
	Staged   Rule = "Q10a a staged item is there once, if and only if its row is"
	Placed   Rule = "Q10b staged items come in COMMIT, in the order of their calls"
	Named    Rule = "Q10c a unique name is of one item at a time, and free again"
	Knows    Rule = "Q4 a handler whose item another has knows it"
	Guilty   Rule = "Q6c only what kills its process is buried for that"
	Reached  Rule = "Q7 no key waits behind the items of another"
)

// Rules are all of them.
func Rules() []Rule {
	return []Rule{Nothing, Met, Trimmed, Twice, Fenced, After, Late, Order, Effects, Failures, Lines, Early, Staged, Placed, Named, Knows, Guilty, Reached}
}

// A Message is one of the queue's category: an item.
type Message struct {
	Position int64  `json:"p"` // the global one
	Stream   string `json:"stream"`
	Place    int64  `json:"place"` // in its stream
	ID       string `json:"id"`
	N        int    `json:"n,omitempty"`    // its content
	Due      int64  `json:"due,omitempty"`  // it is not given before
	Gone     bool   `json:"gone,omitempty"` // it was trimmed
	Open     bool   `json:"open,omitempty"` // when it was trimmed
}

// A Row is of an item that is not finished.
type Row struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	State    string `json:"state"`
	Failures int    `json:"failures"`
	Session  int64  `json:"session,omitempty"`
	After    int64  `json:"after,omitempty"`
}

// A Line is of an item's log.
type Line struct {
	Position int64  `json:"p"`
	Version  int    `json:"v"`
	What     string `json:"what"`
	At       int64  `json:"at"`
	Session  int64  `json:"session,omitempty"`
}

// An Effect was written in the transaction of a completion.
type Effect struct {
	Position int64 `json:"p"`
	Version  int   `json:"v"`
}

// An Inserted is a row that a caller wrote in the transaction in which it staged an item.
type Inserted struct {
	Process string `json:"process"`
	Op      int64  `json:"op"` // of its call
	ID      string `json:"id"`
}

// A Head has the counts of the queue.
type Head struct {
	Cursor   int64 `json:"cursor"`
	Held     int   `json:"held"`
	Taken    int   `json:"taken"`
	Finished int   `json:"finished"`
	Returned int   `json:"returned"`
	Buried   int   `json:"buried"`
}

// Inputs are all that a run leaves.
type Inputs struct {
	Messages []*Message // in their order
	Calls    []*Call
	Rows     []*Row
	Lines    []*Line // of each item in their order
	Effects  []Effect
	Inserted []Inserted
	Head     *Head
}

// The files of a run, beside the histories.
const (
	messagesFile = "messages.log"
	openFile     = "open.log"
	logFile      = "lines.log"
	effectsFile  = "effects.log"
	insertedFile = "inserted.log"
	headFile     = "head.log"
)

// Read reads the folder of a run.
func Read(dir string) (*Inputs, error) {
	in := &Inputs{}
	var err error
	if in.Calls, err = readCalls(dir); err != nil {
		return nil, err
	}
	err = errors.Join(
		crew.EachLine(filepath.Join(dir, messagesFile), func(m *Message) { in.Messages = append(in.Messages, m) }),
		crew.EachLine(filepath.Join(dir, openFile), func(r *Row) { in.Rows = append(in.Rows, r) }),
		crew.EachLine(filepath.Join(dir, logFile), func(l *Line) { in.Lines = append(in.Lines, l) }),
		crew.EachLine(filepath.Join(dir, effectsFile), func(e *Effect) { in.Effects = append(in.Effects, *e) }),
		crew.EachLine(filepath.Join(dir, insertedFile), func(i *Inserted) { in.Inserted = append(in.Inserted, *i) }),
		crew.EachLine(filepath.Join(dir, headFile), func(h *Head) { in.Head = h }),
	)
	return in, err
}

// A Verdict is the outcome of a check.
type Verdict struct {
	crew.Findings
	Counts Counts
	Pairs  int // of a key, that were looked at
	Again  int // items of a unique name that another had had
}

// String tells what was found.
func (v *Verdict) String() string { return v.Tell(Rules()) }

// An item is all that is known of one.
type item struct {
	*Message
	given    []*given
	ends     []*end
	finishes []*end // in transactions
	told     []*end // what callers of Complete were told
	handled  []*end // until their contexts ended
	lines    []*Line
	row      *Row
	effects  []int // versions

	inserted int64 // not before
	released int64 // since then what is behind it may be given; crew.Never if not
	looked   bool
}

type given struct {
	Given
	call *Call
}

type end struct {
	End
	call *Call
}

type checker struct {
	*Inputs
	*Verdict
	items    map[int64]*item
	there    map[string]*Message // by id
	byStream map[string]map[int64]*item
	contacts map[int64][2]int64 // of a session: when the store last heard of it, and its lease
	ended    map[ending]int     // how many items a session had when its end was met
	pauses   []span
	outages  []span
	jumps    []jumped
	last     int64 // when the last call was made
	poisoned bool  // items killed their processes
	heated   bool  // thousands of items of a key were inserted
	killed   int
	others   int
}

// An ending is when the end of a session was met.
type ending struct{ session, at int64 }

// A jumped is the time for which the server's clock was off.
type jumped struct {
	span
	off int64
}

// during reports whether the server's clock was off at some moment of a time.
func (c *checker) during(from, to int64) bool {
	return slices.ContainsFunc(c.jumps, func(j jumped) bool { return j.from <= to && from <= j.to })
}

// A span is one of time.
type span struct{ from, to int64 }

// within is how much of the span is in another.
func (s span) within(from, to int64) int64 { return max(0, min(s.to, to)-max(s.from, from)) }

// Check holds the histories and the store against each other.
func Check(in *Inputs) *Verdict {
	c := &checker{
		Inputs: in, Verdict: &Verdict{}, items: map[int64]*item{}, byStream: map[string]map[int64]*item{}, contacts: map[int64][2]int64{}, ended: map[ending]int{},
	}
	c.gather()
	c.inserted()
	c.staged()
	c.unique()
	for _, m := range in.Messages {
		it := c.items[m.Position]
		c.finished(it)
		c.deliveries(it)
		c.failures(it)
		c.scenes(it)
	}
	for _, m := range in.Messages {
		c.order(c.items[m.Position])
	}
	c.sessions()
	c.head()
	c.count()
	return c.Verdict
}

// gather sorts all by item.
func (c *checker) gather() {
	for _, m := range c.Messages {
		it := &item{Message: m}
		c.items[m.Position] = it
		if c.byStream[m.Stream] == nil {
			c.byStream[m.Stream] = map[int64]*item{}
		}
		c.byStream[m.Stream][m.Place] = it
	}
	at := func(position int64, what string) *item {
		it := c.items[position]
		if it == nil {
			c.Broke(Nothing, "%s is of position %d, where nothing ever was", what, position)
			it = &item{Message: &Message{Position: position}}
			c.items[position] = it
		}
		return it
	}
	for _, r := range c.Rows {
		at(r.Position, "a row").row = r
	}
	for _, call := range c.Calls {
		c.last = max(c.last, call.At)
		if call.Call == Jump {
			c.jumps = append(c.jumps, jumped{span{call.At, call.End}, call.Off})
		}
	}
	for _, l := range c.Lines {
		for _, j := range c.jumps { // the time as it was
			if at := l.At - j.off; j.from <= at && at <= j.to {
				l.At = at
				break
			}
		}
		if l.What == "e" {
			c.ended[ending{l.Session, l.At}]++
		}
		it := at(l.Position, "a line")
		it.lines = append(it.lines, l)
	}
	for _, e := range c.Effects {
		it := at(e.Position, "an effect")
		it.effects = append(it.effects, e.Version)
	}
	for _, m := range c.Messages {
		c.poisoned = c.poisoned || m.N == poison
		c.heated = c.heated || m.Stream == Category+"-"+hot
	}
	open := int64(0) // a pause
	slices.SortStableFunc(c.Calls, func(a, b *Call) int { return int(a.At - b.At) })
	for _, call := range c.Calls {
		switch call.Call {
		case Take:
			c.contact(call.Session, call)
			for _, g := range call.Answer.Items {
				it := at(g.Position, "a delivery")
				it.given = append(it.given, &given{g, call})
			}
			ends := call.Answer.Ends
			if call.Answer.Answer != OK {
				ends = call.Ends
			}
			for _, e := range ends {
				it := at(e.Position, "an end")
				it.ends = append(it.ends, &end{e, call})
			}
		case Extend:
			c.contact(call.Session, call)
		case Leave:
			c.contact(call.Session, call)
			c.contact(call.Next, call)
		case Finish:
			it := at(call.Ends[0].Position, "a completion")
			it.finishes = append(it.finishes, &end{call.Ends[0], call})
		case Complete:
			it := at(call.Ends[0].Position, "a completion")
			it.told = append(it.told, &end{call.Ends[0], call})
		case Handle:
			it := at(call.Ends[0].Position, "a handler's call")
			it.handled = append(it.handled, &end{call.Ends[0], call})
		case Change:
			switch {
			case call.Note == pausing && call.Answer.Answer == OK:
				open = call.End
			case call.Note == resuming && open > 0:
				c.pauses = append(c.pauses, span{open, call.At})
				open = 0
			}
		case Kill:
			if call.Target == Server {
				c.outages = append(c.outages, span{call.At, call.End})
			}
		}
	}
}

// contact takes in that the store may have heard of a session.
func (c *checker) contact(session int64, call *Call) {
	at := call.At
	if call.End != crew.Never {
		at = call.End
	}
	last := c.contacts[session]
	c.contacts[session] = [2]int64{max(last[0], at), max(last[1], call.Lease)}
}

// inserted looks at what the callers of Insert were told.
func (c *checker) inserted() {
	c.there = map[string]*Message{}
	for _, m := range c.Messages {
		if c.there[m.ID] != nil {
			c.Broke(Nothing, "%s is there twice, at %d and %d", m.ID, c.there[m.ID].Position, m.Position)
		}
		c.there[m.ID] = m
	}
	asked := map[string]bool{}
	for _, call := range c.Calls {
		if !call.inserts() {
			continue
		}
		for _, n := range call.New {
			asked[n.ID] = true
			m := c.there[n.ID]
			if m != nil && c.items[m.Position].inserted == 0 {
				c.items[m.Position].inserted = call.At
			}
			if call.Call == Stage || call.Answer.Had > 0 {
				continue
			}
			switch a := call.Answer.Answer; {
			case a == OK && m == nil:
				c.Broke(Nothing, "%s of %s was inserted by %s, and is not there", n.ID, n.Stream, call.Process)
			case a == OK && m.Stream != n.Stream:
				c.Broke(Nothing, "%s was inserted into %s, and is in %s", n.ID, n.Stream, m.Stream)
			case (a == Undone || a == Failed || a == Reused) && m != nil && call.Note == "":
				c.Broke(Nothing, "%s was not inserted by %s (%s), and is there", n.ID, call.Process, a)
			}
		}
	}
	for id, m := range c.there {
		if !asked[id] {
			c.Broke(Nothing, "%s, at %d, was inserted by nobody", id, m.Position)
		}
	}
}

// isTold reports whether the store told that a completion is done.
func (e *end) isTold() bool {
	return (e.Kind == "c" || e.Kind == "t") && e.Told == "d" && e.call.Answer.Answer == OK
}

// accepted are the versions under which the item was completed.
func (it *item) accepted() (versions []int) {
	for _, e := range it.ends {
		if e.isTold() {
			versions = append(versions, e.Version)
		}
	}
	versions = append(versions, it.effects...)
	slices.Sort(versions)
	return slices.Compact(versions)
}

// ended is the line by which an operator ended the item, or that its message was removed; nil for none.
func (it *item) ended() *Line {
	if len(it.lines) > 0 {
		if last := it.lines[len(it.lines)-1]; strings.Contains("CDM", last.What) {
			return last
		}
	}
	return nil
}

// finished looks at how the item ended.
func (c *checker) finished(it *item) {
	for i, l := range it.lines {
		if l.Version != i {
			c.Broke(Lines, "line %d of item %d is of version %d", i, it.Position, l.Version)
			break
		}
		if strings.Contains("CDM", l.What) && i < len(it.lines)-1 {
			c.Broke(After, "item %d has lines after it was ended by an operator at version %d", it.Position, l.Version)
		}
		if l.What == "M" {
			c.Broke(Trimmed, "the message of item %d was removed, and not its row", it.Position)
		}
	}
	if it.Gone && it.Open {
		c.Broke(Trimmed, "item %d of %s was removed while it was open", it.Position, it.Stream)
	}
	done, ended := it.accepted(), it.ended()
	for _, version := range done {
		if version < len(it.lines) {
			c.Broke(Late, "the completion of item %d at version %d was accepted, and its log says %q of that", it.Position, version, it.lines[version].What)
		}
		if version > len(it.lines) {
			c.Broke(Lines, "item %d was completed at version %d, and has %d lines", it.Position, version, len(it.lines))
		}
	}
	if len(done) > 1 {
		c.Broke(Twice, "item %d was completed at versions %v", it.Position, done)
	}
	if len(it.effects) > 1 {
		c.Broke(Effects, "item %d has %d effects", it.Position, len(it.effects))
	}
	for _, f := range it.finishes {
		committed := slices.Contains(it.effects, f.Version)
		switch a := f.call.Answer.Answer; {
		case a == OK && !committed:
			c.Broke(Effects, "the completion of item %d at version %d was committed, and its effect is not there", it.Position, f.Version)
		case (a == Undone || a == Lost) && committed && len(it.finishes) == 1:
			c.Broke(Effects, "the completion of item %d at version %d was not committed (%s), and its effect is there", it.Position, f.Version, a)
		case a == Undone && !committed && slices.Contains(done, f.Version): // its caller gave it back, or left it
			c.Broke(Effects, "the completion of item %d at version %d was rolled back, and the item is completed", it.Position, f.Version)
		}
	}
	for _, e := range it.ends {
		if e.Kind == "t" && e.Told == "d" && !slices.Contains(it.effects, e.Version) {
			c.Broke(Effects, "the completion of item %d at version %d was told committed, and its effect is not there", it.Position, e.Version)
		}
	}
	for _, e := range it.told {
		switch a := e.call.Answer.Answer; {
		case a == OK && !slices.Contains(done, e.Version):
			c.Broke(Late, "%s was told that item %d is completed at version %d, and the store told no such thing", e.call.Process, it.Position, e.Version)
		case a == Lost && slices.Contains(done, e.Version) && !c.unsure(it, e) && (!it.Gone || e.Version > 0):
			c.Broke(Late, "%s was told that item %d is lost at version %d, and it was completed at that", e.call.Process, it.Position, e.Version)
		}
	}
	switch row := it.row; {
	case it.Place < 0, c.heated: // a run does not finish them
	case row != nil && (row.State == "d" || row.State == "k"):
		if len(done) > 0 {
			c.Broke(Twice, "item %d is dead, and was completed at version %d", it.Position, done[0])
		}
		if row.Version != len(it.lines) {
			c.Broke(Lines, "item %d is dead at version %d, and has %d lines", it.Position, row.Version, len(it.lines))
		}
	case row != nil && (row.State == "h" || row.State == "z") && c.behindDead(it):
	case row != nil:
		c.Broke(Met, "item %d of %s is left in state %q at version %d, session %d, after %d", it.Position, it.Stream, row.State, row.Version, row.Session, row.After)
	case c.Head == nil || it.Position > c.Head.Cursor:
		if ended == nil {
			c.Broke(Met, "item %d of %s is left beyond the cursor", it.Position, it.Stream)
		}
	case len(done) == 0 && ended == nil && !it.mayBeDone():
		c.Broke(Nothing, "item %d of %s is finished, and was given %d times and never completed", it.Position, it.Stream, len(it.given))
	}
}

// unsure reports whether a completion was told lost to a handler whose session was over for its process: the process
// did not ask the store.
func (c *checker) unsure(it *item, told *end) bool {
	for _, e := range it.ends {
		if e.Version == told.Version && e.Told == "l" {
			return false
		}
	}
	return true
}

// mayBeDone reports whether a completion under the last version has no answer, or none that is known.
func (it *item) mayBeDone() bool {
	for _, e := range it.ends {
		if e.Kind == "c" && e.Version == len(it.lines) && e.call.Answer.Answer != OK {
			return true
		}
	}
	return false
}

// before is the item before it of its key, nil for none, or if it was removed before this one came.
func (c *checker) before(it *item) *item {
	if it.Place == 0 {
		return nil
	}
	return c.byStream[it.Stream][it.Place-1]
}

// behindDead reports whether the item is held behind a dead one that holds its key.
func (c *checker) behindDead(it *item) bool {
	for b := c.before(it); b != nil; b = c.before(b) {
		if b.row != nil && b.row.State == "k" {
			return true
		}
	}
	return false
}

// deliveries looks at what was given.
func (c *checker) deliveries(it *item) {
	seen := map[int]*given{}
	done := it.accepted()
	for _, g := range it.given {
		if g.ID != it.ID || g.Stream != it.Stream {
			c.Broke(Nothing, "item %d was given as %s of %s, and is %s of %s", it.Position, g.ID, g.Stream, it.ID, it.Stream)
		}
		if other := seen[g.Version]; other != nil {
			c.Broke(Fenced, "item %d was given under version %d to session %d and to %d", it.Position, g.Version, other.call.Session, g.call.Session)
		}
		seen[g.Version] = g
		for _, version := range done {
			if g.Version > version {
				c.Broke(After, "item %d was completed at version %d, and given at %d", it.Position, version, g.Version)
			}
		}
		for _, e := range it.ends {
			if e.isTold() && g.call.At > e.call.End {
				c.Broke(After, "item %d was given at version %d after it was told completed at %d", it.Position, g.Version, e.Version)
			}
		}
		if g.Version > len(it.lines) {
			c.Broke(Lines, "item %d was given at version %d, and has %d lines", it.Position, g.Version, len(it.lines))
		}
		if g.Version == 0 || g.Version <= len(it.lines) && it.lines[g.Version-1].What != "R" { // an operator does not heed the time
			c.early(it, g)
		}
		for _, p := range c.pauses {
			if g.call.At > p.from && g.call.End < p.to {
				c.Broke(Early, "item %d was given while the queue was paused", it.Position)
			}
		}
	}
}

// isHot reports whether the item is one of the thousands of a key.
func (it *item) isHot() bool { return it.Stream == Category+"-"+hot }

// What a machine that is busy may take: for a handler's context to end, and for an item of another key to be given.
const (
	ends    = 2 * time.Second
	reaches = 10 * time.Second
)

// scenes looks at what the scenes are about.
func (c *checker) scenes(it *item) {
	for _, h := range it.handled {
		for _, g := range it.given {
			if g.Version > h.Version && h.call.End != crew.Never && h.call.End > g.call.End+ends.Microseconds() {
				c.Broke(Knows, "item %d was given at version %d, and the context of its handler of version %d ended %v later",
					it.Position, g.Version, h.Version, time.Duration(h.call.End-g.call.End)*time.Microsecond)
			}
		}
	}
	dead := it.row != nil && (it.row.State == "d" || it.row.State == "k")
	ended := !slices.ContainsFunc(it.lines, func(l *Line) bool { return l.What != "e" && l.What != "u" })
	if c.poisoned && dead && ended && it.N != poison {
		c.Broke(Guilty, "item %d is dead, and only sessions that it had nothing to do with ended", it.Position)
	}
	if c.poisoned && it.N == poison && dead {
		c.killed++
	}
	if !c.heated || it.isHot() || it.ended() != nil {
		return
	}
	c.others++
	until := c.last
	for _, g := range it.given {
		until = min(until, g.call.End)
	}
	if took := until - it.inserted; took > reaches.Microseconds() {
		c.Broke(Reached, "item %d of %s was not given for %v, behind the items of another key", it.Position, it.Stream, time.Duration(took)*time.Microsecond)
	}
}

func (c *checker) early(it *item, g *given) {
	if slices.ContainsFunc(it.given, func(b *given) bool { return b.Version <= g.Version && c.during(b.call.At, b.call.End) }) {
		return // by the clock as it was
	}
	if redriven := slices.ContainsFunc(it.lines, func(l *Line) bool { return l.What == "R" }); !redriven && g.call.End < it.Due {
		c.Broke(Early, "item %d was given %v before its time", it.Position, time.Duration(it.Due-g.call.End)*time.Microsecond)
	}
	if g.Version == 0 {
		return
	}
	line := it.lines[g.Version-1] // its time is that of the call that ended the delivery: one before it may have had no answer
	for _, e := range it.ends {
		due := line.At + e.Delay
		if c.during(line.At, g.call.End) {
			continue
		}
		if e.Version == line.Version && e.Kind == line.What && (e.Kind == "r" || e.Kind == "f") && e.Told == "d" && g.call.End < due {
			c.Broke(Early, "item %d was given again %v before its time", it.Position, time.Duration(due-g.call.End)*time.Microsecond)
		}
	}
}

// failures counts them by the lines.
func (c *checker) failures(it *item) {
	least, most, ends := 0, 0, 0 // an operator's redrive of a dead item has them count anew, and of another not
	for version := 0; version <= len(it.lines); version++ {
		for _, g := range it.given {
			switch {
			case g.Version != version:
			case g.Failures >= maxFailures:
				c.Broke(Failures, "item %d was given with %d failures, and is dead with %d", it.Position, g.Failures, maxFailures)
			case g.Failures < least || g.Failures > most:
				c.Broke(Failures, "item %d was given at version %d with %d failures, and its lines tell %d to %d", it.Position, version, g.Failures, least, most)
			}
		}
		if version == len(it.lines) {
			break
		}
		switch it.lines[version].What {
		case "r", "x":
			least, most = least+1, most+1
		case "e": // a failure of an item that had the session alone, as are the ends before; and of no other
			if l := it.lines[version]; c.ended[ending{l.Session, l.At}] == 1 {
				most = max(most, ends) + 1
			}
			ends++
		case "R":
			least = 0
		}
		if least > maxFailures {
			c.Broke(Failures, "item %d has %d failures, and is dead with %d", it.Position, least, maxFailures)
		}
	}
	if r := it.row; r != nil && (r.State == "d" || r.State == "k") && r.Failures < maxFailures && len(it.lines) > 0 && it.lines[len(it.lines)-1].What != "x" {
		c.Broke(Failures, "item %d is dead with %d failures, and was not buried", it.Position, r.Failures)
	}
}

// release is the earliest moment at which what is behind an item may be given.
func (c *checker) release(it *item) int64 {
	if it.looked {
		return it.released
	}
	it.looked, it.released = true, crew.Never
	it.released = c.closed(it, func(l *Line) int64 {
		if b := c.before(it); b != nil { // it keeps its place
			return max(l.At, c.release(b))
		}
		return l.At
	})
	return it.released
}

// closed is the earliest moment at which an item may have been finished, or dead; for one that an operator ended, what
// cancelled says.
func (c *checker) closed(it *item, cancelled func(l *Line) int64) int64 {
	at := crew.Never
	for _, e := range it.ends {
		if e.Kind == "c" && (e.isTold() || e.Version == len(it.lines) && e.call.Answer.Answer != OK) {
			at = min(at, e.call.At)
		}
	}
	for _, f := range it.finishes {
		if slices.Contains(it.effects, f.Version) {
			at = min(at, f.call.At)
		}
	}
	failures := 0
	for _, l := range it.lines {
		switch l.What {
		case "r", "x", "e":
			failures++
			if l.What == "x" || failures >= maxFailures { // it is dead, and holds its key or not
				at = min(at, l.At)
			}
		case "C", "D":
			at = min(at, cancelled(l))
		case "M":
			at = min(at, l.At)
		}
	}
	return at
}

// slack is by how much the clocks of two processes may differ: they are the clock of one machine, read one after the
// other.
const slack = 1000

// order looks at what was given before the item before it had ended.
func (c *checker) order(it *item) {
	b := c.before(it)
	if b == nil {
		return
	}
	c.Pairs++
	for _, g := range it.given {
		if r := c.release(b); g.call.End+slack < r {
			c.Broke(Order, "item %d of %s was given at version %d while item %d before it was open", it.Position, it.Stream, g.Version, b.Position)
		}
	}
}

// endOfSession is how long after its lease the end of a session is met at most, on a machine that is busy.
const endOfSession = 10 * time.Second

// sessions looks at when the ends of sessions were met.
func (c *checker) sessions() {
	for _, l := range c.Lines {
		last, ok := c.contacts[l.Session]
		if l.What != "e" || !ok {
			continue
		}
		allowed := last[0] + last[1] + endOfSession.Microseconds()
		for _, s := range slices.Concat(c.outages, c.pauses) {
			allowed += s.within(last[0], l.At)
		}
		for _, j := range c.jumps {
			allowed += j.within(last[0], l.At)
		}
		if l.At > allowed {
			c.Broke(Met, "session %d, that was last heard of %v before, had item %d until then", l.Session, time.Duration(l.At-last[0])*time.Microsecond, l.Position)
		}
	}
	for _, call := range c.Calls {
		if call.Call == Drain && call.Answer.Answer != OK {
			c.Broke(Met, "in the end there was left: %s", call.Answer.Note)
		}
	}
}

// head holds the queue's counts against the lines.
func (c *checker) head() {
	if c.Head == nil {
		return
	}
	lines, ends, cancelled := 0, 0, 0
	for _, l := range c.Lines {
		switch l.What {
		case "r", "f", "u", "x", "e":
			lines++
		case "C", "D", "M":
			ends++
			if l.Session != 0 || l.What == "M" {
				cancelled++
			}
		}
	}
	out := 0
	for _, r := range c.Rows {
		if r.State == "o" {
			out++
		}
	}
	completed := 0
	for _, m := range c.Messages {
		it := c.items[m.Position]
		if it.row != nil || it.ended() != nil || m.Position > c.Head.Cursor {
			continue
		}
		completed++
	}
	if want := completed + lines + cancelled + out; c.Head.Taken != want {
		c.Broke(Lines, "%d deliveries are counted: %d of them completed their items, %d have lines, and %d are out", c.Head.Taken, completed, lines+cancelled, out)
	}
	if got := c.Head.Returned + c.Head.Buried; got != lines {
		c.Broke(Lines, "%d deliveries are counted as given back or buried, and %d have lines", got, lines)
	}
	if want := ends - cancelled; c.Head.Finished != want {
		c.Broke(Lines, "%d items are counted as finished while no session had them, and %d have lines", c.Head.Finished, want)
	}
}

func (c *checker) count() {
	t := newTally("")
	for _, call := range c.Calls {
		record := call.Record
		t.add(&record)
		if call.End != crew.Never {
			t.add(&call.Answer)
		}
	}
	c.Counts = t.n
	lines := map[string]int{}
	for _, l := range c.Lines {
		lines[l.What]++
	}
	c.Counts.setLines(lines)
	c.Counts.Poisons, c.Counts.Others = c.killed, c.others
}
