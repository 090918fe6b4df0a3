package postgres

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
)

// The marks in the last row of a page are those of its two ends, or the row is refused.
func FuzzMarksAreThoseOfTheEndsOrRefused(f *testing.F) {
	const (
		first  = `{"id" : "0198c6b1-4b4c-7000-8000-000000000001", "stream" : "account-1", "position" : 0, "globalPosition" : `
		second = `{"id" : "0198c6b1-4b4c-7000-8000-000000000002", "stream" : "account-2", "position" : 3, "globalPosition" : `
		mark   = first + `7, "time" : 1755000000000000}`
	)
	f.Add([]byte(`[` + mark))             // cut off
	f.Add([]byte("[]"))                   // none
	f.Add([]byte("null"))                 // null
	f.Add([]byte(`[` + mark + `, null]`)) // null among them
	f.Add([]byte(`[` + mark + `]`))       // one
	// position too large
	f.Add([]byte(`[` + first + `9223372036854775808, "time" : 1755000000000000}]`))
	// three
	f.Add([]byte(`[` + mark + `, {"id":"none"}, ` + mark + `]`))
	// time infinite
	f.Add([]byte(`[` + first + `7, "time" : null}, ` + second + `7, "time" : null}]`))
	// times beyond all
	f.Add([]byte(`[` + first + `7, "time" : -9223372036854775808}, ` + second + `7, "time" : 9223372036854775807}]`))
	// two
	f.Add([]byte(`[` + mark + `, ` + second + `19, "time" : 1755000000000000}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, last, err := readMarks(data)
		if len(data) == 0 { // as of a page without a filter
			require.NoError(t, err)
			require.Zero(t, first)
			require.Zero(t, last)
			return
		}
		if err != nil {
			require.ErrorIs(t, err, errNoMessage)
			require.Zero(t, first)
			require.Zero(t, last)
			return
		}
		var all []json.RawMessage
		require.NoError(t, json.Unmarshal(data, &all))
		require.NotEmpty(t, all)
		requireMark(t, first, all[0])
		requireMark(t, last, all[len(all)-1])
		requireMark(t, first, writtenMark(t, first))
		requireMark(t, last, writtenMark(t, last))
	})
}

// requireMark demands that want is read of raw where it is alone.
func requireMark(t *testing.T, want messagestore.Mark, raw json.RawMessage) {
	t.Helper()
	first, last, err := readMarks(slices.Concat([]byte("["), raw, []byte("]")))
	require.NoError(t, err)
	require.Equal(t, want, first, "%s", raw)
	require.Equal(t, want, last, "%s", raw)
}

// writtenMark writes a mark as dibs.read_category does.
func writtenMark(t *testing.T, m messagestore.Mark) json.RawMessage {
	t.Helper()
	written := struct {
		ID             uuid.UUID `json:"id"`
		Stream         string    `json:"stream"`
		Position       int64     `json:"position"`
		GlobalPosition int64     `json:"globalPosition"`
		Time           *int64    `json:"time"`
	}{m.ID, string(m.Stream), int64(m.Position), int64(m.GlobalPosition), nil}
	if !m.Time.IsZero() {
		micros := m.Time.UnixMicro()
		written.Time = &micros
	}
	return must.Do(json.Marshal(written))(t)
}
