package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// Report implements [messagestore.Driver] by one statement, which takes no lock that a writer waits
// for.
func (r reader) Report(ctx context.Context, q report.Query) (report.Report, error) {
	by := make([]string, len(q.By))
	for i, key := range q.By {
		by[i] = string(key)
	}
	var limit *int
	if q.Limit > 0 {
		limit = &q.Limit
	}
	var counts report.Report
	args := []any{by, pglink.OrNull(q.Category), pglink.OrNull(q.Containing), string(q.Sort), limit}
	err := r.query(ctx, r.queries.report, args, func(rows pgx.Rows) error {
		var row report.Row
		var first, last, position, global, groups pgtype.Int8
		if err := rows.Scan(&row.Names, &row.Messages, &row.Bytes, &first, &last, &position, &global, &groups); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		if groups.Valid { // the last row, which has the totals
			counts.Messages, counts.Groups = row.Messages, groups.Int64
			return nil
		}
		row.First, row.Last = timeIn(first), timeIn(last)
		row.LastPosition, row.LastGlobalPosition = position.Int64, global.Int64
		counts.Rows = append(counts.Rows, row)
		return nil
	})
	if err != nil {
		return report.Report{}, err
	}
	return counts, nil
}

// timeIn converts microseconds to a time, and null to the zero time.
func timeIn(micros pgtype.Int8) time.Time {
	if !micros.Valid {
		return time.Time{}
	}
	return time.UnixMicro(micros.Int64).UTC()
}

// Categories implements [messagestore.Driver].
func (r reader) Categories(ctx context.Context, containing string) ([]messagestore.Category, error) {
	var found []messagestore.Category
	err := r.query(ctx, r.queries.categories, []any{pglink.OrNull(containing)}, func(rows pgx.Rows) error {
		var name string
		err := rows.Scan(&name)
		found = append(found, messagestore.Category(name))
		return err
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Count implements [messagestore.Driver].
func (r reader) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	types, correlation, size, member := filterArgs(q.Filter)
	var n int64
	err := r.query(ctx, r.queries.count, []any{string(q.Category), int64(q.From), int64(q.Limit), types, correlation, size, member}, func(rows pgx.Rows) error {
		return rows.Scan(&n)
	})
	return n, err
}
