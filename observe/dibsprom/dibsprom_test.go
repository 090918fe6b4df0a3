package dibsprom_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/observe/dibsprom"
	"github.com/dibs-go/dibs/reservation"
)

const seats messagestore.Category = "seat"

type held struct{}

func (held) MessageType() string { return "Held" }

func TestAScrapeShowsConsumers(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	for range 3 {
		_, err := store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
		require.NoError(t, err)
	}
	metrics := testkit.Must(dibsprom.New(store))
	n := 0
	c := testkit.Must(consumer.New(store, seats, "mailer", metrics.Middleware(func(context.Context, *messagestore.Message) error {
		if n++; n == 2 {
			return errors.New("no mail")
		}
		return nil
	}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage}}))
	metrics.Add(c, nil)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	require.NoError(t, c.CatchUp(t.Context()))

	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP dibs_dead_letters Parked messages.
		# TYPE dibs_dead_letters gauge
		dibs_dead_letters{category="seat",consumer="mailer"} 1
		# HELP dibs_handled_total Messages whose handler returned nil.
		# TYPE dibs_handled_total counter
		dibs_handled_total{category="seat",consumer="mailer"} 2
		# HELP dibs_lag_messages Messages from the checkpoint to the head, of the whole group.
		# TYPE dibs_lag_messages gauge
		dibs_lag_messages{category="seat",consumer="mailer"} 0
		# HELP dibs_parked_total Messages that were parked.
		# TYPE dibs_parked_total counter
		dibs_parked_total{category="seat",consumer="mailer"} 1
		# HELP dibs_store_up 1 if the store could be asked for the lag.
		# TYPE dibs_store_up gauge
		dibs_store_up 1
	`), "dibs_dead_letters", "dibs_handled_total", "dibs_lag_messages", "dibs_parked_total", "dibs_store_up"))
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	require.Contains(t, page.Body.String(), `dibs_delivery_seconds_count{category="seat",consumer="mailer",outcome="handled",type="Held"} 2`)
	require.Contains(t, page.Body.String(), `dibs_delivery_seconds_count{category="seat",consumer="mailer",outcome="failed",type="Held"} 1`)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestEachCountIsItsOwn(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	write := func(messages int) {
		for range messages {
			_, err := store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
			require.NoError(t, err)
		}
	}
	tried := false
	c := testkit.Must(consumer.New(store, seats, "mailer", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		switch { // five are handled, one of them at the second try, two skipped, three parked
		case m.Position == 4 && !tried:
			tried = true
			return errors.New("not yet")
		case m.Position == 5 || m.Position == 6:
			return handler.Skip("no seat")
		case m.Position > 6:
			return handler.Park(errors.New("no such seat"))
		}
		return nil
	}), &consumer.Config{Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: time.Millisecond}}}))
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(testkit.Must(dibsprom.New(store, c))))
	write(10)
	require.NoError(t, c.CatchUp(t.Context()))
	write(6)

	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		if m := f.GetMetric()[0]; m.GetCounter() != nil {
			values[f.GetName()] = m.GetCounter().GetValue()
		} else {
			values[f.GetName()] = m.GetGauge().GetValue()
		}
	}
	require.Positive(t, values["dibs_lag_seconds"])
	require.Less(t, values["dibs_lag_seconds"], 60.0)
	delete(values, "dibs_lag_seconds")
	require.Equal(t, map[string]float64{
		"dibs_handled_total": 5, "dibs_failed_total": 4, "dibs_retried_total": 1, "dibs_skipped_total": 2, "dibs_parked_total": 3,
		"dibs_store_errors_total": 0, "dibs_lag_messages": 6, "dibs_dead_letters": 3, "dibs_members": 0, "dibs_members_gone": 0, "dibs_store_up": 1,
	}, values)
}

// A store that is away costs the gauges, and not the scrape.
func TestAScrapeGoesOnWithoutTheStore(t *testing.T) {
	t.Parallel()
	away := testkit.Must(messagestore.New(&gone{memory.New()}, nil))
	c := testkit.Must(consumer.New(away, seats, "mailer", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(testkit.Must(dibsprom.New(away, c))))

	count, err := testutil.GatherAndCount(registry, "dibs_handled_total", "dibs_lag_messages")
	require.NoError(t, err)
	require.Equal(t, 1, count)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP dibs_store_up 1 if the store could be asked for the lag.
		# TYPE dibs_store_up gauge
		dibs_store_up 0
	`), "dibs_store_up"))
}

