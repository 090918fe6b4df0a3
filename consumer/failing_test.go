package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A refuser parks the messages with the amounts in bad, and notes each that it handles.
type refuser struct {
	mu      sync.Mutex
	bad     map[int]error
	handled []*messagestore.Message
}

func (r *refuser) Handle(_ context.Context, m *messagestore.Message) error {
	d, err := messagestore.Decode[Deposited](m)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.bad[d.Amount]; err != nil {
		return err
	}
	r.handled = append(r.handled, m)
	return nil
}

func (r *refuser) all() []*messagestore.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.handled)
}

func (r *refuser) set(amount int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad == nil {
		r.bad = map[int]error{}
	}
	r.bad[amount] = err
}

// retryEach retries for ever, about each interval.
func retryEach(interval time.Duration) consumer.ErrorPolicy {
	return consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: interval}}
}

// statusIn returns where the one consumer of a category is, as any process sees it.
func statusIn(t *testing.T, store *messagestore.Store, category messagestore.Category) operate.Status {
	t.Helper()
	all, err := operate.Consumers(t.Context(), store, category)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.NoError(t, all[0].Err)
	return all[0]
}

// checkpoints counts the checkpoints of ledger, of its first generation.
func checkpoints(t *testing.T, store *messagestore.Store) int {
	t.Helper()
	version, err := store.Version(t.Context(), positions.Stream("ledger").With("0"))
	require.NoError(t, err)
	return int(version) + 1
}

// A message that fails fifty times a second costs one checkpoint a second.
func TestAFailingMessageIsStoredAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]*consumer.Config{
		"Replica": {}, "Concurrent": {Concurrency: 8}, "SeldomCheckpoints": {CheckpointInterval: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := newStore(), &refuser{}
				config.Errors = retryEach(20 * time.Millisecond)
				write(t, store, "account-1", Deposited{0}, Deposited{1}, Deposited{2})
				stop := running(t, newConsumer(t, store, r, config))
				time.Sleep(time.Minute)
				before := checkpoints(t, store)
				r.set(4, errBroken)
				write(t, store, "account-1", Deposited{3}, Deposited{4}, Deposited{5})
				failing, err := store.Last(t.Context(), "account-1")
				require.NoError(t, err)
				began := time.Now()
				time.Sleep(2 * time.Second)

				s := statusIn(t, store, account)
				require.Len(t, s.Failing, 1)
				f := s.Failing[0]
				require.Equal(t, "account-1@4 Deposited broken", fmt.Sprintf("%s@%d %s %s", f.Stream, f.Position, f.Type, f.Error))
				require.Equal(t, failing.GlobalPosition-1, f.GlobalPosition)
				require.NotZero(t, f.ID)
				require.Greater(t, f.Attempts, 40)
				require.WithinDuration(t, began, f.FirstFailedAt, 200*time.Millisecond)
				require.Zero(t, s.MoreFailing)
				require.Equal(t, f.GlobalPosition, s.Position)

				time.Sleep(time.Minute)
				again := statusIn(t, store, account)
				require.Len(t, again.Failing, 1)
				require.Greater(t, again.Failing[0].Attempts, 10*f.Attempts)
				require.Equal(t, f.FirstFailedAt, again.Failing[0].FirstFailedAt)
				n := checkpoints(t, store) - before
				require.LessOrEqual(t, n, 63)
				require.Greater(t, n, 55)

				r.set(4, nil)
				time.Sleep(1100 * time.Millisecond) // a back-off, and a second
				require.Len(t, r.all(), 6)
				require.Empty(t, statusIn(t, store, account).Failing)
				before = checkpoints(t, store)
				time.Sleep(time.Hour)
				require.LessOrEqual(t, checkpoints(t, store), before+1) // the position, if it is stored seldom
				require.NoError(t, stop())
			})
		})
	}
}

