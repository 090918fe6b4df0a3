package sqlite

import (
	"context"
	"database/sql"
	_ "embed" // for SQL
	"fmt"
	"time"

	"github.com/dibs-go/dibs/internal/queuestate"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// A Driver has queues too: this file keeps their rows in SQLite.
var _ queuing.Driver = (*Driver)(nil)

var (
	//go:embed sql/queue_add.sql
	queueAddSQL string
	//go:embed sql/queue_add_entry.sql
	queueAddEntrySQL string
	//go:embed sql/queue_add_ticket.sql
	queueAddTicketSQL string
	//go:embed sql/queue_all.sql
	queueAllSQL string
	//go:embed sql/queue_at.sql
	queueAtSQL string
	//go:embed sql/queue_behind.sql
	queueBehindSQL string
	//go:embed sql/queue_begun.sql
	queueBegunSQL string
	//go:embed sql/queue_clear_log.sql
	queueClearLogSQL string
	//go:embed sql/queue_clear_open.sql
	queueClearOpenSQL string
	//go:embed sql/queue_clear_sessions.sql
	queueClearSessionsSQL string
	//go:embed sql/queue_clear_tickets.sql
	queueClearTicketsSQL string
	//go:embed sql/queue_count_out.sql
	queueCountOutSQL string
	//go:embed sql/queue_drop_ticket.sql
	queueDropTicketSQL string
	//go:embed sql/queue_due.sql
	queueDueSQL string
	//go:embed sql/queue_end_session.sql
	queueEndSessionSQL string
	//go:embed sql/queue_entries.sql
	queueEntriesSQL string
	//go:embed sql/queue_find.sql
	queueFindSQL string
	//go:embed sql/queue_first_end.sql
	queueFirstEndSQL string
	//go:embed sql/queue_forget.sql
	queueForgetSQL string
	//go:embed sql/queue_free_name.sql
	queueFreeNameSQL string
	//go:embed sql/queue_head.sql
	queueHeadSQL string
	//go:embed sql/queue_holds.sql
	queueHoldsSQL string
	//go:embed sql/queue_keep_name.sql
	queueKeepNameSQL string
	//go:embed sql/queue_last.sql
	queueLastSQL string
	//go:embed sql/queue_loose.sql
	queueLooseSQL string
	//go:embed sql/queue_message.sql
	queueMessageSQL string
	//go:embed sql/queue_note.sql
	queueNoteSQL string
	//go:embed sql/queue_open.sql
	queueOpenSQL string
	//go:embed sql/queue_open_item.sql
	queueOpenItemSQL string
	//go:embed sql/queue_out_of.sql
	queueOutOfSQL string
	//go:embed sql/queue_over.sql
	queueOverSQL string
	//go:embed sql/queue_put.sql
	queuePutSQL string
	//go:embed sql/queue_reads.sql
	queueReadsSQL string
	//go:embed sql/queue_remove.sql
	queueRemoveSQL string
	//go:embed sql/queue_row.sql
	queueRowSQL string
	//go:embed sql/queue_session.sql
	queueSessionSQL string
	//go:embed sql/queue_sessions.sql
	queueSessionsSQL string
	//go:embed sql/queue_set_head.sql
	queueSetHeadSQL string
	//go:embed sql/queue_set_notes.sql
	queueSetNotesSQL string
	//go:embed sql/queue_set_session.sql
	queueSetSessionSQL string
	//go:embed sql/queue_tickets.sql
	queueTicketsSQL string
)

// A queue is a queue's rows, in a transaction. It implements [queuestate.Rows].
type queue struct {
	ctx     context.Context //nolint:containedctx // of the transaction
	db      queryer
	id      int64 // 0 for a queue that does not exist yet: it has no rows
	of      queuing.Queue
	removed bool // removed, and only its name is kept: it has no rows
	now     time.Time
}

// queueOf finds a queue. With keep, it adds the queue if it does not exist, and refuses it if it
// was removed. It also refuses a queue of another category.
func queueOf(ctx context.Context, db queryer, of queuing.Queue, keep bool, now time.Time) (q *queue, refused, err error) {
	q = &queue{ctx: ctx, db: db, of: of, now: now}
	var category string
	found, err := scanOne(ctx, db, queueFindSQL, []any{of.Name}, &q.id, &category, &q.removed)
	switch {
	case err != nil:
		return nil, nil, err
	case found && category != string(of.Category):
		return nil, messagestore.NewInvalidError("category", string(of.Category), "must be the one that the queue reads, and queue "+of.Name+" reads "+category), nil
	case q.removed && keep:
		return nil, queuing.ErrRemoved, nil
	case !found && keep:
		found, err = scanOne(ctx, db, queueAddSQL, []any{of.Name, string(of.Category), queuing.MaxQueues}, &q.id)
		if err == nil && !found {
			return nil, queuing.ErrTooManyQueues, nil
		}
	}
	return q, nil, err
}

// changeQueue calls f in a transaction that can write. If nobody knows whether it was committed, it
// returns an error of unknown outcome.
func changeQueue[T any](ctx context.Context, d *Driver, of queuing.Queue, inTransaction bool, f func(queuestate.Rows) (T, error)) (answer T, err error) {
	keep := !inTransaction // a transaction of another database does not have the queue
	return writeQueue(ctx, d, of, inTransaction, keep, func(q *queue) (T, error) { return f(q) })
}

func writeQueue[T any](ctx context.Context, d *Driver, of queuing.Queue, inTransaction, keep bool, f func(*queue) (T, error)) (T, error) {
	var none T
	if d.transactions == nil && !inTransaction {
		return none, fmt.Errorf("%w: a queue is changed in a step of its own, not in a transaction of the caller's", messagestore.ErrNotSupported)
	}
	var answer T // read answer and refused only after success, like the variables of change
	var refused error
	err := d.writes.do(ctx, &job{
		run: func(ctx context.Context, db queryer) error {
			q, no, err := queueOf(ctx, db, of, keep, d.clock.now())
			if refused = no; err != nil || no != nil {
				return err
			}
			answer, err = f(q)
			return err
		},
		unknown: func(cause error) error { return &messagestore.OutcomeUnknownError{Cause: cause} },
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return none, explain(err)
	}
	return answer, nil
}

func readQueue[T any](ctx context.Context, d *Driver, of queuing.Queue, f func(queuestate.Rows) (T, error)) (answer T, err error) {
	err = d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		q, refused, err := queueOf(ctx, db, of, false, d.clock.now())
		if err == nil {
			err = refused
		}
		if err == nil {
			answer, err = f(q)
		}
		return err
	})
	return answer, explain(err)
}