// A delivery takes two seconds of a bubble's time.
func TestADeliveryIsMeasuredWhateverItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		once := testkit.Must(reservation.New(store, "seats", nil))
		metrics := testkit.Must(dibsprom.New(store))
		mux := handler.New()
		handler.Register(mux, reservation.Copy(once, func(reserve) string { return "K" }, func(context.Context, handler.Message[reserve]) error {
			time.Sleep(2 * time.Second)
			panic("no seat")
		}))
		mux.Use(metrics.Middleware)
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(metrics))
		command, err := store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, reserve{})
		require.NoError(t, err)
		for m, err := range store.ReadStream(t.Context(), command.Stream, 0) {
			require.NoError(t, err)
			require.NoError(t, mux.Handle(t.Context(), m))
		}
		c := testkit.Must(consumer.New(store, seats, "mailer", mux, &consumer.Config{
			Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
		}))
		require.NoError(t, c.CatchUp(t.Context()))
		require.NoError(t, testkit.Must(consumer.New(store, once.Category(seats), "mailer", mux, &consumer.Config{
			Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
		})).CatchUp(t.Context()))

		page := httptest.NewRecorder()
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		failed := `{category="seat:reservation+seats",consumer="mailer",outcome="failed",type="Reserve"`
		for _, line := range []string{
			"dibs_delivery_seconds_count" + failed + "} 1",
			"dibs_delivery_seconds_sum" + failed + "} 2",
			"dibs_delivery_seconds_bucket" + failed + `,le="0.0005"} 0`,
			"dibs_delivery_seconds_bucket" + failed + `,le="1.9073486328125"} 0`,
			"dibs_delivery_seconds_bucket" + failed + `,le="11.920928955078125"} 1`,
			`dibs_delivery_seconds_count{category="seat",consumer="mailer",outcome="handled",type="Reserve"} 1`,
			`dibs_delivery_seconds_count{category="seat",consumer="",outcome="handled",type="Reserve"} 1`,
		} {
			require.Contains(t, page.Body.String(), line+"\n")
		}
	})
}

type reserve struct{}

func (reserve) MessageType() string { return "Reserve" }

// A collector is one: a second of its kind is refused, and nothing of one that was unregistered is
// left.
func TestACollectorIsUnregistered(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	newConsumer := func(name string) *consumer.Consumer {
		return testkit.Must(consumer.New(store, seats, name, handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
	}
	metrics := testkit.Must(dibsprom.New(store, newConsumer("mailer"), newConsumer("printer")))
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	require.ErrorAs(t, registry.Register(testkit.Must(dibsprom.New(store))), &prometheus.AlreadyRegisteredError{})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
		# HELP dibs_handled_total Messages whose handler returned nil.
		# TYPE dibs_handled_total counter
		dibs_handled_total{category="seat",consumer="mailer"} 0
		dibs_handled_total{category="seat",consumer="printer"} 0
		# HELP dibs_members Processes of the group.
		# TYPE dibs_members gauge
		dibs_members{category="seat",consumer="mailer"} 0
		dibs_members{category="seat",consumer="printer"} 0
	`), "dibs_handled_total", "dibs_members"))

	require.True(t, registry.Unregister(metrics))

	count, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.Zero(t, count)
	require.NoError(t, registry.Register(testkit.Must(dibsprom.New(store))))
}

// A scrape of a store that does not answer ends after five seconds.
func TestAScrapeDoesNotWaitForTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		require.NoError(t, registry.Register(testkit.Must(dibsprom.New(testkit.Must(messagestore.New(&silent{memory.New()}, nil))))))
		start := time.Now()

		_, err := registry.Gather()

		require.NoError(t, err)
		require.Equal(t, 5*time.Second, time.Since(start))
	})
}

// A silent driver does not tell the time.
type silent struct{ *memory.Driver }

func (*silent) Now(ctx context.Context) (time.Time, error) {
	<-ctx.Done()
	return time.Time{}, ctx.Err()
}

// A gone driver cannot tell the time.
type gone struct{ *memory.Driver }

func (*gone) Now(context.Context) (time.Time, error) { return time.Time{}, errors.New("no store") }

func TestANilStoreIsRefused(t *testing.T) {
	metrics, err := dibsprom.New(nil)
	require.Nil(t, metrics)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.EqualError(t, err, "dibsprom: invalid store: must not be nil")
}