// A message that succeeds soon costs no checkpoint of its own.
func TestAMessageThatSucceedsAtOnceOrSoonCostsNoCheckpoint(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]int{"Healthy": 0, "AtItsSecondAttempt": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				failed := 0
				c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					if time.Sleep(10 * time.Millisecond); failed < fails {
						failed++
						return errBroken
					}
					return nil
				}), &consumer.Config{CheckpointInterval: 4 * time.Second})
				for range 1000 {
					write(t, store, "account-1", Deposited{1})
				}
				stop := running(t, c)
				time.Sleep(time.Hour)
				require.Equal(t, int64(1000), c.Stats().Handled)
				require.NoError(t, stop())
				// It joins, is at 400, 800, and the end, and leaves.
				require.Equal(t, 5, checkpoints(t, store))
			})
		})
	}
}

// A handler's error may be long and hold anything, and all lanes may fail.
func TestStoredFailuresAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 35 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		odd := errors.New("\x00\xff\x1b[2J\u0085" + strings.Repeat("é", 100_000))
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			time.Sleep(time.Duration(m.GlobalPosition) * time.Millisecond) // so that they begin to fail one after the other
			return odd
		}), &consumer.Config{Concurrency: 64, Errors: retryEach(time.Hour)}))
		time.Sleep(20 * time.Second)

		s := statusIn(t, store, account)
		require.Len(t, s.Failing, 10)
		require.Equal(t, 25, s.MoreFailing)
		for i, f := range s.Failing {
			require.Equal(t, account.Stream(fmt.Sprint(i)), f.Stream)
			require.LessOrEqual(t, len(f.Error), 3*1024+len("…"))
			require.False(t, strings.ContainsFunc(f.Error, unicode.IsControl))
		}
		last, err := store.Last(t.Context(), positions.Stream("ledger").With("0"))
		require.NoError(t, err)
		require.Less(t, len(last.Data), 40_000)
		require.NoError(t, stop())
		require.Len(t, statusIn(t, store, account).Failing, 10, "of a consumer that has stopped")
	})
}

// The next run, here of another process, goes on with the count of attempts and the time of the first.
func TestAFailingMessageIsStillStoredAfterAHandOver(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*replica){
		"Stops":    func(r *replica) { _ = r.stop() },
		"IsKilled": func(r *replica) { r.store.kill() },
	} {
		for _, concurrency := range []int{1, 8} {
			t.Run(fmt.Sprint(name, concurrency), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					driver := newDriver()
					store, r := testkit.Must(messagestore.New(driver, nil)), &refuser{}
					r.set(7, errBroken)
					config := &consumer.Config{Concurrency: concurrency, Errors: retryEach(time.Minute)}
					first := newReplicaOf(t, driver, r, config)
					writeEach(t, driver, 20, 0)
					time.Sleep(20 * time.Minute)
					before := statusIn(t, store, account)
					require.Len(t, before.Failing, 1)
					require.Greater(t, before.Failing[0].Attempts, 15)

					second := newReplicaOf(t, driver, r, config)
					for range 100 { // the slots move, or stay
						time.Sleep(100 * time.Millisecond)
						require.Len(t, statusIn(t, store, account).Failing, 1)
					}
					leave(first)
					for range 300 {
						time.Sleep(100 * time.Millisecond)
						require.Len(t, statusIn(t, store, account).Failing, 1)
					}
					time.Sleep(2 * time.Minute)

					after := statusIn(t, store, account)
					require.Len(t, after.Failing, 1)
					require.Greater(t, after.Failing[0].Attempts, before.Failing[0].Attempts)
					require.Equal(t, before.Failing[0].FirstFailedAt, after.Failing[0].FirstFailedAt)
					require.Equal(t, before.Failing[0].ID, after.Failing[0].ID)

					r.set(7, nil)
					time.Sleep(2 * time.Minute)
					s := statusIn(t, store, account)
					require.Empty(t, s.Failing)
					require.Zero(t, s.MoreFailing)
					require.NoError(t, second.stop())
					_ = first.stop()
				})
			})
		}
	}
}

