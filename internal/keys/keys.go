// Package keys turns callers' keys into parts of stream names, and the content of a request into
// the form in which requests are compared: clients in any language have one rule to follow.
// [Transact] takes a key once: it commits the message that takes the key together with the caller's
// SQL and messages, and finds out the result. Packages reservation and inbox are built on it.
package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalid is returned for an invalid idempotence key.
var ErrInvalid = errors.New("invalid idempotence key")

// Rules that a key may break: see Rule.
const (
	Empty     = "must not be empty"
	NotUTF8   = "must be valid UTF-8"
	Invisible = "must contain a visible character"
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

// Invalid returns the error for an invalid key in a field.
func Invalid(field, key, rule string) error {
	e := messagestore.NewInvalidError(field, key, rule)
	e.Kind = ErrInvalid
	return e
}

// hashed begins a part that replaces a key too long for a name. No escaped key begins this way,
// because hexadecimal digits follow a key's percent signs.
const hashed = "%sha256:"

// HashedBytes is the length of a part that replaces a key too long for a name.
const HashedBytes = len(hashed) + 2*sha256.Size

// Encode returns a key that breaks no [Rule] as a part of a stream's identifier, of at most room
// bytes. Different keys have different parts. ok is false if room is less than [HashedBytes] and
// the key does not fit.
//
// A key is written like every identifier, by text.EscapeID.
func Encode(key string, room int) (part string, ok bool) {
	if len(key) <= room {
		if part := text.EscapeID(key); len(part) <= room {
			return part, true
		}
	}
	if room < HashedBytes {
		return "", false
	}
	sum := sha256.Sum256([]byte(key))
	return hashed + hex.EncodeToString(sum[:]), true
}

// A Content is what a key stands for, encoded so that equal contents have equal bytes.
type Content struct {
	Canonical []byte
	Ambiguous bool // an object in it has a duplicate key, or a text has half a surrogate pair
}

// Canonical encodes content with encoding/json and returns the spelling shared by all JSON that is
// equal to it.
func Canonical(content any) (Content, error) {
	if raw, ok := content.(json.RawMessage); ok {
		canonical, ambiguous, err := exactjson.AppendCanonical(nil, raw)
		return Content{canonical, ambiguous}, err
	}
	raw, err := exactjson.Marshal(content)
	if err != nil {
		return Content{}, err
	}
	canonical, ambiguous, err := exactjson.AppendCanonicalOf(nil, raw)
	return Content{canonical, ambiguous}, err
}

// Empty reports whether c has no content.
func (c Content) Empty() bool {
	switch string(c.Canonical) {
	case "null", "{}", "[]", `""`:
		return true
	}
	return false
}

// TooLong returns the rule that a key breaks if the rest of the stream's name leaves too little
// room for it.
func TooLong(room int) string {
	return fmt.Sprintf("must fit, or its hash must, in the %d bytes that the stream's name leaves", max(room, 0))
}
