package idempotency

import (
	"errors"
	"net/http"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

// Header is the name of the request header that carries the idempotence key.
const Header = "Idempotency-Key"

// MaxKey is the greatest number of bytes of a key.
const MaxKey = 255

// errNoKey is returned for a request without the header.
var errNoKey = errors.New("no key")

// KeyOf returns the key in the header of a request, as the middleware reads it: bare, or as a
// quoted string of RFC 8941; both are the same key. Use it in a handler that reserves a key by
// other means, such as package inbox. If the key is missing or cannot be read, the error is a
// [*messagestore.InvalidError].
func KeyOf(header http.Header) (string, error) {
	key, err := keyOf(header)
	if errors.Is(err, errNoKey) {
		return "", invalidKey("", "must be set")
	}
	return key, err
}

// keyOf returns the key of a request. Two lines of the header are refused, even if they are equal,
// because a proxy in between may have added one.
func keyOf(header http.Header) (string, error) {
	switch values := header.Values(Header); len(values) {
	case 0:
		return "", errNoKey
	case 1:
		return parseKey(values[0])
	default:
		return "", invalidKey(strings.Join(values, ", "), "must be in one line")
	}
}

// parseKey reads a key in the form of the draft, a quoted string of RFC 8941, or bare, as the
// clients of Stripe send it. Both spellings are the same key.
func parseKey(value string) (string, error) {
	value = strings.Trim(value, " \t")
	key := value
	if strings.HasPrefix(value, `"`) {
		var rule string
		if key, rule = unquote(value); rule != "" {
			return "", invalidKey(value, rule)
		}
	} else if i := strings.IndexAny(value, `",;\`); i >= 0 {
		return "", invalidKey(value, "must not contain a quote, comma, semicolon or backslash unless it is quoted")
	}
	if key == "" {
		return "", invalidKey(value, "must not be empty")
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", invalidKey(value, "must be visible ASCII")
		}
	}
	if len(key) > MaxKey {
		return "", invalidKey(value, "must be at most 255 bytes")
	}
	return key, nil
}

// unquote reads a string of RFC 8941 (4.2.5). Nothing may follow it.
func unquote(value string) (key, rule string) {
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; c {
		case '"':
			if i+1 < len(value) {
				return "", "must end with the closing quote"
			}
			return b.String(), ""
		case '\\':
			i++
			if i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", "must not have a backslash except before a quote or a backslash"
			}
			b.WriteByte(value[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "must have a closing quote"
}

func invalidKey(value, rule string) error {
	return messagestore.NewInvalidError(Header, value, rule)
}