func TestEachReplicaStoresTheFailingMessagesOfItsSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store, r := testkit.Must(messagestore.New(driver, nil)), &refuser{}
		config := &consumer.Config{Concurrency: 8, Errors: retryEach(time.Minute)}
		first, second := newReplicaOf(t, driver, r, config), newReplicaOf(t, driver, r, config)
		time.Sleep(time.Minute)
		for i := range 6 {
			r.set(i, errBroken)
		}
		writeEach(t, driver, 20, 0)
		time.Sleep(10 * time.Minute)

		streams := map[messagestore.StreamName]bool{}
		for _, f := range statusIn(t, store, account).Failing {
			streams[f.Stream] = true
		}
		require.Len(t, streams, 6)
		for i := range 5 {
			r.set(i, nil)
		}
		time.Sleep(2 * time.Minute)
		s := statusIn(t, store, account)
		require.Len(t, s.Failing, 1)
		require.Equal(t, account.Stream("5"), s.Failing[0].Stream)
		require.NoError(t, first.stop())
		require.NoError(t, second.stop())
	})
}

// A message at which a consumer has stopped is named until a later run has handled it.
func TestTheMessageThatStoppedAConsumerIsNamedUntilItIsHandled(t *testing.T) {
	t.Parallel()
	run := func(c *consumer.Consumer) error { return c.Run(context.Background()) }
	catchUp := func(c *consumer.Consumer) error { return c.CatchUp(context.Background()) }
	for name, c := range map[string]struct {
		config consumer.Config
		run    func(*consumer.Consumer) error
	}{
		"Run": {run: run}, "CatchUp": {run: catchUp},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := newStore(), &refuser{}
				r.set(0, errBroken)
				write(t, store, "account-1", Deposited{0}, Deposited{1})
				c.config.Errors = stopAtOnce
				for attempt := 1; attempt <= 3; attempt++ {
					require.ErrorIs(t, c.run(newConsumer(t, store, r, &c.config)), errBroken)

					s := statusIn(t, store, account)
					require.Len(t, s.Failing, 1)
					require.Equal(t, messagestore.Version(0), s.Failing[0].Position)
					require.Equal(t, attempt, s.Failing[0].Attempts)
				}
				r.set(0, nil)
				require.NoError(t, newConsumer(t, store, r, &c.config).CatchUp(t.Context()))
				require.Empty(t, statusIn(t, store, account).Failing)
			})
		})
	}
}

func TestASkippedOrParkedMessageIsNotFailing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"Skip": handler.Skip("void"), "Park": errHopeless} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := newStore(), &refuser{}
				r.set(0, errBroken)
				write(t, store, "account-1", Deposited{0}, Deposited{1})
				stop := running(t, newConsumer(t, store, r, &consumer.Config{Errors: retryEach(time.Second)}))
				time.Sleep(10 * time.Second)
				require.Len(t, statusIn(t, store, account).Failing, 1)

				r.set(0, end)
				time.Sleep(2 * time.Second)
				require.Empty(t, statusIn(t, store, account).Failing)
				require.NoError(t, stop())
			})
		})
	}
}

