// Package queuestate implements queue transitions in Go, for drivers without SQL functions: how a
// take and the other calls of queuing.Driver change the rows of a queue. A driver gives it the rows
// of one queue within one transaction, so no other call sees a partial change.
//
// It does the same as the functions queue_take and so on of package migrations; queuetest compares
// the two.
package queuestate

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A Head is the state of a queue apart from its rows. The zero Head belongs to a new queue.
type Head struct {
	At                                time.Time // of the last change
	Cursor                            messagestore.GlobalPosition
	Ahead                             messagestore.GlobalPosition // the highest position that was cancelled beyond the cursor
	Checked                           time.Time                   // when held rows were last checked
	Paused                            bool
	Tokens                            float64 // of a rate, at that time; less than 0 before the first take with a rate
	Taken, Finished, Returned, Buried int64   // Finished counts items that were finished while no session had them
	Shape                             Shape
	Suspects                          bool  // there may be suspect rows
	Apart                             int64 // the session that takes nothing more, because it waits to have a suspect row alone; 0 for none
}

// A Shape says which messages are the items of a queue, from its first take on.
type Shape byte

const (
	NoShape   Shape = iota // never taken from
	OfItems                // each message of the category
	OfStreams              // the first message of each stream; later ones wake it
)

// Place says where an open item is.
type Place byte

const (
	Out    Place = 'o'
	Later  Place = 'l'
	Held   Place = 'h'
	Dead   Place = 'd'
	Closed Place = 'k' // dead, and the rows behind it stay held
	Passed Place = 'z' // finished, but it keeps the place of the rows behind it

	Suspended Place = 's' // in a queue of streams like Later, but listed separately; in a queue of parked messages still to be parked
)

// waits reports whether a row in this place is offered at its time.
func (p Place) waits() bool { return p == Later || p == Suspended }

// A Row is an open item.
type Row struct {
	Position messagestore.GlobalPosition
	Version  int
	Place    Place
	Failures int
	Session  int64                       // Out
	Due      time.Time                   // of a Later or Suspended row; a Held row is not offered before it, unless it is zero
	Given    time.Time                   // when Due was computed, by the clock at that time; zero for a date of the message
	After    messagestore.GlobalPosition // where the row is in its stream: see [Row.linked]; 0 if it is not linked
	Error    string
	Ends     int // how often its session was over

	// In a queue of streams only messages after Woken wake the row. It is the position of the last
	// message that woke the row, or of the last message that a worker had read when it ended a
	// turn, whichever is later.
	Woken messagestore.GlobalPosition
}

// linked reports whether the row has a place behind another row of its stream, the row at position
// After. A Held row waits there. A Passed row and a dead row keep the place of the rows behind
// them, and leave it as soon as they come first. A row that is linked to itself is Out, and dead
// items of its stream that were retried go before the next message: when its delivery ends, in any
// way, it goes behind them.
//
// While an item of a stream is Out, Later or Closed, each other row of the stream is linked to it,
// possibly through others, and so is the last message of the stream that the cursor has reached. So
// the next message is held. Dead rows that are not linked stand apart: no row waits for them. A row
// is never linked to a later row that is itself linked.
func (r *Row) linked() bool { return r.After != 0 }

// keepsPlace reports whether the row is linked to itself.
func (r *Row) keepsPlace() bool { return r.After == r.Position }

// Suspect reports whether the row may have ended its sessions: then it is delivered alone.
func (r *Row) Suspect() bool { return r.Ends > 1 }

// A Session has items out until it ends. Its end was computed from its lease.
type Session struct {
	Number int64
	Until  time.Time
	Lease  time.Duration
}

// ahead reports whether the end is later than any end that the clock gives now: the clock was
// ahead.
func (s Session) ahead(now time.Time) bool {
	return s.Until.After(now.Add(s.Lease + queuing.ClockTolerance))
}

// longer returns the session with its lease restarted, unless it already lasts longer.
func (s Session) longer(now time.Time, lease time.Duration) Session {
	s.Until, s.Lease = latest(s.Until, now.Add(lease)), max(s.Lease, lease)
	return s
}

// isOut reports whether the row is out as a delivery of a session.
func (r *Row) isOut(d queuing.Delivery, session int64) bool {
	return r.Place == Out && r.Version == d.Version && r.Session == session
}

// A Ticket is a place in the line.
type Ticket struct {
	Number  int64
	Session int64
	Want    int
	Until   time.Time
}

