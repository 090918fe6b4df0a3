package messagestore

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/hash64"
)

// MaxNameBytes bounds the name of a stream or category, in bytes. It is the same for every
// driver, so that streams can be moved from one to another.
const MaxNameBytes = 255

// MaxGroupSize bounds how many members share a category.
const MaxGroupSize = 1024

// A Category names a kind of stream, like "account" or "account:command". It is
// given a type of its own so that a stream's name cannot be passed for it.
//
// It is an entity, and then, after a colon, any number of types joined by plus
// signs: "account:command+position". None of them is empty or holds a dash, a
// colon, a plus sign or white space.
type Category string

// ParseCategory returns s as a category, or an [*InvalidError] that says why it
// is none.
func ParseCategory(s string) (Category, error) {
	c := Category(s)
	return c, c.Validate()
}

// Stream returns the name of the category's stream with the identifier id, which may come from
// outside: it is one part of the name whatever is in it, by [EscapeID]. [StreamName.With] makes
// a compound identifier.
//
// The name is checked where it is used; [StreamName.Validate] checks it at once. It is invalid if
// the category is, or if id is empty, not valid UTF-8 or too long.
func (c Category) Stream(id string) StreamName {
	if strings.Contains(string(c), "-") { // else it would be a stream of the category before the dash
		return StreamName(ofNoCategory + string(c))
	}
	return StreamName(string(c) + "-" + EscapeID(id))
}

// ofNoCategory begins the invalid name of a stream of a category with a dash: no category holds white space.
const ofNoCategory = "no category: "

// Entity returns the part of the category before the colon.
func (c Category) Entity() string {
	entity, _, _ := strings.Cut(string(c), ":")
	return entity
}

// Types returns the types after the colon, none if there is no colon.
func (c Category) Types() []string {
	_, types, ok := strings.Cut(string(c), ":")
	if !ok {
		return nil
	}
	return strings.Split(types, "+")
}

// WithType returns the category with one type more: "account" with "command" is
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
		return NewInvalidError("category", string(c), "it is the name of a stream: a category has no dash")
	}
	return c.validate("category", string(c))
}

func (c Category) validate(field, whole string) error {
	if rule := textRule(whole, MaxNameBytes); rule != "" {
		return NewInvalidError(field, whole, rule)
	}
	part, types, more := strings.Cut(string(c), ":")
	if part == "" {
		return NewInvalidError(field, whole, "the category is empty")
	}
	for {
		switch {
		case part == "":
			return NewInvalidError(field, whole, "a type of the category is empty")
		case strings.ContainsAny(part, ":+"):
			return NewInvalidError(field, whole, "the category holds a colon or plus sign out of place")
		case strings.ContainsFunc(part, isSpace):
			return NewInvalidError(field, whole, "the category holds white space")
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

// ParseStreamName returns s as the name of a stream, or an [*InvalidError] that
// says why it is none.
func ParseStreamName(s string) (StreamName, error) {
	n := StreamName(s)
	return n, n.Validate()
}

// Category returns the part of the name before the first dash.
func (n StreamName) Category() Category {
	category, _, _ := strings.Cut(string(n), "-")
	return Category(category)
}

// ID returns the part of the name after the first dash, or "" for none.
func (n StreamName) ID() string {
	_, id, _ := strings.Cut(string(n), "-")
	return id
}

// IDs returns the parts of the identifier as they were given to [Category.Stream] and
// [StreamName.With], none if there is no identifier. A part that another client wrote, and that
// [EscapeID] does not make, is returned as it is.
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
// are divided by it, as it is in the name.
func (n StreamName) CardinalID() string { return unescaped(n.cardinalPart()) }

// cardinalPart is the cardinal identifier as it is in the name.
func (n StreamName) cardinalPart() string {
	part, _, _ := strings.Cut(n.ID(), "+")
	return part
}

// With returns the name with ids added to its identifier, which is then compound, so that
// "account:command-123" with "AAA" is "account:command-123+AAA". Each is one part, by [EscapeID].
func (n StreamName) With(ids ...string) StreamName {
	for _, id := range ids {
		n += StreamName("+" + EscapeID(id))
	}
	return n
}

// Validate returns nil or an [*InvalidError].
//
// A name is valid UTF-8 of at most [MaxNameBytes] bytes, without control or
// format characters and without white space at either end. Its category is one by
// [Category.Validate], and no part of its identifier is empty.
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
		return NewInvalidError("stream name", string(n), "it is a category: a stream has a dash and an identifier")
	case id == "":
		return NewInvalidError("stream name", string(n), "the identifier is empty")
	case strings.HasPrefix(id, "+"):
		return NewInvalidError("stream name", string(n), "the cardinal identifier is empty")
	case strings.HasSuffix(id, "+"), strings.Contains(id, "++"):
		return NewInvalidError("stream name", string(n), "a part of the identifier is empty")
	}
	return nil
}

// GroupMember returns which member of a consumer group of the given size reads the stream, from 0.
// All streams with one cardinal identifier have one member; a stream without an identifier goes by
// its category. A size below 1 counts as 1.
func (n StreamName) GroupMember(size int) int {
	return groupMember(n.GroupHash(), max(size, 1))
}

// GroupHash returns message-db's hash of the cardinal identifier, as it is written in the name.
// [StreamName.GroupMember] is its remainder by the group's size.
func (n StreamName) GroupHash() int64 {
	key := n.cardinalPart()
	if key == "" {
		key = string(n.Category())
	}
	return hash64.Of(key)
}

// groupMember is message-db's rule, |hash| mod size, without its overflow: the
// absolute value of the smallest number does not exist, its remainder does.
func groupMember(hash int64, size int) int {
	remainder := int(hash % int64(size))
	if remainder < 0 {
		return -remainder
	}
	return remainder
}

// textRule returns the rule that s breaks as a name or a type, or "".
func textRule(s string, limit int) string {
	if len(s) > limit {
		return fmt.Sprintf("%d bytes are too long: at most %d", len(s), limit)
	}
	if s == "" {
		return "it is empty"
	}
	for i, r := range s {
		if ' ' <= r && r <= '~' {
			continue // as nearly all are: ASCII that can be seen
		}
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return fmt.Sprintf("not valid UTF-8 at byte %d", i)
			}
		}
		if isHidden(r) {
			return fmt.Sprintf("control or format character %U at byte %d", r, i)
		}
	}
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	if isSpace(first) || isSpace(last) {
		return "white space at its start or end"
	}
	return ""
}

