package outbox_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

// A fakeBank is a sink that takes messages from a time on.
type fakeBank struct {
	opens time.Time
	taken []string
}

func (b *fakeBank) Send(_ context.Context, m *outbox.Message) error {
	if time.Now().Before(b.opens) {
		return errors.New("the bank is closed")
	}
	b.taken = append(b.taken, string(m.Data))
	return nil
}

func TestPaymentsOfAnAccountReachTheBankInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := messagestore.New(memory.New(), nil)
		require.NoError(t, err)
		bank := &fakeBank{opens: time.Now().Add(time.Minute)}
		relay, err := outbox.New(store, "payments:outgoing", "tobank", bank, &outbox.Config{Concurrency: 1})
		require.NoError(t, err)
		for _, amount := range []int{7, 12} {
			_, err = store.Write(t.Context(), "payments:outgoing-42", messagestore.AnyVersion, Paid{amount})
			require.NoError(t, err)
		}

		require.NoError(t, relay.CatchUp(t.Context())) // until the bank has all

		require.Equal(t, []string{`{"amount":7}`, `{"amount":12}`}, bank.taken)
		require.Positive(t, relay.Stats().Failed)
		require.Zero(t, relay.Stats().Dead)
	})
}
