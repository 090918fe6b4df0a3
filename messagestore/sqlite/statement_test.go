package sqlite_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// However many messages there are, no statement goes through all of them, or through
// a whole stream to find its end, or sorts.
func TestStatementsGoByAnIndex(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	column := func(statement string, index int) []string { return columnOf(t, db, statement, index) }
	for name, statement := range sqlite.Statements {
		t.Run(name, func(t *testing.T) {
			for _, step := range column("EXPLAIN QUERY PLAN "+statement, 3) {
				if strings.HasPrefix(name, "category") && strings.Contains(step, "dibs_messages") {
					require.Contains(t, step, "INDEX dibs_messages_category (category=? AND ")
				}
				require.NotContains(t, step, "SCAN dibs_messages")
				require.NotContains(t, step, "TEMP B-TREE")
			}
			if name != "category_horizon" { // which aggregates a part that is bounded
				require.NotContains(t, column("EXPLAIN "+statement, 1), "AggStep", "max() goes through the whole stream")
			}
		})
	}
}

// However many items are open, no step of a take goes through all of them.
func TestStatementsOfATakeGoByAnIndex(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for name, statement := range sqlite.QueueStatements {
		t.Run(name, func(t *testing.T) {
			for _, step := range columnOf(t, db, "EXPLAIN QUERY PLAN "+statement, 3) {
				require.NotRegexp(t, `SCAN dibs|TEMP B-TREE|(open|sessions) USING PRIMARY KEY \(queue=\?\)`, step)
			}
		})
	}
}

func columnOf(t *testing.T, db *sql.DB, statement string, index int) (values []string) {
	t.Helper()
	rows := must.Do(db.Query(statement, make([]any, 10)...))(t)
	defer rows.Close()
	columns := must.Do(rows.Columns())(t)
	for rows.Next() {
		row := make([]any, len(columns))
		var value sql.NullString
		for i := range row {
			row[i] = new(any)
		}
		row[index] = &value
		require.NoError(t, rows.Scan(row...))
		values = append(values, value.String)
	}
	require.NoError(t, rows.Err())
	return values
}
