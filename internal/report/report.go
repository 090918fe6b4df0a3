// Package report counts the messages of a store by stream, type and category. dibs report prints
// the counts, and they are used to find consumers and their lag. To count the messages of a
// category in a service, use Store.Count of package messagestore, which imports this package.
package report

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"
)

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
	Category string

	// Containing keeps the rows whose first name contains this exact text. "" keeps all.
	Containing string

	// Sort is the order of the rows; "" is [SortByName].
	Sort Order

	// Limit bounds the rows that are returned. 0 means all of them, which may be as many as there
	// are streams.
	Limit int
}

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
	LastPosition       int64
	LastGlobalPosition int64
}

// A Driver has the method of messagestore.Driver that counts.
type Driver interface {
	Report(ctx context.Context, q Query) (Report, error)
}

// Of counts the messages of a messagestore.Store, at one moment. It reads every message of the store,
// or of the query's category, so it may take long; ctx ends it. It does not block writers.
func Of[D Driver](ctx context.Context, store interface{ Driver() (D, error) }, q Query) (Report, error) {
	q.Sort = cmp.Or(q.Sort, SortByName)
	var r Report
	driver, err := store.Driver()
	if err == nil {
		r, err = driver.Report(ctx, q)
	}
	if err != nil {
		return Report{}, fmt.Errorf("report: %w", err)
	}
	for i := range r.Rows {
		r.Rows[i].Percent = math.Round(float64(r.Rows[i].Messages)/float64(r.Messages)*10_000) / 100
	}
	return r, nil
}
