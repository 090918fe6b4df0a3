package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/messagestore"
)

var _ messagestore.ReportDriver = (*Driver)(nil)

// Report implements [messagestore.ReportDriver].
func (d *Driver) Report(ctx context.Context, q messagestore.ReportQuery) (messagestore.Report, error) {
	if err := ctx.Err(); err != nil {
		return messagestore.Report{}, err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()

	var report messagestore.Report
	groups := map[[3]string]*messagestore.ReportRow{}
	for category, messages := range d.categories {
		if q.Category != "" && category != q.Category {
			continue
		}
		report.Messages += int64(len(messages))
		for _, m := range messages {
			if err := ctx.Err(); err != nil {
				return messagestore.Report{}, err
			}
			key := keyOf(q.By, m.recorded)
			row, ok := groups[key]
			if !ok {
				row = &messagestore.ReportRow{Names: slices.Clone(key[:len(q.By)]), First: m.recorded.Time}
				groups[key] = row
			}
			m.countIn(row)
		}
	}
	for _, row := range groups {
		if strings.Contains(row.Names[0], q.Containing) {
			report.Rows = append(report.Rows, *row)
		}
	}
	slices.SortFunc(report.Rows, func(a, b messagestore.ReportRow) int {
		return cmp.Or(inOrder(q.Sort, a, b), slices.Compare(a.Names, b.Names))
	})
	report.Groups = int64(len(report.Rows))
	if q.Limit > 0 && len(report.Rows) > q.Limit {
		report.Rows = report.Rows[:q.Limit]
	}
	return report, nil
}

func keyOf(by []messagestore.ReportKey, m *messagestore.Message) (key [3]string) {
	for i, k := range by {
		switch k {
		case messagestore.ReportStream:
			key[i] = string(m.Stream)
		case messagestore.ReportType:
			key[i] = m.Type
		case messagestore.ReportCategory:
			key[i] = string(m.Stream.Category())
		}
	}
	return key
}

func (m *message) countIn(row *messagestore.ReportRow) {
	r := m.recorded
	row.Messages++
	row.Bytes += int64(len(r.Data) + len(m.metadata))
	if r.Time.Before(row.First) {
		row.First = r.Time
	}
	if r.Time.After(row.Last) {
		row.Last = r.Time
	}
	row.LastPosition = max(row.LastPosition, r.Position)
	row.LastGlobalPosition = max(row.LastGlobalPosition, r.GlobalPosition)
}

func inOrder(order messagestore.ReportOrder, a, b messagestore.ReportRow) int {
	switch order {
	case messagestore.SortByMessages:
		return cmp.Compare(b.Messages, a.Messages)
	case messagestore.SortByBytes:
		return cmp.Compare(b.Bytes, a.Bytes)
	case messagestore.SortByLast:
		return b.Last.Compare(a.Last)
	case messagestore.SortByName:
	}
	return 0
}

// Categories implements [messagestore.ReportDriver].
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

// Count implements [messagestore.ReportDriver].
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