// Failing messages are stored for operators: a consumer that cannot store them goes on.
func TestAConsumerThatCannotStoreFailingMessagesGoesOn(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]error{"Lasts": lastingError{}, "Invalid": messagestore.NewInvalidError("data", "x", "no"), "Heals": errStore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := &tap{Store: newStore()}, &refuser{}
				r.set(1, errBroken)
				write(t, store.Store, "account-1", Deposited{0})
				c := newConsumer(t, store, r, &consumer.Config{Errors: retryEach(time.Second)})
				stop := running(t, c)
				time.Sleep(10 * time.Second)
				var refused atomic.Int64
				store.set(func(s *tap) {
					s.write = func(stream messagestore.StreamName) error {
						if stream.Category() == positions {
							refused.Add(1)
							return broken
						}
						return nil
					}
				})
				write(t, store.Store, "account-1", Deposited{1})
				time.Sleep(time.Minute)
				require.Empty(t, statusIn(t, store.Store, account).Failing)
				require.Greater(t, refused.Load(), int64(30))
				require.Less(t, refused.Load(), int64(130))

				store.set(func(s *tap) { s.write = nil })
				time.Sleep(3 * time.Second)
				require.Len(t, statusIn(t, store.Store, account).Failing, 1)
				require.Greater(t, c.Stats().Failed, int64(30))
				store.set(func(s *tap) { s.write = func(messagestore.StreamName) error { return broken } })
				require.NoError(t, stop())
			})
		})
	}
}

// A checkpoint whose outcome is not known is neither lost nor taken for another process's checkpoint.
func TestFailingMessagesAreStoredAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := &tap{Store: newStore()}, &refuser{}
		r.set(0, errBroken)
		write(t, store.Store, "account-1", Deposited{0})
		lost := 0
		store.lost = func(stream messagestore.StreamName) error {
			if stream.Category() == positions && len(stream.IDs()) == 2 && lost < 20 {
				if lost++; lost%2 == 0 {
					return messagestore.ErrOutcomeUnknown
				}
			}
			return nil
		}
		c := newConsumer(t, store, r, &consumer.Config{Errors: retryEach(time.Second)})
		stop := running(t, c)
		time.Sleep(time.Minute)
		f := statusIn(t, store.Store, account).Failing
		require.Len(t, f, 1)
		require.InDelta(t, float64(c.Stats().Failed), float64(f[0].Attempts), 3)
		r.set(0, nil)
		time.Sleep(3 * time.Second)
		require.Empty(t, statusIn(t, store.Store, account).Failing)
		require.NoError(t, stop())
	})
}

// A list that a later version, or another client, writes in another form is no reason to stop.
func TestAListOfFailuresInAnotherFormIsNone(t *testing.T) {
	t.Parallel()
	for _, list := range []string{
		``, `,"failing":null`, `,"failing":"x"`, `,"failing":{"a":1}`, `,"failing":[1]`, `,"failing":[{"messageId":"x"}]`, `,"failing":[{"attempts":"many"}],"failingCount":[]`,
		`,"failingCount":"x"`, `,"failingCount":-3`, `,"failing":[],"failingCount":0`,
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
		for range 2 {
			write(t, store, "account-1", Deposited{3})
		}
		last, err := store.Last(t.Context(), positions.Stream("ledger").With("0"))
		require.NoError(t, err)
		write(t, store, last.Stream, messagestore.Raw{Type: "Recorded", Data: []byte(strings.TrimSuffix(string(last.Data), "}") + list + "}")})

		s := statusIn(t, store, account)
		require.NoError(t, s.PositionErr, list)
		require.Empty(t, s.Failing, list)
		require.Zero(t, s.MoreFailing, list)
		j := &journal{}
		require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()), list)
		require.Equal(t, []string{"account-1@2", "account-1@3"}, j.all(), list)
	}
}

// A message that fails in one process is seen in another, until it is handled.
func TestAFailingMessageIsSeenInAnotherProcess(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		store, elsewhere := openTwo(t, "sqlite:"+filepath.Join(t.TempDir(), "store.db"))
		testAFailingMessageIsSeen(t, store, elsewhere, account)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		pgtest.Pool(t) // migrates the database
		store, elsewhere := openTwo(t, pgtest.URL(t))
		testAFailingMessageIsSeen(t, store, elsewhere, storetest.Category(t))
	})
}

