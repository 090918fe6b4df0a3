package queuestate

import (
	"errors"
	"slices"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// Ready is [queuing.Driver.QueueReady].
func Ready(r Rows) (queuing.Ready, error) {
	s, err := begin(r)
	if err != nil {
		return queuing.Ready{}, err
	}
	var asked []Row
	if s.head.parks() {
		if asked, err = s.Due(Suspended, false, s.now, 1); err != nil {
			return queuing.Ready{}, err
		}
	}
	if s.head.Paused {
		return queuing.Ready{Wake: -1, Parked: s.head.parks(), Asked: len(asked) > 0}, nil
	}
	var taken queuing.Taken
	taken.Wake = -1
	if err := s.wake(&taken, false, time.Time{}); err != nil {
		return queuing.Ready{}, err
	}
	if s.head.Suspects {
		due, err := s.Due(Later, true, endOfTime, 1)
		if err != nil {
			return queuing.Ready{}, err
		}
		if len(due) > 0 && (taken.Wake < 0 || due[0].Due.Before(s.now.Add(taken.Wake))) {
			taken.Wake = max(0, due[0].Due.Sub(s.now))
		}
	}
	next, err := s.Next(s.head.Cursor, 1)
	if err != nil {
		return queuing.Ready{}, err
	}
	ahead, err := s.Begun(s.clock.Add(queuing.ClockTolerance))
	// A take corrects the times that a clock computed while it was ahead.
	moves := s.isBehind() || len(ahead) > 0
	return queuing.Ready{Ready: taken.Wake == 0 || len(next) > 0 || moves, Wake: taken.Wake, Parked: s.head.parks(), Asked: len(asked) > 0}, err
}

// Extend is [queuing.Driver.QueueExtend].
func Extend(r Rows, e queuing.Extension) (lost []queuing.Delivery, err error) {
	now := r.Now()
	lasts := map[int64]bool{}
	for _, number := range append([]int64{e.Session}, e.Sessions...) {
		if _, met := lasts[number]; met {
			continue
		}
		session, there, err := r.Session(number)
		if err != nil {
			return nil, err
		}
		if lasts[number] = there && session.Until.After(now); !lasts[number] {
			continue
		}
		if session.ahead(now) {
			session.Until = now.Add(session.Lease)
		}
		if err := r.SetSession(session.longer(now, e.Lease)); err != nil {
			return nil, err
		}
	}
	if e.Notes != nil && lasts[e.Session] {
		if err := r.SetNotes(e.Session, e.Notes); err != nil {
			return nil, err
		}
	}
	for i, d := range e.Deliveries {
		session := e.Session
		if len(e.Sessions) > 0 {
			session = e.Sessions[i]
		}
		row, err := r.Row(d.Position)
		if err != nil {
			return nil, err
		}
		if !lasts[session] || row == nil || !row.isOut(d, session) {
			lost = append(lost, d)
		}
	}
	return lost, nil
}

// Leave is [queuing.Driver.QueueLeave].
func Leave(r Rows, l queuing.Leave) error {
	s, err := begin(r)
	if err != nil {
		return err
	}
	var back []messagestore.GlobalPosition
	kept := map[queuing.Delivery]bool{}
	for _, d := range l.Keep {
		kept[d] = l.Next != 0
	}
	rows, err := s.OutOf(l.Session)
	if err != nil {
		return err
	}
	moved := false
	for _, row := range rows {
		if kept[queuing.Delivery{Position: row.Position, Version: row.Version}] {
			row.Session, moved = l.Next, true
		} else {
			entry := queuing.Entry{Version: row.Version, What: queuing.GivenBack, Time: s.now, Session: l.Session}
			if err := s.AddEntry(row.Position, entry); err != nil {
				return err
			}
			s.giveBack(&row, false, queuing.Policy{}, 0)
			s.changed = true
			back = append(back, row.Position)
		}
		if err := s.Put(row); err != nil {
			return err
		}
	}
	if err := s.release(back); err != nil {
		return err
	}
	if moved {
		next, _, err := s.Session(l.Next)
		if err != nil {
			return err
		}
		next.Number = l.Next
		if err := s.SetSession(next.longer(s.now, l.Lease)); err != nil {
			return err
		}
	}
	if err := s.EndSession(l.Session); err != nil {
		return err
	}
	tickets, err := s.Tickets()
	if err != nil {
		return err
	}
	for _, t := range tickets {
		if t.Session == l.Session {
			if err := s.DropTicket(t.Number); err != nil {
				return err
			}
		}
	}
	return s.end()
}

// Finish is [queuing.Driver.QueueFinish].
func Finish(r Rows, q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
	s, err := begin(r)
	if err != nil {
		return nil, err
	}
	if s.head.Shape == OfStreams {
		return nil, refuse("queue", q.Name, "must be a queue of items: a take ends the deliveries of a queue of streams")
	}
	_, known, err := s.Session(session) // in another database, whose positions are alike, it is not
	if err != nil {
		return nil, err
	}
	endings := make([]queuing.Ending, len(deliveries))
	for i, d := range deliveries {
		row, err := s.Row(d.Position)
		if err != nil {
			return nil, err
		}
		switch {
		case row != nil && row.isOut(d, session):
			endings[i], err = queuing.Done, s.complete(row)
		case known:
			endings[i], err = s.ended(d, row, queuing.Complete, 0)
		default:
			endings[i] = queuing.Lost
		}
		if err != nil {
			return nil, err
		}
	}
	return endings, nil
}

// Change is [queuing.Driver.QueueChange].
func Change(r Rows, c queuing.Change) (changed []messagestore.GlobalPosition, err error) {
	s, err := begin(r)
	if err != nil {
		return nil, err
	}
	if c.Action == queuing.Pause || c.Action == queuing.Resume {
		s.changed = s.head.Paused != (c.Action == queuing.Pause)
		s.head.Paused = c.Action == queuing.Pause
		return nil, s.end()
	}
	positions := slices.Compact(slices.Sorted(slices.Values(c.Positions)))
	if c.Action == queuing.RetryNow {
		if positions, err = s.retriable(positions); err != nil {
			return nil, err
		}
	}
	retried := map[messagestore.StreamName]messagestore.GlobalPosition{} // the last of each stream that was dead
	for _, position := range positions {
		did, err := s.change(c, position, retried)
		if err != nil {
			return nil, err
		}
		if did {
			changed = append(changed, position)
		}
	}
	if err := s.release(changed); err != nil {
		return nil, err
	}
	slices.Sort(changed)
	return changed, s.end()
}

// retriable returns the positions of rows that wait, and after them those of dead rows: a retried
// dead row may hold a row that waits.
func (s *step) retriable(positions []messagestore.GlobalPosition) (waiting []messagestore.GlobalPosition, err error) {
	var dead []messagestore.GlobalPosition
	for _, position := range positions {
		row, err := s.Row(position)
		switch {
		case err != nil:
			return nil, err
		case row == nil:
		case row.Place.waits():
			waiting = append(waiting, position)
		case row.Place == Dead || row.Place == Closed:
			dead = append(dead, position)
		}
	}
	return append(waiting, dead...), nil
}

// Remove is [queuing.Driver.QueueRemove] of an existing queue, except for the removal itself: the
// driver does that if the answer says so.
func Remove(r Rows, of queuing.Removal) (removed queuing.RemovedQueue, err error) {
	head, _, err := r.Head()
	if err != nil {
		return removed, err
	}
	status, err := Status(r, 0)
	if err != nil {
		return removed, err
	}
	removed = queuing.RemovedQueue{Out: status.Out, Later: status.Later, Suspended: status.Suspended, Held: status.Held, Dead: status.Dead}
	for from := messagestore.GlobalPosition(0); head.Shape != NoShape && removed.Waiting < queuing.MaxWaiting; {
		items, err := waiting(r, queuing.List{From: from, Limit: queuing.MaxItems})
		if err != nil {
			return removed, err
		}
		removed.Waiting += int64(len(items))
		if len(items) < queuing.MaxItems {
			break
		}
		from = items[len(items)-1].Position + 1
	}
	if of.Unfinished || removed.Unfinished() == 0 {
		removed.Done, removed.NameKept = true, head.Shape != NoShape && !head.parks() && !of.FreeName
	}
	return removed, nil
}

// Park is [queuing.Driver.QueuePark].
func Park(r Rows, p queuing.Parking) (parked bool, err error) {
	s, err := begin(r)
	if err != nil {
		return false, err
	}
	if !s.there {
		s.head.Shape, s.head.Cursor = OfItems, queuing.NoCursor
		s.changed = true // even if nothing is parked, or else the queue would seem to follow its category
	}
	if err := s.parks(p.Queue, true); err != nil {
		return false, err
	}
	m, err := s.Message(p.Position)
	if err != nil {
		return false, err
	}
	if m == nil || m.IsTombstone() {
		return false, s.end()
	}
	row, err := s.Row(p.Position)
	if err != nil {
		return false, err
	}
	switch {
	case p.Finished && (row == nil || row.Place != Suspended):
		return false, s.end()
	case p.Finished:
		_, err := s.change(queuing.Change{Queue: p.Queue, Action: queuing.Drop, Reason: p.Error}, p.Position, nil)
		return err == nil, errors.Join(err, s.end())
	case row == nil:
		row = &Row{Position: p.Position}
		entries, err := s.Entries(p.Position)
		if err != nil {
			return false, err
		}
		if n := len(entries); n > 0 {
			row.Version = entries[n-1].Version + 1
		}
	case row.Place == Suspended && !p.Asked, row.Place == Passed:
	default:
		return false, nil
	}
	s.changed = true
	row.Place, row.Session, row.Due, row.Failures, row.Ends, row.Error = Suspended, 0, time.Time{}, p.Failures, 0, p.Error
	if !p.Asked {
		entry := queuing.Entry{Version: row.Version, What: queuing.Buried, Time: s.now, Text: p.Error}
		if err := s.AddEntry(p.Position, entry); err != nil {
			return false, err
		}
		row.Place = Dead
		row.Version++
	}
	if err := s.Put(*row); err != nil {
		return false, err
	}
	return true, s.end()
}

func (s *step) change(c queuing.Change, position messagestore.GlobalPosition, retried map[messagestore.StreamName]messagestore.GlobalPosition) (bool, error) {
	row, err := s.Row(position)
	if err != nil {
		return false, err
	}
	if row == nil {
		return s.cancelAhead(c, position)
	}
	entry := queuing.Entry{Version: row.Version, Time: s.now, Session: row.Session, Text: c.Reason}
	switch {
	case row.Place == Passed:
		return false, nil
	case c.Action == queuing.RetryNow:
		place := row.Place
		if place == Suspended {
			row.After = 0
		}
		row.Place, row.Due, row.Given, entry.What = Later, s.now, s.now, queuing.Retried
		row.Version++
		if place == Dead || place == Closed {
			row.Failures, row.Ends = 0, 0
			err = s.retry(row, retried)
		}
		if err == nil {
			err = s.Put(*row)
		}
	case c.Action == queuing.Drop && row.Place == Out:
		return false, nil
	default:
		entry.What = queuing.Dropped
		if c.Action == queuing.Cancel {
			entry.What = queuing.Cancelled
		}
		if row.Place != Out {
			s.head.Finished++
		}
		if row.linked() {
			row.Place, row.Due, row.Session = Passed, time.Time{}, 0
			err = s.Put(*row)
		} else {
			err = s.Remove(position)
		}
	}
	s.changed = true
	if err != nil {
		return false, err
	}
	return true, s.AddEntry(position, entry)
}

// retry holds a retried dead row if another row of its stream goes first: a row that is out, or an
// earlier one that waits for its time or is closed. A later row that is not out waits for this one.
func (s *step) retry(row *Row, retried map[messagestore.StreamName]messagestore.GlobalPosition) error {
	m, err := s.Message(row.Position)
	if err != nil || m == nil || s.head.Shape == OfStreams {
		return err // its message was removed: a take finds that out
	}
	before, is := retried[m.Stream]
	retried[m.Stream] = row.Position
	switch {
	case row.linked():
		row.Place = Held
		return nil
	case is:
		row.Place, row.After = Held, before
		return nil
	}
	last, err := s.Last(m, s.head.Cursor)
	if err != nil {
		return err
	}
	first, err := s.firstOf(last.GlobalPosition)
	switch {
	case err != nil:
		return err
	case first == nil:
		return s.keepPlace(last.GlobalPosition, row.Position)
	case first.Position == row.Position: // it was closed
	case first.Place == Out || first.Position < row.Position:
		row.Place, row.After = Held, first.Position
		if row.Position < first.Position {
			first.After = first.Position
			return s.Put(*first)
		}
	default:
		first.After = row.Position
		if first.Place == Later {
			first.Place = Held
		}
		return s.Put(*first)
	}
	return nil
}

// firstOf returns the row to which a row is linked, possibly through others, and which is not
// linked itself. It returns nil if no row of the stream waits for anything.
func (s *step) firstOf(position messagestore.GlobalPosition) (*Row, error) {
	for at := position; ; {
		row, err := s.Row(at)
		switch {
		case err != nil:
			return nil, err
		case opens(row) && at == position:
			return nil, nil
		case opens(row) || row.keepsPlace() && row.Place != Out: // it was finished, unreported
			if err := s.release([]messagestore.GlobalPosition{at}); err != nil {
				return nil, err
			}
			at = position
		case row.linked() && !row.keepsPlace():
			at = row.After
		default:
			return row, nil
		}
	}
}

// keepPlace links the last message of a stream to a row that must go on before any later message.
func (s *step) keepPlace(last, before messagestore.GlobalPosition) error {
	if last == before {
		return nil
	}
	row, err := s.Row(last)
	if err != nil {
		return err
	}
	if row == nil { // it is finished
		row = &Row{Position: last, Place: Passed}
		entries, err := s.Entries(last)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if row.Version = e.Version; e.What != queuing.Dropped && e.What != queuing.Cancelled {
				row.Version++
			}
		}
	}
	row.After = before
	return s.Put(*row)
}