// Rows gives access to the rows of one queue. Times are in microseconds.
type Rows interface {
	Now() time.Time
	Head() (head Head, there bool, err error)
	SetHead(Head) error

	Row(messagestore.GlobalPosition) (*Row, error) // nil if there is no such row
	Put(Row) error
	Remove(messagestore.GlobalPosition) error
	OutOf(session int64) ([]Row, error)                                   // in order of position
	CountOut() (int, error)                                               // of all sessions
	Behind(messagestore.GlobalPosition) ([]Row, error)                    // linked to it, except an Out row, in order of position
	Due(p Place, suspect bool, until time.Time, limit int) ([]Row, error) // Later or Suspended, only suspects or only others, in order of date and position
	Open(from messagestore.GlobalPosition, limit int) ([]Row, error)      // in every place, in order of position
	Holds() (bool, error)                                                 // whether any row is linked
	Loose(limit int) ([]messagestore.GlobalPosition, error)               // positions to which rows are linked and whose own row is missing, Dead and not linked, or linked to itself, but not Out; in order

	Session(session int64) (s Session, there bool, err error)
	Sessions() ([]Session, error)             // there may be many: not in each take
	Begun(after time.Time) ([]Session, error) // whose lease began after a time
	SetSession(Session) error
	EndSession(session int64) error                          // and its notes
	Note(session int64, of queuing.Delivery) (string, error) // "" for none
	SetNotes(session int64, notes queuing.Notes) error       // in place of the session's earlier notes
	Over(until time.Time) ([]int64, error)                   // sessions that end by then
	FirstEnd() (until time.Time, there bool, err error)

	Tickets() ([]Ticket, error) // in order
	AddTicket(Ticket) (number int64, err error)
	DropTicket(number int64) error

	Entries(messagestore.GlobalPosition) ([]queuing.Entry, error) // in order of version
	AddEntry(messagestore.GlobalPosition, queuing.Entry) error    // unless the version already has an entry

	Message(messagestore.GlobalPosition) (*messagestore.Message, error) // of the queue's category; nil if there is none
	Next(after messagestore.GlobalPosition, limit int) ([]*messagestore.Message, error)
	Before(m *messagestore.Message) (*messagestore.Message, error) // in its stream; nil if there is none
	First(m *messagestore.Message) (*messagestore.Message, error)  // of its stream, at position 0; nil if there is none

	// Last returns the last message of m's stream up to a global position.
	Last(m *messagestore.Message, upTo messagestore.GlobalPosition) (*messagestore.Message, error)
}

// A step is one call of a driver's method.
type step struct {
	Rows
	head    Head
	there   bool
	clock   time.Time
	now     time.Time // of the clock, or of the head if that is later
	changed bool

	completed map[messagestore.GlobalPosition]bool // by this step, if it may complete held rows

	// turns says that the next item taken is a new one, with another key than the last. This
	// happens for one delivery in eight: otherwise a key that never ends could take every place.
	turns bool
}

func begin(r Rows) (*step, error) {
	s := &step{Rows: r}
	var err error
	if s.head, s.there, err = r.Head(); err != nil {
		return nil, err
	}
	s.clock = r.Now()
	s.now = s.clock
	if !s.there {
		s.head.Tokens, s.head.Checked = -1, s.now
	}
	if s.now.Before(s.head.At) {
		s.now = s.head.At
	}
	return s, nil
}

// isBehind reports whether the clock is behind the head's time: it was ahead then, or was set back
// since.
func (s *step) isBehind() bool { return s.clock.Before(s.head.At.Add(-queuing.ClockTolerance)) }

// follow adjusts the queue to its clock. If the clock is behind the head's time, all times computed
// from that time are moved with it, so that each wait takes as long from now on as it would have
// taken from the head's time on. A message's own date is not moved: it names a time and not a
// duration. Rows of streams are offered at once, because their workers decide by the messages. Only
// a take does this; until then the other calls that change rows compute from the head's time.
func (s *step) follow() error {
	if s.isBehind() {
		if err := s.setBack(); err != nil {
			return err
		}
	}
	sessions, err := s.Begun(s.now.Add(queuing.ClockTolerance))
	if err != nil {
		return err
	}
	for _, session := range sessions {
		s.changed = true // its process may be gone: the lease starts now
		session.Until = s.now.Add(session.Lease)
		if err := s.SetSession(session); err != nil {
			return err
		}
	}
	return nil
}

func (s *step) setBack() error {
	by := s.head.At.Sub(s.clock)
	s.now, s.head.At, s.changed = s.clock, s.clock, true
	if s.head.Checked.After(s.now) {
		s.head.Checked = s.now
	}
	const page = 1000
	for from := messagestore.GlobalPosition(0); ; {
		rows, err := s.Open(from, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			from = row.Position + 1
			if !row.Due.After(s.now) || !row.Given.After(s.now.Add(queuing.ClockTolerance)) {
				continue
			}
			if err := s.move(row, by); err != nil {
				return err
			}
		}
		if len(rows) < page {
			break
		}
	}
	return s.dropTickets(func(t Ticket) bool { return t.Until.After(s.now.Add(queuing.MaxWait)) })
}

func (s *step) move(row Row, by time.Duration) error {
	due := s.now
	if s.head.Shape != OfStreams {
		due = latest(due, row.Due.Add(-by))
	}
	if row.Version == 0 {
		m, err := s.Message(row.Position)
		if err != nil {
			return err
		}
		if m != nil {
			date, _ := DueOf(m)
			due = latest(due, date)
		}
	}
	row.Due, row.Given = due, s.now
	return s.Put(row)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *step) end() error {
	if !s.changed {
		return nil
	}
	s.head.At = s.now
	return s.SetHead(s.head)
}

func dead(hold bool) Place {
	if hold {
		return Closed
	}
	return Dead
}

// opens reports whether a row releases the rows behind it.
func opens(row *Row) bool { return row == nil || row.Place == Dead && !row.linked() }

