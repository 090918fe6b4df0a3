// Package check has the promises of the store and its consumers, each as a query of the history of
// a run. Package promise explains how a folder of promises is read; docs/guarantees.md has the text
// for each id.
//
// The history has the calls of package history, including the nemesis's, the content of the store
// at the end, and the harness's measurements ([Facts]). The outcome of a write is the answer that
// its process got, or unknown; the answer of Resolve counts.
//
// # What a pass says
//
// No promise was broken in this run, and the [Goals] were reached: enough writes were done, refused
// and unknown, and enough processes were killed, to make the result meaningful. It is not a proof.
//
// # To look into a breach
//
// A finding names calls as process:op, and messages by their ids. This shows everything that was
// done with a message:
//
//	sqlite3 history.db "select process, op, call, at, ended, answer, asked, told from calls
//	    where asked like '%ID%' or told like '%ID%' order by at"
package check

import (
	"context"
	"embed"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/promise"
)

//go:embed promises
var folder embed.FS

// Promises is the folder of queries.
var Promises = testkit.Must(fs.Sub(folder, "promises"))

// A Row is a message in the store after the run, or a removed state of a group.
type Row struct {
	Stream   messagestore.StreamName
	Position messagestore.Version
	Global   messagestore.GlobalPosition
	ID       uuid.UUID
	Value    uint64 // the same of its data as in history.Message
	Hash     int64  // of its content, by history.Hash
	Effect   string // the idempotence key whose effect in the store this message is, "" for none
	State    string // the data of a checkpoint, "" for any other message
	Time     int64  // by the store's clock, in microseconds
}

const slots = 32 // of a category, for a group that processes join

// Values returns the values of a row for the table of messages.
func (r *Row) Values() ([]any, error) {
	return []any{
		string(r.Stream), string(r.Stream.Category()), int64(r.Position), int64(r.Global), r.ID.String(), int64(r.Value), r.Hash, //nolint:gosec // its values are small
		r.Effect, r.Stream.GroupMember(slots), r.State, r.Time,
	}, nil
}

// Facts are the measurements of a harness, in addition to the calls. Each is a row: kind, name,
// number and time.
type Facts [][]any

// Add adds a measurement.
func (f *Facts) Add(what, name string, n int64) { f.AddAt(what, name, n, 0) }

// AddAt adds a measurement, with its time since the beginning.
func (f *Facts) AddAt(what, name string, n int64, at time.Duration) {
	*f = append(*f, []any{what, name, n, at.Microseconds()})
}

// Note records the facts, and the categories with messages that are written without a history, such
// as the positions of consumers: their writers are not checked.
func Note(ctx context.Context, h *promise.History, facts Facts, unrecorded ...messagestore.Category) error {
	for _, fact := range facts {
		if err := h.Exec(ctx, "insert into facts values (?, ?, ?, ?)", fact...); err != nil {
			return err
		}
	}
	for _, category := range unrecorded {
		if err := h.Exec(ctx, "insert into unrecorded values (?)", string(category)); err != nil {
			return err
		}
	}
	return nil
}

// Goals returns how much must happen in a run to make it meaningful; a scale below 1 is for a part
// of a run.
func Goals(scale float64) promise.Goals {
	goals := promise.Goals{"healthy": 60, "facts:lag": 1, "facts:usable": 2, "facts:goroutines": 1, "facts:memory": 1, "facts:searched": 1}
	for key, whole := range map[string]int{
		"done:write": 1000, "done:write-tx": 100, "done:version": 100, "done:read": 100, "done:resolve": 20, "done:handle": 1000, "done:position": 20,
		"done:reserve": 100, "done:effect": 50, "done:park": 5, "unknown": 50, "wereWritten": 10, "wereNot": 10, "conflicts": 100, "batches": 100,
		"several": 50, "rolledBack": 20, "duplicates": 10, "idConflicts": 2, "takeovers": 20, "reused": 5,
	} {
		goals[key] = max(1, int(float64(whole)*scale))
	}
	return goals
}
