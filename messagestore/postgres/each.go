package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// An eachAnswer is the row that the function append_each returns.
type eachAnswer struct {
	outcomes        string
	versions        []int64
	globalPositions []int64
	times           []time.Time // of the messages at these positions

	// The last messages, by the stream, of the writes that conflict and ask for the meeting; nil for
	// a stream without messages.
	met   []*messagestore.Message
	metAt time.Time
}

// The parameters of append_each.
var eachOIDs = []uint32{
	pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID,
	pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.BoolOID, pgtype.BoolArrayOID,
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
	const most = 8 + 12 + 8 + 12 + 20 + 4 + 4 + 4 + 5 // bytes that are not text, for a write of one message
	e.Reset(size + most*(len(group)+messages) + 10*20)

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
	if !slices.ContainsFunc(group, func(t *ticket) bool { return t.meet }) {
		return append(e.Parameters(), nil)
	}
	e.Array(pgtype.BoolOID, len(group))
	for _, t := range group {
		e.Buffer = binary.BigEndian.AppendUint32(e.Buffer, 1)
		e.Bool(t.meet)
	}
	return e.Parameters()
}

func readEach(columns [][]byte) (a eachAnswer, err error) {
	if len(columns) != 12 {
		return a, fmt.Errorf("append writes: the database answered with %d columns", len(columns))
	}
	a.outcomes = string(columns[0])
	if a.versions, err = pglink.Int8s(columns[1]); err != nil {
		return a, err
	}
	if a.globalPositions, err = pglink.Int8s(columns[2]); err != nil {
		return a, err
	}
	if a.times, err = readTimes(columns[3]); err != nil {
		return a, err
	}
	if a.metAt, err = readTime(columns[11]); err != nil {
		return a, err
	}
	a.met, err = readMet(columns[4:11])
	return a, err
}

func readTimes(column []byte) ([]time.Time, error) {
	list, err := pglink.Elements(column, pgtype.TimestamptzOID)
	if err != nil || list == nil {
		return nil, err
	}
	times := make([]time.Time, len(list))
	for i, raw := range list {
		if times[i], err = readTime(raw); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// The columns of the messages that a group met, each a list.
var metOIDs = [...]uint32{
	pgtype.Int8OID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.TimestamptzOID, pgtype.TextOID, pgtype.JSONOID, pgtype.JSONOID,
}

// readMet reads the lists of positions, global positions, ids, times, types, data and metadata.
func readMet(columns [][]byte) ([]*messagestore.Message, error) {
	var lists [len(metOIDs)][][]byte
	for i, oid := range metOIDs {
		list, err := pglink.Elements(columns[i], oid)
		if err != nil {
			return nil, err
		}
		if lists[i] = list; len(list) != len(lists[0]) {
			return nil, errNoAnswer
		}
	}
	if lists[0] == nil {
		return nil, nil
	}
	all := make([]*messagestore.Message, len(lists[0]))
	for i := range all {
		position, global, id, at, messageType := lists[0][i], lists[1][i], lists[2][i], lists[3][i], lists[4][i]
		if messageType == nil {
			continue
		}
		if len(position) != 8 || len(global) != 8 || len(id) != 16 {
			return nil, errNoAnswer
		}
		m := metOf(messageType, lists[5][i], lists[6][i])
		m.ID = [16]byte(id)
		m.Position = messagestore.Version(binary.BigEndian.Uint64(position))            //nolint:gosec // the same bits
		m.GlobalPosition = messagestore.GlobalPosition(binary.BigEndian.Uint64(global)) //nolint:gosec // the same bits
		var err error
		if m.Time, err = readTime(at); err != nil {
			return nil, err
		}
		all[i] = m
	}
	return all, nil
}

// check reports an answer that is none.
func (a eachAnswer) check(group []*ticket) error {
	written, met := 0, 0
	for i, outcome := range []byte(a.outcomes) {
		switch {
		case i >= len(group):
		case outcome == 'w':
			written += len(group[i].append.Records)
		case outcome == 'c' && group[i].meet:
			met++
		}
	}
	if len(a.outcomes) != len(group) || len(a.versions) != len(group) || len(a.globalPositions) != written || len(a.times) != written || len(a.met) != met {
		return fmt.Errorf("append %d writes: the database answered for %d, with %d versions, %d of %d global positions, %d times and %d of %d meetings",
			len(group), len(a.outcomes), len(a.versions), len(a.globalPositions), written, len(a.times), len(a.met), met)
	}
	return nil
}
