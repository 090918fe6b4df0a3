package storetest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of writes that tell what they met: the last message of the stream. Below are the tests
// of writes that go past messages of some types, or to the end of a stream that exists.
var meetTests = []test{
	{"Meet/WritesAsAppendDoes", 0, func(t *testing.T, f *fixture) {
		first, met := f.writeOrLast(t, f.stream(), messagestore.NoStream, opened(2)...)
		require.Nil(t, met)
		second, met := f.writeOrLast(t, f.stream(), 1, opened(1)...)
		require.Nil(t, met)

		messages := f.read(t, f.stream())
		requireDense(t, messages)
		require.Equal(t, []string{"0", "1", "0"}, names(t, messages))
		require.Equal(t, messagestore.Written{
			Stream: f.stream(), Version: 1, GlobalPosition: messages[1].GlobalPosition, Time: messages[1].Time, IDs: ids(messages[:2]),
		}, first)
		require.Equal(t, messagestore.Written{
			Stream: f.stream(), Version: 2, GlobalPosition: messages[2].GlobalPosition, Time: messages[2].Time, IDs: ids(messages[2:]),
		}, second)
	}},
	{"Meet/ConflictTellsTheLastMessageAndTheTime", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream(), 3)
		messages := f.read(t, f.stream())

		for _, expected := range []messagestore.Version{messagestore.NoStream, 0, 1, 3, 10} {
			before := testkit.Do(f.store.Now(t.Context()))(t)
			written, met := f.writeOrLast(t, f.stream(), expected, opened(1)...)
			after := testkit.Do(f.store.Now(t.Context()))(t)

			require.Zero(t, written)
			require.NotNil(t, met)
			require.Equal(t, messages[2:], met.Last)
			require.False(t, met.Time.Before(before), "met at %v, before the call at %v", met.Time, before)
			require.False(t, met.Time.After(after), "met at %v, after the answer at %v", met.Time, after)
			require.Equal(t, time.UTC, met.Time.Location())
		}
		require.Equal(t, messages, f.read(t, f.stream()))
	}},
	{"Meet/EmptyStreamHasNoLastMessage", 0, func(t *testing.T, f *fixture) {
		_, met := f.writeOrLast(t, f.stream(), 3, opened(1)...)
		require.NotNil(t, met)
		require.Equal(t, []*messagestore.Message{nil}, met.Last)
		require.NotZero(t, met.Time)
		require.Empty(t, f.read(t, f.stream()))
	}},
	{"Meet/EachStreamHasItsLastMessage", 0, func(t *testing.T, f *fixture) {
		b, a, c := f.streams()
		f.fill(t, b, 2)
		f.fill(t, c, 1)

		written, met, err := f.store.TryWriteStreams(t.Context(),
			messagestore.To(c, 0, opened(1)...), messagestore.To(a, messagestore.NoStream, opened(1)...), messagestore.To(b, 0))

		require.NoError(t, err)
		require.Nil(t, written)
		require.NotNil(t, met)
		require.Equal(t, []*messagestore.Message{f.read(t, c)[0], nil, f.read(t, b)[1]}, met.Last)
		require.Empty(t, f.read(t, a))
		require.Len(t, f.read(t, c), 1)

		written, met, err = f.store.TryWriteStreams(t.Context(),
			messagestore.To(c, 0, opened(1)...), messagestore.To(a, messagestore.NoStream, opened(1)...), messagestore.To(b, 1))
		require.NoError(t, err)
		require.Nil(t, met)
		require.Len(t, written, 3)
		require.Equal(t, f.read(t, c)[1].Time, written[0].Time)
		require.Equal(t, messagestore.Written{Stream: b, Version: 1}, written[2])
	}},
	{"Meet/LargeMessageIsMet", 0, largeMessageIsMet},
	{"Meet/RepeatMeetsNothing", 0, func(t *testing.T, f *fixture) {
		bodies := identified(opened(2))
		first, met := f.writeOrLast(t, f.stream(), messagestore.NoStream, bodies...)
		require.Nil(t, met)
		f.fill(t, f.stream(), 1)

		again, met := f.writeOrLast(t, f.stream(), messagestore.NoStream, bodies...)

		require.Nil(t, met)
		first.Duplicate = true
		require.Equal(t, first, again)
	}},
	{"Meet/TakenIDConflicts", 0, func(t *testing.T, f *fixture) {
		bodies := identified(opened(1))
		f.writeOrLast(t, f.stream(), messagestore.NoStream, bodies...)

		_, met, err := f.store.TryWrite(t.Context(), f.category.Stream("other"), 7, bodies...)

		require.ErrorIs(t, err, messagestore.ErrIDConflict)
		require.Nil(t, met)
	}},
	{"Meet/LoserMeetsTheWinner", manyUsers, loserMeetsTheWinner},
}

