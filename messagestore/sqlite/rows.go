package sqlite

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A message is a recorded message with its metadata in stored form.
type message struct {
	*messagestore.Message
	metadata json.RawMessage
}

func recorded(messages []message) []*messagestore.Message {
	if len(messages) == 0 {
		return nil
	}
	all := make([]*messagestore.Message, len(messages))
	for i, m := range messages {
		all[i] = m.Message
	}
	return all
}

func query(ctx context.Context, db queryer, statement string, args ...any) ([]message, error) {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []message
	for rows.Next() {
		m := message{Message: new(messagestore.Message)}
		var id []byte
		var micros int64
		if err := rows.Scan(&m.GlobalPosition, &m.Stream, &m.Position, &m.Type, (*[]byte)(&m.Data), (*[]byte)(&m.metadata), &id, &micros); err != nil {
			return nil, err
		}
		if m.ID, err = uuid.FromBytes(id); err != nil {
			return nil, err
		}
		m.Time = time.UnixMicro(micros).UTC()
		m.Metadata = messagestore.ParseMetadata(m.metadata)
		found = append(found, m)
	}
	return found, rows.Err()
}

func version(ctx context.Context, db queryer, stream messagestore.StreamName) (messagestore.Version, error) {
	var v messagestore.Version
	_, err := scanOne(ctx, db, versionSQL, []any{string(stream)}, &v)
	return v, err
}

// scanOne reads the row of a statement and reports whether there was a row. It reads to the end of
// the rows, because only there a statement that writes is done.
func scanOne(ctx context.Context, db queryer, statement string, args []any, into ...any) (bool, error) {
	rows, err := db.QueryContext(ctx, statement, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	found := false
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return false, err
		}
		found = true
	}
	return found, rows.Err()
}

func text[T ~string | ~[]byte](t T) any {
	if len(t) == 0 {
		return nil
	}
	return string(t)
}