// Take is [queuing.Driver.QueueTake].
func Take(r Rows, t queuing.Take) (queuing.Taken, error) {
	s, err := begin(r)
	if err != nil {
		return queuing.Taken{}, err
	}
	if t.Slots != 0 && !s.there { // no message was parked
		return queuing.Taken{Endings: slices.Repeat([]queuing.Ending{queuing.Lost}, len(t.Finishes)), Wake: -1}, nil
	}
	if err := s.shape(t.Queue, len(t.Wakes) > 0); err != nil {
		return queuing.Taken{}, err
	}
	if err := s.parks(t.Queue, t.Slots != 0); err != nil {
		return queuing.Taken{}, err
	}
	if err := s.follow(); err != nil {
		return queuing.Taken{}, err
	}
	taken := queuing.Taken{Wake: -1}
	var gone []messagestore.GlobalPosition
	if slices.ContainsFunc(t.Finishes, func(f queuing.Finish) bool { return f.Kind == queuing.Behind }) {
		s.completed = map[messagestore.GlobalPosition]bool{}
	}
	for _, f := range t.Finishes {
		ending, err := s.finish(f, t)
		if err != nil {
			return queuing.Taken{}, err
		}
		taken.Endings = append(taken.Endings, ending)
		gone = append(gone, f.Position)
	}
	over, err := s.expire(t.Policy)
	if err == nil && s.head.Shape == OfStreams {
		err = s.resume()
	}
	if err == nil {
		err = s.release(append(gone, over...))
	}
	if err == nil && t.Want > 0 {
		err = s.orphans()
	}
	moved := 0
	if err == nil {
		moved, err = s.moveHere(t, &taken)
	}
	if err == nil {
		err = s.reserve(t, moved > 0, &taken)
	}
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return queuing.Taken{}, err
	}
	return taken, nil
}

// shape refuses a take of another kind than the first one.
func (s *step) shape(q queuing.Queue, streams bool) error {
	shape := OfItems
	if streams {
		shape = OfStreams
	}
	switch s.head.Shape {
	case NoShape:
		s.head.Shape, s.changed = shape, true
	case shape:
	case OfStreams:
		return refuse("queue", q.Name, "must be a queue of items, and is one of streams")
	default:
		return refuse("queue", q.Name, "must be a queue of streams, and is one of items")
	}
	return nil
}

// parks refuses a call for parked messages if the queue follows its category, and the reverse.
func (s *step) parks(q queuing.Queue, parks bool) error {
	switch {
	case parks && !s.head.parks():
		return refuse("queue", q.Name, "must be a queue of parked messages, and follows its category")
	case !parks && s.head.parks():
		return refuse("queue", q.Name, "must be a queue that follows its category, and keeps parked messages")
	}
	return nil
}

// parks reports whether it is a queue of parked messages.
func (h Head) parks() bool { return h.Cursor == queuing.NoCursor }

// finish ends a delivery.
func (s *step) finish(f queuing.Finish, t queuing.Take) (queuing.Ending, error) {
	row, err := s.Row(f.Position)
	if err != nil {
		return 0, err
	}
	if f.Kind == queuing.Behind {
		return s.finishBehind(f, row)
	}
	if row == nil || !row.isOut(f.Delivery, cmp.Or(f.Session, t.Session)) || f.Kind == queuing.Committed {
		return s.ended(f.Delivery, row, f.Kind, f.Session)
	}
	s.changed = true
	switch f.Kind {
	case queuing.Complete:
		if s.completed != nil {
			s.completed[f.Position] = true
		}
		return queuing.Done, s.complete(row)
	case queuing.Wait, queuing.Suspend:
		return queuing.Done, s.pause(row, f)
	default:
	}
	entry := queuing.Entry{Version: row.Version, What: queuing.What(f.Kind), Time: s.now, Session: row.Session, Text: f.Error}
	if f.Kind == queuing.Retry || f.Kind == queuing.Bury {
		row.Failures = min(row.Failures+1, queuing.MaxFailures)
	}
	if f.Error != "" && (f.Kind == queuing.Retry || f.Kind == queuing.Bury) {
		row.Error = f.Error
	}
	s.giveBack(row, f.Kind == queuing.Bury || f.Kind == queuing.Retry && row.Failures >= t.MaxFailures, t.Policy, max(f.Delay, 0))
	if err := s.AddEntry(row.Position, entry); err != nil {
		return 0, err
	}
	return queuing.Done, s.Put(*row)
}

// complete finishes a row that is out.
func (s *step) complete(row *Row) error {
	if row.keepsPlace() {
		row.Place, row.Session = Passed, 0
		return s.Put(*row)
	}
	return s.Remove(row.Position)
}

// finishBehind completes an item that was worked on while it was held, if this step has completed
// the item before it.
func (s *step) finishBehind(f queuing.Finish, row *Row) (queuing.Ending, error) {
	if row == nil || row.Place == Passed { // by an earlier call, perhaps
		return s.ended(f.Delivery, row, queuing.Complete, 0)
	}
	if row.Place != Held || row.Version != f.Version || !s.completed[row.After] {
		return queuing.Lost, nil
	}
	s.changed, s.completed[f.Position] = true, true
	s.head.Taken++
	row.Place, row.Due = Passed, time.Time{} // retried dead items may go before the rows behind it
	return queuing.Done, s.Put(*row)
}

// pause ends a successful turn.
func (s *step) pause(row *Row, f queuing.Finish) error {
	woken := row.Woken > f.Seen
	s.giveBack(row, false, queuing.Policy{}, max(f.Delay, 0))
	row.Failures, row.Ends = 0, 0
	row.Woken = max(row.Woken, f.Seen)
	if f.Kind == queuing.Wait {
		row.Error = f.Error
	}
	if f.Kind == queuing.Suspend {
		row.Place = Suspended
		if f.Error != "" {
			row.Error = f.Error
		}
	}
	if woken {
		row.Place, row.Due = Later, s.now
	}
	return s.Put(*row)
}

