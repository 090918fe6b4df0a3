package memory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/dibs-go/dibs/internal/queuestate"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A Driver has queues too: this file keeps their state in memory.
var _ queuing.Driver = (*Driver)(nil)

// A queue is the state of a queue. It implements [queuestate.Rows] while the driver is locked.
type queue struct {
	driver   *Driver
	of       queuing.Queue
	removed  bool // removed, and only its name is kept
	head     queuestate.Head
	there    bool
	rows     map[messagestore.GlobalPosition]queuestate.Row
	sessions map[int64]queuestate.Session
	ends     moments                 // of the sessions
	begun    moments                 // their leases
	notes    map[int64]queuing.Notes // of each session
	tickets  []queuestate.Ticket
	last     int64 // ticket
	log      map[messagestore.GlobalPosition][]queuing.Entry
}

// queue returns a queue, or a new one if it does not exist. With keep, it refuses a queue that was
// removed.
func (d *Driver) queue(of queuing.Queue, keep bool) (*queue, error) {
	q := d.queues[of.Name]
	if q != nil && q.of == of && q.removed {
		if keep {
			return nil, queuing.ErrRemoved
		}
		q = nil
	}
	if q == nil {
		if keep && d.queuesOf(of.Category) >= queuing.MaxQueues {
			return nil, queuing.ErrTooManyQueues
		}
		q = &queue{
			driver: d, of: of, rows: map[messagestore.GlobalPosition]queuestate.Row{}, sessions: map[int64]queuestate.Session{},
			notes: map[int64]queuing.Notes{}, log: map[messagestore.GlobalPosition][]queuing.Entry{},
		}
	}
	if q.of.Category != of.Category {
		return nil, messagestore.NewInvalidError("category", string(of.Category), "must be the one that the queue reads, and queue "+of.Name+" reads "+string(q.of.Category))
	}
	return q, nil
}

// queuesOf counts the queues of a category.
func (d *Driver) queuesOf(category messagestore.Category) (n int) {
	for _, q := range d.queues {
		if q.of.Category == category && !q.removed {
			n++
		}
	}
	return n
}

// onQueue calls f with a queue. With keep, it adds the queue if it does not exist.
func onQueue[T any](ctx context.Context, d *Driver, of queuing.Queue, keep bool, f func(queuestate.Rows) (T, error)) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q, err := d.queue(of, keep)
	if err != nil {
		return answer, err
	}
	if keep {
		if d.queues == nil {
			d.queues = map[string]*queue{}
		}
		d.queues[of.Name] = q
	}
	return f(q)
}

// QueueTake implements [queuing.Driver].
func (d *Driver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if err := queuestate.CheckTake(t); err != nil {
		return queuing.Taken{}, err
	}
	return onQueue(ctx, d, t.Queue, t.Slots == 0, func(r queuestate.Rows) (queuing.Taken, error) { return queuestate.Take(r, t) })
}

// QueueReady implements [queuing.Driver].
func (d *Driver) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	return onQueue(ctx, d, q, false, queuestate.Ready)
}

// QueueExtend implements [queuing.Driver].
func (d *Driver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if err := queuestate.CheckExtension(e); err != nil {
		return nil, err
	}
	return onQueue(ctx, d, e.Queue, false, func(r queuestate.Rows) ([]queuing.Delivery, error) { return queuestate.Extend(r, e) })
}

// QueueLeave implements [queuing.Driver].
func (d *Driver) QueueLeave(ctx context.Context, l queuing.Leave) error {
	if err := queuestate.CheckLeave(l); err != nil {
		return err
	}
	_, err := onQueue(ctx, d, l.Queue, true, func(r queuestate.Rows) (struct{}, error) { return struct{}{}, queuestate.Leave(r, l) })
	return err
}

// QueueFinish implements [queuing.Driver].
func (d *Driver) QueueFinish(ctx context.Context, q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
	if err := queuestate.CheckFinish(q, session, deliveries); err != nil {
		return nil, err
	}
	return onQueue(ctx, d, q, false, func(r queuestate.Rows) ([]queuing.Ending, error) { return queuestate.Finish(r, q, session, deliveries) })
}

