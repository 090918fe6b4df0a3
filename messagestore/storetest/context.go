package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// The tests of contexts: that a call ends with its own, and tells whether it wrote. Below are the
// tests of the check of a store and of its clock.
var contextTests = []test{
	{"S4/CancelledContextWritesNothing", 0, func(t *testing.T, f *fixture) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		_, err := f.store.Write(ctx, f.stream(), messagestore.NoStream, Opened{})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown, "nothing was sent, so nothing is unknown")
		_, err = f.store.WriteStreams(ctx, messagestore.To(f.stream(), messagestore.NoStream, opened(1)...))
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, messagestore.ErrOutcomeUnknown)

		require.Empty(t, f.read(t, f.stream()))
		require.Empty(t, f.readCategory(t, f.category, messagestore.Filter{}))
	}},
	// A write that is cut off returns its outcome, or an error of unknown outcome; then Resolve
	// finds it out, and its answer stays true.
	{"S4/CancelledWriteTellsTheTruth", manyUsers, func(t *testing.T, f *fixture) {
		const writers, rounds = 64, 3
		type attempt struct {
			stream   messagestore.StreamName
			id       uuid.UUID
			err      error // of the write
			resolved error // of Resolve, if the write's outcome was unknown
		}
		var mu sync.Mutex
		var attempts []attempt
		for range rounds {
			race(t, writers, func(i int) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Microsecond)
				defer cancel()
				message := raw("Opened", `{}`)
				a := attempt{stream: f.stream(fmt.Sprint(i % 4)), id: message.ID}
				_, a.err = f.store.Write(ctx, a.stream, messagestore.AnyVersion, message)
				if errors.Is(a.err, messagestore.ErrOutcomeUnknown) {
					_, a.resolved = f.store.Resolve(t.Context(), a.err)
				}
				mu.Lock()
				defer mu.Unlock()
				attempts = append(attempts, a)
				return nil
			})
		}
		f.write(t, f.stream("0"), messagestore.AnyVersion, Opened{Name: "after"}) // the driver goes on

		for _, a := range attempts {
			there := slices.Contains(ids(f.read(t, a.stream)), a.id)
			switch {
			case a.err == nil:
				require.True(t, there, "a write that was acknowledged is there")
			case !errors.Is(a.err, messagestore.ErrOutcomeUnknown):
				require.False(t, there, "a write that failed for good is not there: %v", a.err)
				require.ErrorIs(t, a.err, context.DeadlineExceeded)
			case a.resolved == nil:
				require.True(t, there, "a write that was found is there")
			default:
				require.ErrorIs(t, a.resolved, messagestore.ErrNotWritten, "an unknown outcome can be resolved")
				require.False(t, there, "a write that was found missing never comes")
			}
		}
		for i := range 4 {
			requireDense(t, f.read(t, f.stream(fmt.Sprint(i))))
		}
	}},
	{"S8/CancelledContextReadsNothing", 0, func(t *testing.T, f *fixture) {
		f.fill(t, f.stream(), 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		require.ErrorIs(t, testkit.ErrorOf(f.driver.ReadStream(ctx, messagestore.StreamQuery{Stream: f.stream(), Limit: 1})), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.ReadCategory(ctx, messagestore.CategoryQuery{Category: f.category, Limit: 1})), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.Last(ctx, f.stream(), "")), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.Version(ctx, f.stream())), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.Find(ctx, f.stream(), []uuid.UUID{uuid.New()})), context.Canceled)
		require.ErrorIs(t, testkit.ErrorOf(f.driver.Now(ctx)), context.Canceled)
	}},
	// A call that waits for others, for a lock, a connection or a disk, ends at its deadline. On a
	// busy machine every goroutine is late, so the call may be late by a second plus five times the
	// longest delay of a goroutine that only sleeps and wakes meanwhile.
	{"S8/CallsEndWithTheirDeadline", manyUsers, func(t *testing.T, f *fixture) {
		const writers, each = 24, 8
		const grace = time.Second
		race(t, writers, func(i int) error {
			for n := range each {
				deadline := time.Now().Add(time.Duration(1+n*3) * time.Millisecond)
				ctx, cancel := context.WithDeadline(t.Context(), deadline)
				stalled := longestStall()
				var err error
				if i%4 == 0 {
					_, err = f.driver.ReadCategory(ctx, messagestore.CategoryQuery{Category: f.category, Limit: 100})
				} else {
					_, err = f.store.Write(ctx, f.stream(fmt.Sprint(n%2)), messagestore.AnyVersion, opened(20)...)
				}
				late := time.Since(deadline)
				cancel()
				if stall := stalled(); late > grace+5*stall {
					return fmt.Errorf("a call ended %v after its deadline, and a goroutine beside it was late by %v at most: %w", late, stall, err)
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					return err
				}
			}
			return nil
		})
	}},
}

// longestStall starts a goroutine that only sleeps and wakes, until the returned function is
// called, which returns its longest delay.
func longestStall() (end func() time.Duration) {
	const nap = 5 * time.Millisecond
	stop, longest := make(chan struct{}), make(chan time.Duration)
	go func() {
		var most time.Duration
		for {
			began := time.Now()
			timer := time.NewTimer(nap)
			select {
			case <-stop:
				timer.Stop()
				longest <- max(most, time.Since(began)-nap)
				return
			case <-timer.C:
				most = max(most, time.Since(began)-nap)
			}
		}
	}()
	return func() time.Duration {
		close(stop)
		return <-longest
	}
}

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

var clockTests = []test{
	// A message is stamped between two readings of the clock, the bounds included.
	{"Now/IsTheClockThatStampsMessages", 0, func(t *testing.T, f *fixture) {
		for range 3 {
			before := f.now(t)
			f.write(t, f.stream(), messagestore.AnyVersion, Opened{})
			after := f.now(t)

			messages := f.read(t, f.stream())
			stamped := messages[len(messages)-1].Time
			require.False(t, stamped.Before(before), "stamped %v, before %v", stamped, before)
			require.False(t, stamped.After(after), "stamped %v, after %v", stamped, after)
		}
	}},
	// If a transaction stopped the clock, leases would never end in it.
	{"Now/IsTheTimeOfTheCall", 0, func(t *testing.T, f *fixture) {
		first := f.now(t)
		timer := time.NewTimer(2 * time.Millisecond)
		defer timer.Stop()
		<-timer.C

		second := f.now(t)

		require.Greater(t, second.Sub(first), time.Millisecond)
	}},
	{"Now/IsUTCInMicroseconds", 0, func(t *testing.T, f *fixture) {
		now := f.now(t)

		require.Equal(t, time.UTC, now.Location())
		require.Zero(t, now.Nanosecond()%1000)
		require.Less(t, time.Since(now).Abs(), 24*time.Hour)
	}},
}

func (f *fixture) now(t *testing.T) time.Time {
	t.Helper()
	return testkit.Do(f.store.Now(t.Context()))(t)
}
