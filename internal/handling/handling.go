// Package handling is how a handler's context tells the packages below which consumer calls the handler.
package handling

import "context"

type key struct{}

// A Delivery is the consumer that calls a handler.
type Delivery struct {
	Consumer string

	// Wrote is told of each stream that the handler has written to. It may be called from
	// several goroutines at once.
	Wrote func(stream string)

	// Unread is told of a category that the handler writes copies to, and that no consumer has read.
	Unread func(category string)
}

// With returns a context for handlers.
func With(ctx context.Context, d *Delivery) context.Context {
	return context.WithValue(ctx, key{}, d)
}

// Consumer returns the name of the consumer that delivers the message, or "".
func Consumer(ctx context.Context) string {
	if ctx == nil {
		return ""
	}
	if d, ok := ctx.Value(key{}).(*Delivery); ok {
		return d.Consumer
	}
	return ""
}

// Wrote tells the consumer whose handler has the context that a stream was written to.
func Wrote(ctx context.Context, stream string) {
	if d, ok := ctx.Value(key{}).(*Delivery); ok && d.Wrote != nil {
		d.Wrote(stream)
	}
}

// Unread tells the consumer whose handler has the context that it writes copies of its commands to a category that no
// consumer has read.
func Unread(ctx context.Context, category string) {
	if d, ok := ctx.Value(key{}).(*Delivery); ok && d.Unread != nil {
		d.Unread(category)
	}
}
