package consumer_test

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
)

// What consumers note of requests is no reason to note more: not for themselves, for
// another member or name, or for the next that starts.
func TestWhatIsSettledIsNotedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		for i := range 8 {
			write(t, store, account.Stream(fmt.Sprint(i)), Deposited{i})
		}
		j := &journal{}
		start := func() (stop func()) {
			var stops []func() error
			for member := range 2 {
				stops = append(stops, running(t, newConsumer(t, store, j, &consumer.Config{GroupSize: 2, GroupMember: member})))
			}
			stops = append(stops, running(t, newIn(t, store, account, "other", j, nil)))
			return func() {
				for _, stop := range stops {
					require.NoError(t, stop())
				}
			}
		}
		versions := func() (all []messagestore.Version) {
			for _, name := range []string{"ledger", "other"} {
				last, err := store.Last(t.Context(), deadLetters.Stream(name, "requests"))
				require.NoError(t, err)
				require.Equal(t, "RedrivesSettled", last.Type)
				require.JSONEq(t, fmt.Sprintf(`{"next": %d}`, last.Position), string(last.Data))
				all = append(all, last.Position)
			}
			return all
		}
		for _, name := range []string{"ledger", "other"} {
			park(t, store, account, name)
			request(t, store, account, name)
		}
		stop := start()
		time.Sleep(10 * time.Minute)
		require.Len(t, j.all(), 16)
		settled := versions()

		time.Sleep(10 * time.Hour)
		require.Equal(t, settled, versions())
		stop()
		for range 3 {
			stop = start()
			time.Sleep(time.Hour)
			stop()
			require.Equal(t, settled, versions())
		}
		require.NoError(t, newIn(t, store, account, "other", j, nil).CatchUp(t.Context()))
		require.Equal(t, settled, versions())
		require.Len(t, j.all(), 16)
	})
}

func TestWhatIsSettledIsNotedThoughTheStoreWasAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1})
		park(t, store.Store, account, "ledger")
		request(t, store.Store, account, "ledger")
		requests := deadLetters.Stream("ledger", "requests")
		failed := false
		store.set(func(s *tap) {
			s.write = func(stream messagestore.StreamName) error {
				if stream != requests || failed {
					return nil
				}
				failed = true
				return errStore
			}
		})
		stop := running(t, newConsumer(t, store, &journal{}, nil))
		time.Sleep(time.Hour)

		last, err := store.Store.Last(t.Context(), requests)
		require.NoError(t, err)
		require.Equal(t, "RedrivesSettled", last.Type)
		require.NoError(t, stop())
	})
}

// oneParked returns a store in which ledger has parked a message, and the stream of that.
func oneParked(t *testing.T) (store *tap, letter messagestore.StreamName) {
	t.Helper()
	store = &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	park(t, store.Store, account, "ledger")
	return store, parkedOf(t, store.Store, account, "ledger")[0].DeadLetter
}

// The store is away when the outcome of a redrive is to be recorded, or does not say
// that it has recorded it.
func TestWhatWasRedrivenIsNotHandedOverAgainWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	unknown := &messagestore.OutcomeUnknownError{Cause: errStore}
	for name, spoil := range map[string]func(s *tap, spoilt func(error) func(messagestore.StreamName) error){
		"Away":              func(s *tap, spoilt func(error) func(messagestore.StreamName) error) { s.write = spoilt(errStore) },
		"UnknownNotWritten": func(s *tap, spoilt func(error) func(messagestore.StreamName) error) { s.write = spoilt(unknown) },
		"UnknownWritten":    func(s *tap, spoilt func(error) func(messagestore.StreamName) error) { s.lost = spoilt(unknown) },
	} {
		for _, failure := range []error{nil, errBroken} {
			for _, byHand := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%v/ByHand%v", name, failure, byHand), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						store, letter := oneParked(t)
						calls, back := 0, time.Time{}
						store.set(func(s *tap) {
							spoil(s, func(err error) func(messagestore.StreamName) error {
								return func(stream messagestore.StreamName) error {
									if stream == letter && time.Now().Before(back) {
										return err
									}
									return nil
								}
							})
						})
						c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
							calls++
							store.set(func(*tap) { back = time.Now().Add(30 * time.Second) })
							return failure
						}), nil)
						if byHand {
							n, err := c.Redrive(t.Context())
							require.NoError(t, err)
							require.Equal(t, failure == nil, n == 1)
						} else {
							request(t, store.Store, account, "ledger")
							stop := running(t, c)
							time.Sleep(time.Hour)
							require.NoError(t, stop())
						}

						require.Equal(t, 1, calls)
						require.Equal(t, int64(1), c.Stats().Retried)
						version, err := store.Version(t.Context(), letter)
						require.NoError(t, err)
						require.Equal(t, messagestore.Version(2), version, "parked, claimed, and one outcome")
						parked := parkedOf(t, store.Store, account, "ledger")
						if failure == nil {
							require.Empty(t, parked)
						} else {
							require.Len(t, parked, 1)
							require.Equal(t, 2, parked[0].Attempts)
						}
					})
				})
			}
		}
	}
}

