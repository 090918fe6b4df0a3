package storetest

import (
	"fmt"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of writes to one stream: that what was acknowledged stays, at dense positions, and that
// a refused write leaves nothing. Below are the tests of batches.
var writeTests = []test{
	{"S1/AcknowledgedIsThereAfterReopening", reopening, func(t *testing.T, f *fixture) {
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, opened(2)...)
		last := f.write(t, stream, 1, Opened{Name: "last"})
		before := f.read(t, stream)

		f.driver = f.options.Reopen(t, f.driver)

		require.Equal(t, before, f.read(t, stream))
		require.Equal(t, before, f.readCategory(t, f.category, messagestore.Filter{}))
		f.store = testkit.Must(messagestore.New(f.driver, nil))
		next := f.write(t, stream, last.Version, Opened{Name: "after"})
		require.Greater(t, next.GlobalPosition, last.GlobalPosition)
	}},
	{"S3/PositionsAreDense", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		version := messagestore.NoStream
		for n := range 5 {
			version = f.write(t, stream, version, opened(n+1)...).Version
			f.write(t, f.stream("other"), messagestore.AnyVersion, Opened{})
		}

		messages := f.read(t, stream)
		require.Len(t, messages, 15)
		requireDense(t, messages)
	}},
	{"S3/WriteSaysWhere", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		first := raw("Opened", `{"name":"first"}`)
		one := f.write(t, stream, messagestore.NoStream, first)
		two := f.write(t, stream, one.Version, opened(2)...)

		require.Equal(t, messagestore.Version(0), one.Version)
		require.Equal(t, messagestore.Version(2), two.Version)
		require.Equal(t, []uuid.UUID{first.ID}, one.IDs)
		require.Positive(t, one.GlobalPosition)

		messages := f.read(t, stream)
		require.Len(t, messages, 3)
		for _, written := range []messagestore.Written{one, two} {
			last := messages[written.Version]
			require.Equal(t, stream, written.Stream)
			require.Equal(t, last.GlobalPosition, written.GlobalPosition, "the global position is the last message's")
			require.Equal(t, ids(messages[int(written.Version)+1-len(written.IDs):written.Version+1]), written.IDs)
			require.False(t, written.Duplicate)
		}
	}},
	{"S3/WrongVersionWritesNothing", 0, func(t *testing.T, f *fixture) {
		for _, messages := range []int{0, 3} {
			stream := f.stream("with", string(rune('0'+messages)))
			f.fill(t, stream, messages)
			for _, wrong := range wrongVersions(messages) {
				_, err := f.store.Write(t.Context(), stream, wrong, Opened{Name: "late"}, Opened{Name: "later"})

				require.ErrorIs(t, err, messagestore.ErrVersionConflict, "expected version %v of %d messages", wrong, messages)
				require.Len(t, f.read(t, stream), messages)
			}
		}
	}},
	{"S3/ConflictTellsStreamExpectedAndActual", 0, func(t *testing.T, f *fixture) {
		for _, messages := range []int{0, 3} {
			stream := f.stream("with", string(rune('0'+messages)))
			f.fill(t, stream, messages)
			for _, wrong := range wrongVersions(messages) {
				_, err := f.store.Write(t.Context(), stream, wrong, Opened{Name: "late"})

				require.Equal(t, messagestore.VersionConflictError{
					Stream: stream, Expected: wrong, Actual: messagestore.Version(messages - 1),
				}, conflict(t, err))
			}
		}
	}},
	{"S3/AnyVersionWritesToTheEnd", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		require.Equal(t, messagestore.Version(0), f.write(t, stream, messagestore.AnyVersion, Opened{Name: "0"}).Version)
		require.Equal(t, messagestore.Version(2), f.write(t, stream, messagestore.AnyVersion, Opened{Name: "1"}, Opened{Name: "2"}).Version)
		require.Equal(t, messagestore.Version(3), f.write(t, stream, 2, Opened{Name: "3"}).Version)

		require.Equal(t, numbers(0, 3), names(t, f.read(t, stream)))
	}},
	{"S3/StreamsHaveVersionsOfTheirOwn", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream("1"), 3)

		other := f.write(t, f.stream("2"), messagestore.NoStream, Opened{})

		require.Equal(t, messagestore.Version(0), other.Version)
		elsewhere := f.write(t, f.category.WithType("command").Stream("1"), messagestore.NoStream, Opened{})
		require.Equal(t, messagestore.Version(0), elsewhere.Version)
	}},
	// No way of reading shows a trace of a refused write.
	{"S4/RefusedWriteIsNeverSeen", 0, func(t *testing.T, f *fixture) {
		stream := f.stream()
		first := raw("Opened", `{"name":"first"}`)
		f.write(t, stream, messagestore.NoStream, first)

		late, taken := raw("Late", `{}`), raw("Late", `{}`)
		require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), stream, messagestore.NoStream, late)), messagestore.ErrVersionConflict)
		_, err := f.store.Write(t.Context(), stream, 0, taken, messagestore.Envelope{ID: first.ID, Body: Opened{Name: "changed"}})
		require.ErrorIs(t, err, messagestore.ErrIDConflict)
		require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), f.stream("2"), 5, late)), messagestore.ErrVersionConflict)

		require.Len(t, f.read(t, stream), 1)
		require.Empty(t, f.read(t, f.stream("2")))
		require.Len(t, f.readCategory(t, f.category, messagestore.Filter{}), 1)
		require.Empty(t, testkit.Do(f.driver.Find(t.Context(), stream, []uuid.UUID{late.ID, taken.ID}))(t))
		require.ErrorIs(t, testkit.ErrorOf(f.store.LastOfType(t.Context(), stream, "Late")), messagestore.ErrNotFound)
		require.Equal(t, messagestore.NoStream, testkit.Do(f.store.Version(t.Context(), f.stream("2")))(t))

		// A refused id is free again.
		require.False(t, f.write(t, stream, 0, late).Duplicate)
	}},
}

// wrongVersions are the expected versions that a stream with this many messages refuses.
func wrongVersions(messages int) []messagestore.Version {
	if messages == 0 {
		return []messagestore.Version{0, 1, math.MaxInt64}
	}
	last := messagestore.Version(messages - 1)
	return []messagestore.Version{messagestore.NoStream, last - 1, last + 1, last + 2, math.MaxInt64 - 1, math.MaxInt64}
}

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

		require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), stream, messagestore.NoStream, opened(3)...)), messagestore.ErrVersionConflict)
		require.Len(t, f.read(t, stream), 1)

		// The last message of the batch cannot be written.
		changed := messagestore.Envelope{ID: first.ID, Body: Opened{Name: "changed"}}
		require.ErrorIs(t, testkit.ErrorOf(f.store.Write(t.Context(), stream, 0, append(opened(3), changed)...)), messagestore.ErrIDConflict)
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
			testkit.Do(fmt.Sscan(all[at], &writer, &batch, &i))(t)
			for i := range size {
				require.Equal(t, fmt.Sprint(writer, batch, i), all[at+i], "a batch has no message of another inside it")
			}
		}
	}},
}
