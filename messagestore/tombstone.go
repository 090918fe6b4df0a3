package messagestore

import "strings"

// TombstoneType is the message type of a tombstone: see [Tombstone].
const TombstoneType = ownTypes + "Tombstone"

// ownTypes begins the types of the messages that a store writes by itself.
const ownTypes = "dibs:"

// A Tombstone is the one message that is left of a stream that was deleted. It has the position
// after the last message that was deleted, so the stream's version goes on from there: an
// initial write conflicts for ever, and later messages come after it.
//
// Only a store writes one. A consumer passes it as handled, without a handler.
type Tombstone struct {
	Messages   int64   `json:"messages"`         // how many there were
	UpTo       Version `json:"upTo"`             // the position of the last of them
	NameErased bool    `json:"nameErased"`       // the stream's name is gone too
	By         string  `json:"by"`               // the database user
	Reason     string  `json:"reason,omitempty"` // in words of theirs
}

// MessageType returns [TombstoneType].
func (Tombstone) MessageType() string { return TombstoneType }

// IsTombstone reports whether r is the tombstone of a deleted stream.
func (r *Message) IsTombstone() bool { return r.Type == TombstoneType }

// typeRule returns the rule that name breaks as the type of a message that is written,
// or "".
func typeRule(name string) string {
	if rule := textRule(name, MaxNameBytes); rule != "" {
		return rule
	}
	if strings.HasPrefix(name, ownTypes) {
		return "types that begin with " + ownTypes + " are the store's own"
	}
	return ""
}

// validateKnownType is [ValidateType] for readers: it lets the store's own types through.
func validateKnownType(name string) error {
	if rule := textRule(name, MaxNameBytes); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}
