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
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/consumer/internal/checkpoint"
	"github.com/dibs-go/dibs/consumer/internal/letters"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
)

// park has the consumer of a name park all of a category.
func park(t *testing.T, store consumer.Store, category messagestore.Category, name string) {
	t.Helper()
	require.NoError(t, newIn(t, store, category, name, always(errHopeless), nil).CatchUp(t.Context()))
}

func request(t *testing.T, store consumer.Store, category messagestore.Category, name string, ids ...uuid.UUID) (requested, before int) {
	t.Helper()
	r, err := letters.Of(store, category, name).RequestRedrive(t.Context(), ids...)
	require.NoError(t, err)
	return len(r.Requested), len(r.Before)
}

func parkedOf(t *testing.T, store consumer.Store, category messagestore.Category, name string) []*deadletter.Entry {
	t.Helper()
	var all []*deadletter.Entry
	for p, err := range letters.Of(store, category, name).All(t.Context()) {
		require.NoError(t, err)
		all = append(all, (*deadletter.Entry)(&p.Entry))
	}
	return all
}

func TestWhatIsAskedForIsRedrivenByTheConsumer(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2}, Deposited{3})
		park(t, store, category, "c")
		park(t, store, category, "other")
		second := parkedOf(t, store, category, "c")[1]

		requested, before := request(t, store, category, "c", second.ID)
		require.Equal(t, []int{1, 0}, []int{requested, before})
		require.True(t, parkedOf(t, store, category, "c")[1].Requested)
		require.False(t, parkedOf(t, store, category, "c")[0].Requested)
		j := &journal{}
		require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
		require.Equal(t, []string{fmt.Sprintf("%s-1@1", category)}, j.all())
		require.Len(t, parkedOf(t, store, category, "c"), 2)

		requested, before = request(t, store, category, "c")
		require.Equal(t, []int{2, 0}, []int{requested, before})
		requested, before = request(t, store, category, "c")
		require.Equal(t, []int{0, 2}, []int{requested, before})
		c := newIn(t, store, category, "c", j, nil)
		require.NoError(t, c.CatchUp(t.Context()))
		require.Equal(t, int64(2), c.Stats().Handled)
		require.Len(t, j.all(), 3)
		require.Empty(t, parkedOf(t, store, category, "c"))

		// Nothing is asked for any more.
		require.NoError(t, newIn(t, store, category, "c", j, nil).CatchUp(t.Context()))
		require.Len(t, j.all(), 3)
		counts, err := deadletter.Counts(t.Context(), store, category)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"other": 3}, counts)
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

		request(t, store, account, "ledger")
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

		var wg sync.WaitGroup
		errs := make([]error, 4)
		counts := make([]int, 4)
		for i := range errs {
			wg.Go(func() {
				var r *deadletter.Requests
				if r, errs[i] = deadletter.Of(store, category, "c").RequestRedrive(t.Context()); errs[i] == nil {
					counts[i] = len(r.Requested)
				}
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, messages, counts[0]+counts[1]+counts[2]+counts[3], "each is asked for once")

		j := &journal{}
		var stops []func() error
		for range errs {
			stops = append(stops, running(t, newIn(t, store, category, "c", j, &consumer.Config{Concurrency: 3})))
		}
		await.True(t, "all are redriven", func() bool { return len(parkedOf(t, store, category, "c")) == 0 })
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
		request(t, store, account, "ledger")
		calls := 0
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			return errBroken
		}), nil))
		time.Sleep(10 * time.Minute)
		synctest.Wait()

		require.Equal(t, 1, calls)
		parked := parkedOf(t, store, account, "ledger")
		require.Len(t, parked, 1)
		require.Equal(t, "broken", parked[0].Error)
		require.Equal(t, 2, parked[0].Attempts)
		require.False(t, parked[0].Requested)

		requested, _ := request(t, store, account, "ledger")
		require.Equal(t, 1, requested)
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
		request(t, store, account, "ledger")
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}), &consumer.Config{Grace: time.Second}))
		time.Sleep(10 * time.Second)
		parked := parkedOf(t, store, account, "ledger")
		require.True(t, parked[0].Requested)
		require.NoError(t, stop())

		parked = parkedOf(t, store, account, "ledger")
		require.Equal(t, 1, parked[0].Attempts)
		require.True(t, parked[0].Requested)
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
			request(t, store, account, "ledger")
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
		request(t, store, account, "ledger")
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

