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
func (d *Driver) complete(ctx context.Context, met *messagestore.Conflict) error {
	for i, m := range met.Last {
		if m == nil || m.Data != nil {
			continue
		}
		found, err := d.ReadStream(ctx, messagestore.StreamQuery{Stream: m.Stream, From: m.Position, Limit: 1})
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

// metIn returns the message in an answer; nil for a stream without messages.
func (a *answer) metIn() *messagestore.Message {
	if m := a.met; m != nil {
		m.ID, m.Stream, m.Position, m.GlobalPosition, m.Time = a.id, messagestore.StreamName(a.stream), a.version, a.globalPosition, a.time
	}
	return a.met
}

// lastOf returns the conflict that the answers for a write's streams describe.
func lastOf(answers []answer) *messagestore.Conflict {
	met := &messagestore.Conflict{Time: answers[0].metAt, Last: make([]*messagestore.Message, len(answers))}
	for i := range answers {
		met.Last[i] = answers[i].metIn()
	}
	return met
}
