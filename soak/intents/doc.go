// Package intents is the soak of package intent: clients that reserve, extend, confirm and release
// intents while they, and the server, are killed and stopped, a resource outside the store that
// looks at fencing tokens, and a checker of what they wrote down.
//
// [Run] leaves a history: the calls of each process, the resource among them, the messages of all
// intents, and the rows of the transactions that confirmed some. [promise.Check] holds it against
// the queries of the folder promises, which know nothing of the code that the clients run:
// schema.sql says what there is, tables.sql folds the streams into leases, and the first line of
// each other file says what it looks at.
//
// All times are microseconds of the machine's clock, which is the server's too, unless a run moves
// that one: then the rules that compare the two are left out.
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

// Category has the intents.
const Category messagestore.Category = "payment:intent"

// table has the rows that are written in the transactions of confirmations.
const table = "payments"
