package messagestore

import "github.com/dibs-go/dibs/internal/text"

// tombstoneType is the type of a tombstone, as internal/removal has it.
const tombstoneType = text.OwnTypes + "Tombstone"

// IsTombstone reports whether r is the tombstone of a deleted stream: the one message that is left
// of it. It has the position after the last message that was deleted, so the stream's version goes
// on from there: an initial write conflicts for ever, and later messages come after it. Its data
// tell how many messages there were ("messages"), the position of the last ("upTo"), whether the
// stream's name is gone too ("nameErased"), and the operator's reason ("reason").
//
// Only a store writes one. A consumer passes it as handled, without a handler.
func (r *Message) IsTombstone() bool { return r.Type == tombstoneType }

// validateType refuses the type of a message that is written.
func validateType(name string) error {
	if rule := text.TypeRule(name); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}

// validateKnownType is [validateType] for readers: it lets the store's own types through.
func validateKnownType(name string) error {
	if rule := text.NameRule(name); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}
