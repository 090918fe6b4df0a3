package intent_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestACorruptStreamHidesNoIntent(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m, err := intent.New(store, "payment:intent", nil)
	require.NoError(t, err)
	for i := range 12 {
		_, err := store.Write(t.Context(), messagestore.StreamName(fmt.Sprintf("payment:intent-s+corrupt%02d", i)), messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
	for _, key := range []string{"corrupt11", "a"} { // the last message decides
		_, _, err = store.TryWrite(t.Context(), messagestore.StreamName("payment:intent-s+"+key), messagestore.AnyVersion,
			intentlog.Reserved{Grant: intentlog.Grant{Session: "A", Attempt: 1, TTL: 60_000, Content: "c"}})
		require.NoError(t, err)
	}

	all, err := m.List(t.Context(), intent.Filter{})

	require.Len(t, all, 2)
	require.ErrorIs(t, err, intent.ErrCorrupt)
	require.ErrorContains(t, err, "payment:intent-s+corrupt00@0: a message of the type")
	require.ErrorContains(t, err, "; and 1 more")
	require.NotContains(t, err.Error(), "corrupt11")
	none, err := m.List(t.Context(), intent.Filter{Scope: "other"})
	require.NoError(t, err, "a stream of another scope is not read")
	require.Empty(t, none)
}
