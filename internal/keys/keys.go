// Package keys turns the keys of callers into parts of stream names, and the content of a
// request into the form in which two are compared. Reservations and intents share its rules, so
// that clients in any language have one rule to follow.
package keys

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalid is matched by the error for an idempotence key that is refused.
var ErrInvalid = errors.New("invalid idempotence key")

// Rules that a key breaks, as Rule returns them.
const (
	Empty     = "it is empty"
	NotUTF8   = "not valid UTF-8"
	Invisible = "there is nothing to see in it"
)

// Rule returns the rule that key breaks, or "".
func Rule(key string) string {
	switch {
	case key == "":
		return Empty
	case !utf8.ValidString(key):
		return NotUTF8
	case strings.IndexFunc(key, visible) < 0:
		return Invisible
	}
	return ""
}

func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

// Invalid returns the error for a key that is given as field.
func Invalid(field, key, rule string) error {
	e := messagestore.NewInvalidError(field, key, rule)
	e.Kind = ErrInvalid
	return e
}

// hashed begins a part that stands for a key too long to be in a name. No encoded
// key begins so: after its percent signs come hexadecimal digits.
const hashed = "%sha256:"

// HashedBytes is the length of a part that stands for a key too long to be in a name.
const HashedBytes = len(hashed) + 2*sha256.Size

// Encode returns a key without a broken [Rule] as a part of a stream's identifier of at most
// room bytes. Different keys have different parts. It is not ok if the room is too little for
// the key and for a hash of it.
//
// Visible ASCII stands for itself, but for the percent sign and the plus sign,
// which divides the parts. Every other byte is a percent sign and two digits. The
// rule knows no Unicode, so that no later version of it can move a key to another
// stream, and clients in any language can follow it.
func Encode(key string, room int) (part string, ok bool) {
	if len(key) <= room {
		if part := Escape(key); len(part) <= room {
			return part, true
		}
	}
	if room < HashedBytes {
		return "", false
	}
	sum := sha256.Sum256([]byte(key))
	return hashed + hex.EncodeToString(sum[:]), true
}

// Escape returns key as a part of an identifier, however long it is.
func Escape(key string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(key))
	for _, c := range []byte(key) {
		if c > ' ' && c < 0x7F && c != '%' && c != '+' {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}

// Decode returns the key that part stands for. It is not ok for a part that stands for no key,
// and for a key that was too long, of which the name has only a hash.
func Decode(part string) (key string, ok bool) {
	var b strings.Builder
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
	key = b.String()
	return key, Escape(key) == part && Rule(key) == ""
}

// Content is content in the form in which it is compared.
type Content struct {
	Canonical []byte
	Twice     bool // an object in it had a key twice, of which the last was kept
}

// Canonical encodes content with encoding/json and returns the one spelling that all JSON equal
// to it shares.
func Canonical(content any) (Content, error) {
	raw, ok := content.(json.RawMessage)
	if !ok {
		var err error
		if raw, err = json.Marshal(content); err != nil {
			return Content{}, err
		}
	}
	canonical, err := exactjson.Canonical(raw)
	if err != nil {
		return Content{}, err
	}
	return Content{canonical, members(raw) > members(canonical)}, nil
}

// Empty reports whether nothing is in it.
func (c Content) Empty() bool {
	switch string(c.Canonical) {
	case "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// members returns how many members the objects in valid JSON have together.
func members(raw []byte) int {
	if bytes.IndexByte(raw, '"') < 0 {
		return 0
	}
	n, text := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case c == ':' && !text:
			n++
		}
	}
	return n
}

// TooLong returns the rule that a key breaks if the rest of the stream's name is too long.
func TooLong(room int) string {
	return fmt.Sprintf("the stream's name leaves it %d bytes, fewer than a hash needs", max(room, 0))
}
