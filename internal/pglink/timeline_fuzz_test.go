package pglink

import (
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A timeline is the second number of an epoch, or unknown. The latest of two never decreases.
func FuzzATimelineIsTheEpochsOrNone(f *testing.F) {
	form := regexp.MustCompile(`(?s)^([^/]*)/([0-9A-Fa-f]+)(/.*)?$`)
	want := func(epoch string) *timeline {
		match := form.FindStringSubmatch(epoch)
		if match == nil {
			return nil
		}
		number, ok := new(big.Int).SetString(match[2], 16)
		if !ok || number.Cmp(big.NewInt(math.MaxUint32)) > 0 {
			return nil
		}
		return &timeline{match[1], number.Uint64()}
	}
	f.Add("7408123456789012345/00000005/0.", "7408123456789012346/00000001/0.")  // another system
	f.Add("7408123456789012345/FFFFFFFF/0.", "7408123456789012345/100000000/0.") // greatest
	f.Add("7408123456789012345/00000001/0.", "7408123456789012345//0.")          // in recovery
	f.Add("7408123456789012345/00000003/0.", "7408123456789012345/00000002/0.")  // left
	f.Add("/"+strings.Repeat("0", 40)+"1", "\xff/1\n")                           // many zeros
	f.Add("", "00000001")                                                        // no epoch
	f.Add("//0.", "//0.")                                                        // no rights
	f.Add("7408123456789012345/0x1/0.", "7408123456789012345/+1")                // other spellings
	f.Add("7408123456789012345/00000001/0.", "7408123456789012345/00000002/0.")  // promoted
	// raised
	f.Add("7408123456789012345/0000000A/0.", "7408123456789012345/0000000A/1.0198c6b1-4b4c-7000-8000-000000000001")
	f.Fuzz(func(t *testing.T, before, after string) {
		one, two := timelineOf(before), timelineOf(after)
		require.Equal(t, want(before), one)
		require.Equal(t, want(after), two)

		require.False(t, one.leftFor(one))
		require.False(t, one.leftFor(two) && two.leftFor(one))
		var l latest
		require.Equal(t, one, l.see(one))
		seen := two
		if two == nil || two.leftFor(one) {
			seen = one
		}
		require.Equal(t, seen, l.see(two))
		require.False(t, seen.leftFor(one))
		require.Equal(t, seen, l.see(nil), "what is not known says nothing")
	})
}
