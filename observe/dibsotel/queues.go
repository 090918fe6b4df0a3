package dibsotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// ObserveQueues has it collected how all queues, relays and sagas of the store stand that were ever
// worked on, those of other processes too: one process that does it is enough. A collection asks
// the store by one call, for at most 5 seconds, and not within 10 seconds of the last call: then it
// has the numbers of that. After an error there are no numbers until the store has answered again,
// and the error is the meter's.
//
// The function that it returns ends that. For a store that is nil or has no driver the error
// matches [messagestore.ErrInvalid], and [messagestore.ErrNotSupported] for a driver that keeps no
// queues; else it is the meter's.
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
	return func() { _ = registered.Unregister() }, nil // it fails for nothing
}
