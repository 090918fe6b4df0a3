package serve

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/dibs-go/dibs/logger"
)

// metrics counts the calls of a server, and logs what clients are not told. It is an interceptor.
type metrics struct {
	log      logger.Logger
	registry *prometheus.Registry
	seconds  *prometheus.HistogramVec
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		log: s.config.Logger, registry: prometheus.NewRegistry(),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dibs_serve_call_seconds", Help: "Time of calls, waiting included, by procedure and code.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30},
		}, []string{"procedure", "code"}),
	}
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dibs_serve_waiting_calls", Help: "Calls that wait for an item, an intent or a message."},
		func() float64 { return float64(s.waiting.Load()) })
	m.registry.MustRegister(m.seconds, waiting, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) count(procedure string, began time.Time, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	if cause, ok := errors.AsType[*hidden](err); ok {
		m.log.Warn().Str("procedure", procedure).Str("code", code).Err(cause.cause).Msg(cause.text)
	}
	m.seconds.WithLabelValues(procedure, code).Observe(time.Since(began).Seconds())
}

// WrapUnary counts calls.
func (m *metrics) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		began := time.Now()
		res, err := next(ctx, r)
		m.count(r.Spec().Procedure, began, err)
		return res, err
	}
}

// WrapStreamingClient returns next.
func (*metrics) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler counts streams.
func (m *metrics) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		began := time.Now()
		err := next(ctx, conn)
		m.count(conn.Spec().Procedure, began, err)
		return err
	}
}
