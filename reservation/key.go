package reservation

import (
	"fmt"
	"strings"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/keys"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalidKey is returned for an idempotence key that is empty, has no visible character, or is
// not valid UTF-8. It comes as a [*messagestore.InvalidError]. A consumer does not retry a command
// with such a key: it stops, or parks the command, at once.
var ErrInvalidKey = keys.ErrInvalid

// JoinKey returns a key made from parts, such as a client's name and the key that the client sent.
// Different parts always make different keys, even if a part contains a slash. The error matches
// [ErrInvalidKey] if there are no parts, or if a part would be invalid as a key, such as a header
// that was not sent.
func JoinKey(parts ...string) (string, error) {
	escaped := make([]string, len(parts))
	for i, part := range parts {
		if rule := keys.Rule(part); rule != "" {
			return "", invalidKey(part, fmt.Sprintf("part %d of %d: %s", i+1, len(parts), rule))
		}
		escaped[i] = slash.Replace(part)
	}
	if len(parts) == 0 {
		return "", invalidKey("", "must have at least one part")
	}
	return strings.Join(escaped, "/"), nil
}

// slash escapes the separator between the parts of a key.
var slash = strings.NewReplacer("%", "%25", "/", "%2F")

// encodeKey returns key as a part of a stream's identifier of at most room bytes.
func encodeKey(key string, room int) (string, error) {
	switch rule := keys.Rule(key); rule {
	case "":
	case keys.Empty:
		return "", invalidKey(key, rule+": every command without a key would be a duplicate of the first")
	case keys.Invisible:
		return "", invalidKey(key, rule+": every command with such a key would be a duplicate of the first")
	default:
		return "", invalidKey(key, rule)
	}
	part, ok := keys.Encode(key, room)
	if !ok {
		return "", invalidKey(key, keys.TooLong(room))
	}
	return part, nil
}

func invalidKey(key, rule string) error {
	return &hopelessError{keys.Invalid("idempotence key", key, rule)}
}

// A hopelessError is the error for a message that is refused at each delivery, because its key or
// its stream is invalid.
type hopelessError struct{ error }

// Unwrap makes a consumer stop, or park the message, without a retry.
func (e *hopelessError) Unwrap() []error { return []error{e.error, calling.Refused} }

// KeyOf returns the key after which a reservation stream is named, the last part of its identifier.
// It is not ok if that part is not a valid key, or if the key was too long, because then the name
// only has a hash of it.
func KeyOf(stream messagestore.StreamName) (key string, ok bool) {
	id := stream.ID()
	key, ok = text.UnescapeID(id[strings.LastIndexByte(id, '+')+1:])
	return key, ok && keys.Rule(key) == ""
}
