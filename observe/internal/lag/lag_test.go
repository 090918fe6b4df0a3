package lag

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const seats messagestore.Category = "seat"

type held struct{}

func (held) MessageType() string { return "Held" }

func TestEachConsumerHasItsOwnLag(t *testing.T) {
	t.Parallel()
	store := messagestore.New(memory.New(), nil)
	write := func() {
		_, err := store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
		require.NoError(t, err)
	}
	newConsumer := func(name string) *consumer.Consumer {
		return consumer.New(store, seats, name, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil)
	}
	early, late, never := newConsumer("early"), newConsumer("late"), newConsumer("never")
	write()
	require.NoError(t, early.CatchUp(t.Context()))
	write()
	write()
	require.NoError(t, late.CatchUp(t.Context()))
	write()

	all, err := Of(t.Context(), store, []*consumer.Consumer{late, never, early})

	require.NoError(t, err)
	require.Len(t, all, 3)
	require.Equal(t, []*consumer.Consumer{late, never, early}, []*consumer.Consumer{all[0].Consumer, all[1].Consumer, all[2].Consumer})
	require.Equal(t, int64(1), all[0].Messages)
	require.Equal(t, Lag{Consumer: never}, all[1])
	require.Equal(t, int64(3), all[2].Messages)
	require.Greater(t, all[2].Seconds, all[0].Seconds)
	require.Positive(t, all[0].Seconds)
}

func TestTheLagOfAGroupIsThatOfAllItsMembers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, test := range map[string]struct {
		status operate.Status
		want   Lag
	}{
		"static": {
			operate.Status{Size: 2, Parked: 4, Members: []operate.Member{{Lag: 3, Oldest: now.Add(-time.Second)}, {Lag: 2, Oldest: now.Add(-3 * time.Second)}}},
			Lag{Messages: 5, Seconds: 3, Parked: 4, Members: 2},
		},
		"replicas that hold all": {
			operate.Status{Size: 1, Members: []operate.Member{{Lag: 9}}, Replicas: []operate.Replica{{Lag: 1}, {Lag: 2, Gone: true}, {Lag: 0}}},
			Lag{Messages: 3, Members: 3, Gone: 1},
		},
		"replicas, and free slots": {
			operate.Status{Size: 1, Free: 1, Members: []operate.Member{{Lag: 9}}, Replicas: []operate.Replica{{Lag: 1}, {Lag: 2}}},
			Lag{Messages: 9, Members: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l Lag
			l.add(test.status, now)
			require.Equal(t, test.want, l)
		})
	}
}
