package exactjson_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/exactjson"
)

// hostile returns bodies of about size bytes, each of a shape that some way of writing JSON is slow with.
func hostile(size int) map[string]string {
	repeated := func(text string) string { return strings.Repeat(text, size/len(text)) }
	list := func(element string) string { return "[" + strings.TrimSuffix(repeated(element+","), ",") + "]" }
	nested := func(levels int, before, after string) string {
		padding := strings.Repeat("x", max(0, size/levels-len(before)-len(after)-1))
		return strings.Repeat(strings.ReplaceAll(before, "PAD", padding), levels) + "1" + strings.Repeat(strings.ReplaceAll(after, "PAD", padding), levels)
	}
	object := func(key func(i int) string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, `,%q:1`, key(i))
		}
		return "{" + b.String()[1:] + "}"
	}
	return map[string]string{
		"objects nested, a key out of order behind each":    nested(9000, `{"b":`, `,"a":"PAD"}`),
		"objects nested, a key out of order before each":    nested(9000, `{"b":"PAD","a":`, `}`),
		"objects nested, a key out of order on either side": nested(9000, `{"c":"PAD","b":`, `,"a":0}`),
		"objects nested, a key that comes twice":            nested(9000, `{"a":0,"b":"PAD","a":`, `}`),
		"objects nested, the kept one last":                 nested(9000, `{"a":`, `,"b":"PAD","a":0}`),
		"objects and lists nested":                          nested(4500, `[{"b":`, `,"a":"PAD"}]`),
		"lists nested":                                      list(strings.Repeat("[", 9000) + strings.Repeat("]", 9000)),
		"members from the last to the first":                object(func(i int) string { return fmt.Sprintf("%06d", size-i) }),
		"members in disorder":                               object(func(i int) string { return fmt.Sprintf("%07d", i*7919%size) }),
		"members with long keys that begin alike":           object(func(i int) string { return strings.Repeat("k", 1000) + fmt.Sprintf("%06d", size-i) }),
		"members with one key":                              object(func(int) string { return "a" }),
		"members with two keys in turn":                     object(func(i int) string { return string("ba"[i%2]) }),
		"members whose keys differ in case":                 object(func(i int) string { return fmt.Sprintf("%c%06d", "aA"[i%2], i/2) }),
		"a list of objects in disorder":                     list(`{"b":1,"a":2}`),
		"a list of objects of nine members in disorder":     list(`{"i":1,"h":1,"g":1,"f":1,"e":1,"d":1,"c":1,"b":1,"a":1}`),
		"a number":                      repeated("9"),
		"a number of noughts":           "1" + repeated("0"),
		"a number with a long exponent": "1e" + repeated("0") + "1",
		"a number with a long fraction": "0." + repeated("0") + "1e5",
		"numbers":                       list("10"),
		"numbers with exponents":        list("1.0e-10"),
		"a text of escapes":             `"` + repeated(`\n`) + `"`,
		"a text of pairs":               `"` + repeated(`\ud83d\ude00`) + `"`,
		"a text of half pairs":          `"` + repeated(`\ud83d`) + `"`,
		"a text of U+2028":              `"` + repeated("\u2028") + `"`,
		"a text that is not UTF-8":      `"` + repeated("\xff") + `"`,
		"texts of escapes":              list(`"\n"`),
		"keys of escapes":               object(func(i int) string { return fmt.Sprintf("\n%06d", size-i) }),
		"white space":                   "[" + repeated(" ") + "]",
	}
}

// flat returns a body of about size bytes, as clients send them.
func flat(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,"k%06d":"value"`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// allocated returns the bytes that a call of f allocates. Of two calls it takes the less, for what else runs may allocate, too.
func allocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 2 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}

func TestNoShapeOfABodyAllocatesMoreThanFiveTimesAFlatOne(t *testing.T) {
	const size = 1 << 20
	ordinary := json.RawMessage(flat(size))
	bound := 5 * allocated(func() { _, _ = exactjson.Canonical(ordinary) })
	var above []string
	for shape, body := range hostile(size) {
		raw := json.RawMessage(body)
		require.True(t, json.Valid(raw), shape)

		canonical := allocated(func() { _, _ = exactjson.Canonical(raw) })
		reading := allocated(func() { _, _ = exactjson.OneReading(raw) })

		if max(canonical, reading) > bound {
			above = append(above, fmt.Sprintf("%s: %d and %d", shape, canonical, reading))
		}
	}
	require.Empty(t, above, "more than %d bytes", bound)
}

func TestNoShapeOfABodyIsMoreWorkThanToWriteItTwiceAndToSortItsKeys(t *testing.T) {
	for _, size := range []int{1 << 10, 100 << 10, 1 << 20} {
		for shape, body := range hostile(size) {
			requireLittleWork(t, []byte(body), shape)
		}
	}
}

// requireLittleWork asks that each byte was written at most twice, in its longest spelling, and that keys were compared as
// often as it takes to sort them.
func requireLittleWork(t *testing.T, raw []byte, name string) {
	t.Helper()
	n := members(raw)
	bound := 2*3*len(raw) + 4*n*bits.Len(uint(n))
	for _, spelled := range []bool{false, true} {
		require.LessOrEqual(t, exactjson.Work(raw, spelled), bound, name)
	}
}
