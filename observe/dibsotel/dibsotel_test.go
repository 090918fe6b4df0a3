package dibsotel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/observe/dibsotel"
	"github.com/dibs-go/dibs/reservation"
)

const (
	commands messagestore.Category = "seat:command"
	copies   messagestore.Category = "seat:command+reservation+seats"
	seats    messagestore.Category = "seat"
)

type hold struct {
	Key string `json:"key"`
}

func (hold) MessageType() string { return "Hold" }

type held struct{}

func (held) MessageType() string { return "Held" }

// A desk is a store, and what its consumers have said of themselves.
type desk struct {
	store  *messagestore.Store
	config *dibsotel.Config
	spans  *tracetest.InMemoryExporter
	tracer *trace.TracerProvider
	reader *metric.ManualReader
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{store: testkit.Must(messagestore.New(memory.New(), nil)), spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	d.tracer = trace.NewTracerProvider(trace.WithSyncer(d.spans))
	d.config = &dibsotel.Config{Tracers: d.tracer, Meters: metric.NewMeterProvider(metric.WithReader(d.reader))}
	return d
}

func (d *desk) consumer(category messagestore.Category, name string, h consumer.Handler, config *consumer.Config) *consumer.Consumer {
	if config == nil {
		config = &consumer.Config{}
	}
	config.Logger = logger.Logger{}
	return testkit.Must(consumer.New(d.store, category, name, h, config))
}

// mux returns a mux that measures.
func (d *desk) mux() *handler.Mux {
	mux := handler.New()
	mux.Use(dibsotel.Middleware(d.config))
	return mux
}

// sums returns the values of a counter or gauge, and the counts of a histogram, by attributes.
func (d *desk) sums(t *testing.T, name string) map[attribute.Distinct]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, d.reader.Collect(t.Context(), &all))
	sums := map[attribute.Distinct]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					sums[p.Attributes.Equivalent()] = float64(p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					sums[p.Attributes.Equivalent()] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					sums[p.Attributes.Equivalent()] = float64(p.Count)
				}
			}
		}
	}
	return sums
}

func key(attributes ...attribute.KeyValue) attribute.Distinct {
	set := attribute.NewSet(attributes...)
	return set.Equivalent()
}

// A trace goes from the writer of a command over its copy to the events, through two consumers.
func TestATraceGoesThroughConsumers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	mux := d.mux()
	handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(d.store, "seats", nil)), func(h hold) string { return h.Key },
		func(ctx context.Context, m handler.Message[hold]) error {
			_, err := d.store.Write(ctx, seats.Stream("1"), messagestore.AnyVersion, dibsotel.Follow(ctx, m.Message, held{}))
			return err
		}))
	mailer := d.mux()
	handler.On(mailer, func(context.Context, handler.Message[held]) error { return nil })

	ctx, root := d.tracer.Tracer("test").Start(t.Context(), "request")
	_, err := d.store.Write(ctx, commands.Stream("1"), messagestore.AnyVersion, dibsotel.Trace(ctx, hold{"k1"}))
	require.NoError(t, err)
	root.End()
	require.NoError(t, d.consumer(commands, "seats", mux, nil).CatchUp(t.Context()))
	require.NoError(t, d.consumer(copies, "seats", mux, nil).CatchUp(t.Context()))
	require.NoError(t, d.consumer(seats, "mailer", mailer, nil).CatchUp(t.Context()))

	spans := d.spans.GetSpans()
	require.Len(t, spans, 4)
	parents := map[string]tracetest.SpanStub{}
	for _, s := range spans {
		require.Equal(t, root.SpanContext().TraceID(), s.SpanContext.TraceID(), s.Name)
		require.NotEqual(t, codes.Error, s.Status.Code)
		parents[s.Name] = s
	}
	require.Equal(t, root.SpanContext().SpanID(), parents["deliver Hold seat:command+reservation+seats"].Parent.SpanID())
	require.Equal(t, parents["deliver Hold seat:command+reservation+seats"].SpanContext.SpanID(), parents["deliver Held seat"].Parent.SpanID())
	require.Contains(t, parents["deliver Held seat"].Attributes, attribute.String("dibs.consumer", "mailer"))
	require.Contains(t, parents["deliver Held seat"].Attributes, attribute.String("dibs.stream", "seat-1"))
}

