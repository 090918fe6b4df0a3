package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/messagestore"
)

var inOrder = consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: 30 * time.Second}, Then: consumer.ParkInOrder}

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

// amounts returns the amounts that were handled of a stream.
func (r *refuser) amounts(t require.TestingT, stream messagestore.StreamName) []int {
	amounts := []int{}
	for _, m := range r.all() {
		if m.Stream == stream {
			d, err := messagestore.Decode[Deposited](m)
			require.NoError(t, err)
			amounts = append(amounts, d.Amount)
		}
	}
	return amounts
}

func lettersOf(store *messagestore.Store) *deadletter.Entries {
	return deadletter.Of(store, account, "ledger")
}

// open returns the positions of the messages that are parked, and those of them that are behind.
func open(t require.TestingT, store *messagestore.Store) (all, behind []messagestore.Version) {
	for p, err := range lettersOf(store).All(context.Background()) {
		require.NoError(t, err)
		all = append(all, p.Position)
		if p.Behind {
			behind = append(behind, p.Position)
		}
	}
	return all, behind
}

func firstLetter(t require.TestingT, store *messagestore.Store) *deadletter.Entry {
	for p, err := range lettersOf(store).All(context.Background()) {
		require.NoError(t, err)
		return p
	}
	require.Fail(t, "there is no open letter")
	return nil
}

func TestLaterMessagesOfAParkedOneAreParkedBehindIt(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 8} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, r := newStore(), &refuser{}
				r.set(2, handler.Park(errBroken))
				c := newConsumer(t, store, r, &consumer.Config{Errors: inOrder, Concurrency: concurrency})
				stop := running(t, c)
				for i := range 6 {
					write(t, store, "account-1", Deposited{i})
					write(t, store, "account-2", Deposited{10 + i})
				}
				time.Sleep(time.Second)

				require.Equal(t, []int{0, 1}, r.amounts(t, "account-1"))
				require.Equal(t, []int{10, 11, 12, 13, 14, 15}, r.amounts(t, "account-2"), "others flow")
				all, behind := open(t, store)
				require.Equal(t, []messagestore.Version{2, 3, 4, 5}, all)
				require.Equal(t, []messagestore.Version{3, 4, 5}, behind)
				head := firstLetter(t, store)
				require.Equal(t, "broken", head.Error)
				require.EqualValues(t, 4, c.Stats().Parked)

				// One redrive of the first takes all that are behind it, in order, and then the key is free.
				r.set(2, nil)
				_, err := lettersOf(store).RequestRedrive(t.Context(), head.ID)
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				require.Equal(t, []int{0, 1, 2, 3, 4, 5}, r.amounts(t, "account-1"))
				write(t, store, "account-1", Deposited{6})
				time.Sleep(time.Second)
				require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, r.amounts(t, "account-1"))
				all, _ = open(t, store)
				require.Empty(t, all)
				require.NoError(t, stop())
			})
		})
	}
}

func TestAMessageBehindSaysSo(t *testing.T) {
	t.Parallel()
	store, r := newStore(), &refuser{}
	r.set(0, handler.Park(errBroken))
	write(t, store, "account-1", Deposited{0}, Deposited{1})

	require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))

	for p, err := range lettersOf(store).All(t.Context()) {
		require.NoError(t, err)
		if p.Position == 1 {
			require.Equal(t, "behind Deposited account-1@0, which is parked", p.Error)
			require.Zero(t, p.Attempts)
		}
	}
}

// A message that fails in its turn blocks those behind it, and only those.
func TestARedriveEndsAtTheNextMessageThatIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		r.set(3, handler.Park(errBroken))
		for i := range 6 {
			write(t, store, "account-1", Deposited{i})
		}
		c := newConsumer(t, store, r, &consumer.Config{Errors: inOrder, Concurrency: 4})
		stop := running(t, c)
		time.Sleep(time.Second)
		r.set(0, nil)

		_, err := lettersOf(store).RequestRedrive(t.Context()) // of all
		require.NoError(t, err)
		time.Sleep(time.Minute)

		require.Equal(t, []int{0, 1, 2}, r.amounts(t, "account-1"))
		all, behind := open(t, store)
		require.Equal(t, []messagestore.Version{3, 4, 5}, all)
		require.Equal(t, []messagestore.Version{4, 5}, behind)
		r.set(3, nil)
		_, err = lettersOf(store).RequestRedrive(t.Context(), firstLetter(t, store).ID)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, r.amounts(t, "account-1"))
		require.NoError(t, stop())
	})
}

