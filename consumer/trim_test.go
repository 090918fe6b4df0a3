package consumer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// A consumer keeps its own house: its checkpoints do not grow for ever, and it is where it was
// after a restart.
func TestConsumerRemovesItsOldCheckpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := &consumer.Config{CheckpointMessages: 1}
		store := newStore()
		seen := &journal{}
		c := newConsumer(t, store, seen, config)
		stop := running(t, c)
		for range 2100 {
			write(t, store, "account-1", Deposited{1})
			time.Sleep(1100 * time.Millisecond)
		}
		stream := positions.Stream("ledger").With("0")
		version, err := store.Version(t.Context(), stream)
		require.NoError(t, err)
		require.Greater(t, version, messagestore.Version(2000))
		var first *messagestore.Message
		for first, err = range store.ReadStream(t.Context(), stream, 0) {
			require.NoError(t, err)
			break
		}
		require.Equal(t, messagestore.Version(1001), first.Position)
		require.NoError(t, stop())

		again := newConsumer(t, store, seen, config)
		require.NoError(t, again.CatchUp(t.Context()))
		require.Equal(t, c.Stats().Position, again.Stats().Position)
		require.Zero(t, again.Stats().Handled)
	})
}
