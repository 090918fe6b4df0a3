package reservation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

// depositing decides to add to the account's balance, at the version it read.
func depositing(store *messagestore.Store) func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
	return func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		stream := messagestore.StreamName("account-" + m.Stream.CardinalID())
		version, err := store.Version(ctx, stream)
		if err != nil {
			return nil, err
		}
		return []messagestore.StreamWrite{{
			Stream: stream, Expected: version, Bodies: []messagestore.Body{messagestore.Follow(m.Message, Deposited{m.Body.Amount})},
		}}, nil
	}
}

func inlining(t testing.TB, store *messagestore.Store, config *reservation.Config, decide func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error)) *handler.Mux {
	t.Helper()
	mux := handler.New()
	handler.Register(mux, reservation.Inline(newReserver(t, store, config), Deposit.Key, decide))
	return mux
}

func TestReservationAndEffectAreOneWrite(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, depositing(store))
	for range 3 {
		send(t, store, command, Deposit{"AAA", 10})
	}
	other := send(t, store, command, Deposit{"AAA", 11})
	send(t, store, command, Deposit{"BBB", 10})

	require.NoError(t, catchUp(t, store, mux, nil))

	require.Len(t, all(t, store, "account-123"), 2)
	require.Len(t, all(t, store, place(command, "accounts").With("AAA")), 1)
	require.Len(t, all(t, store, place(command, "accounts").With("BBB")), 1)
	require.Empty(t, all(t, store, place(command, "accounts").With("AAA").With("accounts").With("AAA")), "the copy is passed over")
	require.Equal(t, 2, told.count(reservation.Reserved))
	require.Equal(t, 2, told.count(reservation.Duplicate))
	require.Equal(t, 1, told.count(reservation.KeyReused))
	requireKeyReused(t, mux.Handle(t.Context(), other))
}

func TestACommandThatIsDoneIsNotDecidedOnAgain(t *testing.T) {
	t.Parallel()
	store := newStore()
	decided := 0
	mux := inlining(t, store, nil, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		if decided++; decided > 1 {
			return nil, errors.New("the account is closed by now")
		}
		return depositing(store)(ctx, m)
	})
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})

	for range 2 {
		require.NoError(t, mux.Handle(t.Context(), first))
		require.NoError(t, mux.Handle(t.Context(), again))
	}

	require.Equal(t, 1, decided)
}

func TestAStreamThatMovedOnIsDecidedOnAgain(t *testing.T) {
	t.Parallel()
	for interferences, decisions := range map[int]int{0: 1, 1: 2, 4: 5} {
		store := newStore()
		decided := 0
		mux := inlining(t, store, nil, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
			writes, err := depositing(store)(ctx, m)
			if decided++; decided <= interferences {
				send(t, store, "account-123", Deposited{1})
			}
			return writes, err
		})

		require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

		require.Equal(t, decisions, decided)
		require.Len(t, all(t, store, "account-123"), interferences+1)
	}
}

func TestAStreamThatNeverRestsIsAVersionConflictAndNoDuplicate(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		writes, err := depositing(store)(ctx, m)
		send(t, store, "account-123", Deposited{1})
		return writes, err
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.ErrorContains(t, err, "handle Deposit account:command-123@0: reserve account:command+reservation+accounts-123+AAA: decided 5 times: write streams: account-123: version conflict")
	require.Empty(t, told.all)
	require.Empty(t, all(t, store, place(command, "accounts").With("AAA")))
}

func TestAForgottenExpectedVersionIsAskedAboutByInline(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := inlining(t, store, nil, func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{{Stream: "account-123", Bodies: []messagestore.Body{Deposited{1}}}}, nil
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.ErrorContains(t, err, "account-123: version conflict: expected 0, found no stream (version 0 expects one message: is NoStream meant, or AnyVersion?)")
}

func TestAnErrorOfTheDecisionIsReturnedAndNothingIsReserved(t *testing.T) {
	t.Parallel()
	poor := errors.New("insufficient funds")
	store := newStore()
	mux := inlining(t, store, nil, func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		return nil, poor
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, poor)
	require.Empty(t, all(t, store, place(command, "accounts").With("AAA")))
}

func TestAnErrorOfADecisionThatCameTooLateIsNoError(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		if m.ID == again.ID {
			return depositing(store)(ctx, m)
		}
		// Another process does it while this one decides.
		other := inlining(t, store, nil, depositing(store))
		require.NoError(t, other.Handle(ctx, again))
		return nil, errors.New("the account has enough by now")
	})

	require.NoError(t, mux.Handle(t.Context(), first))

	require.Equal(t, []reservation.Outcome{reservation.Duplicate}, told.all)
	require.Len(t, all(t, store, "account-123"), 1)
}

