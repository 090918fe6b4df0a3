package postgres

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/messagestore"
)

// TryAppend implements [messagestore.Driver]. The answer comes in the round trip of the write, also
// if writes are committed together. A last message of more than 16 KiB takes another round trip.
func (d *Driver) TryAppend(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	for {
		written, met, err := d.appendEither(ctx, appends, true)
		if met == nil {
			return written, nil, err
		}
		switch err := d.complete(ctx, met); {
		case errors.Is(err, errRemoved): // another message is the last by now
		case err != nil:
			return nil, nil, err
		default:
			return nil, met, nil
		}
	}
}

// errRemoved is returned when the message that a write found was removed since.
var errRemoved = errors.New("the message that the write met was removed")

// complete reads the data and metadata that were too large to be sent along, or are null.
func (g *gathering) complete(ctx context.Context, met *messagestore.Conflict) error {
	for i, m := range met.Last {
		if m == nil || m.Data != nil {
			continue
		}
		found, err := g.ReadStream(ctx, messagestore.StreamQuery{Stream: m.Stream, From: m.Position, Limit: 1})
		if err != nil {
			return err
		}
		if len(found) == 0 || found[0].ID != m.ID || found[0].GlobalPosition != m.GlobalPosition {
			return errRemoved
		}
		met.Last[i] = found[0]
	}
	return nil
}