// QueueChange implements [queuing.Driver].
func (d *Driver) QueueChange(ctx context.Context, c queuing.Change) ([]messagestore.GlobalPosition, error) {
	if err := queuestate.CheckChange(c); err != nil {
		return nil, err
	}
	return onQueue(ctx, d, c.Queue, true, func(r queuestate.Rows) ([]messagestore.GlobalPosition, error) { return queuestate.Change(r, c) })
}

// QueuePark implements [queuing.Driver].
func (d *Driver) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	if err := queuestate.CheckParking(p); err != nil {
		return false, err
	}
	return onQueue(ctx, d, p.Queue, true, func(r queuestate.Rows) (bool, error) { return queuestate.Park(r, p) })
}

// QueueRemove implements [queuing.Driver].
func (d *Driver) QueueRemove(ctx context.Context, r queuing.Removal) (removed queuing.RemovedQueue, err error) {
	if err := errors.Join(ctx.Err(), queuestate.CheckQueue(r.Queue)); err != nil {
		return removed, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch q := d.queues[r.Name]; {
	case q == nil:
		return queuing.RemovedQueue{Done: true}, nil
	case q.of == r.Queue && q.removed:
		removed = queuing.RemovedQueue{Done: true, NameKept: !r.FreeName}
	default:
		if q, err = d.queue(r.Queue, false); err == nil {
			removed, err = queuestate.Remove(q, r)
		}
	}
	switch {
	case err != nil || !removed.Done:
		return removed, err
	case removed.NameKept:
		d.queues[r.Name] = &queue{driver: d, of: r.Queue, removed: true}
	default:
		delete(d.queues, r.Name)
	}
	return removed, nil
}

// QueueItem implements [queuing.Driver].
func (d *Driver) QueueItem(ctx context.Context, q queuing.Queue, position messagestore.GlobalPosition) (queuing.Item, error) {
	return onQueue(ctx, d, q, false, func(r queuestate.Rows) (queuing.Item, error) { return queuestate.Item(r, position) })
}

// QueueItems implements [queuing.Driver].
func (d *Driver) QueueItems(ctx context.Context, l queuing.List) ([]queuing.Item, error) {
	if err := queuestate.CheckList(l); err != nil {
		return nil, err
	}
	return onQueue(ctx, d, l.Queue, false, func(r queuestate.Rows) ([]queuing.Item, error) { return queuestate.Items(r, l) })
}

// QueueStatus implements [queuing.Driver].
func (d *Driver) QueueStatus(ctx context.Context, q queuing.Queue) (queuing.Status, error) {
	if err := ctx.Err(); err != nil {
		return queuing.Status{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	of := d.queues[q.Name]
	if of == nil || of.of != q || of.removed {
		return queuing.Status{}, messagestore.ErrNotFound
	}
	status, err := queuestate.Status(of, queuing.MaxCount)
	status.Queue = q
	return status, err
}

// Queues implements [queuing.Driver].
func (d *Driver) Queues(ctx context.Context) ([]queuing.Status, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []queuing.Status
	for _, name := range slices.Sorted(maps.Keys(d.queues)) {
		if d.queues[name].removed {
			continue
		}
		status, err := queuestate.Status(d.queues[name], 0)
		if err != nil {
			return nil, err
		}
		status.Queue = d.queues[name].of
		all = append(all, status)
	}
	return all, nil
}

func (q *queue) Now() time.Time { return q.driver.now() }

func (q *queue) Head() (queuestate.Head, bool, error) { return q.head, q.there, nil }

func (q *queue) SetHead(h queuestate.Head) error {
	q.head, q.there = h, true
	return nil
}

func (q *queue) Row(position messagestore.GlobalPosition) (*queuestate.Row, error) {
	row, ok := q.rows[position]
	if !ok {
		return nil, nil //nolint:nilnil // as the interface has it
	}
	return &row, nil
}

func (q *queue) Put(row queuestate.Row) error {
	q.rows[row.Position] = row
	return nil
}

func (q *queue) Remove(position messagestore.GlobalPosition) error {
	delete(q.rows, position)
	return nil
}

// where returns the rows that satisfy is, in order of position.
func (q *queue) where(is func(queuestate.Row) bool) []queuestate.Row {
	var rows []queuestate.Row
	for _, row := range q.rows {
		if is(row) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b queuestate.Row) int { return cmp.Compare(a.Position, b.Position) })
	return rows
}

func (q *queue) OutOf(session int64) ([]queuestate.Row, error) {
	return q.where(func(r queuestate.Row) bool { return r.Place == queuestate.Out && r.Session == session }), nil
}

func (q *queue) CountOut() (int, error) {
	return len(q.where(func(r queuestate.Row) bool { return r.Place == queuestate.Out })), nil
}

func (q *queue) Behind(position messagestore.GlobalPosition) ([]queuestate.Row, error) {
	return q.where(func(r queuestate.Row) bool {
		return r.After == position && r.Place != queuestate.Out
	}), nil
}

func (q *queue) Due(p queuestate.Place, suspect bool, until time.Time, limit int) ([]queuestate.Row, error) {
	rows := q.where(func(r queuestate.Row) bool { return r.Place == p && r.Suspect() == suspect && !r.Due.After(until) })
	slices.SortStableFunc(rows, func(a, b queuestate.Row) int { return a.Due.Compare(b.Due) })
	return rows[:min(len(rows), limit)], nil
}

func (q *queue) Open(from messagestore.GlobalPosition, limit int) ([]queuestate.Row, error) {
	rows := q.where(func(r queuestate.Row) bool { return r.Position >= from })
	return rows[:min(len(rows), limit)], nil
}

func (q *queue) Holds() (bool, error) {
	for _, row := range q.rows {
		if row.After != 0 {
			return true, nil
		}
	}
	return false, nil
}

func (q *queue) Loose(limit int) (loose []messagestore.GlobalPosition, err error) {
	for _, row := range q.rows {
		before, open := q.rows[row.After]
		if row.After != 0 && row.Place != queuestate.Out && (!open || before.Place == queuestate.Dead && before.After == 0 || row.After == row.Position) {
			loose = append(loose, row.After)
		}
	}
	slices.Sort(loose)
	loose = slices.Compact(loose)
	return loose[:min(len(loose), limit)], nil
}

func (q *queue) Session(session int64) (queuestate.Session, bool, error) {
	s, ok := q.sessions[session]
	return s, ok, nil
}

func (q *queue) Sessions() ([]queuestate.Session, error) {
	return slices.Collect(maps.Values(q.sessions)), nil
}

func (q *queue) Begun(after time.Time) (begun []queuestate.Session, err error) {
	for _, m := range slices.Backward(q.begun) {
		if !m.at.After(after) {
			break
		}
		begun = append(begun, q.sessions[m.session])
	}
	return begun, nil
}

func (q *queue) SetSession(s queuestate.Session) error {
	q.forgetSession(s.Number)
	q.sessions[s.Number] = s
	q.ends.add(moment{s.Until, s.Number})
	q.begun.add(moment{s.Until.Add(-s.Lease), s.Number})
	return nil
}

func (q *queue) forgetSession(session int64) {
	if s, there := q.sessions[session]; there {
		q.ends.remove(moment{s.Until, session})
		q.begun.remove(moment{s.Until.Add(-s.Lease), session})
		delete(q.sessions, session)
	}
}

// A moment is a time of a session.
type moment struct {
	at      time.Time
	session int64
}

func (m moment) compare(other moment) int {
	return cmp.Or(m.at.Compare(other.at), cmp.Compare(m.session, other.session))
}

// moments are in order, so that no call goes through all sessions.
type moments []moment

func (all *moments) add(m moment) {
	i, _ := slices.BinarySearchFunc(*all, m, moment.compare)
	*all = slices.Insert(*all, i, m)
}

func (all *moments) remove(m moment) {
	if i, there := slices.BinarySearchFunc(*all, m, moment.compare); there {
		*all = slices.Delete(*all, i, i+1)
	}
}

func (q *queue) Note(session int64, of queuing.Delivery) (string, error) {
	return q.notes[session][of], nil
}

func (q *queue) SetNotes(session int64, notes queuing.Notes) error {
	q.notes[session] = maps.Clone(notes)
	return nil
}

func (q *queue) EndSession(session int64) error {
	q.forgetSession(session)
	delete(q.notes, session)
	return nil
}

func (q *queue) Over(until time.Time) ([]int64, error) {
	var over []int64
	for _, m := range q.ends {
		if m.at.After(until) {
			break
		}
		over = append(over, m.session)
	}
	return over, nil
}

func (q *queue) FirstEnd() (first time.Time, there bool, err error) {
	if len(q.ends) == 0 {
		return time.Time{}, false, nil
	}
	return q.ends[0].at, true, nil
}

func (q *queue) Tickets() ([]queuestate.Ticket, error) { return slices.Clone(q.tickets), nil }

func (q *queue) AddTicket(t queuestate.Ticket) (int64, error) {
	q.last++
	t.Number = q.last
	q.tickets = append(q.tickets, t)
	return t.Number, nil
}

func (q *queue) DropTicket(number int64) error {
	q.tickets = slices.DeleteFunc(q.tickets, func(t queuestate.Ticket) bool { return t.Number == number })
	return nil
}

func (q *queue) Entries(position messagestore.GlobalPosition) ([]queuing.Entry, error) {
	return slices.Clone(q.log[position]), nil
}

func (q *queue) AddEntry(position messagestore.GlobalPosition, e queuing.Entry) error {
	if !slices.ContainsFunc(q.log[position], func(other queuing.Entry) bool { return other.Version == e.Version }) {
		q.log[position] = append(q.log[position], e)
		slices.SortFunc(q.log[position], func(a, b queuing.Entry) int { return cmp.Compare(a.Version, b.Version) })
	}
	return nil
}

func (q *queue) Message(position messagestore.GlobalPosition) (*messagestore.Message, error) {
	found, err := q.Next(position-1, 1)
	if err != nil || len(found) == 0 || found[0].GlobalPosition != position {
		return nil, err
	}
	return found[0], nil
}

func (q *queue) Next(after messagestore.GlobalPosition, limit int) ([]*messagestore.Message, error) {
	all := q.driver.categories[q.of.Category]
	from := sort.Search(len(all), func(i int) bool { return all[i].recorded.GlobalPosition > after })
	var found []*messagestore.Message
	for _, m := range all[from:min(len(all), from+limit)] {
		found = append(found, m.copy())
	}
	return found, nil
}

func (q *queue) Before(m *messagestore.Message) (*messagestore.Message, error) {
	all := q.driver.streams[m.Stream]
	i := at(all, m.Position-1)
	if i >= len(all) || all[i].recorded.Position != m.Position-1 {
		return nil, nil //nolint:nilnil // as the interface has it
	}
	return all[i].copy(), nil
}

func (q *queue) Last(m *messagestore.Message, upTo messagestore.GlobalPosition) (*messagestore.Message, error) {
	all := q.driver.streams[m.Stream]
	i := sort.Search(len(all), func(i int) bool { return all[i].recorded.GlobalPosition > upTo })
	if i == 0 {
		return nil, nil //nolint:nilnil // as the interface has it
	}
	return all[i-1].copy(), nil
}

func (q *queue) First(m *messagestore.Message) (*messagestore.Message, error) {
	all := q.driver.streams[m.Stream]
	if len(all) == 0 || all[0].recorded.Position != 0 {
		return nil, nil //nolint:nilnil // as the interface has it
	}
	return all[0].copy(), nil
}