// hidden are the characters that cannot be seen and so may not be in a name:
// Unicode 15's Cc, Cf, Zl and Zp. The list is written out, and again in the SQL
// function valid_text, so that neither changes with a release of Go or PostgreSQL.
var hidden = [][2]rune{
	{0x00, 0x1F},
	{0x7F, 0x9F},
	{0xAD, 0xAD},
	{0x0600, 0x0605},
	{0x061C, 0x061C},
	{0x06DD, 0x06DD},
	{0x070F, 0x070F},
	{0x0890, 0x0891},
	{0x08E2, 0x08E2},
	{0x180E, 0x180E},
	{0x200B, 0x200F},
	{0x2028, 0x202E},
	{0x2060, 0x2064},
	{0x2066, 0x206F},
	{0xFEFF, 0xFEFF},
	{0xFFF9, 0xFFFB},
	{0x110BD, 0x110BD},
	{0x110CD, 0x110CD},
	{0x13430, 0x1343F},
	{0x1BCA0, 0x1BCA3},
	{0x1D173, 0x1D17A},
	{0xE0001, 0xE0001},
	{0xE0020, 0xE007F},
}

// isSpace is Unicode's White_Space, written out for the same reason.
func isSpace(r rune) bool {
	switch r {
	case ' ', 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000:
		return true
	}
	return r >= 0x09 && r <= 0x0D || r >= 0x2000 && r <= 0x200A
}

// ValidateType returns nil or an [*InvalidError].
// A message type is bound as a stream's name is, but may hold any visible
// character. Types that begin with "dibs:" are the store's own, and refused.
func ValidateType(name string) error {
	if rule := typeRule(name); rule != "" {
		return NewInvalidError("message type", name, rule)
	}
	return nil
}

func validateExpected(v Version) error {
	if exists, _ := v.Exists(NoStream); v < AnyVersion && !exists {
		return NewInvalidError("expected version", int64(v), "it is a position from 0, NoStream (-1), AnyVersion (-2) or StreamExists (-4)")
	}
	return nil
}

func validateLimit(limit int) error {
	if limit < 1 || limit > MaxReadMessages {
		return NewInvalidError("limit", limit, fmt.Sprintf("it is between 1 and %d", MaxReadMessages))
	}
	return nil
}

func validateFrom[P ~int64](from P) error {
	if from < 0 {
		return NewInvalidError("position", int64(from), fmt.Sprintf("it is between 0 and %d", int64(math.MaxInt64)))
	}
	return nil
}
