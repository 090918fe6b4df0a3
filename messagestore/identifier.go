package messagestore

import (
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// EscapeID returns id as one part of a stream's identifier. Different ids have different parts, and
// [UnescapeID] is the inverse.
//
// The plus sign, which divides the parts, the percent sign, white space at either end and the
// characters that no name may hold are each written as the bytes of their UTF-8, a percent
// sign and two hexadecimal digits for a byte: "ann+x@y.cz" is the part "ann%2Bx@y.cz". All else
// stands for itself. Idempotence keys are written so too.
//
// An id that is empty or not valid UTF-8 is returned as it is: it can be no part, and the name with
// it is refused.
func EscapeID(id string) string {
	if unchanged(id) || !utf8.ValidString(id) {
		return id
	}
	from, to := len(id)-len(strings.TrimLeftFunc(id, isSpace)), len(strings.TrimRightFunc(id, isSpace))
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

// UnescapeID returns the id whose part of an identifier is part. It is not ok if no id has it, as
// may be in names that other clients wrote.
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

// unescaped returns the id of part, or the part itself if no id has it.
func unescaped(part string) string {
	if strings.IndexByte(part, '%') < 0 {
		return part
	}
	if id, ok := UnescapeID(part); ok {
		return id
	}
	return part
}

// unchanged reports whether id stands for itself, as nearly all do: it is ASCII that can be seen.
func unchanged(id string) bool {
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c >= 0x7F || c == '+' || c == '%' {
			return false
		}
	}
	return true
}

// escaped reports whether r is escaped wherever it stands.
func escaped(r rune) bool {
	if ' ' <= r && r <= '~' {
		return r == '+' || r == '%'
	}
	return isHidden(r)
}

// isHidden reports whether r is a character that no name holds.
func isHidden(r rune) bool {
	return slices.ContainsFunc(hidden, func(h [2]rune) bool { return h[0] <= r && r <= h[1] })
}