// The redrive of a message that is not the first one waits for its turn.
func TestARedriveOutOfTurnWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		write(t, store, "account-1", Deposited{0}, Deposited{1}, Deposited{2})
		c := newConsumer(t, store, r, &consumer.Config{Errors: inOrder, Concurrency: 4})
		stop := running(t, c)
		time.Sleep(time.Second)
		last, err := store.Last(t.Context(), "account-1")
		require.NoError(t, err)

		_, err = lettersOf(store).RequestRedrive(t.Context(), last.ID)
		require.NoError(t, err)
		time.Sleep(time.Hour)

		require.Empty(t, r.amounts(t, "account-1"))
		r.set(0, nil)
		_, err = lettersOf(store).RequestRedrive(t.Context(), firstLetter(t, store).ID)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Equal(t, []int{0, 1, 2}, r.amounts(t, "account-1"))
		require.NoError(t, stop())
	})
}

func TestADropFreesThoseBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(1, handler.Park(errBroken))
		write(t, store, "account-1", Deposited{0}, Deposited{1}, Deposited{2}, Deposited{3})
		stop := running(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder, Concurrency: 4}))
		time.Sleep(time.Second)

		_, err := lettersOf(store).Drop(t.Context(), firstLetter(t, store).ID, "paid by hand")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		write(t, store, "account-1", Deposited{4})
		time.Sleep(time.Second)

		require.Equal(t, []int{0, 2, 3, 4}, r.amounts(t, "account-1"))
		all, _ := open(t, store)
		require.Empty(t, all)
		require.NoError(t, stop())
	})
}

// A failure that is not for good does not park the messages behind: it is tried again.
func TestARedriveInOrderIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		r.set(2, errBroken)
		r.set(3, handler.RetryAfter(10*time.Minute, errBroken))
		write(t, store, "account-1", Deposited{0}, Deposited{1}, Deposited{2}, Deposited{3}, Deposited{4})
		stop := running(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder, Concurrency: 4}))
		time.Sleep(time.Second)
		r.set(0, nil)
		_, err := lettersOf(store).RequestRedrive(t.Context())
		require.NoError(t, err)

		time.Sleep(20 * time.Minute)
		require.Equal(t, []int{0, 1}, r.amounts(t, "account-1"))
		r.set(2, nil)
		time.Sleep(time.Minute)
		require.Equal(t, []int{0, 1, 2}, r.amounts(t, "account-1"))
		r.set(3, nil)
		write(t, store, "account-1", Deposited{5})
		time.Sleep(10 * time.Minute)

		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, r.amounts(t, "account-1"))
		require.NoError(t, stop())
	})
}

// The state is in the store: another process goes on with it.
func TestABlockedKeyOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		write(t, store, "account-1", Deposited{0}, Deposited{1})
		require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))
		r.set(0, nil)
		write(t, store, "account-1", Deposited{2})

		require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))
		all, behind := open(t, store)
		require.Equal(t, []messagestore.Version{0, 1, 2}, all)
		require.Equal(t, []messagestore.Version{1, 2}, behind)
		require.Empty(t, r.all())

		// It is dropped while no process runs.
		_, err := lettersOf(store).Drop(t.Context(), firstLetter(t, store).ID, "paid by hand")
		require.NoError(t, err)
		require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))
		require.Equal(t, []int{1, 2}, r.amounts(t, "account-1"))
	})
}

// A store that does not answer the read of the dead letters, at first.
type forgetful struct {
	*messagestore.Store

	mu    sync.Mutex
	fails int
	from  messagestore.GlobalPosition
}

func (s *forgetful) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Category == deadLetters && q.From >= s.from && s.fails > 0 {
		s.fails--
		return messagestore.CategoryPage{}, errors.New("the store is away")
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

func TestNothingIsDeliveredBeforeTheBlockedKeysAreKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		write(t, store, "account-1", Deposited{0}, Deposited{1})
		require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))
		write(t, store, "account-1", Deposited{2})

		stop := running(t, newConsumer(t, &forgetful{Store: store, fails: 5}, r, &consumer.Config{Errors: inOrder}))
		time.Sleep(time.Minute)

		require.Empty(t, r.all())
		all, _ := open(t, store)
		require.Len(t, all, 3)
		require.NoError(t, stop())
	})
}