// cancelAhead cancels an item beyond the cursor.
func (s *step) cancelAhead(c queuing.Change, position messagestore.GlobalPosition) (bool, error) {
	if c.Action != queuing.Cancel || position <= s.head.Cursor {
		return false, nil
	}
	m, err := s.Message(position)
	if err != nil || !s.head.isItem(m) {
		return false, err
	}
	entries, err := s.Entries(position)
	if err != nil || len(entries) > 0 {
		return false, err
	}
	s.changed = true
	s.head.Finished++
	s.head.Ahead = max(s.head.Ahead, position)
	return true, s.AddEntry(position, queuing.Entry{What: queuing.Cancelled, Time: s.now, Text: c.Reason})
}

// isItem reports whether a message is an item of the queue.
func (h Head) isItem(m *messagestore.Message) bool {
	return m != nil && !m.IsTombstone() && (h.Shape != OfStreams || m.Position == 0)
}

var states = map[Place]queuing.State{
	Out: queuing.Out, Later: queuing.Later, Held: queuing.Held, Dead: queuing.Dead, Closed: queuing.Dead, Passed: queuing.Finished,
	Suspended: queuing.Suspended,
}

func itemOf(r Rows, row *Row, m *messagestore.Message) (item queuing.Item, err error) {
	item = queuing.Item{
		Message: m, Position: row.Position, State: states[row.Place], Version: row.Version, Failures: row.Failures, Session: row.Session,
		Due: row.Due, Closed: row.Place == Closed, Error: row.Error,
	}
	if row.Place == Held || row.Place == Passed && !row.keepsPlace() {
		item.Behind = row.After
	}
	if row.Place == Out {
		var session Session
		if session, _, err = r.Session(row.Session); err != nil {
			return item, err
		}
		item.Until = session.Until
		item.Note, err = r.Note(row.Session, queuing.Delivery{Position: row.Position, Version: row.Version})
	}
	return item, err
}

