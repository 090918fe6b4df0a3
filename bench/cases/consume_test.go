package cases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

func TestOrderRefusesWhatIsNotNext(t *testing.T) {
	o := newOrder([]messagestore.StreamName{"account-1", "account-2"})
	hand := func(stream messagestore.StreamName, position messagestore.Version) error {
		return o.Handle(t.Context(), &messagestore.Message{Stream: stream, Position: position})
	}
	require.NoError(t, hand("account-1", 0))
	require.NoError(t, hand("account-2", 0))
	require.NoError(t, hand("account-1", 1))

	require.Error(t, hand("account-1", 1), "twice")
	require.Error(t, hand("account-2", 2), "too early")
	require.Error(t, hand("account-3", 0), "of another stream")
	require.Equal(t, int64(3), o.handled())
}
