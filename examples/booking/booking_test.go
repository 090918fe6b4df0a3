package booking_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/booking"
	"github.com/dibs-go/dibs/examples/booking/fakeairline"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// A direct calls a server without a network: a goroutine that waits for the network would keep the
// clock of a bubble from going on.
type direct struct{ server http.Handler }

func (d direct) RoundTrip(r *http.Request) (response *http.Response, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the connection was closed")
		}
	}()
	w := httptest.NewRecorder()
	d.server.ServeHTTP(w, r)
	return w.Result(), nil
}

// A world is the service with an airline, on SQLite, in a bubble.
type world struct {
	*booking.Service
	air      *fakeairline.Airline
	database string
}

// inBubble runs a test with a service that runs. Its clock goes on when all goroutines wait.
func inBubble(t *testing.T, config booking.Config, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	config.Database = "sqlite:" + filepath.Join(t.TempDir(), "trips.db")
	synctest.Test(t, func(t *testing.T) {
		w := &world{air: &fakeairline.Airline{}, database: config.Database}
		config.Airline, config.Client = "http://airline", &http.Client{Transport: direct{w.air}}
		w.Service = open(t, config)
		require.NoError(t, w.AddRooms(t.Context(), "Lisbon", 1))
		require.NoError(t, w.AddRooms(t.Context(), "Atlantis", 1))
		test(t, w)
	})
}

func open(t *testing.T, config booking.Config) *booking.Service {
	t.Helper()
	config.Logger = logger.Silent()
	s, err := booking.Open(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// run runs a service until the test ends, or stop is called.
func run(t *testing.T, s *booking.Service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, testkit.Receive(t, "the end of the service", ended))
	}
	t.Cleanup(stop)
	return stop
}

// book books a trip and waits for its end.
func (w *world) book(t *testing.T, id string, trip booking.Trip) saga.Status[booking.Itinerary] {
	t.Helper()
	_, err := w.Trips.Begin(t.Context(), id, trip)
	require.NoError(t, err)
	return w.wait(t, id)
}

func (w *world) wait(t *testing.T, id string) saga.Status[booking.Itinerary] {
	t.Helper()
	status, err := w.Trips.Wait(t.Context(), id)
	require.NoError(t, err)
	return status
}

// requireNothingBooked checks that a trip has left nothing, neither here nor elsewhere.
func (w *world) requireNothingBooked(t *testing.T) {
	t.Helper()
	_, valid := w.air.Tickets()
	require.Zero(t, valid, "tickets")
	for _, city := range []string{"Lisbon", "Atlantis"} {
		free, err := w.FreeRooms(t.Context(), city)
		require.NoError(t, err)
		require.Equal(t, 1, free, "rooms in "+city)
	}
	store, err := dibs.Open(t.Context(), w.database, nil)
	require.NoError(t, err)
	defer store.Close()
	rented := 0
	for m, err := range store.ReadCategory(t.Context(), "car", 0, messagestore.Filter{}) {
		require.NoError(t, err)
		switch m.Type {
		case "CarRented":
			rented++
		case "CarReturned":
			rented--
		}
	}
	require.Zero(t, rented, "cars")
}

func TestATripIsBooked(t *testing.T) {
	inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
		defer run(t, w.Service)()
		status := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})

		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, booking.Itinerary{Flight: "F001", Room: 1, Car: "DIB-7"}, status.Out)
	})
}

// A customer clicks twice, and has one trip.
func TestATripThatIsBookedTwiceIsOne(t *testing.T) {
	inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
		defer run(t, w.Service)()
		first := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})
		again := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})

		require.Equal(t, first, again)
		issued, _ := w.air.Tickets()
		require.Equal(t, 1, issued)
	})
}

// Each of the three refuses: the customer has nothing, and no other booking is left.
func TestARefusalUndoesTheTrip(t *testing.T) {
	for name, test := range map[string]struct {
		trip   booking.Trip
		reason string
	}{
		"by the airline": {booking.Trip{City: "Atlantis", Car: "small"}, "flight: no seat"},
		"by the garage":  {booking.Trip{City: "Lisbon", Car: "limousine"}, "car: no limousine"},
		"by the hotel":   {booking.Trip{City: "Porto", Car: "small"}, "hotel: no room in Porto"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
				defer run(t, w.Service)()
				status := w.book(t, "7", test.trip)
				time.Sleep(time.Second) // the garage takes the car back by itself

				require.Equal(t, saga.StateCompensated, status.State)
				require.Equal(t, test.reason, status.Reason)
				w.requireNothingBooked(t)
			})
		})
	}
}