// Item is [queuing.Driver.QueueItem].
func Item(r Rows, position messagestore.GlobalPosition) (queuing.Item, error) {
	head, _, err := r.Head()
	if err != nil {
		return queuing.Item{}, err
	}
	row, err := r.Row(position)
	if err != nil {
		return queuing.Item{}, err
	}
	m, err := r.Message(position)
	if err != nil {
		return queuing.Item{}, err
	}
	entries, err := r.Entries(position)
	switch {
	case err != nil:
		return queuing.Item{}, err
	case row == nil && (!head.isItem(m) || head.parks() && len(entries) == 0):
		return queuing.Item{}, messagestore.ErrNotFound
	case row != nil:
		item, err := itemOf(r, row, m)
		item.Log = entries
		return item, err
	}
	item := queuing.Item{Message: m, Position: position, State: queuing.Finished, Log: entries}
	item.Due, _ = DueOf(m)
	cancelled := false
	for _, e := range entries {
		item.Version = e.Version + 1
		cancelled = cancelled || e.What == queuing.Cancelled
	}
	if position > head.Cursor && !cancelled {
		item.State = queuing.Waiting
	}
	return item, nil
}

// Items is [queuing.Driver.QueueItems].
func Items(r Rows, l queuing.List) (items []queuing.Item, err error) {
	if l.State == queuing.Waiting {
		return waiting(r, l)
	}
	held := 0
	for from := l.From; len(items) < l.Limit; {
		rows, err := r.Open(from, l.Limit)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			from = row.Position + 1
			if len(items) == l.Limit || states[row.Place] != l.State || row.Place == Passed {
				continue
			}
			m, err := r.Message(row.Position)
			if err != nil {
				return nil, err
			}
			item, err := itemOf(r, &row, m)
			if err != nil {
				return nil, err
			}
			if held += sizeOf(m); held > queuing.MaxListBytes && len(items) > 0 {
				return items, nil
			}
			items = append(items, item)
		}
		if len(rows) < l.Limit {
			break
		}
	}
	return items, nil
}

