package exactjson_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/internal/exactjson"
	"github.com/dibs-go/dibs/internal/testkit"
)

func TestCanonicalIsOneSpelling(t *testing.T) {
	for raw, want := range map[string]string{
		`{}`: `{}`, ` [ ] `: `[]`, ` null `: `null`, `true`: `true`, `false`: `false`,
		`{"b":1,"a":2}`: `{"a":2,"b":1}`, `{"a":1,"a":2}`: `{"a":2}`, `{"é":1,"z":2,"Z":3}`: `{"Z":3,"z":2,"é":1}`,
		`"\u00e9"`: `"é"`, `"\/"`: `"/"`, `"<>&"`: `"<>&"`, `"\u003c"`: `"<"`, `"\ud83d\ude00"`: `"😀"`, `"\u0009"`: `"\t"`, `"\u0001"`: `"\u0001"`, `"\u2028"`: `"\u2028"`,
		`0`: `0`, `-0`: `0`, `0.0`: `0`, `0e999`: `0`, `-0.0e5`: `0`, `1`: `1`, `1.0`: `1`, `1e0`: `1`, `10e-1`: `1`, `0.1E1`: `1`, `100`: `1e2`, `1e2`: `1e2`, `1E+2`: `1e2`,
		`0.001`: `1e-3`, `-1.50`: `-15e-1`, `0.1e-3`: `1e-4`, `1e400`: `1e400`, `12345678901234567890.123456789`: `12345678901234567890123456789e-9`,
		`9223372036854775808`: `9223372036854775808`, `[1,[2,{"a":null}]]`: `[1,[2,{"a":null}]]`,
	} {
		got, err := exactjson.Canonical(json.RawMessage(raw))
		require.NoError(t, err, raw)
		require.Equal(t, want, string(got), raw)
		require.Equal(t, got, testkit.Do(exactjson.Canonical(got))(t))
	}
}

func TestCanonicalIsOfOneValue(t *testing.T) {
	for _, raw := range []string{``, ` `, `{`, `{}{}`, `{} x`, `nope`, `1 2`, `{"a":1e99999999999999999999}`} {
		require.ErrorContains(t, testkit.ErrorOf(exactjson.Canonical(json.RawMessage(raw))), "canonical JSON: ", "%q", raw)
	}
}

func TestEqualComparesValues(t *testing.T) {
	for _, equal := range [][2]string{{`{}`, ` { } `}, {``, ``}, {`{"a":1.0,"b":"\u00e9"}`, `{"b":"é","a":1}`}, {`nope`, `nope`}} {
		require.True(t, exactjson.Equal(json.RawMessage(equal[0]), json.RawMessage(equal[1])), "%v", equal)
	}
	for _, unequal := range [][2]string{
		{``, `{}`},
		{`{}`, ``},
		{``, `null`},
		{`{}`, `null`},
		{`{"a":null}`, `{}`},
		{`1`, `"1"`},
		{`[1,2]`, `[2,1]`},
		{`{}`, `[]`},
		{`true`, `false`},
		{`nope`, `{}`},
		{`{}`, `nope`},
		{`9007199254740993`, `9007199254740992`},
		{`0.1`, `0.10000000000000000001`},
		{`1`, `-1`},
		{`1e400`, `1e401`},
		{`"é"`, `"e\u0301"`},
		{`"a"`, `"A"`},
	} {
		require.False(t, exactjson.Equal(json.RawMessage(unequal[0]), json.RawMessage(unequal[1])), "%v", unequal)
	}
}

// A value is drawn, spelled in one way and in another, and changed in one place.
func TestCanonicalIsAsTheValueIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawValue(t, 3)
		one, other := spell(t, v), spell(t, v)

		a, err := exactjson.Canonical(json.RawMessage(one))
		require.NoError(t, err, one)
		b, err := exactjson.Canonical(json.RawMessage(other))
		require.NoError(t, err, other)
		require.Equal(t, string(a), string(b), "%s and %s", one, other)
		require.Equal(t, string(a), string(testkit.Do(exactjson.Canonical(a))(t)))
		require.True(t, json.Valid(a))

		changed := spell(t, change(t, v))
		require.False(t, exactjson.Equal(json.RawMessage(one), json.RawMessage(changed)), "%s and %s", one, changed)
	})
}