// giveBack ends the delivery of a row that is out: the row is to be offered again, or is dead.
func (s *step) giveBack(row *Row, dies bool, policy queuing.Policy, delay time.Duration) {
	row.Version++
	row.Session = 0
	if dies {
		row.Place, row.Due = dead(policy.Hold), time.Time{}
		s.head.Buried++
		return
	}
	row.Place, row.Due, row.Given = Later, s.now.Add(delay), s.now
	if row.keepsPlace() {
		row.Place = Held
	}
	s.head.Returned++
}

// ended returns the answer for a delivery that this call does not end. If it names no session, that is
// 0, it may have ended as one of another session, from which it was to move here.
func (s *step) ended(d queuing.Delivery, row *Row, kind queuing.Kind, session int64) (queuing.Ending, error) {
	if row != nil && row.Place == Passed {
		row = nil
	}
	entries, err := s.Entries(d.Position)
	if err != nil {
		return 0, err
	}
	before := d.Version == 0
	for _, e := range entries {
		switch e.Version {
		case d.Version:
			if byte(e.What) == byte(kind) && (session == 0 || e.Session == session) {
				return queuing.Done, nil
			}
			return queuing.Lost, nil
		case d.Version - 1:
			before = true
		}
	}
	switch {
	case row != nil && row.Version > d.Version && d.Version >= 0 && (kind == queuing.Wait || kind == queuing.Suspend):
		return queuing.Done, nil // a delivery without an entry in the log has completed
	case s.head.Shape == OfStreams && d.Version >= 0:
		before = true
	}
	switch {
	case row != nil && row.Version == d.Version && row.Place == Out && kind == queuing.Committed:
		return queuing.Open, nil
	case row != nil || kind != queuing.Complete && kind != queuing.Committed || !before || d.Position > s.head.Cursor:
		return queuing.Lost, nil
	}
	if s.head.Shape != OfStreams && d.Version > 0 {
		return queuing.Done, nil // its message may have been removed since
	}
	m, err := s.Message(d.Position)
	if err != nil || !s.head.isItem(m) {
		return queuing.Lost, err
	}
	return queuing.Done, nil
}

// expire gives back the items of sessions that are over.
func (s *step) expire(policy queuing.Policy) (positions []messagestore.GlobalPosition, err error) {
	over, err := s.Over(s.now)
	if err != nil {
		return nil, err
	}
	for _, session := range over {
		rows, err := s.OutOf(session)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			delay := time.Duration(0)
			if row.Ends > 0 {
				delay = time.Duration(min(math.Pow(2, float64(min(row.Ends, 12))), 3600)) * time.Second
			}
			entry := queuing.Entry{Version: row.Version, What: queuing.SessionOver, Time: s.now, Session: session}
			// If the session had several items, nobody knows which one ended it, so it is not a
			// failure of any. If it had only this one, it is a failure, and so are the earlier
			// ends.
			alone := len(rows) == 1
			if alone {
				row.Failures = min(max(row.Failures, row.Ends)+1, queuing.MaxFailures)
			}
			row.Ends = min(row.Ends+1, queuing.MaxFailures)
			s.head.Suspects = s.head.Suspects || row.Suspect()
			row.Error = "its session was over"
			s.giveBack(&row, alone && row.Failures >= policy.MaxFailures, policy, delay)
			if err := s.AddEntry(row.Position, entry); err != nil {
				return nil, err
			}
			if err := s.Put(row); err != nil {
				return nil, err
			}
			positions = append(positions, row.Position)
		}
		if err := s.EndSession(session); err != nil {
			return nil, err
		}
		s.changed = true
	}
	return positions, nil
}

// release lets streams go on after items that are finished, dead, or linked to themselves. The
// first row linked to such an item is released, and the other rows are linked to that row. So a
// stream always goes on in its order: the rows linked to an item come after it, and the first row
// of all is one of the unlinked ones. (It is a pairing heap.)
func (s *step) release(positions []messagestore.GlobalPosition) error {
	for len(positions) > 0 {
		position := positions[0]
		positions = positions[1:]
		row, err := s.Row(position)
		if err != nil {
			return err
		}
		if !opens(row) && (row.Place == Out || !row.keepsPlace()) {
			continue
		}
		behind, err := s.Behind(position)
		if err != nil {
			return err
		}
		for i := 1; i < len(behind); i++ {
			behind[i].After = behind[0].Position
			if err := s.Put(behind[i]); err != nil {
				return err
			}
		}
		if len(behind) == 0 {
			continue
		}
		s.changed = true
		first := behind[0]
		first.After = 0
		switch first.Place {
		case Passed:
			err = s.Remove(first.Position)
			positions = append(positions, first.Position)
		case Dead:
			err = s.Put(first)
			positions = append(positions, first.Position)
		case Held:
			err = s.letGo(first)
		default: // Closed
			err = s.Put(first)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *step) letGo(row Row) error {
	row.Place, row.After = Later, 0
	s.head.Suspects = s.head.Suspects || row.Suspect()
	if row.Due.Before(s.now) {
		row.Due, row.Given = s.now, s.now
	}
	return s.Put(row)
}

// orphans releases rows held behind an item that was finished by a caller who could not report it,
// or whose message was removed.
func (s *step) orphans() error {
	if s.now.Before(s.head.Checked.Add(queuing.OrphanInterval)) {
		return nil
	}
	held, err := s.Holds()
	if err != nil || !held {
		return err
	}
	s.head.Checked, s.changed = s.now, true
	loose, err := s.Loose(10_000)
	if err != nil {
		return err
	}
	return s.release(loose)
}

// moveHere moves what the sessions of earlier attempts have out to the session of this take, and
// ends those sessions. It returns how many rows they had; a row whose message was removed is
// finished instead.
func (s *step) moveHere(t queuing.Take, taken *queuing.Taken) (moved int, err error) {
	var rows []Row
	for _, session := range t.Resume {
		out, err := s.OutOf(session)
		if err == nil {
			err = s.EndSession(session)
		}
		if err != nil {
			return 0, err
		}
		rows = append(rows, out...)
	}
	if len(t.Resume) > 0 {
		err = s.dropTickets(func(ticket Ticket) bool { return slices.Contains(t.Resume, ticket.Session) })
	}
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.Position, b.Position) })
	s.head.Taken -= int64(len(rows)) // each was counted before, and is counted again
	left := len(rows)
	return len(rows), s.takeRows(t.Session, rows, &left, taken)
}