func sizeOf(m *messagestore.Message) int {
	if m == nil {
		return 0
	}
	return len(m.Data)
}

func waiting(r Rows, l queuing.List) (items []queuing.Item, err error) {
	head, _, err := r.Head()
	if err != nil {
		return nil, err
	}
	held := 0
	for after := max(head.Cursor, l.From-1); len(items) < l.Limit; {
		messages, err := r.Next(after, l.Limit)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			after = m.GlobalPosition
			if len(items) == l.Limit || !head.isItem(m) {
				continue
			}
			item, err := Item(r, m.GlobalPosition)
			if err != nil {
				return nil, err
			}
			if item.State == queuing.Waiting {
				if held += sizeOf(m); held > queuing.MaxListBytes && len(items) > 0 {
					return items, nil
				}
				item.Log = nil
				items = append(items, item)
			}
		}
		if len(messages) < l.Limit {
			break
		}
	}
	return items, nil
}

// liveSessions counts the sessions that are not over. It leaves out a session that was extended
// while the clock was ahead: if its process lives, it extends the session again.
func liveSessions(r Rows, now time.Time) (live int64, err error) {
	sessions, err := r.Sessions()
	for _, session := range sessions {
		if session.Until.After(now) && !session.ahead(now) {
			live++
		}
	}
	return live, err
}

