package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

type reportCommand struct {
	What     string   `arg:"" optional:"" help:"Count by streams, types or categories; or print how queues stand."`
	By       []string `placeholder:"KEY" help:"Or by several of stream, type and category, joined by commas: a row for each combination, named and sorted in that order."`
	Category string   `placeholder:"CATEGORY" help:"Count the messages of this category only, which reads no others; or print its queues."`
	Like     string   `placeholder:"TEXT" help:"Print only rows whose first name holds this text."`
	Sort     string   `default:"name" placeholder:"ORDER" help:"name, or messages, bytes or last, the most first. Defaults to name."`
	Limit    int      `default:"1000" placeholder:"N" help:"Print at most N rows, or all with 0. Defaults to 1000."`
}

// Help is printed below the command's usage.
func (reportCommand) Help() string {
	return `It counts inside the database and holds up no writer, but without --category it reads every message of the store. Percentages are of all messages counted: the store's, or the category's. Bytes are those of data and metadata as they are stored, without indexes.

A report of queues reads no messages: it has the lines of dibs queue ls, by name.

Examples:

    dibs report categories --sort bytes
    dibs report streams --category account --sort messages --limit 20
    dibs report --by type,stream --category account
    dibs report queues`
}

func (c *reportCommand) query() (report.Query, error) {
	q := report.Query{
		Category: messagestore.Category(c.Category), Containing: c.Like, Sort: report.Order(c.Sort), Limit: c.Limit,
	}
	keys := map[string]report.Key{
		"streams": report.ByStream, "types": report.ByType, "categories": report.ByCategory,
	}
	switch key, known := keys[c.What]; {
	case c.What != "" && len(c.By) > 0:
		return q, usage("give either streams, types, categories or queues, or --by")
	case known:
		q.By = []report.Key{key}
	case c.What != "":
		return q, usage("invalid report %.80q: it is of streams, types, categories or queues, or --by several of stream, type and category", c.What)
	case len(c.By) == 0:
		return q, usage("a report is of streams, types, categories or queues, or --by several of stream, type and category")
	}
	for _, key := range c.By {
		q.By = append(q.By, report.Key(key))
	}
	if strings.Contains(c.Category, "-") { // which no category has, of whichever client
		_, err := toCategory(c.Category)
		return q, err
	}
	return q, nil
}

// Run prints the report.
func (c *reportCommand) Run(ctx context.Context, a *app) error {
	if c.What == "queues" {
		return c.queues(ctx, a)
	}
	q, err := c.query()
	if err != nil {
		return err
	}
	return a.withStore(ctx, 1000, func(store *messagestore.Store) error {
		what := "every message of the store"
		if c.Category != "" {
			what = "every message of " + visible(c.Category)
		}
		var counts report.Report
		err := a.patiently("reading "+what, func() error {
			var err error
			counts, err = report.Of(ctx, store, q)
			return err
		})
		if err != nil {
			return err
		}
		if q.Category != "" && counts.Messages == 0 {
			if err := requireCategory(ctx, store, q.Category); err != nil {
				return err
			}
		}
		return a.printReport(q, counts)
	})
}

// queues prints how the queues stand.
func (c *reportCommand) queues(ctx context.Context, a *app) error {
	var category messagestore.Category
	if c.Category != "" {
		var err error
		if category, err = toCategory(c.Category); err != nil {
			return err
		}
	}
	switch {
	case len(c.By) > 0:
		return usage("give either streams, types, categories or queues, or --by")
	case c.Sort != "name":
		return usage("--sort %.80q: queues are sorted by name", c.Sort)
	case c.Limit < 0:
		return usage("--limit %d: it is at least 1, or 0 for all", c.Limit)
	}
	return a.withStore(ctx, 1, func(store *messagestore.Store) error {
		all, err := queuesOf(ctx, store, category)
		if err != nil {
			return err
		}
		if len(all) == 0 && category != "" {
			if err := requireCategory(ctx, store, category); err != nil {
				return err
			}
		}
		all = slices.DeleteFunc(all, func(s queue.Status) bool { return !strings.Contains(s.Name, c.Like) })
		slices.SortFunc(all, func(x, y queue.Status) int { return strings.Compare(x.Name, y.Name) })
		few := all
		if c.Limit > 0 {
			few = all[:min(c.Limit, len(all))]
		}
		if err := a.printQueues(few, func(s queue.Status) any { return toQueueLine(s) }); err != nil {
			return err
		}
		switch {
		case len(few) < len(all) && a.JSON:
			return a.note(map[string]any{"kind": "cut", "rows": len(few), "of": len(all)})
		case len(few) < len(all):
			a.warn("dibs: %d of %d queues; --limit 0 prints all\n", len(few), len(all))
		case len(all) == 0 && c.Like != "":
			a.nothing("no queue holds %s in its name", visible(strconv.Quote(c.Like)))
		case len(all) == 0 && category != "":
			a.nothing("no queue of %s was ever worked on", visible(c.Category))
		case len(all) == 0:
			a.nothing("no queue was ever worked on")
		}
		return nil
	})
}

