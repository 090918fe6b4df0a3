// Package callctx has what the context of a call tells the packages below: which consumer calls the handler, and
// whether the call is upkeep.
package callctx

import "context"

type (
	deliveryKey struct{}
	upkeepKey   struct{}
)

// A Delivery is the consumer that calls a handler.
type Delivery struct {
	Consumer string

	// Wrote is told of each stream that the handler has written to. It may be called from
	// several goroutines at once.
	Wrote func(stream string)

	// Unread is told of a category that the handler writes copies to, and that no consumer has read.
	Unread func(category string)
}

// WithDelivery returns a context for handlers.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, deliveryKey{}, d)
}

// Consumer returns the name of the consumer that delivers the message, or "".
func Consumer(ctx context.Context) string {
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok {
		return d.Consumer
	}
	return ""
}

// Wrote tells the consumer whose handler has the context that a stream was written to.
func Wrote(ctx context.Context, stream string) {
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok && d.Wrote != nil {
		d.Wrote(stream)
	}
}

// Unread tells the consumer whose handler has the context that it writes copies of its commands to a category that no
// consumer has read.
func Unread(ctx context.Context, category string) {
	if d, ok := ctx.Value(deliveryKey{}).(*Delivery); ok && d.Unread != nil {
		d.Unread(category)
	}
}

// WithUpkeep returns a context of calls by which a process keeps what it has: the extension of a lease, a checkpoint,
// the look at a group. A driver with a bounded number of connections does not have them wait for the callers that hold
// all of these. It is not for calls of a handler.
func WithUpkeep(ctx context.Context) context.Context {
	return context.WithValue(ctx, upkeepKey{}, true)
}

// IsUpkeep reports whether a call is upkeep.
func IsUpkeep(ctx context.Context) bool { return ctx.Value(upkeepKey{}) != nil }
