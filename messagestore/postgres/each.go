package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// An eachAnswer is the row of the function append_each.
type eachAnswer struct {
	outcomes        string
	versions        []int64
	globalPositions []int64
	times           []time.Time // of the messages at these positions

	// The last messages of the streams of TryAppend's writes that conflict; nil for a stream
	// without messages.
	met   []*messagestore.Message
	metAt time.Time
}

// The parameters of append_each.
var eachOIDs = []uint32{
	pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int8ArrayOID,
	pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.BoolOID, pgtype.BoolArrayOID, pgtype.BoolArrayOID,
}

func (w *writer) callEach(ctx context.Context, conn *pgx.Conn, group []*ticket) (a eachAnswer, err error) {
	e, _ := encoders.Get().(*pglink.Encoder)
	defer keep(e)
	parameters := eachParameters(e, group, w.notify)
	conn.PgConn().Frontend().Send(room(len(e.Buffer)))
	err = w.link.Exec(ctx, conn, w.queries.appendEach, eachOIDs, parameters, func(columns [][]byte) (err error) {
		a, err = readEach(columns)
		return err
	})
	if err != nil {
		return a, err
	}
	return a, a.check(group)
}

func eachParameters(e *pglink.Encoder, group []*ticket, notify bool) [][]byte {
	n, size := 0, 0
	for _, t := range group {
		n, size = n+len(t.appends), size+t.size
	}
	writes := make([]*messagestore.Append, 0, n)
	messages := 0
	for _, t := range group {
		for i := range t.appends {
			writes = append(writes, &t.appends[i])
			messages += len(t.appends[i].Records)
			size += len(t.appends[i].Stream)
			for r := range t.appends[i].Records {
				size += len(t.appends[i].Records[r].Type)
			}
		}
	}
	const most = 8 + 12 + 8 + 12 + 20 + 4 + 4 + 4 + 5 + 5 // for a write of one message, the bytes that are not text
	e.Reset(size + most*(n+messages) + 11*20)

	addWrites(e, writes...)
	e.Array(pgtype.Int8OID, n)
	for _, t := range group {
		for _, fence := range t.fences {
			e.Int8Element(fence)
		}
	}
	addRecords(e, writes...)
	e.Next()
	e.Bool(notify)
	booleans := func(of func(t *ticket, i int) bool) {
		e.Array(pgtype.BoolOID, n)
		for _, t := range group {
			for i := range t.appends {
				e.BoolElement(of(t, i))
			}
		}
	}
	meets, joined := slices.ContainsFunc(group, func(t *ticket) bool { return t.meet }), n > len(group)
	if meets {
		booleans(func(t *ticket, _ int) bool { return t.meet })
	}
	if joined {
		booleans(func(_ *ticket, i int) bool { return i > 0 })
	}
	parameters := e.Parameters()
	if !meets {
		parameters = slices.Insert(parameters, 9, nil)
	}
	if !joined {
		parameters = append(parameters, nil)
	}
	return parameters
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

// The columns, each a list, of the messages that a group's conflicting writes found.
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

// check returns an error if the answer is malformed.
func (a eachAnswer) check(group []*ticket) error {
	writes, written, met := 0, 0, 0
	for _, t := range group {
		for i, w := range t.appends {
			if n := writes + i; n < len(a.outcomes) {
				switch {
				case a.outcomes[n] == 'w':
					written += len(w.Records)
				case a.outcomes[n] == 'c' && t.meet:
					met++
				}
				if (a.outcomes[n] == 'w') != (a.outcomes[writes] == 'w') {
					return fmt.Errorf("append %d writes: the database answered that one was written in part", len(group))
				}
			}
		}
		writes += len(t.appends)
	}
	if len(a.outcomes) != writes || len(a.versions) != writes || len(a.globalPositions) != written || len(a.times) != written || len(a.met) != met {
		return fmt.Errorf("append %d writes: the database answered for %d, with %d versions, %d of %d global positions, %d times and %d of %d meetings",
			writes, len(a.outcomes), len(a.versions), len(a.globalPositions), written, len(a.times), len(a.met), met)
	}
	return nil
}

// next consumes the outcome of the group's next write and the versions of its streams. All parts of
// a write have one outcome, except parts that were written before.
func (a *eachAnswer) next(t *ticket) (outcome byte, versions []int64) {
	n := len(t.appends)
	outcome, versions = a.outcomes[0], a.versions[:n]
	before := strings.IndexByte(a.outcomes[:n], 'a') >= 0
	if before && t.meet {
		a.met = a.met[strings.Count(a.outcomes[:n], "c"):]
	}
	a.outcomes, a.versions = a.outcomes[n:], a.versions[n:]
	if before {
		return 'a', versions
	}
	return outcome, versions
}

// written consumes the result of t, which was written.
func (a *eachAnswer) written(t *ticket, versions []int64) []messagestore.Written {
	all := make([]messagestore.Written, len(t.appends))
	for i, w := range t.appends {
		ids := make([]uuid.UUID, len(w.Records))
		for n, r := range w.Records {
			ids[n] = r.ID
		}
		last := len(ids) - 1
		all[i] = messagestore.Written{
			Stream: w.Stream, Version: messagestore.Version(versions[i]), IDs: ids,
			GlobalPosition: messagestore.GlobalPosition(a.globalPositions[last]), Time: a.times[last],
		}
		a.globalPositions, a.times = a.globalPositions[last+1:], a.times[last+1:]
	}
	return all
}

// conflict consumes the messages that t met.
func (a *eachAnswer) conflict(t *ticket) *messagestore.Conflict {
	met := &messagestore.Conflict{Time: a.metAt, Last: a.met[:len(t.appends):len(t.appends)]}
	for i, m := range met.Last {
		if m != nil {
			m.Stream = t.appends[i].Stream
		}
	}
	a.met = a.met[len(t.appends):]
	return met
}