// A command and its copy are deliveries of two consumers.
func TestDeliveriesAreCountedByOutcomeAndCopiesApart(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	mux := d.mux()
	fails := 2
	handler.Register(mux, reservation.Copy(testkit.Must(reservation.New(d.store, "seats", nil)), func(h hold) string { return h.Key },
		func(context.Context, handler.Message[hold]) error {
			if fails--; fails == 1 {
				panic("no seat")
			} else if fails == 0 {
				return errors.New("no seat")
			}
			return nil
		}))
	_, err := d.store.Write(t.Context(), commands.Stream("1"), messagestore.AnyVersion, hold{"k1"})
	require.NoError(t, err)
	c := d.consumer(commands, "seats", mux, &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: time.Millisecond}}})
	ofCopies := d.consumer(copies, "seats", mux, &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: time.Millisecond}}})
	stop, err := dibsotel.Observe(d.store, d.config, c, ofCopies)
	require.NoError(t, err)
	require.NoError(t, c.CatchUp(t.Context()))
	require.NoError(t, ofCopies.CatchUp(t.Context()))

	common := func(category messagestore.Category) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("dibs.category", string(category)), attribute.String("dibs.consumer", "seats")}
	}
	durations := d.sums(t, "dibs.consumer.duration")
	of := func(category messagestore.Category, outcome string) float64 {
		return durations[key(append(common(category), attribute.String("dibs.type", "Hold"), attribute.String("dibs.outcome", outcome))...)]
	}
	require.InDelta(t, 1, of(commands, "handled"), 0)
	require.InDelta(t, 1, of(copies, "handled"), 0)
	require.InDelta(t, 2, of(copies, "failed"), 0)
	for name, want := range map[string]float64{"handled": 1, "failed": 2, "retried": 2, "parked": 0, "lag": 0, "dead_letters": 0} {
		sums := d.sums(t, "dibs.consumer."+name)
		require.Contains(t, sums, key(common(copies)...), name)
		require.InDelta(t, want, sums[key(common(copies)...)], 0, name)
	}
	failed := 0
	for _, s := range d.spans.GetSpans() {
		if s.Status.Code == codes.Error {
			failed++
		}
	}
	require.Equal(t, 2, failed)

	stop()
	require.Empty(t, d.sums(t, "dibs.consumer.handled"))
}

func TestTheLagIsThatOfTheStore(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for range 3 {
		_, err := d.store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
		require.NoError(t, err)
	}
	stuck := d.consumer(seats, "mailer", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("no mail") }),
		&consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}})
	stop, err := dibsotel.Observe(d.store, d.config, stuck)
	require.NoError(t, err)
	defer stop()
	require.Error(t, stuck.CatchUp(t.Context()))

	of := key(attribute.String("dibs.category", "seat"), attribute.String("dibs.consumer", "mailer"))
	require.InDelta(t, 3, d.sums(t, "dibs.consumer.lag")[of], 0)
	require.Positive(t, d.sums(t, "dibs.consumer.lag_seconds")[of])
}

func TestEachCountIsItsOwn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	write := func(messages int) {
		for range messages {
			_, err := d.store.Write(t.Context(), seats.Stream("1"), messagestore.AnyVersion, held{})
			require.NoError(t, err)
		}
	}
	tried := false
	c := d.consumer(seats, "mailer", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
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
	}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{MaxBackoff: time.Millisecond}}})
	stop, err := dibsotel.Observe(d.store, d.config, c)
	require.NoError(t, err)
	defer stop()
	write(10)
	require.NoError(t, c.CatchUp(t.Context()))
	write(6)

	of := key(attribute.String("dibs.category", "seat"), attribute.String("dibs.consumer", "mailer"))
	for name, want := range map[string]float64{
		"handled": 5, "failed": 4, "retried": 1, "skipped": 2, "parked": 3, "store_errors": 0,
		"lag": 6, "dead_letters": 3, "members": 0, "members_gone": 0,
	} {
		sums := d.sums(t, "dibs.consumer."+name)
		require.Contains(t, sums, of, name)
		require.InDelta(t, want, sums[of], 0, name)
	}
}

// A handler that is called within a span, by a test or another consumer, is a part of that trace.
func TestADeliveryWithinASpanStaysInItsTrace(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx, writing := d.tracer.Tracer("test").Start(t.Context(), "writing")
	_, err := d.store.Write(ctx, seats.Stream("1"), messagestore.AnyVersion, dibsotel.Trace(ctx, held{}))
	require.NoError(t, err)
	writing.End()
	m, err := d.store.Last(t.Context(), seats.Stream("1"))
	require.NoError(t, err)
	h := dibsotel.Middleware(d.config)(func(context.Context, *messagestore.Message) error { return nil })

	ctx, calling := d.tracer.Tracer("test").Start(t.Context(), "calling")
	require.NoError(t, h(ctx, m))
	require.NoError(t, h(t.Context(), m))

	spans := d.spans.GetSpans()
	require.Len(t, spans, 3)
	require.Equal(t, calling.SpanContext().SpanID(), spans[1].Parent.SpanID())
	require.Equal(t, writing.SpanContext().SpanID(), spans[2].Parent.SpanID())
}

func TestMistakesAreTold(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	c := d.consumer(seats, "mailer", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil)
	_, err := dibsotel.Observe(nil, d.config, c)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = dibsotel.Observe(d.store, d.config)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = dibsotel.Observe(d.store, d.config, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.Equal(t, held{}, dibsotel.Trace(t.Context(), held{}).Body) // without a trace
}
