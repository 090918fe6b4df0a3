// Package exactjson writes and compares JSON with exact numbers. It says of two texts whether they
// are the same value, for the store, its drivers and reservations, which all mean the same by it.
package exactjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/text"
)

// Canonical returns raw in the one spelling that all JSON equal to it shares: no white
// space, keys sorted by their bytes and the last of equal keys kept, strings with the fewest
// escapes, and numbers compared by value, so that 1.0 and 1e0 are 1 and no digit is lost.
// Content is hashed and compared in this form.
func Canonical(raw json.RawMessage) ([]byte, error) {
	canonical, _, err := AppendCanonical(nil, raw)
	return canonical, err
}

// AppendCanonical appends the canonical form of raw to b. Ambiguous reports whether an object in
// raw has a key twice, so that the last is kept, or a text in it has half a surrogate pair or is
// not UTF-8, which becomes U+FFFD: then another value has the same form, too.
func AppendCanonical(b []byte, raw json.RawMessage) (canonical []byte, ambiguous bool, err error) {
	if !json.Valid(raw) {
		var whole json.RawMessage
		return nil, false, fmt.Errorf("canonical JSON: %w", json.Unmarshal(raw, &whole)) // which says where
	}
	return AppendCanonicalOf(b, raw)
}

// AppendCanonicalOf is [AppendCanonical] for raw that is valid JSON, as encoding/json has just made
// it. It is not asked for anything else.
func AppendCanonicalOf(b []byte, raw json.RawMessage) (canonical []byte, ambiguous bool, err error) {
	w := writer{raw: raw, b: slices.Grow(b, len(raw))}
	if err := w.value(); err != nil {
		return nil, false, fmt.Errorf("canonical JSON: %w", err)
	}
	return w.b, w.ambiguous, nil
}

// OneReading returns the one spelling of all JSON that every decoder reads as it reads raw: white
// space, the order of an object's keys and escapes do not count, and numbers count as they are
// spelled, since 1.0 is no integer to some decoders. It is not ok if raw is no JSON, or if two
// decoders may read it as different values: an object has two keys that differ in case at most, or a
// text has half a surrogate pair or is not UTF-8.
func OneReading(raw json.RawMessage) (spelling []byte, ok bool) {
	if !json.Valid(raw) {
		return nil, false
	}
	w := writer{raw: raw, b: make([]byte, 0, len(raw)), spelled: true}
	if err := w.value(); err != nil || w.ambiguous {
		return nil, false
	}
	return w.b, true
}

// A writer writes the canonical form of valid JSON while it reads it.
type writer struct {
	raw []byte
	at  int // the next byte of raw to read
	b   []byte

	spelled   bool // numbers stay as they are
	ambiguous bool // two decoders may differ, other than by the case of keys where numbers do not stay
}

// next passes over white space, and returns the byte behind it.
func (w *writer) next() byte {
	for {
		switch c := w.raw[w.at]; c {
		case ' ', '\t', '\r', '\n':
			w.at++
		default:
			return c
		}
	}
}

func (w *writer) value() error {
	switch w.next() {
	case '{':
		return w.object()
	case '[':
		return w.array()
	case '"':
		_, err := w.text()
		return err
	case 't', 'n':
		w.b = append(w.b, w.raw[w.at:w.at+4]...)
		w.at += 4
	case 'f':
		w.b = append(w.b, "false"...)
		w.at += 5
	default:
		return w.number()
	}
	return nil
}

func (w *writer) array() error {
	w.at++
	w.b = append(w.b, '[')
	for first := true; w.next() != ']'; first = false {
		if !first {
			w.at++ // a comma
			w.b = append(w.b, ',')
		}
		if err := w.value(); err != nil {
			return err
		}
	}
	w.at++
	w.b = append(w.b, ']')
	return nil
}

// A member of an object is at its place in what is written so far.
type member struct {
	key        []byte // decoded
	start, end int
}

func (w *writer) object() error {
	w.at++
	w.b = append(w.b, '{')
	var few [8]member
	members, sorted := few[:0], true
	for w.next() != '}' {
		if len(members) > 0 {
			w.at++ // a comma
			w.next()
			w.b = append(w.b, ',')
		}
		m := member{start: len(w.b)}
		var err error
		if m.key, err = w.text(); err != nil {
			return err
		}
		w.next()
		w.at++ // a colon
		w.b = append(w.b, ':')
		if err := w.value(); err != nil {
			return err
		}
		m.end = len(w.b)
		sorted = sorted && (len(members) == 0 || bytes.Compare(members[len(members)-1].key, m.key) < 0)
		members = append(members, m)
	}
	w.at++
	if w.spelled && !differInFold(members) {
		w.ambiguous = true
	}
	if !sorted {
		w.sort(members)
	}
	w.b = append(w.b, '}')
	return nil
}

// differInFold reports whether no two keys are the same to a decoder that ignores case, as
// encoding/json does, and dashes and underscores, as encoding/json/v2 does.
func differInFold(members []member) bool {
	if len(members) < 2 {
		return true
	}
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		folded := strings.Map(fold, string(m.key))
		if seen[folded] {
			return false
		}
		seen[folded] = true
	}
	return true
}

// fold returns the least of the characters that differ from c in case alone, and none for a dash or an underscore.
func fold(c rune) rune {
	if c == '-' || c == '_' {
		return -1
	}
	for {
		next := unicode.SimpleFold(c)
		if next <= c {
			return next
		}
		c = next
	}
}