// reserve takes items for the session, unless earlier attempts at the take had some.
func (s *step) reserve(t queuing.Take, moved bool, taken *queuing.Taken) error {
	want := min(t.Wants(), queuing.MaxItems)
	var again time.Time // when rows may be reserved that a limit or the line holds back now
	bounded := false
	if s.head.Paused || moved {
		want = 0
	}
	if want > 0 && t.MaxOut > 0 {
		out, err := s.CountOut()
		if err != nil {
			return err
		}
		want = max(0, min(want, t.MaxOut-out))
		bounded = want == 0
	}
	if t.Rate > 0 {
		s.refill(t.Rate, t.Burst)
		if want > 0 && s.head.Tokens < 1 {
			again, bounded = s.now.Add(time.Duration((1-s.head.Tokens)/t.Rate*float64(time.Second))), true
		}
		want = min(want, int(s.head.Tokens))
	}
	if want > 0 && s.head.Suspects {
		waits, next, err := s.takeAlone(t, &want, taken)
		if err != nil {
			return err
		}
		if bounded = bounded || waits; !next.IsZero() && (again.IsZero() || next.Before(again)) {
			again = next
		}
	}
	if want > 0 {
		var err error
		if want, again, err = s.inLine(t, want, again); err != nil {
			return err
		}
		bounded = bounded || want == 0
	}
	asked := want
	s.turns = want > 0 && s.head.Shape != OfStreams && s.head.Taken%8 == 7
	newer, err := s.newer()
	if err != nil {
		return err
	}
	want -= newer
	due, err := s.takeDue(t, &want, taken)
	if err != nil {
		return err
	}
	if t.Slots != 0 && want > 0 && due { // of other slots: the session with those slots takes them
		again, bounded = s.now.Add(time.Second), true
	}
	want += newer
	taken.More = taken.More || newer > 0
	next := s.takeNext
	if s.head.Shape == OfStreams {
		next = func(session int64, want *int, taken *queuing.Taken) error {
			return s.takeStreams(session, t.Wakes, want, taken)
		}
	}
	if err := next(t.Session, &want, taken); err != nil {
		return err
	}
	if err := s.share(t, taken); err != nil {
		return err
	}
	if err := s.account(t, moved, taken); err != nil {
		return err
	}
	taken.More = taken.More || asked > 0 && want == 0
	return s.wake(taken, bounded, again)
}

// newer returns how many of the places are for new items.
func (s *step) newer() (int, error) {
	if !s.turns {
		return 0, nil
	}
	due, err := s.Due(Later, false, s.now, 1)
	if err != nil || len(due) == 0 {
		return 0, err
	}
	next, err := s.Next(s.head.Cursor, 1)
	return len(next), err
}

// takeAlone takes a suspect row if the session has nothing out. It makes the session wait while it
// has a suspect row, and also to get one alone, if no other session waits for that. It returns when
// the next suspect row is due.
func (s *step) takeAlone(t queuing.Take, want *int, taken *queuing.Taken) (waits bool, soon time.Time, err error) {
	mine, err := s.OutOf(t.Session)
	if err != nil {
		return false, soon, err
	}
	suspects, err := s.dueIn(t.Slots, true, endOfTime, queuing.MaxItems)
	if err != nil {
		return false, soon, err
	}
	due := 0
	for due < len(suspects) && !suspects[due].Due.After(s.now) {
		due++
	}
	if due < len(suspects) {
		soon = suspects[due].Due
	}
	switch {
	case slices.ContainsFunc(mine, func(r Row) bool { return r.Suspect() }):
		waits = true
	case due > 0 && len(mine) == 0:
		s.changed, s.head.Apart = true, 0
		one := 1
		err = s.takeRows(t.Session, suspects[:1], &one, taken)
		*want = 0
	case due > 0:
		session, there, err := s.Session(s.head.Apart)
		if err != nil {
			return false, soon, err
		}
		if waits = s.head.Apart == t.Session || !there || !session.Until.After(s.now); waits {
			s.changed = s.changed || s.head.Apart != t.Session
			s.head.Apart = t.Session
		}
	case len(suspects) == 0:
		rows, err := s.outs()
		if err == nil && t.Slots != 0 { // of other slots
			suspects, err = s.Due(Later, true, endOfTime, 1)
		}
		if err != nil {
			return false, soon, err
		}
		if len(suspects) == 0 && !slices.ContainsFunc(rows, func(r Row) bool { return r.Suspect() }) {
			s.head.Suspects, s.changed = false, true
		}
	}
	if waits {
		*want = 0
	}
	return waits, soon, err
}

