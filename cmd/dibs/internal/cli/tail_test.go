package cli_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A counter counts the pages that are read.
type counter struct {
	*memory.Driver
	pages int
}

func (c *counter) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	c.pages++
	return c.Driver.ReadCategory(ctx, q)
}

func TestEndOfACategoryIsFoundInFewReads(t *testing.T) {
	t.Parallel()
	c := &counter{Driver: memory.New()}
	store := testkit.Must(messagestore.New(c, nil))
	want := messagestore.GlobalPosition(0)
	for range 3000 {
		c.pages = 0
		end, err := cli.EndOf(store, t.Context(), "account")
		require.NoError(t, err)
		require.Equal(t, want, end)
		require.Less(t, c.pages, 100)

		stream := messagestore.StreamName("account-1")
		if rand.IntN(3) > 0 {
			stream = "other-1"
		}
		written, err := store.Write(t.Context(), stream, messagestore.AnyVersion, messagestore.Raw{Type: "T", Data: []byte("{}")})
		require.NoError(t, err)
		if stream == "account-1" {
			want = written.GlobalPosition + 1
		}
	}
}
