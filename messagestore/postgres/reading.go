package postgres

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/messagestore"
)

// A reading is a call of a function that returns messages, or a query of a view in its
// place: see [Driver.byView].
type reading struct {
	sql      string
	args     []any
	category bool // a page of one, which ends before it holds too much

	view     string // "" if there is none
	viewArgs []any
	limit    int // of a category's page by a view, which asks for one message more

	found messagestore.CategoryPage // of a stream, the messages only
	rows  rowReader
	held  int
	full  bool
}

// maxByView bounds what is asked of a view, whose queries have it written out: a full
// batch, and the message before it, by which a consumer sees that it is still there.
const maxByView = 1001

// largeStore is what a table has to have for queries of views. Their plans are kept for as
// long as the connection's statements are, and one that was made for a small table would
// scan it. From here on a scan of the table costs twice what a page does by the index.
var largeStore = size{pages: 8192, messages: 100_000}

// A size is that of the table when it was last analyzed.
type size struct{ pages, messages int64 }

// byView reports whether r goes by a view. A function costs as much again as a short read
// does: its settings, its rights and a query inside the query. But its settings make plans
// that are good for every size of table. A server behind a pooler has no plans to keep, and
// in a transaction pgx sends what is sent.
func (d *Driver) byView(conn *pgx.Conn, r *reading) bool {
	m := d.markOf(conn)
	return r.view != "" && m != nil && m.views
}

// readMessages reads what r asks for: by hand, or as pgx does in a transaction, which may
// have ended without its connection knowing.
func (d *Driver) readMessages(ctx context.Context, r *reading) error {
	return d.with(ctx, func(db DB) error {
		conn := connOf(db)
		switch {
		case conn == nil || d.inTransaction(db):
			return d.failed(d.read(ctx, db, r.sql, r.args, func(rows pgx.Rows) error {
				m, more, err := r.rows.row(rows)
				if err == nil {
					err = r.add(m, more)
				}
				return err
			}))
		case d.byView(conn, r):
			if err := d.exec(ctx, conn, r.view, nil, binaryParameters(r.viewArgs), r.take); err != nil {
				return d.failed(err)
			}
			r.end()
			return nil
		}
		return d.failed(d.exec(ctx, conn, r.sql, nil, binaryParameters(r.args), r.take))
	})
}

var errNoMessage = errors.New("read messages: the database answered with what is no message")

// take reads a row, whose columns are the connection's.
func (r *reading) take(columns [][]byte) error {
	if r.full && len(columns) > 1 && len(columns[1]) > 0 {
		return nil
	}
	m, more, ok := r.rows.decode(columns)
	if !ok {
		return errNoMessage
	}
	return r.add(m, more)
}

func (r *reading) add(m *messagestore.Message, more bool) error {
	page := &r.found
	switch r.held += len(m.Data); {
	case m.Stream == "": // the last row of a category
		first, last, err := readMarks(m.Data)
		if err != nil {
			return err
		}
		page.First = first
		if !r.full {
			page.Last, page.Next, page.More = last, m.GlobalPosition, more
		}
	case r.full:
	case r.category && r.held > maxPageBytes && len(page.Messages) > 0:
		page.Next, page.More, r.full = page.Messages[len(page.Messages)-1].GlobalPosition+1, true, true
	default:
		page.Messages = append(page.Messages, m)
	}
	return nil
}

// readMarks reads the first and the last message that a filtered page looked at.
func readMarks(data json.RawMessage) (first, last messagestore.Mark, err error) {
	if len(data) == 0 {
		return first, last, nil
	}
	var ends []struct {
		ID             uuid.UUID
		Stream         messagestore.StreamName
		Position       messagestore.Version
		GlobalPosition messagestore.GlobalPosition
		Time           *int64
	}
	if err := json.Unmarshal(data, &ends); err != nil || len(ends) == 0 {
		return first, last, errNoMessage
	}
	marks := make([]messagestore.Mark, len(ends))
	for i, m := range ends {
		marks[i] = messagestore.Mark{ID: m.ID, Stream: m.Stream, Position: m.Position, GlobalPosition: m.GlobalPosition}
		if m.Time != nil {
			marks[i].Time = time.UnixMicro(*m.Time).UTC()
		}
	}
	return marks[0], marks[len(marks)-1], nil
}

// end says where a page by a view ends, which a function says in a row of its own.
func (r *reading) end() {
	page := &r.found
	if !r.category || len(page.Messages) == 0 {
		return
	}
	if len(page.Messages) > r.limit {
		page.Messages, page.More = page.Messages[:r.limit], true
	}
	page.Next = messagestore.NextAfter(page.Messages[len(page.Messages)-1].GlobalPosition)
}

// binaryParameters lays out the arguments of a reading.
func binaryParameters(args []any) [][]byte {
	parameters := make([][]byte, len(args))
	for i, arg := range args {
		e := encoder{}
		switch a := arg.(type) {
		case string:
			e.buffer = []byte(a)
		case *string:
			if a != nil {
				e.buffer = []byte(*a)
			}
		case int64:
			e.int8(a)
		case int:
			e.int4(a)
		case *int:
			if a != nil {
				e.int4(*a)
			}
		case bool:
			e.bool(a)
		case []string:
			if a != nil {
				e.array(pgtype.TextOID, len(a))
				for _, text := range a {
					element(&e, text)
				}
			}
		}
		parameters[i] = e.buffer
	}
	return parameters
}

// int4 appends a number that the functions bound to less than an integer's range, so that
// a larger one is refused as it would have been.
func (e *encoder) int4(value int) {
	value = max(math.MinInt32, min(value, math.MaxInt32))
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(value)) //nolint:gosec // the same bits
}
