package entity

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// snapshots reports whether snapshots of stream are written. The name of their stream is longer
// than the entity's, and may be too long.
func (s *Store[T]) snapshots(stream messagestore.StreamName) bool {
	return s.config.Snapshot.Every > 0 && removal.SnapshotStream(stream).Validate() == nil
}

// snapshot returns the last snapshot of stream. It returns an empty state if the tag or the content
// does not fit: any writer of the store may have written it. The read of the stream then shows
// whether it has the snapshot's message.
func (s *Store[T]) snapshot(ctx context.Context, stream messagestore.StreamName) (state[T], error) {
	none := empty[T]()
	m, err := s.messages.Last(ctx, removal.SnapshotStream(stream))
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
	copied, err := messagestore.Decode[removal.Snapshot](m)
	if err != nil || copied.Tag != tag || copied.Version < 0 || len(copied.Entity) == 0 {
		return restored, false
	}
	restored = state[T]{version: copied.Version, last: copied.Last, kept: copied.Version}
	if err = json.Unmarshal(copied.Entity, &restored.entity); err != nil {
		return restored, false
	}
	// A snapshot written from this type encodes to itself. An object that lacks fields, or has
	// others, does not: it would decode to an empty entity.
	raw, err := encode(restored.entity)
	return restored, err == nil && exactjson.Equal(raw, copied.Entity)
}

// keep writes a snapshot of loaded.
func (s *Store[T]) keep(ctx context.Context, stream messagestore.StreamName, loaded *state[T]) {
	raw, err := encode(loaded.entity)
	if err == nil {
		_, err = s.messages.Write(ctx, removal.SnapshotStream(stream), messagestore.AnyVersion,
			removal.Snapshot{Entity: raw, Version: loaded.version, Last: loaded.last, Tag: s.config.Snapshot.Tag})
	}
	if err != nil {
		s.config.Logger.Warn().Str("error", text.Log(err)).Str("stream", string(stream)).Int64("version", int64(loaded.version)).Msg("snapshot not written")
		return
	}
	loaded.kept = loaded.version
	s.config.Logger.Debug().Str("stream", string(stream)).Int64("version", int64(loaded.version)).Msg("snapshot")
}
