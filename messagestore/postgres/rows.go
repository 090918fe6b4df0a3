package postgres

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/messagestore"
)

// The columns of a message, in the order of every query.
var messageColumns = []struct {
	oid    uint32
	either bool // both formats of the type are the same
}{
	{pgtype.UUIDOID, false},
	{pgtype.TextOID, true},
	{pgtype.TextOID, true},
	{pgtype.Int8OID, false},
	{pgtype.Int8OID, false},
	{pgtype.JSONOID, true},
	{pgtype.JSONOID, true},
	{pgtype.TimestamptzOID, false},
	{pgtype.BoolOID, false}, // for a category only: whether there is more
}

// A rowReader makes messages from the rows of one result. The messages share no memory with the
// connection's buffers or with each other, so a caller that keeps one message keeps only its
// memory.
type rowReader struct {
	seen   bool // a row was read, and so the columns' formats are known
	direct bool // decode can read these formats
	types  map[string]string
	text   []byte
}

// row returns the message in a row and, for a category, whether there is more. The last row of a
// category is not a message and has no stream. Its data are the marks of a page with a filter.
func (r *rowReader) row(rows pgx.Rows) (*messagestore.Message, bool, error) {
	if !r.seen {
		r.seen, r.direct = true, isDirect(rows.FieldDescriptions())
	}
	if r.direct {
		if m, more, ok := r.decode(rows.RawValues()); ok {
			return m, more, nil
		}
	}
	return scan(rows)
}

func isDirect(fields []pgconn.FieldDescription) bool {
	if len(fields) > len(messageColumns) || len(fields) < len(messageColumns)-1 {
		return false
	}
	for i, f := range fields {
		if c := messageColumns[i]; f.DataTypeOID != c.oid || !c.either && f.Format != pgx.BinaryFormatCode {
			return false
		}
	}
	return true
}

// decode reads a row in the usual formats, and leaves others to scan.
func (r *rowReader) decode(values [][]byte) (m *messagestore.Message, more, ok bool) {
	if len(values) < len(messageColumns)-1 { // fewer columns than the server has announced
		return nil, false, false
	}
	id, stream, messageType, data, metadata := values[0], values[1], values[2], values[5], values[6]
	position, global, at := values[3], values[4], values[7]
	if len(stream) == 0 && len(values) == len(messageColumns) && len(global) == 8 && len(values[8]) == 1 {
		return &messagestore.Message{GlobalPosition: messagestore.GlobalPosition(binary.BigEndian.Uint64(global)), Data: slices.Clone(data)}, values[8][0] == 1, true
	}
	if len(id) != 16 || len(stream) == 0 || len(position) != 8 || len(global) != 8 || len(at) != 8 {
		return nil, false, false
	}
	written, ok := timeOf(int64(binary.BigEndian.Uint64(at)))
	if !ok {
		return nil, false, false
	}
	// The message has parts of one string for both.
	r.text = append(append(r.text[:0], stream...), metadata...)
	text := string(r.text)
	m = &messagestore.Message{
		ID:             [16]byte(id),
		Stream:         messagestore.StreamName(text[:len(stream)]),
		Position:       messagestore.Version(binary.BigEndian.Uint64(position)),
		GlobalPosition: messagestore.GlobalPosition(binary.BigEndian.Uint64(global)),
		Time:           written,
		Type:           r.typeName(messageType),
		Metadata:       messagestore.ParseMetadata(text[len(stream):]),
	}
	if data != nil {
		m.Data = append(make(json.RawMessage, 0, len(data)), data...)
	}
	return m, false, true
}

const (
	// epoch is 2000, where PostgreSQL's time begins, in microseconds of Unix time.
	epoch = 946_684_800_000_000

	// leastTime is PostgreSQL's earliest time, in 4714 BC, counted from epoch.
	leastTime = -211_813_488_000_000_000
)

// timeOf converts a time of PostgreSQL, in microseconds since epoch; infinity becomes the zero
// time. ok is false if the number is out of PostgreSQL's range.
func timeOf(micros int64) (t time.Time, ok bool) {
	switch {
	case micros == math.MaxInt64 || micros == math.MinInt64:
		return time.Time{}, true
	case micros < leastTime || micros > math.MaxInt64-epoch:
		return time.Time{}, false
	}
	return time.UnixMicro(epoch + micros).UTC(), true
}

// typeName returns the name of a message type, and keeps it for the next message: there are few
// types.
func (r *rowReader) typeName(name []byte) string {
	if known, ok := r.types[string(name)]; ok {
		return known
	}
	if r.types == nil {
		r.types = map[string]string{}
	}
	s := string(name)
	r.types[s] = s
	return s
}

// scan reads a row in any format. If the connection is not accessible, all columns may be text.
func scan(rows pgx.Rows) (*messagestore.Message, bool, error) {
	var m messagestore.Message
	var id pgtype.UUID
	var stream, messageType pgtype.Text
	var position pgtype.Int8
	var data, metadata []byte
	var at pgtype.Timestamptz
	var more pgtype.Bool
	columns := []any{&id, &stream, &messageType, &position, (*int64)(&m.GlobalPosition), &data, &metadata, &at, &more}
	if err := rows.Scan(columns[:len(rows.FieldDescriptions())]...); err != nil {
		return nil, false, fmt.Errorf("read a row: %w", err)
	}
	m.ID, m.Stream, m.Type = id.Bytes, messagestore.StreamName(stream.String), messageType.String
	m.Position, m.Data, m.Metadata = messagestore.Version(position.Int64), data, messagestore.ParseMetadata(metadata)
	m.Time = at.Time.UTC().Truncate(time.Microsecond)
	return &m, more.Bool, nil
}
