package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// everyStore runs a test on a store of every kind, in a category of its own.
func everyStore(t *testing.T, test func(t *testing.T, store *messagestore.Store, category messagestore.Category)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) messagestore.Driver{
		"Memory": func(*testing.T) messagestore.Driver { return newDriver() },
		"SQLite": func(t *testing.T) messagestore.Driver {
			t.Helper()
			driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			return driver
		},
		"Postgres": func(t *testing.T) messagestore.Driver {
			t.Helper()
			return testkit.Must(postgres.New(pgtest.Pool(t), nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, testkit.Must(messagestore.New(open(t), nil)), storetest.Category(t))
		})
	}
}

func newIn(t *testing.T, store consumer.Store, category messagestore.Category, name string, h consumer.Handler, config *consumer.Config) *consumer.Consumer {
	t.Helper()
	return newNamed(store, category, name, h, config)
}

func positionsNow(t *testing.T, store *messagestore.Store, category messagestore.Category) []operate.Status {
	t.Helper()
	all, err := operate.Consumers(t.Context(), store, category)
	require.NoError(t, err)
	return all
}

// endOf returns the position behind a category.
func endOf(t *testing.T, store *messagestore.Store, category messagestore.Category) messagestore.GlobalPosition {
	t.Helper()
	end, err := store.End(t.Context(), category)
	require.NoError(t, err)
	return end
}

func TestPositionsTellWhereConsumersAre(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		require.Empty(t, positionsNow(t, store, category))
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
		require.NoError(t, newIn(t, store, category, "b", always(errHopeless), nil).CatchUp(t.Context()))
		end := endOf(t, store, category)
		write(t, store, category.Stream("2"), Deposited{4}, Deposited{5})
		oldest, err := store.Last(t.Context(), category.Stream("2"))
		require.NoError(t, err)
		a := newIn(t, store, category, "a", always(nil), nil)
		require.NoError(t, a.CatchUp(t.Context()))
		// Consumers of other categories in the same store.
		require.NoError(t, newIn(t, store, category.WithType("command"), "other", always(nil), nil).CatchUp(t.Context()))

		all := positionsNow(t, store, category)

		require.Len(t, all, 2)
		require.Equal(t, "a", all[0].Name)
		require.Equal(t, a.Stats().Position, all[0].Position)
		require.Zero(t, all[0].Lag)
		require.Zero(t, all[0].Oldest)
		require.Zero(t, all[0].Parked)
		require.Equal(t, "b", all[1].Name)
		require.Equal(t, category, all[1].Category)
		require.Equal(t, messagestore.Version(0), all[1].Generation)
		require.Equal(t, 3, all[1].Parked)
		require.NotZero(t, all[1].StartedAt)
		m := all[1]
		require.Equal(t, end, m.Position)
		require.Equal(t, int64(2), m.Lag)
		require.False(t, m.AtLeast)
		require.False(t, m.Oldest.After(oldest.Time))
		require.NotZero(t, m.Oldest)
		require.NotZero(t, m.RecordedAt)
		require.NoError(t, m.PositionErr)
		require.Empty(t, m.Replicas)
	})
}

func TestLagIsCountedUpToABound(t *testing.T) {
	t.Parallel()
	store := newStore()
	require.NoError(t, newConsumer(t, store, always(nil), nil).CatchUp(t.Context()))
	batch := make([]messagestore.Body, 1000)
	for i := range batch {
		batch[i] = Deposited{i}
	}
	for range operate.MaxLag / len(batch) {
		write(t, store, "account-1", batch...)
	}
	m := positionsNow(t, store, account)[0]
	require.Equal(t, int64(operate.MaxLag), m.Lag)
	require.False(t, m.AtLeast)

	write(t, store, "account-1", Deposited{1})

	m = positionsNow(t, store, account)[0]
	require.Equal(t, int64(operate.MaxLag), m.Lag)
	require.True(t, m.AtLeast)
}

// Eventide keeps a position in a stream without an identifier, or with the consumer's.
func TestPositionsOfOtherClientsAreTold(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
		second := endOf(t, store, category) - 2
		positions := category.WithType("position")
		write(t, store, positions.Stream("theirs"), raw("Recorded", `{"position": 0}`), raw("Recorded", fmt.Sprintf(`{"position": %d}`, second)))
		write(t, store, positions.Stream("broken"), raw("Recorded", `{"position": "many"}`))
		write(t, store, positions.Stream("something"), raw("Else", `{}`))

		all := positionsNow(t, store, category)

		require.Len(t, all, 2)
		require.True(t, all[0].Foreign)
		require.Equal(t, "broken", all[0].Name)
		require.ErrorIs(t, all[0].PositionErr, consumer.ErrPositionCorrupt)
		require.True(t, all[1].Foreign)
		require.Equal(t, "theirs", all[1].Name)
		require.Equal(t, second+1, all[1].Position)
		require.Equal(t, int64(1), all[1].Lag)
	})
}

