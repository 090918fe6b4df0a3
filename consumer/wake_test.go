package consumer_test

import (
	"context"
	"iter"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A second process is a second store, with connections of its own.
func openTwo(t *testing.T, url string) (store, elsewhere *messagestore.Store) {
	t.Helper()
	for _, s := range []**messagestore.Store{&store, &elsewhere} {
		opened, err := dibs.Open(t.Context(), url, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })
		*s = opened
	}
	return store, elsewhere
}

// The poll interval is an hour: a notification of the database wakes the consumer.
func TestAWriteInAnotherProcessWakesTheConsumerAtOnce(t *testing.T) {
	t.Parallel()
	shared := pgtest.Pool(t)
	category := storetest.Category(t)
	url := pgtest.URL(t)
	if strings.Contains(url, "?") {
		url += "&"
	} else {
		url += "?"
	}
	store, elsewhere := openTwo(t, url+"application_name="+string(category))
	j := &journal{}
	stop := running(t, newIn(t, store, category, "c", j, &consumer.Config{PollInterval: time.Hour}))
	handled := func(n int) {
		t.Helper()
		testkit.AwaitEqual(t, "messages that are handled", n, func() int { return len(j.all()) })
	}

	for n := range 20 {
		write(t, elsewhere, category.Stream("1"), Deposited{n})
		handled(n + 1)
	}

	// One that loses its connection looks when it has another.
	for n := range 3 {
		_, err := shared.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_stat_activity
			where application_name = $1 and query like 'listen %'`, string(category))
		require.NoError(t, err)
		write(t, elsewhere, category.Stream("1"), Deposited{n})
		handled(20 + n + 1)
	}
	require.NoError(t, stop())
}

func TestAWriteInAnotherProcessIsFoundInAFile(t *testing.T) {
	t.Parallel()
	store, elsewhere := openTwo(t, "sqlite:"+filepath.Join(t.TempDir(), "store.db"))
	j := &journal{}
	stop := running(t, newConsumer(t, store, j, &consumer.Config{PollInterval: time.Millisecond}))
	for n := range 5 {
		write(t, elsewhere, "account-1", Deposited{n})
		testkit.AwaitEqual(t, "messages that are handled", n+1, func() int { return len(j.all()) })
	}
	require.NoError(t, stop())
}

// A countingStore counts the calls of a consumer.
type countingStore struct {
	*messagestore.Store
	asked, watches atomic.Int64
}

func (s *countingStore) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.asked.Add(1)
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *countingStore) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	s.asked.Add(1)
	return s.Store.ReadStream(ctx, stream, from)
}

func (s *countingStore) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	s.asked.Add(1)
	return s.Store.Version(ctx, stream)
}

func (s *countingStore) Watch(category messagestore.Category, interval time.Duration) (<-chan messagestore.GlobalPosition, func()) {
	s.watches.Add(1)
	return s.Store.Watch(category, interval)
}

func TestAConsumerAtRestAsksSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		stop := running(t, newConsumer(t, store, &journal{}, nil))
		time.Sleep(time.Minute)
		before := store.asked.Load()
		time.Sleep(10 * time.Minute)

		// Every ten seconds the consumer looks for its last message and for a superseding run.
		require.InDelta(t, 60+60, store.asked.Load()-before, 3)
		require.NoError(t, stop())
	})
}

// A message that is retried elsewhere waits no longer than the interval.
func TestARequestIsFoundWithinItsInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, &consumer.Config{RedriveInterval: 20 * time.Second}))
		time.Sleep(10*time.Minute + time.Second)

		retry(t, testkit.Must(messagestore.New(driver, nil)), account, "ledger")
		time.Sleep(20 * time.Second)

		require.Len(t, j.all(), 1)
		require.NoError(t, stop())
	})
}

func TestToCatchUpNobodyWatches(t *testing.T) {
	t.Parallel()
	store := &countingStore{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	require.NoError(t, newConsumer(t, store, &journal{}, nil).CatchUp(t.Context()))
	require.Zero(t, store.watches.Load())
}

func TestABellForWhatWasReadReadsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		store := &rungStore{bell: make(chan messagestore.GlobalPosition), tap: &tap{Store: newStore(), read: func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
			reads.Add(1)
			return nil, nil
		}}}
		write(t, store.Store, "account-1", Deposited{1}, Deposited{2}, Deposited{3})
		stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{PollInterval: time.Hour}))
		time.Sleep(10*time.Hour + time.Second) // between the checks
		before := reads.Load()

		for range 100 {
			store.bell <- 3
		}
		synctest.Wait()
		require.Equal(t, before, reads.Load())
		store.bell <- 4
		synctest.Wait()
		require.Equal(t, before+1, reads.Load(), "one who says so is believed, once")
		require.NoError(t, stop())
	})
}

// A store that is away wakes all its waiters, which would all read again at once. One that
// takes writes and fails to be read sends a wake-up with each of them.
func TestABellDoesNotCutAWaitAfterAFailureShort(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]messagestore.GlobalPosition{"NoHead": 0, "AHead": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var reads atomic.Int64
				var healed atomic.Bool
				store := &rungStore{bell: make(chan messagestore.GlobalPosition), tap: &tap{Store: newStore(), read: func(messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
					reads.Add(1)
					if healed.Load() {
						return nil, nil
					}
					return nil, errStore
				}}}
				j := &journal{}
				c := newConsumer(t, store, j, &consumer.Config{PollInterval: time.Hour})
				stop := running(t, c)
				time.Sleep(time.Hour)
				before := reads.Load()

				for range 1000 {
					store.bell <- head
					synctest.Wait()
				}
				require.LessOrEqual(t, reads.Load()-before, int64(1))
				for range 1000 {
					store.bell <- head
					time.Sleep(10 * time.Millisecond)
				}
				require.LessOrEqual(t, reads.Load()-before, int64(1+2*10), "must be at most twice a second")
				require.LessOrEqual(t, c.Stats().StoreErrors, int64(2*60*60+40))

				// No message is missed whose wake-up came during the back-off.
				write(t, store.Store, "account-1", Deposited{1}, Deposited{2}, Deposited{3}, Deposited{4})
				store.bell <- head
				healed.Store(true)
				time.Sleep(time.Second)
				require.Len(t, j.all(), 4)
				require.NoError(t, stop())
			})
		})
	}
}
