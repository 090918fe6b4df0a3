package storetest

import (
	"context"

	"github.com/dibs-go/dibs/messagestore"
)

var trimBugs = []bug{
	{"a trim keeps one more", []string{"Trim/KeepsTheLastCheckpoints"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			return d.Driver.TrimCheckpoints(ctx, stream, keep+1)
		}
	}},
	{"a version is how many messages there are", []string{"Trim/VersionsGoOn"}, func(d *driver) {
		d.version = func(ctx context.Context, stream messagestore.StreamName) (messagestore.Version, error) {
			all, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: stream, Limit: messagestore.MaxReadMessages})
			return messagestore.Version(len(all) - 1), err
		}
	}},
	{"a reader skips as many as were trimmed", []string{"Trim/ReadersGoOnBehindIt"}, func(d *driver) {
		d.readStream = func(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
			if first, err := d.Driver.ReadStream(ctx, messagestore.StreamQuery{Stream: q.Stream, Limit: 1}); err == nil && len(first) > 0 && !q.Backwards {
				q.From += first[0].Position
			}
			return d.Driver.ReadStream(ctx, q)
		}
	}},
	{"a trim is of the next member too", []string{"Trim/LeavesOtherStreamsAlone"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			if _, err := d.Driver.TrimCheckpoints(ctx, stream[:len(stream)-1]+"1", keep); err != nil {
				return 0, err
			}
			return d.Driver.TrimCheckpoints(ctx, stream, keep)
		}
	}},
	{"a trim looks at no type", []string{"Trim/RefusesWhatIsNoCheckpoint"}, func(d *driver) {
		d.trim = func(ctx context.Context, stream messagestore.StreamName, keep int) (int64, error) {
			return 1, nil
		}
	}},
}
