package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

// setPaused pauses the consumer, or has it go on, and wants that to change something.
func setPaused(t *testing.T, store *messagestore.Store, paused bool) {
	t.Helper()
	target, do := operate.Consumer(store, account, "ledger"), (*operate.Target).Resume
	if paused {
		do = (*operate.Target).Pause
	}
	changed, err := do(target, t.Context())
	require.NoError(t, err)
	require.True(t, changed)
}

func TestAPausedConsumerTakesNoMessageUntilItIsResumed(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]consumer.Config{
		"Alone": {}, "Concurrent": {Concurrency: 8},
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/busy=%t", name, busy), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					driver := newDriver()
					store := testkit.Must(messagestore.New(driver, nil))
					config, log := config, &logbook{}
					config.Logger = log.logger()
					first := newReplica(t, driver, &config)
					before := writeEach(t, driver, 10, 0)
					time.Sleep(time.Minute)
					require.ElementsMatch(t, before, first.all(), "in whatever order its workers had them")

					setPaused(t, store, true)
					if !busy {
						time.Sleep(11 * time.Second) // until it has found out
					}
					position := 1
					for range 6 { // it has messages to find at each of its checks
						time.Sleep(2 * time.Second)
						if busy {
							writeEach(t, driver, 10, position)
							position++
						}
					}
					if !busy {
						writeEach(t, driver, 10, 1)
						position++
					}
					had := first.all()
					if !busy {
						require.ElementsMatch(t, before, had)
					}
					writeEach(t, driver, 10, position)
					time.Sleep(10 * time.Minute)
					require.Equal(t, had, first.all())
					require.Len(t, log.of(t, "consumer is paused"), 1)

					require.NoError(t, first.stop())
					second := newReplica(t, driver, &config)
					time.Sleep(10 * time.Minute)
					require.Empty(t, second.all(), "a start does not end the pause")

					setPaused(t, store, false)
					time.Sleep(11 * time.Second)
					all := append(first.all(), second.all()...)
					require.Len(t, all, 10*(position+1))
					for id := range 10 {
						for at := range position + 1 {
							require.Contains(t, all, fmt.Sprintf("account-%d@%d", id, at))
						}
					}
					require.NoError(t, second.stop())
				})
			})
		}
	}
}

// Replicas at several positions go on from each: a pause delivers nothing twice, which a new generation
// would.
func TestReplicasGoOnWhereTheyWerePaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		config := &consumer.Config{Concurrency: 4}
		first, second := newReplica(t, driver, config), newReplica(t, driver, config)
		time.Sleep(time.Minute)
		require.Len(t, writeEach(t, driver, 40, 0), 40)
		time.Sleep(time.Minute)
		status := func() operate.Status {
			all, err := operate.Consumers(t.Context(), store, account)
			require.NoError(t, err)
			require.Len(t, all, 1)
			return all[0]
		}
		running := status()
		require.Zero(t, running.PausedAt)
		require.Len(t, running.Replicas, 2)

		begun := time.Now()
		setPaused(t, store, true)
		time.Sleep(11 * time.Second)
		writeEach(t, driver, 40, 1)
		time.Sleep(10 * time.Minute)
		paused := status()
		require.True(t, begun.Equal(paused.PausedAt))
		require.Equal(t, running.StartedAt, paused.StartedAt)
		require.Equal(t, running.Generation, paused.Generation)
		require.Len(t, paused.Replicas, 2, "both keep their leases")
		require.Len(t, append(first.all(), second.all()...), 40)
		for _, r := range paused.Replicas {
			require.False(t, r.Gone)
		}

		setPaused(t, store, false)
		time.Sleep(11 * time.Second)
		require.Zero(t, status().PausedAt)
		all := append(first.all(), second.all()...)
		require.Len(t, all, 80)
		require.NotEmpty(t, first.all())
		require.NotEmpty(t, second.all())
		require.NoError(t, first.stop())
		require.NoError(t, second.stop())
	})
}