func TestADecisionThatCameTooLateWritesNothing(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		writes, err := depositing(store)(ctx, m)
		writes[0].Expected = messagestore.AnyVersion // so that only the reservation is in the way
		require.NoError(t, inlining(t, store, nil, depositing(store)).Handle(ctx, again))
		return writes, err
	})

	require.NoError(t, mux.Handle(t.Context(), first))

	require.Equal(t, []reservation.Outcome{reservation.Duplicate}, told.all)
	require.Len(t, all(t, store, "account-123"), 1)
}

func TestToDecideOnNothingIsToBeDone(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := inlining(t, store, nil, noWrites)

	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

	require.Len(t, all(t, store, place(command, "accounts").With("AAA")), 1)
}

func TestADecisionMayNotWriteToItsOwnReservation(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := inlining(t, store, nil, func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{{Stream: place(command, "accounts").With("AAA"), Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{Deposited{1}}}}, nil
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Empty(t, all(t, store, place(command, "accounts").With("AAA")))
}

func TestNoFaultWritesAnEffectTwiceOrHalf(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fault{"refused": refuses, "timed out": timesOut, "not written": losesWrite, "reply is lost": losesReply} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := memory.New()
			var told outcomes
			d := &faulty{Driver: driver}
			store := newFaulty(d)
			mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, depositing(store))
			source := send(t, store, command, Deposit{"AAA", 10})
			d.next = func() fault { return what }

			err := mux.Handle(t.Context(), source)

			require.Error(t, err)
			require.Empty(t, told.all)
			require.Len(t, all(t, store, "account-123"), len(all(t, store, place(command, "accounts").With("AAA"))), "all or nothing")
			d.next = nil
			for range 2 {
				require.NoError(t, mux.Handle(t.Context(), source))
			}
			require.Len(t, all(t, store, "account-123"), 1)
			want := []reservation.Outcome{reservation.Reserved, reservation.Redelivered}
			if what == losesReply { // the attempt whose answer was lost has reserved
				want[0] = reservation.Redelivered
			}
			require.Equal(t, want, told.all)
		})
	}
}

// A deployment changes a handler from Copy to Inline, or back, while commands are
// under way.
func TestNothingIsLostOrDoneTwiceWhenTheHandlerChanges(t *testing.T) {
	t.Parallel()
	copying := func(store *messagestore.Store) *handler.Mux {
		mux := handler.New()
		handler.Register(mux, reservation.Copy(newReserver(t, store, nil), Deposit.Key, func(ctx context.Context, m handler.Message[Deposit]) error {
			_, err := store.Write(ctx, "account-123", messagestore.AnyVersion, messagestore.Envelope{
				ID: reservation.DeriveID(m.Message, "deposited"), Body: Deposited{m.Body.Amount},
			})
			return err
		}))
		return mux
	}
	t.Run("to Inline", func(t *testing.T) {
		t.Parallel()
		store := newStore()
		first := send(t, store, command, Deposit{"AAA", 10})
		require.NoError(t, catchUp(t, store, copying(store), nil)) // all copies are handled
		send(t, store, command, Deposit{"AAA", 10})

		require.NoError(t, inlining(t, store, nil, depositing(store)).Handle(t.Context(), first))
		require.NoError(t, catchUp(t, store, inlining(t, store, nil, depositing(store)), nil))

		require.Len(t, all(t, store, "account-123"), 1)
	})
	t.Run("to Inline too soon", func(t *testing.T) {
		t.Parallel()
		store := newStore()
		require.NoError(t, copying(store).Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))) // reserved, not handled

		err := catchUp(t, store, inlining(t, store, nil, depositing(store)), nil)

		require.ErrorContains(t, err, "only the function of Copy takes", "the copy is not lost: its consumer stops")
		require.NoError(t, catchUp(t, store, copying(store), nil))
		require.Len(t, all(t, store, "account-123"), 1)
	})
	t.Run("to Copy", func(t *testing.T) {
		t.Parallel()
		store := newStore()
		require.NoError(t, inlining(t, store, nil, depositing(store)).Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

		for range 2 {
			require.NoError(t, catchUp(t, store, copying(store), nil))
		}

		require.Len(t, all(t, store, "account-123"), 1)
	})
}
