package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/removal"
	errortext "github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// The limit of a removal, and the type of the message that records a trim.
const (
	// maxRemoved is how many messages one transaction removes at most, which bounds its duration.
	maxRemoved = 10_000

	trimmedType = "dibs:Trimmed"
)

// TrimCheckpoints implements [messagestore.Driver]. It records the removal like a trim.
func (d *Driver) TrimCheckpoints(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
	var removed int64
	err := d.change(ctx, "trim checkpoints", func(ctx context.Context, db queryer) error {
		removed = 0
		first, last, there, err := endsOf(ctx, db, stream)
		if err != nil || !there {
			return err
		}
		below := min(last-messagestore.Version(keep)+1, first+maxRemoved)
		if below <= first {
			return nil
		}
		var other bool
		if _, err := scanOne(ctx, db, otherTypeSQL, []any{string(stream), int64(below), removal.CheckpointType}, &other); err != nil {
			return err
		}
		if other {
			return removal.NotCheckpoints(stream)
		}
		if removed, err = removeBelow(ctx, db, stream, below); err != nil {
			return err
		}
		records, err := recordTrim(ctx, db, stream, trimRecord{Stream: stream, Removed: removed, From: first, UpTo: below - 1, Reason: "checkpoints"})
		if err != nil {
			return err
		}
		// The last record says everything that the earlier records say.
		_, last, _, err = endsOf(ctx, db, records)
		if err == nil {
			_, err = removeBelow(ctx, db, records, last)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

// change runs f in a transaction that can write. Read the variables that f assigns only if change
// returns nil: after an error f may still be running in the writer's goroutine.
func (d *Driver) change(ctx context.Context, what string, f func(context.Context, queryer) error) error {
	return explain(d.writes.do(ctx, &job{
		run: f,
		unknown: func(cause error) error {
			return fmt.Errorf("%s: it may have happened, and to call it again is safe: %w", what, cause)
		},
	}))
}

// endsOf returns the positions of the first and the last message of a stream, and whether it has
// messages.
func endsOf(ctx context.Context, db queryer, stream messagestore.StreamName) (first, last messagestore.Version, there bool, err error) {
	there, err = scanOne(ctx, db, endsSQL, []any{string(stream)}, &first, &last)
	return first, last, there, err
}

func removeBelow(ctx context.Context, db queryer, stream messagestore.StreamName, below messagestore.Version) (int64, error) {
	result, err := db.ExecContext(ctx, removeSQL, string(stream), int64(below))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// refuseRecords refuses a stream that has the records of trims or of forgotten keys: nothing else
// shows that messages were removed.
func refuseRecords(ctx context.Context, db queryer, stream messagestore.StreamName) error {
	if category := stream.Category(); !isOfType(category, "retention") && !isOfType(category, "forgotten") {
		return nil
	}
	var is bool
	if _, err := scanOne(ctx, db, recordsSQL, []any{string(stream)}, &is); err != nil {
		return err
	}
	if is {
		return messagestore.NewInvalidError("stream name", string(stream), "must not be a stream of records of removals, which stay")
	}
	return nil
}

// A trimRecord is the data of a message of type dibs:Trimmed.
type trimRecord struct {
	Stream  messagestore.StreamName `json:"stream"`
	Removed int64                   `json:"removed"`
	From    messagestore.Version    `json:"from"`
	UpTo    messagestore.Version    `json:"upTo"`
	Reason  string                  `json:"reason,omitempty"`
}

// recordTrim writes the record of a trim, and returns its stream. It returns "" for a stream of
// records, whose trims are not recorded.
func recordTrim(ctx context.Context, db queryer, stream messagestore.StreamName, r trimRecord) (messagestore.StreamName, error) {
	records := retentionStream(stream)
	if records == "" {
		return "", nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	return records, appendOwn(ctx, db, records, trimmedType, data, nil)
}

// appendOwn appends a message of a type of the store's own.
func appendOwn(ctx context.Context, db queryer, stream messagestore.StreamName, messageType string, data, metadata []byte) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	_, err = newBatch([]messagestore.Append{{
		Stream: stream, Expected: messagestore.AnyVersion,
		Records: []messagestore.Encoded{{ID: id, Type: messageType, Data: data, Metadata: metadata}},
	}}).write(ctx, db)
	return err
}

// retentionStream returns the stream that records the trims of a stream, like on PostgreSQL:
// account:retention-123 for account-123. It returns "" for a stream of records.
func retentionStream(stream messagestore.StreamName) messagestore.StreamName {
	category := stream.Category()
	if isOfType(category, "retention") {
		return ""
	}
	records := category.WithType("retention")
	name := messagestore.StreamName(string(records) + "-" + stream.ID())
	if len(name) > errortext.MaxNameBytes || !strings.Contains(string(stream), "-") {
		digest := sha256.Sum256([]byte(stream))
		name = messagestore.StreamName(string(records) + "-" + hex.EncodeToString(digest[:]))
	}
	return name
}

// isOfType reports whether the last type of a category is name.
func isOfType(category messagestore.Category, name string) bool {
	return strings.HasSuffix(string(category), ":"+name) || strings.HasSuffix(string(category), "+"+name)
}