func TestPositionsTellWhatIsWrong(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		positions := category.WithType("position")
		write(t, store, category.Stream("1"), Deposited{1})
		for name, recorded := range map[string]string{"ahead": `{"position": 999999999999}`, "less": `{"position": -1}`, "none": `{}`, "text": `{"position": "3"}`} {
			write(t, store, positions.Stream(name), raw("Started", `{"start": 0}`))
			write(t, store, positions.Stream(name).With("0"), raw("Recorded", recorded))
		}
		write(t, store, positions.Stream("start"), raw("Started", `{"start": -1}`))

		all := positionsNow(t, store, category)

		require.Len(t, all, 5)
		require.EqualError(t, all[4].PositionErr, fmt.Sprintf(`position is corrupt: %s-text+0@0: it is not like {"position": 3}`, positions))
		require.ErrorIs(t, all[0].PositionErr, consumer.ErrPositionAhead)
		require.ErrorIs(t, all[1].PositionErr, consumer.ErrPositionCorrupt)
		require.ErrorIs(t, all[2].PositionErr, consumer.ErrPositionCorrupt)
		require.ErrorIs(t, all[3].Err, consumer.ErrPositionCorrupt)
	})
}

func TestAfterAResetTheConsumerGoesOnFromThere(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		for i := range 6 {
			write(t, store, category.Stream(fmt.Sprint(i)), Deposited{i})
		}
		catchUp := func() []string {
			j := &journal{}
			require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
			return j.all()
		}
		require.Len(t, catchUp(), 6)
		require.Empty(t, catchUp())
		var at []messagestore.GlobalPosition
		for m, err := range store.ReadCategory(t.Context(), category, 0, messagestore.Filter{}) {
			require.NoError(t, err)
			at = append(at, m.GlobalPosition)
		}

		for _, r := range []struct {
			to   messagestore.GlobalPosition
			want int
		}{{0, 6}, {at[4], 2}, {at[5] + 1, 0}, {at[0] + 1, 5}, {at[2], 4}} {
			before := positionsNow(t, store, category)[0]
			move, err := operate.Consumer(store, category, "c").Reset(t.Context(), r.to)
			require.NoError(t, err)
			require.Equal(t, before.Generation+1, move.Generation)
			require.Equal(t, before.Position, move.From)
			require.NoError(t, move.FromErr)
			status := positionsNow(t, store, category)[0]
			require.Equal(t, move.Generation, status.Generation)
			require.Equal(t, r.to, status.Position)
			require.Zero(t, status.RecordedAt)
			require.Len(t, catchUp(), r.want, "from %d", r.to)
			require.Empty(t, catchUp())
		}
	})
}

func TestAConsumerIsCreatedOnceWhereItIsToBegin(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		for range 3 {
			write(t, store, category.Stream("1"), Deposited{1})
		}
		end := endOf(t, store, category)
		target := operate.Consumer(store, category, "c")
		require.ErrorIs(t, target.Create(t.Context(), -1), messagestore.ErrInvalid)
		beyond, is := errors.AsType[*operate.BeyondEndError](target.Create(t.Context(), end+1))
		require.True(t, is)
		require.Equal(t, end, beyond.End)
		require.Empty(t, positionsNow(t, store, category))

		require.NoError(t, target.Create(t.Context(), end))

		known, is := errors.AsType[*operate.KnownConsumerError](target.Create(t.Context(), 0))
		require.True(t, is)
		require.Equal(t, operate.KnownConsumerError{Category: category, Name: "c"}, *known)
		write(t, store, category.Stream("2"), Deposited{1})
		c := newIn(t, store, category, "c", always(nil), nil)
		require.NoError(t, c.CatchUp(t.Context()))
		require.Equal(t, int64(1), c.Stats().Handled)
	})
}

