package storetest

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/messagestore"
)

// Check implements [messagestore.Driver].
func (d *driver) Check(ctx context.Context, write bool) error {
	if d.check != nil {
		return d.check(ctx, write)
	}
	return d.Driver.Check(ctx, write)
}

var checkBugs = []bug{
	{"a check fails the second time", []string{"Check/PassesWhereWritesDo"}, func(d *driver) {
		failing := false
		d.check = func(_ context.Context, write bool) error {
			if failing && write {
				return errors.New("failed")
			}
			failing = true
			return nil
		}
	}, nil},
	{"a check writes a message", []string{"Check/WritesNothing"}, func(d *driver) {
		var last messagestore.StreamName
		d.append = func(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
			last = a.Stream
			return d.Driver.Append(ctx, a)
		}
		d.check = func(ctx context.Context, _ bool) error {
			_, err := d.Driver.Append(ctx, messagestore.Append{Stream: last, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("T", `{}`)}})
			return err
		}
	}, nil},
	{"a check does not end", []string{"Check/EndsWithItsContext"}, func(d *driver) {
		d.check = func(context.Context, bool) error { return nil }
	}, nil},
}
