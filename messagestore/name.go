package messagestore

import (
	"fmt"
	"math"
	"strings"

	"github.com/dibs-go/dibs/internal/text"
)

// maxGroupSize is how many members may share a category.
const maxGroupSize = 1024

// A Category names a kind of stream, like "account" or "account:command". It has its own type so
// that you cannot pass a stream's name for it.
//
// It is an entity, which may be followed by a colon and any number of types joined by plus signs:
// "account:command+position". Entity and types are not empty and hold no dash, colon, plus sign or
// white space.
type Category string

// Stream returns the name of the category's stream with the identifier id. The id may come from
// outside: any text is one part of the name. [StreamName.With] makes a compound identifier.
//
// Stream escapes the plus sign, which divides the parts, the percent sign, white space at either
// end and the characters that no name may hold. It writes each byte of their UTF-8 as a percent
// sign and two hexadecimal digits: "ann+x@y.cz" is the part "ann%2Bx@y.cz". Everything else stands
// for itself. Idempotence keys are escaped in the same way. [StreamName.IDs] is the inverse.
//
// Calls that use the name check it; [StreamName.Validate] checks it at once. It is invalid if the
// category is invalid, or if id is empty, not valid UTF-8 or too long.
func (c Category) Stream(id string) StreamName {
	if strings.Contains(string(c), "-") { // else it would be a stream of the category before the dash
		return StreamName(ofNoCategory + string(c))
	}
	return StreamName(string(c) + "-" + text.EscapeID(id))
}

// ofNoCategory begins the name of a stream if its category has a dash, to make the name invalid: no
// category holds white space.
const ofNoCategory = "no category: "

// Entity returns the part of the category before the colon.
func (c Category) Entity() string {
	entity, _, _ := strings.Cut(string(c), ":")
	return entity
}

// Types returns the types after the colon. Without a colon there are no types.
func (c Category) Types() []string {
	_, types, ok := strings.Cut(string(c), ":")
	if !ok {
		return nil
	}
	return strings.Split(types, "+")
}

// WithType returns the category with another type added: "account" with "command" is
// "account:command", and that with "position" is "account:command+position".
func (c Category) WithType(name string) Category {
	if strings.Contains(string(c), ":") {
		return c + Category("+"+name)
	}
	return c + Category(":"+name)
}

// Validate returns nil or an [*InvalidError].
func (c Category) Validate() error {
	if strings.Contains(string(c), "-") {
		return NewInvalidError("category", string(c), "must be a category, without a dash, and is the name of a stream")
	}
	return c.validate("category", string(c))
}

func (c Category) validate(field, whole string) error {
	if rule := text.NameRule(whole); rule != "" {
		return NewInvalidError(field, whole, rule)
	}
	part, types, more := strings.Cut(string(c), ":")
	if part == "" {
		return NewInvalidError(field, whole, "the category must not be empty")
	}
	for {
		switch {
		case part == "":
			return NewInvalidError(field, whole, "a type of the category must not be empty")
		case strings.ContainsAny(part, ":+"):
			return NewInvalidError(field, whole, "the category must not contain a colon or plus sign out of place")
		case strings.ContainsFunc(part, text.IsSpace):
			return NewInvalidError(field, whole, "the category must not contain white space")
		case !more:
			return nil
		}
		part, types, more = strings.Cut(types, "+")
	}
}

// A StreamName names one stream: a category, a dash and an identifier, which may
// be compound: "account-123", "account:command-123+AAA". It is split at its first
// dash, so an identifier may hold dashes of its own. Names are compared byte by
// byte: case counts, and Unicode is not normalised.
type StreamName string

// Category returns the part of the name before the first dash.
func (n StreamName) Category() Category {
	category, _, _ := strings.Cut(string(n), "-")
	return Category(category)
}

// ID returns the part of the name after the first dash, or "".
func (n StreamName) ID() string {
	_, id, _ := strings.Cut(string(n), "-")
	return id
}

