package sqlite_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

func TestContentIsKeptByteForByte(t *testing.T) {
	t.Parallel()
	driver := open(t, newFile(t), nil)
	data := json.RawMessage("{ \"b\":1.00,\n\"a\" : 1e2, \"b\": \"\\u00e9 é 😀\" }\n")
	a := appendOf("account-1", messagestore.NoStream, 1)
	a.Records[0].Data, a.Records[0].Metadata = data, json.RawMessage(`{"properties": {"n": 12345678901234567890.10}}`)
	must.Do(driver.Append(t.Context(), a))(t)

	m := must.Do(driver.Last(t.Context(), "account-1", ""))(t)

	require.Equal(t, string(data), string(m.Data))
	require.Equal(t, json.Number("12345678901234567890.10"), m.Metadata.Properties["n"])
}

// A filter that lets little through must not make one page look at everything.
func TestFilteredPageLooksAtABoundedPart(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	driver := open(t, path, nil)
	execute(t, database(t, path), `
		WITH RECURSIVE numbers (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
		INSERT INTO dibs_messages (stream_name, category, position, type, id, group_hash, time)
		SELECT 'account-1', 'account', n, 'Deposited', randomblob(16), 0, 0 FROM numbers`, messagestore.MaxReadMessages+500)
	wanted := appendOf("account-wanted", messagestore.NoStream, 1)
	wanted.Records[0].Type = "Wanted"
	w := must.Do(driver.Append(t.Context(), wanted))(t)
	q := messagestore.CategoryQuery{Category: "account", Limit: 10, Filter: messagestore.Filter{Types: []string{"Wanted"}}}

	first := must.Do(driver.ReadCategory(t.Context(), q))(t)
	q.From = first.Next
	second := must.Do(driver.ReadCategory(t.Context(), q))(t)

	require.Empty(t, first.Messages)
	require.True(t, first.More)
	require.EqualValues(t, messagestore.MaxReadMessages+1, first.Next)
	require.Len(t, second.Messages, 1)
	require.False(t, second.More)
	require.Equal(t, w.GlobalPosition+1, second.Next)
}