func TestAPauseLetsTheMessageInFlightEndAndItsRetriesWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		var attempts atomic.Int64
		release := make(chan struct{})
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			if attempts.Add(1) == 1 {
				<-release
				return nil
			}
			return errors.New("it fails")
		}), nil)
		stop := running(t, c)
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		synctest.Wait()
		setPaused(t, store, true)
		time.Sleep(10 * time.Minute)
		require.Equal(t, int64(1), attempts.Load())
		close(release)
		time.Sleep(time.Minute)
		require.Equal(t, int64(1), c.Stats().Handled)
		require.NotZero(t, c.Stats().Position, "its checkpoint is written")
		require.Equal(t, int64(1), attempts.Load())

		setPaused(t, store, false)
		time.Sleep(time.Minute)
		require.Greater(t, attempts.Load(), int64(2))
		setPaused(t, store, true)
		time.Sleep(11 * time.Second)
		tried := attempts.Load()
		time.Sleep(time.Minute)
		require.Equal(t, tried, attempts.Load())
		require.NoError(t, stop())
	})
}

func TestAPauseOutlivesAResetAndARestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		first := newReplica(t, driver, nil)
		written := writeEach(t, driver, 10, 0)
		time.Sleep(time.Minute)
		setPaused(t, store, true)
		time.Sleep(11 * time.Second)
		_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.Equal(t, written, first.all(), "nothing is handled again before it is resumed")
		require.NoError(t, first.stop())

		next := newReplica(t, driver, nil)
		time.Sleep(10 * time.Minute)
		require.Empty(t, next.all())
		setPaused(t, store, false)
		time.Sleep(11 * time.Second)
		require.NotEmpty(t, next.all())
		require.NoError(t, next.stop())
	})
}

// A member that sees an operator's reset only behind a pause that came after it starts over, too.
func TestAResetBehindAPauseIsAReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		first := newReplica(t, driver, nil)
		written := writeEach(t, driver, 10, 0)
		time.Sleep(time.Minute)
		_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)
		require.NoError(t, err)
		setPaused(t, store, true)
		time.Sleep(10 * time.Minute)
		require.Equal(t, written, first.all())
		setPaused(t, store, false)
		time.Sleep(11 * time.Second)
		require.Equal(t, append(written, written...), first.all())
		require.NoError(t, first.stop())
	})
}

func TestCatchUpOfAPausedConsumerIsAnError(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		t.Run(fmt.Sprintf("begun=%t", begun), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				store := newStore()
				write(t, store, "account-1", Deposited{1}, Deposited{2})
				handled, release := 0, make(chan struct{})
				c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					if begun {
						<-release
					}
					handled++
					return nil
				}), nil)
				if !begun {
					require.NoError(t, c.CatchUp(ctx))
					setPaused(t, store, true)
					write(t, store, "account-1", Deposited{3})
					require.ErrorIs(t, c.CatchUp(ctx), consumer.ErrPaused)
					require.Equal(t, 2, handled)
					return
				}
				ended := make(chan error, 1)
				go func() { ended <- c.CatchUp(ctx) }()
				synctest.Wait()
				setPaused(t, store, true)
				time.Sleep(11 * time.Second)
				close(release)
				require.ErrorIs(t, <-ended, consumer.ErrPaused)
				require.Equal(t, 1, handled)
				require.Equal(t, int64(1), c.Stats().Handled)
			})
		})
	}
}

