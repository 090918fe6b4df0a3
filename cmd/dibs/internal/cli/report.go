package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/operate"
)

// A reportCommand is dibs report: it counts messages by stream, type or category.
type reportCommand struct {
	What     string   `arg:"" optional:"" help:"Count by streams, types or categories."`
	By       []string `placeholder:"KEY" help:"Or by several of stream, type and category, joined by commas: a row for each combination, named and sorted in that order."`
	Category string   `placeholder:"CATEGORY" help:"Count the messages of this category only, which reads no others."`
	Like     string   `placeholder:"TEXT" help:"Print only rows whose first name holds this text."`
	Sort     string   `default:"name" placeholder:"ORDER" help:"name, or messages, bytes or last, the most first. Defaults to name."`
	Limit    int      `default:"1000" placeholder:"N" help:"Print at most N rows, or all with 0. Defaults to 1000."`
}

func (c *reportCommand) query() (report.Query, error) {
	q := report.Query{
		Category: c.Category, Containing: c.Like, Sort: report.Order(c.Sort), Limit: c.Limit,
	}
	keys := map[string]report.Key{
		"streams": report.ByStream, "types": report.ByType, "categories": report.ByCategory,
	}
	switch key, known := keys[c.What]; {
	case c.What != "" && len(c.By) > 0:
		return q, usage("give either streams, types or categories, or --by")
	case known:
		q.By = []report.Key{key}
	case c.What == "queues":
		return q, hinted(usage("a report counts messages"), "see how queues stand with: dibs queue ls")
	case c.What != "":
		return q, usage("invalid report %.80q: it is of streams, types or categories, or --by several of stream, type and category", c.What)
	case len(c.By) == 0:
		return q, usage("a report is of streams, types or categories, or --by several of stream, type and category")
	}
	for _, key := range c.By {
		q.By = append(q.By, report.Key(key))
	}
	if strings.Contains(c.Category, "-") { // which no category has, of whichever client
		return q, messagestore.Category(c.Category).Validate()
	}
	if err := checkReport(q); err != nil {
		return q, fmt.Errorf("report: %w", err)
	}
	return q, nil
}

// checkReport refuses a query that no store answers. The error matches [messagestore.ErrInvalid].
func checkReport(q report.Query) error {
	for i, key := range q.By {
		switch {
		case key != report.ByStream && key != report.ByType && key != report.ByCategory:
			return messagestore.NewInvalidError("report by", string(key), "must be stream, type or category")
		case slices.Contains(q.By[:i], key):
			return messagestore.NewInvalidError("report by", string(key), "must not be named twice")
		}
	}
	switch q.Sort {
	case "", report.SortByName, report.SortByMessages, report.SortByBytes, report.SortByLast:
	default:
		return messagestore.NewInvalidError("report order", string(q.Sort), "must be name, messages, bytes or last")
	}
	if q.Limit < 0 {
		return messagestore.NewInvalidError("limit", q.Limit, "must be at least 0")
	}
	return errors.Join(checkReportText("category", q.Category), checkReportText("containing", q.Containing))
}

// checkReportText refuses texts that cannot be in a name in any store, because databases do not accept
// them in a query.
func checkReportText(field, text string) error {
	switch {
	case !utf8.ValidString(text):
		return messagestore.NewInvalidError(field, text, "must be valid UTF-8")
	case strings.ContainsRune(text, 0):
		return messagestore.NewInvalidError(field, text, "must not contain U+0000")
	case len(text) > maxReportText:
		return messagestore.NewInvalidError(field, text, fmt.Sprintf("must be at most %d bytes, and is %d", maxReportText, len(text)))
	}
	return nil
}

// maxReportText is above [text.MaxNameBytes]: other clients may have written longer names.
const maxReportText = 8 << 10

func (c *reportCommand) Run(ctx context.Context, a *app) error {
	q, err := c.query()
	if err != nil {
		return err
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		var counts report.Report
		err := a.patiently("reading every message of "+cmp.Or(visible(c.Category), "the store"), func() (err error) {
			counts, err = report.Of(ctx, store, q)
			return err
		})
		if err != nil {
			return err
		}
		if counts.Messages == 0 {
			if err := operate.RequireCategory(ctx, store, messagestore.Category(c.Category)); err != nil {
				return err
			}
		}
		a.printReport(q, counts)
		return nil
	})
}

func (a *app) printReport(q report.Query, counts report.Report) {
	columns := []string{">messages", ">percent", ">bytes", "last"}
	for _, key := range q.By {
		columns = append(columns, string(key))
	}
	a.out.table(columns...)
	for _, row := range counts.Rows {
		object := fields{}
		cells := []any{row.Messages, fmt.Sprintf("%.2f", row.Percent), row.Bytes, row.Last}
		for i, key := range q.By {
			object = append(object, string(key), row.Names[i])
			if key == report.ByStream {
				object = append(object, "lastPosition", row.LastPosition)
			}
			cells = append(cells, in(bold, cmp.Or(row.Names[i], `""`))) // other clients' may be empty
		}
		a.out.row(append(object, "messages", row.Messages, "percent", row.Percent, "bytes", row.Bytes, "first", text.Time(row.First),
			"last", text.Time(row.Last), "lastGlobalPosition", row.LastGlobalPosition), cells...)
	}
	rows := int64(len(counts.Rows))
	switch {
	case rows < counts.Groups:
		a.cut(fields{"rows", rows, "of", counts.Groups}, "%d of %d rows, of %d messages in all; --limit 0 prints all", rows, counts.Groups, counts.Messages)
	case rows > 0:
	case counts.Messages > 0:
		a.nothing("no %s holds %s, of %s in all", q.By[0], strconv.Quote(q.Containing), text.Number(counts.Messages, "message"))
	case q.Category == "":
		a.nothing("the store has no message")
	}
}