func (f *fixture) writeOrLast(t *testing.T, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, *messagestore.Conflict) {
	t.Helper()
	written, met, err := f.store.TryWrite(t.Context(), stream, expected, bodies...)
	require.NoError(t, err)
	return written, met
}

// largeMessageIsMet has a body so large that a driver may read it separately instead of sending it
// along.
func largeMessageIsMet(t *testing.T, f *fixture) {
	for i, size := range []int{10_000, 16_384, 100_000, 800_000} {
		stream := f.category.Stream(strings.Repeat("x", i+1))
		testkit.Do(f.store.Write(t.Context(), stream, messagestore.NoStream, messagestore.Envelope{
			Body: Opened{Name: incompressible(size)}, Metadata: messagestore.Metadata{Properties: map[string]any{"page": "large"}},
		}))(t)

		_, met := f.writeOrLast(t, stream, messagestore.NoStream, opened(1)...)

		require.NotNil(t, met)
		require.Equal(t, f.read(t, stream), met.Last)
	}
}

func incompressible(size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(uuid.NewString())
	}
	return b.String()[:size]
}

func identified(bodies []messagestore.Body) []messagestore.Body {
	for i, body := range bodies {
		bodies[i] = messagestore.Envelope{ID: uuid.New(), Body: body}
	}
	return bodies
}

// loserMeetsTheWinner makes many writers compete for each of several new streams, with plain writes
// to the same category. If a driver combines waiting writes, some losers share a step with their
// winner, and must meet it all the same.
func loserMeetsTheWinner(t *testing.T, f *fixture) {
	const streams, writers, rounds = 8, 6, 10
	for round := range rounds {
		type outcome struct {
			written messagestore.Written
			met     *messagestore.Conflict
			err     error
		}
		outcomes := make([][writers]outcome, streams)
		var all sync.WaitGroup
		name := func(i int) messagestore.StreamName {
			return f.category.Stream(strings.Repeat("r", round+1) + strings.Repeat("s", i+1))
		}
		for i := range streams {
			for w := range writers {
				all.Go(func() {
					o := &outcomes[i][w]
					o.written, o.met, o.err = f.store.TryWrite(t.Context(), name(i), messagestore.NoStream, Opened{Name: string(name(i))})
				})
			}
			all.Go(func() {
				if _, err := f.store.Write(t.Context(), f.category.Stream("plain"), messagestore.AnyVersion, opened(1)...); err != nil {
					t.Errorf("write beside them: %v", err)
				}
			})
		}
		all.Wait()

		for i := range streams {
			messages := f.read(t, name(i))
			require.Len(t, messages, 1)
			winners := 0
			for _, o := range outcomes[i] {
				require.NoError(t, o.err)
				if o.met == nil {
					winners++
					require.Equal(t, messages[0].Time, o.written.Time)
					continue
				}
				require.Equal(t, messages, o.met.Last)
				require.False(t, o.met.Time.Before(messages[0].Time), "met at %v, a message of %v", o.met.Time, messages[0].Time)
			}
			require.Equal(t, 1, winners)
		}
	}
}

