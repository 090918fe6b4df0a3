package storetest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of writes of several streams: that all is written or nothing.
var atomicTests = []test{
	{"Atomic/AllIsWritten", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, a, 2)

		written := testkit.Do(f.store.WriteStreams(t.Context(),
			messagestore.To(b, messagestore.NoStream, opened(2)...), messagestore.To(a, 1, opened(1)...), messagestore.To(c, messagestore.AnyVersion, opened(3)...), messagestore.To(f.stream(), messagestore.NoStream, opened(1)...)))(t)

		require.Len(t, written, 4)
		for i, want := range []struct {
			stream  messagestore.StreamName
			version messagestore.Version
			names   []string
		}{{b, 1, []string{"0", "1"}}, {a, 2, []string{"0", "1", "0"}}, {c, 2, []string{"0", "1", "2"}}, {f.stream(), 0, []string{"0"}}} {
			messages := f.read(t, want.stream)
			requireDense(t, messages)
			require.Equal(t, want.names, names(t, messages))
			last := messages[len(messages)-1]
			require.Equal(t, messagestore.Written{
				Stream: want.stream, Version: want.version, GlobalPosition: last.GlobalPosition, Time: last.Time, IDs: ids(messages[len(messages)-len(written[i].IDs):]),
			}, written[i])
			require.Equal(t, messages, f.readCategory(t, want.stream.Category(), messagestore.Filter{}))
		}
	}},
	{"Atomic/OneConflictLeavesAllUnwritten", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, c, 1)
		writes := []messagestore.StreamWrite{
			messagestore.To(b, messagestore.NoStream, opened(1)...), messagestore.To(a, messagestore.AnyVersion, opened(2)...), messagestore.To(c, messagestore.NoStream, opened(1)...),
		}
		for range writes {
			_, err := f.store.WriteStreams(t.Context(), writes...)
			require.Equal(t, messagestore.VersionConflictError{Stream: c, Expected: messagestore.NoStream, Actual: 0}, conflict(t, err))
			require.Empty(t, f.read(t, a))
			require.Empty(t, f.read(t, b))
			require.Len(t, f.read(t, c), 1)
			writes = append(writes[1:], writes[0]) // the conflict may be at any place
		}
	}},
	{"Atomic/FirstConflictDecides", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, a, 1)
		f.fill(t, c, 3)
		writes := []messagestore.StreamWrite{messagestore.To(b, 5, opened(1)...), messagestore.To(a, messagestore.NoStream), messagestore.To(c, 0, opened(1)...)}
		actual := map[messagestore.StreamName]messagestore.Version{b: messagestore.NoStream, a: 0, c: 2}
		for range writes {
			_, err := f.store.WriteStreams(t.Context(), writes...)

			first := writes[0]
			require.Equal(t, messagestore.VersionConflictError{Stream: first.Stream, Expected: first.Expected, Actual: actual[first.Stream]}, conflict(t, err))
			writes = append(writes[1:], writes[0])
		}
	}},
	{"Atomic/ChecksWriteNothing", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, a, 2)

		written := testkit.Do(f.store.WriteStreams(t.Context(), messagestore.To(a, 1), messagestore.To(b, messagestore.NoStream), messagestore.To(c, messagestore.NoStream, opened(1)...)))(t)

		require.Equal(t, messagestore.Written{Stream: a, Version: 1}, written[0])
		require.Equal(t, messagestore.Written{Stream: b, Version: messagestore.NoStream}, written[1])
		require.Equal(t, messagestore.Version(0), written[2].Version)
		require.Len(t, f.read(t, a), 2)
		require.Empty(t, f.read(t, b))
		require.Len(t, f.read(t, c), 1)
	}},
	{"Atomic/FailedCheckRefuses", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		f.fill(t, a, 2)
		for _, wrong := range wrongVersions(2) {
			_, err := f.store.WriteStreams(t.Context(), messagestore.To(b, messagestore.NoStream, opened(1)...), messagestore.To(a, wrong))
			require.Equal(t, messagestore.VersionConflictError{Stream: a, Expected: wrong, Actual: 1}, conflict(t, err))
		}
		require.Empty(t, f.read(t, b))
	}},
	{"Atomic/SameWriteAgainReturnsTheFirst", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, a, 1)
		m, n, o := raw("Opened", `{"name":"m"}`), raw("Opened", `{"name":"n"}`), raw("Opened", `{"name":"o"}`)
		first := testkit.Do(f.store.WriteStreams(t.Context(), messagestore.To(b, messagestore.NoStream, m, n), messagestore.To(a, 0, o), messagestore.To(c, messagestore.NoStream)))(t)
		f.fill(t, a, 2)
		f.fill(t, b, 1)
		f.fill(t, c, 1) // the checked stream has changed and need not stay the same

		for _, expected := range anyExpectation {
			again := testkit.Do(f.store.WriteStreams(t.Context(), messagestore.To(b, expected, m, n), messagestore.To(a, messagestore.NoStream, o), messagestore.To(c, messagestore.NoStream)))(t)
			for i := range 2 {
				want := first[i]
				want.Duplicate = true
				require.Equal(t, want, again[i])
			}
		}
		require.Len(t, f.read(t, b), 3)
		require.Len(t, f.read(t, a), 4)
	}},
	{"Atomic/PartWrittenBeforeConflicts", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		m, n, fresh := raw("Opened", `{"name":"m"}`), raw("Opened", `{"name":"n"}`), raw("Opened", `{"name":"fresh"}`)
		f.write(t, a, messagestore.NoStream, m)
		f.write(t, b, messagestore.NoStream, n)

		for _, writes := range [][]messagestore.StreamWrite{
			{messagestore.To(c, messagestore.NoStream, fresh), messagestore.To(a, messagestore.AnyVersion, m)},
			{messagestore.To(a, messagestore.AnyVersion, m), messagestore.To(c, messagestore.NoStream, fresh)},
			{messagestore.To(a, messagestore.AnyVersion, m), messagestore.To(b, messagestore.AnyVersion, n, fresh)},
			{messagestore.To(a, messagestore.AnyVersion, n), messagestore.To(b, messagestore.AnyVersion, m)}, // both ids are recorded, each in the other's stream
		} {
			require.ErrorIs(t, testkit.ErrorOf(f.store.WriteStreams(t.Context(), writes...)), messagestore.ErrIDConflict)
		}
		require.Len(t, f.read(t, a), 1)
		require.Len(t, f.read(t, b), 1)
		require.Empty(t, f.read(t, c))
	}},
	{"Atomic/OppositeOrdersDoNotDeadlock", manyUsers, func(t *testing.T, f *fixture) {
		const each = 15
		b, a, c := f.streams()
		orders := [][]messagestore.StreamName{{a, b, c}, {c, b, a}, {b, c, a}, {c, a}}
		race(t, writers, func(i int) error {
			for range each {
				var writes []messagestore.StreamWrite
				for _, stream := range orders[i%len(orders)] {
					writes = append(writes, messagestore.To(stream, messagestore.AnyVersion, opened(1)...))
				}
				if _, err := f.store.WriteStreams(t.Context(), writes...); err != nil {
					return err
				}
			}
			return nil
		})

		for stream, share := range map[messagestore.StreamName]int{a: 4, b: 3, c: 4} {
			messages := f.read(t, stream)
			requireDense(t, messages)
			require.Len(t, messages, writers*each*share/len(orders))
		}
	}},
	// If several writers want the same two streams, in any order, one writer gets both.
	{"Atomic/OneInitialWriterWinsAll", manyUsers, func(t *testing.T, f *fixture) {
		const rounds = 25
		for round := range rounds {
			one, two := f.stream(fmt.Sprint(round)), f.category.WithType("a").Stream(fmt.Sprint(round))
			won := make([]bool, writers)
			race(t, writers, func(i int) error {
				body := Opened{Name: fmt.Sprint(i)}
				writes := []messagestore.StreamWrite{messagestore.To(one, messagestore.NoStream, body), messagestore.To(two, messagestore.NoStream, body)}
				if i%2 == 1 {
					writes[0], writes[1] = writes[1], writes[0]
				}
				_, err := f.store.WriteStreams(t.Context(), writes...)
				won[i] = err == nil
				if errors.Is(err, messagestore.ErrVersionConflict) {
					return nil
				}
				return err
			})

			winners := []string{}
			for i, w := range won {
				if w {
					winners = append(winners, fmt.Sprint(i))
				}
			}
			require.Len(t, winners, 1, "round %d", round)
			require.Equal(t, winners, names(t, f.read(t, one)))
			require.Equal(t, winners, names(t, f.read(t, two)))
		}
	}},
}

// streams returns streams of three categories, not in the order of their names.
func (f *fixture) streams() (b, a, c messagestore.StreamName) {
	return f.category.WithType("b").Stream("1"), f.category.WithType("a").Stream("1"), f.category.WithType("c").Stream("1")
}