// The store is away right behind the claim, when it is to tell whether the message's stream was deleted.
func TestARedriveThatDoesNotComeToTheHandlerGivesItsClaimBack(t *testing.T) {
	t.Parallel()
	store, _ := oneParked(t)
	away := true
	store.set(func(s *tap) {
		s.look = func(stream messagestore.StreamName) error {
			if stream == "account-1" && away {
				away = false
				return errStore
			}
			return nil
		}
	})
	j := &journal{}
	c := newConsumer(t, store, j, nil)

	_, err := c.Redrive(t.Context())

	require.ErrorIs(t, err, errStore)
	require.Empty(t, j.all())
	parked := parkedOf(t, store.Store, account, "ledger")
	require.Len(t, parked, 1)
	require.Zero(t, parked[0].Redriving)
	require.Equal(t, 1, parked[0].Attempts)
	require.Equal(t, "hopeless", parked[0].Error)
	n, err := c.Redrive(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A handler that returns after its claim has ended has handled its message, if nobody
// else has claimed it.
func TestWhatWasRedrivenTooLateIsRecordedThoughTheStoreIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, letter := oneParked(t)
		request(t, store.Store, account, "ledger")
		calls, back := 0, time.Time{}
		store.set(func(s *tap) {
			s.write = func(stream messagestore.StreamName) error {
				if stream == letter && time.Now().Before(back) {
					return errStore
				}
				return nil
			}
		})
		stop := running(t, newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			time.Sleep(61 * time.Second)
			store.set(func(*tap) { back = time.Now().Add(3 * time.Second) })
			return nil
		}), nil))
		time.Sleep(time.Hour)
		synctest.Wait()

		require.Equal(t, 1, calls)
		require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
		require.NoError(t, stop())
	})
}

// A store that stays away holds up no stop: by hand no longer than it takes to record
// something, and a run no longer than its grace.
func TestAnOutcomeThatCannotBeRecordedHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	for _, byHand := range []bool{false, true} {
		t.Run(fmt.Sprint("ByHand", byHand), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, letter := oneParked(t)
				request(t, store.Store, account, "ledger")
				away := false
				store.set(func(s *tap) {
					s.write = func(stream messagestore.StreamName) error {
						if stream == letter && away {
							return errStore
						}
						return nil
					}
				})
				c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
					store.set(func(*tap) { away = true })
					return nil
				}), &consumer.Config{Grace: 2 * time.Second})
				start := time.Now()
				if byHand {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					_, err := c.Redrive(ctx)
					require.ErrorIs(t, err, errStore)
					require.Equal(t, 15*time.Second, time.Since(start))
					return
				}
				stop := running(t, c)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.NoError(t, stop())
				require.LessOrEqual(t, time.Since(start), 12500*time.Millisecond)
				require.True(t, away)
			})
		})
	}
}