// IDs returns the parts of the identifier, unescaped: the ids that were passed to [Category.Stream]
// and [StreamName.With]. It returns nil without an identifier. A part of another client that
// [Category.Stream] would not write is returned unchanged.
func (n StreamName) IDs() []string {
	if n.ID() == "" {
		return nil
	}
	ids := strings.Split(n.ID(), "+")
	for i, part := range ids {
		ids[i] = unescaped(part)
	}
	return ids
}

// CardinalID returns the first of [StreamName.IDs], or "": the id of the entity. Consumer groups
// divide a category by its escaped form.
func (n StreamName) CardinalID() string { return unescaped(n.cardinalPart()) }

// cardinalPart returns the cardinal id, escaped.
func (n StreamName) cardinalPart() string {
	part, _, _ := strings.Cut(n.ID(), "+")
	return part
}

// With returns the name with ids added to its identifier: "account:command-123" with "AAA" is
// "account:command-123+AAA". Each id is escaped to one part, as in [Category.Stream].
func (n StreamName) With(ids ...string) StreamName {
	for _, id := range ids {
		n += StreamName("+" + text.EscapeID(id))
	}
	return n
}

// Validate returns nil or an [*InvalidError].
//
// A valid name is UTF-8 of at most 255 bytes, without control or format characters and without
// white space at either end. Its category passes [Category.Validate], and every part of its
// identifier has at least one byte.
func (n StreamName) Validate() error {
	if category, ok := strings.CutPrefix(string(n), ofNoCategory); ok {
		if err := Category(category).Validate(); err != nil {
			return err
		}
	}
	category, id, ok := strings.Cut(string(n), "-")
	if err := Category(category).validate("stream name", string(n)); err != nil {
		return err
	}
	switch {
	case !ok:
		return NewInvalidError("stream name", string(n), "must have a dash and an identifier, and is a category")
	case id == "":
		return NewInvalidError("stream name", string(n), "the identifier must not be empty")
	case strings.HasPrefix(id, "+"):
		return NewInvalidError("stream name", string(n), "the cardinal id must not be empty")
	case strings.HasSuffix(id, "+"), strings.Contains(id, "++"):
		return NewInvalidError("stream name", string(n), "the identifier must not have an empty part")
	}
	return nil
}

// unescaped returns the id that is escaped as part, or part itself if no id is.
func unescaped(part string) string {
	if strings.IndexByte(part, '%') < 0 {
		return part
	}
	if id, ok := text.UnescapeID(part); ok {
		return id
	}
	return part
}

// GroupMember returns which member of a consumer group of the given size reads the stream, from 0.
// All streams with one cardinal id go to one member; for a stream without an identifier its
// category counts. A size below 1 counts as 1.
func (n StreamName) GroupMember(size int) int {
	return groupMember(n.GroupHash(), max(size, 1))
}

// GroupHash returns message-db's hash of the escaped cardinal id. [StreamName.GroupMember] is its
// remainder by the group's size.
func (n StreamName) GroupHash() int64 {
	key := n.cardinalPart()
	if key == "" {
		key = string(n.Category())
	}
	return text.Hash64(key)
}

// groupMember is message-db's rule, |hash| mod size, without the overflow for the smallest number,
// which has no absolute value.
func groupMember(hash int64, size int) int {
	remainder := int(hash % int64(size))
	if remainder < 0 {
		return -remainder
	}
	return remainder
}

func validateExpected(v Version) error {
	if exists, _ := v.Exists(NoStream); v < AnyVersion && !exists {
		return NewInvalidError("expected version", int64(v), "must be a position from 0, NoStream (-1), AnyVersion (-2) or StreamExists (-4)")
	}
	return nil
}

func validateLimit(limit int) error {
	if limit < 1 || limit > MaxReadMessages {
		return NewInvalidError("limit", limit, fmt.Sprintf("must be between 1 and %d", MaxReadMessages))
	}
	return nil
}

func validateFrom[P ~int64](from P) error {
	if from < 0 {
		return NewInvalidError("position", int64(from), fmt.Sprintf("must be between 0 and %d", int64(math.MaxInt64)))
	}
	return nil
}
