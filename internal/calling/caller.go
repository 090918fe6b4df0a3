package calling

import "context"

// A Caller describes the code that makes a call. The zero value is an unknown caller.
type Caller struct {
	Consumer string // the consumer, or the queue, whose handler it is
	Category string // that the consumer reads; "" for a queue

	// Upkeep marks calls that a process needs to stay alive: the extension of a lease, a
	// checkpoint, a look at a group. A driver with a limited number of connections does not let
	// them wait for the callers that hold all of these.
	Upkeep bool

	// Transaction marks calls in the function of a transaction of the store. It holds a connection
	// until it returns, so these calls do not wait for others, who may wait for that connection.
	Transaction bool

	Job     any // package queue's value about the job of a handler
	Step    any // package saga's value about the step
	Request any // package idempotency's value about the request
}

type key struct{}

// CallerOf returns the caller in ctx.
func CallerOf(ctx context.Context) Caller {
	if c, is := ctx.Value(key{}).(*Caller); is {
		return *c
	}
	return Caller{}
}

// WithCaller returns a context with a changed copy of the caller in ctx.
func WithCaller(ctx context.Context, change func(c *Caller)) context.Context {
	c := CallerOf(ctx)
	change(&c)
	return context.WithValue(ctx, key{}, &c)
}

// Upkeep returns a context for calls that are upkeep. Do not use it for calls of a handler.
func Upkeep(ctx context.Context) context.Context {
	return WithCaller(ctx, func(c *Caller) { c.Upkeep = true })
}
