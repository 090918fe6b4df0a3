package dibsotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// ObserveQueues registers gauges for all queues, relays and sagas of the store that were ever
// worked on, also by other processes: it is enough to call it in one process. A collection makes
// one call of the store, of at most 5 seconds; within 10 seconds after a call it returns the same
// numbers again. After an error there are no numbers until the store answers again, and the meter
// reports the error.
//
// Call stop to unregister. The error matches [messagestore.ErrInvalid] if store is nil or has no
// driver, and [messagestore.ErrNotSupported] if the driver does not keep queues; otherwise it is
// the meter's.
func ObserveQueues(store *messagestore.Store, config *Config) (stop func(), err error) {
	reader, err := readings.NewQueueReader(store)
	if err != nil {
		return nil, fmt.Errorf("observe queues: %w", err)
	}
	meter := config.meter()
	var gauges []metric.Float64Observable // of readings.QueueGauges, in their order
	var all []metric.Observable
	for _, g := range readings.QueueGauges {
		gauge, err := meter.Float64ObservableGauge("dibs.queue."+g.Name, metric.WithUnit(g.Unit), metric.WithDescription(g.Help))
		if err != nil {
			return nil, fmt.Errorf("observe queues: %w", err)
		}
		gauges, all = append(gauges, gauge), append(all, gauge)
	}
	registered, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		states, err := reader.Read(ctx)
		for _, s := range states {
			of := metric.WithAttributes(attribute.String("dibs.category", string(s.Category)), attribute.String("dibs.queue", s.Name))
			for i, g := range readings.QueueGauges {
				o.ObserveFloat64(gauges[i], g.Of(s), of)
			}
		}
		return err
	}, all...)
	if err != nil {
		return nil, fmt.Errorf("observe queues: %w", err)
	}
	return func() { _ = registered.Unregister() }, nil // Unregister does not fail
}
