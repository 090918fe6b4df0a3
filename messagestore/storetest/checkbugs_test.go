package storetest

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/messagestore"
)

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
	}},
	{"a check writes a message", []string{"Check/WritesNothing"}, func(d *driver) {
		var last messagestore.StreamName
		d.append = asking(d.Driver.Append, func(a *messagestore.Append) { last = a.Stream })
		d.check = func(ctx context.Context, _ bool) error {
			_, err := d.Driver.Append(ctx, messagestore.Append{Stream: last, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("T", `{}`)}})
			return err
		}
	}},
	{"a check does not end", []string{"Check/EndsWithItsContext"}, func(d *driver) { d.check = func(context.Context, bool) error { return nil } }},
}