// The consumer runs, and is never idle; the resets come in between.
func TestAConsumerThatRunsNeverGoesOnAtTheOldPositionAfterAReset(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		stop := make(chan struct{})
		written := make(chan int)
		go func() {
			n := 0
			for on := true; on; {
				select {
				case <-stop:
					on = false
				default:
					if _, err := store.Write(context.Background(), category.Stream(fmt.Sprint(n%5)), messagestore.AnyVersion, Deposited{n}); err != nil {
						n = -1_000_000
					}
					n++
				}
			}
			written <- n
		}()
		j, log := &journal{}, logbook{}
		c := newIn(t, store, category, "c", j, &consumer.Config{CheckpointMessages: 3, BatchSize: 10, PollInterval: time.Millisecond, Logger: log.logger()})
		end := running(t, c)
		first := fmt.Sprintf("%s@0", category.Stream("0"))
		deliveries := func() (n int) {
			for _, m := range j.all() {
				if m == first {
					n++
				}
			}
			return n
		}
		for resets := range 3 {
			testkit.AwaitTrue(t, "a checkpoint is stored", func() bool { return deliveries() == resets+1 && c.Stats().Position > 0 })

			move, err := operate.Consumer(store, category, "c").Reset(t.Context(), 0)

			require.NoError(t, err)
			testkit.AwaitTrue(t, "it starts over", func() bool { return deliveries() == resets+2 })
			require.Equal(t, move.Generation, positionsNow(t, store, category)[0].Generation)
			require.Len(t, log.of(t, "consumer starts again"), resets+1)
		}
		close(stop)
		n := <-written
		require.Positive(t, n)
		behind := endOf(t, store, category)
		testkit.AwaitTrue(t, "it catches up", func() bool { return c.Stats().Position == behind })
		require.NoError(t, end())
		all := j.all()
		from := slices.Index(all, first)
		for i, m := range all {
			if m == first {
				from = i
			}
		}
		require.Len(t, all[from:], n, "everything once more, and once: no checkpoint of before counts")
	})
}

// Whether one handles the category in order, or replicas share it.
func TestAResetEndsNoProcess(t *testing.T) {
	t.Parallel()
	for name, configs := range map[string][]consumer.Config{
		"InOrder": {{}, {}},
		"Shared":  {{Concurrency: 4}, {Concurrency: 4}, {Concurrency: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := newDriver()
				all := writeEach(t, driver, 64, 0)
				members := make([]*replica, len(configs))
				for i := range configs {
					members[i] = newReplica(t, driver, &configs[i])
				}
				time.Sleep(time.Minute)
				before := 0
				for _, m := range members {
					before += len(m.all())
				}
				require.Equal(t, len(all), before)
				start := time.Now()

				_, err := operate.Consumer(testkit.Must(messagestore.New(driver, nil)), account, "ledger").Reset(t.Context(), 0)

				require.NoError(t, err)
				after := func() (again []string) {
					for _, m := range members {
						again = append(again, m.all()...)
					}
					return again
				}
				for len(after()) < 2*len(all) && time.Since(start) < 11*time.Second {
					time.Sleep(100 * time.Millisecond)
				}
				require.ElementsMatch(t, append(all, all...), after())
				time.Sleep(time.Minute)
				require.Len(t, after(), 2*len(all))
				if name == "Shared" {
					replicas := positionsNow(t, testkit.Must(messagestore.New(driver, nil)), account)[0].Replicas
					require.Len(t, replicas, 3)
					for _, r := range replicas {
						require.GreaterOrEqual(t, r.Slots, operate.Slots/3)
					}
				}
				for _, m := range members {
					require.NoError(t, m.stop(), "each has gone on until it was told to stop")
				}
			})
		})
	}
}

// The ledger is read in an outage: the process finds out about the reset later.
func TestAResetThatCannotBeReadIsReadAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, nil))
		time.Sleep(time.Second)
		store.set(func(s *tap) {
			s.look = func(messagestore.StreamName) error { return errStore }
		})

		_, err := operate.Consumer(store.Store, account, "ledger").Reset(t.Context(), 0)

		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Len(t, j.all(), 1)
		store.set(func(s *tap) { s.look = nil })
		time.Sleep(10 * time.Second)
		require.Len(t, j.all(), 2)
		require.NoError(t, stop())
	})
}

// It records nothing while there is nothing to do, so it would never find out.
func TestAnIdleConsumerFindsOutThatItWasReset(t *testing.T) {
	t.Parallel()
	for _, poll := range []time.Duration{0, 8 * time.Second, 79 * time.Second, time.Hour} {
		for _, idle := range []time.Duration{time.Second, 10 * time.Second, 2 * time.Hour} {
			t.Run(fmt.Sprint(poll, idle), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := newStore()
					write(t, store, "account-1", Deposited{1})
					j, log := &journal{}, logbook{}
					stop := running(t, newConsumer(t, store, j, &consumer.Config{PollInterval: poll, Logger: log.logger()}))
					time.Sleep(idle)
					require.Len(t, j.all(), 1)

					_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)

					require.NoError(t, err)
					time.Sleep(10*time.Second + time.Millisecond)
					require.Len(t, j.all(), 2)
					again := log.of(t, "consumer starts again")
					require.Len(t, again, 1)
					require.Contains(t, again[0]["error"], "an operator reset the consumer to position 0: it starts over there")
					require.NoError(t, stop())
				})
			})
		}
	}
}