var pastTests = []test{
	{"Past/WritesBehindTheseTypes", 0, func(t *testing.T, f *fixture) {
		testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.NoStream, typed("Reserved", "Extended", "Waiting", "Extended")...))(t)

		for i, expected := range []messagestore.Version{0, 1, 3} {
			written := testkit.Do(f.store.WriteStreams(t.Context(), goingPast(messagestore.To(f.stream(), expected, typed("Extended", "Waiting")...), "Waiting", "Extended")))(t)
			require.Equal(t, messagestore.Version(5+2*i), written[0].Version)
		}
		requireDense(t, f.read(t, f.stream()))
		require.Len(t, f.read(t, f.stream()), 10)
	}},
	{"Past/AnotherTypeConflicts", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		testkit.Do(f.store.Write(t.Context(), b, messagestore.NoStream, typed("Reserved", "Extended", "Released", "Extended")...))(t)

		_, err := f.store.WriteStreams(t.Context(), messagestore.To(a, messagestore.NoStream, opened(1)...),
			goingPast(messagestore.To(b, 0, typed("Confirmed")...), "Extended", "Waiting"))
		require.Equal(t, messagestore.VersionConflictError{Stream: b, Expected: 0, Actual: 3}, conflict(t, err))
		require.Empty(t, f.read(t, a))

		testkit.Do(f.store.WriteStreams(t.Context(), goingPast(messagestore.To(b, 2, typed("Confirmed")...), "Extended", "Waiting")))(t)
		testkit.Do(f.store.WriteStreams(t.Context(), goingPast(messagestore.To(a, messagestore.NoStream, typed("Confirmed")...), "Extended")))(t)
		_, err = f.store.WriteStreams(t.Context(), goingPast(messagestore.To(a, messagestore.NoStream, typed("Confirmed")...), "Confirmed"))
		require.NoError(t, err, "NoStream is a version like any other")
	}},
	{"Past/VersionAheadConflicts", 0, func(t *testing.T, f *fixture) {
		testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.NoStream, typed("Reserved", "Extended")...))(t)
		for _, expected := range []messagestore.Version{2, 9} {
			_, err := f.store.WriteStreams(t.Context(), goingPast(messagestore.To(f.stream(), expected, typed("Confirmed")...), "Extended"))
			require.Equal(t, messagestore.VersionConflictError{Stream: f.stream(), Expected: expected, Actual: 1}, conflict(t, err))
		}
		require.Len(t, f.read(t, f.stream()), 2)
	}},
	{"Past/CheckHasIt", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		testkit.Do(f.store.Write(t.Context(), b, messagestore.NoStream, typed("Reserved", "Extended")...))(t)

		written := testkit.Do(f.store.WriteStreams(t.Context(), goingPast(messagestore.To(b, 0), "Extended"), messagestore.To(a, messagestore.NoStream, opened(1)...)))(t)
		require.Equal(t, messagestore.Written{Stream: b, Version: 1}, written[0])

		_, err := f.store.WriteStreams(t.Context(), goingPast(messagestore.To(b, 0), "Waiting"), messagestore.To(a, 0, opened(1)...))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)
		require.Len(t, f.read(t, a), 1)
		require.Len(t, f.read(t, b), 2)
	}},
	{"After/AnotherMessageConflicts", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		first := testkit.Do(f.store.Write(t.Context(), b, messagestore.NoStream, typed("Reserved", "Extended")...))(t)
		for _, id := range []uuid.UUID{first.IDs[0], uuid.New()} {
			_, err := f.store.WriteStreams(t.Context(), messagestore.To(a, messagestore.NoStream, opened(1)...), follows(id, messagestore.To(b, 1, typed("Confirmed")...)))
			require.Equal(t, messagestore.VersionConflictError{Stream: b, Expected: 1, Actual: 1}, conflict(t, err))
		}
		for _, expected := range []messagestore.Version{0, 2} {
			_, err := f.store.WriteStreams(t.Context(), follows(first.IDs[0], messagestore.To(b, expected, typed("Confirmed")...)))
			require.Equal(t, messagestore.VersionConflictError{Stream: b, Expected: expected, Actual: 1}, conflict(t, err))
		}
		require.Empty(t, f.read(t, a))

		write := follows(first.IDs[1], messagestore.To(b, 1, messagestore.Envelope{ID: uuid.New(), Body: typed("Confirmed")[0]}))
		for _, duplicate := range []bool{false, true} {
			written := testkit.Do(f.store.WriteStreams(t.Context(), write))(t)
			require.Equal(t, messagestore.Version(2), written[0].Version)
			require.Equal(t, duplicate, written[0].Duplicate)
		}
		require.Len(t, f.read(t, b), 3)
	}},
	{"After/GoesWithTypesThatMayCome", 0, func(t *testing.T, f *fixture) {
		first := testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.NoStream, typed("Reserved", "Extended")...))(t)
		_, err := f.store.WriteStreams(t.Context(), follows(first.IDs[1], goingPast(messagestore.To(f.stream(), 0, typed("Confirmed")...), "Extended")))
		require.Equal(t, messagestore.VersionConflictError{Stream: f.stream(), Expected: 0, Actual: 1}, conflict(t, err))
		_, err = f.store.WriteStreams(t.Context(), follows(first.IDs[0], goingPast(messagestore.To(f.stream(), 0, typed("Confirmed")...), "Waiting")))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)

		written := testkit.Do(f.store.WriteStreams(t.Context(), follows(first.IDs[0], goingPast(messagestore.To(f.stream(), 0, typed("Confirmed")...), "Extended"))))(t)
		require.Equal(t, messagestore.Version(2), written[0].Version)
	}},
	{"After/CheckHasIt", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		first := testkit.Do(f.store.Write(t.Context(), b, messagestore.NoStream, typed("Reserved")...))(t)

		_, err := f.store.WriteStreams(t.Context(), follows(uuid.New(), messagestore.To(b, 0)), messagestore.To(a, messagestore.NoStream, opened(1)...))
		require.Equal(t, messagestore.VersionConflictError{Stream: b, Expected: 0, Actual: 0}, conflict(t, err))
		require.Empty(t, f.read(t, a))

		testkit.Do(f.store.WriteStreams(t.Context(), follows(first.IDs[0], messagestore.To(b, 0)), messagestore.To(a, messagestore.NoStream, opened(1)...)))(t)
	}},
	{"Exists/GoesToTheEndOfAnyVersion", 0, func(t *testing.T, f *fixture) {
		f.write(t, f.stream(), messagestore.NoStream, opened(3)...)
		one := messagestore.Envelope{ID: uuid.New(), Body: Opened{Name: "one"}}
		for _, duplicate := range []bool{false, true} {
			written := testkit.Do(f.store.Write(t.Context(), f.stream(), messagestore.StreamExists, one))(t)
			require.Equal(t, messagestore.Version(3), written.Version)
			require.Equal(t, duplicate, written.Duplicate)
		}
		require.Equal(t, messagestore.Version(6), f.write(t, f.stream(), messagestore.StreamExists, opened(3)...).Version)
		requireDense(t, f.read(t, f.stream()))
		require.Len(t, f.read(t, f.stream()), 7)
	}},
	{"Exists/NoStreamConflicts", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		want := messagestore.VersionConflictError{Stream: b, Expected: messagestore.StreamExists, Actual: messagestore.NoStream}
		for n := 1; n <= 2; n++ {
			_, err := f.store.Write(t.Context(), b, messagestore.StreamExists, opened(n)...)
			require.Equal(t, want, conflict(t, err))
			_, met, err := f.store.TryWrite(t.Context(), b, messagestore.StreamExists, opened(n)...)
			require.NoError(t, err)
			require.Equal(t, []*messagestore.Message{nil}, met.Last)
		}
		for _, w := range []messagestore.StreamWrite{messagestore.To(b, messagestore.StreamExists), messagestore.To(b, messagestore.StreamExists, opened(1)...)} {
			_, err := f.store.WriteStreams(t.Context(), messagestore.To(a, messagestore.NoStream, opened(1)...), w)
			require.Equal(t, want, conflict(t, err))
		}
		require.Empty(t, f.read(t, a))
		require.Empty(t, f.read(t, b))
	}},
	// With any number of writers, a stream gets beyond the bound by at most one write.
	{"Exists/BelowABound", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		bound := messagestore.StreamExists.Below(3)
		want := messagestore.VersionConflictError{Stream: b, Expected: bound, Actual: messagestore.NoStream}
		_, err := f.store.Write(t.Context(), b, bound, opened(1)...)
		require.Equal(t, want, conflict(t, err))
		f.write(t, b, messagestore.NoStream, opened(1)...)
		require.Equal(t, messagestore.Version(1), f.write(t, b, bound, opened(1)...).Version)
		written := testkit.Do(f.store.WriteStreams(t.Context(), messagestore.To(b, bound, opened(1)...), messagestore.To(a, messagestore.AnyVersion, opened(1)...)))(t)
		require.Equal(t, messagestore.Version(2), written[0].Version)
		one := messagestore.Envelope{ID: uuid.New(), Body: Opened{Name: "one"}}
		require.Equal(t, messagestore.Version(3), f.write(t, b, bound, one).Version)
		want.Actual = 3
		for n := 1; n <= 2; n++ {
			_, err := f.store.Write(t.Context(), b, bound, opened(n)...)
			require.Equal(t, want, conflict(t, err))
		}
		again, err := f.store.Write(t.Context(), b, bound, one)
		require.NoError(t, err, "a repeat of what was written")
		require.True(t, again.Duplicate)
		_, err = f.store.WriteStreams(t.Context(), messagestore.To(b, bound), messagestore.To(a, messagestore.AnyVersion, opened(1)...))
		require.Equal(t, want, conflict(t, err))
		require.Equal(t, messagestore.Version(4), f.write(t, b, messagestore.StreamExists, opened(1)...).Version)
		require.ErrorContains(t, &want, "expected an existing stream below version 3, found 3")
	}},
	{"Exists/CheckHasIt", 0, func(t *testing.T, f *fixture) {
		b, a, _ := f.streams()
		f.write(t, b, messagestore.NoStream, opened(2)...)
		one := messagestore.Envelope{ID: uuid.New(), Body: Opened{Name: "one"}}
		for _, duplicate := range []bool{false, true} {
			written := testkit.Do(f.store.WriteStreams(t.Context(), messagestore.To(b, messagestore.StreamExists), messagestore.To(a, messagestore.AnyVersion, one)))(t)
			require.Equal(t, messagestore.Version(1), written[0].Version)
			require.Equal(t, messagestore.Version(0), written[1].Version)
			require.Equal(t, duplicate, written[1].Duplicate)
		}
		require.Len(t, f.read(t, b), 2)
	}},
}

func follows(id uuid.UUID, w messagestore.StreamWrite) messagestore.StreamWrite {
	w.After = id
	return w
}

func goingPast(w messagestore.StreamWrite, types ...string) messagestore.StreamWrite {
	w.Past = types
	return w
}

// typed returns messages of the types given.
func typed(types ...string) []messagestore.Body {
	var bodies []messagestore.Body
	for _, t := range types {
		bodies = append(bodies, messagestore.Raw{Type: t, Data: []byte(`{}`)})
	}
	return bodies
}
