package consumer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// The promises of position_test.go, of a member that has joined its group and then cannot write.

// afterJoining has the store refuse the checkpoints of a group once a member has joined.
func afterJoining(store *tap) {
	joined := false
	store.set(func(s *tap) {
		s.write = func(stream messagestore.StreamName) error {
			switch {
			case stream.ID() != "ledger+0+0":
				return nil
			case !joined:
				joined = true
				return nil
			}
			return errStore
		}
	})
}

func TestALastCheckpointOfAReplicaThatCannotBeWrittenIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		afterJoining(store)
		stop := running(t, newConsumer(t, store, &journal{}, nil))
		time.Sleep(time.Minute)
		start := time.Now()

		err := stop()

		require.ErrorIs(t, err, errStore)
		require.LessOrEqual(t, time.Since(start), 6*time.Second)
	})
}

func TestAReplicaThatCannotCheckpointDoesNotRunAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		for range 100 {
			write(t, store.Store, "account-1", Deposited{1})
		}
		afterJoining(store)
		c := newConsumer(t, store, &journal{}, &consumer.Config{CheckpointMessages: 10, BatchSize: 7})
		stop := running(t, c)
		time.Sleep(10 * time.Minute)
		require.Equal(t, int64(17), c.Stats().Handled)

		store.set(func(s *tap) { s.write = nil })
		time.Sleep(10 * time.Second)

		require.Equal(t, int64(100), c.Stats().Handled)
		require.NoError(t, stop())
	})
}
