package reservation

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalidKey is matched by the error for an idempotence key that is empty, or in
// which there is nothing to see, or that is not valid UTF-8. It comes as a
// [*messagestore.InvalidError].
var ErrInvalidKey = errors.New("invalid idempotence key")

// NewKey returns a key that nobody else has, for a sender whose commands have none
// by nature. It is made once, when the command is decided on, and kept wherever the
// command may be sent again from.
func NewKey() string { return uuid.Must(uuid.NewV7()).String() }

func validateKey(key string) error {
	switch {
	case key == "":
		return invalidKey(key, "it is empty: every command without a key would be a duplicate of the first")
	case !utf8.ValidString(key):
		return invalidKey(key, "not valid UTF-8")
	case strings.IndexFunc(key, visible) < 0:
		return invalidKey(key, "there is nothing to see in it: every command with such a key would be a duplicate of the first")
	}
	return nil
}

func visible(r rune) bool { return unicode.IsGraphic(r) && !unicode.IsSpace(r) }

func invalidKey(key, rule string) error {
	e := messagestore.NewInvalidError("idempotence key", key, rule)
	e.Kind = ErrInvalidKey
	return e
}

// hashed begins a part that stands for a key too long to be in a name. No encoded
// key begins so: after its percent signs come hexadecimal digits.
const hashed = "%sha256:"

// encodeKey returns key as a part of a stream's identifier of at most room bytes.
// Different keys have different parts.
//
// Visible ASCII stands for itself, but for the percent sign and the plus sign,
// which divides the parts. Every other byte is a percent sign and two digits. The
// rule knows no Unicode, so that no later version of it can move a key to another
// stream, and clients in any language can follow it.
func encodeKey(key string, room int) (string, error) {
	if err := validateKey(key); err != nil {
		return "", err
	}
	if len(key) <= room {
		if part := escape(key); len(part) <= room {
			return part, nil
		}
	}
	sum := sha256.Sum256([]byte(key))
	part := hashed + hex.EncodeToString(sum[:])
	if len(part) > room {
		return "", invalidKey(key, fmt.Sprintf("the stream's name leaves it %d bytes, fewer than a hash needs", max(room, 0)))
	}
	return part, nil
}

func escape(key string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
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

// DecodeKey returns the key that part, the last part of a reservation stream's
// identifier, stands for. It is not ok for a part that stands for no key, and for a key
// that was too long, of which the name has only a hash.
func DecodeKey(part string) (key string, ok bool) {
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
	return key, escape(key) == part && validateKey(key) == nil
}
