package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/dibs-go/dibs/messagestore/memory"
)

// A replica is a consumer that a test runs beside others, over a store of its own, as in
// another process.
type replica struct {
	*consumer.Consumer
	*journal
	store *frozen
	stop  func() error
}

// A frozen store is that of a process that can be paused: its calls wait.
type frozen struct {
	*messagestore.Store

	mu     sync.Mutex
	thawed *sync.Cond
	is     bool
	dead   bool
}

var errDead = errors.New("the process is dead")

func (s *frozen) wait() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.is {
		s.thawed.Wait()
	}
	if s.dead {
		return errDead
	}
	return nil
}

// pause stops the process, and has it go on.
func (s *frozen) pause(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is = is
	s.thawed.Broadcast()
}

// kill has the process have no effect any more.
func (s *frozen) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead, s.is = true, false
	s.thawed.Broadcast()
}

func (s *frozen) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if err := s.wait(); err != nil {
		return messagestore.Written{}, err
	}
	return s.Store.Write(ctx, stream, expected, bodies...)
}

func (s *frozen) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if err := s.wait(); err != nil {
		return messagestore.CategoryPage{}, err
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *frozen) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if err := s.wait(); err != nil {
		return nil, err
	}
	return s.Store.Last(ctx, stream)
}

func newReplica(t *testing.T, driver messagestore.Driver, config *consumer.Config) *replica {
	t.Helper()
	return newReplicaOf(t, driver, nil, config)
}

// newReplicaOf is newReplica with a handler that replicas may share, nil for the journal.
func newReplicaOf(t *testing.T, driver messagestore.Driver, h consumer.Handler, config *consumer.Config) *replica {
	t.Helper()
	s := &frozen{Store: testkit.Must(messagestore.New(driver, nil))}
	s.thawed = sync.NewCond(&s.mu)
	r := &replica{store: s, journal: &journal{}}
	if h == nil {
		h = r.journal
	}
	r.Consumer = newConsumer(t, s, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
		if err := s.wait(); err != nil {
			return err
		}
		return h.Handle(ctx, m)
	}), config)
	r.stop = running(t, r.Consumer)
	return r
}

// writeEach writes a message to each of n streams, and returns them as a journal has them.
func writeEach(t *testing.T, driver messagestore.Driver, n, position int) (all []string) {
	t.Helper()
	store := testkit.Must(messagestore.New(driver, nil))
	for i := range n {
		stream := account.Stream(fmt.Sprint(i))
		write(t, store, stream, Deposited{i})
		all = append(all, fmt.Sprintf("%s@%d", stream, position))
	}
	return all
}

func TestASecondReplicaStandsByAndTakesOverWhenTheFirstStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		first := newReplica(t, driver, nil)
		time.Sleep(time.Second)
		second := newReplica(t, driver, nil)
		written := writeEach(t, driver, 10, 0)
		time.Sleep(10 * time.Minute)
		require.Equal(t, written, first.all())
		require.Empty(t, second.all())

		require.NoError(t, first.stop())
		more := writeEach(t, driver, 10, 1)
		time.Sleep(2 * time.Second)

		require.Equal(t, written, first.all())
		require.Equal(t, more, second.all())
		require.NoError(t, second.stop())
	})
}

func TestAReplicaThatIsKilledIsReplacedWithinItsLease(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"StandsBy": true, "ComesLater": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver := newDriver()
				first := newReplica(t, driver, nil)
				written := writeEach(t, driver, 10, 0)
				time.Sleep(time.Minute)
				var second *replica
				if together {
					second = newReplica(t, driver, nil)
					time.Sleep(time.Minute)
				}

				first.store.kill()
				more := writeEach(t, driver, 10, 1)
				if !together {
					time.Sleep(time.Hour)
					second = newReplica(t, driver, nil)
				}
				time.Sleep(6 * time.Second)
				require.Empty(t, second.all(), "the lease is not over")
				time.Sleep(5 * time.Second)

				require.Equal(t, written, first.all())
				require.Equal(t, more, second.all())
				require.NoError(t, second.stop())
			})
		})
	}
}

