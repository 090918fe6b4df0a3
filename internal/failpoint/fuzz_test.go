//go:build failpoint

package failpoint

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is said is done, wherever among it the seed is: always, at one turn, or at
// the same turns again; or it is refused.
func FuzzASpecificationIsReadOrRefused(f *testing.F) {
	f.Fuzz(func(t *testing.T, spec string) {
		parsed, err := parse(spec)
		if err != nil {
			require.Nil(t, parsed)
			require.ErrorContains(t, err, Variable+": ")
			return
		}
		var seeds, rest []string
		said := map[string]string{}
		for item := range strings.SplitSeq(spec, ",") {
			switch name, value, _ := strings.Cut(item, "="); {
			case item == "":
			case name == "seed":
				seeds = append(seeds, item)
			default:
				rest = append(rest, item)
				said[name] = value
			}
		}
		require.Len(t, parsed, len(said))
		before, err := parse(strings.Join(slices.Concat(seeds, rest), ","))
		require.NoError(t, err)
		after, err := parse(strings.Join(slices.Concat(rest, seeds), ","))
		require.NoError(t, err)
		for name, value := range said {
			do, often, _ := strings.Cut(value, ":")
			p := parsed[name]
			require.NotNil(t, p)
			require.Contains(t, []string{"kill", "err", "sleep"}, do)
			require.Equal(t, do, p.do)
			for turn := 1; turn <= 50; turn++ {
				hit, wait := p.pass()

				require.True(t, 0 <= wait && wait < 200*time.Millisecond)
				requireTurn(t, often, turn, hit)
				for _, same := range []map[string]*point{before, after} {
					hitThere, waitThere := same[name].pass()
					require.Equal(t, hit, hitThere)
					require.Equal(t, wait, waitThere)
				}
			}
		}
	})
}

// requireTurn demands that a point was hit at a turn if what was said leaves no choice.
func requireTurn(t *testing.T, often string, turn int, hit bool) {
	t.Helper()
	if n, counts := strings.CutPrefix(often, "@"); counts {
		only, err := strconv.Atoi(n)
		require.NoError(t, err)
		require.Positive(t, only)
		require.Equal(t, turn == only, hit)
		return
	}
	chance, err := strconv.ParseFloat(often, 64)
	require.NoError(t, err)
	require.True(t, 0 < chance && chance <= 1, often)
	if chance == 1 {
		require.True(t, hit)
	}
}
