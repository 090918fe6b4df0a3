// Package dibsprom has Prometheus collectors for consumers and for queues.
//
//	metrics, err := dibsprom.New(store)
//	...
//	mux.Use(metrics.Middleware)
//	seats, err := consumer.New(store, "seat:command", "seats", mux, nil)
//	metrics.Add(seats)
//	prometheus.MustRegister(metrics)
//
// With the labels category and consumer, of this process: dibs_handled_total, dibs_failed_total,
// dibs_retried_total, dibs_parked_total, dibs_skipped_total and dibs_store_errors_total. Of the
// whole group: dibs_lag_messages, dibs_lag_seconds, dibs_dead_letters, dibs_members and
// dibs_members_gone. And dibs_store_up, which is 0 if these could not be read from the store.
//
// Of [Collector.Middleware]: the histogram dibs_delivery_seconds with the labels category,
// consumer, type, and outcome, which is handled or failed.
//
// Of [NewQueues], with the labels category and queue, for all queues, relays and sagas of the
// store: the gauges dibs_queue_open, dibs_queue_waiting, dibs_queue_out, dibs_queue_later,
// dibs_queue_due, dibs_queue_held, dibs_queue_suspended, dibs_queue_dead,
// dibs_queue_oldest_seconds, dibs_queue_sessions and dibs_queue_paused. And dibs_queues_up, which
// is 0 if these could not be read from the store. A saga's queue has the name of its category.
package dibsprom

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// A Collector collects the metrics of consumers. It is safe for concurrent use.
type Collector struct {
	store   *messagestore.Store
	seconds *prometheus.HistogramVec

	mu        sync.Mutex
	consumers []*consumer.Consumer
}

var _ prometheus.Collector = (*Collector)(nil)

// scrapeTimeout bounds the queries to the store in one scrape.
const scrapeTimeout = 5 * time.Second

// New returns a collector. Each scrape reads the lag from the store, with some queries for each
// category. If store is nil, the error matches [messagestore.ErrInvalid].
func New(store *messagestore.Store, consumers ...*consumer.Consumer) (*Collector, error) {
	if store == nil {
		return nil, fmt.Errorf("dibsprom: %w", messagestore.NewInvalidError("store", nil, "must not be nil"))
	}
	c := &Collector{store: store, seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "dibs_delivery_seconds", Help: "How long handlers took.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 12), // to 12 s
	}, []string{"category", "consumer", "type", "outcome"})}
	c.Add(consumers...)
	return c, nil
}

// Add adds consumers to the collection. It ignores nil.
func (c *Collector) Add(consumers ...*consumer.Consumer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range consumers {
		if one != nil {
			c.consumers = append(c.consumers, one)
		}
	}
}

// Middleware measures how long each message takes. It is a [handler.Middleware].
func (c *Collector) Middleware(next handler.HandlerFunc) handler.HandlerFunc {
	return func(ctx context.Context, m *messagestore.Message) error {
		start, outcome := time.Now(), "failed" // also if it panics
		defer func() {
			c.seconds.WithLabelValues(string(m.Stream.Category()), consumer.NameOf(ctx), m.Type, outcome).
				Observe(time.Since(start).Seconds())
		}()
		err := next(ctx, m)
		if err == nil {
			outcome = "handled"
		}
		return err
	}
}

var labels = []string{"category", "consumer"}

type description struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

func describe(name, help string, kind prometheus.ValueType) description {
	return description{prometheus.NewDesc("dibs_"+name, help, labels, nil), kind}
}

var counts = []struct {
	description
	of func(s consumer.Stats) int64
}{
	{describe("handled_total", "Messages whose handler returned nil.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.Handled }},
	{describe("failed_total", "Deliveries that failed.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.Failed }},
	{describe("retried_total", "Deliveries that were not the first of their message.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.Retried }},
	{describe("parked_total", "Messages that were parked.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.Parked }},
	{describe("skipped_total", "Messages that handlers skipped.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.Skipped }},
	{describe("store_errors_total", "Errors of the store after which the consumer went on.", prometheus.CounterValue), func(s consumer.Stats) int64 { return s.StoreErrors }},
}

var gauges = []struct {
	description
	of func(l readings.Lag) float64
}{
	{describe("lag_messages", "Messages from the checkpoint to the head, of the whole group.", prometheus.GaugeValue), func(l readings.Lag) float64 { return float64(l.Messages) }},
	{describe("lag_seconds", "The age of the oldest message that is not behind the checkpoint.", prometheus.GaugeValue), func(l readings.Lag) float64 { return l.Seconds }},
	{describe("dead_letters", "Parked messages.", prometheus.GaugeValue), func(l readings.Lag) float64 { return float64(l.Parked) }},
	{describe("members", "Processes of the group.", prometheus.GaugeValue), func(l readings.Lag) float64 { return float64(l.Members) }},
	{describe("members_gone", "Processes of the group that have been silent for longer than their lease.", prometheus.GaugeValue), func(l readings.Lag) float64 { return float64(l.Gone) }},
}

var up = prometheus.NewDesc("dibs_store_up", "1 if the store could be asked for the lag.", nil, nil)

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range counts {
		to <- d.Desc
	}
	for _, d := range gauges {
		to <- d.Desc
	}
	to <- up
	c.seconds.Describe(to)
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	consumers := append([]*consumer.Consumer(nil), c.consumers...)
	c.mu.Unlock()
	c.seconds.Collect(to)
	for _, one := range consumers {
		stats := one.Stats()
		for _, d := range counts {
			to <- prometheus.MustNewConstMetric(d.Desc, d.kind, float64(d.of(stats)), string(one.Category()), one.Name())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	lags, err := readings.LagOf(ctx, c.store, consumers)
	answered := 1.0
	if err != nil {
		answered = 0
	}
	to <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, answered)
	for _, l := range lags {
		for _, d := range gauges {
			to <- prometheus.MustNewConstMetric(d.Desc, d.kind, d.of(l), string(l.Consumer.Category()), l.Consumer.Name())
		}
	}
}