// outs returns the rows that are out, of all sessions.
func (s *step) outs() (all []Row, err error) {
	sessions, err := s.Sessions()
	for i := 0; err == nil && i < len(sessions); i++ {
		var rows []Row
		rows, err = s.OutOf(sessions[i].Number)
		all = append(all, rows...)
	}
	return all, err
}

// refill adds the tokens for the time since the head last changed. Every take must do this, because
// every take may change the head.
func (s *step) refill(rate float64, burst int) {
	if s.head.Tokens < 0 { // the first
		s.head.Tokens = float64(burst)
		return
	}
	s.head.Tokens = min(float64(burst), s.head.Tokens+rate*s.now.Sub(s.head.At).Seconds())
}

// inLine keeps items for the sessions that came earlier, unless these do not come back.
func (s *step) inLine(t queuing.Take, want int, again time.Time) (int, time.Time, error) {
	tickets, err := s.Tickets()
	if err != nil {
		return 0, again, err
	}
	if slices.ContainsFunc(tickets, func(other Ticket) bool { return other.Session != t.Session && other.Until.After(s.now) }) {
		want = min(want, t.Want)
	}
	kept := 0
	var before []int64
	for _, other := range tickets {
		if t.Ticket != 0 && other.Number >= t.Ticket {
			break
		}
		if other.Session == t.Session {
			continue
		}
		before = append(before, other.Number)
		if other.Until.After(s.now) {
			kept += other.Want
		}
	}
	if kept == 0 {
		return want, again, nil
	}
	due, err := s.Due(Later, false, s.now, kept+want)
	if err != nil {
		return 0, again, err
	}
	next, err := s.Next(s.head.Cursor, kept+want)
	if err != nil {
		return 0, again, err
	}
	var oldest time.Time
	older := func(at time.Time) {
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	for _, row := range due {
		older(row.Due)
	}
	for _, m := range next {
		if m.Time.After(s.now) { // of a clock that was ahead: nobody knows for how long the message has waited
			older(s.now.Add(-2 * queuing.Patience))
		} else {
			older(m.Time)
		}
	}
	there := len(due) + len(next)
	if there > 0 && oldest.Before(s.now.Add(-queuing.Patience)) {
		for _, number := range before {
			if err := s.DropTicket(number); err != nil {
				return 0, again, err
			}
		}
		s.changed = true
		return want, again, nil
	}
	if there > 0 {
		again = oldest.Add(queuing.Patience)
	}
	return max(0, min(want, there-kept)), again, nil
}

// resume offers suspended rows after their time has come.
func (s *step) resume() error {
	rows, err := s.Due(Suspended, false, s.now, 10_000)
	if err != nil {
		return err
	}
	for _, row := range rows {
		s.changed = true
		row.Place = Later
		if err := s.Put(row); err != nil {
			return err
		}
	}
	return nil
}

// takeDue takes due rows, and reports whether other slots have due rows.
func (s *step) takeDue(t queuing.Take, want *int, taken *queuing.Taken) (others bool, err error) {
	if *want <= 0 {
		return false, nil
	}
	rows, err := s.dueIn(t.Slots, false, s.now, *want)
	if err == nil {
		err = s.takeRows(t.Session, rows, want, taken)
	}
	if err != nil || t.Slots == 0 {
		return false, err
	}
	rows, err = s.Due(Later, false, s.now, 1)
	return len(rows) > 0, err
}

// dueIn returns rows in order of date that are in the given slots, or have no message any more; 0
// means all slots.
func (s *step) dueIn(slots uint32, suspect bool, until time.Time, limit int) ([]Row, error) {
	if slots == 0 || slots == math.MaxUint32 {
		return s.Due(Later, suspect, until, limit)
	}
	var mine []Row
	rows, err := s.Due(Later, suspect, until, math.MaxInt32)
	for i := 0; err == nil && i < len(rows) && len(mine) < limit; i++ {
		var m *messagestore.Message
		if m, err = s.Message(rows[i].Position); m == nil || slots&(1<<m.Stream.GroupMember(queuing.Slots)) != 0 {
			mine = append(mine, rows[i])
		}
	}
	return mine, err
}

// takeRows takes rows. A row whose message was removed is finished instead.
func (s *step) takeRows(session int64, rows []Row, want *int, taken *queuing.Taken) error {
	for _, row := range rows {
		s.changed = true
		m, err := s.Message(row.Position)
		if err != nil {
			return err
		}
		if m == nil { // it was removed
			s.head.Taken++
			taken.More = true
			if err := s.AddEntry(row.Position, queuing.Entry{Version: row.Version, What: queuing.Removed, Time: s.now}); err != nil {
				return err
			}
			if err := s.Remove(row.Position); err != nil {
				return err
			}
			continue
		}
		row.Place, row.Due, row.Session = Out, time.Time{}, session
		if err := s.Put(row); err != nil {
			return err
		}
		taken.Items = append(taken.Items, queuing.Taking{Message: m, Version: row.Version, Failures: row.Failures})
		*want--
	}
	return nil
}

// maxLooked is how many messages a take from a queue of items reads, about, to find a few of them:
// others wait for it meanwhile.
const maxLooked = 2500

// takeNext moves the cursor of a queue of items.
func (s *step) takeNext(session int64, want *int, taken *queuing.Taken) error {
	last := messagestore.GlobalPosition(0)
	if s.turns {
		last = s.head.Cursor
	}
	var aside []Row
	if err := s.takePages(session, want, last, &aside, taken); err != nil {
		return err
	}
	if *want == 0 {
		return nil
	}
	return s.takeRows(session, aside, want, taken) // there is no other
}

// takePages moves the cursor page by page. In the first page it puts aside the next item of the
// last key.
func (s *step) takePages(session int64, want *int, last messagestore.GlobalPosition, aside *[]Row, taken *queuing.Taken) error {
	for looked, round := 0, 1; *want > 0; round++ {
		page := *want
		if round > 3 { // the next items are held, and there may be many of them
			page = max(*want, 500)
		}
		if looked >= maxLooked {
			taken.More = true
			return nil
		}
		messages, err := s.Next(s.head.Cursor, page)
		if err != nil {
			return err
		}
		looked += len(messages)
		var passed []messagestore.GlobalPosition
		for _, m := range messages {
			if *want == 0 {
				break
			}
			cancelled, err := s.meet(session, m, want, last, aside, taken)
			if err != nil {
				return err
			}
			if cancelled {
				passed = append(passed, m.GlobalPosition)
			}
		}
		last = 0
		if err := s.passAhead(passed); err != nil {
			return err
		}
		taken.More = taken.More || len(passed) > 0
		if len(messages) < page {
			return nil
		}
	}
	return nil
}

// passAhead releases rows behind items that were cancelled beyond the cursor and are not behind an
// open item.
func (s *step) passAhead(passed []messagestore.GlobalPosition) error {
	for _, position := range passed {
		row, err := s.Row(position)
		if err != nil {
			return err
		}
		if row == nil {
			continue // it went with the one before it
		}
		before, err := s.Row(row.After)
		if err != nil {
			return err
		}
		if !opens(before) {
			continue
		}
		if err := s.Remove(position); err != nil {
			return err
		}
		if err := s.release([]messagestore.GlobalPosition{position}); err != nil {
			return err
		}
	}
	return nil
}

// meet places a message that the cursor reaches, and reports whether it was cancelled before.
func (s *step) meet(
	session int64, m *messagestore.Message, want *int, last messagestore.GlobalPosition, aside *[]Row, taken *queuing.Taken,
) (cancelled bool, err error) {
	s.changed = true
	s.head.Cursor = m.GlobalPosition
	if m.IsTombstone() {
		return false, nil
	}
	row := Row{Position: m.GlobalPosition, Place: Out, Session: session}
	if due, ok := DueOf(m); ok && due.After(s.now) {
		row.Place, row.Session, row.Due = Later, 0, due
	}
	isAside := false
	before, err := s.Before(m)
	if err != nil {
		return false, err
	}
	if before != nil {
		open, err := s.Row(before.GlobalPosition)
		if err != nil {
			return false, err
		}
		switch {
		case !opens(open):
			row.Place, row.Session, row.After = Held, 0, before.GlobalPosition
		case row.Place == Out && before.GlobalPosition == last:
			row.Place, row.Session, row.Due, row.Given = Later, 0, s.now, s.now
			isAside = true
		}
	}
	if m.GlobalPosition <= s.head.Ahead {
		entries, err := s.Entries(m.GlobalPosition)
		if err != nil {
			return false, err
		}
		if cancelled = len(entries) > 0 && entries[0].What == queuing.Cancelled; cancelled {
			row.Place, row.Due, row.Session = Passed, time.Time{}, 0
		}
	}
	if err := s.Put(row); err != nil {
		return false, err
	}
	if row.Place == Out {
		taken.Items = append(taken.Items, queuing.Taking{Message: m})
		*want--
	}
	if isAside && !cancelled {
		*aside = append(*aside, row)
	}
	return cancelled, nil
}

// takeStreams moves the cursor of a queue of streams. A page is long, because most messages do not
// offer an item.
func (s *step) takeStreams(session int64, wakes []string, want *int, taken *queuing.Taken) error {
	const pages, page = 8, 500
	for n := 1; n <= pages && *want > 0; n++ {
		size := max(page, *want)
		messages, err := s.Next(s.head.Cursor, size)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if err := s.meetOfStream(session, m, wakes, want, taken); err != nil {
				return err
			}
			if *want == 0 {
				break
			}
		}
		if len(messages) < size {
			return nil
		}
		taken.More = taken.More || n == pages
	}
	return nil
}