// Many requests are settled, and noted as such: the next start reads none of them.
func TestSettledRequestsAreNotReadAgain(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	const messages = 250
	for i := range messages {
		write(t, store.Store, account.Stream(fmt.Sprint(i%7)), Deposited{i})
	}
	park(t, store.Store, account, "ledger")
	requested, _ := request(t, store.Store, account, "ledger")
	require.Equal(t, messages, requested)
	j := &journal{}
	require.NoError(t, newConsumer(t, store.Store, j, &consumer.Config{Concurrency: 5}).CatchUp(t.Context()))
	for i := 0; len(j.all()) < messages; i++ { // a look takes up a hundred
		require.Less(t, i, 3)
		require.NoError(t, newConsumer(t, store.Store, j, &consumer.Config{Concurrency: 5}).CatchUp(t.Context()))
	}
	require.Len(t, unique(j.all()), messages)
	require.NoError(t, newConsumer(t, store.Store, j, nil).CatchUp(t.Context()))

	last, err := store.Store.Last(t.Context(), deadLetters.Stream("ledger").With("requests"))
	require.NoError(t, err)
	require.Equal(t, "RedrivesSettled", last.Type)
	require.Contains(t, string(last.Data), fmt.Sprint(last.Position))
}

func TestOnlyWhatIsParkedCanBeAskedFor(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1}, Deposited{2})
		park(t, store, category, "c")
		is := parkedOf(t, store, category, "c")[0]
		none := uuid.New()

		_, err := deadletter.Of(store, category, "c").RequestRedrive(t.Context(), is.ID, none)
		requireNotParked(t, err)
		require.ErrorContains(t, err, none.String())
		_, err = deadletter.Of(store, category, "d").RequestRedrive(t.Context(), is.ID)
		requireNotParked(t, err)
		_, err = deadletter.Of(store, category, "a b").RequestRedrive(t.Context())
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		preview, err := deadletter.Of(store, category, "c").PreviewRedrive(t.Context())
		require.NoError(t, err)
		require.Len(t, preview.Requested, 2)
		_, err = store.Last(t.Context(), category.WithType("deadLetter").Stream("c").With("requests"))
		require.ErrorIs(t, err, messagestore.ErrNotFound, "nothing was asked for")

		p, err := deadletter.Of(store, category, "c").Get(t.Context(), is.ID)
		require.NoError(t, err)
		require.Equal(t, is, p)
		_, err = deadletter.Of(store, category, "c").Get(t.Context(), none)
		requireNotParked(t, err)
	})
}

// Another client may write any message to the streams of dead letters.
func TestWhatAnotherClientCallsParkedIsNotOurs(t *testing.T) {
	t.Parallel()
	everyStore(t, func(t *testing.T, store *messagestore.Store, category messagestore.Category) {
		write(t, store, category.Stream("1"), Deposited{1})
		park(t, store, category, "c")
		letters := string(category.WithType("deadLetter"))
		for _, stream := range []string{"-x", "-x+1", "-c+1", "-c+" + strings.ToUpper(uuid.NewString()), "-c+requests+1", "-a:b+" + uuid.NewString()} {
			write(t, store, messagestore.StreamName(letters+stream), raw("Parked", `{"messageId": 3}`))
		}

		counts, err := deadletter.Counts(t.Context(), store, category)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"c": 1}, counts)
		require.Len(t, parkedOf(t, store, category, "c"), 1)
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
	requested, _ := request(t, store, category, "c")
	require.Equal(t, 3, requested)

	hangs := startRedriveChild(t, storeURL, category, "yes")
	await.That(t, "the message is delivered", func() (bool, any) {
		_, err := store.Last(t.Context(), begun(category))
		return err == nil, err
	})
	require.NoError(t, hangs.Kill())
	_, err = hangs.Wait()
	require.NoError(t, err)
	require.Len(t, parkedOf(t, store, category, "c"), 3)

	startRedriveChild(t, storeURL, category, "")
	await.Equal(t, "messages that are parked", 0, func() int { return len(parkedOf(t, store, category, "c")) })

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

func requireNotParked(t *testing.T, err error) {
	t.Helper()
	not, is := errors.AsType[*deadletter.NotParkedError](err)
	require.True(t, is, "%v", err)
	require.EqualError(t, err, not.Error(), "it names the consumer once")
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

		request(t, store, account, "ledger")
		time.Sleep(time.Minute)

		require.Equal(t, []string{"account-2@0"}, j.all())
		require.NoError(t, stop())
	})
}