// A lease that was extended while the store's clock was ahead is over as soon as any other, and no replica that
// lives is removed for it more than once.
func TestALeaseFromAClockThatWentBackEndsInItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		driver := memory.NewWithClock(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		first, second := newReplica(t, driver, nil), newReplica(t, driver, nil)
		written := writeEach(t, driver, 10, 0)
		time.Sleep(time.Minute)
		ahead.Store(int64(time.Hour))
		time.Sleep(time.Minute)
		require.Equal(t, written, append(first.all(), second.all()...))

		ahead.Store(0)
		if len(first.all()) == 0 {
			first, second = second, first
		}
		first.store.kill()
		more := writeEach(t, driver, 10, 1)
		time.Sleep(30 * time.Second)

		require.Equal(t, written, first.all())
		require.Equal(t, more, second.all())
		third := newReplica(t, driver, nil)
		time.Sleep(10 * time.Minute)
		all, err := operate.Consumers(t.Context(), testkit.Must(messagestore.New(driver, nil)), account)
		require.NoError(t, err)
		require.Len(t, all[0].Replicas, 2)
		require.NoError(t, third.stop())
		require.NoError(t, second.stop())
	})
}

func TestAReplicaThatWasPausedPastItsLeaseStartsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		first := newReplica(t, driver, nil)
		time.Sleep(time.Second)
		second := newReplica(t, driver, nil)
		written := writeEach(t, driver, 10, 0)
		time.Sleep(time.Minute)
		require.Equal(t, written, first.all())

		first.store.pause(true)
		more := writeEach(t, driver, 10, 1)
		time.Sleep(30 * time.Second)
		require.Equal(t, more, second.all())
		first.store.pause(false)
		time.Sleep(30 * time.Second)
		last := writeEach(t, driver, 10, 2)
		time.Sleep(30 * time.Second)

		require.Equal(t, append(more, last...), second.all())
		require.Subset(t, append(written, more[0]), first.all(), "must be at most the message in flight is handled twice")
		require.NoError(t, second.stop())
		again := writeEach(t, driver, 10, 3)
		time.Sleep(2 * time.Second)
		require.Equal(t, again, first.all()[len(first.all())-10:], "it stands by, and takes over")
		require.NoError(t, first.stop())
	})
}

// The store of a replica hangs, and its handlers go on. Once its lease may be over, it begins nothing of the pages that it has
// read: others handle that.
func TestWhatAReplicaHasReadAheadIsGivenUpWithItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		config := &consumer.Config{Concurrency: 4}
		slow := func(j *journal) handler.HandlerFunc {
			return func(ctx context.Context, m *messagestore.Message) error {
				err := j.Handle(ctx, m)
				time.Sleep(100 * time.Millisecond)
				return err
			}
		}
		var ofFirst, ofSecond journal
		s := &frozen{Store: testkit.Must(messagestore.New(driver, nil))}
		s.thawed = sync.NewCond(&s.mu)
		stop := running(t, newConsumer(t, s, slow(&ofFirst), config))
		second := newReplicaOf(t, driver, slow(&ofSecond), config)
		time.Sleep(30 * time.Second) // they share
		s.pause(true)                // so that what it reads ahead is no matter of who runs first
		written := writeEach(t, driver, 3000, 0)
		s.pause(false)
		time.Sleep(2 * time.Second)

		s.pause(true)
		time.Sleep(2 * time.Minute)

		begun := len(ofFirst.all())
		s.pause(false)
		require.Greater(t, begun, 100)
		require.Less(t, begun, 600, "what four workers begin in 11 seconds is 440")
		time.Sleep(time.Minute)
		handled := map[string]bool{}
		for _, m := range append(ofFirst.all(), ofSecond.all()...) {
			handled[m] = true
		}
		for _, m := range written {
			require.True(t, handled[m], m)
		}
		require.NoError(t, stop())
		require.NoError(t, second.stop())
	})
}

func TestReplicasShareACategoryThatNeedsNoOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		config := &consumer.Config{Concurrency: 4}
		var all []*replica
		position := 0
		round := func() {
			seen := map[string]int{}
			for _, r := range all {
				for _, m := range r.all() {
					seen[m]--
				}
			}
			written := writeEach(t, driver, 200, position)
			position++
			time.Sleep(5 * time.Second)
			for _, r := range all {
				for _, m := range r.all() {
					seen[m]++
				}
			}
			for _, m := range written {
				require.Equal(t, 1, seen[m], m)
			}
		}
		for n := range 5 {
			all = append(all, newReplica(t, driver, config))
			time.Sleep(5 * time.Second)
			before := len(all[n].all())
			round()
			require.Greater(t, len(all[n].all()), before, "replica %d has a share", n)
		}
		for _, r := range all[:4] {
			require.NoError(t, r.stop())
			time.Sleep(5 * time.Second)
			round()
		}
		require.NoError(t, all[4].stop())
	})
}

