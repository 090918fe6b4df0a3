package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A stopwatch is a handler that notes when each call begins, and takes 100 ms.
type stopwatch struct {
	mu    sync.Mutex
	begun []time.Time
}

func (w *stopwatch) Handle(context.Context, *messagestore.Message) error {
	w.mu.Lock()
	w.begun = append(w.begun, time.Now())
	w.mu.Unlock()
	time.Sleep(100 * time.Millisecond)
	return nil
}

// after returns how many calls began after a time.
func (w *stopwatch) after(t time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, begun := range w.begun {
		if begun.After(t) {
			n++
		}
	}
	return n
}

// A slowLog takes 30 seconds for a line, and the run's loop waits for it.
type slowLog struct{ word []byte }

func (l slowLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, l.word) {
		time.Sleep(30 * time.Second)
	}
	return len(line), nil
}

// Workers begin messages by themselves: they look at the clock, and do not rely on a loop that stands still, as it does for a moment
// when a process goes on that was stopped.
func TestAWorkerBeginsNothingWhenTheLeaseMayBeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		var first, second stopwatch
		var fails atomic.Bool
		stop := running(t, newConsumer(t, testkit.Must(messagestore.New(driver, nil)), handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if fails.CompareAndSwap(true, false) {
				return errBroken
			}
			return first.Handle(ctx, m)
		}), &consumer.Config{Concurrency: 4, Logger: logger.Zerolog(zerolog.New(slowLog{[]byte("handler failed")}))}))
		other := newReplicaOf(t, driver, &second, &consumer.Config{Concurrency: 4})
		time.Sleep(30 * time.Second) // they share
		writeEach(t, driver, 3000, 0)
		time.Sleep(2 * time.Second)

		fails.Store(true)
		stopped := time.Now()
		time.Sleep(29 * time.Second)

		require.Positive(t, first.after(stopped), "it goes on while its lease lasts")
		require.Zero(t, first.after(stopped.Add(10*time.Second)))
		time.Sleep(2 * time.Minute)
		require.Greater(t, first.after(stopped.Add(31*time.Second)), 10, "it goes on as a newcomer")
		require.NoError(t, stop())
		require.NoError(t, other.stop())
	})
}

// The lease of a member that is alone does not count, until another joins. A member whose store hangs does not hear of that, and
// begins nothing once the other may have taken its slots.
func TestAMemberThatRestsBeginsNothingThatAnotherMayHave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		var first, second stopwatch
		s := &frozen{Store: testkit.Must(messagestore.New(driver, nil))}
		s.thawed = sync.NewCond(&s.mu)
		stop := running(t, newConsumer(t, s, &first, &consumer.Config{Concurrency: 4}))
		time.Sleep(30 * time.Second)
		s.pause(true) // so that what it reads ahead is no matter of who runs first
		writeEach(t, driver, 1500, 0)
		s.pause(false)
		time.Sleep(2 * time.Second)

		s.pause(true)
		hangs := time.Now()
		other := newReplicaOf(t, driver, &second, &consumer.Config{Concurrency: 4})
		time.Sleep(2 * time.Minute)

		require.Greater(t, first.after(hangs), 100)
		require.Zero(t, first.after(hangs.Add(10*time.Second)))
		require.Greater(t, second.after(hangs.Add(10*time.Second)), 500)
		s.pause(false)
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		require.NoError(t, other.stop())
	})
}

// A member that is alone and has had nothing to do for long meets the state before its first message, and has it at once.
func TestAMemberThatRestedForLongHandlesItsNextMessageAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		var w stopwatch
		stop := running(t, newConsumer(t, testkit.Must(messagestore.New(driver, nil)), &w, nil))
		time.Sleep(time.Hour + time.Second)

		writeEach(t, driver, 1, 0)
		wrote := time.Now()
		time.Sleep(time.Minute)

		require.NoError(t, stop())
		require.Equal(t, 1, w.after(wrote.Add(-1)))
		require.Zero(t, w.after(wrote.Add(2*time.Second)))
	})
}

