package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
)

// An eachAnswer is the row that the function append_each returns.
type eachAnswer struct {
	outcomes        string
	versions        []int64
	globalPositions []int64
}

// The parameters of append_each.
var eachOIDs = []uint32{
	pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID,
	pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.BoolOID,
}

func (d *Driver) callEach(ctx context.Context, conn *pgx.Conn, group []*ticket) (a eachAnswer, err error) {
	e, _ := encoders.Get().(*pglink.Encoder)
	defer keep(e)
	parameters := eachParameters(e, group, d.notify)
	conn.PgConn().Frontend().Send(room(len(e.Buffer)))
	err = d.link.Exec(ctx, conn, d.queries.appendEach, eachOIDs, parameters, func(columns [][]byte) (err error) {
		a, err = readEach(columns)
		return err
	})
	if err != nil {
		return a, err
	}
	return a, a.check(group)
}

// encoders are used again: a group's parameters are as large as its messages, and pgx
// has copied them when it has sent them.
var encoders = sync.Pool{New: func() any { return &pglink.Encoder{} }}

// maxKept bounds the encoders that are kept for the next group.
const maxKept = 512 << 10

func keep(e *pglink.Encoder) {
	if cap(e.Buffer) <= maxKept {
		encoders.Put(e)
	}
}

// A room is a message of no bytes: when it is sent, pgx's buffer grows so that as many fit
// in. It would else be doubled until they do, and that anew for each group.
type room int

// Encode grows dst, with room for the rest of the message.
func (r room) Encode(dst []byte) ([]byte, error) { return slices.Grow(dst, int(r)+1024), nil }

// Decode is for the other side, which never sees it.
func (room) Decode([]byte) error { return nil }

// Frontend says whose message it is.
func (room) Frontend() {}

func eachParameters(e *pglink.Encoder, group []*ticket, notify bool) [][]byte {
	messages, size := 0, 0
	for _, t := range group {
		messages += len(t.append.Records)
		size += t.size + len(t.append.Stream)
		for i := range t.append.Records {
			size += len(t.append.Records[i].Type)
		}
	}
	const most = 8 + 12 + 8 + 12 + 20 + 4 + 4 + 4 // bytes that are not text, for a write of one message
	e.Reset(size + most*(len(group)+messages) + 9*20)

	e.Array(pgtype.TextOID, len(group))
	for _, t := range group {
		pglink.Element(e, t.append.Stream)
	}
	e.Array(pgtype.Int8OID, len(group))
	for _, t := range group {
		e.Int8Element(int64(t.append.Expected))
	}
	e.Array(pgtype.Int4OID, len(group))
	for _, t := range group {
		e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 4)
		e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, uint32(len(t.append.Records))) //nolint:gosec // at most MaxWriteMessages
	}
	e.Array(pgtype.Int8OID, len(group))
	for _, t := range group {
		e.Int8Element(t.fences[0])
	}
	e.Array(pgtype.UUIDOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			pglink.Element(e, t.append.Records[i].ID[:])
		}
	}
	e.Array(pgtype.TextOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			pglink.Element(e, t.append.Records[i].Type)
		}
	}
	e.Array(pgtype.JSONOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			pglink.Element(e, t.append.Records[i].Data)
		}
	}
	e.Array(pgtype.JSONOID, messages)
	for _, t := range group {
		for i := range t.append.Records {
			if r := &t.append.Records[i]; len(r.Metadata) > 0 {
				pglink.Element(e, r.Metadata)
			} else {
				e.Null()
			}
		}
	}
	e.Next()
	e.Bool(notify)
	return e.Parameters()
}

func readEach(columns [][]byte) (a eachAnswer, err error) {
	if len(columns) != 3 {
		return a, fmt.Errorf("append writes: the database answered with %d columns", len(columns))
	}
	a.outcomes = string(columns[0])
	if a.versions, err = pglink.Int8s(columns[1]); err != nil {
		return a, err
	}
	a.globalPositions, err = pglink.Int8s(columns[2])
	return a, err
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
