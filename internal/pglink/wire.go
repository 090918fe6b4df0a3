package pglink

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// binaryFormat is the format of all parameters, or of all columns. The most frequent statements are
// encoded and decoded here, in PostgreSQL's binary format, because pgx handles each parameter, and
// each element of an array, separately.
var binaryFormat = []int16{pgx.BinaryFormatCode}

// Exec runs a statement in one round trip and calls read with each row. The columns are slices of
// the connection's buffer. No transaction may be open on the connection, because the statement may
// have to be prepared first.
func (l *Link) Exec(ctx context.Context, conn *pgx.Conn, sql string, oids []uint32, parameters [][]byte, read func(columns [][]byte) error) (err error) {
	if t := l.markOf(conn).tracer; t != nil {
		ctx = t.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { t.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	var result *pgconn.ResultReader
	switch l.Mode(conn) {
	case pgx.QueryExecModeCacheStatement:
		statement, err := conn.Prepare(ctx, sql, sql)
		if err != nil {
			return err
		}
		result = conn.PgConn().ExecStatement(ctx, statement, parameters, binaryFormat, binaryFormat)
	default:
		result = conn.PgConn().ExecParams(ctx, sql, parameters, oids, binaryFormat, binaryFormat)
	}
	for err == nil && result.NextRow() {
		err = read(result.Values())
	}
	// The outcome is known only when everything has been read.
	_, closeErr := result.Close()
	if Stale(closeErr) {
		_ = conn.Deallocate(ctx, sql) // a broken connection is closed when it goes back to the pool
	}
	if closeErr != nil {
		return closeErr
	}
	return err
}

// A Statement is a statement of a [Link.Pipeline].
type Statement struct {
	SQL        string
	OIDs       []uint32
	Parameters [][]byte                     // in binary format
	Read       func(columns [][]byte) error // called with each row, in binary format; may be nil
	Often      bool                         // prepared by name if possible: see Prepare
}

// Prepare prepares statements by name, so that a [Link.Pipeline] in a transaction need not. It
// takes no round trip for statements that are prepared already, and in a mode without prepared
// statements.
func (l *Link) Prepare(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	if l.Mode(conn) != pgx.QueryExecModeCacheStatement {
		return nil
	}
	for _, sql := range statements {
		if _, err := conn.Prepare(ctx, sql, sql); err != nil {
			return err
		}
	}
	return nil
}

// Pipeline runs statements in one round trip and returns the tags of the completed statements, also
// with an error. If a statement fails, the server skips the rest. After an error that is [Stale]
// you may try the same again in another transaction.
func (l *Link) Pipeline(ctx context.Context, conn *pgx.Conn, statements ...Statement) (tags []string, err error) {
	if m := l.markOf(conn); m != nil && m.tracer != nil {
		ctx = m.tracer.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: statements[len(statements)-1].SQL})
		defer func() { m.tracer.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	batch := &pgconn.Batch{}
	named := l.Mode(conn) == pgx.QueryExecModeCacheStatement
	for _, s := range statements {
		if !named || !s.Often {
			batch.ExecParams(s.SQL, s.Parameters, s.OIDs, binaryFormat, binaryFormat)
			continue
		}
		statement, err := conn.Prepare(ctx, s.SQL, s.SQL)
		if err != nil {
			return nil, err
		}
		batch.ExecStatement(statement, s.Parameters, binaryFormat, binaryFormat)
	}
	results := conn.PgConn().ExecBatch(ctx, batch)
	for _, s := range statements {
		if !results.NextResult() {
			break
		}
		result := results.ResultReader()
		for result.NextRow() {
			if s.Read != nil && err == nil {
				err = s.Read(result.Values())
			}
		}
		done, closeErr := result.Close()
		if err == nil {
			err = closeErr
		}
		if closeErr == nil {
			tags = append(tags, done.String())
		}
	}
	if closeErr := results.Close(); closeErr != nil {
		err = closeErr
	}
	if named && Stale(err) {
		for _, s := range statements {
			if s.Often {
				_ = conn.Deallocate(ctx, s.SQL) // as in Exec
			}
		}
		if m := l.markOf(conn); m != nil && code(err) != "0A000" {
			m.mode = modeFor(conn, true) // otherwise a caller's DISCARD would drop them
		}
	}
	return tags, err
}

// An Encoder encodes parameters one after the other in one buffer.
type Encoder struct {
	Buffer []byte
	starts []int
}

// Reset empties e and makes room for size bytes.
func (e *Encoder) Reset(size int) { e.Buffer, e.starts = slices.Grow(e.Buffer[:0], size), e.starts[:0] }

// Next begins a parameter.
func (e *Encoder) Next() { e.starts = append(e.starts, len(e.Buffer)) }

// Array begins a parameter that is a list with this number of elements.
func (e *Encoder) Array(oid uint32, elements int) {
	e.Next()
	for _, word := range []uint32{1, 1, oid, uint32(elements), 1} { //nolint:gosec // at most maxGroup, or MaxWriteMessages
		e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, word)
	}
}

// Element appends an element of a list.
func Element[T ~string | ~[]byte](e *Encoder, value T) {
	e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, uint32(len(value))) //nolint:gosec // at most MaxMessageBytes
	e.Buffer = append(e.Buffer, value...)
}

