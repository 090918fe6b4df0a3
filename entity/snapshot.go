package entity

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// kept is the body of a snapshot.
type kept struct {
	Entity  json.RawMessage      `json:"entity"`
	Version messagestore.Version `json:"version"`
	Last    uuid.UUID            `json:"last"` // the id of the message at Version
	Tag     string               `json:"tag"`
}

func (kept) MessageType() string { return "Snapshot" }

// SnapshotStream returns the name of the stream that holds the snapshots of an entity's stream:
// "account:snapshot-123" for "account-123".
func SnapshotStream(stream messagestore.StreamName) messagestore.StreamName {
	return stream.Category().WithType("snapshot").Stream(stream.ID())
}

// SnapshotVersion returns the version of the entity that the snapshot m has, for tools that look
// after a store. It is not ok if m is no snapshot. The tag is not looked at.
func SnapshotVersion(m *messagestore.Message) (version messagestore.Version, ok bool) {
	copied, err := messagestore.Decode[kept](m)
	if err != nil || copied.Version < 0 || len(copied.Entity) == 0 {
		return 0, false
	}
	return copied.Version, true
}

// snapshots reports whether snapshots of stream are written. The name of their stream is
// longer than the entity's, and may be too long.
func (s *Store[T]) snapshots(stream messagestore.StreamName) bool {
	return s.config.Snapshot.Every > 0 && SnapshotStream(stream).Validate() == nil
}

// snapshot returns the last snapshot of stream, or an empty state if its tag or its content
// does not fit. The read of the stream shows whether the stream has the snapshot's message.
func (s *Store[T]) snapshot(ctx context.Context, stream messagestore.StreamName) (state[T], error) {
	none := empty[T]()
	m, err := s.messages.Last(ctx, SnapshotStream(stream))
	if errors.Is(err, messagestore.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	if restored, ok := restore[T](m, s.config.Snapshot.Tag); ok {
		return restored, nil
	}
	return none, nil // a snapshot is a hint: without it the stream is read from its start
}

func restore[T any](m *messagestore.Message, tag string) (restored state[T], ok bool) {
	copied, err := messagestore.Decode[kept](m)
	if err != nil || copied.Tag != tag || copied.Version < 0 || len(copied.Entity) == 0 {
		return restored, false
	}
	restored = state[T]{version: copied.Version, last: copied.Last, kept: copied.Version}
	err = json.Unmarshal(copied.Entity, &restored.entity)
	return restored, err == nil
}

// keep writes a snapshot of loaded.
func (s *Store[T]) keep(ctx context.Context, stream messagestore.StreamName, loaded *state[T]) {
	raw, err := encode(loaded.entity)
	if err == nil {
		_, err = s.messages.Write(ctx, SnapshotStream(stream), messagestore.AnyVersion,
			kept{raw, loaded.version, loaded.last, s.config.Snapshot.Tag})
	}
	if err != nil {
		s.config.Logger.Warn().Str("error", text.Log(err)).Str("stream", string(stream)).Int64("version", int64(loaded.version)).Msg("snapshot not written")
		return
	}
	loaded.kept = loaded.version
	s.config.Logger.Debug().Str("stream", string(stream)).Int64("version", int64(loaded.version)).Msg("snapshot")
}