// Promises C1 and C2 while members join, leave, are killed and paused at random moments, also in
// the middle of a handler.
func TestNoMessageIsSkippedWhicheverReplicasComeAndGo(t *testing.T) {
	t.Parallel()
	seeds := uint64(2)
	if testkit.Long() {
		seeds = 40
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { comeAndGo(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func comeAndGo(t *testing.T, random *rand.Rand) {
	t.Helper()
	driver := newDriver()
	store := testkit.Must(messagestore.New(driver, nil))
	var mu sync.Mutex
	next := map[messagestore.StreamName]messagestore.Version{} // to be handled for the first time
	calls, written := 0, 0
	var wrong []string
	handle := func(s *frozen) handler.HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error {
			time.Sleep(time.Duration(m.GlobalPosition%7) * 20 * time.Millisecond)
			if err := s.wait(); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			calls++
			switch {
			case m.Position > next[m.Stream]:
				wrong = append(wrong, fmt.Sprintf("%s before %d", m, next[m.Stream]))
			case m.Position == next[m.Stream]:
				next[m.Stream]++
			}
			return nil
		}
	}
	config := &consumer.Config{
		Concurrency: 1 + random.IntN(2)*7, BatchSize: 20, CheckpointMessages: 30, Lease: 2 * time.Second, Grace: time.Second,
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}},
	}
	var alive []*replica
	start := func() {
		s := &frozen{Store: testkit.Must(messagestore.New(driver, nil))}
		s.thawed = sync.NewCond(&s.mu)
		r := &replica{store: s, Consumer: newConsumer(t, s, handle(s), config)}
		r.stop = running(t, r.Consumer)
		alive = append(alive, r)
	}
	ended, paused := 0, false
	operator := operate.Consumer(store, account, "ledger")
	asks := func(paused bool) {
		t.Helper()
		do := operator.Resume
		if paused {
			do = operator.Pause
		}
		_, err := do(t.Context())
		require.NoError(t, err)
	}
	for round := range 90 {
		if round > 0 && random.IntN(10) == 0 {
			paused = !paused
			asks(paused)
		}
		for range random.IntN(40) {
			write(t, store, account.Stream(fmt.Sprint(random.IntN(40))), Deposited{written})
			written++
		}
		switch i := random.IntN(max(len(alive), 1)); {
		case len(alive) == 0 || len(alive) < 8 && random.IntN(3) == 0:
			start()
		case random.IntN(4) > 0:
			pause := random.IntN(2) == 0
			alive[i].store.pause(pause)
		default:
			r := alive[i]
			alive = append(alive[:i:i], alive[i+1:]...)
			ended++
			if random.IntN(2) == 0 {
				r.store.kill()
				go func() { _ = r.stop() }()
				continue
			}
			r.store.pause(false)
			require.NoError(t, r.stop())
		}
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
	}
	for _, r := range alive {
		r.store.pause(false)
	}
	asks(true)
	start()
	time.Sleep(15 * time.Second)
	quiet := func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
	before := quiet()
	time.Sleep(time.Minute)
	require.Equal(t, before, quiet(), "the consumer is paused")
	asks(false)
	time.Sleep(5 * time.Minute)

	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, wrong)
	handled := 0
	for _, n := range next {
		handled += int(n)
	}
	require.Equal(t, written, handled)
	require.LessOrEqual(t, calls-written, (90+ended)*(config.CheckpointMessages+config.BatchSize+config.Concurrency))
	for _, r := range alive {
		require.NoError(t, r.stop())
	}
}

func TestReplicasAreListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newDriver()
		store := testkit.Must(messagestore.New(driver, nil))
		config := &consumer.Config{Concurrency: 2}
		first := newReplica(t, driver, config)
		time.Sleep(time.Second)
		alone := positionsNow(t, store, account)[0]
		require.Len(t, alone.Replicas, 1)
		require.True(t, alone.Replicas[0].Resting)
		require.Equal(t, operate.Slots, alone.Replicas[0].Slots)
		require.Regexp(t, `^.+/\d+$`, alone.Replicas[0].Process)

		second := newReplica(t, driver, config)
		time.Sleep(10 * time.Second)
		second.store.pause(true)
		writeEach(t, driver, 64, 0)
		time.Sleep(4 * time.Second)
		both := positionsNow(t, store, account)[0].Replicas
		require.Len(t, both, 2)
		require.Equal(t, []int{16, 16}, []int{both[0].Slots, both[1].Slots})
		require.Zero(t, both[0].Lag)
		require.Positive(t, both[1].Lag)
		require.Less(t, both[0].Silent, 4*time.Second)
		require.GreaterOrEqual(t, both[1].Silent, 4*time.Second)
		require.False(t, both[1].Gone)
		first.store.pause(true) // nobody removes the other
		time.Sleep(10 * time.Second)
		require.True(t, positionsNow(t, store, account)[0].Replicas[1].Gone)

		first.store.kill()
		second.store.kill()
	})
}
