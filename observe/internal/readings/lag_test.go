package readings

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const seats messagestore.Category = "seat"

type held struct{}

func (held) MessageType() string { return "Held" }

func TestEachConsumerHasItsOwnLag(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		write := func() {
			_, err := store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
			require.NoError(t, err)
		}
		newConsumer := func(name string) *consumer.Consumer {
			return testkit.Must(consumer.New(store, seats, name, handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
		}
		early, late, never := newConsumer("early"), newConsumer("late"), newConsumer("never")
		write()
		require.NoError(t, early.CatchUp(t.Context()))
		write()
		write()
		require.NoError(t, late.CatchUp(t.Context()))
		time.Sleep(time.Second)
		write()
		time.Sleep(time.Second)

		all, err := LagOf(t.Context(), store, []*consumer.Consumer{late, never, early})

		require.NoError(t, err)
		require.Len(t, all, 3)
		require.Equal(t, []*consumer.Consumer{late, never, early}, []*consumer.Consumer{all[0].Consumer, all[1].Consumer, all[2].Consumer})
		require.Equal(t, int64(1), all[0].Messages)
		require.Equal(t, Lag{Consumer: never}, all[1])
		require.Equal(t, int64(3), all[2].Messages)
		require.InDelta(t, 2, all[2].Seconds, 1e-9)
		require.InDelta(t, 1, all[0].Seconds, 1e-9)
	})
}

// Consumers of two categories, and of another client.
func TestACategoryIsAskedForOnce(t *testing.T) {
	t.Parallel()
	driver := &counting{Driver: memory.New(), reads: map[messagestore.Category]int{}}
	store := testkit.Must(messagestore.New(driver, nil))
	for category, messages := range map[messagestore.Category]int{seats: 2, "row": 5} {
		for range messages {
			_, err := store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, held{})
			require.NoError(t, err)
		}
	}
	newConsumer := func(category messagestore.Category, name string) *consumer.Consumer {
		return testkit.Must(consumer.New(store, category, name, handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
	}
	join := func(c *consumer.Consumer) *consumer.Consumer {
		require.NoError(t, c.CatchUp(t.Context()))
		return c
	}
	all := []*consumer.Consumer{join(newConsumer(seats, "a")), join(newConsumer("row", "a")), join(newConsumer(seats, "b"))}
	for category, messages := range map[messagestore.Category]int{seats: 2, "row": 5} {
		for range messages {
			_, err := store.Write(t.Context(), category.Stream("1"), messagestore.AnyVersion, held{})
			require.NoError(t, err)
		}
	}
	// A consumer of Eventide, of the name of one that never started.
	_, err := store.Write(t.Context(), seats.WithType("position").Stream("never"), messagestore.AnyVersion, eventides{Position: 1})
	require.NoError(t, err)
	clear(driver.reads)
	_, err = LagOf(t.Context(), store, all[:1])
	require.NoError(t, err)
	once := driver.total()
	clear(driver.reads)

	never := newConsumer(seats, "never")
	lags, err := LagOf(t.Context(), store, append(all, never))

	require.NoError(t, err)
	require.Equal(t, Lag{Consumer: never}, lags[3])
	require.Equal(t, []int64{2, 5, 2}, []int64{lags[0].Messages, lags[1].Messages, lags[2].Messages})
	require.Equal(t, []int{0, 0, 0}, []int{lags[0].Members, lags[1].Members, lags[2].Members})
	require.LessOrEqual(t, driver.total(), 2*once, "each category once")

	for _, failing := range []*counting{{Driver: driver.Driver, noTime: true}, {Driver: driver.Driver, noReads: true}} {
		_, err := LagOf(t.Context(), testkit.Must(messagestore.New(failing, nil)), all)
		require.ErrorIs(t, err, errAway)
	}
}

type eventides struct {
	Position int64 `json:"position"`
}

func (eventides) MessageType() string { return "Recorded" }

var errAway = errors.New("the store is away")

// A counting driver counts the pages that are read of each category, or fails.
type counting struct {
	*memory.Driver
	reads           map[messagestore.Category]int
	noTime, noReads bool
}

func (d *counting) total() (n int) {
	for _, reads := range d.reads {
		n += reads
	}
	return n
}

func (d *counting) Now(ctx context.Context) (time.Time, error) {
	if d.noTime {
		return time.Time{}, errAway
	}
	return d.Driver.Now(ctx)
}

func (d *counting) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if d.noReads {
		return messagestore.CategoryPage{}, errAway
	}
	d.reads[q.Category]++
	return d.Driver.ReadCategory(ctx, q)
}

func TestTheLagOfAConsumerIsThatOfAllItsReplicas(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, test := range map[string]struct {
		status operate.Status
		want   Lag
	}{
		"none": {
			operate.Status{Parked: 4, Lag: 6, Oldest: now.Add(-3 * time.Second)},
			Lag{Messages: 6, Seconds: 3, Parked: 4},
		},
		"replicas that hold all": {
			operate.Status{Lag: 9, Replicas: []operate.Replica{{Lag: 1}, {Lag: 2, Gone: true}, {Lag: 0}}},
			Lag{Messages: 3, Members: 3, Gone: 1},
		},
		"replicas, and free slots": {
			operate.Status{Free: 1, Lag: 9, Replicas: []operate.Replica{{Lag: 1}, {Lag: 2}}},
			Lag{Messages: 9, Members: 2},
		},
		"replicas, free slots, and more messages since": {
			operate.Status{Free: 1, Lag: 2, Replicas: []operate.Replica{{Lag: 1}, {Lag: 2}}},
			Lag{Messages: 3, Members: 2},
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
