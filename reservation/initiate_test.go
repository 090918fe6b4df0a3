package reservation_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

type Initiated struct {
	Amount int `json:"amount"`
	Nonce  int `json:"nonce"`
}

func (Initiated) MessageType() string { return "Initiated" }

const transaction messagestore.Category = "accountTransaction"

func initiating(t *testing.T, store *messagestore.Store, told *outcomes, start func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body)) *handler.Mux {
	t.Helper()
	mux := handler.New()
	handler.Register(mux, reservation.Initiate(newReserver(t, store, &reservation.Config{OnOutcome: told.on}), start))
	return mux
}

func TestACommandStartsAStreamOnce(t *testing.T) {
	t.Parallel()
	for name, envelope := range map[string]messagestore.Envelope{
		"by a body":         {},
		"with an id":        {ID: uuid.Must(uuid.NewV7())},
		"with its own mark": {Metadata: messagestore.Metadata{Local: messagestore.Properties{"mine": "x", "reservedDigest": "forged"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told outcomes
			store := newStore()
			nonce := 0
			mux := initiating(t, store, &told, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
				nonce++ // no two answers are equal
				answer := envelope
				answer.Body = Initiated{m.Body.Amount, nonce}
				return transaction.Stream("123").With(m.Body.DepositID), answer
			})
			first := send(t, store, command, Deposit{"AAA", 10})
			again := send(t, store, command, Deposit{"AAA", 10})
			other := send(t, store, command, Deposit{"AAA", 11})

			require.NoError(t, mux.Handle(t.Context(), first))
			require.NoError(t, mux.Handle(t.Context(), first)) // delivered again
			require.NoError(t, mux.Handle(t.Context(), again))
			requireKeyReused(t, mux.Handle(t.Context(), other))

			require.Equal(t, []reservation.Outcome{reservation.Reserved, reservation.Redelivered, reservation.Duplicate, reservation.KeyReused}, told.all)
			started := all(t, store, "accountTransaction-123+AAA")
			require.Len(t, started, 1)
			require.Equal(t, "Initiated", started[0].Type)
			require.JSONEq(t, `{"amount":10,"nonce":1}`, string(started[0].Data))
			require.True(t, started[0].Metadata.Follows(first))
			require.Len(t, started[0].Metadata.Local.Get("reservedDigest"), 64)
			require.Equal(t, envelope.Metadata.Local.Get("mine"), started[0].Metadata.Local.Get("mine"))
		})
	}
}

func TestAStreamThatBeganOtherwiseIsNotTakenForADuplicate(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	mux := initiating(t, store, &told, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
		return transaction.Stream(m.Body.DepositID), Initiated{Amount: m.Body.Amount}
	})
	send(t, store, "accountTransaction-AAA", Deposit{"AAA", 10})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	requireNoReservation(t, err, "accountTransaction-AAA")
	require.Empty(t, told.all)
}

func TestAStartedStreamInTheConsumedCategoryIsALoop(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	mux := initiating(t, store, &told, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
		return commands.Stream(m.Body.DepositID), m.Body
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Empty(t, all(t, store, commands.Stream("AAA")))
}

func TestAStreamWithoutAnIdentifierIsRefused(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]string{{""}, {"123", ""}, {"\xff"}, {"123", "\xff"}} {
		var told outcomes
		store := newStore()
		mux := initiating(t, store, &told, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
			return transaction.Stream(ids[0]).With(ids[1:]...), Initiated{}
		})

		err := mux.Handle(t.Context(), send(t, store, command, Deposit{"", 10}))

		require.ErrorIs(t, err, messagestore.ErrInvalid, "%q", ids)
		require.Empty(t, told.all)
	}
}

func TestAnAnswerThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	var told outcomes
	store := newStore()
	mux := initiating(t, store, &told, func(handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
		return transaction.Stream("AAA"), nil
	})

	err := mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10}))

	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

var noWrites = func(context.Context, handler.Message[Deposit]) ([]messagestore.StreamWrite, error) { return nil, nil }