// QueueTake implements [queuing.Driver].
func (d *Driver) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	if err := queuestate.CheckTake(t); err != nil {
		return queuing.Taken{}, err
	}
	return writeQueue(ctx, d, t.Queue, false, t.Slots == 0, func(q *queue) (queuing.Taken, error) { return queuestate.Take(q, t) })
}

// QueueReady implements [queuing.Driver].
func (d *Driver) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	return readQueue(ctx, d, q, queuestate.Ready)
}

// QueueExtend implements [queuing.Driver].
func (d *Driver) QueueExtend(ctx context.Context, e queuing.Extension) ([]queuing.Delivery, error) {
	if err := queuestate.CheckExtension(e); err != nil {
		return nil, err
	}
	return writeQueue(ctx, d, e.Queue, false, false, func(q *queue) ([]queuing.Delivery, error) { return queuestate.Extend(q, e) })
}

// QueueLeave implements [queuing.Driver].
func (d *Driver) QueueLeave(ctx context.Context, l queuing.Leave) error {
	if err := queuestate.CheckLeave(l); err != nil {
		return err
	}
	_, err := changeQueue(ctx, d, l.Queue, false, func(r queuestate.Rows) (struct{}, error) { return struct{}{}, queuestate.Leave(r, l) })
	return err
}

// QueueFinish implements [queuing.Driver].
func (d *Driver) QueueFinish(ctx context.Context, q queuing.Queue, session int64, deliveries []queuing.Delivery) ([]queuing.Ending, error) {
	if err := queuestate.CheckFinish(q, session, deliveries); err != nil {
		return nil, err
	}
	return changeQueue(ctx, d, q, true, func(r queuestate.Rows) ([]queuing.Ending, error) { return queuestate.Finish(r, q, session, deliveries) })
}

// QueueChange implements [queuing.Driver].
func (d *Driver) QueueChange(ctx context.Context, c queuing.Change) ([]messagestore.GlobalPosition, error) {
	if err := queuestate.CheckChange(c); err != nil {
		return nil, err
	}
	return changeQueue(ctx, d, c.Queue, false, func(r queuestate.Rows) ([]messagestore.GlobalPosition, error) { return queuestate.Change(r, c) })
}

