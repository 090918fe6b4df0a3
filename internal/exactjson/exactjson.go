// Package exactjson writes and compares JSON with exact numbers. It says of two texts whether they
// are the same value, for the store, its drivers and reservations, which all mean the same by it.
package exactjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Canonical returns raw in the one spelling that all JSON equal to it shares: no white
// space, keys sorted by their bytes and the last of equal keys kept, strings with the fewest
// escapes, and numbers compared by value, so that 1.0 and 1e0 are 1 and no digit is lost.
// Content is hashed and compared in this form.
func Canonical(raw json.RawMessage) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("canonical JSON: more than one value")
	}
	return appendCanonical(nil, value)
}

func appendCanonical(b []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		b = append(b, '{')
		for i, key := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendString(b, key); err != nil {
				return nil, err
			}
			b = append(b, ':')
			if b, err = appendCanonical(b, v[key]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	case []any:
		b = append(b, '[')
		for i, element := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendCanonical(b, element); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case string:
		return appendString(b, v)
	case json.Number:
		return appendNumber(b, string(v))
	case bool:
		return strconv.AppendBool(b, v), nil
	case nil:
		return append(b, "null"...), nil
	}
	return nil, fmt.Errorf("canonical JSON: unexpected %T", value)
}

func appendString(b []byte, s string) ([]byte, error) {
	text, err := Marshal(s)
	return append(b, text...), err
}

// appendNumber appends the value as its significant digits and a power of ten.
func appendNumber(b []byte, literal string) ([]byte, error) {
	digits, exponent, ok := SplitNumber(literal)
	if !ok {
		return nil, fmt.Errorf("canonical JSON: number out of range: %.48q", literal)
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

// Marshal is json.Marshal without its escapes for HTML, which a database and
// other languages' clients have no use for.
func Marshal(v any) ([]byte, error) {
	b, _ := buffers.Get().(*buffered)
	b.buffer.Reset()
	if err := b.encoder.Encode(v); err != nil {
		return nil, err
	}
	text := bytes.Clone(bytes.TrimSuffix(b.buffer.Bytes(), []byte("\n")))
	if b.buffer.Cap() <= maxKept {
		buffers.Put(b)
	}
	return text, nil
}
