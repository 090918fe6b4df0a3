package removal

import (
	"encoding/json"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// A Snapshot is the body of an entity's snapshot, which package entity writes and dibs trim reads.
type Snapshot struct {
	Entity  json.RawMessage      `json:"entity"`
	Version messagestore.Version `json:"version"`
	Last    uuid.UUID            `json:"last"` // the id of the message at Version
	Tag     string               `json:"tag"`
}

// MessageType returns "Snapshot".
func (Snapshot) MessageType() string { return "Snapshot" }

// SnapshotStream returns the name of the stream that holds the snapshots of an entity's stream:
// "account:snapshot-123" for "account-123".
func SnapshotStream(stream messagestore.StreamName) messagestore.StreamName {
	return stream.Category().WithType("snapshot").Stream(stream.ID())
}

// SnapshotOf returns the snapshot in m. It is not ok if m has none. The tag is not checked.
func SnapshotOf(m *messagestore.Message) (s Snapshot, ok bool) {
	s, err := messagestore.Decode[Snapshot](m)
	return s, err == nil && s.Version >= 0 && len(s.Entity) > 0 && string(s.Entity) != "null"
}
