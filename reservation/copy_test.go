package reservation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// counting returns a handler that adds each message to handled.
func counting[T messagestore.Body](handled *[]string) handler.Func[T] {
	return func(_ context.Context, m handler.Message[T]) error {
		*handled = append(*handled, m.String())
		return nil
	}
}

func TestACommandThatIsIssuedAgainIsHandledOnce(t *testing.T) {
	t.Parallel()
	var told outcomes
	var handled []string
	store := newStore()
	r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](&handled)))
	for range 3 {
		send(t, store, command, Deposit{"AAA", 10})
	}
	send(t, store, command, Deposit{"BBB", 10})

	require.NoError(t, catchUp(t, store, mux, nil))

	require.Equal(t, []string{"Deposit account:command+reservation+accounts-123+AAA@0", "Deposit account:command+reservation+accounts-123+BBB@0"}, handled)
	require.Equal(t, 2, told.count(reservation.Reserved))
	require.Equal(t, 2, told.count(reservation.Duplicate))
}

// R3: a command that loses to other content is not dropped.
func TestACommandWithAReusedKeyIsParked(t *testing.T) {
	t.Parallel()
	var handled []string
	store := newStore()
	r := newReserver(t, store, nil)
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](&handled)))
	send(t, store, command, Deposit{"AAA", 10})
	loser := send(t, store, command, Deposit{"AAA", 11})
	send(t, store, command, Deposit{"BBB", 12})

	require.NoError(t, catchUp(t, store, mux, nil)) // by consumers whose policy is to stop

	require.Equal(t, []string{"Deposit account:command+reservation+accounts-123+AAA@0", "Deposit account:command+reservation+accounts-123+BBB@0"}, handled)
	parked := parkedOf(t, store, commands, "accounts")
	require.Len(t, parked, 1)
	require.Equal(t, loser.ID, parked[0].Message.ID)
	require.Equal(t, 1, parked[0].Failures)
	require.Contains(t, parked[0].Error, `idempotence key reused: "AAA" was first used with other content, by Deposit account:command+reservation+accounts-123+AAA@0`)
}

func TestAReusedKeyIsATypedError(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := handler.New()
	handler.Register(mux, reservation.Copy(newReserver(t, store, nil), Deposit.Key, counting[Deposit](new([]string))))
	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 11}))

	reused, ok := errors.AsType[*reservation.KeyReusedError](err)
	require.True(t, ok)
	require.True(t, calling.DispositionOf(reused).Asks(calling.Park))
	require.Equal(t, "AAA", reused.Key)
	require.Equal(t, place(command, "accounts").With("AAA"), reused.Stream)
	require.Equal(t, messagestore.Version(0), reused.Winner.Metadata.CausationPosition)
	require.EqualError(t, err, `handle Deposit account:command-123@1: idempotence key reused: "AAA" was first used with other content, by Deposit account:command+reservation+accounts-123+AAA@0`)
}

func TestAnEmptyKeyStopsAndLosesNothing(t *testing.T) {
	t.Parallel()
	var handled []string
	store := newStore()
	mux := handler.New()
	handler.Register(mux, reservation.Copy(newReserver(t, store, nil), Deposit.Key, counting[Deposit](&handled)))
	m := send(t, store, command, Deposit{"", 10})

	err := mux.Handle(t.Context(), m)

	require.ErrorIs(t, err, reservation.ErrInvalidKey)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, `handle Deposit account:command-123@0: reserve for Deposit account:command-123@0: invalid idempotence key "": must not be empty`)
	require.ErrorIs(t, catchUp(t, store, mux, nil), reservation.ErrInvalidKey, "it is not retried")
	require.Empty(t, handled)
}

func TestAKeyFunctionThatPanicsIsAnErrorThatNamesTheMessage(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := handler.New()
	handler.Register(mux, reservation.Copy(newReserver(t, store, nil), func(Deposit) string { panic("no key") }, counting[Deposit](new([]string))))

	send(t, store, command, Deposit{"AAA", 10})

	err := catchUp(t, store, mux, &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}})

	require.ErrorContains(t, err, "Deposit account:command-123@0")
	require.ErrorContains(t, err, "panic: no key")
}

