// Package dibsotel has OpenTelemetry spans and metrics for consumers, and metrics for queues.
//
//	mux.Use(dibsotel.Middleware(nil))
//	c, err := consumer.New(store, "account:command", "accounts", mux, nil)
//	stop, err := dibsotel.Observe(store, nil, c)
//	defer stop()
//
// [Middleware] makes a span for each delivery. Its parent is the span in which the message, or the
// command that it follows, was written: the trace travels in the message's metadata, as W3C Trace
// Context. Put it there with [Trace] for a message that begins a chain, and with [Follow] in a
// handler that writes another message.
//
// # Spans
//
// A span is named after the message's type and the category, "deliver HoldSeat seat:command". It
// has the attributes of the semantic conventions for messaging (messaging.system is dibs), and
// dibs.stream, dibs.position, dibs.global_position and dibs.consumer.
//
// # Metrics
//
// [Middleware] has dibs.consumer.duration, a histogram in seconds, with dibs.category,
// dibs.consumer, dibs.type, and dibs.outcome, which is handled or failed.
//
// [Observe] has, with dibs.category and dibs.consumer, the counters dibs.consumer.handled, failed,
// retried, parked, skipped and store_errors, of this process; and the gauges dibs.consumer.lag
// (messages), dibs.consumer.lag_seconds, dibs.consumer.dead_letters, dibs.consumer.members and
// dibs.consumer.members_gone, of the whole group.
//
// [ObserveQueues] has, with dibs.category and dibs.queue, for all queues, relays and sagas of the
// store, the gauges dibs.queue.open, waiting, out, later, due, held, suspended, dead,
// oldest_seconds, sessions and paused. A saga's queue has the name of its category.
package dibsotel
