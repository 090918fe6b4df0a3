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
}

// Types returns the types that the handler knows.
func (h Handler) Types() []string { return h.Known }

// Handle calls the function.
func (h Handler) Handle(ctx context.Context, m *messagestore.Message) error { return h.Func(ctx, m) }
