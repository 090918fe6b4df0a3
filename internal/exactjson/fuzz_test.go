package exactjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
)

func FuzzCanonical(f *testing.F) {
	for _, seed := range testkit.SeedJSONTexts() {
		f.Add([]byte(seed), []byte(`{}`))
		f.Add([]byte(seed), []byte(" "+seed+"\n"))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		one, err := exactjson.Canonical(a)
		want, ambiguous, wantErr := slowly(a)
		require.Equal(t, wantErr == nil, err == nil, "%v and %v", wantErr, err)
		if err != nil {
			return
		}
		require.Equal(t, string(want), string(one))
		requireLittleWork(t, a, "work")
		written, found, err := exactjson.AppendCanonical([]byte("x"), a)
		require.NoError(t, err)
		require.Equal(t, "x"+string(want), string(written))
		require.Equal(t, ambiguous, found)
		require.True(t, json.Valid(one))
		again, err := exactjson.Canonical(one)
		require.NoError(t, err)
		require.Equal(t, string(one), string(again), "what is canonical stays as it is")
		require.True(t, exactjson.Equal(a, one))

		var compact, indented strings.Builder
		var value any
		require.NoError(t, unmarshalExact(a, &value))
		require.NoError(t, json.NewEncoder(&compact).Encode(value))
		e := json.NewEncoder(&indented)
		e.SetIndent(" ", "\t")
		require.NoError(t, e.Encode(value))
		require.True(t, exactjson.Equal(a, json.RawMessage(compact.String())))
		require.True(t, exactjson.Equal(a, json.RawMessage(indented.String())))

		if other, err := exactjson.Canonical(b); err == nil {
			require.Equal(t, string(one) == string(other), exactjson.Equal(a, b))
			require.Equal(t, exactjson.Equal(a, b), exactjson.Equal(b, a))
		}
	})
}

// slowly is the canonical form by way of Go values, as it is defined.
func slowly(raw []byte) (canonical []byte, ambiguous bool, err error) {
	if !json.Valid(raw) {
		return nil, false, errors.New("not valid JSON")
	}
	var value any
	if err := unmarshalExact(raw, &value); err != nil {
		return nil, false, err
	}
	canonical, err = appendSlowly(nil, value)
	return canonical, members(raw) > members(canonical) || !reencodes(raw), err
}

// reencodes reports whether decoding changes no text in raw.
func reencodes(raw []byte) bool {
	escapes := regexp.MustCompile(`\\\\|\\"|(?i:\\u[0-9a-f]{4})+`)
	for _, escape := range escapes.FindAll(raw, -1) {
		if escape[0] != '\\' || escape[1] != 'u' {
			continue
		}
		var units []uint16
		for i := 0; i < len(escape); i += 6 {
			unit, err := strconv.ParseUint(string(escape[i+2:i+6]), 16, 16)
			if err != nil {
				return false
			}
			units = append(units, uint16(unit))
		}
		if !slices.Equal(units, utf16.Encode(utf16.Decode(units))) {
			return false
		}
	}
	return utf8.Valid(raw)
}

func appendSlowly(b []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendSlowly(b, key); err != nil {
				return nil, err
			}
			if b, err = appendSlowly(append(b, ':'), v[key]); err != nil {
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
			if b, err = appendSlowly(b, element); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case json.Number:
		digits, exponent, ok := exactjson.SplitNumber(string(v))
		if !ok {
			return nil, errors.New("must not contain a number out of range")
		}
		whole, fraction, _ := strings.Cut(digits, ".")
		digits, exponent = strings.TrimLeft(whole+fraction, "0"), exponent-len(fraction)
		for strings.HasSuffix(digits, "0") {
			digits, exponent = digits[:len(digits)-1], exponent+1
		}
		switch {
		case digits == "":
			return append(b, '0'), nil
		case v[0] == '-':
			b = append(b, '-')
		}
		if b = append(b, digits...); exponent != 0 {
			b = fmt.Appendf(b, "e%d", exponent)
		}
		return b, nil
	default:
		text, err := exactjson.Marshal(v)
		return append(b, text...), err
	}
}

// members returns how many members the objects in valid JSON have together.
func members(raw []byte) int {
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

func unmarshalExact(raw []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	return d.Decode(into)
}
