package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// maxForgotten bounds the requests that one transaction removes.
const maxForgotten = 5000

// A forgetRecord is the data of a message of type dibs:Forgotten.
type forgetRecord struct {
	Before   time.Time `json:"before"`
	Requests int64     `json:"requests"`
	Messages int64     `json:"messages"`
	Reason   string    `json:"reason,omitempty"`
}

// ForgetInbox removes the requests of an inbox, such as payments:inbox, whose last message is older
// than an age, key and all, as package messagestore/postgres/admin does: no tombstone is left, and
// their keys are free. So the age is the window of deduplication. A category whose last type is not
// inbox is refused, and so is an age of less than [retention.MinForgetAge]: with a
// [*messagestore.InvalidError].
//
// The request that has the last message of its category stays, and so do streams that end with a
// message of another type. At most 5,000 requests are removed in one transaction, for which writers
// wait, and each such transaction is recorded by a message of type dibs:Forgotten in
// payments:inbox+forgotten-1, with numbers and no names. If it ends with an error, some of it may be
// done; to call it again is safe.
func (d *Driver) ForgetInbox(
	ctx context.Context, category messagestore.Category, age time.Duration, options *retention.ForgetOptions,
) (retention.ForgottenRequests, error) {
	if options == nil {
		options = &retention.ForgetOptions{}
	}
	var forgotten retention.ForgottenRequests
	err := options.ValidateInbox(category, age)
	for more, from := true, messagestore.GlobalPosition(0); more && err == nil; {
		var batch retention.ForgottenRequests
		var next messagestore.GlobalPosition
		err = d.change(ctx, "forget requests", func(ctx context.Context, db queryer) (err error) {
			batch, next, err = forget(ctx, db, category, from, clock().Add(-age), options)
			return err
		})
		if err != nil {
			break
		}
		more, from = batch.Requests == maxForgotten, next
		forgotten.Requests += batch.Requests
		forgotten.Messages += batch.Messages
		if options.OnProgress != nil && batch.Messages > 0 && !options.DryRun {
			options.OnProgress(batch.Messages)
		}
	}
	if err != nil {
		return forgotten, fmt.Errorf("forget requests of %.80q: %w", string(category), err)
	}
	return forgotten, nil
}

// forget is one transaction of ForgetInbox. It returns where the next one begins.
func forget(
	ctx context.Context, db queryer, category messagestore.Category, from messagestore.GlobalPosition, before time.Time, o *retention.ForgetOptions,
) (batch retention.ForgottenRequests, next messagestore.GlobalPosition, err error) {
	streams, next, err := forgettable(ctx, db, category, from, before)
	if err != nil {
		return batch, next, err
	}
	for _, stream := range streams {
		first, last, _, err := endsOf(ctx, db, stream)
		if err != nil {
			return batch, next, err
		}
		batch.Requests++
		batch.Messages += int64(last-first) + 1
		if o.DryRun {
			continue
		}
		for _, name := range []messagestore.StreamName{stream, retentionStream(stream)} {
			if _, err := removeBelow(ctx, db, name, math.MaxInt64); err != nil {
				return batch, next, err
			}
		}
	}
	if o.DryRun || batch.Requests == 0 {
		return batch, next, nil
	}
	data, err := json.Marshal(forgetRecord{before.UTC().Truncate(time.Microsecond), batch.Requests, batch.Messages, o.Reason})
	if err != nil {
		return batch, next, err
	}
	return batch, next, appendOwn(ctx, db, category.WithType("forgotten").Stream("1"), "dibs:Forgotten", data, nil)
}

func forgettable(
	ctx context.Context, db queryer, category messagestore.Category, from messagestore.GlobalPosition, before time.Time,
) (streams []messagestore.StreamName, next messagestore.GlobalPosition, err error) {
	next = from
	rows, err := db.QueryContext(ctx, forgettableSQL, string(category), int64(from), before.UnixMicro(), maxForgotten)
	if err != nil {
		return nil, next, err
	}
	defer rows.Close()
	for rows.Next() {
		var at messagestore.GlobalPosition
		var stream messagestore.StreamName
		if err := rows.Scan(&at, &stream); err != nil {
			return nil, next, err
		}
		streams, next = append(streams, stream), at.Next()
	}
	return streams, next, rows.Err()
}