// patiently runs f, and tells a person from time to time that it goes on.
func (a *app) patiently(what string, f func() error) error {
	if a.JSON {
		return f()
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		start := time.Now()
		tick := time.NewTicker(cmp.Or(a.patience, 10*time.Second))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				a.warn("dibs: still %s, for %v\n", what, time.Since(start).Round(time.Second))
			}
		}
	})
	err := f()
	close(done)
	telling.Wait()
	return err
}

// A reportLine is how a row is printed as JSON.
type reportLine struct {
	Stream             *string                     `json:"stream,omitempty"`
	Type               *string                     `json:"type,omitempty"`
	Category           *string                     `json:"category,omitempty"`
	Messages           int64                       `json:"messages"`
	Percent            float64                     `json:"percent"`
	Bytes              int64                       `json:"bytes"`
	First              string                      `json:"first"`
	Last               string                      `json:"last"`
	LastPosition       *messagestore.Version       `json:"lastPosition,omitempty"`
	LastGlobalPosition messagestore.GlobalPosition `json:"lastGlobalPosition"`
}

func (a *app) printReport(q report.Query, counts report.Report) error {
	if !a.JSON && len(counts.Rows) > 0 {
		header := []cell{{text: "messages", right: true}, {text: "percent", right: true}, {text: "bytes", right: true}, {text: "last"}}
		for _, key := range q.By {
			header = append(header, cell{text: string(key)})
		}
		if err := a.out.row(header...); err != nil {
			return err
		}
	}
	for _, row := range counts.Rows {
		var err error
		if a.JSON {
			err = a.out.object(toReportLine(q, row))
		} else {
			cells := []cell{
				{text: strconv.FormatInt(row.Messages, 10), right: true},
				{text: fmt.Sprintf("%.2f", row.Percent), right: true},
				{text: strconv.FormatInt(row.Bytes, 10), right: true},
				{text: timeText(row.Last), style: dim},
			}
			for _, name := range row.Names {
				cells = append(cells, cell{text: cmp.Or(visible(name), `""`), style: bold}) // other clients' may be empty
			}
			err = a.out.row(cells...)
		}
		if err != nil {
			return err
		}
	}
	rows := int64(len(counts.Rows))
	switch {
	case rows < counts.Groups && a.JSON:
		// Without it a reader would take a part for the whole.
		return a.note(map[string]any{"kind": "cut", "rows": rows, "of": counts.Groups})
	case rows < counts.Groups:
		a.warn("dibs: %d of %d rows, of %d messages in all; --limit 0 prints all\n", rows, counts.Groups, counts.Messages)
	case a.JSON || rows > 0:
	case counts.Messages > 0:
		a.nothing("no %s holds %s, of %s in all", q.By[0], visible(strconv.Quote(q.Containing)), counted(counts.Messages, "message"))
	case q.Category == "":
		a.nothing("the store has no message")
	}
	return nil
}

// note writes an object to the standard error, where it is not taken for a result.
func (a *app) note(v any) error {
	text, err := oneLine(v)
	if err == nil {
		a.warn("%s", text)
	}
	return err
}

func toReportLine(q report.Query, row report.Row) reportLine {
	l := reportLine{
		Messages: row.Messages, Percent: row.Percent, Bytes: row.Bytes,
		First: timeText(row.First), Last: timeText(row.Last), LastGlobalPosition: row.LastGlobalPosition,
	}
	for i, key := range q.By {
		name := row.Names[i]
		switch key {
		case report.ByStream:
			l.Stream, l.LastPosition = &name, &row.LastPosition
		case report.ByType:
			l.Type = &name
		case report.ByCategory:
			l.Category = &name
		}
	}
	return l
}
