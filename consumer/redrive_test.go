package consumer_test

import (
	"context"
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
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// oneParked returns a store in which ledger has parked a message, which is to be redriven.
func oneParked(t *testing.T) *tap {
	t.Helper()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	park(t, store.Store, account, "ledger")
	require.Equal(t, 1, retry(t, store.Store, account, "ledger"))
	return store
}

// The store is away when the outcome of a redrive is to be stored, or does not say that it has
// stored it.
func TestWhatWasRedrivenIsNotHandedOverAgainWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	unknown := &messagestore.OutcomeUnknownError{Cause: errStore}
	for name, spoil := range map[string]func(s *tap, spoilt func(error) func(queuing.Take) error){
		"Away":              func(s *tap, spoilt func(error) func(queuing.Take) error) { s.take = spoilt(errStore) },
		"UnknownNotWritten": func(s *tap, spoilt func(error) func(queuing.Take) error) { s.take = spoilt(unknown) },
		"UnknownWritten":    func(s *tap, spoilt func(error) func(queuing.Take) error) { s.took = spoilt(unknown) },
	} {
		for _, failure := range []error{nil, errBroken} {
			t.Run(fmt.Sprintf("%s/%v", name, failure), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := oneParked(t)
					calls, back := 0, time.Time{}
					store.set(func(s *tap) {
						spoil(s, func(err error) func(queuing.Take) error {
							return func(queuing.Take) error {
								if time.Now().Before(back) {
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
					}), &consumer.Config{Lease: time.Minute})
					stop := running(t, c)
					time.Sleep(time.Hour)
					require.NoError(t, stop())

					require.Equal(t, 1, calls)
					require.Equal(t, int64(1), c.Stats().Retried)
					if failure == nil {
						require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
						require.Equal(t, "xR", logOf(t, store, account, "ledger", 1))
					} else {
						require.Equal(t, "xRx", logOf(t, store, account, "ledger", 1))
					}
				})
			})
		}
	}
}

// Where the answer to the outcome of a redrive is lost, a store that is closed then does not say
// that it was not stored.
func TestAnOutcomeThatMayBeStoredIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := oneParked(t)
		lost := false
		store.set(func(s *tap) {
			s.took = func(q queuing.Take) error {
				if lost = lost || len(q.Finishes) > 0; lost {
					return &messagestore.OutcomeUnknownError{Cause: errStore}
				}
				return nil
			}
			s.take = func(queuing.Take) error {
				if lost {
					return fmt.Errorf("take: %w", messagestore.ErrClosed)
				}
				return nil
			}
		})

		err := newConsumer(t, store, &journal{}, nil).Run(t.Context())

		require.ErrorIs(t, err, messagestore.ErrClosed)
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	})
}

// A store that stays away delays a stop by five seconds at most, as it does the last checkpoint,
// and ends CatchUp.
func TestAnOutcomeThatCannotBeStoredHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	for _, catchUp := range []bool{false, true} {
		t.Run(fmt.Sprint("CatchUp", catchUp), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := oneParked(t)
				away := false
				store.set(func(s *tap) {
					s.take = func(queuing.Take) error {
						if away {
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
				require.LessOrEqual(t, time.Since(start), 15100*time.Millisecond)
				require.True(t, away)
			})
		})
	}
}

// A redrive that waits behind a message of its cardinal id is given back, and nobody waits for it.
func TestARedriveThatWaitsHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		write(t, store, "account-1", Deposited{2})
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if m.Position == 1 {
				time.Sleep(20 * time.Second)
				return nil
			}
			t.Error("it was redriven")
			return nil
		}), &consumer.Config{RedriveInterval: time.Second, Grace: time.Minute}))
		time.Sleep(time.Second / 2)
		retry(t, store, account, "ledger")
		time.Sleep(10 * time.Second)
		require.Len(t, itemsOf(t, store, account, "ledger", queuing.Out), 1)
		start := time.Now()

		require.NoError(t, stop())

		require.LessOrEqual(t, time.Since(start), 10*time.Second)
		require.Len(t, itemsOf(t, store, account, "ledger", queuing.Later), 1)
	})
}

// A handler that did not return is in flight until it does, also in a redrive.
func TestAHandlerThatARedriveLeftBehindKeepsTheConsumerFromRunning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := oneParked(t)
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

		start := time.Now()
		err := c.Run(ctx)

		requireGraceExceeded(t, err)
		require.ErrorContains(t, err, "which is being redriven")
		require.LessOrEqual(t, time.Since(start), 13100*time.Millisecond, "the grace and a second")
		time.Sleep(time.Minute)
		require.ErrorIs(t, runForAWhile(t, c), consumer.ErrRunning)
		require.Equal(t, int64(1), calls.Load())
		release()
		synctest.Wait()
		require.NoError(t, c.CatchUp(t.Context()))
		require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
	})
}

// A redrive ends when its handler returns, with any error: also with that of another consumer that
// left a handler behind, and with one whose text panics.
func TestARedriveWhoseHandlerReturnsHasEndedWhateverItReturns(t *testing.T) {
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
				store := oneParked(t)
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
				parked := itemsOf(t, store.Store, account, "ledger", queuing.Dead)
				require.Len(t, parked, 1)
				require.Equal(t, test.text, parked[0].Error)
				require.NoError(t, stop())
			})
		})
	}
}

