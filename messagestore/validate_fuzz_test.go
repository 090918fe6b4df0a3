package messagestore

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/internal/tier"
)

// requireShort checks a refusal: one visible line, which does not grow with the value, of the kind
// that callers match.
func requireShort(t *testing.T, err, kind error) {
	t.Helper()
	require.NotNil(t, refusal(t, err, kind))
}

func refusal(t *testing.T, err, kind error) *InvalidError {
	t.Helper()
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, err, kind)
	invalid := must.As[*InvalidError](t, err)
	require.NotEmpty(t, invalid.Field)
	require.NotEmpty(t, invalid.Rule)
	require.Less(t, len(err.Error()), 1000)
	require.True(t, utf8.ValidString(err.Error()))
	require.NotContains(t, invalid.Field+invalid.Value, "\n")
	for _, r := range err.Error() {
		require.True(t, unicode.IsGraphic(r), "%q", err)
	}
	return invalid
}

// The grammar of names once more, in another notation.
var (
	categoryForm = regexp.MustCompile(`^[^-:+\p{Z}\p{C}]+(:[^-:+\p{Z}\p{C}]+(\+[^-:+\p{Z}\p{C}]+)*)?$`)
	idForm       = regexp.MustCompile(`^[^+\p{Zl}\p{Zp}\p{Cc}\p{Cf}]+(\+[^+\p{Zl}\p{Zp}\p{Cc}\p{Cf}]+)*$`)
	typeForm     = regexp.MustCompile(`^[^\p{Z}\p{Cc}\p{Cf}]([^\p{Zl}\p{Zp}\p{Cc}\p{Cf}]*[^\p{Z}\p{Cc}\p{Cf}])?$`)
	endsInSpace  = regexp.MustCompile(`\p{Z}$`)
)

func FuzzNamesHaveTheirGrammar(f *testing.F) {
	f.Add("account:command+position-123+AAA")
	f.Add("dibs:Tombstone")
	f.Add("a-b c")
	for _, name := range tier.SeedNames() {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, s string) {
		bounded := utf8.ValidString(s) && len(s) <= text.MaxNameBytes
		// Unassigned characters and those of private use do not count as \p{C} here.
		category, id, _ := strings.Cut(s, "-")
		isCategory := func(s string) bool { return categoryForm.MatchString(strings.Map(assigned, s)) }

		err := Category(s).Validate()
		require.Equal(t, bounded && isCategory(s), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, strings.Contains(s, "-"), strings.Contains(err.Error(), "it is the name of a stream"))
		}
		err = StreamName(s).Validate()
		require.Equal(t, bounded && isCategory(category) && idForm.MatchString(id) && !endsInSpace.MatchString(s), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, bounded && isCategory(s), strings.Contains(err.Error(), "it is a category"))
		}
		err = validateType(s)
		require.Equal(t, bounded && typeForm.MatchString(s) && !strings.HasPrefix(s, "dibs:"), err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
		}
		require.Equal(t, bounded && typeForm.MatchString(s), validateKnownType(s) == nil)
		require.Equal(t, err == nil || strings.HasPrefix(s, "dibs:") && bounded && typeForm.MatchString(s), quoteName(s) == s, "what is valid is shown as it is, and nothing else")
	})
}

// assigned maps code points without a meaning in Unicode to a letter.
func assigned(r rune) rune {
	if unicode.In(r, unicode.C, unicode.Z) && !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Z) || !unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.C) {
		return 'x'
	}
	return r
}

// A refused value of any Go type is shown as one short line.
func FuzzARefusedValueIsShownShort(f *testing.F) {
	f.Add("cat-\nlevel=error fake", 3)
	f.Add(strings.Repeat("x", 47)+"\u00e9", -1)
	for _, name := range tier.SeedNames() {
		f.Add(name, len(name))
	}
	f.Fuzz(func(t *testing.T, value string, number int) {
		kind := errors.New("a kind")
		want := ""
		if len(value) <= 48 {
			want = strconv.QuoteToGraphic(value)
		}
		for _, v := range []any{value, []byte(value), json.RawMessage(value), StreamName(value), Category(value), errors.New(value), Raw{Type: value}, []string{value, value}, map[string]string{value: value}, &value} {
			e := NewInvalidError("field", v, "rule")
			e.Kind = kind
			invalid := refusal(t, e, kind)
			require.Equal(t, -1, invalid.Index)
			require.LessOrEqual(t, len(invalid.Value), 48*len(`\x00`)+len(`""… (9223372036854775807 bytes)`))
			if _, isText := v.(string); isText && want != "" {
				require.Equal(t, want, invalid.Value)
				require.Equal(t, value, must.Do(strconv.Unquote(invalid.Value))(t))
			}
		}
		e := NewInvalidError("field", number, "rule")
		e.Kind = kind
		invalid := refusal(t, at(number, e), kind)
		require.Equal(t, number, invalid.Index)
		require.Equal(t, strconv.Itoa(number), invalid.Value)
	})
}

