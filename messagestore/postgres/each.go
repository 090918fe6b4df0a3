package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// An eachAnswer is the row that the function append_each returns.
type eachAnswer struct {
	outcomes        string
	versions        []int64
	globalPositions []int64
}

// The parameters of append_each. They are laid out by hand, in PostgreSQL's binary
// format, since all that is written under load goes through here: pgx looks at each
// element of an array by itself.
var eachOIDs = []uint32{
	pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID,
	pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.BoolOID,
}

var binaryFormat = []int16{pgx.BinaryFormatCode} // of all of them

func (d *Driver) callEach(ctx context.Context, conn *pgx.Conn, group []*ticket) (a eachAnswer, err error) {
	sql := d.queries.appendEach
	if t := conn.Config().Tracer; t != nil {
		ctx = t.TraceQueryStart(ctx, conn, pgx.TraceQueryStartData{SQL: sql})
		defer func() { t.TraceQueryEnd(ctx, conn, pgx.TraceQueryEndData{Err: err}) }()
	}
	parameters := eachParameters(group, d.notify)
	var result *pgconn.ResultReader
	switch d.mode(conn) {
	case pgx.QueryExecModeCacheStatement:
		statement, err := conn.Prepare(ctx, sql, sql)
		if err != nil {
			return a, err
		}
		result = conn.PgConn().ExecStatement(ctx, statement, parameters, binaryFormat, binaryFormat)
	default:
		result = conn.PgConn().ExecParams(ctx, sql, parameters, eachOIDs, binaryFormat, binaryFormat)
	}
	for result.NextRow() {
		if a, err = readEach(result.Values()); err != nil {
			break
		}
	}
	// The outcome is known only when all has been read.
	if _, closeErr := result.Close(); closeErr != nil {
		return a, d.forget(ctx, conn, sql, closeErr)
	}
	if err != nil {
		return a, err
	}
	return a, a.check(group)
}

// forget drops a prepared statement that the server does not have any more, or not with
// such a result: after DISCARD, or a migration.
func (d *Driver) forget(ctx context.Context, conn *pgx.Conn, sql string, err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "26000" || e.Code == "0A000") {
		_ = conn.Deallocate(ctx, sql) // or the connection is broken, and closed when it goes back
	}
	return err
}

func eachParameters(group []*ticket, notify bool) [][]byte {
	messages, size := 0, 0
	for _, t := range group {
		messages += len(t.append.Records)
		size += t.size + len(t.append.Stream)
		for i := range t.append.Records {
			size += len(t.append.Records[i].Type)
		}
	}
	const most = 8 + 12 + 8 + 12 + 20 + 4 + 4 + 4 // of what is not text, for a write of one message
	e := encoder{buffer: make([]byte, 0, size+most*(len(group)+messages)+9*20)}

	e.array(pgtype.TextOID, len(group))
	for _, t := range group {
		e.text(string(t.append.Stream))
	}
	e.array(pgtype.Int8OID, len(group))
	for _, t := range group {
		e.int8(int64(t.append.Expected))
	}
	e.array(pgtype.Int4OID, len(group))
	for _, t := range group {
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, 4)
		e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(t.append.Records))) //nolint:gosec // at most MaxWriteMessages
	}
	e.array(pgtype.Int8OID, len(group))
	for _, t := range group {
		e.int8(t.fences[0])
	}
	e.array(pgtype.UUIDOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			e.bytes(t.append.Records[i].ID[:])
		}
	}
	e.array(pgtype.TextOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			e.text(t.append.Records[i].Type)
		}
	}
	e.array(pgtype.JSONOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			e.bytes(t.append.Records[i].Data)
		}
	}
	e.array(pgtype.JSONOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			if r := &t.append.Records[i]; len(r.Metadata) > 0 {
				e.bytes(r.Metadata)
			} else {
				e.null()
			}
		}
	}
	e.next()
	if notify {
		e.buffer = append(e.buffer, 1)
	} else {
		e.buffer = append(e.buffer, 0)
	}
	return e.parameters()
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

func (e *encoder) bytes(value []byte) {
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(value))) //nolint:gosec // at most MaxMessageBytes
	e.buffer = append(e.buffer, value...)
}

func (e *encoder) text(value string) {
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, uint32(len(value))) //nolint:gosec // at most MaxNameBytes
	e.buffer = append(e.buffer, value...)
}

func (e *encoder) int8(value int64) {
	e.buffer = binary.BigEndian.AppendUint32(e.buffer, 8)
	e.buffer = binary.BigEndian.AppendUint64(e.buffer, uint64(value)) //nolint:gosec // the same bits
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

func readEach(columns [][]byte) (a eachAnswer, err error) {
	if len(columns) != 3 {
		return a, fmt.Errorf("append writes: the database answered with %d columns", len(columns))
	}
	a.outcomes = string(columns[0])
	if a.versions, err = int8s(columns[1]); err != nil {
		return a, err
	}
	a.globalPositions, err = int8s(columns[2])
	return a, err
}

var errNoList = errors.New("append writes: the database answered with what is no list of numbers")

// int8s reads a list without nulls, and nothing for null.
func int8s(value []byte) ([]int64, error) {
	const header, element = 20, 12
	if len(value) == 0 || len(value) == 12 && binary.BigEndian.Uint32(value) == 0 { // null, or of no dimension
		return nil, nil
	}
	if len(value) < header || (len(value)-header)%element != 0 || binary.BigEndian.Uint32(value[8:]) != pgtype.Int8OID {
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

// check reports an answer that is none.
func (a eachAnswer) check(group []*ticket) error {
	written := 0
	for i, outcome := range a.outcomes {
		if outcome == 'w' && i < len(group) {
			written += len(group[i].append.Records)
		}
	}
	if len(a.outcomes) != len(group) || len(a.versions) != len(group) || len(a.globalPositions) != written {
		return fmt.Errorf("append %d writes: the database answered for %d, with %d versions and %d of %d global positions",
			len(group), len(a.outcomes), len(a.versions), len(a.globalPositions), written)
	}
	return nil
}
