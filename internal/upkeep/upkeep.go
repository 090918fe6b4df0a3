// Package upkeep marks the calls of a store by which a process keeps what it has: the extension of
// a lease, a checkpoint, the look at a group. A driver with a bounded number of connections does not
// have them wait for the callers that hold all of these.
package upkeep

import "context"

type key struct{}

// With returns a context of calls that are upkeep. It is not for calls of a handler.
func With(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Is reports whether a call is upkeep.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }
