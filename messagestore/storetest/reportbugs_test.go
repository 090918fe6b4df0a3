package storetest

import (
	"context"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
)

// reports has every report changed before it is returned, asks what it is asked for.
func (d *driver) reports(change func(q report.Query, r *report.Report)) {
	d.report = answering(d.report, change)
}

func (d *driver) asks(change func(q *report.Query)) { d.report = asking(d.report, change) }

var reportBugs = []bug{
	{"a report counts the whole store whatever it is asked", []string{"Report/CountsByStream", "Report/OfNothingIsEmpty"}, func(d *driver) {
		d.asks(func(q *report.Query) { q.Category = "" })
		if _, err := d.Driver.Append(context.Background(), messagestore.Append{Stream: "else-1", Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record("T", `{}`)}}); err != nil {
			panic(err)
		}
	}},
	{"a report counts a category and not what has it for a prefix", []string{"Report/CountsTheWholeStore"}, func(d *driver) {
		d.reports(func(q report.Query, r *report.Report) {
			if q.Category == "" {
				r.Rows = slices.DeleteFunc(r.Rows, func(row report.Row) bool { return strings.Contains(row.Names[0], ":") })
			}
		})
	}},
	{"a report by type is by stream", []string{"Report/CountsByTypeAndCategory"}, func(d *driver) {
		d.asks(func(q *report.Query) {
			if q.By[0] == report.ByType {
				q.By = []report.Key{report.ByStream}
			}
		})
	}},
	{"a report knows one key", []string{"Report/CountsByTwo"}, func(d *driver) { d.asks(func(q *report.Query) { q.By = q.By[:1] }) }},
	{"a report has the last position of another", []string{"Report/AgreesWithWhatIsRead"}, func(d *driver) {
		d.reports(func(_ report.Query, r *report.Report) {
			for i := range r.Rows {
				r.Rows[i].LastGlobalPosition = r.Rows[0].LastGlobalPosition
			}
		})
	}},
	{"a report takes the text for a pattern", []string{"Report/KeepsWhatContainsTheText"}, func(d *driver) {
		d.asks(func(q *report.Query) { q.Containing = strings.Trim(q.Containing, "%") })
	}},
	{"a report is not sorted", []string{"Report/IsSorted"}, func(d *driver) { d.asks(func(q *report.Query) { q.Sort = report.SortByName }) }},
	{"a report counts what it returns", []string{"Report/LimitCutsRowsOnly", "Report/KeepsWhatContainsTheText"}, func(d *driver) {
		d.reports(func(_ report.Query, r *report.Report) {
			r.Messages, r.Groups = 0, int64(len(r.Rows))
			for _, row := range r.Rows {
				r.Messages += row.Messages
			}
		})
	}},
	{"a report does not end", []string{"Report/EndsWithItsContext"}, func(d *driver) {
		sound := d.report
		d.report = func(ctx context.Context, q report.Query) (report.Report, error) {
			return sound(context.WithoutCancel(ctx), q)
		}
	}},
	{"categories are told once for each stream", []string{"Categories/AreNamedOnceInOrder"}, func(d *driver) {
		d.categories = func(ctx context.Context, containing string) ([]messagestore.Category, error) {
			r, err := d.report(ctx, report.Query{By: []report.Key{report.ByStream}, Containing: containing})
			var all []messagestore.Category
			for _, row := range r.Rows {
				all = append(all, messagestore.StreamName(row.Names[0]).Category())
			}
			return all, err
		}
	}},
	{"a count leaves out the one it starts with", []string{"Count/IsWhatIsRead"}, func(d *driver) {
		d.count = asking(d.Driver.Count, func(q *messagestore.CategoryQuery) { q.From = q.From.Next() })
	}},
	{"a count goes on", []string{"Count/StopsAtItsLimit"}, func(d *driver) {
		d.count = asking(d.Driver.Count, func(q *messagestore.CategoryQuery) { q.Limit = 1 << 50 })
	}},
}
