package messagestore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A ReportDriver can count the messages of a store without reading them out. Every driver of
// this module can.
type ReportDriver interface {
	Driver

	// Report counts messages: see [Store.Report]. The store fills in the percentages,
	// and checks the query. It sees every append that returned before it was called.
	Report(ctx context.Context, q ReportQuery) (Report, error)

	// Categories returns the names of the categories there are, in order byte by byte:
	// those that hold containing, or all if that is "". It does not read every message.
	Categories(ctx context.Context, containing string) ([]Category, error)

	// Count returns how many messages ReadCategory would hand out for q, page after
	// page, and at most q.Limit, which is not bounded here. It stops counting there.
	Count(ctx context.Context, q CategoryQuery) (int64, error)
}

// A ReportKey names a property of messages for each value of which a report has a row.
type ReportKey string

// The keys of a report.
const (
	ReportStream   ReportKey = "stream"
	ReportType     ReportKey = "type"
	ReportCategory ReportKey = "category"
)

// A ReportOrder is how the rows of a report are sorted. Rows that are equal by it are
// sorted by their names, byte by byte.
type ReportOrder string

// The orders of a report.
const (
	SortByName     ReportOrder = "name"
	SortByMessages ReportOrder = "messages" // most first
	SortByBytes    ReportOrder = "bytes"    // most first
	SortByLast     ReportOrder = "last"     // the latest first
)

// A ReportQuery selects the messages to count.
type ReportQuery struct {
	// By has the keys of a row: one to three, each once. With stream and type there is a row
	// for each type in each stream. Rows are named and sorted in the order of the keys.
	By []ReportKey

	// Category counts the messages of this category only, which reads no others. ""
	// counts them all. It may be the name of any category there is, of other clients
	// too.
	Category Category

	// Containing keeps the rows whose first name holds this text, as it is. "" keeps
	// all.
	Containing string

	// Sort is the order of the rows; "" is [SortByName].
	Sort ReportOrder

	// Limit bounds the rows that are returned. 0 is all of them, which may be as many
	// as there are streams.
	Limit int
}

func (q ReportQuery) validate() error {
	if len(q.By) == 0 {
		return NewInvalidError("report by", nil, "it is by something: stream, type or category")
	}
	for i, key := range q.By {
		switch {
		case key != ReportStream && key != ReportType && key != ReportCategory:
			return NewInvalidError("report by", string(key), "it is stream, type or category")
		case slices.Contains(q.By[:i], key):
			return NewInvalidError("report by", string(key), "it is there twice")
		}
	}
	switch q.Sort {
	case "", SortByName, SortByMessages, SortByBytes, SortByLast:
	default:
		return NewInvalidError("report order", string(q.Sort), "it is name, messages, bytes or last")
	}
	if q.Limit < 0 {
		return NewInvalidError("limit", q.Limit, "it is less than 0")
	}
	return errors.Join(validateText("category", string(q.Category)), validateText("containing", q.Containing))
}

// validateText refuses texts that no name in any store holds, since databases could not be
// asked for them.
func validateText(field, text string) error {
	switch {
	case !utf8.ValidString(text):
		return NewInvalidError(field, text, "it is not valid UTF-8")
	case strings.ContainsRune(text, 0):
		return NewInvalidError(field, text, "it holds U+0000")
	case len(text) > maxReportText:
		return NewInvalidError(field, text, fmt.Sprintf("%d bytes are too long: at most %d", len(text), maxReportText))
	}
	return nil
}

// maxReportText is above [MaxNameBytes]: other clients may have written longer names.
const maxReportText = 8 << 10

// A Report has the counts of a store's messages.
type Report struct {
	Rows []ReportRow

	// Groups is how many rows there are without the query's limit.
	Groups int64

	// Messages is how many were counted: those of the store, or of the query's
	// category.
	Messages int64
}

// A ReportRow is about the messages of one stream, type or category, or of a
// combination.
type ReportRow struct {
	// Names has a value for each key of [ReportQuery.By], in its order. Other clients may have
	// written names that ours may not.
	Names []string

	Messages int64
	Percent  float64 // of [Report.Messages], with two decimals

	// Bytes is about the size of data and metadata in the database, after its compression, and
	// without indexes.
	Bytes int64

	First, Last time.Time // when the earliest and the latest were written

	// LastPosition is the highest position in a stream; for a report by stream, the
	// stream's version. LastGlobalPosition is the highest in the store.
	LastPosition       Version
	LastGlobalPosition GlobalPosition
}

// Report counts the store's messages, at one moment. It reads every message of the store, or of
// the query's category, so it may take as long as that; ctx ends it. It holds up no writer.
//
// The error matches [ErrNotSupported] if the driver cannot, and [ErrInvalid] for a
// query that makes no sense.
func (s *Store) Report(ctx context.Context, q ReportQuery) (Report, error) {
	driver, err := s.reporter(ctx)
	if err == nil {
		err = q.validate()
	}
	if q.Sort == "" {
		q.Sort = SortByName
	}
	var r Report
	if err == nil {
		r, err = driver.Report(ctx, q)
	}
	if err != nil {
		return Report{}, fmt.Errorf("report: %w", err)
	}
	for i := range r.Rows {
		if r.Messages > 0 {
			r.Rows[i].Percent = math.Round(float64(r.Rows[i].Messages)/float64(r.Messages)*10_000) / 100
		}
	}
	return r, nil
}

// Categories returns the names of the categories that the store has messages of, in
// order: those that hold the text containing, or all if it is "". Other clients may
// have written names that ours may not. The error matches [ErrNotSupported] if the
// driver cannot.
func (s *Store) Categories(ctx context.Context, containing string) ([]Category, error) {
	driver, err := s.reporter(ctx)
	if err == nil {
		err = validateText("containing", containing)
	}
	var found []Category
	if err == nil {
		found, err = driver.Categories(ctx, containing)
	}
	if err != nil {
		return nil, fmt.Errorf("read categories: %w", err)
	}
	return found, nil
}

// Count returns how many messages of a category there are from q.From on that the
// filter lets through, and stops at q.Limit, which is at least 1 and may be as high
// as you like. The error matches [ErrNotSupported] if the driver cannot.
func (s *Store) Count(ctx context.Context, q CategoryQuery) (int64, error) {
	driver, err := s.reporter(ctx)
	if err == nil {
		err = errors.Join(q.Category.Validate(), validateFrom(q.From), q.Filter.Validate())
	}
	if err == nil && q.Limit < 1 {
		err = NewInvalidError("limit", q.Limit, "it is less than 1")
	}
	var n int64
	if err == nil {
		n, err = driver.Count(ctx, q)
	}
	if err != nil {
		return 0, fmt.Errorf("count category %s: %w", quoteName(q.Category), err)
	}
	return n, nil
}

func (s *Store) reporter(ctx context.Context) (ReportDriver, error) {
	used, err := s.use(ctx)
	if err != nil {
		return nil, err
	}
	driver, ok := used.(ReportDriver)
	if !ok {
		return nil, ErrNotSupported
	}
	return driver, nil
}