func TestWhatDoesNotCountOfAPointerDoesNotMakeAKeyReused(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, (*Remittance).Key, counting[*Remittance](new([]string))))

	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, &Remittance{"Bob", 10, "09:00"})))
	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, &Remittance{"Bob", 10, "09:01"})))
	requireKeyReused(t, mux.Handle(t.Context(), send(t, store, command, &Remittance{"Bob", 11, "09:02"})))

	require.Equal(t, []reservation.Outcome{reservation.Reserved, reservation.Duplicate, reservation.KeyReused}, told.all)
}

func TestWhatDoesNotCountDoesNotMakeAKeyReused(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	r := newReserver(t, store, &reservation.Config{OnOutcome: told.on})
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, Transfer.Key, counting[Transfer](new([]string))))

	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Transfer{"Bob", 10, "09:00"})))
	require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Transfer{"Bob", 10, "09:01"})))
	requireKeyReused(t, mux.Handle(t.Context(), send(t, store, command, Transfer{"Bob", 11, "09:02"})))

	require.Equal(t, []reservation.Outcome{reservation.Reserved, reservation.Duplicate, reservation.KeyReused}, told.all)
}

// A message among the copies that is none is neither handled nor reserved, even if it has the properties of one.
func TestAMarkAloneDoesNotMakeACopy(t *testing.T) {
	t.Parallel()
	mark := messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "reservedFor": "accounts"}
	forged := func(store *messagestore.Store, stream messagestore.StreamName, local messagestore.Properties) *messagestore.Message {
		m := messagestore.Follow(send(t, store, command, Deposit{"AAA", 10}), Deposit{"AAA", 10})
		m.Metadata.Local = local
		return send(t, store, stream, m)
	}
	for name, forge := range map[string]func(*messagestore.Store) *messagestore.Message{
		"on a command's stream": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place(command, "accounts"), mark)
		},
		"without a cause": func(store *messagestore.Store) *messagestore.Message {
			return send(t, store, place(command, "accounts").With("AAA"), messagestore.Envelope{Body: Deposit{"AAA", 10}, Metadata: messagestore.Metadata{Local: mark}})
		},
		"on the key's stream, later": func(store *messagestore.Store) *messagestore.Message {
			send(t, store, place(command, "accounts").With("AAA"), Deposit{"AAA", 10})
			return forged(store, place(command, "accounts").With("AAA"), mark)
		},
		"on another key's stream": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place(command, "accounts").With("BBB"), mark)
		},
		"of another category": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place("order:command-123", "accounts").With("AAA"), mark)
		},
		"without a mark": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place(command, "accounts").With("AAA"), nil)
		},
		"with another's name": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place(command, "accounts").With("AAA"), messagestore.Properties{"reservedKey": "AAA", "reservedDigest": "x", "reservedFor": "receipts"})
		},
		"with a mark of two parts": func(store *messagestore.Store) *messagestore.Message {
			return forged(store, place(command, "accounts").With("BBB").With("AAA"), messagestore.Properties{"reservedKey": "BBB+AAA", "reservedFor": "accounts"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var told outcomes
			var handled []string
			store := newStore()
			mux := handler.New()
			handler.Register(mux, reservation.Copy(newReserver(t, store, &reservation.Config{OnOutcome: told.on}), Deposit.Key, counting[Deposit](&handled)))
			m := forge(store)

			err := mux.Handle(t.Context(), m)

			requireNoReservation(t, err, m.Stream)
			require.Equal(t, calling.Park, calling.DispositionOf(err).Kind)
			require.Empty(t, handled)
			require.Empty(t, told.all)
		})
	}
}

