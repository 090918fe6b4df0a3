package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/messagestore"
)

// A reading is a call of a function that returns messages.
type reading struct {
	sql     string
	args    []any
	bounded bool // a page of a category, which ends before it holds too much

	found messagestore.CategoryPage // of a stream, the messages only
	rows  rowReader
	held  int
	full  bool
}

// readMessages reads what r asks for: by hand, or as pgx does in a transaction, which may
// have ended without its connection knowing.
func (d *Driver) readMessages(ctx context.Context, r *reading) error {
	return d.with(ctx, func(db DB) error {
		conn := connOf(db)
		if conn != nil && !d.inTransaction(db) {
			return d.failed(d.exec(ctx, conn, r.sql, nil, binaryParameters(r.args), r.take))
		}
		return d.failed(d.read(ctx, db, r.sql, r.args, func(rows pgx.Rows) error {
			m, more, err := r.rows.row(rows)
			if err == nil {
				r.add(m, more)
			}
			return err
		}))
	})
}

var errNoMessage = errors.New("read messages: the database answered with what is no message")

// take reads a row, whose columns are the connection's.
func (r *reading) take(columns [][]byte) error {
	if r.full {
		return nil
	}
	m, more, ok := r.rows.decode(columns)
	if !ok {
		return errNoMessage
	}
	r.add(m, more)
	return nil
}

func (r *reading) add(m *messagestore.Recorded, more bool) {
	page := &r.found
	switch r.held += len(m.Data); {
	case r.full:
	case m.Stream == "": // the last row of a category
		page.Next, page.More = m.GlobalPosition, more
	case r.bounded && r.held > maxPageBytes && len(page.Messages) > 0:
		page.Next, page.More, r.full = page.Messages[len(page.Messages)-1].GlobalPosition+1, true, true
	default:
		page.Messages = append(page.Messages, m)
	}
}

// binaryParameters lays out the arguments of functions that read.
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
