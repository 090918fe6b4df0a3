package storetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var batchTests = []test{
	{"S2/BatchIsInOrder", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(10)...)

		require.Equal(t, numbers(0, 9), names(t, f.read(t, stream)))
		require.Equal(t, numbers(0, 9), names(t, f.readCategory(t, f.category, messagestore.Filter{})))
	}},
	{"S2/RefusedBatchWritesNothing", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		first := raw("Opened", `{"name":"first"}`)
		f.write(t, stream, messagestore.NoStream, first)

		require.ErrorIs(t, must.ErrorOf(f.store.Write(t.Context(), stream, messagestore.NoStream, opened(3)...)), messagestore.ErrVersionConflict)
		require.Len(t, f.read(t, stream), 1)

		// The last message of the batch cannot be written.
		changed := messagestore.Envelope{ID: first.ID, Body: Opened{Name: "changed"}}
		require.ErrorIs(t, must.ErrorOf(f.store.Write(t.Context(), stream, 0, append(opened(3), changed)...)), messagestore.ErrIDConflict)
		require.Len(t, f.read(t, stream), 1)
	}},
	{"S2/BatchOfTheMostMessages", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		written := f.write(t, stream, messagestore.NoStream, opened(messagestore.MaxWriteMessages)...)

		messages := f.read(t, stream)
		require.Len(t, messages, messagestore.MaxWriteMessages)
		requireDense(t, messages)
		require.Equal(t, written.IDs, ids(messages))
		require.Equal(t, numbers(0, messagestore.MaxWriteMessages-1), names(t, messages))
	}},
	{"S2/BatchesStayTogether", manyUsers, func(t *testing.T, f *fixture) {
		const writers, batches, size = 6, 15, 5
		stream := f.stream()
		race(t, writers, func(writer int) error {
			for batch := range batches {
				bodies := make([]messagestore.Body, size)
				for i := range bodies {
					bodies[i] = Opened{Name: fmt.Sprint(writer, batch, i)}
				}
				if _, err := f.store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...); err != nil {
					return err
				}
			}
			return nil
		})

		messages := f.read(t, stream)
		require.Len(t, messages, writers*batches*size)
		requireDense(t, messages)
		all := names(t, messages)
		for at := 0; at < len(all); at += size {
			var writer, batch, i int
			must.Do(fmt.Sscan(all[at], &writer, &batch, &i))(t)
			for i := range size {
				require.Equal(t, fmt.Sprint(writer, batch, i), all[at+i], "a batch has no message of another inside it")
			}
		}
	}},
}
