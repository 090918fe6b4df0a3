package text

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxNameBytes bounds the name of a stream, a category and a message type.
const MaxNameBytes = 255

// NameRule returns the rule that s breaks as the name of a stream, a category or a message type, or
// "".
func NameRule(s string) string {
	if len(s) > MaxNameBytes {
		return fmt.Sprintf("must be at most %d bytes, and is %d", MaxNameBytes, len(s))
	}
	if s == "" {
		return "must not be empty"
	}
	for i, r := range s {
		if ' ' <= r && r <= '~' {
			continue // as nearly all are: ASCII that can be seen
		}
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
				return fmt.Sprintf("must be valid UTF-8: error at byte %d", i)
			}
		}
		if isHidden(r) {
			return fmt.Sprintf("must not contain a control or format character, and has %U at byte %d", r, i)
		}
	}
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	if IsSpace(first) || IsSpace(last) {
		return "must not begin or end with white space"
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

// IsSpace is Unicode's White_Space, written out for the same reason.
func IsSpace(r rune) bool {
	switch r {
	case ' ', 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000:
		return true
	}
	return r >= 0x09 && r <= 0x0D || r >= 0x2000 && r <= 0x200A
}

// OwnTypes is the prefix of the types of messages that only the store writes.
const OwnTypes = "dibs:"

// TypeRule returns the rule that name breaks as the type of a message to write, or "".
func TypeRule(name string) string {
	if rule := NameRule(name); rule != "" {
		return rule
	}
	if strings.HasPrefix(name, OwnTypes) {
		return "must not be one of the store's own types, which begin with " + OwnTypes
	}
	return ""
}

// EscapeID returns id as one part of a stream's identifier. Different ids have different parts, and
// [UnescapeID] is the inverse.
//
// It escapes the plus sign, which divides the parts, the percent sign, white space at either end,
// and the characters that no name may contain. Each byte of their UTF-8 becomes a percent sign and
// two hexadecimal digits: "ann+x@y.cz" is the part "ann%2Bx@y.cz". All other characters stay.
// Idempotence keys are written the same way.
//
// An id that is empty or not valid UTF-8 is returned unchanged: it cannot be a part, and the name
// with it is refused.
func EscapeID(id string) string {
	if unchanged(id) || !utf8.ValidString(id) {
		return id
	}
	from, to := len(id)-len(strings.TrimLeftFunc(id, IsSpace)), len(strings.TrimRightFunc(id, IsSpace))
	begin := strings.IndexFunc(id, escaped)
	if begin < 0 && from == 0 && to == len(id) {
		return id
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(id) + 8)
	for i, r := range id {
		size := utf8.RuneLen(r)
		if i >= from && i < to && !escaped(r) {
			b.WriteString(id[i : i+size])
			continue
		}
		for _, c := range []byte(id[i : i+size]) {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

// UnescapeID reverses EscapeID. ok is false if part was not produced by EscapeID, as in names
// written by other clients.
func UnescapeID(part string) (id string, ok bool) {
	if strings.IndexByte(part, '%') < 0 {
		return part, part != "" && utf8.ValidString(part) && EscapeID(part) == part
	}
	var b strings.Builder
	b.Grow(len(part))
	for i := 0; i < len(part); i++ {
		if part[i] != '%' {
			b.WriteByte(part[i])
			continue
		}
		if len(part) < i+3 {
			return "", false
		}
		c, err := hex.DecodeString(part[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.WriteByte(c[0])
		i += 2
	}
	id = b.String()
	return id, utf8.ValidString(id) && EscapeID(id) == part
}

// unchanged reports whether id needs no escape, like nearly all ids: it is visible ASCII.
func unchanged(id string) bool {
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7F || c == '+' || c == '%' {
			return false
		}
	}
	return true
}

// escaped reports whether r is escaped at every place.
func escaped(r rune) bool {
	if ' ' <= r && r <= '~' {
		return r == '+' || r == '%'
	}
	return isHidden(r)
}

// isHidden reports whether r is a character that no name may contain.
func isHidden(r rune) bool {
	return slices.ContainsFunc(hidden, func(h [2]rune) bool { return h[0] <= r && r <= h[1] })
}
