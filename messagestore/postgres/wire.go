package postgres

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// What is written goes by two statements, whose parameters and answers are laid out and
// read by hand, as those of reads are, in PostgreSQL's binary format: pgx looks at each
// parameter, and at each element of an array, by itself.
var binaryFormat = []int16{pgx.BinaryFormatCode} // of all parameters, or all columns

// exec runs a statement in one round trip, and has read take each row, whose columns are
// the connection's. It is for a connection that no transaction is open on.
func (d *Driver) exec(ctx context.Context, conn *pgx.Conn, sql string, oids []uint32, parameters [][]byte, read func(columns [][]byte) error) (err error) {
	if t := d.markOf(conn).tracer; t != nil {
		ctx = t.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { t.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	var result *pgconn.ResultReader
	switch d.mode(conn) {
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
	// The outcome is known only when all has been read.
	_, closeErr := result.Close()
	if e, ok := errors.AsType[*pgconn.PgError](closeErr); ok && (e.Code == "26000" || e.Code == "0A000") {
		// The server has the statement no more, or not with such a result: after DISCARD,
		// or a migration.
		_ = conn.Deallocate(ctx, sql) // or the connection is broken, and closed when it goes back
	}
	if closeErr != nil {
		return closeErr
	}
	return err
}

// An encoder lays parameters out one after the other in one buffer.
type encoder struct {
	buffer []byte
	starts []int
}

func (e *encoder) next() { e.starts = append(e.starts, len(e.buffer)) }

// array begins a parameter that is a list of so many elements, from 1 on.
func (e *encoder) array(oid uint32, elements int) {
	e.next()
	for _, word := range []uint32{1, 1, oid, uint32(elements), 1} { //nolint:gosec // at most maxGroup, or MaxWriteMessages
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, word)
	}
}

// element appends an element of a list.
func element[T ~string | ~[]byte](e *encoder, value T) {
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(value))) //nolint:gosec // at most MaxMessageBytes
	e.buffer = append(e.buffer, value...)
}

func (e *encoder) int8Element(value int64) {
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, 8)
	e.int8(value)
}

func (e *encoder) int8(value int64) {
	e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(value)) //nolint:gosec // the same bits
}

func (e *encoder) bool(value bool) {
	if value {
		e.buffer = append(e.buffer, 1)
	} else {
		e.buffer = append(e.buffer, 0)
	}
}

func (e *encoder) null() { e.buffer = binary.BigEndian.AppendUint32(e.buffer, 1<<32-1) }

func (e *encoder) parameters() [][]byte {
	values := make([][]byte, len(e.starts))
	for i, start := range e.starts {
		end := len(e.buffer)
		if i+1 < len(e.starts) {
			end = e.starts[i+1]
		}
		values[i] = e.buffer[start:end:end]
	}
	return values
}

var errNoList = errors.New("append writes: the database answered with what is no list of numbers")

// int8s reads a list without nulls, and nothing for null.
func int8s(value []byte) ([]int64, error) {
	const header, element = 20, 12
	if len(value) == 0 || len(value) == 12 && binary.BigEndian.Uint32(value) == 0 { // null, or of no dimension
		return nil, nil
	}
	if len(value) < header || binary.BigEndian.Uint32(value) != 1 || binary.BigEndian.Uint32(value[8:]) != pgtype.Int8OID ||
		int64(binary.BigEndian.Uint32(value[12:]))*element != int64(len(value)-header) {
		return nil, errNoList
	}
	list := make([]int64, (len(value)-header)/element)
	for i := range list {
		at := header + i*element
		if binary.BigEndian.Uint32(value[at:]) != 8 {
			return nil, errNoList
		}
		list[i] = int64(binary.BigEndian.Uint64(value[at+4:])) //nolint:gosec // the same bits
	}
	return list, nil
}
