package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneWhoHadTheLockTwiceLeavesItToOthers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	turns := turns{looked: now}
	commit := func(dataVersion int64) {
		turns.took(dataVersion, now)
		turns.released = now
	}

	commit(1)
	commit(1)
	require.Zero(t, turns.pause(now), "there is nobody else")
	commit(2)
	require.Zero(t, turns.pause(now), "another had a turn before this one")
	commit(2)
	require.Equal(t, turnPause, turns.pause(now))
	require.Equal(t, turnPause/2, turns.pause(now.Add(turnPause/2)))
	require.Zero(t, turns.pause(now.Add(turnPause)))

	now = now.Add(othersRemain + time.Millisecond)
	commit(2)
	require.Equal(t, turnPause, turns.pause(now), "to see whether anybody is there")
	commit(2)
	require.Zero(t, turns.pause(now), "there was not")
	turns.saw(now)
	require.Equal(t, turnPause, turns.pause(now), "there is: the lock was met")
}