// The dead letters of a key take several reads, of which the last fails at first.
func TestManyMessagesBehindAreReadAndRedrivenInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		r.set(0, handler.Park(errBroken))
		want := []int{}
		for i := range 1200 {
			write(t, store, "account-1", Deposited{i})
			want = append(want, i)
		}
		require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: inOrder}).CatchUp(t.Context()))
		last, err := store.End(t.Context(), deadLetters)
		require.NoError(t, err)
		write(t, store, "account-1", Deposited{1200})
		want = append(want, 1200)
		head := firstLetter(t, store)
		_, err = lettersOf(store).Drop(t.Context(), head.ID, "by hand")
		require.NoError(t, err)

		stop := running(t, newConsumer(t, &forgetful{Store: store, fails: 5, from: last / 2}, r, &consumer.Config{Errors: inOrder}))
		time.Sleep(time.Minute)

		require.Equal(t, want[1:], r.amounts(t, "account-1"))
		require.NoError(t, stop())
	})
}

// A tallied store counts its calls.
type tallied struct {
	*messagestore.Store

	mu    sync.Mutex
	calls map[string]int
}

func (s *tallied) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[what]++
}

func (s *tallied) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for calls := range maps.Values(s.calls) {
		n += calls
	}
	return n
}

func (s *tallied) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	s.count("write")
	return s.Store.Write(ctx, stream, expected, bodies...)
}

func (s *tallied) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	s.count("stream")
	return s.Store.ReadStream(ctx, stream, from)
}

func (s *tallied) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	s.count("category")
	return s.Store.ReadCategoryPage(ctx, q)
}

func (s *tallied) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	s.count("last")
	return s.Store.Last(ctx, stream)
}

func (s *tallied) Version(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
	s.count("version")
	return s.Store.Version(ctx, stream)
}

func TestAKeyWithoutOpenLettersCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := map[consumer.FailureAction]int{}
		for _, then := range []consumer.FailureAction{consumer.ParkMessage, consumer.ParkInOrder} {
			store, r := newStore(), &refuser{}
			r.set(-1, handler.Park(errBroken))
			write(t, store, "account-blocked", Deposited{-1})
			policy := consumer.ErrorPolicy{Then: then}
			require.NoError(t, newConsumer(t, store, r, &consumer.Config{Errors: policy, Concurrency: 8}).CatchUp(t.Context()))
			for i := range 5000 {
				write(t, store, account.Stream(fmt.Sprint(i%10)), Deposited{i})
			}
			counted := &tallied{Store: store}

			require.NoError(t, newConsumer(t, counted, r, &consumer.Config{Errors: policy, Concurrency: 8}).CatchUp(t.Context()))

			require.Len(t, r.all(), 5000)
			calls[then] = counted.total()
		}
		// One read of the dead letters a start. How many reads of the category there are is up to the scheduler.
		require.Less(t, calls[consumer.ParkInOrder], calls[consumer.ParkMessage]+50, "of 5000 messages")
	})
}

// While the last parked messages of a key are redriven, and dropped, new ones come: none of them is handled before
// those.
func TestNewMessagesDoNotPassTheLastRedrive(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				store, r := newStore(), &refuser{}
				slow := handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
					r.mu.Lock()
					pause := time.Duration(random.IntN(20)) * time.Millisecond
					r.mu.Unlock()
					time.Sleep(pause)
					return r.Handle(ctx, m)
				})
				stop := running(t, newConsumer(t, store, slow, &consumer.Config{Errors: inOrder, Concurrency: 4, RedriveInterval: 20 * time.Millisecond}))
				dropped := map[int]bool{}
				for i := range 200 {
					if i%20 == 3 {
						r.set(i, handler.Park(errBroken))
					}
					write(t, store, "account-1", Deposited{i})
					time.Sleep(time.Duration(i%7) * time.Millisecond)
					if i%20 != 13 {
						continue
					}
					time.Sleep(time.Second)
					p := firstLetter(t, store)
					if i%40 == 13 {
						_, err := lettersOf(store).Drop(t.Context(), p.ID, "by hand")
						require.NoError(t, err)
						dropped[i-10] = true
						continue
					}
					r.set(i-10, nil)
					_, err := lettersOf(store).RequestRedrive(t.Context(), p.ID)
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				require.NoError(t, stop())

				want := []int{}
				for i := range 200 {
					if !dropped[i] {
						want = append(want, i)
					}
				}
				require.Equal(t, want, r.amounts(t, "account-1"))
				all, _ := open(t, store)
				require.Empty(t, all)
			})
		})
	}
}

