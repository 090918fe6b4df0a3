package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A batch has the appends of one call, encoded for the database. The caller's goroutine prepares
// it, to save time in the only writer.
type batch struct {
	appends []messagestore.Append
	rows    [][]row // of each append
	records int
	size    int
	clock   clock
}

type row struct {
	id             []byte
	data, metadata any // string, or nil for none
	groupHash      int64
	correlation    any // string, or nil for none
}

func newBatch(appends []messagestore.Append) *batch {
	b := &batch{appends: appends, rows: make([][]row, len(appends))}
	for i, a := range appends {
		hash := a.Stream.GroupHash()
		b.rows[i] = make([]row, len(a.Records))
		for n, r := range a.Records {
			b.rows[i][n] = row{
				id: r.ID[:], data: text(r.Data), metadata: text(r.Metadata), groupHash: hash,
				correlation: text(messagestore.ParseMetadata(r.Metadata).CorrelationStream.Category()),
			}
			b.size += len(r.Data) + len(r.Metadata)
		}
		b.records += len(a.Records)
	}
	return b
}

func (b *batch) unknown(cause error) error {
	return &messagestore.OutcomeUnknownError{Writes: b.appends, Cause: cause}
}

// errRefused is the error when the database refuses a message, before refusal looks up the cause.
var errRefused = errors.New("the database refused a message although its stream is at the expected version and its id is new")

// write adds the whole batch to the transaction of db, or nothing. If it returns an error that is
// not an answer (see isAnswer), roll the transaction back.
//
// It first inserts, and looks up the ids and versions only if the database refuses. The result is
// the same as the other way round: inserting succeeds only if no id is recorded and every stream is
// at its version.
func (b *batch) write(ctx context.Context, db queryer) ([]messagestore.Written, error) {
	if b.records == 1 && len(b.appends) == 1 {
		written, err := b.insert(ctx, db) // one statement, and so atomic
		if errors.Is(err, errRefused) {
			return b.refusal(ctx, db)
		}
		return written, err
	}
	if _, err := db.ExecContext(ctx, savepointSQL); err != nil {
		return nil, err
	}
	written, err := b.insert(ctx, db)
	if err == nil {
		_, err = db.ExecContext(ctx, releaseSQL)
		return written, err
	}
	for _, undo := range []string{rollbackToSQL, releaseSQL} {
		if _, failed := db.ExecContext(ctx, undo); failed != nil {
			return nil, fmt.Errorf("%w: %w", err, failed)
		}
	}
	if errors.Is(err, errRefused) {
		return b.refusal(ctx, db)
	}
	return nil, err
}

// insert adds the messages in order until the database refuses one.
func (b *batch) insert(ctx context.Context, db queryer) ([]messagestore.Written, error) {
	now := b.clock.now()
	all := make([]messagestore.Written, len(b.appends))
	for i, a := range b.appends {
		w := &all[i]
		w.Stream = a.Stream
		expected := a.Expected
		if len(a.Records) == 0 || a.Conditional() {
			actual, ok, err := expects(ctx, db, a)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, errRefused
			}
			w.Version, expected = actual, actual
		}
		if len(a.Records) == 0 {
			continue
		}
		w.Time = now
		category := string(a.Stream.Category())
		w.IDs = make([]uuid.UUID, 0, len(a.Records))
		for n, r := range a.Records {
			in := b.rows[i][n]
			ok, err := scanOne(ctx, db, appendSQL, []any{
				string(a.Stream), category, int64(expected), r.Type, in.data, in.metadata, in.id, in.groupHash, in.correlation, now.UnixMicro(),
			}, &w.Version, &w.GlobalPosition)
			if err != nil {
				return nil, err
			}
			if !ok {
				return nil, errRefused
			}
			expected = w.Version
			w.IDs = append(w.IDs, r.ID)
		}
	}
	return all, nil
}

// refusal finds out why the database refused a message: all had been written before, an id is
// recorded for something else, or a stream is at another version.
func (b *batch) refusal(ctx context.Context, db queryer) ([]messagestore.Written, error) {
	written, err := b.earlier(ctx, db)
	if written != nil || err != nil {
		return written, err
	}
	for _, a := range b.appends {
		actual, ok, err := expects(ctx, db, a)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, &messagestore.VersionConflictError{Stream: a.Stream, Expected: a.Expected, Actual: actual}
		}
	}
	return nil, errRefused
}

