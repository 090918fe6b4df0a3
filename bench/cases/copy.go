package cases

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/bench/server"
	names "github.com/dibs-go/dibs/internal/text"
)

// copyRows sends rows by one COPY in PostgreSQL's binary format, into the table of Dibs
// or of message-db: as the template says. Columns that Dibs' functions derive from a
// stream's name are derived here.
func copyRows(ctx context.Context, conn *pgconn.PgConn, template string, rows []row) error {
	b := make([]byte, 0, 512*(len(rows)+1))
	b = append(b, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	text := func(parts ...[]byte) {
		size := 0
		for _, part := range parts {
			size += len(part)
		}
		b = binary.BigEndian.AppendUint32(b, uint32(size)) //nolint:gosec // a few hundred bytes
		for _, part := range parts {
			b = append(b, part...)
		}
	}
	bigint := func(v int64) {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(v)) //nolint:gosec // the same bits
	}
	for _, r := range rows {
		if template == server.MessageDB {
			b = binary.BigEndian.AppendUint16(b, 6)
			jsonb := []byte{1} // its version
			text(jsonb, r.data)
			text(jsonb, r.metadata)
		} else {
			b = binary.BigEndian.AppendUint16(b, 8)
			text(r.data)
			if r.metadata == nil {
				b = binary.BigEndian.AppendUint32(b, math.MaxUint32) // null
			} else {
				text(r.metadata)
			}
		}
		text(r.id[:])
		text([]byte(r.stream))
		bigint(r.position)
		text([]byte(messageType))
		if template != server.MessageDB {
			text([]byte(r.stream.Category()))
			bigint(names.Hash64(r.stream.CardinalID()))
		}
	}
	b = binary.BigEndian.AppendUint16(b, 0xffff)
	columns := "data, metadata, id, stream_name, position, type"
	if template != server.MessageDB {
		columns += ", category, group_hash"
	}
	_, err := conn.CopyFrom(ctx, bytes.NewReader(b), "copy "+tableOf(template)+" ("+columns+") from stdin binary")
	return err
}

func tableOf(template string) string {
	if template == server.MessageDB {
		return "message_store.messages"
	}
	return "dibs.messages"
}
