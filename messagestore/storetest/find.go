package storetest

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var findTests = []test{
	{"Find/ReturnsThoseOfTheStreamInOrder", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(5)...)
		elsewhere := f.write(t, f.stream("other"), messagestore.NoStream, Opened{})
		all := f.read(t, stream)

		found := must.Do(f.driver.Find(t.Context(), stream, []uuid.UUID{all[3].ID, elsewhere.IDs[0], all[1].ID, uuid.New(), all[4].ID}))(t)

		require.Equal(t, []*messagestore.Message{all[1], all[3], all[4]}, found)

		found = must.Do(f.driver.Find(t.Context(), stream, ids(all)))(t)
		require.Equal(t, all, found)
	}},
	{"Find/NothingIsNoError", 0, func(t *testing.T, f *fixture) {
		for range 2 {
			for _, ids := range [][]uuid.UUID{nil, {uuid.New()}, {uuid.New(), uuid.New()}} {
				require.Empty(t, must.Do(f.driver.Find(t.Context(), f.stream(), ids))(t))
			}
			f.fill(t, f.stream(), 1)
		}
	}},
}