// A decimal is digits and a power of ten, and so of many spellings.
type decimal struct {
	digits   int64
	exponent int
}

func drawValue(t *rapid.T, depth int) any {
	kinds := []string{"text", "number", "bool", "null", "list", "object"}
	if depth == 0 {
		kinds = kinds[:4]
	}
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "text":
		return rapid.StringOfN(rapid.RuneFrom([]rune("aé\u0301<\"\\/\n😀\u2028 ")), 0, 5, -1).Draw(t, "text")
	case "number":
		return decimal{rapid.Int64Range(-1e12, 1e12).Draw(t, "digits"), rapid.IntRange(-30, 30).Draw(t, "exponent")}
	case "bool":
		return rapid.Bool().Draw(t, "bool")
	case "list":
		list := make([]any, rapid.IntRange(0, 3).Draw(t, "length"))
		for i := range list {
			list[i] = drawValue(t, depth-1)
		}
		return list
	case "object":
		object := map[string]any{}
		for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "é", "", "\""}), 0, 3).Draw(t, "names") {
			object[name] = drawValue(t, depth-1)
		}
		return object
	}
	return nil
}

func spell(t *rapid.T, value any) string {
	space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
	var b strings.Builder
	switch v := value.(type) {
	case string:
		b.WriteByte('"')
		for _, r := range v {
			switch {
			case r == '"' || r == '\\':
				b.WriteString(`\` + string(r))
			case r < ' ' || r < 0x10000 && rapid.Bool().Draw(t, "escaped"):
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				b.WriteRune(r)
			}
		}
		b.WriteByte('"')
	case decimal:
		zeros := rapid.IntRange(0, 3).Draw(t, "zeros")
		b.WriteString(strconv.FormatInt(v.digits, 10))
		if v.digits != 0 {
			b.WriteString(strings.Repeat("0", zeros))
			v.exponent -= zeros
		}
		b.WriteString(rapid.SampledFrom([]string{"", ".0", ".00"}).Draw(t, "fraction"))
		if v.exponent != 0 || rapid.Bool().Draw(t, "e0") {
			b.WriteString(rapid.SampledFrom([]string{"e", "E"}).Draw(t, "e"))
			if v.exponent > 0 && rapid.Bool().Draw(t, "plus") {
				b.WriteByte('+')
			}
			b.WriteString(strconv.Itoa(v.exponent))
		}
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case nil:
		b.WriteString("null")
	case []any:
		elements := make([]string, len(v))
		for i, element := range v {
			elements[i] = spell(t, element)
		}
		b.WriteString("[" + space + strings.Join(elements, space+","+space) + "]")
	case map[string]any:
		var members []string
		for _, name := range rapid.Permutation([]string{"a", "b", "é", "", "\""}).Draw(t, "order") {
			if member, ok := v[name]; ok {
				members = append(members, spell(t, name)+space+":"+spell(t, member))
			}
		}
		b.WriteString("{" + strings.Join(members, ","+space) + space + "}")
	}
	return space + b.String() + space
}

// change returns another value, different somewhere inside.
func change(t *rapid.T, value any) any {
	switch v := value.(type) {
	case string:
		return v + "x"
	case decimal:
		if v.digits == 0 {
			return decimal{1, v.exponent}
		}
		return rapid.SampledFrom([]decimal{{v.digits, v.exponent + 1}, {-v.digits, v.exponent}, {v.digits*10 + 1, v.exponent - 1}}).Draw(t, "decimal")
	case bool:
		return !v
	case []any:
		if i := rapid.IntRange(-1, len(v)-1).Draw(t, "element"); i >= 0 {
			changed := append([]any{}, v...)
			changed[i] = change(t, v[i])
			return changed
		}
		return append(append([]any{}, v...), nil)
	case map[string]any:
		changed := map[string]any{}
		maps.Copy(changed, v)
		if len(v) > 0 && rapid.Bool().Draw(t, "remove") {
			for _, name := range []string{"a", "b", "é", "", "\""} {
				if _, ok := v[name]; ok {
					delete(changed, name)
					return changed
				}
			}
		}
		for _, name := range []string{"a", "b", "é", "", "\""} {
			if _, ok := v[name]; !ok {
				changed[name] = nil
				return changed
			}
		}
		changed["a"] = change(t, v["a"])
		return changed
	}
	return false
}

func TestOneReadingIsOfWhatEveryDecoderReadsAlike(t *testing.T) {
	t.Parallel()
	want, ok := exactjson.OneReading([]byte(`{"a":[1.0,"B\n"],"b":null}`))
	require.True(t, ok)
	got, ok := exactjson.OneReading([]byte("{ \"b\": null,\n\"\\u0061\": [1.0, \"\\u0042\\u000a\"] }"))
	require.True(t, ok)
	require.Equal(t, string(want), string(got))

	seen := map[string]string{}
	for _, raw := range []string{
		"1", "1.0", "1e0", "1E0", "10e-1", "0", "-0", "0.0", "9007199254740993", "9007199254740992", "1e400", "1e99999999999",
		`"a"`, `"A"`, `"\u0000"`, `{"a":1}`, `{"A":1}`, "[1,2]", "[2,1]", "null", "{}", "[]", `""`, `"é"`, `"e\u0301"`,
	} {
		spelling, ok := exactjson.OneReading([]byte(raw))
		if ok {
			require.Empty(t, seen[string(spelling)], raw)
			seen[string(spelling)] = raw
		}
	}
	for _, raw := range []string{
		`{"a":1,"a":2}`, `{"a":1,"A":2}`, `{"a":1,"\u0041":2}`, `{"k":1,"K":2}`, `{"s":1,"ſ":2}`, `{"x":[{"Amount":1,"amount":2}]}`,
		`{"net_amount":1,"netAmount":2}`, `{"a-b":1,"ab":2}`, `{"A_B":1,"a-b":2}`,
		`"\ud800"`, `"\udc00\ud800"`, `{"\ud800":1}`, "\"\xff\"", "{\"\xff\":1}", "\"\xe2\"",
		"", " ", "{}{}", "{} x", "\ufeff{}", "NaN", "Infinity", "01", "+1", "{a:1}", "[1,]", "'a'", "// a\n1",
	} {
		_, ok := exactjson.OneReading([]byte(raw))
		require.False(t, ok, raw)
	}
}

// What a call has returned stays as it is, and a call sees nothing of those before it.
func TestACallLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	before, long := []byte("before "), `"`+strings.Repeat("x", maxKept)+`"`
	for _, c := range []struct {
		raw, canonical string
		ambiguous      bool
	}{
		{`{"b":1,"a":[2,{"d":3,"c":"\u00e4"}],"a":4}`, `{"a":4,"b":1}`, true},
		{`{"b":[2,{"d":3,"c":"\n"}],"a":4}`, `{"a":4,"b":[2,{"c":"\n","d":3}]}`, false},
		{`[1,"a"]`, `[1,"a"]`, false},
		{`1e99999999999`, "", false},
		{long, long, false},
		{`{"a":1}`, `{"a":1}`, false},
	} {
		one, ambiguous, err := exactjson.AppendCanonical(before, []byte(c.raw))
		require.Equal(t, c.canonical == "", err != nil, c.raw)
		require.Equal(t, c.ambiguous, ambiguous, c.raw)
		two, err := exactjson.Canonical([]byte(c.raw))
		if err != nil {
			continue
		}
		for _, other := range []string{`[0]`, `{"z":"other","y":2}`} {
			_, err := exactjson.Canonical([]byte(other))
			require.NoError(t, err)
		}
		require.Equal(t, "before "+c.canonical, string(one))
		require.Equal(t, c.canonical, string(two))
	}
}

const maxKept = 64 << 10 // of the memory that is used again

func BenchmarkCanonical(b *testing.B) {
	for name, body := range map[string]string{
		"InOrder":  `{"amount":24523,"key":"0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b","method":"POST","path":"/payments"}`,
		"Disorder": `{"method":"POST","path":"/payments","key":"0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b","amount":245200}`,
		"Escapes":  `{"name":"Zo\u00eb \"Z\"","street":"Hauptstra\u00dfe 1","lines":[{"sku":"a\nb","n":1},{"sku":"\u20ac","n":2}]}`,
		"4KiB":     flat(4 << 10),
	} {
		raw := json.RawMessage(body)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := exactjson.Canonical(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
