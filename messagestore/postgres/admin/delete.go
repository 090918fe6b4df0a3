package admin

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
)

// DeleteOptions change how a stream is deleted. A nil *DeleteOptions is a good one.
type DeleteOptions struct {
	// EraseName removes the stream's name too: where it was there is a hash. Names may be
	// personal data as well. The records of its trimming go with it.
	//
	// Defaults to false.
	EraseName bool

	// Reason is recorded in the tombstone: up to 255 bytes of visible text. It stays, so it must
	// not contain the data that is to be forgotten.
	//
	// Defaults to none.
	Reason string

	// DryRun deletes nothing, and returns the result that a deletion would have.
	//
	// Defaults to false.
	DryRun bool

	// OnProgress is called after each transaction but the last, which have removed at
	// most 10,000 messages each.
	//
	// Defaults to nothing.
	OnProgress func()
}

// Deleted is the result of a deletion.
type Deleted struct {
	Stream   messagestore.StreamName
	Messages int64                // how many there were
	Version  messagestore.Version // of the tombstone, and so of the stream

	// Tombstone is the stream that the tombstone is in: Stream, or one of the same
	// category that is named by the SHA-256 of its name.
	Tombstone messagestore.StreamName

	// Already says that it had been deleted before, and that nothing was changed.
	Already bool
}

// Delete puts a tombstone at the end of a stream, if the stream is at the expected
// version, and removes all before it. See [messagestore.Tombstone]. Other streams that
// belong to it, such as snapshots, commands and dead letters, are deleted by calls of
// their own.
//
// It is decided in the first transaction, in which the tombstone is written; each, and
// there may be more, removes at most 10,000 messages and holds up writers of the category
// no longer than that. If Delete ends with an error, some of it may be done. To call it
// again, at the same version, is safe, and goes on.
//
// The error matches [messagestore.ErrVersionConflict] if the stream is at another
// version, [messagestore.ErrNotFound] if it has no messages and never had, and
// [messagestore.ErrInvalid] if nothing was sent.
func (a *Admin) Delete(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, options *DeleteOptions) (Deleted, error) {
	if options == nil {
		options = &DeleteOptions{}
	}
	err := checkName(stream)
	if err == nil && expected < 0 && expected != messagestore.AnyVersion {
		err = messagestore.NewInvalidError("expected version", int64(expected), "it is a position from 0, or AnyVersion (-2)")
	}
	if err == nil {
		err = checkReason(options.Reason)
	}
	deleted := Deleted{Stream: stream}
	for more, first := true, true; more && err == nil; first = false {
		more, err = a.delete(ctx, expected, options, &deleted, first)
	}
	if err != nil {
		return deleted, fmt.Errorf("delete %.80q: %w", string(stream), err)
	}
	return deleted, nil
}

// delete is one transaction of Delete.
func (a *Admin) delete(ctx context.Context, expected messagestore.Version, o *DeleteOptions, deleted *Deleted, first bool) (more bool, err error) {
	at := pgtype.Int8{Int64: int64(expected), Valid: expected != messagestore.AnyVersion}
	if !first { // it is decided, and at the tombstone
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
