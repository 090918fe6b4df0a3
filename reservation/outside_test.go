package reservation_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

// The attack of the first week: Mallory chooses the id of an entity so that her command is written
// to the place of Ann's key. The service writes the id as it came.
func TestAnIdentifierFromOutsideTakesNoKeyAndNoEntity(t *testing.T) {
	t.Parallel()
	for _, inline := range []bool{true, false} {
		store := newStore()
		const id = "1+accounts+AAA"
		send(t, store, commands.Stream(id), Deposit{"MMM", 10})
		send(t, store, commands.Stream("1+AAA"), Deposit{"MMM", 10})
		ann := send(t, store, commands.Stream("1"), Deposit{"AAA", 10})
		var handled []string
		once := newReserver(t, store, nil)
		mux := handler.New()
		if inline {
			handler.Register(mux, reservation.Inline(once, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
				handled = append(handled, m.Stream.CardinalID()+" "+m.Body.DepositID)
				return nil, nil
			}))
		} else {
			handler.Register(mux, reservation.Copy(once, Deposit.Key, func(_ context.Context, m handler.Message[Deposit]) error {
				handled = append(handled, m.Stream.CardinalID()+" "+m.Body.DepositID)
				return nil
			}))
		}

		require.NoError(t, catchUp(t, store, mux, nil))

		require.ElementsMatch(t, []string{id + " MMM", "1+AAA MMM", "1 AAA"}, handled)
		winner, err := once.Lookup(t.Context(), ann.Stream, "AAA")
		require.NoError(t, err)
		require.True(t, winner.Winner.Metadata.Follows(ann))
	}
}

// A stream can still be written to by its whole name. That makes no reservation.
func TestAStreamThatBeginsWithNoReservationIsNeitherWonNorADuplicate(t *testing.T) {
	t.Parallel()
	t.Run("squatted", func(t *testing.T) {
		t.Parallel()
		driver := memory.New()
		var told outcomes
		store := testkit.Must(messagestore.New(driver, nil))
		r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
		squatted := place(command, "accounts").With("AAA")
		for _, first := range []messagestore.Body{
			Deposit{"AAA", 10},
			// its cause leads elsewhere
			messagestore.Envelope{Body: Deposit{"AAA", 10}, Metadata: messagestore.Metadata{CausationStream: "account:command-1"}},
		} {
			send(t, store, squatted, first)
		}
		honest := send(t, store, command, Deposit{"AAA", 10})

		_, err := r.Reserve(t.Context(), honest, "AAA")
		requireNoReservation(t, err, squatted)
		_, err = r.Lookup(t.Context(), command, "AAA")
		requireNoReservation(t, err, squatted)
		_, err = r.Outcome(t.Context(), command, "AAA")
		requireNoReservation(t, err, squatted)
		require.Empty(t, told.all)
		require.Len(t, all(t, store, squatted), 2)

		for _, mux := range []*handler.Mux{
			inlining(t, store, nil, depositing(store)),
			func() *handler.Mux {
				mux := handler.New()
				handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string))))
				return mux
			}(),
		} {
			requireNoReservation(t, mux.Handle(t.Context(), honest), squatted)
		}
		require.Empty(t, all(t, store, "account-123"))
	})
}

func TestAConsumerParksACommandWhosePlaceIsTaken(t *testing.T) {
	t.Parallel()
	store := newStore()
	send(t, store, place(command, "accounts").With("AAA"), Deposit{"BBB", 10})
	send(t, store, command, Deposit{"AAA", 10})
	c := testkit.Must(consumer.New(store, commands, "accounts", inlining(t, store, nil, depositing(store)), nil))

	require.NoError(t, c.CatchUp(t.Context()))

	require.EqualValues(t, 1, c.Stats().Parked)
	require.Empty(t, all(t, store, "account-123"))
}

// B3 of the first week: the obvious handler. Its reservations are not in the category that it reads.
func TestReserveFeedsNotOnItself(t *testing.T) {
	t.Parallel()
	store := newStore()
	send(t, store, command, Deposit{"AAA", 10})
	var results []reservation.Result
	obvious := func(once *reservation.Reserver) handler.HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error {
			result, err := once.Reserve(ctx, m, "AAA")
			if err == nil {
				results = append(results, result)
			}
			return err
		}
	}
	for range 2 {
		for _, reserver := range []string{"accounts", "receipts"} {
			c := testkit.Must(consumer.New(store, commands, reserver, obvious(named(t, store, reserver, nil)), nil))
			require.NoError(t, c.CatchUp(t.Context()))
			require.Zero(t, c.Stats().Parked)
			require.Zero(t, c.Stats().Skipped)
		}
	}

	require.Len(t, results, 2, "one for each consumer")
	require.Len(t, streams(t, store, commands), 1)
}