// Status returns the state of a queue, without its name, from at most most open rows; 0 means all.
func Status(r Rows, most int) (queuing.Status, error) {
	head, _, err := r.Head()
	if err != nil {
		return queuing.Status{}, err
	}
	status := queuing.Status{Streams: head.Shape == OfStreams, Parked: head.parks(), Paused: head.Paused, Cursor: head.Cursor, Taken: head.Taken, Back: head.Returned, Buried: head.Buried, Time: r.Now(), Changed: head.At}
	if status.Sessions, err = liveSessions(r, status.Time); err != nil {
		return queuing.Status{}, err
	}
	oldest := messagestore.GlobalPosition(0)
	counted := 0
	for from := messagestore.GlobalPosition(0); !status.Partial; {
		rows, err := r.Open(from, 1000)
		if err != nil {
			return queuing.Status{}, err
		}
		for _, row := range rows {
			from = row.Position + 1
			if counted++; counted == most {
				status.Partial = true
			}
			switch row.Place {
			case Out:
				status.Out++
			case Later:
				status.Later++
				if !row.Due.After(status.Time) {
					status.Due++
				}
			case Suspended:
				status.Suspended++
			case Held:
				status.Held++
			case Dead, Closed:
				status.Dead++
			case Passed:
			}
			if oldest == 0 && row.Place != Dead && row.Place != Closed && row.Place != Passed {
				oldest = row.Position
			}
		}
		if len(rows) < 1000 {
			break
		}
	}
	// If a delivery was neither given back nor buried and is not out, it has finished its item, in
	// its own or a caller's transaction.
	status.Finished = head.Finished + head.Taken - head.Returned - head.Buried - status.Out
	next, err := r.Next(head.Cursor, 1)
	if err != nil {
		return queuing.Status{}, err
	}
	status.Waiting = len(next) > 0
	if oldest > 0 {
		m, err := r.Message(oldest)
		if err != nil {
			return queuing.Status{}, err
		}
		if m != nil {
			status.Oldest = m.Time
		}
	} else if len(next) > 0 {
		status.Oldest = next[0].Time
	}
	return status, nil
}
