package check

import (
	"cmp"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/soak/history"
)

// Two ways to decide, and the second with any cuts, agree about any history of one stream.
func TestPorcupineTheSweepAndAnyCutAgree(t *testing.T) {
	t.Parallel()
	yes, no := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var steps []step
		version := int64(-1)
		for range rapid.IntRange(1, 6).Draw(t, "writes") {
			s := step{first: version + 1, last: version + rapid.Int64Range(1, 2).Draw(t, "messages")}
			version = s.last
			steps = append(steps, s)
		}
		for range rapid.IntRange(0, 6).Draw(t, "questions") {
			steps = append(steps, step{first: -1, last: rapid.Int64Range(-1, version).Draw(t, "version")})
		}
		for i := range steps {
			// Near to where it belongs, so that some of these histories are right.
			steps[i].time = max(1, 3*steps[i].rank()+rapid.Int64Range(-5, 5).Draw(t, "time"))
			steps[i].end = steps[i].time + rapid.Int64Range(1, 12).Draw(t, "takes")
			if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 && steps[i].wrote() {
				steps[i].end = history.Never
			}
		}
		slices.SortFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.time, b.time)) })

		whole := chunkIsLinearizable(steps, -1) == porcupine.Ok
		a, b := conflicting(steps, -1)
		require.Equal(t, whole, a == nil, "the sweep: %+v %+v", a, b)
		for size := 1; size <= len(steps); size++ {
			a, b := linearizable(steps, size)
			require.Equal(t, whole, a == nil, "chunks of %d: %+v %+v", size, a, b)
		}
		if whole {
			yes++
		} else {
			no++
		}
	})
	require.Positive(t, yes)
	require.Positive(t, no)
}
