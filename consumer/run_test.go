package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// elsewhere writes as another process does: without a wake-up of the store under test.
func elsewhere(t *testing.T, driver messagestore.Driver, stream messagestore.StreamName) {
	t.Helper()
	write(t, testkit.Must(messagestore.New(driver, nil)), stream, Deposited{1})
}

func TestAMessageOfAnotherProcessIsFoundByPolling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		var handledAt []time.Duration
		start := time.Now()
		c := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			handledAt = append(handledAt, time.Since(start))
			return nil
		}), &consumer.Config{PollInterval: time.Minute})
		stop := running(t, c)
		time.Sleep(10*time.Minute + time.Second)

		elsewhere(t, driver, "account-1")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, handledAt, 1)
		second := time.Since(start)
		elsewhere(t, driver, "account-1") // just after work, it looks sooner
		time.Sleep(time.Minute)
		require.NoError(t, stop())

		require.Len(t, handledAt, 2)
		require.Less(t, handledAt[1]-second, 30*time.Second)
	})
}

// It looks less and less often, and then it only makes sure.
func TestAConsumerAtRestLeavesPollingToTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var reads []time.Time
		store := &tap{Store: newStore(), read: func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
			mu.Lock()
			defer mu.Unlock()
			reads = append(reads, time.Now())
			return nil, nil
		}}
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{PollInterval: 800 * time.Millisecond}))
		time.Sleep(59 * time.Second)
		require.NoError(t, stop())

		var waits []time.Duration
		for i := range reads[1:] {
			waits = append(waits, reads[i+1].Sub(reads[i]))
		}
		require.Equal(t, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 9300 * time.Millisecond, 10 * time.Second}, waits[:5])
		require.Len(t, reads, 9)
	})
}

// A silentDriver cannot tell where categories end.
type silentDriver struct{ messagestore.Driver }

func (silentDriver) Heads(context.Context, []messagestore.Category) ([]messagestore.GlobalPosition, error) {
	return nil, messagestore.ErrNotSupported
}

// A driver that cannot tell where categories end is polled as ever.
func TestAMessageOfAnotherProcessIsFoundThroughADriverThatCannotTell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := silentDriver{newDriver()}
		j := &journal{}
		const interval = 100 * time.Millisecond
		stop := running(t, newConsumer(t, testkit.Must(messagestore.New(driver, nil)), j, &consumer.Config{PollInterval: interval}))
		time.Sleep(time.Minute + interval/2) // between two polls

		elsewhere(t, driver, "account-1")
		synctest.Wait()
		require.Empty(t, j.all())
		time.Sleep(interval)
		synctest.Wait()

		require.Len(t, j.all(), 1)
		require.NoError(t, stop())
	})
}

func TestAWriteInThisProcessWakesTheConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, &consumer.Config{PollInterval: time.Hour}))
		time.Sleep(90 * time.Minute)
		before := time.Now()

		write(t, store, "account-1", Deposited{1})
		synctest.Wait()

		require.Len(t, j.all(), 1)
		require.Zero(t, time.Since(before))
		require.NoError(t, stop())
	})
}

// An idle consumer reads, but does not write, and its own writes do not wake it.
func TestAnIdleConsumerDoesNotWrite(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]consumer.Config{
		"all":      {},
		"filtered": {OnlyKnown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var reads, writes atomic.Int64
				store := &tap{
					Store: newStore(),
					write: func(messagestore.StreamName) error { writes.Add(1); return nil },
					read: func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
						reads.Add(1)
						return nil, nil
					},
				}
				write(t, store.Store, "account-1", Deposited{1})
				stop := running(t, newConsumer(t, store, &journal{}, &config))
				time.Sleep(time.Hour)

				require.Equal(t, int64(3), writes.Load()) // the group size, the seat and the position
				require.Less(t, reads.Load(), int64(370)) // one every ten seconds, and a few at first
				require.NoError(t, stop())
				require.Equal(t, int64(4), writes.Load()) // it leaves
			})
		})
	}
}

