package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of trimming checkpoints: that the last ones stay, and that nothing else is removed.
var trimTests = []test{
	{"Trim/KeepsTheLastCheckpoints", 0, func(t *testing.T, f *fixture) {
		stream := f.checkpoints(t, 0, minCheckpoints+30)
		removed := testkit.Do(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints))(t)
		require.Equal(t, int64(30), removed)

		left := f.read(t, stream)
		require.Len(t, left, minCheckpoints)
		for i, m := range left {
			require.Equal(t, messagestore.Version(30+i), m.Position)
			require.JSONEq(t, fmt.Sprintf(`{"position":%d}`, 30+i), string(m.Data))
		}
		removed = testkit.Do(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints))(t)
		require.Zero(t, removed)
		removed = testkit.Do(f.store.TrimCheckpoints(t.Context(), f.category.WithType("position").Stream("none").With("0"), minCheckpoints))(t)
		require.Zero(t, removed)
	}},
	{"Trim/VersionsGoOn", 0, func(t *testing.T, f *fixture) {
		const n = minCheckpoints + 5
		stream := f.checkpoints(t, 0, n)
		for round := range 3 {
			testkit.Do(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints))(t)
			version := testkit.Do(f.store.Version(t.Context(), stream))(t)
			require.Equal(t, messagestore.Version(n-1+round), version)

			require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), stream, version-1, raw(removal.CheckpointType, `{"position":1}`))), messagestore.ErrVersionConflict)
			_, err := f.store.Write(t.Context(), stream, messagestore.NoStream, raw(removal.CheckpointType, `{"position":1}`))
			require.ErrorIs(t, err, messagestore.ErrVersionConflict)
			written := f.write(t, stream, version, raw(removal.CheckpointType, `{"position":1}`))
			require.Equal(t, version+1, written.Version)
		}
	}},
	{"Trim/ReadersGoOnBehindIt", 0, func(t *testing.T, f *fixture) {
		stream := f.checkpoints(t, 0, minCheckpoints+20)
		before := f.readCategory(t, stream.Category(), messagestore.Filter{})
		testkit.Do(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints))(t)

		require.Equal(t, before[20:], f.readCategory(t, stream.Category(), messagestore.Filter{}))
		require.Equal(t, before[20:], f.read(t, stream))
		var backwards []*messagestore.Message
		for m, err := range f.store.ReadStreamBackwards(t.Context(), stream, 21) {
			require.NoError(t, err)
			backwards = append(backwards, m)
		}
		require.Equal(t, []*messagestore.Message{before[21], before[20]}, backwards)
		var behind []*messagestore.Message
		for m, err := range f.store.ReadStream(t.Context(), stream, minCheckpoints+18) {
			require.NoError(t, err)
			behind = append(behind, m)
		}
		require.Equal(t, before[len(before)-2:], behind)
		require.Equal(t, before[len(before)-1], testkit.Do(f.store.Last(t.Context(), stream))(t))
	}},
	{"Trim/LeavesOtherStreamsAlone", 0, func(t *testing.T, f *fixture) {
		stream, other := f.checkpoints(t, 0, minCheckpoints+10), f.checkpoints(t, 1, minCheckpoints+10)
		f.write(t, f.stream(), messagestore.NoStream, Opened{})
		before := f.read(t, other)
		testkit.Do(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints))(t)
		require.Equal(t, before, f.read(t, other))
		require.Len(t, f.read(t, f.stream()), 1)
	}},
	{"Trim/RefusesWhatIsNoCheckpoint", 0, func(t *testing.T, f *fixture) {
		stream := f.category.WithType("position").Stream("accounts").With("2")
		f.write(t, stream, messagestore.NoStream, raw("Opened", `{}`))
		var bodies []messagestore.Body
		for range minCheckpoints + 10 {
			bodies = append(bodies, raw(removal.CheckpointType, `{"position":1}`))
		}
		f.write(t, stream, 0, bodies...)

		require.ErrorIs(t, testkit.ErrorOf(f.store.TrimCheckpoints(t.Context(), stream, minCheckpoints)), messagestore.ErrInvalid)
		if !f.options.OneUser { // a transaction may be over by now
			require.Len(t, f.read(t, stream), minCheckpoints+11)
		}
	}},
}

// minCheckpoints is the least number of checkpoints that a trim keeps.
const minCheckpoints = 100

func (f *fixture) checkpoints(t *testing.T, generation, n int) messagestore.StreamName {
	t.Helper()
	stream := f.category.WithType("position").Stream("accounts").With(fmt.Sprint(generation))
	var bodies []messagestore.Body
	for i := range n {
		bodies = append(bodies, raw(removal.CheckpointType, fmt.Sprintf(`{"position":%d}`, i)))
	}
	f.write(t, stream, messagestore.NoStream, bodies...)
	return stream
}