// Promise C3 with real processes: a member that is stopped begins nothing of what others have meanwhile when it goes on. It has read far
// ahead.
func TestAConsumerThatWasStoppedPastItsLeaseBeginsNothingOfOthers(t *testing.T) {
	t.Parallel()
	pgtest.Pool(t) // migrates the database
	for name, alone := range map[string]bool{"Shares": false, "Rests": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lanes = 4
			storeURL := pgtest.URL(t)
			store, err := dibs.Open(t.Context(), storeURL, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			category := storetest.Category(t)
			begins := filepath.Join(t.TempDir(), "begins")
			env := []string{crashStore + "=" + storeURL, crashCategory + "=" + string(category), crashLanes + "=" + strconv.Itoa(lanes), crashAhead + "=" + begins}
			members := func() int {
				all, err := operate.Consumers(t.Context(), store, category)
				if err != nil || len(all) != 1 {
					return 0
				}
				return len(all[0].Replicas)
			}
			first := startCrashChild(t, env...)
			testkit.AwaitEqual(t, "members", 1, members)
			if !alone {
				startCrashChild(t, env...)
				testkit.AwaitEqual(t, "members", 2, members)
			}
			by := func(pid int) (n int) {
				for _, m := range allDone(t, store, category) {
					if body, err := messagestore.Decode[handledBy](m); err == nil && body.PID == pid {
						n++
					}
				}
				return n
			}
			const messages = 1000
			for i := range messages / 20 {
				write(t, store, category.Stream(fmt.Sprint(i)), slices.Repeat([]messagestore.Body{Deposited{i}}, 20)...)
			}
			require.NoError(t, os.WriteFile(begins, nil, 0o600))
			testkit.Await(t, "the first is at work", func() (bool, any) { n := by(first.Process.Pid); return n > 0, n })

			require.NoError(t, first.Process.Signal(syscall.SIGSTOP))
			var is syscall.WaitStatus
			_, err = syscall.Wait4(first.Process.Pid, &is, syscall.WUNTRACED, nil)
			require.NoError(t, err)
			require.True(t, is.Stopped())
			before := by(first.Process.Pid)
			if alone {
				startCrashChild(t, env...)
			}
			testkit.Await(t, "the other has handled the rest", func() (bool, any) {
				seen := map[messagestore.GlobalPosition]bool{}
				for _, m := range allDone(t, store, category) {
					seen[m.Metadata.CausationGlobalPosition] = true
				}
				return len(seen) == messages, len(seen)
			})
			require.Less(t, before, messages/2, "it was stopped with much to do")
			require.NoError(t, first.Process.Signal(syscall.SIGCONT))
			testkit.AwaitEqual(t, "members", 2, members)
			require.NoError(t, first.Process.Signal(syscall.SIGTERM))
			require.NoError(t, endOfProcess(t, first))

			require.LessOrEqual(t, by(first.Process.Pid)-before, lanes, "what was in flight, and no more")
		})
	}
}

// A stopping driver is that of a process that is stopped for two seconds while it takes a message to redrive.
type stopping struct {
	queuing.Driver

	store *frozen
	armed atomic.Bool
	at    time.Time // when it was stopped
}

func (s *stopping) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	taken, err := s.Driver.QueueTake(ctx, t)
	if len(taken.Items) > 0 && s.armed.CompareAndSwap(true, false) {
		s.store.pause(true)
		s.at = time.Now()
		time.Sleep(2 * time.Second)
		time.AfterFunc(time.Second, func() { s.store.pause(false) })
	}
	return taken, err
}

func TestARedriveIsNotBegunWhenTheLeaseMayBeOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		var first, second stopwatch
		s := &stopping{Driver: driver}
		s.store = &frozen{Store: testkit.Must(messagestore.New(s, nil))}
		s.store.thawed = sync.NewCond(&s.store.mu)
		stop := running(t, newConsumer(t, s.store, &first, &consumer.Config{Lease: time.Second}))
		time.Sleep(time.Minute)
		other := newReplicaOf(t, driver, &second, &consumer.Config{Lease: time.Second})
		time.Sleep(time.Minute)

		s.armed.Store(true)
		retry(t, store, account, "ledger")
		time.Sleep(5 * time.Minute)

		require.False(t, s.armed.Load(), "it took the message")
		require.Zero(t, first.after(s.at.Add(time.Second))-first.after(s.at.Add(3*time.Second-1)), "none while the lease may be over")
		require.Len(t, append(first.begun, second.begun...), 1)
		require.Empty(t, parkedOf(t, store, account, "ledger"))
		require.NoError(t, stop())
		require.NoError(t, other.stop())
	})
}

// Any writer of the store may have written a member's lease.
func TestAForgedLeaseIsAnHourAtMost(t *testing.T) {
	t.Parallel()
	for _, lease := range []int64{checkpoint.MaxLease.Milliseconds() + 1, math.MaxInt64/int64(time.Millisecond) + 1, math.MaxInt64} {
		require.Equal(t, time.Hour, (&checkpoint.Member{Lease: lease}).Patience())
	}
}