// Replicas come, stop and are killed, while messages are refused, redriven and dropped: the first handlings of
// each key are in order, and in the end all was handled but those that were dropped.
func TestReplicasKeepTheOrderOfBlockedKeys(t *testing.T) {
	t.Parallel()
	seeds := uint64(3)
	if tier.Long() {
		seeds = 30
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 2))
				store, r := newStore(), &refuser{}
				config := &consumer.Config{
					Errors: inOrder, Concurrency: 8, RedriveInterval: 50 * time.Millisecond, Lease: time.Second, CheckpointMessages: 5,
				}
				start := func() (stop, kill func()) {
					s := &frozen{Store: store}
					s.thawed = sync.NewCond(&s.mu)
					ctx, cancel := context.WithCancel(context.Background())
					ended := make(chan error, 1)
					dead := false
					c := newConsumer(t, s, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
						time.Sleep(time.Millisecond)
						if s.wait() != nil {
							return errDead // a process that is dead has no effect
						}
						return r.Handle(ctx, m)
					}), config)
					go func() { ended <- c.Run(ctx) }()
					end := func() {
						cancel()
						err := <-ended
						if !dead {
							require.NoError(t, err)
						}
					}
					return end, func() { dead = true; s.kill(); end() }
				}
				stop, kill := start()
				stop2, kill2 := start()
				dropped := map[uuid.UUID]bool{}
				for i := range 300 {
					if random.IntN(12) == 0 {
						r.set(i, handler.Park(errBroken))
					}
					write(t, store, account.Stream(fmt.Sprint(i%6)), Deposited{i})
					time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
					switch random.IntN(30) {
					case 0:
						stop()
						stop, kill = start()
					case 1:
						kill2()
						stop2, kill2 = start()
					case 2:
						kill()
						stop, kill = start()
					case 3:
						r.mu.Lock()
						for amount := range r.bad {
							if random.IntN(2) == 0 {
								delete(r.bad, amount)
							}
						}
						r.mu.Unlock()
						_, err := lettersOf(store).RequestRedrive(t.Context())
						require.NoError(t, err)
					}
				}
				// A message that is dropped before the checkpoint has passed it may be delivered after a crash, as it
				// is documented. So it is dropped when all have passed.
				time.Sleep(20 * time.Second)
				for p, err := range lettersOf(store).All(t.Context()) {
					require.NoError(t, err)
					if !p.Behind && random.IntN(2) == 0 {
						_, err := lettersOf(store).Drop(t.Context(), p.ID, "by hand")
						require.NoError(t, err)
						dropped[p.ID] = true
					}
				}
				r.mu.Lock()
				r.bad = nil
				r.mu.Unlock()
				for range 30 {
					_, err := lettersOf(store).RequestRedrive(t.Context())
					require.NoError(t, err)
					time.Sleep(time.Second)
				}
				stop()
				stop2()

				all, _ := open(t, store)
				require.Empty(t, all)
				seen := map[uuid.UUID]bool{}
				first := map[messagestore.StreamName][]int{}
				for _, m := range r.all() {
					if !seen[m.ID] {
						seen[m.ID] = true
						first[m.Stream] = append(first[m.Stream], int(m.Position))
					}
				}
				for key := range 6 {
					stream := account.Stream(fmt.Sprint(key))
					want := []int{}
					for m, err := range store.ReadStream(t.Context(), stream, 0) {
						require.NoError(t, err)
						if !dropped[m.ID] {
							want = append(want, int(m.Position))
						}
					}
					require.True(t, slices.IsSorted(first[stream]), "%s: %v", stream, first[stream])
					require.Equal(t, want, first[stream])
				}
			})
		})
	}
}

// A letter that cannot be read may be of any cardinal id, and is not passed over.
func TestALetterThatCannotBeReadKeepsMessagesWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, r := newStore(), &refuser{}
		write(t, store, "account-1", Deposited{0})
		bad := deadLetters.Stream("ledger").With(uuid.NewString())
		write(t, store, bad, raw("Parked", `{"messageId": 7}`))
		c := newConsumer(t, store, r, &consumer.Config{Errors: inOrder})
		stop := running(t, c)

		time.Sleep(time.Hour)

		require.Empty(t, r.all())
		require.Positive(t, c.Stats().StoreErrors)
		require.NoError(t, stop())
	})
}