func FuzzNumbersHaveTheirBounds(f *testing.F) {
	for _, n := range []int64{math.MinInt64, -3, -2, -1, 0, 1, 2, 1024, 1025, 10_000, 10_001, 32_768, math.MaxInt32 + 1, math.MaxInt64} {
		f.Add(n, int(n), int(n), "account", 1)
		f.Add(int64(0), 1, 2, "a-1", int(min(max(n, 0), 200)))
	}
	f.Add(int64(1<<63-1), 1<<63-1, 1<<63-1, "account", 101) // greatest
	f.Add(int64(-1<<63), -1<<63, -1, "account", 1)          // least
	f.Fuzz(func(t *testing.T, n int64, size, member int, correlation string, types int) {
		requireBound := func(ok bool, err, kind error, value string) {
			t.Helper()
			require.Equal(t, ok, err == nil, "%v", err)
			if err != nil {
				require.Equal(t, value, refusal(t, err, kind).Value)
			}
		}
		decimal := strconv.FormatInt(n, 10)
		requireBound(n >= -2, validateExpected(Version(n)), ErrInvalid, decimal)
		requireBound(n >= 0, validateFrom(Version(n)), ErrInvalid, decimal)
		requireBound(n >= 0, validateFrom(GlobalPosition(n)), ErrInvalid, decimal)
		requireBound(1 <= size && size <= MaxReadMessages, validateLimit(size), ErrInvalid, strconv.Itoa(size))
		require.Positive(t, max(1, GlobalPosition(max(n, 0)).Next()), "it does not wrap")
		require.GreaterOrEqual(t, GlobalPosition(max(n, 0)).Next(), GlobalPosition(max(n, 0)))

		filter := Filter{Correlation: Category(correlation), GroupSize: size, GroupMember: member, Types: make([]string, min(max(types, 0), 1000))}
		for i := range filter.Types {
			filter.Types[i] = "Opened"
		}
		wrong := Category(correlation).Validate()
		grouped := size == 0 && member == 0 || 1 <= size && size <= maxGroupSize && 0 <= member && member < size
		err := filter.Validate()
		require.Equal(t, (correlation == "" || wrong == nil) && len(filter.Types) <= maxFilterTypes && grouped, err == nil, "%v", err)
		if all, is := err.(interface{ Unwrap() []error }); is {
			for _, one := range all.Unwrap() {
				requireShort(t, one, ErrInvalid)
			}
		}
	})
}

// Of a hash the member is the remainder of its absolute value, exactly.
func FuzzEveryHashHasAMember(f *testing.F) {
	for _, hash := range []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, math.MaxInt64} {
		f.Add(hash, 3, "123")
		f.Add(hash, maxGroupSize, "a+b")
	}
	f.Add(int64(-1<<63), 1024, "1") // least
	f.Fuzz(func(t *testing.T, hash int64, size int, id string) {
		if size < 1 {
			return
		}
		absolute := new(big.Int).Abs(big.NewInt(hash))
		require.Equal(t, new(big.Int).Mod(absolute, big.NewInt(int64(size))).Int64(), int64(groupMember(hash, size)))

		name := Category("account").Stream(id)
		member := name.GroupMember(size)
		require.Equal(t, member, StreamName("other-"+name.cardinalPart()+"+x").GroupMember(size), "the category does not count, nor what follows the cardinal id")
	})
}

// The header of W3C's trace context, field by field.
func FuzzTraceIsOneOrRefused(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "rojo=00f067aa0ba902b7")
	f.Add("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
	f.Add("00-00000000000000000000000000000000-b7ad6b7169203331-01", "")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "")
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", "") // line end
	f.Add("00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01", "")   // upper case
	f.Fuzz(func(t *testing.T, parent, state string) {
		parts := strings.Split(parent, "-")
		ok := len(parts) == 4 && len(state) <= 512
		for i, size := range []int{1, 16, 8, 1} {
			if !ok {
				break
			}
			raw, err := hex.DecodeString(parts[i])
			zero := strings.Trim(parts[i], "0") == "" && size > 1
			ok = err == nil && len(raw) == size && strings.ToLower(parts[i]) == parts[i] && !zero
		}
		ok = ok && parts[0] != "ff"
		m := Metadata{Properties: Properties{"kept": "x", traceState: "old"}}
		err := m.SetTrace(parent, state)
		if parent == "" {
			require.NoError(t, err)
			require.Equal(t, Properties{"kept": "x"}, m.Properties)
			return
		}
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			requireShort(t, err, ErrInvalid)
			require.Equal(t, Properties{"kept": "x", traceState: "old"}, m.Properties, "nothing is half done")
			return
		}
		gotParent, gotState := m.Trace()
		require.Equal(t, parent, gotParent)
		require.Equal(t, state, gotState)
	})
}
