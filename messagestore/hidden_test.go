package messagestore

import (
	"math"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// The tables are written out, so that they do not change under stored names. This
// is where a new release of Unicode in Go is noticed.
func TestHiddenCharactersAreThoseOfUnicode(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if 0xD800 <= r && r <= 0xDFFF {
			continue // not in valid UTF-8
		}
		want := unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
		got := false
		for _, h := range hidden {
			got = got || h[0] <= r && r <= h[1]
		}
		if want != got {
			require.Equal(t, want, got, "%U", r)
		}
		if isSpace(r) != unicode.Is(unicode.White_Space, r) {
			require.Equal(t, unicode.Is(unicode.White_Space, r), isSpace(r), "%U", r)
		}
	}
}

// The absolute value of the smallest hash overflows, in message-db with an error
// for every reader of the group.
func TestSmallestHashHasAMember(t *testing.T) {
	for size := 1; size <= MaxGroupSize; size++ {
		member := groupMember(math.MinInt64, size)
		require.GreaterOrEqual(t, member, 0)
		require.Less(t, member, size)
	}
	require.Equal(t, 2, groupMember(math.MinInt64, 3))
	require.Equal(t, 1, groupMember(math.MaxInt64, 3))
}
