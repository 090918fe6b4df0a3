package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

var checkTests = []test{
	{"Check/PassesWhereWritesDo", 0, func(t *testing.T, f *fixture) {
		for range 2 {
			require.NoError(t, f.store.Check(t.Context()))
			require.NoError(t, f.store.CheckReading(t.Context()))
			f.write(t, f.stream(), messagestore.AnyVersion, Opened{})
		}
	}},
	{"Check/WritesNothing", 0, func(t *testing.T, f *fixture) {
		first := f.write(t, f.stream(), messagestore.NoStream, Opened{})
		require.NoError(t, f.store.Check(t.Context()))
		require.NoError(t, f.store.CheckReading(t.Context()))

		all := f.readCategory(t, f.category, messagestore.Filter{})
		require.Len(t, all, 1)
		require.Equal(t, first.GlobalPosition, all[0].GlobalPosition)
		second := f.write(t, f.stream(), 0, Opened{})
		require.Equal(t, messagestore.Version(1), second.Version)
	}},
	{"Check/EndsWithItsContext", 0, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, f.store.Check(ctx), context.Canceled)
		require.ErrorIs(t, f.store.CheckReading(ctx), context.Canceled)
	}},
}
