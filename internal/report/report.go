// Package report counts the messages of a store by stream, type and category. dibs report prints
// the counts, and they are used to find consumers and their lag. To count the messages of a
// category in a service, use [messagestore.Store.Count].
package report

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dibs-go/dibs/messagestore"
)

// A Driver can count the messages of a store without reading them out. Every driver of this module
// can.
type Driver interface {
	messagestore.Driver

	// Report counts messages: see [Of], which fills in the percentages, and checks the query. It
	// sees every append that returned before it was called.
	Report(ctx context.Context, q Query) (Report, error)
}

// A Key names a property of messages. A report has a row for each of its values.
type Key string

// The keys of a report.
const (
	ByStream   Key = "stream"
	ByType     Key = "type"
	ByCategory Key = "category"
)

// An Order is how the rows of a report are sorted. Equal rows are sorted by their names, byte by
// byte.
type Order string

// The orders of a report.
const (
	SortByName     Order = "name"
	SortByMessages Order = "messages" // most first
	SortByBytes    Order = "bytes"    // most first
	SortByLast     Order = "last"     // the latest first
)

// A Query selects the messages to count.
type Query struct {
	// By has the keys of a row: one to three, each once. With stream and type there is a row
	// for each type in each stream. Rows are named and sorted in the order of the keys.
	By []Key

	// Category counts only the messages of this category, and reads no others. "" counts them all.
	// It may be any existing category, including those of other clients.
	Category messagestore.Category

	// Containing keeps the rows whose first name contains this exact text. "" keeps all.
	Containing string

	// Sort is the order of the rows; "" is [SortByName].
	Sort Order

	// Limit bounds the rows that are returned. 0 means all of them, which may be as many as there
	// are streams.
	Limit int
}

func (q Query) validate() error {
	if len(q.By) == 0 {
		return messagestore.NewInvalidError("report by", nil, "must be by something: stream, type or category")
	}
	for i, key := range q.By {
		switch {
		case key != ByStream && key != ByType && key != ByCategory:
			return messagestore.NewInvalidError("report by", string(key), "must be stream, type or category")
		case slices.Contains(q.By[:i], key):
			return messagestore.NewInvalidError("report by", string(key), "must not be named twice")
		}
	}
	switch q.Sort {
	case "", SortByName, SortByMessages, SortByBytes, SortByLast:
	default:
		return messagestore.NewInvalidError("report order", string(q.Sort), "must be name, messages, bytes or last")
	}
	if q.Limit < 0 {
		return messagestore.NewInvalidError("limit", q.Limit, "must be at least 0")
	}
	return errors.Join(validateText("category", string(q.Category)), validateText("containing", q.Containing))
}

// validateText refuses texts that cannot be in a name in any store, because databases do not accept
// them in a query.
func validateText(field, text string) error {
	switch {
	case !utf8.ValidString(text):
		return messagestore.NewInvalidError(field, text, "must be valid UTF-8")
	case strings.ContainsRune(text, 0):
		return messagestore.NewInvalidError(field, text, "must not contain U+0000")
	case len(text) > maxText:
		return messagestore.NewInvalidError(field, text, fmt.Sprintf("must be at most %d bytes, and is %d", maxText, len(text)))
	}
	return nil
}

// maxText is above [text.MaxNameBytes]: other clients may have written longer names.
const maxText = 8 << 10

// A Report has the counts of a store's messages.
type Report struct {
	Rows []Row

	// Groups is how many rows the report has without the query's limit.
	Groups int64

	// Messages is how many messages were counted in the store, or in the query's category.
	Messages int64
}

// A Row has the counts for one stream, type or category, or for a combination.
type Row struct {
	// Names has a value for each key of [Query.By], in its order. It may have names of other
	// clients that Dibs does not allow.
	Names []string

	Messages int64
	Percent  float64 // of [Report.Messages], with two decimals

	// Bytes is the approximate size of data and metadata in the database, after its compression,
	// and without indexes.
	Bytes int64

	First, Last time.Time // when the earliest and the latest were written

	// LastPosition is the highest position in a stream; for a report by stream, the
	// stream's version. LastGlobalPosition is the highest in the store.
	LastPosition       messagestore.Version
	LastGlobalPosition messagestore.GlobalPosition
}

// A Store is a [messagestore.Store], or has its method Driver.
type Store interface {
	Driver() (messagestore.Driver, error)
}

// Of returns the counts of the store's messages at one moment. It reads every message of the store,
// or of the query's category, so it may take long; ctx ends it. It does not block writers.
//
// The error matches [messagestore.ErrNotSupported] if the driver cannot count, and
// [messagestore.ErrInvalid] if the query is invalid.
func Of(ctx context.Context, store Store, q Query) (Report, error) {
	r, err := of(ctx, store, q)
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

func of(ctx context.Context, store Store, q Query) (Report, error) {
	switch {
	case store == nil:
		return Report{}, messagestore.NewInvalidError("store", nil, "must not be nil")
	case ctx == nil:
		return Report{}, messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	used, err := store.Driver()
	if err != nil {
		return Report{}, err
	}
	driver, ok := used.(Driver)
	if !ok {
		return Report{}, messagestore.ErrNotSupported
	}
	if err := q.validate(); err != nil {
		return Report{}, err
	}
	if q.Sort == "" {
		q.Sort = SortByName
	}
	return driver.Report(ctx, q)
}
