package cases

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

func TestRowsAre450Bytes(t *testing.T) {
	r := &rows{}

	block, err := r.block()

	require.NoError(t, err)
	for _, m := range block {
		require.True(t, json.Valid(m.data))
		require.InDelta(t, 450, len(m.data)+len(m.metadata), 15)
	}
}

func TestRowsOfAStreamAlternateWithOthersAndAreInOrder(t *testing.T) {
	r := &rows{}

	first, err := r.block()
	require.NoError(t, err)
	second, err := r.block()
	require.NoError(t, err)

	o := newOrder(r.streams)
	all := append(first, second...)
	for i, m := range all {
		require.NoError(t, o.Handle(t.Context(), &messagestore.Message{Stream: m.stream, Position: messagestore.Version(m.position)}))
		if i > 0 {
			require.NotEqual(t, m.stream, all[i-1].stream)
		}
	}
	require.Equal(t, int64(2*rowsStreams*rowsPerStream), o.handled())
	require.Len(t, r.streams, 2*rowsStreams)
}