// sort writes the members of the object that was written last by their keys, of equal ones the
// last.
func (w *writer) sort(members []member) {
	start := members[0].start
	written := bytes.Clone(w.b[start:])
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.key, b.key) })
	w.b = w.b[:start]
	for i, m := range members {
		if i+1 < len(members) && bytes.Equal(members[i+1].key, m.key) {
			w.ambiguous = true
			continue
		}
		if len(w.b) > start {
			w.b = append(w.b, ',')
		}
		w.b = append(w.b, written[m.start-start:m.end-start]...)
	}
}

// text writes a string, and returns it decoded.
func (w *writer) text() ([]byte, error) {
	start, asItIs, ascii := w.at, true, true
	for w.at++; w.raw[w.at] != '"'; w.at++ {
		switch c := w.raw[w.at]; {
		case c == '\\':
			asItIs = false
			w.at++
		case c == 0xE2: // U+2028 begins so, which is escaped
			asItIs = false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	w.at++
	quoted := w.raw[start:w.at]
	if asItIs && (ascii || utf8.Valid(quoted)) {
		w.b = append(w.b, quoted...)
		return quoted[1 : len(quoted)-1], nil
	}
	var decoded string
	if err := json.Unmarshal(quoted, &decoded); err != nil {
		return nil, err
	}
	if replaced(quoted, decoded) {
		w.ambiguous = true
	}
	encoded, err := Marshal(decoded)
	w.b = append(w.b, encoded...)
	return []byte(decoded), err
}

// replaced reports whether encoding/json has put U+FFFD in the place of something else when it
// decoded a quoted text.
func replaced(quoted []byte, decoded string) bool {
	found := strings.Count(decoded, "\ufffd")
	if found == 0 {
		return false
	}
	meant := bytes.Count(quoted, []byte("\ufffd"))
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		if i++; quoted[i] == 'u' && strings.EqualFold(string(quoted[i+1:i+5]), "fffd") {
			meant++
		}
	}
	return found > meant
}

func (w *writer) number() (err error) {
	start := w.at
	whole := true
	for ; w.at < len(w.raw); w.at++ {
		c := w.raw[w.at]
		if c == '.' || c == 'e' || c == 'E' {
			whole = false
		} else if c != '-' && c != '+' && (c < '0' || c > '9') {
			break
		}
	}
	literal := w.raw[start:w.at]
	if w.spelled || whole && literal[len(literal)-1] != '0' {
		w.b = append(w.b, literal...)
		return nil
	}
	w.b, err = appendNumber(w.b, string(literal))
	return err
}

// appendNumber appends the value as its significant digits and a power of ten.
func appendNumber(b []byte, literal string) ([]byte, error) {
	digits, exponent, ok := SplitNumber(literal)
	if !ok {
		return nil, fmt.Errorf("number out of range: %.48q", literal)
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	exponent -= len(fraction)
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return append(b, '0'), nil
	}
	significant := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(significant)
	if literal[0] == '-' {
		b = append(b, '-')
	}
	b = append(b, significant...)
	if exponent != 0 {
		b = strconv.AppendInt(append(b, 'e'), int64(exponent), 10)
	}
	return b, nil
}

// Equal reports whether a and b are the same JSON value, with exact numbers.
// Nothing at all is equal only to nothing.
func Equal(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	left, err := Canonical(a)
	if err != nil {
		return false
	}
	right, err := Canonical(b)
	return err == nil && bytes.Equal(left, right)
}

// SplitNumber takes a JSON number apart: digits with an optional point, without
// the sign, and the exponent.
func SplitNumber(literal string) (digits string, exponent int, ok bool) {
	digits = strings.TrimPrefix(literal, "-")
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		e, err := strconv.ParseInt(digits[i+1:], 10, 64)
		if err != nil || e >= math.MaxInt32/2 || e <= -(math.MaxInt32/2) {
			return "", 0, false
		}
		digits, exponent = digits[:i], int(e)
	}
	return digits, exponent, true
}

// A buffered is a buffer, and an encoder into it, that are used again: without that they
// would be most of the memory that encoding a message allocates.
type buffered struct {
	buffer  bytes.Buffer
	encoder *json.Encoder
}

// maxKept bounds the buffers that are kept for the next message.
const maxKept = 64 << 10

var buffers = sync.Pool{New: func() any {
	b := &buffered{}
	b.encoder = json.NewEncoder(&b.buffer)
	b.encoder.SetEscapeHTML(false)
	return b
}}

type shortError struct{ error }

func (e shortError) Error() string { return text.Of(e.error) }
func (e shortError) Unwrap() error { return e.error }

// Marshal is json.Marshal without its escapes for HTML, which a database and other languages' clients have
// no use for. A string that is not valid UTF-8 is an error, where json.Marshal puts another in its place.
// The text of an error is one short line, also from a type's own MarshalJSON.
func Marshal(v any) ([]byte, error) {
	b, _ := buffers.Get().(*buffered)
	b.buffer.Reset()
	if err := b.encoder.Encode(v); err != nil {
		return nil, shortError{err}
	}
	encoded := bytes.Clone(bytes.TrimSuffix(b.buffer.Bytes(), []byte("\n")))
	if b.buffer.Cap() <= maxKept {
		buffers.Put(b)
	}
	if coerced(encoded, v) {
		return nil, errNotUTF8
	}
	return encoded, nil
}