// A message that fails again and again keeps the position where it is, so that nothing is
// recorded, and with another behind it nothing is read.
func TestAConsumerThatRetriesFindsOutThatItWasReset(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]consumer.Config{"InOrder": {}, "InParallel": {Concurrency: 2, BatchSize: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newStore()
				write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
				config.Errors = againAndAgain
				var third atomic.Int64
				stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
					if m.Position == 2 {
						third.Add(1)
						return nil
					}
					return errBroken
				}), &config))
				time.Sleep(time.Minute)

				_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 3)

				require.NoError(t, err)
				time.Sleep(11 * time.Second)
				require.Equal(t, int64(1), third.Load(), "it goes on behind those that fail")
				require.NoError(t, stop())
			})
		})
	}
}

// A redriven message moves no position, and a consumer with enough of them reads no
// further messages.
func TestAConsumerThatRedrivesFindsOutThatItWasReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 8 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		park(t, store, account, "ledger")
		retry(t, store, account, "ledger")
		var log logbook
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			select {
			case <-ctx.Done():
			case <-time.After(30 * time.Second):
			}
			return ctx.Err()
		}), &consumer.Config{Concurrency: 2, Grace: time.Second, Logger: log.logger()}))
		time.Sleep(5 * time.Second)

		_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)

		require.NoError(t, err)
		time.Sleep(11*time.Second + time.Millisecond)
		require.Len(t, log.of(t, "consumer starts again"), 1)
		require.NoError(t, stop())
	})
}

// againAndAgain has a message retried until the consumer stops.
var againAndAgain = consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: time.Second}}

// Each recording makes sure by itself that the run may go on.
func TestAConsumerThatRecordsMakesSureByNothingElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &asked{tap: &tap{Store: newStore()}}
		for i := range 100 {
			write(t, store.Store, "account-1", Deposited{i})
		}
		var recorded atomic.Int64
		store.wrote = func(_ messagestore.StreamName, body messagestore.Body) {
			if body.MessageType() == "Recorded" {
				recorded.Add(1)
			}
		}
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			time.Sleep(time.Second)
			return nil
		}), &consumer.Config{CheckpointInterval: 5 * time.Second})
		stop := running(t, c)
		time.Sleep(61*time.Second + time.Millisecond)
		synctest.Wait()

		require.Greater(t, recorded.Load(), int64(9))
		require.Equal(t, recorded.Load(), store.epochs.Load(), "one when it started, and joined")
		require.NoError(t, stop())
	})
}

// An asked store counts how often it is asked for its epoch.
type asked struct {
	*tap
	epochs atomic.Int64
}

func (s *asked) Epoch(context.Context) (string, error) {
	s.epochs.Add(1)
	return "", nil
}

// A hooked driver calls a function before the next append.
type hooked struct {
	messagestore.Driver
	before func()
}

func (d *hooked) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if before := d.before; before != nil {
		d.before = nil
		before()
	}
	return d.Driver.Append(ctx, a)
}

func TestAResetAndAPauseAtOnceBothCount(t *testing.T) {
	t.Parallel()
	driver := &hooked{Driver: newDriver()}
	store := testkit.Must(messagestore.New(driver, nil))
	write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	driver.before = func() {
		setPaused(t, store, true)
	}

	move, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 2)

	require.NoError(t, err)
	require.Equal(t, messagestore.GlobalPosition(4), move.From)
	s := positionsNow(t, store, account)[0]
	require.Equal(t, messagestore.Version(2), s.Generation)
	require.NotZero(t, s.PausedAt)
	require.Equal(t, messagestore.GlobalPosition(2), s.Position)
}

func TestOfTwoResetsAtOnceTheLaterMovesFromWhereTheEarlierHasPut(t *testing.T) {
	t.Parallel()
	driver := &hooked{Driver: newDriver()}
	store := testkit.Must(messagestore.New(driver, nil))
	write(t, store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	var earlier operate.Move
	driver.before = func() {
		var err error
		earlier, err = operate.Consumer(store, account, "ledger").Reset(t.Context(), 3)
		require.NoError(t, err)
	}

	later, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 2)

	require.NoError(t, err)
	require.Equal(t, messagestore.GlobalPosition(4), earlier.From)
	require.Equal(t, messagestore.GlobalPosition(3), later.From)
	require.Equal(t, earlier.Generation+1, later.Generation)
	require.Equal(t, messagestore.GlobalPosition(2), positionsNow(t, store, account)[0].Position)
}

func TestResetRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2})
		require.NoError(t, newIn(t, store, category, "c", &journal{}, nil).CatchUp(t.Context()))
		end := endOf(t, store, category)
		before := positionsNow(t, store, category)

		for _, beyond := range []messagestore.GlobalPosition{end + 1, 1 << 62} {
			_, err := operate.Consumer(store, category, "c").Reset(t.Context(), beyond)
			require.ErrorIs(t, err, consumer.ErrPositionAhead)
			require.ErrorContains(t, err, fmt.Sprintf("position %d is ahead of the store: category %s ends before %d", beyond, category, end))
		}
		_, err := operate.Consumer(store, category, "c").Reset(t.Context(), -1)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		_, err = operate.Consumer(store, category, "d").Reset(t.Context(), 0)
		_, unknown := errors.AsType[*operate.UnknownConsumerError](err)
		require.True(t, unknown)
		require.ErrorContains(t, err, "unknown consumer d of "+string(category)+": there is c")
		for _, name := range []string{"", "a-b", "a+b", "a b", "a\x1b"} {
			_, err = operate.Consumer(store, category, name).Reset(t.Context(), 0)
			require.ErrorIs(t, err, messagestore.ErrInvalid)
		}
		_, err = operate.Consumer(store, "not-a-category", "c").Reset(t.Context(), 0)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.Equal(t, before, positionsNow(t, store, category))
	})
}

// A reset mends a consumer that a position ahead of the store stops.
func TestAResetMendsAPositionThatIsAhead(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	write(t, store, positions.Stream("ledger").With("0"), raw("Recorded", `{"position": 1000, "after": "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"}`))
	require.ErrorIs(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()), consumer.ErrPositionAhead)

	_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 2)

	require.NoError(t, err)
	j := &journal{}
	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	require.Equal(t, []string{"account-1@1"}, j.all())
}

// A dated driver has messages of the times that are in its list, by their order.
type dated struct {
	messagestore.Driver
	times []time.Time
	reads *int
}

func (d dated) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	*d.reads++
	page, err := d.Driver.ReadCategory(ctx, q)
	for _, m := range page.Messages {
		m.Time = d.times[m.Position]
	}
	return page, err
}

func TestATimeIsFoundAmongMessages(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	var times []time.Time
	for i := range 3000 {
		times = append(times, zero.Add(time.Duration(i/2)*time.Second))
	}
	reads := 0
	store := testkit.Must(messagestore.New(dated{newDriver(), times, &reads}, nil))
	for i := range times {
		if i%2 == 0 { // so that there are gaps between the positions
			write(t, store, "other-1", Deposited{i})
		}
		write(t, store, "account-1", Deposited{i})
	}
	at := func(when time.Time) messagestore.Version {
		reads = 0
		position, err := store.PositionAt(t.Context(), account, when)
		require.NoError(t, err)
		require.Less(t, reads, 200)
		page, err := store.ReadCategoryPage(t.Context(), messagestore.CategoryQuery{Category: account, From: position, Limit: 1})
		require.NoError(t, err)
		if len(page.Messages) == 0 {
			return messagestore.Version(len(times))
		}
		require.Equal(t, page.Messages[0].GlobalPosition, position)
		return page.Messages[0].Position
	}
	require.Equal(t, messagestore.Version(0), at(zero.Add(-time.Hour)))
	require.Equal(t, messagestore.Version(0), at(zero))
	require.Equal(t, messagestore.Version(2), at(zero.Add(time.Microsecond)))
	require.Equal(t, messagestore.Version(2000), at(zero.Add(1000*time.Second)))
	require.Equal(t, messagestore.Version(2998), at(zero.Add(1499*time.Second)))
	require.Equal(t, messagestore.Version(3000), at(zero.Add(1500*time.Second)))

	// A transaction that began long ago, and committed among later ones.
	for i := 1500; i < 1520; i++ {
		times[i] = zero.Add(time.Second)
	}
	times[1499] = zero
	for seconds := 2; seconds < 1000; seconds += 7 {
		when := zero.Add(time.Duration(seconds) * time.Second)
		found := at(when)
		for i := range found {
			if !times[i].Before(when) {
				t.Fatalf("message %d is of %v, and %v is asked for", i, times[i], when)
			}
		}
	}
	none, err := store.PositionAt(t.Context(), "nothing", zero)
	require.NoError(t, err)
	require.Zero(t, none)
}
