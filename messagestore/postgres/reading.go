package postgres

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// A reading is a call of a function that returns messages.
type reading struct {
	sql      string
	args     []any
	category bool // a page of a category, which also ends before it holds too much data

	found messagestore.CategoryPage // for a stream, only its messages are set
	rows  rowReader
	held  int
	full  bool
}

var errNoMessage = errors.New("malformed reply to a read of messages")

// take reads a row. The columns are in the connection's buffers.
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

// readMarks reads the marks of the first and the last message that a filtered page looked at.
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

// binaryParameters encodes the arguments of a reading.
func binaryParameters(args []any) [][]byte {
	parameters := make([][]byte, len(args))
	for i, arg := range args {
		e := pglink.Encoder{}
		switch a := arg.(type) {
		case string:
			e.Buffer = []byte(a)
		case *string:
			if a != nil {
				e.Buffer = []byte(*a)
			}
		case int64:
			e.Int8(a)
		case int:
			e.Int4(a)
		case *int:
			if a != nil {
				e.Int4(*a)
			}
		case bool:
			e.Bool(a)
		case []string:
			if a != nil {
				e.Array(pgtype.TextOID, len(a))
				for _, text := range a {
					pglink.Element(&e, text)
				}
			}
		}
		parameters[i] = e.Buffer
	}
	return parameters
}

// maxPageBytes is roughly how much data a page holds, unless a single message has more. The limit
// of a query counts messages, which may be large.
const maxPageBytes = 16 << 20
