// Package intents is the soak of package intent: clients reserve, extend, confirm and release
// intents while they, and the server, are killed and stopped; a resource outside the store checks
// fencing tokens; and a checker reads their records.
//
// [Run] leaves a history: the calls of each process, including the resource, the messages of all
// intents, and the rows of the transactions that confirmed some. [promise.Check] compares it with
// the queries of the folder promises, which are independent of the code that the clients run:
// schema.sql describes the tables, tables.sql folds the streams into leases, and the first line of
// each other file says what it checks.
//
// All times are microseconds of the machine's clock, which is also the server's clock. If a run
// moves the server's clock, the rules that compare the two are left out.
package intents

import (
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// The load, the same for each run.
const (
	ttl      = 500 * time.Millisecond
	turn     = 100 * time.Millisecond
	margin   = ttl / 10 // that a holder stops before its lease ends
	keys     = 200
	skew     = 1.2             // of Zipf's law
	keyTime  = 4 * time.Second // after which clients turn to fresh keys
	maxWait  = time.Second     // of a request that stands in a line
	soonest  = ttl / 5         // the shortest stop of a process
	longest  = 3 * ttl         // the longest
	healTime = ttl + 2*time.Second
)

// Category is the category of the intents.
const Category messagestore.Category = "payment:intent"

// table has the rows that are written in the transactions of confirmations.
const table = "payments"
