package messagestore

import "github.com/dibs-go/dibs/internal/text"

// tombstoneType is the type of a tombstone, the same as in internal/removal.
const tombstoneType = text.OwnTypes + "Tombstone"

// IsTombstone reports whether r is the tombstone of a deleted stream: the only message left of it.
// The tombstone has the position after the last deleted message, and the stream's version goes on
// from there: an initial write conflicts for ever, and later messages come after the tombstone. Its
// data say how many messages there were ("messages"), the position of the last ("upTo"), whether
// the stream's name is gone too ("nameErased"), and the operator's reason ("reason").
//
// Only a store writes tombstones. A consumer passes one as handled, without calling a handler.
func (r *Message) IsTombstone() bool { return r.Type == tombstoneType }

// validateType checks the type of a message to write.
func validateType(name string) error {
	if rule := text.TypeRule(name); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}

// validateKnownType is [validateType] for readers: it also accepts the store's own types.
func validateKnownType(name string) error {
	if rule := text.NameRule(name); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}