// QueuePark implements [queuing.Driver].
func (d *Driver) QueuePark(ctx context.Context, p queuing.Parking) (bool, error) {
	if err := queuestate.CheckParking(p); err != nil {
		return false, err
	}
	return changeQueue(ctx, d, p.Queue, false, func(r queuestate.Rows) (bool, error) { return queuestate.Park(r, p) })
}

// QueueRemove implements [queuing.Driver].
func (d *Driver) QueueRemove(ctx context.Context, r queuing.Removal) (queuing.RemovedQueue, error) {
	if err := queuestate.CheckQueue(r.Queue); err != nil {
		return queuing.RemovedQueue{}, err
	}
	return writeQueue(ctx, d, r.Queue, false, false, func(q *queue) (removed queuing.RemovedQueue, err error) {
		switch {
		case q.id == 0:
			return queuing.RemovedQueue{Done: true}, nil
		case q.removed:
			removed = queuing.RemovedQueue{Done: true, NameKept: !r.FreeName}
		default:
			removed, err = queuestate.Remove(q, r)
		}
		if err != nil || !removed.Done {
			return removed, err
		}
		for _, clear := range []string{queueClearOpenSQL, queueClearSessionsSQL, queueClearTicketsSQL, queueClearLogSQL} {
			if err := q.exec(clear); err != nil {
				return removed, err
			}
		}
		if removed.NameKept {
			return removed, q.exec(queueKeepNameSQL, micros(q.now))
		}
		return removed, q.exec(queueFreeNameSQL)
	})
}

// QueueItem implements [queuing.Driver].
func (d *Driver) QueueItem(ctx context.Context, q queuing.Queue, position messagestore.GlobalPosition) (queuing.Item, error) {
	return readQueue(ctx, d, q, func(r queuestate.Rows) (queuing.Item, error) { return queuestate.Item(r, position) })
}

// QueueItems implements [queuing.Driver].
func (d *Driver) QueueItems(ctx context.Context, l queuing.List) ([]queuing.Item, error) {
	if err := queuestate.CheckList(l); err != nil {
		return nil, err
	}
	return readQueue(ctx, d, l.Queue, func(r queuestate.Rows) ([]queuing.Item, error) { return queuestate.Items(r, l) })
}

// QueueStatus implements [queuing.Driver].
func (d *Driver) QueueStatus(ctx context.Context, q queuing.Queue) (status queuing.Status, err error) {
	err = d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		of, refused, err := queueOf(ctx, db, q, false, d.clock.now())
		switch {
		case err != nil:
			return err
		case refused != nil || of.id == 0 || of.removed: // refused: it is of another category
			return messagestore.ErrNotFound
		}
		status, err = queuestate.Status(of, queuing.MaxCount)
		status.Queue = q
		return err
	})
	if err != nil {
		return queuing.Status{}, explain(err)
	}
	return status, nil
}

// Queues implements [queuing.Driver].
func (d *Driver) Queues(ctx context.Context) ([]queuing.Status, error) {
	var all []queuing.Status
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		found, err := rowsOf(ctx, db, queueAllSQL, nil, func(rows *sql.Rows) (q queue, err error) {
			q = queue{ctx: ctx, db: db, now: d.clock.now()}
			return q, rows.Scan(&q.id, &q.of.Name, (*string)(&q.of.Category))
		})
		if err != nil {
			return err
		}
		for _, q := range found {
			status, err := queuestate.Status(&q, 0)
			if err != nil {
				return err
			}
			status.Queue = q.of
			all = append(all, status)
		}
		return nil
	})
	if err != nil {
		return nil, explain(err)
	}
	return all, nil
}

