package memory

import (
	"context"

	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.CheckingDriver = (*Driver)(nil)

// Check implements [messagestore.CheckingDriver]: memory serves until the context ends.
func (d *Driver) Check(ctx context.Context, _ bool) error { return ctx.Err() }
