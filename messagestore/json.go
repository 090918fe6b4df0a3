package messagestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/exactjson"
)

// maxDepth bounds how deep objects and arrays may be nested in each other.
const maxDepth = 512

// validateJSON returns an error if raw may not be stored as field. It accepts one JSON object that
// PostgreSQL can store as json and cast to jsonb, and that every driver returns unchanged: valid
// UTF-8, without U+0000 and lone surrogates (which jsonb cannot hold), with numbers in the range of
// PostgreSQL's numeric, nested at most 512 deep.
//
// An object may have a key twice; readers see the last, like jsonb.
func validateJSON(field string, raw []byte) error {
	if !json.Valid(raw) && utf8.Valid(raw) {
		var whole json.RawMessage
		err := json.Unmarshal(raw, &whole) // which says where
		rule := "must not be empty"
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && len(bytes.TrimSpace(raw)) > 0 {
			rule = fmt.Sprintf("must be valid JSON: error at byte %d: %v", syntax.Offset, syntax)
		}
		return NewInvalidError(field, raw, rule)
	}
	return validateEncoded(field, raw)
}

// validateEncoded is [validateJSON] for the output of encoding/json. That is always valid JSON; the
// checks are for bodies that encode themselves.
func validateEncoded(field string, raw []byte) error {
	if i := invalidUTF8(raw); i >= 0 {
		return NewInvalidError(field, raw, fmt.Sprintf("must be valid UTF-8: error at byte %d", i))
	}
	if first := bytes.TrimLeft(raw, " \t\r\n"); first[0] != '{' {
		return NewInvalidError(field, raw, "must be a JSON object")
	}
	if i, rule := unstorable(raw); rule != "" {
		return NewInvalidError(field, raw, fmt.Sprintf("%s at %s", rule, jsonPath(raw, i)))
	}
	return nil
}

func invalidUTF8(raw []byte) int {
	if utf8.Valid(raw) {
		return -1
	}
	for i := 0; i < len(raw); {
		r, size := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// unstorable returns the first place in valid JSON that a driver could not store,
// and the rule it breaks.
func unstorable(raw []byte) (offset int, rule string) {
	depth := 0
	for i := 0; i < len(raw); {
		switch c := raw[i]; {
		case c == '"':
			end, bad, rule := scanString(raw, i)
			if rule != "" {
				return bad, rule
			}
			i = end
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i, fmt.Sprintf("must not be nested more than %d deep", maxDepth)
			}
			i++
		case c == '}' || c == ']':
			depth--
			i++
		case c == '-' || c >= '0' && c <= '9':
			const short = 1000 // far fewer digits than are too many
			end, exponent := i+1, false
			for ; end < len(raw); end++ {
				if c := raw[end]; c == 'e' || c == 'E' {
					exponent = true
				} else if (c < '0' || c > '9') && c != '.' && c != '+' && c != '-' {
					break
				}
			}
			if (exponent || end-i > short) && !storableNumber(string(raw[i:end])) {
				return i, "must not contain a number out of range"
			}
			i = end
		default:
			i++
		}
	}
	return 0, ""
}

// scanString returns the end of the JSON string that begins at start.
func scanString(raw []byte, start int) (end, bad int, rule string) {
	for i := start + 1; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			return i + 1, 0, ""
		case '\\':
			i++
			if raw[i] != 'u' {
				continue
			}
			unit := codeUnit(raw[i+1:])
			switch {
			case unit == 0:
				return 0, start, "must not contain U+0000"
			case unit >= 0xDC00 && unit <= 0xDFFF:
				return 0, start, "must not contain half of a surrogate pair"
			case unit >= 0xD800 && unit <= 0xDBFF:
				if len(raw) < i+11 || raw[i+5] != '\\' || raw[i+6] != 'u' {
					return 0, start, "must not contain half of a surrogate pair"
				}
				if low := codeUnit(raw[i+7:]); low < 0xDC00 || low > 0xDFFF {
					return 0, start, "must not contain half of a surrogate pair"
				}
				i += 6
			}
			i += 4
		}
	}
	return len(raw), 0, ""
}

func codeUnit(hex []byte) uint64 {
	unit, err := strconv.ParseUint(string(hex[:4]), 16, 32)
	if err != nil {
		return math.MaxUint64 // cannot be: the JSON is valid
	}
	return unit
}

// storableNumber reports whether PostgreSQL's numeric can hold a JSON number: at
// most 131072 digits before the decimal point and 16383 after it.
// (https://www.postgresql.org/docs/current/datatype-numeric.html)
func storableNumber(literal string) bool {
	digits, exponent, ok := exactjson.SplitNumber(literal)
	if !ok {
		return false
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	if len(fraction)-exponent > 16383 {
		return false
	}
	first := strings.IndexFunc(whole+fraction, func(r rune) bool { return r != '0' })
	return first < 0 || len(whole)-first+exponent <= 131072
}

// jsonPath names the value that holds the byte at offset, as ".a.b[2]".
func jsonPath(raw []byte, offset int) string {
	type level struct {
		array bool
		index int
		key   string
		isKey bool // the next token is a key
	}
	var levels []level
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			break
		}
		if n := len(levels) - 1; n >= 0 && levels[n].isKey {
			if key, ok := token.(string); ok {
				levels[n].key, levels[n].isKey = key, false
				if d.InputOffset() > int64(offset) {
					break
				}
				continue
			}
		}
		if d.InputOffset() > int64(offset) {
			break
		}
		if delim, ok := token.(json.Delim); ok && (delim == '{' || delim == '[') {
			levels = append(levels, level{array: delim == '[', isKey: delim == '{'})
			continue
		} else if ok {
			levels = levels[:len(levels)-1]
		}
		if n := len(levels) - 1; n >= 0 {
			if levels[n].array {
				levels[n].index++
			} else {
				levels[n].isKey = true
			}
		}
	}
	var path strings.Builder
	for _, l := range levels[:min(len(levels), 8)] {
		if l.array {
			fmt.Fprintf(&path, "[%d]", l.index)
		} else {
			path.WriteString("." + l.key)
		}
	}
	if len(levels) > 8 {
		path.WriteString("…")
	}
	if path.Len() == 0 {
		return "."
	}
	return strings.Trim(quote(path.String()), `"`)
}

// plain reports whether s needs no escapes in JSON.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return true
}
