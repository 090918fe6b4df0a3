package storetest

import (
	"context"
	"time"
)

var clockBugs = []bug{
	{"the clock is not the one that stamps messages", []string{"Now/IsTheClockThatStampsMessages"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) {
			now, err := d.Driver.Now(ctx)
			return now.Add(time.Second), err
		}
	}},
	{"the clock stands still, as a transaction's does", []string{"Now/IsTheTimeOfTheCall"}, func(d *driver) {
		begun := time.Now()
		d.now = func(context.Context) (time.Time, error) { return begun, nil }
	}},
	{"the clock is years off", []string{"Now/IsUTCInMicroseconds"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) {
			now, err := d.Driver.Now(ctx)
			return now.AddDate(30, 0, 0), err
		}
	}},
	{"the clock can be read after the context is done", []string{"S8/CancelledContextReadsNothing"}, func(d *driver) {
		d.now = func(ctx context.Context) (time.Time, error) { return d.Driver.Now(context.WithoutCancel(ctx)) }
	}},
}
