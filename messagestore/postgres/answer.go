package postgres

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/messagestore"
)

// An answer is a row of the function append.
type answer struct {
	outcome        string
	stream         string
	version        messagestore.Version
	globalPosition messagestore.GlobalPosition
	id             uuid.UUID
	time           time.Time
	met            *messagestore.Message // type, data and metadata of the message found, for the outcome met; else nil
	metAt          time.Time
}

// metIn returns the message in an answer; nil for a stream without messages.
func (a *answer) metIn() *messagestore.Message {
	if m := a.met; m != nil {
		m.ID, m.Stream, m.Position, m.GlobalPosition, m.Time = a.id, messagestore.StreamName(a.stream), a.version, a.globalPosition, a.time
	}
	return a.met
}

var errNoAnswer = errors.New("malformed reply to append_one")

// readOne reads a record: outcome, version, global position, id, time; then the type, data and
// metadata of the message that the write met, and the time at which that was the last message. The
// record comes as one column, because returning a table would cost the server half as much as
// reading the stream's version.
func readOne(columns [][]byte) (a answer, err error) {
	var fields [9][]byte
	if len(columns) != 1 || len(columns[0]) < 4 || binary.BigEndian.Uint32(columns[0]) != uint32(len(fields)) {
		return a, errNoAnswer
	}
	rest := columns[0][4:]
	for i := range fields {
		if len(rest) < 8 {
			return a, errNoAnswer
		}
		size := int32(binary.BigEndian.Uint32(rest[4:])) //nolint:gosec // -1 for null
		rest = rest[8:]
		if size == -1 {
			continue
		}
		if size < 0 || int(size) > len(rest) {
			return a, errNoAnswer
		}
		fields[i], rest = rest[:size:size], rest[size:]
	}
	if len(fields[0]) == 0 || len(fields[1]) != 8 || len(fields[2]) != 8 && fields[2] != nil || len(fields[3]) != 16 && fields[3] != nil {
		return a, errNoAnswer
	}
	if a.time, err = readTime(fields[4]); err != nil {
		return a, err
	}
	if a.metAt, err = readTime(fields[8]); err != nil {
		return a, err
	}
	a.outcome = outcomeName(fields[0])
	a.version = messagestore.Version(binary.BigEndian.Uint64(fields[1])) //nolint:gosec // the same bits
	if fields[2] != nil {
		a.globalPosition = messagestore.GlobalPosition(binary.BigEndian.Uint64(fields[2])) //nolint:gosec // the same bits
	}
	copy(a.id[:], fields[3])
	if fields[5] != nil {
		a.met = metOf(fields[5], fields[6], fields[7])
	}
	return a, nil
}

// readShared reads a record, in one column like [readOne]: version, global position, time.
func readShared(columns [][]byte) (a answer, err error) {
	const fields, field = 3, 16 // each field has its type, its size and eight bytes
	if len(columns) != 1 || len(columns[0]) != 4+fields*field || binary.BigEndian.Uint32(columns[0]) != fields {
		return answer{}, errNoAnswer
	}
	var values [fields][]byte
	for i := range values {
		at := columns[0][4+i*field:]
		if binary.BigEndian.Uint32(at[4:]) != 8 {
			return answer{}, errNoAnswer
		}
		values[i] = at[8:field]
	}
	return placed(values[:])
}

// placed reads the place of a written message: version, global position, time.
func placed(values [][]byte) (a answer, err error) {
	if len(values) != 3 || len(values[0]) != 8 || len(values[1]) != 8 {
		return answer{}, errNoAnswer
	}
	if a.time, err = readTime(values[2]); err != nil {
		return answer{}, err
	}
	a.outcome = "written"
	a.version = messagestore.Version(binary.BigEndian.Uint64(values[0]))               //nolint:gosec // the same bits
	a.globalPosition = messagestore.GlobalPosition(binary.BigEndian.Uint64(values[1])) //nolint:gosec // the same bits
	return a, nil
}

// readAsked reads a row of append: outcome, stream, version, global position, id, time.
func readAsked(columns [][]byte) (a answer, err error) {
	if len(columns) != 6 || len(columns[2]) != 8 || len(columns[3]) != 8 && columns[3] != nil || len(columns[4]) != 16 && columns[4] != nil {
		return answer{}, errNoAnswer
	}
	if a.time, err = readTime(columns[5]); err != nil {
		return answer{}, err
	}
	a.outcome, a.stream = outcomeName(columns[0]), string(columns[1])
	a.version = messagestore.Version(binary.BigEndian.Uint64(columns[2])) //nolint:gosec // the same bits
	if columns[3] != nil {
		a.globalPosition = messagestore.GlobalPosition(binary.BigEndian.Uint64(columns[3])) //nolint:gosec // the same bits
	}
	copy(a.id[:], columns[4])
	return a, nil
}

// outcomeName returns the outcome, without a copy for the most frequent outcome.
func outcomeName(raw []byte) string {
	if string(raw) == "written" {
		return "written"
	}
	return string(raw)
}

// metOf returns a message with copies of this type and content, which are in the connection's
// buffers.
func metOf(messageType, data, metadata []byte) *messagestore.Message {
	m := &messagestore.Message{Type: string(messageType), Metadata: messagestore.ParseMetadata(metadata)}
	if data != nil {
		m.Data = append(make(json.RawMessage, 0, len(data)), data...)
	}
	return m
}

// readTime reads a time, or null, which is the zero time.
func readTime(raw []byte) (time.Time, error) {
	if raw == nil {
		return time.Time{}, nil
	}
	if len(raw) == 8 {
		if t, ok := timeOf(int64(binary.BigEndian.Uint64(raw))); ok { //nolint:gosec // the same bits
			return t, nil
		}
	}
	return time.Time{}, errNoAnswer
}

// finite returns the time, or the zero time for null and infinity.
func finite(t pgtype.Timestamptz) time.Time {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return time.Time{}
	}
	return t.Time.UTC().Truncate(time.Microsecond)
}

// outcome translates the answers of the function.
func outcome(answers []answer, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	if len(answers) == 1 {
		switch a := answers[0]; a.outcome {
		case "version_conflict":
			conflict := &messagestore.VersionConflictError{Stream: messagestore.StreamName(a.stream), Actual: a.version}
			for _, w := range appends {
				if w.Stream == conflict.Stream {
					conflict.Expected = w.Expected
				}
			}
			return nil, nil, conflict
		case "id_conflict":
			return nil, nil, &messagestore.IDConflictError{ID: a.id, Stream: messagestore.StreamName(a.stream), Position: a.version}
		}
	}
	if len(answers) != len(appends) {
		return nil, nil, fmt.Errorf("append %d streams: the database answered for %d", len(appends), len(answers))
	}
	if len(answers) > 0 && answers[0].outcome == "met" {
		return nil, lastOf(answers), nil
	}
	written := make([]messagestore.Written, len(appends))
	for i, a := range answers {
		written[i] = messagestore.Written{
			Stream:         messagestore.StreamName(a.stream),
			Version:        a.version,
			GlobalPosition: a.globalPosition,
			Time:           a.time,
			Duplicate:      a.outcome == "duplicate",
		}
		for _, r := range appends[i].Records {
			written[i].IDs = append(written[i].IDs, r.ID)
		}
	}
	return written, nil, nil
}

// lastOf returns the conflict that the answers for a write's streams describe.
func lastOf(answers []answer) *messagestore.Conflict {
	met := &messagestore.Conflict{Time: answers[0].metAt, Last: make([]*messagestore.Message, len(answers))}
	for i := range answers {
		met.Last[i] = answers[i].metIn()
	}
	return met
}
