package messagestore

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The absolute value of the smallest hash overflows, in message-db with an error
// for every reader of the group.
func TestSmallestHashHasAMember(t *testing.T) {
	for size := 1; size <= maxGroupSize; size++ {
		member := groupMember(math.MinInt64, size)
		require.GreaterOrEqual(t, member, 0)
		require.Less(t, member, size)
	}
	require.Equal(t, 2, groupMember(math.MinInt64, 3))
	require.Equal(t, 1, groupMember(math.MaxInt64, 3))
}
