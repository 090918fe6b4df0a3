package dibsprom

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/observe/internal/readings"
)

// A QueueCollector collects how the queues of a store stand. It is safe for concurrent use.
type QueueCollector struct {
	reader *readings.QueueReader
	gauges []*prometheus.Desc // of readings.QueueGauges, in their order
}

var _ prometheus.Collector = (*QueueCollector)(nil)

var queuesUp = prometheus.NewDesc("dibs_queues_up", "1 if the store could be asked for its queues.", nil, nil)

// NewQueues returns a collector of all queues, relays and sagas of the store that were ever worked
// on, those of other processes too: one process that registers it is enough. A scrape asks the
// store by one call, for at most 5 seconds, and not within 10 seconds of the last call: then it has
// the numbers of that. After an error there are no numbers until the store has answered again, and
// dibs_queues_up is 0.
//
// For a store that is nil or has no driver the error matches [messagestore.ErrInvalid], and
// [messagestore.ErrNotSupported] for a driver that keeps no queues.
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
	all, err := c.reader.Read(context.Background()) // which has a bound of its own
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
