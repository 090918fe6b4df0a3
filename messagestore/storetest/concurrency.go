package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

var concurrencyTests = []test{
	{"S3/OneInitialWriterWins", manyUsers, func(t *testing.T, f *fixture) {
		f.initialRace(t, []*messagestore.Store{f.store})
	}},
	{"S3/OneInitialWriterOfTwoDriversWins", manyUsers | another, func(t *testing.T, f *fixture) {
		f.initialRace(t, []*messagestore.Store{f.store, must.New(messagestore.New(f.options.Beside(t, f.driver), nil))})
	}},
	// Each writer adds one to the number it has read. If the last number is the number of writes,
	// no writer wrote over a message that it had not read.
	{"S3/NoUpdateIsLost", manyUsers, func(t *testing.T, f *fixture) {
		const each = 12
		stream := f.stream()
		f.write(t, stream, messagestore.NoStream, Opened{Name: "0"})
		race(t, writers, func(int) error {
			for done := 0; done < each; {
				last, err := f.driver.Last(t.Context(), stream, "")
				if err != nil {
					return err
				}
				body, err := messagestore.Decode[Opened](last)
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(body.Name)
				if err != nil {
					return err
				}
				runtime.Gosched() // between reading and writing is when others write
				_, err = f.store.Write(t.Context(), stream, last.Position, Opened{Name: fmt.Sprint(n + 1)})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, messagestore.ErrVersionConflict):
					return err
				}
			}
			return nil
		})

		messages := f.read(t, stream)
		requireDense(t, messages)
		require.Equal(t, numbers(0, writers*each), names(t, messages))
	}},
	{"S3/AnyVersionLosesNothing", manyUsers, func(t *testing.T, f *fixture) {
		const each = 15
		stream := f.stream()
		written := make([][]messagestore.Written, writers)
		race(t, writers, func(i int) error {
			for n := range each {
				w, err := f.store.Write(t.Context(), stream, messagestore.AnyVersion, opened(1+n%2)...)
				if err != nil {
					return err
				}
				written[i] = append(written[i], w)
			}
			return nil
		})

		messages := f.read(t, stream)
		requireDense(t, messages)
		require.Len(t, messages, writers*(each+each/2))
		for _, ofWriter := range written {
			for _, w := range ofWriter {
				require.Less(t, int(w.Version), len(messages))
				last := messages[w.Version]
				require.Equal(t, w.IDs[len(w.IDs)-1], last.ID, "what a writer was told is what is there")
				require.Equal(t, w.GlobalPosition, last.GlobalPosition)
			}
		}
	}},
}

const writers = 8

// The test that a suite without contention leaves out: the losers must learn that
// they lost, by the same error that a calm conflict gives. One round seldom shows
// a driver that forgets to lock; this many do.
func (f *fixture) initialRace(t *testing.T, stores []*messagestore.Store) {
	t.Helper()
	const rounds = 50
	for round := range rounds {
		stream := f.stream(fmt.Sprint(round))
		var wins atomic.Int32
		var winner atomic.Value
		race(t, writers, func(i int) error {
			written, err := stores[i%len(stores)].Write(t.Context(), stream, messagestore.NoStream, Opened{Name: fmt.Sprint(i)})
			if err == nil {
				wins.Add(1)
				winner.Store(written.IDs[0])
				return nil
			}
			facts, ok := errors.AsType[*messagestore.VersionConflictError](err)
			if want := (messagestore.VersionConflictError{Stream: stream, Expected: messagestore.NoStream, Actual: 0}); !ok || *facts != want {
				return fmt.Errorf("round %d: a loser was told %w", round, err)
			}
			return nil
		})
		require.Equal(t, int32(1), wins.Load(), "round %d", round)
		require.Equal(t, []uuid.UUID{winner.Load().(uuid.UUID)}, ids(f.read(t, stream))) //nolint:errcheck // stored by the one winner
	}
}
