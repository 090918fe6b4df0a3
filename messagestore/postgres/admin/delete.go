package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Delete puts a tombstone at the end of a stream, if the stream is at the expected version, and
// removes everything before it. See [removal.Tombstone]. To delete other streams that belong to it,
// such as snapshots and commands, call Delete for each.
//
// The first transaction writes the tombstone, and the deletion is then decided. Each transaction
// removes at most 10,000 messages and holds up the category's writers meanwhile. If Delete returns
// an error, a part may be done. It is safe to call it again with the same version: it goes on.
//
// The error matches
//
//   - [messagestore.ErrVersionConflict] if the stream is at another version
//   - [messagestore.ErrNotFound] if it never had messages
//   - [retention.ErrOpenItem] if a queue has not finished one of its messages
//   - [messagestore.ErrInvalid] if the stream holds records of trims or of forgotten keys, or if
//     the input is invalid; then nothing was sent
func (a *Admin) Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *retention.DeleteOptions) (retention.Deleted, error) {
	if options == nil {
		options = &retention.DeleteOptions{}
	}
	err := removal.CheckName(stream)
	if err == nil && expected < 0 && expected != messagestore.AnyVersion {
		err = messagestore.NewInvalidError("expected version", int64(expected), "must be a position from 0, or AnyVersion (-2)")
	}
	if err == nil {
		err = removal.CheckReason(options.Reason)
	}
	deleted := retention.Deleted{Stream: stream}
	for more, first := true, true; more && err == nil; first = false {
		more, err = a.delete(ctx, expected, options, &deleted, first)
	}
	if err != nil {
		return deleted, fmt.Errorf("delete %.80q: %w", string(stream), err)
	}
	return deleted, nil
}

// delete is one transaction of Delete.
func (a *Admin) delete(ctx context.Context, expected messagestore.Version, o *retention.DeleteOptions, deleted *retention.Deleted, first bool) (more bool, err error) {
	at := pgtype.Int8{Int64: int64(expected), Valid: expected != messagestore.AnyVersion}
	if !first { // the first transaction has decided it, and the version is now the tombstone's
		at = pgtype.Int8{Int64: int64(deleted.Version), Valid: true}
	}
	var outcome, tombstone string
	var version int64
	var messages pgtype.Int8
	args := []any{string(deleted.Stream), at, o.EraseName, pglink.OrNull(o.Reason), maxRemoved, o.DryRun}
	if err := a.change(ctx, a.queries.delete, args, &outcome, &version, &messages, &tombstone, &more); err != nil {
		return false, err
	}
	switch outcome {
	case "version_conflict":
		return false, &messagestore.VersionConflictError{
			Stream: deleted.Stream, Expected: messagestore.Version(at.Int64), Actual: messagestore.Version(version),
		}
	case "open_item":
		return false, fmt.Errorf("%w: finish, drop or cancel it first", retention.ErrOpenItem)
	case "no_stream":
		return false, fmt.Errorf("%w: the stream has none, and never had", messagestore.ErrNotFound)
	}
	deleted.Version, deleted.Messages = messagestore.Version(version), messages.Int64
	deleted.Tombstone = messagestore.StreamName(tombstone)
	deleted.Already = first && outcome == "already_deleted"
	if more && o.OnProgress != nil {
		o.OnProgress()
	}
	return more, nil
}
