package dibsprom

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// A QueueCollector collects the state of a store's queues. It is safe for concurrent use.
type QueueCollector struct {
	reader *readings.QueueReader
	gauges []*prometheus.Desc // of readings.QueueGauges, in their order
}

var _ prometheus.Collector = (*QueueCollector)(nil)

var queuesUp = prometheus.NewDesc("dibs_queues_up", "1 if the store could be asked for its queues.", nil, nil)

// NewQueues returns a collector of all queues, relays and sagas of the store that were ever worked
// on, also by other processes: it is enough to register it in one process. A scrape makes one call
// of the store, of at most 5 seconds; within 10 seconds after a call it returns the same numbers
// again. After an error there are no numbers until the store answers again, and dibs_queues_up is
// 0.
//
// The error matches [messagestore.ErrInvalid] if store is nil or has no driver, and
// [messagestore.ErrNotSupported] if the driver does not keep queues.
func NewQueues(store *messagestore.Store) (*QueueCollector, error) {
	reader, err := readings.NewQueueReader(store)
	if err != nil {
		return nil, fmt.Errorf("dibsprom: %w", err)
	}
	c := &QueueCollector{reader: reader}
	for _, g := range readings.QueueGauges {
		c.gauges = append(c.gauges, prometheus.NewDesc("dibs_queue_"+g.Name, g.Help, []string{"category", "queue"}, nil))
	}
	return c, nil
}

// Describe implements [prometheus.Collector].
func (c *QueueCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.gauges {
		to <- d
	}
	to <- queuesUp
}

// Collect implements [prometheus.Collector].
func (c *QueueCollector) Collect(to chan<- prometheus.Metric) {
	all, err := c.reader.Read(context.Background()) // it has its own timeout
	answered := 1.0
	if err != nil {
		answered = 0
	}
	to <- prometheus.MustNewConstMetric(queuesUp, prometheus.GaugeValue, answered)
	for _, s := range all {
		for i, g := range readings.QueueGauges {
			to <- prometheus.MustNewConstMetric(c.gauges[i], prometheus.GaugeValue, g.Of(s), string(s.Category), s.Name)
		}
	}
}
