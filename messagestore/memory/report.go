package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// Report implements [messagestore.Driver].
func (d *Driver) Report(ctx context.Context, q report.Query) (report.Report, error) {
	if err := ctx.Err(); err != nil {
		return report.Report{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	var counts report.Report
	groups := map[[3]string]*report.Row{}
	for category, messages := range d.categories {
		if q.Category != "" && category != messagestore.Category(q.Category) {
			continue
		}
		counts.Messages += int64(len(messages))
		for _, m := range messages {
			if err := ctx.Err(); err != nil {
				return report.Report{}, err
			}
			key := keyOf(q.By, m.recorded)
			row, ok := groups[key]
			if !ok {
				row = &report.Row{Names: slices.Clone(key[:len(q.By)]), First: m.recorded.Time}
				groups[key] = row
			}
			m.countIn(row)
		}
	}
	for _, row := range groups {
		if strings.Contains(row.Names[0], q.Containing) {
			counts.Rows = append(counts.Rows, *row)
		}
	}
	slices.SortFunc(counts.Rows, func(a, b report.Row) int {
		return cmp.Or(inOrder(q.Sort, a, b), slices.Compare(a.Names, b.Names))
	})
	counts.Groups = int64(len(counts.Rows))
	if q.Limit > 0 && len(counts.Rows) > q.Limit {
		counts.Rows = counts.Rows[:q.Limit]
	}
	return counts, nil
}

func keyOf(by []report.Key, m *messagestore.Message) (key [3]string) {
	for i, k := range by {
		switch k {
		case report.ByStream:
			key[i] = string(m.Stream)
		case report.ByType:
			key[i] = m.Type
		case report.ByCategory:
			key[i] = string(m.Stream.Category())
		}
	}
	return key
}

func (m *message) countIn(row *report.Row) {
	r := m.recorded
	row.Messages++
	row.Bytes += int64(len(r.Data) + len(m.metadata))
	if r.Time.Before(row.First) {
		row.First = r.Time
	}
	if r.Time.After(row.Last) {
		row.Last = r.Time
	}
	row.LastPosition = max(row.LastPosition, int64(r.Position))
	row.LastGlobalPosition = max(row.LastGlobalPosition, int64(r.GlobalPosition))
}

func inOrder(order report.Order, a, b report.Row) int {
	switch order {
	case report.SortByMessages:
		return cmp.Compare(b.Messages, a.Messages)
	case report.SortByBytes:
		return cmp.Compare(b.Bytes, a.Bytes)
	case report.SortByLast:
		return b.Last.Compare(a.Last)
	case report.SortByName:
	}
	return 0
}

// Categories implements [messagestore.Driver].
func (d *Driver) Categories(ctx context.Context, containing string) ([]messagestore.Category, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	var found []messagestore.Category
	for category, messages := range d.categories {
		if len(messages) > 0 && strings.Contains(string(category), containing) {
			found = append(found, category)
		}
	}
	slices.Sort(found)
	return found, nil
}

// Count implements [messagestore.Driver].
func (d *Driver) Count(ctx context.Context, q messagestore.CategoryQuery) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	n := 0
	for _, m := range d.categories[q.Category] {
		if n == q.Limit {
			break
		}
		if m.recorded.GlobalPosition >= q.From && q.Filter.Matches(m.recorded) {
			n++
		}
	}
	return int64(n), nil
}
