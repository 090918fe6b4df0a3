package dibsotel

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// lagTimeout bounds the queries to the store in one collection.
const lagTimeout = 5 * time.Second

// Observe registers the counts and the lag of consumers for collection by the meter's reader. The
// lag costs some queries of the store for each category; if they fail, the collection goes on
// without the gauges, and the meter reports the error. Call stop to unregister. The error is a
// mistake in the arguments, or the meter's.
func Observe(store *messagestore.Store, config *Config, consumers ...*consumer.Consumer) (stop func(), err error) {
	if store == nil || len(consumers) == 0 || slices.Contains(consumers, nil) {
		return nil, fmt.Errorf("observe: %w", messagestore.NewInvalidError("consumers", len(consumers), "must not be nil: give a store and at least one consumer"))
	}
	meter := config.meter()
	var wrong error
	counter := func(name, what string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter("dibs.consumer."+name, metric.WithDescription(what))
		if err != nil && wrong == nil {
			wrong = err
		}
		return c
	}
	gauge := func(name, unit, what string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge("dibs.consumer."+name, metric.WithUnit(unit), metric.WithDescription(what))
		if err != nil && wrong == nil {
			wrong = err
		}
		return g
	}
	counts := []struct {
		counter metric.Int64ObservableCounter
		of      func(s consumer.Stats) int64
	}{
		{counter("handled", "Messages whose handler returned nil."), func(s consumer.Stats) int64 { return s.Handled }},
		{counter("failed", "Deliveries that failed."), func(s consumer.Stats) int64 { return s.Failed }},
		{counter("retried", "Deliveries that were not the first of their message."), func(s consumer.Stats) int64 { return s.Retried }},
		{counter("parked", "Messages that were parked."), func(s consumer.Stats) int64 { return s.Parked }},
		{counter("skipped", "Messages that handlers skipped."), func(s consumer.Stats) int64 { return s.Skipped }},
		{counter("store_errors", "Errors of the store after which the consumer went on."), func(s consumer.Stats) int64 { return s.StoreErrors }},
	}
	gauges := []struct {
		gauge metric.Float64ObservableGauge
		of    func(l readings.Lag) float64
	}{
		{gauge("lag", "{message}", "Messages from the checkpoint to the head, of the whole group."), func(l readings.Lag) float64 { return float64(l.Messages) }},
		{gauge("lag_seconds", "s", "The age of the oldest message that is not behind the checkpoint."), func(l readings.Lag) float64 { return l.Seconds }},
		{gauge("dead_letters", "{message}", "Parked messages."), func(l readings.Lag) float64 { return float64(l.Parked) }},
		{gauge("members", "{process}", "Processes of the group."), func(l readings.Lag) float64 { return float64(l.Members) }},
		{gauge("members_gone", "{process}", "Processes of the group that have been silent for longer than their lease."), func(l readings.Lag) float64 { return float64(l.Gone) }},
	}
	if wrong != nil {
		return nil, fmt.Errorf("observe: %w", wrong)
	}
	var all []metric.Observable
	for _, c := range counts {
		all = append(all, c.counter)
	}
	for _, g := range gauges {
		all = append(all, g.gauge)
	}
	registered, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		for _, c := range consumers {
			for _, n := range counts {
				o.ObserveInt64(n.counter, n.of(c.Stats()), of(c))
			}
		}
		ctx, cancel := context.WithTimeout(ctx, lagTimeout)
		defer cancel()
		lags, err := readings.LagOf(ctx, store, consumers)
		for _, l := range lags {
			for _, g := range gauges {
				o.ObserveFloat64(g.gauge, g.of(l), of(l.Consumer))
			}
		}
		return err
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("observe: %w", err)
	}
	return func() { _ = registered.Unregister() }, nil // Unregister does not fail
}

func of(c *consumer.Consumer) metric.ObserveOption {
	return metric.WithAttributes(attribute.String("dibs.category", string(c.Category())), attribute.String("dibs.consumer", c.Name()))
}
