package reservation_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/reservation"
)

// A counted driver counts its calls.
type counted struct {
	*memory.Driver
	trips int
}

func (d *counted) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	d.trips++
	return d.Driver.TryAppend(ctx, appends)
}

func (d *counted) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	d.trips++
	return d.Driver.AppendAll(ctx, appends)
}

func (d *counted) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	d.trips++
	return d.Driver.Append(ctx, a)
}

func (d *counted) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	d.trips++
	return d.Driver.ReadStream(ctx, q)
}

// during returns how often the driver is called by f.
func (d *counted) during(f func()) int {
	before := d.trips
	f()
	return d.trips - before
}

func TestAWinnerIsLearntInTheRoundTripOfTheWrite(t *testing.T) {
	t.Parallel()
	d := &counted{Driver: memory.New()}
	store := must.New(messagestore.New(d, nil))
	r := newReserver(t, store, nil)
	first, again, other := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 11})
	for _, test := range []struct {
		source *messagestore.Message
		want   reservation.Outcome
	}{{first, reservation.Reserved}, {first, reservation.Redelivered}, {again, reservation.Duplicate}, {other, reservation.KeyReused}} {
		trips := d.during(func() {
			result, err := r.Reserve(t.Context(), test.source, "AAA")
			require.NoError(t, err)
			require.Equal(t, test.want, result.Outcome)
		})

		require.Equal(t, 1, trips)
	}

	copying := handler.New()
	handler.Register(copying, reservation.Copy(r, Deposit.Key, counting[Deposit](new([]string))))
	require.Equal(t, 1, d.during(func() { require.NoError(t, copying.Handle(t.Context(), again)) }))
	require.Equal(t, 1, d.during(func() { requireKeyReused(t, copying.Handle(t.Context(), other)) }))

	starting := initiating(t, store, new(outcomes), func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
		return "transfer-" + messagestore.StreamName(m.Body.DepositID), Initiated{Amount: m.Body.Amount}
	})
	for range 2 {
		require.Equal(t, 1, d.during(func() { require.NoError(t, starting.Handle(t.Context(), first)) }))
	}
	require.Equal(t, 1, d.during(func() { requireKeyReused(t, starting.Handle(t.Context(), other)) }))
}

// The winner is the first message of the stream, and the write meets the last.
func TestAWinnerThatIsNotTheLastMessageIsRead(t *testing.T) {
	t.Parallel()
	for _, first := range []Deposit{{"AAA", 10}, {"AAA", 11}} {
		store := newStore()
		r := newReserver(t, store, nil)
		source := send(t, store, command, Deposit{"AAA", 10})
		winner := send(t, store, place(command, "accounts").With("AAA"), messagestore.Follow(send(t, store, command, first), first))
		send(t, store, place(command, "accounts").With("AAA"), Deposit{"AAA", 21 - first.Amount}) // the other

		result, err := r.Reserve(t.Context(), source, "AAA")

		require.NoError(t, err)
		require.Equal(t, winner, result.Winner)
		require.Equal(t, first.Amount == 10, result.Outcome == reservation.Duplicate)
		require.Equal(t, first.Amount == 11, result.Outcome == reservation.KeyReused)
	}
}
