package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// The parameters and the columns of queue_take.
var (
	takeOIDs = []uint32{
		pgtype.TextOID, pgtype.TextOID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.TextOID, pgtype.Int8ArrayOID,
		pgtype.TextArrayOID, pgtype.Int4OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int4OID, pgtype.BoolOID, pgtype.Int4OID, pgtype.Float8OID,
		pgtype.Int4OID, pgtype.Int8ArrayOID, pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int8OID, pgtype.Int8ArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID,
	}
	takenOIDs = []uint32{
		pgtype.TextOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int4ArrayOID, pgtype.UUIDArrayOID, pgtype.TextArrayOID, pgtype.Int8ArrayOID,
		pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int8OID, pgtype.BoolOID, pgtype.Int8OID,
	}
)

// callEachAndTake writes a group and takes from a queue, in one transaction and one round trip. The
// take sees the group's messages. It locks the queue after the categories; nobody locks a category
// after a queue, so there is no deadlock. If the take is refused, nothing is written.
func (w *writer) callEachAndTake(ctx context.Context, conn *pgx.Conn, group []*ticket, along *queuing.Ride) (a eachAnswer, refused bool, err error) {
	parameters, err := encoded(conn.TypeMap(), takeOIDs, takeArguments(along.Take))
	if err != nil {
		along.Tell(queuing.Taken{}, queuing.ErrAlone)
		return a, true, err
	}
	defer along.Tell(queuing.Taken{}, fmt.Errorf("%w: the write that it went with has panicked", messagestore.ErrOutcomeUnknown)) // unless it already has an answer
	e, _ := encoders.Get().(*pglink.Encoder)
	defer keep(e)
	var taken queuing.Taken
	var malformed error
	write := pglink.Statement{SQL: w.queries.appendEach, OIDs: eachOIDs, Parameters: eachParameters(e, group, w.notify), Often: true, Read: func(columns [][]byte) (err error) {
		a, err = readEach(columns)
		return err
	}}
	take := pglink.Statement{SQL: w.queries.queueTake, OIDs: takeOIDs, Parameters: parameters, Often: true, Read: func(columns [][]byte) error {
		if malformed = scanTaken(scannerOf(conn.TypeMap(), takenOIDs, columns), &taken); malformed == nil {
			malformed = checkTaken(taken, along.Take)
		}
		return nil // the writes succeeded all the same
	}}
	tags, err := w.link.Pipeline(ctx, conn, write, take)
	switch {
	case pglink.Definite(err):
		along.Tell(queuing.Taken{}, queuing.ErrAlone)
		return a, len(tags) > 0, err
	case err != nil:
		malformed = err
	default:
		err = a.check(group)
	}
	if malformed != nil {
		malformed = fmt.Errorf("%w: %w", messagestore.ErrOutcomeUnknown, pglink.Safe(malformed))
	}
	along.Tell(taken, malformed)
	return a, false, err
}

// encoded returns arguments in PostgreSQL's binary format.
func encoded(m *pgtype.Map, oids []uint32, args []any) ([][]byte, error) {
	parameters := make([][]byte, len(args))
	for i, arg := range args {
		var err error
		if parameters[i], err = m.Encode(oids[i], pgtype.BinaryFormatCode, arg, nil); err != nil {
			return nil, err
		}
	}
	return parameters, nil
}

// scannerOf returns a function that reads columns in PostgreSQL's binary format, as Scan of rows
// does.
func scannerOf(m *pgtype.Map, oids []uint32, columns [][]byte) func(into ...any) error {
	return func(into ...any) error {
		if len(into) != len(columns) || len(oids) != len(columns) {
			return errNoAnswer
		}
		for i := range into {
			if err := m.Scan(oids[i], pgtype.BinaryFormatCode, columns[i], into[i]); err != nil {
				return err
			}
		}
		return nil
	}
}
