package consumer_test

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

// Consumers write notes of settled requests. Such a note leads to no further note: not by
// the same consumer, by another member or name, or by the next run.
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
			for range 2 {
				stops = append(stops, running(t, newConsumer(t, store, j, &consumer.Config{Concurrency: 2})))
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
				last, err := store.Last(t.Context(), deadLetters.Stream(name).With("requests"))
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

		time.Sleep(time.Hour)
		require.Equal(t, settled, versions())
		stop()
		for range 3 {
			stop = start()
			time.Sleep(10 * time.Minute)
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
		requests := deadLetters.Stream("ledger").With("requests")
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
		time.Sleep(10 * time.Minute)

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
			t.Run(fmt.Sprintf("%s/%v", name, failure), func(t *testing.T) {
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
					c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
						calls++
						store.set(func(*tap) { back = time.Now().Add(30 * time.Second) })
						return failure
					}), nil)
					request(t, store.Store, account, "ledger")
					stop := running(t, c)
					time.Sleep(time.Hour)
					require.NoError(t, stop())

					require.Equal(t, 1, calls)
					require.Equal(t, int64(1), c.Stats().Retried)
					version, err := store.Version(t.Context(), letter)
					require.NoError(t, err)
					require.Equal(t, messagestore.Version(1), version, "parked, and one outcome")
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

// Where the answer to the outcome of a redrive is lost, a store that is closed then does not say that it was not stored.
func TestAnOutcomeThatMayBeStoredIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, letter := oneParked(t)
		redriven, lost := false, false
		store.set(func(s *tap) {
			s.lost = func(stream messagestore.StreamName) error {
				if stream != letter || !redriven || lost {
					return nil
				}
				lost = true
				return &messagestore.OutcomeUnknownError{Cause: errStore}
			}
			s.write = func(stream messagestore.StreamName) error {
				if stream == letter && lost {
					return fmt.Errorf("write: %w", messagestore.ErrClosed)
				}
				return nil
			}
		})
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			store.set(func(*tap) { redriven = true })
			return nil
		}), nil)
		request(t, store.Store, account, "ledger")

		err := c.Run(t.Context())

		require.ErrorIs(t, err, messagestore.ErrClosed)
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	})
}

// A store that stays away delays a stop by no more than the grace, and ends CatchUp.
func TestAnOutcomeThatCannotBeStoredHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	for _, catchUp := range []bool{false, true} {
		t.Run(fmt.Sprint("CatchUp", catchUp), func(t *testing.T) {
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
				c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
					store.set(func(*tap) { away = true })
					return nil
				}), &consumer.Config{Grace: 2 * time.Second})
				start := time.Now()
				if catchUp {
					require.ErrorIs(t, c.CatchUp(t.Context()), errStore)
					require.Less(t, time.Since(start), time.Second)
					return
				}
				stop := running(t, c)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				require.NoError(t, stop())
				require.LessOrEqual(t, time.Since(start), 12600*time.Millisecond)
				require.True(t, away)
			})
		})
	}
}

// A handler that did not return is in flight until it does, also in a redrive.
func TestAHandlerThatARedriveLeftBehindKeepsTheConsumerFromRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, _ := oneParked(t)
		request(t, store.Store, account, "ledger")
		blocked := make(chan struct{})
		release := sync.OnceFunc(func() { close(blocked) })
		defer release()
		var calls atomic.Int64
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls.Add(1)
			<-blocked
			return nil
		}), &consumer.Config{Grace: 2 * time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()

		requireGraceExceeded(t, c.Run(ctx))

		time.Sleep(time.Minute)
		require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
		require.Equal(t, int64(1), calls.Load())
		release()
		synctest.Wait()
		require.NoError(t, c.CatchUp(t.Context()))
		require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
	})
}

// A request is settled when its handler returns, with any error: also with that of another
// consumer that left a handler behind, and with one whose text panics.
func TestARequestWhoseHandlerReturnsIsSettledWhateverItReturns(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure error
		text    string
	}{
		"GraceExceeded": {fmt.Errorf("catch up: %w", &consumer.GraceExceededError{}), "catch up: grace of 0s exceeded: the handler goes on with "},
		"Panics":        {&nastyError{}, "*consumer_test.nastyError, whose text panics"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, _ := oneParked(t)
				request(t, store.Store, account, "ledger")
				handled := 0
				stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
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
var callsOfARedrive = []string{"Look", "Entry", "Message", "Outcome"}

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

// A redrive looks for its message alone, and reads none behind it.
func TestARedriveReadsOneMessageOfAStream(t *testing.T) {
	t.Parallel()
	driver := &counting{Driver: newDriver()}
	store := must.New(messagestore.New(driver, nil))
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	for i := range 1000 {
		write(t, store, "account-1", Deposited{i})
	}
	j := &journal{}
	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))
	request(t, store, account, "ledger")
	before := driver.read.Load()

	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))

	require.Equal(t, "account-1@0", j.all()[1000])
	require.Less(t, driver.read.Load()-before, int64(20))
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