// meetOfStream handles a message that the cursor reaches: it opens the item of its stream, or wakes
// it.
func (s *step) meetOfStream(session int64, m *messagestore.Message, wakes []string, want *int, taken *queuing.Taken) error {
	s.changed = true
	s.head.Cursor = m.GlobalPosition
	if m.IsTombstone() || m.Position > 0 && !slices.Contains(wakes, m.Type) {
		return nil
	}
	if m.Position == 0 {
		if m.GlobalPosition <= s.head.Ahead {
			entries, err := s.Entries(m.GlobalPosition)
			if err != nil || len(entries) > 0 { // it was cancelled
				return err
			}
		}
		row := Row{Position: m.GlobalPosition}
		if due, ok := DueOf(m); ok && due.After(s.now) {
			row.Place, row.Due = Later, due
			return s.Put(row)
		}
		return s.offer(session, &row, m, want, taken)
	}
	first, err := s.First(m)
	if err != nil || first == nil {
		return err
	}
	row, err := s.Row(first.GlobalPosition)
	switch {
	case err != nil || row == nil || m.GlobalPosition <= row.Woken:
		return err
	case row.Place == Out:
		row.Woken = m.GlobalPosition
		return s.Put(*row)
	case row.Place.waits() && row.Suspect(): // it is delivered alone, by another take perhaps
		row.Woken = m.GlobalPosition
		if row.Due.After(s.now) {
			row.Due = s.now
		}
		return s.Put(*row)
	case row.Place.waits():
		row.Woken = m.GlobalPosition
		return s.offer(session, row, first, want, taken)
	}
	return nil
}

