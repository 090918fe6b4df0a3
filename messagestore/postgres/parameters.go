package postgres

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// The parameter of heads and of ring.
var headsOIDs = []uint32{pgtype.TextArrayOID}

// encoders are reused: a group's parameters are as large as its messages, and pgx has copied them
// once they are sent.
var encoders = sync.Pool{New: func() any { return &pglink.Encoder{} }}

// maxKept is the size up to which an encoder is kept for the next group.
const maxKept = 512 << 10

func keep(e *pglink.Encoder) {
	if cap(e.Buffer) <= maxKept {
		encoders.Put(e)
	}
}

// A room is a message without bytes. Sending it grows pgx's buffer by that many bytes at once;
// otherwise the buffer would be doubled until the group fits, again for each group.
type room int

// Encode grows dst, with room for the rest of the message.
func (r room) Encode(dst []byte) ([]byte, error) { return slices.Grow(dst, int(r)+1024), nil }

// Decode does nothing: nobody receives a room.
func (room) Decode([]byte) error { return nil }

// Frontend marks a message of the client.
func (room) Frontend() {}

// addWrites adds lists with one value per write: the streams, the expected versions, and the
// numbers of records.
func addWrites(e *pglink.Encoder, writes ...*messagestore.Append) {
	e.Array(pgtype.TextOID, len(writes))
	for _, w := range writes {
		pglink.Element(e, w.Stream)
	}
	e.Array(pgtype.Int8OID, len(writes))
	for _, w := range writes {
		e.Int8Element(int64(w.Expected))
	}
	e.Array(pgtype.Int4OID, len(writes))
	for _, w := range writes {
		e.Int4Element(len(w.Records))
	}
}

// addRecords adds lists with one value per record: the ids, the types, the data and the metadata.
func addRecords(e *pglink.Encoder, writes ...*messagestore.Append) {
	n := 0
	for _, w := range writes {
		n += len(w.Records)
	}
	each := func(oid uint32, add func(r *messagestore.Encoded)) {
		e.Array(oid, n)
		for _, w := range writes {
			for i := range w.Records {
				add(&w.Records[i])
			}
		}
	}
	each(pgtype.UUIDOID, func(r *messagestore.Encoded) { pglink.Element(e, r.ID[:]) })
	each(pgtype.TextOID, func(r *messagestore.Encoded) { pglink.Element(e, r.Type) })
	each(pgtype.JSONOID, func(r *messagestore.Encoded) { pglink.Element(e, r.Data) })
	each(pgtype.JSONOID, func(r *messagestore.Encoded) {
		if len(r.Metadata) > 0 {
			pglink.Element(e, r.Metadata)
		} else {
			e.Null()
		}
	})
}

func transactParameters(appends []messagestore.Append, fences []int64) [][]byte {
	writes := make([]*messagestore.Append, len(appends))
	for i := range appends {
		writes[i] = &appends[i]
	}
	var e pglink.Encoder
	addWrites(&e, writes...)
	addRecords(&e, writes...)
	e.Array(pgtype.Int8OID, len(fences))
	for _, fence := range fences {
		e.Int8Element(fence)
	}
	parameters := append(e.Parameters(), nil, nil)
	if types := past(appends); types != nil {
		parameters[len(parameters)-2] = []byte(*types)
	}
	if ids := after(appends); ids != nil {
		var e pglink.Encoder
		e.Array(pgtype.UUIDOID, len(ids))
		for _, id := range ids {
			if id.Valid {
				pglink.Element(&e, id.Bytes[:])
			} else {
				e.Null()
			}
		}
		parameters[len(parameters)-1] = e.Parameters()[0]
	}
	return parameters
}

// past returns the types that may have been written to each stream, as JSON, or nil.
func past(appends []messagestore.Append) *string {
	if !slices.ContainsFunc(appends, func(a messagestore.Append) bool { return len(a.Past) > 0 }) {
		return nil
	}
	types := make([][]string, len(appends))
	for i, a := range appends {
		if len(a.Past) > 0 {
			types[i] = a.Past
		}
	}
	raw, _ := json.Marshal(types) // strings can be
	return textOrNull(raw)
}

// after returns the ids of the messages at the expected versions, or nil if no append names one.
func after(appends []messagestore.Append) []pgtype.UUID {
	if !slices.ContainsFunc(appends, func(a messagestore.Append) bool { return a.After != uuid.Nil }) {
		return nil
	}
	ids := make([]pgtype.UUID, len(appends))
	for i, a := range appends {
		ids[i] = pgtype.UUID{Bytes: a.After, Valid: a.After != uuid.Nil}
	}
	return ids
}

// textOrNull returns nil, which is null, for empty raw.
func textOrNull(raw []byte) *string {
	if len(raw) == 0 {
		return nil
	}
	s := string(raw)
	return &s
}
