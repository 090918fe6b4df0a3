package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// The parameters of append_one.
var oneOIDs = []uint32{
	pgtype.TextOID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.TextOID, pgtype.JSONOID, pgtype.JSONOID, pgtype.Int8OID, pgtype.BoolOID, pgtype.BoolOID,
}

// callOne writes one message. It has its own SQL function because append_each of one message takes
// 1.4 times as long: a median of 313 us instead of 218, in sequential calls on a server that does
// not sync.
func (d *Driver) callOne(ctx context.Context, conn *pgx.Conn, w messagestore.Append, fence int64, meet bool) (answers []answer, err error) {
	r := &w.Records[0]
	e := pglink.Encoder{Buffer: make([]byte, 0, 40)}
	e.Next()
	e.Int8(int64(w.Expected))
	e.Next()
	e.Int8(fence)
	e.Next()
	e.Bool(d.notify)
	e.Next()
	e.Bool(meet)
	numbers := e.Parameters()
	parameters := [][]byte{[]byte(w.Stream), numbers[0], r.ID[:], []byte(r.Type), r.Data, nil, numbers[1], numbers[2], numbers[3]}
	if len(r.Metadata) > 0 {
		parameters[5] = r.Metadata
	}
	err = d.link.Exec(ctx, conn, d.queries.appendOne, oneOIDs, parameters, func(columns [][]byte) error {
		a, err := readOne(columns)
		a.stream = string(w.Stream)
		answers = append(answers, a)
		return err
	})
	return answers, err
}

// The parameters of append_several.
var severalOIDs = []uint32{
	pgtype.TextOID, pgtype.Int8OID, pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.JSONArrayOID, pgtype.JSONArrayOID, pgtype.Int8OID, pgtype.BoolOID, pgtype.BoolOID,
}

// callSeveral writes several messages to one stream. It has its own SQL function because
// append_each takes nearly twice as long: 0.36 ms instead of 0.21 for three messages, with their
// commit, on a server that does not sync.
func (d *Driver) callSeveral(ctx context.Context, conn *pgx.Conn, w messagestore.Append, fence int64, meet bool) (answers []answer, err error) {
	e, _ := encoders.Get().(*pglink.Encoder)
	defer keep(e)
	size := len(w.Stream)
	for i := range w.Records {
		r := &w.Records[i]
		size += len(r.Type) + len(r.Data) + len(r.Metadata)
	}
	e.Reset(size + 40*len(w.Records) + 4*20 + 20)
	e.Next()
	e.Int8(int64(w.Expected))
	addRecords(e, &w)
	e.Next()
	e.Int8(fence)
	e.Next()
	e.Bool(d.notify)
	e.Next()
	e.Bool(meet)
	parameters := slices.Insert(e.Parameters(), 0, []byte(w.Stream))
	err = d.link.Exec(ctx, conn, d.queries.appendSeveral, severalOIDs, parameters, func(columns [][]byte) error {
		a, err := readOne(columns)
		a.stream = string(w.Stream)
		answers = append(answers, a)
		return err
	})
	return answers, err
}