func (s *step) offer(session int64, row *Row, m *messagestore.Message, want *int, taken *queuing.Taken) error {
	row.Place, row.Due, row.Session = Out, time.Time{}, session
	taken.Items = append(taken.Items, queuing.Taking{Message: m, Version: row.Version, Failures: row.Failures})
	*want--
	return s.Put(*row)
}

// share gives what was reserved beyond the first caller's items to the others.
func (s *step) share(t queuing.Take, taken *queuing.Taken) error {
	at := t.Want
	for _, o := range t.Others {
		for i := at; i < min(at+o.Want, len(taken.Items)); i++ {
			row, err := s.Row(taken.Items[i].Message.GlobalPosition)
			if err != nil {
				return err
			}
			row.Session = o.Session
			if err := s.Put(*row); err != nil {
				return err
			}
		}
		if at < len(taken.Items) {
			if err := s.restart(o.Session, t.Lease); err != nil {
				return err
			}
		}
		at += o.Want
	}
	return nil
}

// account updates the session, the line and the counts.
func (s *step) account(t queuing.Take, moved bool, taken *queuing.Taken) error {
	n := len(taken.Items)
	if n == 0 {
		if t.Want == 0 || t.Wait <= 0 || t.Ticket != 0 {
			return nil
		}
		// The callers of tickets that have ended do not ask any more.
		if err := s.dropTickets(func(t Ticket) bool { return !t.Until.After(s.now) }); err != nil {
			return err
		}
		number, err := s.AddTicket(Ticket{Session: t.Session, Want: t.Want, Until: s.now.Add(t.Wait)})
		taken.Ticket = number
		return err
	}
	if err := s.restart(t.Session, t.Lease); err != nil {
		return err
	}
	s.head.Taken += int64(n)
	if t.Rate > 0 && !moved {
		s.head.Tokens -= float64(n)
	}
	if t.Ticket != 0 {
		return s.DropTicket(t.Ticket)
	}
	return nil
}

// restart begins a session that has reserved items, or restarts its lease if much of it has passed.
func (s *step) restart(number int64, lease time.Duration) error {
	session, there, err := s.Session(number)
	if err != nil || there && !session.Until.Before(s.now.Add(lease*67/100)) {
		return err
	}
	return s.SetSession(Session{number, s.now.Add(lease), lease})
}

func (s *step) dropTickets(are func(Ticket) bool) error {
	tickets, err := s.Tickets()
	if err != nil {
		return err
	}
	for _, t := range tickets {
		if !are(t) {
			continue
		}
		if err := s.DropTicket(t.Number); err != nil {
			return err
		}
	}
	return nil
}

// wake computes when something may become available without a write.
func (s *step) wake(taken *queuing.Taken, bounded bool, again time.Time) error {
	if s.head.Paused {
		return nil
	}
	wake := again
	sooner := func(at time.Time) {
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	if !bounded {
		at, err := s.soonest()
		if err != nil {
			return err
		}
		sooner(at)
	}
	held, err := s.Holds()
	if err != nil {
		return err
	}
	if held {
		sooner(s.head.Checked.Add(queuing.OrphanInterval))
	}
	if bounded && wake.IsZero() {
		wake = s.now.Add(time.Second)
	}
	if !wake.IsZero() {
		taken.Wake = max(0, wake.Sub(s.now))
	}
	return nil
}

var endOfTime = time.Unix(1<<40, 0)

// soonest returns when the first session ends or the first row is due; zero for never.
func (s *step) soonest() (time.Time, error) {
	end, there, err := s.FirstEnd()
	if err != nil {
		return time.Time{}, err
	}
	places := []Place{Later}
	if s.head.Shape == OfStreams {
		places = append(places, Suspended)
	}
	for _, p := range places {
		rows, err := s.Due(p, false, endOfTime, 1)
		if err != nil {
			return time.Time{}, err
		}
		if len(rows) > 0 && (!there || rows[0].Due.Before(end)) {
			end, there = rows[0].Due, true
		}
	}
	return end, nil
}

// DueOf returns the time before which a message is not offered, if its metadata has one.
func DueOf(m *messagestore.Message) (time.Time, bool) {
	raw, ok := m.Metadata.Extra[queuing.DueField]
	if !ok || len(raw) > 18 || raw[0] < '0' || raw[0] > '9' {
		return time.Time{}, false
	}
	micros, err := strconv.ParseInt(string(raw), 10, 64)
	return time.UnixMicro(micros).UTC(), err == nil
}