func TestThePositionIsRecordedByCountByTimeWhenIdleAndAtTheEnd(t *testing.T) {
	t.Parallel()
	config := consumer.Config{CheckpointMessages: 10, CheckpointInterval: time.Minute, PollInterval: 8 * time.Second, Grace: time.Minute}
	slow := func(pause time.Duration) consumer.Handler {
		return handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			time.Sleep(pause)
			return nil
		})
	}
	for _, test := range []struct {
		name     string
		handler  consumer.Handler
		messages int
		after    time.Duration
		want     messagestore.GlobalPosition
	}{
		{"NotYet", slow(time.Second), 20, 9*time.Second + time.Millisecond, 0},
		{"ByCount", slow(time.Second), 20, 10*time.Second + time.Millisecond, 11},
		{"NotYetByTime", slow(25 * time.Second), 20, 84 * time.Second, 0},
		{"ByTime", slow(25 * time.Second), 20, 86 * time.Second, 4},
		{"NotYetIdle", slow(time.Second), 3, 10 * time.Second, 0},
		{"Idle", slow(time.Second), 3, 12 * time.Second, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				for range test.messages {
					write(t, store, "account-1", Deposited{1})
				}
				c := newConsumer(t, store, test.handler, &config)
				stop := running(t, c)
				time.Sleep(test.after)
				synctest.Wait()

				require.Equal(t, test.want, c.Stats().Position)
				handled := c.Stats().Handled
				require.NoError(t, stop())
				require.GreaterOrEqual(t, int64(c.Stats().Position), handled)
			})
		})
	}
}

// A filtered reader's position moves over the messages that the filter keeps back, so that
// the next run does not read them again, but not by a write for each of them.
func TestAFilteredPositionMovesButSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		store := &tap{Store: newStore(), write: func(messagestore.StreamName) error { writes.Add(1); return nil }}
		c := newConsumer(t, store, knowing(&journal{}, "Withdrawn"), &consumer.Config{OnlyKnown: true})
		stop := running(t, c)
		for range 1000 {
			write(t, store.Store, "account-1", Deposited{1})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)

		require.Greater(t, c.Stats().Head, messagestore.GlobalPosition(1000))
		require.Equal(t, c.Stats().Head+1, c.Stats().Position)
		require.LessOrEqual(t, writes.Load(), int64(13))
		require.NoError(t, stop())
	})
}

func TestStoppingLetsTheMessageInHandFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Second):
				return nil
			}
		}), &consumer.Config{Grace: 6 * time.Second})
		stop := running(t, c)
		time.Sleep(time.Second)
		before := time.Now()

		require.NoError(t, stop())

		require.Equal(t, 4*time.Second, time.Since(before))
		require.Equal(t, int64(1), c.Stats().Handled)
		require.Equal(t, messagestore.GlobalPosition(2), c.Stats().Position)
	})
}

func TestPastTheGraceTheContextEndsAndTheMessageIsNotAtFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			<-ctx.Done()
			return fmt.Errorf("deposit: %w", ctx.Err())
		}), &consumer.Config{Grace: 2 * time.Second, Errors: parkAtOnce})
		stop := running(t, c)
		time.Sleep(time.Second)
		before := time.Now()

		require.NoError(t, stop())

		require.Equal(t, 2*time.Second, time.Since(before))
		require.Equal(t, consumer.Stats{Head: 2}, c.Stats())
	})
}

func TestAHandlerThatIgnoresItsContextIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		release := make(chan struct{})
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			<-release
			return nil
		}), &consumer.Config{Grace: 2 * time.Second})
		stop := running(t, c)
		time.Sleep(time.Second)
		before := time.Now()

		err := stop()

		requireGraceExceeded(t, err)
		exceeded, ok := errors.AsType[*consumer.GraceExceededError](err)
		require.True(t, ok)
		require.Equal(t, []string{"Deposited account-1@0"}, exceeded.Messages)
		require.Equal(t, 3*time.Second, time.Since(before)) // a second to notice
		require.Zero(t, c.Stats().Position)

		// The message may not be redelivered while the handler still works on it.
		require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
		close(release)
		synctest.Wait()
		require.NoError(t, c.CatchUp(t.Context()))
	})
}

// The error that ended the run does not hide the handler that it left behind.
func TestAHandlerThatIgnoresItsContextIsNamedThoughAnotherFailed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-0", Deposited{1})
		write(t, store, "account-1", Deposited{2})
		write(t, store, "account-2", Deposited{3})
		release := make(chan struct{})
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			switch m.Stream {
			case "account-1":
				<-release
			case "account-2":
				time.Sleep(time.Second)
				return errBroken
			}
			return nil
		}), &consumer.Config{Concurrency: 2, Grace: 2 * time.Second, Errors: stopAtOnce})

		err := runForAWhile(t, c)

		failed, ok := errors.AsType[*consumer.MessageError](err)
		require.True(t, ok)
		require.Equal(t, messagestore.StreamName("account-2"), failed.Stream)
		requireGraceExceeded(t, err)
		exceeded, ok := errors.AsType[*consumer.GraceExceededError](err)
		require.True(t, ok)
		require.Equal(t, []string{"Deposited account-1@0"}, exceeded.Messages)
		require.Equal(t, messagestore.GlobalPosition(2), c.Stats().Position, "what is finished is recorded")

		require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
		close(release)
		synctest.Wait()
	})
}

func TestStoppingDoesNotWaitForARetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		c := newConsumer(t, store, always(handler.RetryAfter(time.Hour, errBroken)), nil)
		stop := running(t, c)
		time.Sleep(time.Second)
		before := time.Now()

		require.NoError(t, stop())

		require.Zero(t, time.Since(before))
		require.Equal(t, int64(1), c.Stats().Failed)
		require.Zero(t, c.Stats().Position)
	})
}

func TestRetriesBackOffWithJitterForFiveMinutesByDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		var calls []time.Time
		var log bytes.Buffer
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls = append(calls, time.Now())
			return errBroken
		}), &consumer.Config{Logger: logger.Zerolog(zerolog.New(&log))})

		require.ErrorIs(t, c.Run(t.Context()), errBroken)

		require.Equal(t, 5*time.Minute, calls[len(calls)-1].Sub(calls[0]), "the last retry is at the end")
		whole := 0
		for i, most := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000} {
			most *= time.Millisecond
			wait := calls[i+1].Sub(calls[i])
			require.LessOrEqual(t, wait, most)
			require.GreaterOrEqual(t, wait, most/2)
			if wait%(50*time.Millisecond) == 0 {
				whole++
			}
		}
		require.Less(t, whole, 10)
		require.Equal(t, int64(len(calls)), c.Stats().Failed)
		require.Equal(t, int64(len(calls)-1), c.Stats().Retried)
		require.Contains(t, log.String(), `"attempt":1,"wait":`)
	})
}

func TestRetryForeverOutlivesADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		until := time.Now().Add(30 * time.Hour)
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			if time.Now().Before(until) {
				return errBroken
			}
			return nil
		}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: time.Hour}}})

		require.NoError(t, c.CatchUp(t.Context()))
	})
}

// RetryAfter is the handler's word: the policy, which would stop, does not count it.
func TestRetryAfterIsNotCountedByThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		var calls []time.Time
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			if calls = append(calls, time.Now()); len(calls) <= 3 {
				return fmt.Errorf("wrapped: %w", handler.RetryAfter(time.Hour, errBroken))
			}
			return nil
		}), &consumer.Config{Errors: stopAtOnce})

		require.NoError(t, c.CatchUp(t.Context()))

		require.Len(t, calls, 5)
		for i := range 3 {
			require.Equal(t, time.Hour, calls[i+1].Sub(calls[i]))
		}
		require.Equal(t, consumer.Stats{Handled: 2, Failed: 3, Retried: 3, Position: 3, Head: 2}, c.Stats())
	})
}

func TestSkipMovesOnIsCountedAndLogged(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
	var log bytes.Buffer
	j := &journal{}
	c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if m.Position == 1 {
			return fmt.Errorf("wrapped: %w", handler.Skip("a test account"))
		}
		return j.Handle(ctx, m)
	}), &consumer.Config{Logger: logger.Zerolog(zerolog.New(&log))})

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@0", "account-1@2"}, j.all())
	require.Equal(t, consumer.Stats{Handled: 2, Skipped: 1, Position: 4, Head: 3}, c.Stats())
	require.Contains(t, log.String(), `"globalPosition":2,"reason":"wrapped: a test account","message":"message skipped"`)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

func TestAStopFinishesWhatIsInHandAndRecordsThePositionBeforeTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 4 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		var finished []messagestore.StreamName
		var mu sync.Mutex
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Stream == "account-1" {
				return errBroken
			}
			time.Sleep(3 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			finished = append(finished, m.Stream)
			return nil
		}), &consumer.Config{Concurrency: 3, Errors: stopAtOnce})

		err := runForAWhile(t, c)

		require.ErrorIs(t, err, errBroken)
		require.ElementsMatch(t, []messagestore.StreamName{"account-0", "account-2"}, finished)
		require.Equal(t, messagestore.GlobalPosition(2), c.Stats().Position)
	})
}

func TestEveryWayOfFailingFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fail func()
		text string
	}{
		"Panic":      {func() { panic("poison") }, "panic: poison"},
		"PanicError": {func() { panic(errBroken) }, "panic: broken"},
		"PanicNil":   {func() { panic(nil) }, "panic: panic called with nil"},
		"Exit":       {runtime.Goexit, "the function ended its goroutine"},
		"ExitPanic":  {func() { defer panic("poison"); runtime.Goexit() }, "panic: poison"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			write(t, store, "account-1", Deposited{1})
			c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				test.fail()
				return nil
			}), &consumer.Config{Errors: stopAtOnce})

			err := c.CatchUp(t.Context())

			require.ErrorContains(t, err, test.text)
			require.Zero(t, c.Stats().Position)
			require.Equal(t, int64(1), c.Stats().Failed)
			if name == "PanicError" {
				require.ErrorIs(t, err, errBroken)
				panicked, ok := errors.AsType[*calling.PanicError](err)
				require.True(t, ok)
				require.Contains(t, string(panicked.Stack), "run_test.go")
			}
		})
	}
}

// A nastyError panics wherever it is asked.
type nastyError struct{}

func (*nastyError) Error() string { panic("no text") }
func (*nastyError) Unwrap() error { panic("no cause") }

func TestAnErrorThatPanicsIsOneMoreFailure(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	c := newConsumer(t, store, always(&nastyError{}), &consumer.Config{Errors: stopAtOnce})

	err := c.CatchUp(t.Context())

	require.ErrorContains(t, err, "tried once: *consumer_test.nastyError, whose text panics")
}

func TestOneMessageOfAnIDIsInHandAndOthersDoNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for range 3 {
			write(t, store, "account-hot", Deposited{1})
			write(t, store, "account-hot+key", Deposited{1})
		}
		for i := range 6 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{1})
		}
		var mu sync.Mutex
		inHand := map[string]int{}
		most, mostOfOne := 0, 0
		var hot []string
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			mu.Lock()
			inHand[m.Stream.CardinalID()]++
			together := 0
			for _, n := range inHand {
				mostOfOne = max(mostOfOne, n)
				together += n
			}
			most = max(most, together)
			if m.Stream.CardinalID() == "hot" {
				hot = append(hot, m.String())
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			inHand[m.Stream.CardinalID()]--
			mu.Unlock()
			return nil
		}), &consumer.Config{Concurrency: 2})
		start := time.Now()

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, 6*time.Second, time.Since(start)) // 12 messages, 6 of them in a row
		require.Equal(t, 2, most)
		require.Equal(t, 1, mostOfOne)
		require.Equal(t, []string{
			"Deposited account-hot@0", "Deposited account-hot+key@0", "Deposited account-hot@1",
			"Deposited account-hot+key@1", "Deposited account-hot@2", "Deposited account-hot+key@2",
		}, hot)
	})
}

func TestAMessageThatWaitsForItsRetryHoldsUpOnlyItsOwnID(t *testing.T) {
	t.Parallel()
	for concurrency, want := range map[int][]string{
		1: {"account-1@0", "account-1@1", "account-2@0"},
		2: {"account-2@0", "account-1@0", "account-1@1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			write(t, store, "account-1", Deposited{1}, Deposited{2})
			write(t, store, "account-2", Deposited{3})
			j := &journal{}
			failed := false
			c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
				if m.GlobalPosition == 1 && !failed {
					failed = true
					return handler.RetryAfter(time.Minute, errBroken)
				}
				return j.Handle(ctx, m)
			}), &consumer.Config{Concurrency: concurrency})

			require.NoError(t, c.CatchUp(t.Context()))

			require.Equal(t, want, j.all())
		})
	}
}

// With one slow message, the consumer reads no more than two batches, and delivers no more
// messages than a crash may redeliver.
func TestReadAheadIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-slow", Deposited{1})
		for i := range 500 {
			write(t, store, account.Stream(fmt.Sprint(i%50)), Deposited{i})
		}
		var read atomic.Int64
		tapped := &tap{Store: store}
		tapped.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
			page, err := store.ReadCategoryPage(t.Context(), q)
			for _, m := range page.Messages { // of which the first may be one that was read before
				read.Store(max(read.Load(), int64(m.GlobalPosition)))
			}
			return &page, err
		}
		var handled, ahead atomic.Int64
		c := newConsumer(t, tapped, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Stream == "account-slow" {
				time.Sleep(10 * time.Minute)
				ahead.Store(handled.Load())
			}
			handled.Add(1)
			return nil
		}), &consumer.Config{Concurrency: 2, BatchSize: 10, CheckpointMessages: 5})
		stop := running(t, c)
		time.Sleep(time.Minute)
		synctest.Wait()

		require.Equal(t, int64(20), read.Load())
		time.Sleep(20 * time.Minute)
		require.Equal(t, int64(501), handled.Load())
		require.LessOrEqual(t, ahead.Load(), int64(15))
		require.NoError(t, stop())
	})
}

func TestAConsumerRunsOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newConsumer(t, newStore(), &journal{}, nil)
		stop := running(t, c)
		synctest.Wait()

		require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
		require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrRunning)

		require.NoError(t, stop())
		require.NoError(t, c.CatchUp(t.Context()))
		stop = running(t, c)
		synctest.Wait()
		require.NoError(t, stop())
	})
}

func TestADoneContextRunsNothing(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	j := &journal{}
	c := newConsumer(t, store, j, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.NoError(t, c.Run(ctx))
	require.ErrorIs(t, c.CatchUp(ctx), context.Canceled)
	require.Empty(t, j.all())
}

func TestStatsCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
		failures := 2
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Position == 1 && failures > 0 {
				failures--
				return errBroken
			}
			if m.Position == 2 {
				return errHopeless
			}
			return nil
		}), nil)

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, consumer.Stats{Handled: 2, Failed: 3, Retried: 2, Parked: 1, Position: 4, Head: 3}, c.Stats())
	})
}

func TestConcurrentHandlersAreAllUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 64 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			time.Sleep(time.Second)
			return nil
		}), &consumer.Config{Concurrency: 16})
		start := time.Now()

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, 4*time.Second, time.Since(start))
	})
}

func TestOneAfterTheOtherIsInOrderOfTheCategory(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 300 {
		write(t, store, account.Stream(fmt.Sprint(i*7%11)), Deposited{i})
	}
	var seen []messagestore.GlobalPosition
	c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		seen = append(seen, m.GlobalPosition)
		return nil
	}), nil)

	require.NoError(t, c.CatchUp(t.Context()))

	require.Len(t, seen, 300)
	require.True(t, slices.IsSorted(seen))
}

// A message that is due while the hand is full is no reason to wake up, again and
// again: in a bubble, time would stand still.
func TestAMessageThatIsDueWaitsForAFreeHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 3 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		failed := false
		c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			if m.Stream == "account-0" {
				if !failed {
					failed = true
					return handler.RetryAfter(time.Minute, errBroken)
				}
				return nil
			}
			time.Sleep(time.Hour)
			return nil
		}), &consumer.Config{Concurrency: 2})
		start := time.Now()

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, time.Hour, time.Since(start))
	})
}

// The position moves over a message and over those behind it that the filter kept back,
// together.
func TestWhatIsKeptBackBehindAMessageIsPassedWithIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Withdrawn{}, Withdrawn{})
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			time.Sleep(5 * time.Second)
			return nil
		}), &consumer.Config{OnlyKnown: true})
		stop := running(t, c)
		time.Sleep(time.Second)

		require.NoError(t, stop())

		require.Equal(t, messagestore.GlobalPosition(4), c.Stats().Position)
	})
}

// A handler wakes the reader, which finds nothing: that is not the end yet.
func TestCatchUpDoesNotEndWhileMessagesAreInHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
		c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			_, err := store.Write(ctx, "account-2", messagestore.AnyVersion, Withdrawn{})
			time.Sleep(time.Second)
			return err
		}), &consumer.Config{OnlyKnown: true})

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, int64(3), c.Stats().Handled)
	})
}

// A silent store is one that does not answer any more once it was told to fall silent.
type silent struct {
	*messagestore.Store
	now atomic.Bool
}

func (s *silent) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if s.now.Load() {
		<-ctx.Done()
		return messagestore.CategoryPage{}, ctx.Err()
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

// A run that stops, with nothing in flight and no checkpoint to store, only asks whether
// it may go on.
func TestAStopDoesNotWaitToSeeWhetherTheRunMayGoOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &silent{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1}, Deposited{2})
		stop := running(t, newConsumer(t, store, always(errBroken), &consumer.Config{Errors: againAndAgain}))
		time.Sleep(5*time.Second + time.Second/2)
		store.now.Store(true)
		time.Sleep(6 * time.Second) // and it asks since one
		start := time.Now()

		require.NoError(t, stop())
		require.Less(t, time.Since(start), time.Second)
	})
}
