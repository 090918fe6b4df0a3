// Package cases has the cases of the bench, one file for each kind of work. A kind is a
// function that returns its cases; [All] lists the kinds.
package cases

import "github.com/dibs-go/dibs/bench/measure"

// The names of contenders in the tables.
const (
	dibs      = "Dibs"
	messageDB = "message-db"
)

// All returns every case, in the order of the report.
func All() []measure.Case {
	var all []measure.Case
	for _, kind := range []func() []measure.Case{
		Write, Streams, Processes, Reserve, Intent, Inbox, Saga, Readers, WakeUp, Queue, Relay, Serve, Account, SQLite,
	} {
		all = append(all, kind()...)
	}
	return all
}
