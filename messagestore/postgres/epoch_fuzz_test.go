package postgres

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

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
	raw, err := json.Marshal(written)
	require.NoError(t, err)
	return raw
}

// A timeline is the number that stands second in an epoch, or is not known; and the latest
// of two never goes back.
func FuzzATimelineIsTheEpochsOrNone(f *testing.F) {
	form := regexp.MustCompile(`(?s)^([^/]*)/([0-9A-Fa-f]+)(/.*)?$`)
	want := func(epoch string) *timeline {
		match := form.FindStringSubmatch(epoch)
		if match == nil {
			return nil
		}
		number, ok := new(big.Int).SetString(match[2], 16)
		if !ok || number.Cmp(big.NewInt(math.MaxUint32)) > 0 {
			return nil
		}
		return &timeline{match[1], number.Uint64()}
	}
	f.Add("7408123456789012345/00000005/0.", "7408123456789012346/00000001/0.")  // another system
	f.Add("7408123456789012345/FFFFFFFF/0.", "7408123456789012345/100000000/0.") // greatest
	f.Add("7408123456789012345/00000001/0.", "7408123456789012345//0.")          // in recovery
	f.Add("7408123456789012345/00000003/0.", "7408123456789012345/00000002/0.")  // left
	f.Add("/"+strings.Repeat("0", 40)+"1", "\xff/1\n")                           // many zeros
	f.Add("", "00000001")                                                        // no epoch
	f.Add("//0.", "//0.")                                                        // no rights
	f.Add("7408123456789012345/0x1/0.", "7408123456789012345/+1")                // other spellings
	f.Add("7408123456789012345/00000001/0.", "7408123456789012345/00000002/0.")  // promoted
	// raised
	f.Add("7408123456789012345/0000000A/0.", "7408123456789012345/0000000A/1.0198c6b1-4b4c-7000-8000-000000000001")
	f.Fuzz(func(t *testing.T, before, after string) {
		one, two := timelineOf(before), timelineOf(after)
		require.Equal(t, want(before), one)
		require.Equal(t, want(after), two)

		require.False(t, one.leftFor(one))
		require.False(t, one.leftFor(two) && two.leftFor(one))
		var l latest
		require.Equal(t, one, l.see(one))
		seen := two
		if two == nil || two.leftFor(one) {
			seen = one
		}
		require.Equal(t, seen, l.see(two))
		require.False(t, seen.leftFor(one))
		require.Equal(t, seen, l.see(nil), "what is not known says nothing")
	})
}