// expects returns the version of a's stream, and whether the stream meets a's conditions: it is at
// the expected version, or past it only by messages of the types in Past, which must all still be
// there, and has the message After.
func expects(ctx context.Context, db queryer, a messagestore.Append) (actual messagestore.Version, ok bool, err error) {
	actual, err = version(ctx, db, a.Stream)
	if err == nil && a.After != uuid.Nil {
		_, err = scanOne(ctx, db, isAtSQL, []any{string(a.Stream), int64(a.Expected), a.After[:]}, &ok)
		if err == nil && !ok {
			return actual, false, nil
		}
	}
	if err != nil || a.Expected == actual || a.Expected == messagestore.AnyVersion {
		return actual, err == nil, err
	}
	if exists, within := a.Expected.Exists(actual); exists {
		last, err := query(ctx, db, streamBackwardsSQL, string(a.Stream), int64(messagestore.EndOfStream), 1)
		return actual, within && len(last) > 0 && !last[0].IsTombstone(), err
	}
	if len(a.Past) == 0 || a.Expected > actual {
		return actual, false, nil
	}
	types, err := json.Marshal(a.Past)
	if err != nil {
		return actual, false, err
	}
	_, err = scanOne(ctx, db, pastSQL, []any{string(a.Stream), int64(a.Expected), string(types)}, &ok)
	return actual, ok, err
}

// meet returns the last messages of the batch's streams and the time. The transaction of db holds
// the write lock.
func (b *batch) meet(ctx context.Context, db queryer) (*messagestore.Conflict, error) {
	met := &messagestore.Conflict{Time: b.clock.now(), Last: make([]*messagestore.Message, len(b.appends))}
	for i, a := range b.appends {
		found, err := query(ctx, db, streamBackwardsSQL, string(a.Stream), int64(messagestore.EndOfStream), 1)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			met.Last[i] = found[0].Message
		}
	}
	return met, nil
}

// A clock returns the time for messages. nil is the process's clock; only tests use another.
type clock func() time.Time

func (c clock) now() time.Time {
	if c == nil {
		c = time.Now
	}
	return c().UTC().Truncate(time.Microsecond)
}

// earlier returns the result of an earlier write of the same messages; nil if no id is recorded;
// and otherwise an [*messagestore.IDConflictError].
func (b *batch) earlier(ctx context.Context, db queryer) ([]messagestore.Written, error) {
	all := make([]messagestore.Written, len(b.appends))
	var first, differs *messagestore.IDConflictError
	recorded := 0
	for i, a := range b.appends {
		w := &all[i]
		*w = messagestore.Written{Stream: a.Stream, Version: a.Expected, Duplicate: true}
		if exists, _ := a.Expected.Exists(messagestore.NoStream); exists { // the answer for a check
			var err error
			if w.Version, err = version(ctx, db, a.Stream); err != nil {
				return nil, err
			}
		}
		for n, r := range a.Records {
			found, err := query(ctx, db, byIDSQL, b.rows[i][n].id)
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				continue
			}
			m := found[0]
			recorded++
			conflict := &messagestore.IDConflictError{ID: r.ID, Stream: m.Stream, Position: m.Position}
			if first == nil {
				first = conflict
			}
			follows := len(w.IDs) == 0 || m.Position == w.Version+1
			if differs == nil && (!follows || m.Stream != a.Stream || !r.Same(m.Message, m.metadata)) {
				differs = conflict
			}
			w.Version, w.GlobalPosition, w.Time = m.Position, m.GlobalPosition, m.Time
			w.IDs = append(w.IDs, r.ID)
		}
	}
	switch {
	case recorded == 0:
		return nil, nil
	case differs != nil:
		return nil, differs
	case recorded < b.records:
		return nil, first
	}
	return all, nil
}

// settle returns the messages of the stream with these ids. It runs in a transaction that holds the
// write lock, so nothing else is under way. If a message is missing, settle makes sure that it is
// never written.
func settle(ctx context.Context, db queryer, stream messagestore.StreamName, ids []uuid.UUID) ([]*messagestore.Message, error) {
	var all []*messagestore.Message
	for _, id := range ids {
		found, err := query(ctx, db, byIDSQL, id[:])
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && found[0].Stream == stream {
			all = append(all, found[0].Message)
		}
	}
	if len(all) < len(ids) {
		if _, err := db.ExecContext(ctx, settleSQL); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b *messagestore.Message) int { return int(a.Position - b.Position) })
	return all, nil
}
