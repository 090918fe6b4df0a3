package admin

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// Trim removes the first messages of a stream. The last one always stays, and so does the version.
// The remaining messages keep their positions, without a gap. Messages of type dibs:Trimmed record
// it: for account-123 in account:retention-123.
//
// A message that a queue has not finished stays, and so do all messages after it in its stream. A
// message that a consumer has parked stays until it is redriven or dropped. A message that was
// trimmed before its handler failed is not parked.
//
// It removes at most 10,000 messages in one transaction, and does not hold up writers. If it
// returns an error, a part may be done; it is safe to call it again. Invalid options are a
// [*messagestore.InvalidError], before anything is sent.
func (a *Admin) Trim(ctx context.Context, stream messagestore.StreamName, options *retention.TrimOptions) (retention.Trimmed, error) {
	trimmed := retention.Trimmed{Stream: stream, First: messagestore.NoStream, Version: messagestore.NoStream}
	err := removal.CheckName(stream)
	if err == nil {
		err = options.Validate()
	}
	for more := true; more && err == nil; {
		more, err = a.trim(ctx, options, &trimmed)
	}
	if err != nil {
		return trimmed, fmt.Errorf("trim %.80q: %w", string(stream), err)
	}
	return trimmed, nil
}

// trim is one transaction of Trim.
func (a *Admin) trim(ctx context.Context, o *retention.TrimOptions, trimmed *retention.Trimmed) (more bool, err error) {
	keep := pgtype.Int8{Int64: o.Keep, Valid: o.Keep > 0}
	before := pgtype.Timestamptz{Time: o.Before, Valid: !o.Before.IsZero()}
	below := pgtype.Int8{Int64: int64(o.Below), Valid: o.Below > 0}
	minAge := o.MinAge
	switch minAge {
	case 0:
		minAge = removal.DefaultMinAge
	case retention.AnyAge:
		minAge = 0
	}
	age := pgtype.Interval{Microseconds: minAge.Microseconds(), Valid: true}
	var outcome string
	var removed int64
	var first pgtype.Int8
	var queue pgtype.Text
	args := []any{string(trimmed.Stream), keep, before, pglink.OrNull(o.Reason), age, maxRemoved, o.DryRun, below}
	err = a.change(ctx, a.queries.trim, args, &outcome, &removed, &first, (*int64)(&trimmed.Version), &trimmed.Recent, &more, &queue)
	if err != nil {
		return false, err
	}
	trimmed.Removed += removed
	if first.Valid {
		trimmed.First = messagestore.Version(first.Int64)
	}
	trimmed.Reservation = outcome == "reservation"
	trimmed.Queue = queue.String
	if o.OnProgress != nil && removed > 0 && !o.DryRun {
		o.OnProgress(removed)
	}
	return more, nil
}

// TrimCategory calls [Admin.Trim] for every stream of a category, in order of their names,
// including streams that are written while it runs, and yields each result. It ends after an error.
func (a *Admin) TrimCategory(ctx context.Context, category messagestore.Category, options *retention.TrimOptions) iter.Seq2[retention.Trimmed, error] {
	return func(yield func(retention.Trimmed, error) bool) {
		if err := options.Validate(); err != nil {
			yield(retention.Trimmed{}, fmt.Errorf("trim category %.80q: %w", string(category), err))
			return
		}
		for stream, err := range a.streams(ctx, category) {
			var trimmed retention.Trimmed
			if err == nil {
				trimmed, err = a.Trim(ctx, stream, options)
			} else {
				err = fmt.Errorf("trim category %.80q: %w", string(category), err)
			}
			if !yield(trimmed, err) || err != nil {
				return
			}
		}
	}
}

// streams yields the names of a category's streams, in order.
func (a *Admin) streams(ctx context.Context, category messagestore.Category) iter.Seq2[messagestore.StreamName, error] {
	const page = 1000

	return func(yield func(messagestore.StreamName, error) bool) {
		if err := category.Validate(); err != nil {
			yield("", err)
			return
		}
		for after := ""; ; {
			var names []string
			err := a.query(ctx, a.queries.categoryStreams, []any{string(category), pglink.OrNull(after), page}, func(rows pgx.Rows) error {
				var name string
				var first, version int64
				err := rows.Scan(&name, &first, &version)
				names = append(names, name)
				return err
			})
			if err != nil {
				yield("", err)
				return
			}
			for _, name := range names {
				if !yield(messagestore.StreamName(name), nil) {
					return
				}
			}
			if len(names) < page {
				return
			}
			after = names[len(names)-1]
		}
	}
}