// The airline is away, or does it and drops the answer: each attempt has the same key, so there is
// one ticket.
func TestAnAirlineWithABadDayIssuesOneTicket(t *testing.T) {
	for name, bad := range map[string]func(a *fakeairline.Airline){
		"away":           func(a *fakeairline.Airline) { a.Away(3) },
		"answer dropped": func(a *fakeairline.Airline) { a.Drop(3) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
				bad(w.air)
				defer run(t, w.Service)()
				status := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})

				require.Equal(t, saga.StateCompleted, status.State)
				issued, valid := w.air.Tickets()
				require.Equal(t, []int{1, 1}, []int{issued, valid})
			})
		})
	}
}

// No answer of the airline came, so there may be a ticket: it is cancelled.
func TestATicketOfUnknownFateIsCancelled(t *testing.T) {
	inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
		w.air.Drop(5) // as many as there are attempts
		defer run(t, w.Service)()
		status := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})
		time.Sleep(time.Second)

		require.Equal(t, saga.StateCompensated, status.State)
		issued, _ := w.air.Tickets()
		require.Equal(t, 1, issued)
		w.requireNothingBooked(t)
	})
}

// The airline is away for a day. After its hour the trip is undone as soon as the airline is back.
func TestATripIsUndoneAfterItsDeadline(t *testing.T) {
	inBubble(t, booking.Config{Deadline: 3 * time.Second}, func(t *testing.T, w *world) {
		w.air.Away(4)
		defer run(t, w.Service)()
		begun := time.Now()
		status := w.book(t, "7", booking.Trip{City: "Lisbon", Car: "small"})
		require.Less(t, time.Since(begun), time.Hour)
		time.Sleep(time.Second)

		require.Equal(t, saga.StateCompensated, status.State)
		w.requireNothingBooked(t)
	})
}

func TestATripThatIsCancelledIsUndone(t *testing.T) {
	inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
		w.air.Away(1)
		defer run(t, w.Service)()
		_, err := w.Trips.Begin(t.Context(), "7", booking.Trip{City: "Lisbon", Car: "small"})
		require.NoError(t, err)
		_, err = w.Trips.Cancel(t.Context(), "7", "the customer is ill")
		require.NoError(t, err)
		status := w.wait(t, "7")
		time.Sleep(time.Second)

		require.Equal(t, saga.StateCompensated, status.State)
		require.Equal(t, "cancelled: the customer is ill", status.Reason)
		w.requireNothingBooked(t)
	})
}

// The release before began a trip and was stopped when it had the flight. This one goes on as that
// would have: without a car, with the one ticket, and with the flight before the hotel.
func TestATripOfTheReleaseBeforeGoesOnAsItBegan(t *testing.T) {
	inBubble(t, booking.Config{}, func(t *testing.T, w *world) {
		store, err := dibs.Open(t.Context(), w.database, nil)
		require.NoError(t, err)
		defer store.Close()
		_, err = store.Write(t.Context(), "booking:saga-7", messagestore.NoStream,
			messagestore.Raw{Type: "Started", Data: json.RawMessage(`{"definition":"booking","version":1,"input":{"city":"Lisbon","car":"small"}}`)},
			messagestore.Raw{Type: "Began", Data: json.RawMessage(`{"step":"flight","attempt":1,"input":"Lisbon"}`)},
			messagestore.Raw{Type: "Done", Data: json.RawMessage(`{"step":"flight","output":{"reference":"F777"}}`)},
		)
		require.NoError(t, err)
		defer run(t, w.Service)()
		status := w.wait(t, "7")

		require.Equal(t, saga.StateCompleted, status.State)
		require.Equal(t, booking.Itinerary{Flight: "F777", Room: 1}, status.Out)
		issued, _ := w.air.Tickets()
		require.Zero(t, issued)
	})
}

// Two replicas, on each database, over a network: one is stopped in the middle, and the last room
// has one guest.
func TestReplicasShareTheTrips(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "trips.db") },
		"PostgreSQL": func(t *testing.T) string { return pgtest.Migrated(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			air := &fakeairline.Airline{}
			server := httptest.NewServer(air)
			t.Cleanup(server.Close)
			config := booking.Config{Database: database(t), Airline: server.URL}
			w := &world{Service: open(t, config), air: air}
			require.NoError(t, w.AddRooms(t.Context(), "Lisbon", 2))
			run(t, w.Service)
			stop := run(t, open(t, config))

			ids := []string{"1", "2", "3", "4", "5"}
			for _, id := range ids {
				_, err := w.Trips.Begin(t.Context(), id, booking.Trip{City: "Lisbon", Car: "small"})
				require.NoError(t, err)
			}
			stop()
			count := map[saga.State]int{}
			ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
			defer cancel()
			for _, id := range ids {
				status, err := w.Trips.Wait(ctx, id)
				require.NoError(t, err, "%s: %+v", id, status)
				count[status.State]++
			}

			require.Equal(t, map[saga.State]int{saga.StateCompleted: 2, saga.StateCompensated: 3}, count)
			_, valid := air.Tickets()
			require.Equal(t, 2, valid)
			free, err := w.FreeRooms(t.Context(), "Lisbon")
			require.NoError(t, err)
			require.Zero(t, free)
		})
	}
}