func TestTheMarkDoesNotPassToWhatFollows(t *testing.T) {
	t.Parallel()
	store := newStore()
	mux := handler.New()
	handler.Register(mux, reservation.Copy(newReserver(t, store, nil), Deposit.Key, func(ctx context.Context, m handler.Message[Deposit]) error {
		_, err := store.Write(ctx, "account-123", messagestore.AnyVersion, messagestore.Follow(m.Message, Deposited{m.Body.Amount}))
		return err
	}))
	send(t, store, command, Deposit{"AAA", 10})

	require.NoError(t, catchUp(t, store, mux, nil))

	event := all(t, store, "account-123")[0]
	require.Equal(t, place(command, "accounts").With("AAA"), event.Metadata.CausationStream)
	require.Empty(t, event.Metadata.Local)
}

func TestAMissingPartIsAMistakeOfTheMux(t *testing.T) {
	t.Parallel()
	r := newReserver(t, newStore(), nil)
	next := counting[Deposit](new([]string))
	start := func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) { return "", nil }
	for want, f := range map[string]handler.Handler[Deposit]{
		"Copy's reserver: must not be nil":                                      reservation.Copy(nil, Deposit.Key, next),
		"Copy's key: must not be nil":                                           reservation.Copy(r, nil, next),
		"Copy's function: must not be nil":                                      reservation.Copy(r, Deposit.Key, nil),
		"Copy's reserver: must not be nil\ninvalid Copy's key: must not be nil": reservation.Copy(nil, nil, next),
		"Initiate's reserver: must not be nil":                                  reservation.Initiate(nil, start),
		"Initiate's function: must not be nil":                                  reservation.Initiate[Deposit](r, nil),
		"Inline's reserver: must not be nil":                                    reservation.Inline(nil, Deposit.Key, noWrites),
		"Inline's key: must not be nil":                                         reservation.Inline(r, nil, noWrites),
		"Inline's function: must not be nil":                                    reservation.Inline(r, Deposit.Key, nil),
	} {
		mux := handler.New()
		handler.Register(mux, f)
		require.EqualError(t, mux.Validate(), `invalid registration "Deposit": invalid `+want)
		require.ErrorContains(t, f.Handle(t.Context(), handler.Message[Deposit]{}), "must not be nil")
	}
}

// A reserver over another store would reserve where the consumer's store does not see it.
func TestAReserverOverAnotherStoreThanTheConsumersIsRefused(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(r *reservation.Reserver) handler.Handler[Deposit]{
		"Copy": func(r *reservation.Reserver) handler.Handler[Deposit] {
			return reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string)))
		},
		"Inline": func(r *reservation.Reserver) handler.Handler[Deposit] {
			return reservation.Inline(r, Deposit.Key, noWrites)
		},
		"Initiate": func(r *reservation.Reserver) handler.Handler[Deposit] {
			return reservation.Initiate(r, func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
				return "accountTransaction-1", Deposited{1}
			})
		},
	} {
		store, other := newStore(), newStore()
		mux := handler.New()
		handler.Register(mux, f(newReserver(t, other, nil)))
		m := send(t, store, command, Deposit{"AAA", 10})

		err := mux.Handle(calling.WithCaller(t.Context(), func(c *calling.Caller) { c.Consumer = "accounts" }), m)

		require.ErrorIs(t, err, messagestore.ErrInvalid, name)
		require.ErrorContains(t, err, `invalid store of reserver "accounts": it is another store than that of consumer accounts: Deposit account:command-123@0 is not there`)
		require.Empty(t, all(t, other, place(command, "accounts").With("AAA")))
		require.Empty(t, all(t, other, "accountTransaction-1"))
	}
}

func TestTwoConsumersShareTheMuxOfACategoryOfItsOwn(t *testing.T) {
	t.Parallel()
	var handled []string
	store := newStore()
	r := newReserver(t, store, nil)
	mux := handler.New()
	handler.Register(mux, reservation.Copy(r, Deposit.Key, counting[Deposit](&handled)))
	for range 3 {
		send(t, store, command, Deposit{"AAA", 10})
	}

	for range 2 {
		require.NoError(t, catchUp(t, store, mux, nil))
	}

	require.Equal(t, []string{"Deposit account:command+reservation+accounts-123+AAA@0"}, handled)
}
