// Package known has the handler of the packages that are consumers of their own: one function for some
// message types.
package known

import (
	"context"

	"github.com/dibs-go/dibs/messagestore"
)

// A Handler is a handler of a consumer that reads only these types.
type Handler struct {
	Known []string
	Func  func(ctx context.Context, m *messagestore.Message) error
	Owner bool // the category is the package's own: no user has named it, and Func writes there
	Slow  bool // Func may have a message for a minute or two
}

// Types returns the types that the handler knows.
func (h Handler) Types() []string { return h.Known }

// OwnsCategory reports whether the category that the handler's consumer reads is the package's own.
func (h Handler) OwnsCategory() bool { return h.Owner }

// TakesMinutes reports whether the handler may have a message for a minute or two.
func (h Handler) TakesMinutes() bool { return h.Slow }

// Handle calls the function.
func (h Handler) Handle(ctx context.Context, m *messagestore.Message) error { return h.Func(ctx, m) }
