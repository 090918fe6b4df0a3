package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// Report implements [messagestore.Driver].
func (d *Driver) Report(ctx context.Context, q report.Query) (report.Report, error) {
	keys := make([]any, 3)
	for i, key := range q.By {
		keys[i] = string(key)
	}
	limit := q.Limit
	if limit == 0 {
		limit = -1
	}
	var counts report.Report
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		counts = report.Report{}
		rows, err := db.QueryContext(ctx, reportSQL, keys[0], keys[1], keys[2], text(q.Category), q.Containing, string(q.Sort), limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var names [3]sql.NullString
			var row report.Row
			var first, last int64
			var total bool
			err := rows.Scan(&total, &names[0], &names[1], &names[2], &row.Messages, &row.Bytes, &first, &last, &row.LastPosition, &row.LastGlobalPosition)
			switch {
			case err != nil:
				return err
			case total: // the last row, which has the totals
				counts.Messages, counts.Groups = row.Messages, row.Bytes
				continue
			}
			for i := range q.By {
				row.Names = append(row.Names, names[i].String)
			}
			row.First, row.Last = time.UnixMicro(first).UTC(), time.UnixMicro(last).UTC()
			counts.Rows = append(counts.Rows, row)
		}
		return rows.Err()
	})
	if err != nil {
		return report.Report{}, explain(err)
	}
	return counts, nil
}

// Categories implements [messagestore.Driver].
func (d *Driver) Categories(ctx context.Context, containing string) ([]messagestore.Category, error) {
	var found []messagestore.Category
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		found = nil
		rows, err := db.QueryContext(ctx, categoriesSQL, containing)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var category messagestore.Category
			if err := rows.Scan(&category); err != nil {
				return err
			}
			found = append(found, category)
		}
		return rows.Err()
	})
	return found, explain(err)
}

// Count implements [messagestore.Driver].
func (d *Driver) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	var n int64
	err := d.reads.read(ctx, func(ctx context.Context, db queryer) error {
		types, correlation, size, member := filterArgs(q.Filter)
		_, err := scanOne(ctx, db, countSQL, []any{string(q.Category), int64(q.From), types, correlation, size, member, q.Limit}, &n)
		return err
	})
	return n, explain(err)
}
