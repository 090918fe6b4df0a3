package readings

import (
	"context"
	"time"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
)

// The times of reading the state of queues.
const (
	// Interval is the least time from the end of one read of the store to the next: a read counts
	// the open items, which takes PostgreSQL some hundred milliseconds for a million.
	Interval = 10 * time.Second

	// Timeout bounds a read.
	Timeout = 5 * time.Second
)

// A QueueReader reads the queues of a store, and keeps the result for the Interval. It is safe for
// concurrent use.
type QueueReader struct {
	driver queuing.Driver
	turn   chan struct{} // the right to what is below

	until time.Time // before which the store is not asked again
	last  []queuing.Status
	err   error
}

// NewQueueReader returns a reader. The error matches [messagestore.ErrInvalid] if store is nil or
// has no driver, and [messagestore.ErrNotSupported] if the driver does not keep queues.
func NewQueueReader(store *messagestore.Store) (*QueueReader, error) {
	if store == nil {
		return nil, messagestore.NewInvalidError("store", nil, "must not be nil")
	}
	driver, err := queuing.Of(store)
	if err != nil {
		return nil, err
	}
	return &QueueReader{driver: driver, turn: make(chan struct{}, 1)}, nil
}

// Read returns the state of the queues, which may be up to an Interval old. It makes one call of
// the store, bounded by Timeout; concurrent callers wait for the same answer. It also keeps an
// error for the Interval, even if the error comes from the end of ctx, so that a slow store is not
// asked more often.
func (r *QueueReader) Read(ctx context.Context) ([]queuing.Status, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if time.Now().Before(r.until) {
		return r.last, r.err
	}
	limited, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	all, err := r.driver.Queues(limited)
	if err != nil {
		all = nil
	}
	r.last, r.err, r.until = all, err, time.Now().Add(Interval)
	return r.last, r.err
}

// A QueueGauge is a number that describes a queue.
type QueueGauge struct {
	Name string // below the exporter's own prefix
	Unit string // of UCUM, as OpenTelemetry has it
	Help string
	Of   func(s queuing.Status) float64
}

// QueueGauges are the numbers that both exporters export.
var QueueGauges = []QueueGauge{
	{"open", "{item}", "Items that a worker has met and that are neither finished nor dead: out, later, held and suspended.", func(s queuing.Status) float64 { return float64(s.Out + s.Later + s.Held + s.Suspended) }},
	{"waiting", "1", "1 if there are items that no worker has met yet.", func(s queuing.Status) float64 { return truth(s.Waiting) }},
	{"out", "{item}", "Items that are at workers.", func(s queuing.Status) float64 { return float64(s.Out) }},
	{"later", "{item}", "Items that are offered at a time, which may have come.", func(s queuing.Status) float64 { return float64(s.Later) }},
	{"due", "{item}", "Those of the later items whose time has come.", func(s queuing.Status) float64 { return float64(s.Due) }},
	{"held", "{item}", "Items behind another of their key.", func(s queuing.Status) float64 { return float64(s.Held) }},
	{"suspended", "{item}", "Suspended items: sagas that a person, a message or their time has to bring back.", func(s queuing.Status) float64 { return float64(s.Suspended) }},
	{"dead", "{item}", "Dead items.", func(s queuing.Status) float64 { return float64(s.Dead) }},
	{"oldest_seconds", "s", "The age of the oldest item that is neither finished nor dead, 0 for none.", oldest},
	{"sessions", "{session}", "Sessions of workers that are not over.", func(s queuing.Status) float64 { return float64(s.Sessions) }},
	{"paused", "1", "1 if the queue is paused.", func(s queuing.Status) float64 { return truth(s.Paused) }},
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// oldest is by the store's clock at the read.
func oldest(s queuing.Status) float64 {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, s.Time.Sub(s.Oldest).Seconds())
}
