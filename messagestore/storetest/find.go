package storetest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

var findTests = []test{
	{"Find/ReturnsThoseOfTheStreamInOrder", findReturnsThoseOfTheStream, 0},
	{"Find/NothingIsNoError", findNothing, 0},
}

func findReturnsThoseOfTheStream(t *testing.T, f *fixture) {
	stream := f.stream()
	f.write(t, stream, messagestore.NoStream, opened(5)...)
	elsewhere := f.write(t, f.stream("other"), messagestore.NoStream, Opened{})
	all := f.read(t, stream)

	found, err := f.driver.Find(t.Context(), stream, []uuid.UUID{all[3].ID, elsewhere.IDs[0], all[1].ID, uuid.New(), all[4].ID})

	require.NoError(t, err)
	require.Equal(t, []*messagestore.Message{all[1], all[3], all[4]}, found)

	found, err = f.driver.Find(t.Context(), stream, ids(all))
	require.NoError(t, err)
	require.Equal(t, all, found)
}

func findNothing(t *testing.T, f *fixture) {
	for range 2 {
		for _, ids := range [][]uuid.UUID{nil, {uuid.New()}, {uuid.New(), uuid.New()}} {
			found, err := f.driver.Find(t.Context(), f.stream(), ids)
			require.NoError(t, err)
			require.Empty(t, found)
		}
		f.fill(t, f.stream(), 1)
	}
}