// rowsOf returns the results of scan for all rows.
func rowsOf[T any](ctx context.Context, db queryer, statement string, args []any, scan func(*sql.Rows) (T, error)) (all []T, err error) {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func ofMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

func (q *queue) exec(statement string, args ...any) error {
	_, err := q.db.ExecContext(q.ctx, statement, append([]any{q.id}, args...)...)
	return err
}

func (q *queue) one(statement string, args []any, into ...any) (bool, error) {
	return scanOne(q.ctx, q.db, statement, append([]any{q.id}, args...), into...)
}

func (q *queue) Now() time.Time { return q.now }

func (q *queue) Head() (h queuestate.Head, there bool, err error) {
	var at, checked int64
	there, err = q.one(queueHeadSQL, nil, &at, &h.Cursor, &h.Ahead, &checked, &h.Paused, &h.Tokens, &h.Taken, &h.Finished, &h.Returned, &h.Buried, &h.Shape, &h.Suspects, &h.Apart)
	h.At, h.Checked = ofMicros(at), ofMicros(checked)
	return h, there, err
}

func (q *queue) SetHead(h queuestate.Head) error {
	return q.exec(queueSetHeadSQL, micros(h.At), int64(h.Cursor), int64(h.Ahead), micros(h.Checked), h.Paused, h.Tokens, h.Taken, h.Finished, h.Returned, h.Buried, h.Shape, h.Suspects, h.Apart)
}

func scanRow(rows *sql.Rows) (r queuestate.Row, err error) {
	var place string
	var due, given int64
	err = rows.Scan(&r.Position, &r.Version, &place, &r.Failures, &r.Session, &due, &r.After, &r.Error, &r.Woken, &given, &r.Ends)
	if err == nil {
		r.Place, r.Due, r.Given = queuestate.Place(place[0]), ofMicros(due), ofMicros(given)
	}
	return r, err
}

func (q *queue) rows(statement string, args ...any) ([]queuestate.Row, error) {
	return rowsOf(q.ctx, q.db, statement, append([]any{q.id}, args...), scanRow)
}

func (q *queue) Row(position messagestore.GlobalPosition) (*queuestate.Row, error) {
	found, err := q.rows(queueRowSQL, int64(position))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

func (q *queue) Put(r queuestate.Row) error {
	return q.exec(queuePutSQL, int64(r.Position), r.Version, string(r.Place), r.Failures, r.Session, micros(r.Due), int64(r.After), r.Error, int64(r.Woken), micros(r.Given), r.Ends)
}

func (q *queue) Remove(position messagestore.GlobalPosition) error {
	return q.exec(queueRemoveSQL, int64(position))
}

func (q *queue) OutOf(session int64) ([]queuestate.Row, error) { return q.rows(queueOutOfSQL, session) }

func (q *queue) CountOut() (n int, err error) {
	_, err = q.one(queueCountOutSQL, nil, &n)
	return n, err
}

func (q *queue) Behind(position messagestore.GlobalPosition) ([]queuestate.Row, error) {
	return q.rows(queueBehindSQL, int64(position))
}

func (q *queue) Due(p queuestate.Place, suspect bool, until time.Time, limit int) ([]queuestate.Row, error) {
	return q.rows(queueDueSQL, string(p), until.UnixMicro(), suspect, limit)
}

func (q *queue) Open(from messagestore.GlobalPosition, limit int) ([]queuestate.Row, error) {
	return q.rows(queueOpenSQL, int64(from), limit)
}

func (q *queue) Holds() (holds bool, err error) {
	_, err = q.one(queueHoldsSQL, nil, &holds)
	return holds, err
}

func (q *queue) Loose(limit int) ([]messagestore.GlobalPosition, error) {
	return rowsOf(q.ctx, q.db, queueLooseSQL, []any{q.id, limit}, func(rows *sql.Rows) (after messagestore.GlobalPosition, err error) {
		return after, rows.Scan(&after)
	})
}

func sessionOf(number, until, lease int64) queuestate.Session {
	return queuestate.Session{Number: number, Until: ofMicros(until), Lease: time.Duration(lease) * time.Microsecond}
}

func (q *queue) Session(session int64) (queuestate.Session, bool, error) {
	var until, lease int64
	there, err := q.one(queueSessionSQL, []any{session}, &until, &lease)
	return sessionOf(session, until, lease), there, err
}

func (q *queue) Sessions() ([]queuestate.Session, error) {
	return rowsOf(q.ctx, q.db, queueSessionsSQL, []any{q.id}, scanSession)
}

func (q *queue) Begun(after time.Time) ([]queuestate.Session, error) {
	return rowsOf(q.ctx, q.db, queueBegunSQL, []any{q.id, after.UnixMicro()}, scanSession)
}

func scanSession(rows *sql.Rows) (queuestate.Session, error) {
	var number, until, lease int64
	err := rows.Scan(&number, &until, &lease)
	return sessionOf(number, until, lease), err
}

func (q *queue) SetSession(s queuestate.Session) error {
	return q.exec(queueSetSessionSQL, s.Number, micros(s.Until), s.Lease.Microseconds())
}

func (q *queue) Note(session int64, of queuing.Delivery) (note string, err error) {
	_, err = q.one(queueNoteSQL, []any{session, of.String()}, &note)
	return note, err
}

func (q *queue) SetNotes(session int64, notes queuing.Notes) error {
	return q.exec(queueSetNotesSQL, session, string(notes.JSON()))
}

func (q *queue) EndSession(session int64) error { return q.exec(queueEndSessionSQL, session) }

func (q *queue) Over(until time.Time) ([]int64, error) {
	return rowsOf(q.ctx, q.db, queueOverSQL, []any{q.id, micros(until)}, func(rows *sql.Rows) (session int64, err error) {
		return session, rows.Scan(&session)
	})
}

func (q *queue) FirstEnd() (time.Time, bool, error) {
	var until int64
	there, err := q.one(queueFirstEndSQL, nil, &until)
	return ofMicros(until), there, err
}

func (q *queue) Tickets() ([]queuestate.Ticket, error) {
	return rowsOf(q.ctx, q.db, queueTicketsSQL, []any{q.id}, func(rows *sql.Rows) (t queuestate.Ticket, err error) {
		var until int64
		err = rows.Scan(&t.Number, &t.Session, &t.Want, &until)
		t.Until = ofMicros(until)
		return t, err
	})
}

func (q *queue) AddTicket(t queuestate.Ticket) (number int64, err error) {
	_, err = q.one(queueAddTicketSQL, []any{t.Session, t.Want, micros(t.Until)}, &number)
	return number, err
}

func (q *queue) DropTicket(number int64) error { return q.exec(queueDropTicketSQL, number) }

func (q *queue) Entries(position messagestore.GlobalPosition) ([]queuing.Entry, error) {
	return rowsOf(q.ctx, q.db, queueEntriesSQL, []any{q.id, int64(position)}, func(rows *sql.Rows) (e queuing.Entry, err error) {
		var what string
		var at int64
		if err = rows.Scan(&e.Version, &what, &at, &e.Session, &e.Text); err == nil && what != "" {
			e.What, e.Time = queuing.What(what[0]), ofMicros(at)
		}
		return e, err
	})
}

func (q *queue) AddEntry(position messagestore.GlobalPosition, e queuing.Entry) error {
	return q.exec(queueAddEntrySQL, int64(position), e.Version, string(e.What), micros(e.Time), e.Session, e.Text)
}

func (q *queue) message(statement string, args ...any) (*messagestore.Message, error) {
	found, err := query(q.ctx, q.db, statement, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0].Message, nil
}

func (q *queue) Message(position messagestore.GlobalPosition) (*messagestore.Message, error) {
	return q.message(queueMessageSQL, int64(position), string(q.of.Category))
}

func (q *queue) Next(after messagestore.GlobalPosition, limit int) ([]*messagestore.Message, error) {
	found, err := query(q.ctx, q.db, categorySQL, string(q.of.Category), int64(after)+1, limit)
	return recorded(found), err
}

func (q *queue) Before(m *messagestore.Message) (*messagestore.Message, error) {
	if m.Position == 0 {
		return nil, nil //nolint:nilnil // as the interface has it
	}
	return q.message(queueAtSQL, string(m.Stream), int64(m.Position)-1)
}

func (q *queue) Last(m *messagestore.Message, upTo messagestore.GlobalPosition) (*messagestore.Message, error) {
	return q.message(queueLastSQL, string(m.Stream), int64(upTo))
}

func (q *queue) First(m *messagestore.Message) (*messagestore.Message, error) {
	return q.message(queueAtSQL, string(m.Stream), 0)
}

// openItem returns the position of the first message of a stream, within a range, that a queue has
// not finished, and the queue's name, or "". butParked leaves out the queues of parked messages.
func openItem(ctx context.Context, db queryer, stream messagestore.StreamName, first, below messagestore.Version, butParked bool) (at messagestore.Version, name string, err error) {
	_, err = scanOne(ctx, db, queueOpenItemSQL, []any{string(stream), int64(first), int64(below), string(stream.Category()), butParked}, &at, &name)
	return at, name, err
}

// hasQueue reports whether a queue reads a category, not counting queues of parked messages.
func hasQueue(ctx context.Context, db queryer, category messagestore.Category) (has bool, err error) {
	_, err = scanOne(ctx, db, queueReadsSQL, []any{string(category)}, &has)
	return has, err
}