// A mute driver does not answer one of the calls that are about parked messages.
type mute struct {
	queuing.Driver

	mu     sync.Mutex
	calls  []string
	silent string
}

func (d *mute) hear(ctx context.Context, call string) error {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	silent := call == d.silent
	if silent {
		d.silent = ""
	}
	d.mu.Unlock()
	if silent {
		<-ctx.Done()
		return &messagestore.OutcomeUnknownError{Cause: ctx.Err()}
	}
	return nil
}

// take returns the calls since the last time.
func (d *mute) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

func (d *mute) QueueReady(ctx context.Context, q queuing.Queue) (queuing.Ready, error) {
	if err := d.hear(ctx, "Look"); err != nil {
		return queuing.Ready{}, err
	}
	return d.Driver.QueueReady(ctx, q)
}

func (d *mute) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	call := "Take"
	if len(t.Finishes) > 0 {
		call = "Outcome"
	}
	if err := d.hear(ctx, call); err != nil {
		return queuing.Taken{}, err
	}
	return d.Driver.QueueTake(ctx, t)
}

func (d *mute) QueueLeave(ctx context.Context, l queuing.Leave) error {
	if err := d.hear(ctx, "Leave"); err != nil {
		return err
	}
	return d.Driver.QueueLeave(ctx, l)
}

// A muted store has a mute driver for consumers.
type muted struct {
	*messagestore.Store

	driver *mute
}

func (s *muted) Driver() (messagestore.Driver, error) { return s.driver, nil }

func newMute(t *testing.T, silent string) *muted {
	t.Helper()
	store := oneParked(t).Store
	_, driver := queueOf(t, store, account, "ledger")
	return &muted{store, &mute{Driver: driver, silent: silent}}
}

// The calls of a redrive, in their order.
var callsOfARedrive = []string{"Look", "Take", "Outcome"}

func TestARedriveWhoseStoreDoesNotAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, name := range callsOfARedrive {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMute(t, name)
				j := &journal{}
				stop := running(t, newConsumer(t, store, j, nil))
				time.Sleep(time.Second)
				write(t, store.Store, "account-2", Deposited{2})
				time.Sleep(20 * time.Second)

				require.Contains(t, j.all(), "account-2@0")
				time.Sleep(10 * time.Minute)
				require.ElementsMatch(t, []string{"account-1@0", "account-2@0"}, j.all())
				require.Empty(t, parkedOf(t, store.Store, account, "ledger"))
				require.NoError(t, stop())
				require.Empty(t, store.driver.silent, "it was asked")
			})
		})
	}
}

func TestARedriveWhoseStoreDoesNotAnswerHoldsUpNoStop(t *testing.T) {
	t.Parallel()
	for _, name := range callsOfARedrive {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newMute(t, name)
				stop := running(t, newConsumer(t, store, &journal{}, &consumer.Config{Grace: 2 * time.Second}))
				time.Sleep(time.Second)
				start := time.Now()

				require.NoError(t, stop())
				require.LessOrEqual(t, time.Since(start), 8*time.Second)
			})
		})
	}
}

// A consumer at rest asks one question for each interval, and takes nothing.
func TestAConsumerWithNothingToRedriveAsksWhetherThereIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMute(t, "")
		stop := running(t, newConsumer(t, store, &journal{}, nil))
		time.Sleep(time.Minute)
		calls := store.driver.take()
		require.Contains(t, calls, "Take")
		require.NotContains(t, calls, "Leave", "it would make a queue that was removed meanwhile")
		time.Sleep(time.Minute)

		calls = store.driver.take()
		require.InDelta(t, 12, len(calls), 1)
		require.NotContains(t, calls, "Take")
		require.NoError(t, stop())
	})
}

// What is retried is found while the redrive of another message goes on.
func TestWhatIsRetriedMeanwhileIsRedriven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		write(t, store, "account-2", Deposited{2})
		park(t, store, account, "ledger")
		j := &journal{}
		stop := running(t, newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, m *messagestore.Message) error {
			if m.Stream == "account-1" {
				time.Sleep(time.Minute)
			}
			return j.Handle(ctx, m)
		}), &consumer.Config{Concurrency: 2, Lease: time.Hour}))
		retry(t, store, account, "ledger", 1)
		time.Sleep(10 * time.Second)

		retry(t, store, account, "ledger", 2)
		time.Sleep(10 * time.Second)

		require.Equal(t, []string{"account-2@0"}, j.all())
		time.Sleep(time.Minute)
		require.Len(t, j.all(), 2)
		require.NoError(t, stop())
	})
}

// What is retried while the consumer is paused stays where an operator can drop it, and is redriven afterwards.
func TestAPausedConsumerRedrivesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		j := &journal{}
		stop := running(t, newConsumer(t, store, j, nil))
		time.Sleep(time.Minute)
		_, err := operate.Consumer(store, account, "ledger").Pause(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Minute)

		retry(t, store, account, "ledger")
		time.Sleep(time.Minute)

		require.Len(t, itemsOf(t, store, account, "ledger", queuing.Later), 1)
		_, err = operate.Consumer(store, account, "ledger").Resume(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Len(t, j.all(), 1)
		require.Empty(t, parkedOf(t, store, account, "ledger"))
		require.NoError(t, stop())
	})
}
