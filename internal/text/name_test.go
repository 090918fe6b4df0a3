package text

import (
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
		if IsSpace(r) != unicode.Is(unicode.White_Space, r) {
			require.Equal(t, unicode.Is(unicode.White_Space, r), IsSpace(r), "%U", r)
		}
	}
}