// A handler that would not stop has its message in hand until it returns, also when its
// redrive is over.
func TestAHandlerThatARedriveLeftBehindKeepsTheConsumerFromRunning(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stopped bool // before the claim ends
		away    bool // the store, when the outcome is to be recorded
		byHand  bool
	}{
		"Stopped":   {stopped: true},
		"ClaimEnds": {},
		"StoreAway": {away: true},
		"ByHand":    {byHand: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, letter := oneParked(t)
				request(t, store.Store, account, "ledger")
				blocked := make(chan struct{})
				release := sync.OnceFunc(func() { close(blocked) })
				defer release()
				var mu sync.Mutex
				calls, away := 0, false
				store.set(func(s *tap) {
					s.write = func(stream messagestore.StreamName) error {
						mu.Lock()
						defer mu.Unlock()
						if stream == letter && away {
							return errStore
						}
						return nil
					}
				})
				c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
					mu.Lock()
					calls++
					away = test.away && calls == 1
					mu.Unlock()
					<-blocked
					return nil
				}), &consumer.Config{Grace: 2 * time.Second})

				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				if test.stopped {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
				}
				defer cancel()
				var err error
				if test.byHand {
					_, err = c.Redrive(ctx)
				} else {
					err = c.Run(ctx)
				}
				require.ErrorIs(t, err, consumer.ErrGraceExceeded)
				time.Sleep(time.Minute)

				require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
				require.Equal(t, 1, calls)
				mu.Lock()
				away = false
				mu.Unlock()
				release()
				synctest.Wait()
				require.NoError(t, c.CatchUp(t.Context()))
			})
		})
	}
}

// What the handler returned says nothing of whether it has: not of another consumer, in
// the handler, that left one behind, and least of all by a method that panics.
func TestARequestWhoseHandlerReturnsIsSettledWhateverItReturns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure error
		text    string
	}{
		"GraceExceeded": {fmt.Errorf("catch up: %w", consumer.ErrGraceExceeded), "catch up: grace exceeded"},
		"Panics":        {&nastyError{}, "*consumer_test.nastyError, whose text panics"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, _ := oneParked(t)
				request(t, store.Store, account, "ledger")
				handled := 0
				stop := running(t, newConsumer(t, store, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
					if m.Stream == "account-1" {
						return test.failure
					}
					handled++
					return nil
				}), nil))
				time.Sleep(time.Minute)
				write(t, store.Store, "account-2", Deposited{2})
				time.Sleep(time.Minute)
				synctest.Wait()

				require.Equal(t, 1, handled, "it runs on")
				parked := parkedOf(t, store.Store, account, "ledger")
				require.Len(t, parked, 1)
				require.Equal(t, test.text, parked[0].Error)
				require.Equal(t, 2, parked[0].Attempts)
				require.False(t, parked[0].Requested)
				require.NoError(t, stop())
			})
		})
	}
}

// A mute store does not answer one of the calls that are about a letter or the stream
// of its message.
type mute struct {
	*messagestore.Store

	mu     sync.Mutex
	about  map[messagestore.StreamName]bool
	calls  int
	silent int // the call that is not answered
}

func (s *mute) hear(ctx context.Context, stream messagestore.StreamName) error {
	s.mu.Lock()
	if s.about[stream] {
		s.calls++
	}
	silent := s.about[stream] && s.calls == s.silent
	s.mu.Unlock()
	if silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *mute) ReadStream(ctx context.Context, stream messagestore.StreamName, from messagestore.Version) iter.Seq2[*messagestore.Message, error] {
	if err := s.hear(ctx, stream); err != nil {
		return func(yield func(*messagestore.Message, error) bool) { yield(nil, err) }
	}
	return s.Store.ReadStream(ctx, stream, from)
}

func (s *mute) Write(ctx context.Context, stream messagestore.StreamName, expected messagestore.Version, bodies ...messagestore.Body) (messagestore.Written, error) {
	if err := s.hear(ctx, stream); err != nil {
		return messagestore.Written{}, err
	}
	return s.Store.Write(ctx, stream, expected, bodies...)
}

func (s *mute) Last(ctx context.Context, stream messagestore.StreamName) (*messagestore.Message, error) {
	if err := s.hear(ctx, stream); err != nil {
		return nil, err
	}
	return s.Store.Last(ctx, stream)
}

// CategoryPage is about account-1 where its one message is looked for.
func (s *mute) ReadCategoryPage(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	if q.Category == account && q.From == 1 && q.Limit == 1 {
		if err := s.hear(ctx, "account-1"); err != nil {
			return messagestore.CategoryPage{}, err
		}
	}
	return s.Store.ReadCategoryPage(ctx, q)
}

