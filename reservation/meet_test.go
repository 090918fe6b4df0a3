package reservation_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
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
	store := testkit.Must(messagestore.New(d, nil))
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

// Inline looks before it decides. The loser of the race after that learns its winner at once.
func TestTheLoserOfARaceLearnsItsWinnerInTheRoundTripOfItsWrite(t *testing.T) {
	t.Parallel()
	var told outcomes
	d := &counted{Driver: memory.New()}
	store := testkit.Must(messagestore.New(d, nil))
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	inDecide := 0
	mux := inlining(t, store, &reservation.Config{OnOutcome: told.on}, func(ctx context.Context, m handler.Message[Deposit]) (writes []messagestore.StreamWrite, err error) {
		inDecide = d.during(func() {
			require.NoError(t, inlining(t, store, nil, noWrites).Handle(ctx, again))
			writes, err = depositing(store)(ctx, m)
		})
		return writes, err
	})

	trips := d.during(func() { require.NoError(t, mux.Handle(t.Context(), first)) })

	require.Equal(t, 2, trips-inDecide, "a look and a write")
	require.Equal(t, []reservation.Outcome{reservation.Duplicate}, told.all)
	require.Empty(t, all(t, store, "account-123"))
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

func TestAWinnerHasTheTimeOfItsMessage(t *testing.T) {
	t.Parallel()
	t.Run("time", func(t *testing.T) {
		t.Parallel()
		driver := memory.New()
		var told []reservation.Result
		store := testkit.Must(messagestore.New(driver, nil))
		config := &reservation.Config{OnOutcome: func(_ context.Context, _ *messagestore.Message, result reservation.Result) {
			told = append(told, result)
		}}
		r := newReserver(t, store, config)
		source := send(t, store, command, Deposit{"AAA", 10})

		for range 2 {
			_, err := r.Reserve(t.Context(), source, "AAA")
			require.NoError(t, err)
		}
		mux := inlining(t, store, config, depositing(store))
		require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"BBB", 10})))
		require.NoError(t, mux.Handle(t.Context(), send(t, store, command, Deposit{"AAA", 10})))

		require.Len(t, told, 4)
		for _, result := range told {
			require.Equal(t, all(t, store, result.Stream)[0].Time, result.Winner.Time)
		}
	})
}