// Int8Element appends a bigint to a list.
func (e *Encoder) Int8Element(value int64) {
	e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 8)
	e.Int8(value)
}

// Int4Element appends an integer to a list.
func (e *Encoder) Int4Element(value int) {
	e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 4)
	e.Int4(value)
}

// BoolElement appends a boolean to a list.
func (e *Encoder) BoolElement(value bool) {
	e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 1)
	e.Bool(value)
}

// Int8 appends a bigint.
func (e *Encoder) Int8(value int64) {
	e.Buffer = binary.BigEndian.AppendUint64(e.Buffer, uint64(value)) //nolint:gosec // the same bits
}

// Int4 appends an integer. A value out of range becomes the nearest value in the range, which the
// functions refuse too.
func (e *Encoder) Int4(value int) {
	value = max(math.MinInt32, min(value, math.MaxInt32))
	e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, uint32(value)) //nolint:gosec // the same bits
}

// Bool appends a boolean.
func (e *Encoder) Bool(value bool) {
	if value {
		e.Buffer = append(e.Buffer, 1)
	} else {
		e.Buffer = append(e.Buffer, 0)
	}
}

// Null appends a null to a list.
func (e *Encoder) Null() { e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 1<<32-1) }

// Parameters returns the parameters, as slices of the buffer.
func (e *Encoder) Parameters() [][]byte {
	values := make([][]byte, len(e.starts))
	for i, start := range e.starts {
		end := len(e.Buffer)
		if i+1 < len(e.starts) {
			end = e.starts[i+1]
		}
		values[i] = e.Buffer[start:end:end]
	}
	return values
}

// ErrNoList is returned when a column is not a list of the expected type.
var ErrNoList = errors.New("the database answered with a malformed list")

// Elements returns the elements of a one-dimensional list of type oid, as slices of value; a null
// element is nil. It returns nil for a null or an empty list.
func Elements(value []byte, oid uint32) ([][]byte, error) {
	const header = 20
	if len(value) == 0 || len(value) == 12 && binary.BigEndian.Uint32(value) == 0 {
		return nil, nil
	}
	if len(value) < header || binary.BigEndian.Uint32(value) != 1 || binary.BigEndian.Uint32(value[8:]) != oid {
		return nil, ErrNoList
	}
	n, rest := int64(binary.BigEndian.Uint32(value[12:])), value[header:]
	if n*4 > int64(len(rest)) {
		return nil, ErrNoList
	}
	list := make([][]byte, n)
	for i := range list {
		if len(rest) < 4 {
			return nil, ErrNoList
		}
		size := int32(binary.BigEndian.Uint32(rest)) //nolint:gosec // -1 for null
		rest = rest[4:]
		if size == -1 {
			continue
		}
		if size < 0 || int(size) > len(rest) {
			return nil, ErrNoList
		}
		list[i], rest = rest[:size:size], rest[size:]
	}
	if len(rest) > 0 {
		return nil, ErrNoList
	}
	return list, nil
}

// Int8s reads a list of bigints without nulls. It returns nil for null.
func Int8s(value []byte) ([]int64, error) {
	const header, element = 20, 12
	if len(value) == 0 || len(value) == 12 && binary.BigEndian.Uint32(value) == 0 { // null, or without a dimension
		return nil, nil
	}
	if len(value) < header || binary.BigEndian.Uint32(value) != 1 || binary.BigEndian.Uint32(value[8:]) != pgtype.Int8OID ||
		int64(binary.BigEndian.Uint32(value[12:]))*element != int64(len(value)-header) {
		return nil, ErrNoList
	}
	list := make([]int64, (len(value)-header)/element)
	for i := range list {
		at := header + i*element
		if binary.BigEndian.Uint32(value[at:]) != 8 {
			return nil, ErrNoList
		}
		list[i] = int64(binary.BigEndian.Uint64(value[at+4:])) //nolint:gosec // the same bits
	}
	return list, nil
}
