package evolving

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// as is a message as an earlier version of the service wrote it.
func as(messageType, data string) messagestore.Raw {
	return messagestore.Raw{Type: messageType, Data: json.RawMessage(data)}
}

func TestEventsOfAllVersionsAreRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		events []messagestore.Body
		want   Seat
	}{
		"the present ones":   {[]messagestore.Body{SeatHeld{"Ann"}, price(1250)}, Seat{Guest: "Ann", Cents: 1250}},
		"a renamed type":     {[]messagestore.Body{as("SeatReserved", `{"guest":"Ann"}`)}, Seat{Guest: "Ann"}},
		"a renamed field":    {[]messagestore.Body{as("SeatNoted", `{"note":"by the window"}`)}, Seat{Note: "by the window"}},
		"the present field":  {[]messagestore.Body{SeatNoted{"on the aisle"}}, Seat{Note: "on the aisle"}},
		"another unit":       {[]messagestore.Body{as("SeatPriced", `{"euros":12}`)}, Seat{Cents: 1200}},
		"an event for two":   {[]messagestore.Body{as("SeatSold", `{"guest":"Ann","cents":900}`)}, Seat{Guest: "Ann", Cents: 900}},
		"events passed over": {[]messagestore.Body{SeatHeld{"Ann"}, SeatViewed{}, as("SeatPrinted", `{}`)}, Seat{Guest: "Ann"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := messagestore.New(memory.New(), nil)
			require.NoError(t, err)
			_, err = store.Write(t.Context(), seats.Stream("12A"), messagestore.NoStream, test.events...)
			require.NoError(t, err)

			all, err := newSeats(store)
			require.NoError(t, err)
			seat, _, err := all.Get(t.Context(), "12A")

			require.NoError(t, err)
			require.Equal(t, test.want, seat)
		})
	}
}

func TestCommandsOfAllVersionsAreHandled(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]messagestore.Body{
		"the present one":   HoldSeat{ID: "h1", Guest: "Ann Lee", Note: "by the window"},
		"without the field": as("HoldSeat", `{"id":"h1","guest":"Ann Lee"}`),
		"the first version": as("ReserveSeat", `{"id":"h1","first":"Ann","last":"Lee"}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlertest.New(t, handlers).
				When(commands.Stream("12A"), command).
				Then(seats.Stream("12A"), SeatHeld{"Ann Lee"}).
				Redelivered().
				Then(seats.Stream("12A"), SeatHeld{"Ann Lee"})
		})
	}
}

// A command that is sent again under its new name is another one, and parked: no seat is held
// twice, and nothing is lost.
func TestACommandThatIsSentAgainUnderItsNewNameIsParked(t *testing.T) {
	t.Parallel()
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(t, err)
	_, err = store.Write(t.Context(), commands.Stream("12A"), messagestore.NoStream,
		as("ReserveSeat", `{"id":"h1","first":"Ann","last":"Lee"}`), HoldSeat{ID: "h1", Guest: "Ann Lee"})
	require.NoError(t, err)
	mux, err := handlers(store)
	require.NoError(t, err)
	c, err := consumer.New(store, commands, "seats", mux, nil)
	require.NoError(t, err)

	require.NoError(t, c.CatchUp(t.Context()))

	require.EqualValues(t, 1, c.Stats().Parked)
	version, err := store.Version(t.Context(), seats.Stream("12A"))
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// Both names of a renamed type reach the follower and the partner.
func TestARenamedTypeReachesAllThatFollow(t *testing.T) {
	t.Parallel()
	store, err := messagestore.New(memory.New(), nil)
	require.NoError(t, err)
	for stream, events := range map[messagestore.StreamName][]messagestore.Body{
		"seat-12A": {as("SeatReserved", `{"guest":"Ann"}`), SeatViewed{}, price(1250)},
		"seat-12B": {SeatHeld{"Bo"}, SeatNoted{"by the window"}},
	} {
		_, err := store.Write(t.Context(), stream, messagestore.NoStream, events...)
		require.NoError(t, err)
	}
	var guests, sent []string

	follower, err := mailer(store, func(_ context.Context, m handler.Message[SeatHeld]) error {
		guests = append(guests, m.Body.Guest)
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, follower.CatchUp(t.Context()))
	var mu sync.Mutex
	relay, err := partner(store, sink(func(m *outbox.Message) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, m.Type+" "+string(m.Data))
	}))
	require.NoError(t, err)
	require.NoError(t, relay.CatchUp(t.Context()))

	require.ElementsMatch(t, []string{"Ann", "Bo"}, guests)
	require.ElementsMatch(t, []string{`SeatReserved {"guest":"Ann"}`, `SeatHeld {"guest":"Bo"}`, `SeatPriced {"cents":1250}`}, sent)
}

type sink func(m *outbox.Message)

func (s sink) Send(_ context.Context, m *outbox.Message) error {
	s(m)
	return nil
}