// A consumer that reads the copies, and whose handler is not made by Copy, would copy them for ever.
func TestReserveRefusesACopy(t *testing.T) {
	t.Parallel()
	store := newStore()
	r := newReserver(t, store, nil)
	result, err := r.Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")
	require.NoError(t, err)
	made := all(t, store, result.Stream)[0]

	_, err = r.Reserve(t.Context(), made, "BBB")

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, `invalid command "account:command+reservation+accounts-123+AAA": must be a command, and is a reservation of reserver "accounts", which only the function of Copy takes`)
	require.Len(t, streams(t, store, made.Stream.Category()), 1)
}

// A redelivery is told from the first time.
func TestReserveTellsARedelivery(t *testing.T) {
	t.Parallel()
	t.Run("redelivery", func(t *testing.T) {
		t.Parallel()
		driver := memory.New()
		var told outcomes
		store := testkit.Must(messagestore.New(driver, nil))
		r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
		first, second := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
		want := []reservation.Outcome{reservation.Reserved, reservation.Redelivered, reservation.Duplicate, reservation.Redelivered}
		for i, source := range []*messagestore.Message{first, first, second, first} {
			result, err := r.Reserve(t.Context(), source, "AAA")

			require.NoError(t, err)
			require.NoError(t, result.Err())
			require.Equal(t, want[i], result.Outcome)
			require.True(t, result.Winner.Metadata.Follows(first))
		}
		require.Equal(t, want, told.all)
	})
}

// A write whose answer was lost is this one, and no earlier.
func TestALostAnswerIsNotToldAsARedelivery(t *testing.T) {
	t.Parallel()
	driver := &losing{Driver: memory.New()}
	store := testkit.Must(messagestore.New(driver, nil))
	source := send(t, store, command, Deposit{"AAA", 10})
	driver.lose = true

	result, err := newReserver(t, store, nil).Reserve(t.Context(), source, "AAA")

	require.NoError(t, err)
	require.False(t, driver.lose)
	require.Equal(t, reservation.Reserved, result.Outcome)
}

// A losing driver loses the answer to the next write.
type losing struct {
	*memory.Driver
	lose bool
}

func (d *losing) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	written, met, err := d.Driver.TryAppend(ctx, appends)
	if d.lose && err == nil {
		d.lose = false
		return nil, nil, &messagestore.OutcomeUnknownError{Writes: appends, Cause: errLost}
	}
	return written, met, err
}

// H4 of the first week: the second consumer would find each key taken.
func TestOneReserverServesOneConsumer(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"accounts", "receipts", "shared"} {
		for form, register := range map[string]func(*handler.Mux, *reservation.Reserver, *messagestore.Store){
			"Inline": func(mux *handler.Mux, r *reservation.Reserver, store *messagestore.Store) {
				handler.Register(mux, reservation.Inline(r, Deposit.Key, depositing(store)))
			},
			"Copy": func(mux *handler.Mux, r *reservation.Reserver, _ *messagestore.Store) {
				handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string))))
			},
			"Initiate": func(mux *handler.Mux, r *reservation.Reserver, _ *messagestore.Store) {
				handler.Register(mux, reservation.Initiate(r, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
					return transaction.Stream(m.Body.DepositID), Initiated{}
				}))
			},
			"Reserve": func(mux *handler.Mux, r *reservation.Reserver, _ *messagestore.Store) {
				handler.On(mux, func(ctx context.Context, m handler.Message[Deposit]) error {
					_, err := r.Reserve(ctx, m.Message, "AAA")
					return err
				})
			},
		} {
			t.Run(name+" "+form, func(t *testing.T) {
				t.Parallel()
				store := newStore()
				send(t, store, command, Deposit{"AAA", 10})
				once := named(t, store, name, nil)
				run := func(name string) error {
					mux := handler.New()
					register(mux, once, store)
					return testkit.Must(consumer.New(store, commands, name, mux, &consumer.Config{
						Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}},
					})).CatchUp(t.Context())
				}
				require.NoError(t, run("accounts"))
				require.NoError(t, run("accounts"), "the same consumer goes on")

				err := run("receipts")

				require.ErrorContains(t, err, fmt.Sprintf("reserver %q serves consumer accounts, and was handed to consumer receipts too", name))
			})
		}
	}
}

// A message that follows some other stream is no copy of a command that leads here.
func TestACauseThatLeadsElsewhereMakesNoReservation(t *testing.T) {
	t.Parallel()
	store := newStore()
	other := send(t, store, commands.Stream("456"), Deposit{"AAA", 10})
	squatted := place(command, "accounts").With("AAA")
	send(t, store, squatted, messagestore.Follow(other, Deposit{"AAA", 10}))

	_, err := newReserver(t, store, nil).Reserve(t.Context(), send(t, store, command, Deposit{"AAA", 10}), "AAA")

	requireNoReservation(t, err, squatted)
}