func testAFailingMessageIsSeen(t *testing.T, store, elsewhere *messagestore.Store, category messagestore.Category) {
	t.Helper()
	r := &refuser{}
	r.set(1, errors.New("the bank is closed"))
	stop := running(t, newIn(t, store, category, "ledger", r, &consumer.Config{Errors: retryEach(50 * time.Millisecond)}))
	stream := category.Stream("1")
	write(t, elsewhere, stream, Deposited{0}, Deposited{1}, Deposited{2})

	seen := func(attempts int) (f operate.Failure) {
		testkit.Await(t, "the message that fails", func() (bool, any) {
			all, err := operate.Consumers(t.Context(), elsewhere, category)
			if err != nil || len(all) != 1 || len(all[0].Failing) != 1 {
				return false, fmt.Sprint(all, err)
			}
			f = all[0].Failing[0]
			return f.Attempts > attempts, f
		})
		return f
	}
	first := seen(0)
	require.Equal(t, stream, first.Stream)
	require.Equal(t, messagestore.Version(1), first.Position)
	require.Equal(t, "the bank is closed", first.Error)
	again := seen(first.Attempts)
	require.Equal(t, first.ID, again.ID)
	require.True(t, first.FirstFailedAt.Equal(again.FirstFailedAt))

	r.set(1, nil)
	testkit.AwaitEqual(t, "messages that fail", 0, func() int { return len(statusIn(t, elsewhere, category).Failing) })
	require.NoError(t, stop())
}

// A message behind another whose handler is at work is handled while the position does not move.
func TestAMessageHandledBehindASlowOneIsNotFailing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{0})
		write(t, store, "account-2", Deposited{1})
		recovers := time.Now().Add(12500 * time.Millisecond)
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			switch {
			case m.Stream == "account-1":
				<-ctx.Done()
				return ctx.Err()
			case time.Now().Before(recovers):
				return errBroken
			}
			return nil
		}), &consumer.Config{Concurrency: 2, Errors: retryEach(100 * time.Millisecond)}))
		time.Sleep(12 * time.Second)
		require.Len(t, statusIn(t, store, account).Failing, 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, statusIn(t, store, account).Failing)
		require.NoError(t, stop())
	})
}

// A slowWriter is a store whose checkpoints take a while.
type slowWriter struct{ *messagestore.Store }

func (s slowWriter) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if stream.Category() == positions && len(stream.IDs()) == 2 {
		time.Sleep(700 * time.Millisecond)
	}
	return s.Store.Write(ctx, stream, expected, bodies...)
}

func TestAFailureDuringACheckpointIsStoredByTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{0})
		calls := 0
		stop := running(t, newConsumer(t, slowWriter{store}, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			if calls++; calls < 3 {
				return handler.RetryAfter(1300*time.Millisecond, fmt.Errorf("failure %d", calls))
			}
			<-ctx.Done()
			return ctx.Err()
		}), nil))
		time.Sleep(5 * time.Second)
		failing := statusIn(t, store, account).Failing
		require.Len(t, failing, 1)
		require.Equal(t, 2, failing[0].Attempts)
		require.Equal(t, "failure 2", failing[0].Error)
		require.NoError(t, stop())
	})
}

// A consumer may come back with a filter that leaves out the message that it stopped at.
func TestAMessageThatAFilterLeavesOutIsNotFailing(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Withdrawn{}, Deposited{1})
	fails := handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errBroken })
	require.ErrorIs(t, newConsumer(t, store, fails, &consumer.Config{Errors: stopAtOnce}).CatchUp(t.Context()), errBroken)
	require.Len(t, statusIn(t, store, account).Failing, 1)

	require.NoError(t, newConsumer(t, store, &journal{}, &consumer.Config{OnlyKnown: true}).CatchUp(t.Context()))
	require.Empty(t, statusIn(t, store, account).Failing)
}

