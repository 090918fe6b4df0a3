package dibsotel

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

// scope names this package as the source of its spans and metrics.
const scope = "github.com/dibs-go/dibs/observe/dibsotel"

// Config says where spans and metrics go. nil means the defaults.
type Config struct {
	// Tracers defaults to the global provider.
	Tracers trace.TracerProvider

	// Meters defaults to the global provider.
	Meters metric.MeterProvider
}

func (c *Config) tracer() trace.Tracer {
	if c == nil || c.Tracers == nil {
		return otel.Tracer(scope)
	}
	return c.Tracers.Tracer(scope)
}

func (c *Config) meter() metric.Meter {
	if c == nil || c.Meters == nil {
		return otel.Meter(scope)
	}
	return c.Meters.Meter(scope)
}

// Middleware returns a middleware that makes a span for each message and measures its duration.
func Middleware(config *Config) handler.Middleware {
	duration, err := config.meter().Float64Histogram("dibs.consumer.duration", metric.WithUnit("s"),
		metric.WithDescription("How long handlers took."))
	if err != nil {
		otel.Handle(err)
	}
	o := &observed{config.tracer(), duration}
	return func(next handler.HandlerFunc) handler.HandlerFunc {
		return func(ctx context.Context, m *messagestore.Message) error { return o.handle(ctx, m, next) }
	}
}

type observed struct {
	tracer   trace.Tracer
	duration metric.Float64Histogram
}

func (o *observed) handle(ctx context.Context, m *messagestore.Message, next handler.HandlerFunc) (err error) {
	category := string(m.Stream.Category())
	common := []attribute.KeyValue{
		attribute.String("dibs.category", category), attribute.String("dibs.consumer", consumer.NameOf(ctx)),
		attribute.String("dibs.type", m.Type),
	}
	ctx, span := o.tracer.Start(extract(ctx, m), fmt.Sprintf("deliver %s %s", m.Type, category),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(common...), trace.WithAttributes(
			attribute.String("messaging.system", "dibs"), attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", category), attribute.String("messaging.message.id", m.ID.String()),
			attribute.String("messaging.consumer.group.name", consumer.NameOf(ctx)),
			attribute.String("dibs.stream", string(m.Stream)), attribute.Int64("dibs.position", int64(m.Position)),
			attribute.Int64("dibs.global_position", int64(m.GlobalPosition)),
		))
	start, outcome := time.Now(), "failed" // also if it panics
	defer func() {
		o.duration.Record(ctx, time.Since(start).Seconds(), metric.WithAttributes(append(common, attribute.String("dibs.outcome", outcome))...))
		span.SetAttributes(attribute.String("dibs.outcome", outcome))
		switch {
		case err != nil:
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		case outcome == "failed":
			span.SetStatus(codes.Error, "the handler panicked, or ended its goroutine")
		}
		span.End()
	}()
	if err = next(ctx, m); err == nil {
		outcome = "handled"
	}
	return err
}

// The names of W3C Trace Context.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// extract returns ctx with the trace of m, unless ctx already has a trace.
func extract(ctx context.Context, m *messagestore.Message) context.Context {
	parent, state := m.Metadata.Trace()
	if parent == "" || trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceParent: parent, traceState: state})
}

// Trace returns body with the trace of ctx in its metadata. An [messagestore.Envelope] keeps its id
// and the rest of its metadata. Without a trace in ctx it returns body in an envelope, otherwise
// unchanged.
func Trace(ctx context.Context, body messagestore.Body) messagestore.Envelope {
	e, ok := body.(messagestore.Envelope)
	if !ok {
		e = messagestore.Envelope{Body: body}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if parent := carrier.Get(traceParent); parent != "" {
		_ = e.Metadata.SetTrace(parent, carrier.Get(traceState)) // OpenTelemetry's are valid, and at most 512 bytes
	}
	return e
}

// Follow is [messagestore.Follow], but makes the span of ctx the parent of the message's spans.
// With messagestore.Follow the parent is the span in which the cause was written.
func Follow(ctx context.Context, cause *messagestore.Message, body messagestore.Body) messagestore.Envelope {
	return Trace(ctx, messagestore.Follow(cause, body))
}
