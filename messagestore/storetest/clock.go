package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var clockTests = []test{
	// A message is stamped between two readings of the clock, the bounds included.
	{"Now/IsTheClockThatStampsMessages", 0, func(t *testing.T, f *fixture) {
		for range 3 {
			before := f.now(t)
			f.write(t, f.stream(), messagestore.AnyVersion, Opened{})
			after := f.now(t)

			messages := f.read(t, f.stream())
			stamped := messages[len(messages)-1].Time
			require.False(t, stamped.Before(before), "stamped %v, before %v", stamped, before)
			require.False(t, stamped.After(after), "stamped %v, after %v", stamped, after)
		}
	}},
	// A clock that a transaction stops would have leases never end in it.
	{"Now/IsTheTimeOfTheCall", 0, func(t *testing.T, f *fixture) {
		first := f.now(t)
		timer := time.NewTimer(2 * time.Millisecond)
		defer timer.Stop()
		<-timer.C

		second := f.now(t)

		require.Greater(t, second.Sub(first), time.Millisecond)
	}},
	{"Now/IsUTCInMicroseconds", 0, func(t *testing.T, f *fixture) {
		now := f.now(t)

		require.Equal(t, time.UTC, now.Location())
		require.Zero(t, now.Nanosecond()%1000)
		require.Less(t, time.Since(now).Abs(), 24*time.Hour)
	}},
}

func (f *fixture) now(t *testing.T) time.Time {
	t.Helper()
	return must.Do(f.store.Now(t.Context()))(t)
}
