// Package compat holds the schema message_store to the behaviour of message-db: each case runs
// the same SQL in a database with the real message-db and in one of ours, and compares
// everything that a client can see.
//
//	{does: "positions are inclusive", sql: steps{
//		{sql: "select MS.write_message($1, 'a-1', 'T', '{}')", args: []any{id(1)}},
//		{sql: "select id from MS.get_stream_messages('a-1', 0)"},
//	}}
package compat_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
)

func TestMain(m *testing.M) {
	if testkit.Changed() { // see testkit.NeedsChange
		goleak.VerifyTestMain(m)
	}
}