// newMute returns a store with a parked message that is asked for.
func newMute(t *testing.T, silent int) *mute {
	store := &mute{Store: newStore(), silent: silent}
	write(t, store.Store, "account-1", Deposited{1})
	park(t, store.Store, account, "ledger")
	write(t, store.Store, "account-3", Deposited{3}) // so that the position is behind another message
	require.NoError(t, newConsumer(t, store.Store, &journal{}, nil).CatchUp(t.Context()))
	request(t, store.Store, account, "ledger")
	letter := parkedOf(t, store.Store, account, "ledger")[0].DeadLetter
	store.about = map[messagestore.StreamName]bool{letter: true, "account-1": true}
	return store
}

// The calls of a redrive that was asked for, in their order.
var callsOfARedrive = []string{"Look", "Read", "Claim", "Deleted", "StillThere", "Outcome", "Left"}

func TestARedriveWhoseStoreDoesNotAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	for i, name := range callsOfARedrive {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMute(t, i+1)
				j := &journal{}
				stop := running(t, newConsumer(t, store, j, nil))
				time.Sleep(time.Second)
				write(t, store.Store, "account-2", Deposited{2})
				time.Sleep(15 * time.Second)

				require.Contains(t, j.all(), "account-2@0")
				time.Sleep(10 * time.Minute)
				require.ElementsMatch(t, []string{"account-1@0", "account-2@0"}, j.all())
				require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
				require.NoError(t, stop())
			})
		})
	}
}

// Whether its message is still there is not told by what is behind that.
func TestARedriveReadsOneMessageOfAStream(t *testing.T) {
	t.Parallel()
	driver := &counting{Driver: newDriver()}
	store := messagestore.New(driver, nil)
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	for i := range 1000 {
		write(t, store, "account-1", Deposited{i})
	}
	j := &journal{}
	c := newConsumer(t, store, j, nil)
	before := driver.read.Load()

	n, err := c.Redrive(t.Context())

	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"account-1@0"}, j.all())
	require.Less(t, driver.read.Load()-before, int64(10))
}

// A counting driver counts the messages that are read.
type counting struct {
	messagestore.Driver
	read atomic.Int64
}

func (d *counting) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	messages, err := d.Driver.ReadStream(ctx, q)
	d.read.Add(int64(len(messages)))
	return messages, err
}

func (d *counting) ReadCategory(ctx context.Context, q messagestore.CategoryQuery) (messagestore.CategoryPage, error) {
	page, err := d.Driver.ReadCategory(ctx, q)
	d.read.Add(int64(len(page.Messages)))
	return page, err
}

func TestARedriveWhoseStoreDoesNotAnswerHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	for i, name := range callsOfARedrive {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMute(t, i+1)
				stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Grace: 2 * time.Second}))
				time.Sleep(time.Second)
				start := time.Now()

				require.NoError(t, stop())
				require.LessOrEqual(t, time.Since(start), 2500*time.Millisecond)
			})
		})
	}
}

// A lane whose handler was left behind opens to no other message of the run, however
// busy its workers are.
func TestBehindAHandlerThatARedriveLeftBehindNoMessageIsBegun(t *testing.T) {
	t.Parallel()
	const grace = 2 * time.Second
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			store := newStore()
			write(t, store, "account-1", Deposited{1})
			park(t, store, account, "ledger")
			request(t, store, account, "ledger")
			blocked := make(chan struct{})
			release := sync.OnceFunc(func() { close(blocked) })
			defer release()
			leftBehind := time.Now().Add(time.Minute + grace)
			var behind atomic.Int32
			var recorded atomic.Bool
			tapped := &tap{Store: store, wrote: func(_ messagestore.StreamName, body messagestore.Body) {
				if body.MessageType() == "Parked" {
					recorded.Store(true)
				}
			}}
			c := newConsumer(t, tapped, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
				switch {
				case m.Stream != "account-1":
					time.Sleep(time.Until(leftBehind))
					for !recorded.Load() {
						runtime.Gosched()
					}
				case m.Position == 0:
					<-blocked
				default:
					behind.Add(1)
				}
				return nil
			}), &consumer.Config{Concurrency: 9, Grace: grace})
			time.AfterFunc(time.Second, func() {
				write(t, store, "account-1", Deposited{2})
				for i := range 300 {
					write(t, store, account.Stream(fmt.Sprint(i+2)), Deposited{i})
				}
			})

			require.ErrorIs(t, c.Run(t.Context()), consumer.ErrGraceExceeded)

			require.Zero(t, behind.Load())
			release()
		})
	}
}