// A message that is handled while the outcome of the checkpoint that names it is not known leaves the checkpoint, too.
// Another message keeps the position where it is.
func TestAMessageHandledDuringAnUnknownOutcomeIsNotFailing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		var recovers atomic.Bool
		store.wrote = func(_ messagestore.StreamName, body messagestore.Body) {
			if data, err := json.Marshal(body); err == nil && strings.Contains(string(data), "broken") {
				recovers.Store(true)
			}
		}
		lost := false
		store.lost = func(messagestore.StreamName) error {
			if recovers.Load() && !lost {
				lost = true
				return messagestore.ErrOutcomeUnknown
			}
			return nil
		}
		write(t, store.Store, "account-1", Deposited{0})
		write(t, store.Store, "account-2", Deposited{1})
		c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			switch {
			case m.Stream == "account-1":
				<-ctx.Done()
				return ctx.Err()
			case !recovers.Load():
				return errBroken
			}
			return nil
		}), &consumer.Config{Concurrency: 2, Errors: retryEach(time.Millisecond)})
		stop := running(t, c)
		time.Sleep(time.Minute)
		require.True(t, recovers.Load())
		require.Equal(t, int64(1), c.Stats().Handled)
		require.Empty(t, statusIn(t, store.Store, account).Failing)
		require.NoError(t, stop())
	})
}

// A paused consumer tries no message again, and writes nothing because of one.
func TestAFailingMessageIsStillStoredWhileTheConsumerIsPaused(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]consumer.Config{"Replica": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := newStore(), &refuser{}
				config.Errors = retryEach(time.Second)
				r.set(0, errBroken)
				write(t, store, "account-1", Deposited{0})
				stop := running(t, newConsumer(t, store, r, &config))
				time.Sleep(10 * time.Second)
				setPaused(t, store, true)
				time.Sleep(15 * time.Second) // until it has found out
				paused := statusIn(t, store, account)
				require.Len(t, paused.Failing, 1)
				before := checkpoints(t, store)

				time.Sleep(time.Hour)
				require.Equal(t, paused.Failing, statusIn(t, store, account).Failing)
				require.Equal(t, before, checkpoints(t, store))
				require.NoError(t, stop())
				stop = running(t, newConsumer(t, store, r, &config))
				time.Sleep(time.Hour)
				require.Equal(t, paused.Failing, statusIn(t, store, account).Failing)

				setPaused(t, store, false)
				time.Sleep(time.Minute)
				resumed := statusIn(t, store, account).Failing
				require.Len(t, resumed, 1)
				require.Greater(t, resumed[0].Attempts, paused.Failing[0].Attempts)
				require.Equal(t, paused.Failing[0].FirstFailedAt, resumed[0].FirstFailedAt)
				r.set(0, nil)
				time.Sleep(3 * time.Second)
				require.Empty(t, statusIn(t, store, account).Failing)
				require.NoError(t, stop())
			})
		})
	}
}

func TestAResetBeginsWithoutFailingMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store, r := testkit.Must(messagestore.New(driver, nil)), &refuser{}
		config := &consumer.Config{Concurrency: 8, Errors: retryEach(time.Second)}
		first, second := newReplicaOf(t, driver, r, config), newReplicaOf(t, driver, r, config)
		for i := range 20 {
			r.set(i, errBroken)
		}
		writeEach(t, driver, 20, 0)
		time.Sleep(time.Minute)
		s := statusIn(t, store, account)
		require.Len(t, s.Failing, 10)
		require.Positive(t, s.MoreFailing)
		end, err := store.End(t.Context(), account)
		require.NoError(t, err)

		_, err = operate.Consumer(store, account, "ledger").Reset(t.Context(), end)
		require.NoError(t, err)
		for range 600 {
			s := statusIn(t, store, account)
			require.Empty(t, s.Failing)
			require.Zero(t, s.MoreFailing)
			time.Sleep(100 * time.Millisecond)
		}
		require.NoError(t, first.stop())
		require.NoError(t, second.stop())
		require.Empty(t, statusIn(t, store, account).Failing)
	})
}
