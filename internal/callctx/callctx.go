// Package callctx has what the context of a call tells the packages below: who calls.
package callctx

import "context"

// A Caller is who calls. The zero value is a caller of which nothing is known.
type Caller struct {
	Consumer string // the consumer, or the queue, whose handler it is
	Category string // that the consumer reads; "" for a queue

	// Upkeep is set for the process itself, which keeps what it has: the extension of a lease, a checkpoint, the look at a
	// group. A driver with a bounded number of connections does not have it wait for the callers that hold all of these.
	Upkeep bool

	Job     any // of a queue's handler, as package queue has it
	Step    any // of a saga, as package saga has it
	Request any // of a handler behind the middleware, as package idempotency has it
}

type key struct{}

// Of returns the caller with the context.
func Of(ctx context.Context) Caller {
	if c, is := ctx.Value(key{}).(*Caller); is {
		return *c
	}
	return Caller{}
}

// With returns a context of the same caller with a change.
func With(ctx context.Context, change func(c *Caller)) context.Context {
	c := Of(ctx)
	change(&c)
	return context.WithValue(ctx, key{}, &c)
}

// Upkeep returns the context of a call that is upkeep. It is not for calls of a handler.
func Upkeep(ctx context.Context) context.Context {
	return With(ctx, func(c *Caller) { c.Upkeep = true })
}
