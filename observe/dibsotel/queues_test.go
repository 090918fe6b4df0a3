package dibsotel_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/observe/dibsotel"
	"github.com/dibs-go/dibs/queue"
)

func TestTheQueuesAreThoseOfTheStore(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	mail := testkit.Must(queue.New(d.store, seats, &queue.Config{Name: "mail"}))
	for _, key := range []string{"ann", "ann", "bob"} {
		testkit.Must(mail.Insert(t.Context(), held{}, &queue.InsertOpts{Key: key}))
	}
	jobs := testkit.Must(mail.Receive(t.Context(), 10, nil))
	require.Len(t, jobs, 2)
	require.NoError(t, jobs[1].Bury(t.Context(), errors.New("no such person")))
	stop, err := dibsotel.ObserveQueues(d.store, d.config)
	require.NoError(t, err)

	of := key(attribute.String("dibs.category", "seat"), attribute.String("dibs.queue", "mail"))
	for name, want := range map[string]float64{"open": 2, "waiting": 0, "out": 1, "later": 0, "due": 0, "held": 1, "suspended": 0, "dead": 1, "paused": 0} {
		sums := d.sums(t, "dibs.queue."+name)
		require.Contains(t, sums, of, name)
		require.InDelta(t, want, sums[of], 0, name)
	}
	require.Positive(t, d.sums(t, "dibs.queue.oldest_seconds")[of])

	stop()
	require.Empty(t, d.sums(t, "dibs.queue.open"))
}

func TestAStoreWithoutQueuesIsRefused(t *testing.T) {
	t.Parallel()
	_, err := dibsotel.ObserveQueues(nil, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = dibsotel.ObserveQueues(testkit.Must(messagestore.New(struct{ messagestore.Driver }{memory.New()}, nil)), nil)
	require.ErrorIs(t, err, messagestore.ErrNotSupported)
}
