package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

func TestWhatIsAskedForIsRedrivenByTheConsumer(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
		park(t, store, category, "c")
		park(t, store, category, "other")
		second := parkedOf(t, store, category, "c")[1]

		require.Equal(t, 1, retry(t, store, category, "c", second.Position))
		require.Len(t, itemsOf(t, store, category, "c", queuing.Later), 1)
		j := &journal{}
		require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
		require.Equal(t, []string{fmt.Sprintf("%s-1@1", category)}, j.all())
		require.Len(t, parkedOf(t, store, category, "c"), 2)

		require.Equal(t, 2, retry(t, store, category, "c"))
		require.Zero(t, retry(t, store, category, "c"))
		c := newIn(t, store, category, "c", j, nil)
		require.NoError(t, c.CatchUp(t.Context()))
		require.Equal(t, int64(2), c.Stats().Handled)
		require.Len(t, j.all(), 3)
		require.Empty(t, parkedOf(t, store, category, "c"))

		// Nothing is asked for any more.
		require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
		require.Len(t, j.all(), 3)
		counts := map[string]int{}
		for _, status := range positionsNow(t, store, category) {
			counts[status.Name] = status.Parked
		}
		require.Equal(t, map[string]int{"c": 0, "other": 3}, counts)
	})
}

func TestARunningConsumerFindsARequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, nil))
		time.Sleep(10 * time.Minute)
		require.Empty(t, j.all())

		retry(t, store, account, "ledger")
		time.Sleep(5*time.Second + time.Millisecond)

		require.Equal(t, []string{"account-1@0"}, j.all())
		require.Empty(t, parkedOf(t, store, account, "ledger"))
		time.Sleep(10 * time.Minute)
		require.Len(t, j.all(), 1)
		require.NoError(t, stop())
	})
}

// Four operators, and four members of a group: each message is redriven once.
func TestOfManyRequestsAndConsumersAMessageIsRedrivenOnce(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		const messages = 12
		for i := range messages {
			write(t, store, category.Stream(fmt.Sprint(i)), Deposited{i})
		}
		park(t, store, category, "c")

		own, err := operate.Consumer(store, category, "c").Parked()
		require.NoError(t, err)
		dead, err := own.Items(t.Context(), queue.Dead, 0, 100)
		require.NoError(t, err)
		var positions []messagestore.GlobalPosition
		for _, item := range dead {
			positions = append(positions, item.Position)
		}
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { _, errs[i] = own.Retry(t.Context(), "mended", positions...) })
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))

		j := &journal{}
		var stops []func() error
		for range errs {
			stops = append(stops, running(t, newIn(t, store, category, "c", j, &consumer.Config{Concurrency: 3})))
		}
		testkit.AwaitTrue(t, "all are redriven", func() bool { return len(parkedOf(t, store, category, "c")) == 0 })
		for _, stop := range stops {
			require.NoError(t, stop())
		}
		require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
		require.Len(t, j.all(), messages)
		require.ElementsMatch(t, j.all(), unique(j.all()))
		require.Empty(t, parkedOf(t, store, category, "c"))
	})
}

func unique(all []string) []string {
	seen := map[string]bool{}
	var kept []string
	for _, s := range all {
		if !seen[s] {
			kept = append(kept, s)
		}
		seen[s] = true
	}
	return kept
}

func TestWhatFailsAgainStaysParkedUntilItIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		retry(t, store, account, "ledger")
		calls := 0
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			return errBroken
		}), nil))
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		require.Equal(t, 1, calls)
		parked := itemsOf(t, store, account, "ledger", queuing.Dead)
		require.Len(t, parked, 1)
		require.Equal(t, "broken", parked[0].Error)

		require.Equal(t, 1, retry(t, store, account, "ledger"))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, calls)
		require.NoError(t, stop())
	})
}

// A redrive that is stopped with its process is done by the next.
func TestARequestOutlivesTheConsumerThatTookItUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		retry(t, store, account, "ledger")
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}), &consumer.Config{Grace: time.Second}))
		time.Sleep(10 * time.Second)
		require.Len(t, itemsOf(t, store, account, "ledger", queuing.Out), 1)
		require.NoError(t, stop())

		later := itemsOf(t, store, account, "ledger", queuing.Later)
		require.Len(t, later, 1)
		require.Zero(t, later[0].Failures)
		j := &journal{}
		require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
		require.Len(t, j.all(), 1)
	})
}

// A redriven message is not in flight beside another of its cardinal id.
func TestWhatIsAskedForWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			write(t, store, "account-1+a", Deposited{1})
			write(t, store, "account-1+b", Deposited{2})
			park(t, store, account, "ledger")
			inHand, most, calls := 0, 0, 0
			var mu sync.Mutex
			stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				mu.Lock()
				calls++
				inHand++
				most = max(most, inHand)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				inHand--
				mu.Unlock()
				return nil
			}), &consumer.Config{Concurrency: concurrency}))
			for i := range 20 {
				write(t, store, "account-1+c", Deposited{i})
			}
			time.Sleep(500 * time.Millisecond)
			retry(t, store, account, "ledger")
			time.Sleep(time.Minute)
			synctest.Wait()

			require.Equal(t, 22, calls)
			require.Equal(t, 1, most)
			require.NoError(t, stop())
		})
	}
}

func TestAMemberRedrivesWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 20 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		park(t, store, account, "ledger")
		journals := make([]*journal, 4)
		for i := range journals { // each has a quarter of the slots
			journals[i] = &journal{}
			running(t, newConsumer(t, store, journals[i], &consumer.Config{Concurrency: 2}))
			time.Sleep(time.Minute)
		}
		retry(t, store, account, "ledger")
		time.Sleep(time.Minute)
		var all []string
		for _, j := range journals {
			slots := map[int]bool{}
			for _, place := range j.all() {
				stream, _, _ := strings.Cut(place, "@")
				slots[messagestore.StreamName(stream).GroupMember(checkpoint.Slots)] = true
				all = append(all, place)
			}
			require.NotEmpty(t, slots)
			require.LessOrEqual(t, len(slots), checkpoint.Slots/4)
		}
		require.Len(t, unique(all), 20)
		require.Len(t, all, 20)
		require.Empty(t, parkedOf(t, store, account, "ledger"))
	})
}

func TestOnlyWhatIsParkedCanBeAskedFor(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2})
		park(t, store, category, "c")
		is := parkedOf(t, store, category, "c")[0].Position
		write(t, store, category.Stream("1"), Deposited{3})
		none, err := store.Last(t.Context(), category.Stream("1"))
		require.NoError(t, err)

		require.Equal(t, 1, retry(t, store, category, "c", is, none.GlobalPosition))
		other, err := operate.Consumer(store, category, "d").Parked()
		require.NoError(t, err)
		retried, err := other.Retry(t.Context(), "", is)
		require.NoError(t, err)
		require.Empty(t, retried)
		_, err = operate.Consumer(store, category, "a b").Parked()
		require.ErrorIs(t, err, messagestore.ErrInvalid)
	})
}

// How a test tells its own binary to be a consumer that redrives.
const (
	redriveStore    = "DIBS_TEST_REDRIVE_STORE"
	redriveCategory = "DIBS_TEST_REDRIVE_CATEGORY"
	redriveHangs    = "DIBS_TEST_REDRIVE_HANGS"
)

// redriveChild runs a consumer until it is killed, or its parent is gone.
func redriveChild(storeURL string, category messagestore.Category, hangs bool) int {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends when the parent does
		os.Exit(3)
	}()
	ctx := context.Background()
	store, err := dibs.Open(ctx, storeURL, nil)
	if err == nil {
		h := doneHandler(store)
		if hangs {
			h = handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
				if _, err := store.Write(ctx, begun(category), messagestore.AnyVersion, raw("Hangs", `{}`)); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}
		err = newNamed(store, category, "c", h, &consumer.Config{RedriveInterval: 5 * time.Millisecond, Lease: time.Second}).Run(ctx)
	}
	fmt.Fprintln(os.Stderr, err)
	return 2
}

// A redrive is requested while no consumer runs. A consumer that starts is killed while it
// delivers the message, and the next one handles it. Each is a process of its own.
func TestARequestIsDoneThoughTheProcessThatTookItUpIsKilled(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "store.db")
		testKilledRedrive(t, "sqlite:"+file)
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		testKilledRedrive(t, pgtest.Migrated(t))
	})
}

// begun is the stream in which a child says that its handler has begun.
func begun(category messagestore.Category) messagestore.StreamName {
	return messagestore.Category("hanging").Stream(string(category))
}

func testKilledRedrive(t *testing.T, storeURL string) {
	t.Helper()
	category := "account" + messagestore.Category(strings.ReplaceAll(uuid.NewString(), "-", ""))
	store, err := dibs.Open(t.Context(), storeURL, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	for i := range 3 {
		write(t, store, category.Stream(fmt.Sprint(i)), Deposited{i})
	}
	park(t, store, category, "c")
	require.Equal(t, 3, retry(t, store, category, "c"))

	hangs := startRedriveChild(t, storeURL, category, "yes")
	testkit.Await(t, "the message is delivered", func() (bool, any) {
		_, err := store.Last(t.Context(), begun(category))
		return err == nil, err
	})
	require.NoError(t, hangs.Kill())
	_, err = hangs.Wait()
	require.NoError(t, err)
	require.Len(t, parkedOf(t, store, category, "c"), 3)

	startRedriveChild(t, storeURL, category, "")
	testkit.AwaitEqual(t, "messages that are parked", 0, func() int { return len(parkedOf(t, store, category, "c")) })

	handled := map[messagestore.StreamName]int{}
	for _, m := range allDone(t, store, category) {
		handled[m.Metadata.CausationStream]++
	}
	require.Equal(t, map[messagestore.StreamName]int{category.Stream("0"): 1, category.Stream("1"): 1, category.Stream("2"): 1}, handled)
}

func startRedriveChild(t *testing.T, storeURL string, category messagestore.Category, hangs string) *os.Process {
	t.Helper()
	return startChild(t, redriveStore+"="+storeURL, redriveCategory+"="+string(category), redriveHangs+"="+hangs).Process
}

// A lane whose message fails again and again keeps the redrives behind it, however many, and none of other lanes.
func TestRedrivesBehindAFailingMessageKeepNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", slices.Repeat([]messagestore.Body{Deposited{1}}, 150)...)
		write(t, store, "account-2", Deposited{2})
		park(t, store, account, "ledger")
		write(t, store, "account-1", Deposited{3})
		var j journal
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if m.Position == 150 {
				return errBroken
			}
			return j.Handle(ctx, m)
		}), &consumer.Config{Concurrency: 4, Errors: againAndAgain}))
		time.Sleep(time.Minute)

		retry(t, store, account, "ledger")
		time.Sleep(time.Minute)

		require.Equal(t, []string{"account-2@0"}, j.all())
		require.NoError(t, stop())
	})
}
