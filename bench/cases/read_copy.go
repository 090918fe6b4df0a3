package cases

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/messagestore"
)

// copyPage is how many messages one COPY reads: so many that its round trip and its plan
// do not count.
const copyPage = 20 * pageSize

// A copyReader is the limit: it reads the rows that Dibs reads, by COPY in PostgreSQL's
// binary format, and makes the values of them that Dibs makes.
type copyReader struct {
	conn *pgx.Conn
	last int64
}

func openCopyReader(ctx context.Context, r *rows) (reader, error) {
	conn, err := pgx.Connect(ctx, r.inDibs)
	return &copyReader{conn, r.count}, err
}

func (r *copyReader) page(ctx context.Context, from int64, _ messagestore.Filter) (int, int64, error) {
	d := &copyDecoder{messages: make([]messagestore.Message, 0, copyPage)}
	// COPY takes no parameters.
	_, err := r.conn.PgConn().CopyTo(ctx, d, fmt.Sprintf(`copy (
		select id, stream_name, type, position, global_position, data, metadata, time from dibs.messages
		where category = '%s' and global_position >= %d order by global_position limit %d
	) to stdout binary`, rowsCategory, from, copyPage))
	if err == nil && !d.ended {
		err = errors.New("a COPY without an end")
	}
	next := r.last + 1
	if n := len(d.messages); n == copyPage {
		next = int64(d.messages[n-1].GlobalPosition) + 1
	}
	return len(d.messages), next, err
}

func (r *copyReader) stream(context.Context, messagestore.StreamName) (int, error) {
	return 0, errors.ErrUnsupported
}

func (r *copyReader) close() { _ = r.conn.Close(context.Background()) }

// A copyDecoder makes messages of the output of COPY: one message of the protocol for
// each row.
type copyDecoder struct {
	messages []messagestore.Message
	begun    bool
	ended    bool
}

const (
	copySignature = "PGCOPY\n\xff\r\n\x00"
	copyHeader    = len(copySignature) + 8
	copyColumns   = 8
)

// postgresEpoch is from when PostgreSQL counts microseconds.
var postgresEpoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// Write takes the content of one message of the protocol. It keeps nothing of b.
func (d *copyDecoder) Write(b []byte) (int, error) {
	n := len(b)
	if !d.begun {
		if n < copyHeader || !bytes.HasPrefix(b, []byte(copySignature)) {
			return 0, errors.New("this is no COPY in binary format")
		}
		d.begun, b = true, b[copyHeader:]
	}
	for len(b) > 0 {
		if d.ended || len(b) < 2 {
			return 0, errors.New("a COPY goes on after its end, or within a row")
		}
		columns := binary.BigEndian.Uint16(b)
		if b = b[2:]; columns == 0xffff {
			d.ended = true
			continue
		}
		if columns != copyColumns {
			return 0, fmt.Errorf("a row has %d columns", columns)
		}
		var err error
		if b, err = d.row(b); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// row makes a message of a row's columns, and returns the bytes after them.
func (d *copyDecoder) row(b []byte) ([]byte, error) {
	var columns [copyColumns][]byte
	for i := range columns {
		if len(b) < 4 {
			return nil, errors.New("a row ends early")
		}
		length := int(int32(binary.BigEndian.Uint32(b))) //nolint:gosec // -1 for null
		if b = b[4:]; length < 0 {
			continue
		}
		if len(b) < length {
			return nil, errors.New("a column ends early")
		}
		columns[i], b = b[:length], b[length:]
	}
	for i, length := range [copyColumns]int{0: 16, 3: 8, 4: 8, 7: 8} {
		if length > 0 && len(columns[i]) != length {
			return nil, fmt.Errorf("column %d has %d bytes", i, len(columns[i]))
		}
	}
	number := func(i int) int64 { return int64(binary.BigEndian.Uint64(columns[i])) } //nolint:gosec // as it was written
	d.messages = append(d.messages, messagestore.Message{
		ID:             [16]byte(columns[0]),
		Stream:         messagestore.StreamName(columns[1]),
		Type:           d.typeOf(columns[2]),
		Position:       messagestore.Version(number(3)),
		GlobalPosition: messagestore.GlobalPosition(number(4)),
		Data:           bytes.Clone(columns[5]),
		Metadata:       messagestore.ParseMetadata(columns[6]),
		Time:           postgresEpoch.Add(time.Duration(number(7)) * time.Microsecond),
	})
	return b, nil
}

// typeOf returns a message type, mostly the type of the message before.
func (d *copyDecoder) typeOf(name []byte) string {
	if n := len(d.messages); n > 0 && d.messages[n-1].Type == string(name) {
		return d.messages[n-1].Type
	}
	return string(name)
}
