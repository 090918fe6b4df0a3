package consumer

import (
	"context"

	"github.com/dibs-go/dibs/internal/calling"
	"github.com/dibs-go/dibs/messagestore"
)

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.id.Name }

// Category returns the category that the consumer reads.
func (c *Consumer) Category() messagestore.Category { return c.id.Category }

// NameOf returns the name of the consumer that delivers a message, from the context of its
// handler, and "" from another context.
func NameOf(ctx context.Context) string { return calling.CallerOf(ctx).Consumer }