// Beside members, which keep their slots in a pause, it ends too, and they lose none by it.
func TestCatchUpOfAPausedConsumerBesideMembersIsAnError(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} { // for the members' slots as the pause comes
		t.Run(fmt.Sprintf("waits=%t", waits), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				driver := newDriver()
				store := testkit.Must(messagestore.New(driver, nil))
				write(t, store, "account-1", Deposited{1})
				config := &consumer.Config{Concurrency: 4, Start: consumer.FromStart()}
				release := make(chan struct{})
				held := handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					if waits {
						<-release
					}
					return nil
				})
				running, stop := context.WithCancel(ctx)
				defer stop()
				members := make(chan error, 2)
				for range 2 {
					member := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), held, config)
					go func() { members <- member.Run(running) }()
				}
				time.Sleep(time.Minute)
				status := func() operate.Status {
					all, err := operate.Consumers(t.Context(), store, account)
					require.NoError(t, err)
					require.Len(t, all, 1)
					return all[0]
				}
				require.Len(t, status().Replicas, 2)
				ended := make(chan error, 1)
				guest := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), held, config)
				catchUp := func() { ended <- guest.CatchUp(ctx) }
				if waits {
					go catchUp()
					time.Sleep(5 * time.Second)
					require.Len(t, status().Replicas, 3)
				}

				setPaused(t, store, true)
				if !waits {
					go catchUp()
				}

				begun := time.Now()
				require.ErrorIs(t, <-ended, consumer.ErrPaused)
				require.LessOrEqual(t, time.Since(begun), 11*time.Second)
				require.Len(t, status().Replicas, 2, "it has left")
				close(release)
				setPaused(t, store, false)
				time.Sleep(time.Minute)
				require.Equal(t, 32, status().Replicas[0].Slots+status().Replicas[1].Slots)
				stop()
				require.NoError(t, errors.Join(<-members, <-members))
				require.NoError(t, guest.CatchUp(ctx))
			})
		})
	}
}

func TestAPauseThatChangesNothingSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		target := operate.Consumer(store, account, "ledger")
		for _, do := range []func(context.Context) (bool, error){target.Pause, target.Resume} {
			changed, err := do(t.Context())
			var unknown *operate.UnknownConsumerError
			require.ErrorAs(t, err, &unknown)
			require.False(t, changed)
		}
		require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
		for _, do := range []func(context.Context) (bool, error){target.Resume, target.Pause, target.Pause, target.Resume, target.Resume} {
			before, err := store.Version(t.Context(), "account:position-ledger")
			require.NoError(t, err)
			changed, err := do(t.Context())
			require.NoError(t, err)
			after, err := store.Version(t.Context(), "account:position-ledger")
			require.NoError(t, err)
			require.Equal(t, changed, after > before)
		}
		changed, err := operate.Consumer(store, account, "a-b").Pause(t.Context())
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.False(t, changed)
	})
}

func TestALedgerThatContinuesALaterGenerationIsCorrupt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		c := newConsumer(t, store, &journal{}, nil)
		require.NoError(t, c.CatchUp(t.Context()))
		_, err := store.Write(t.Context(), "account:position-ledger", 0, messagestore.Raw{Type: "Started", Data: []byte(`{"start": 0, "of": 1, "paused": true}`)})
		require.NoError(t, err)
		require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPositionCorrupt)
	})
}

// C2: a reset of members that run overlaps, since each finds out by itself. Behind a pause it does not.
func TestAResetBehindAPauseKeepsOneMessageOfAnIDInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		for at := range 200 {
			writeEach(t, driver, 12, at)
		}
		var mu sync.Mutex
		inFlight, overlaps, handled := map[messagestore.StreamName]int{}, 0, 0
		slow := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			mu.Lock()
			handled++
			if inFlight[m.Stream]++; inFlight[m.Stream] > 1 {
				overlaps++
			}
			mu.Unlock()
			time.Sleep(500 * time.Millisecond)
			mu.Lock()
			inFlight[m.Stream]--
			mu.Unlock()
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 3)
		for range 3 {
			member := newConsumer(t, testkit.Must(messagestore.New(driver, nil)), slow, &consumer.Config{Concurrency: 4, Start: consumer.FromStart()})
			go func() { ended <- member.Run(ctx) }()
		}
		for range 5 {
			time.Sleep(20 * time.Second)
			setPaused(t, store, true)
			time.Sleep(11 * time.Second) // they have found out, and no handler is at work
			_, err := operate.Consumer(store, account, "ledger").Reset(t.Context(), 0)
			require.NoError(t, err)
			setPaused(t, store, false)
		}
		time.Sleep(10 * time.Minute)
		stop()
		require.NoError(t, errors.Join(<-ended, <-ended, <-ended))
		require.Greater(t, handled, 2400)
		require.Zero(t, overlaps)
	})
}
