package history

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line is no event, or one that is written as it was read, and has no part in the line.
func FuzzALineIsAnEventOrRefused(f *testing.F) {
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return // it is more than one
		}
		var e Event
		err := parseLine(line, &e)
		requireLine(t, line, &e, err)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}

		written, err := e.AppendText(nil)

		require.NoError(t, err)
		require.NotContains(t, string(written), "\n")
		var again Event
		taken := slices.Clone(written)
		require.NoError(t, parseLine(taken, &again), "%q", written)
		clear(taken)
		require.Equal(t, e, again, "%q", written)
		rewritten, err := again.AppendText(nil)
		require.NoError(t, err)
		require.Equal(t, string(written), string(rewritten))
	})
}

// requireLine demands that a file with the line in it, and once more without its end, has
// that event and no other, or is refused as the line was.
func requireLine(t *testing.T, line []byte, want *Event, wrong error) {
	t.Helper()
	var read []Event
	var failed error
	for e, err := range lines(bytes.NewReader(slices.Concat(line, []byte("\n"), line)), "writer-1") {
		if err != nil {
			failed = err
			break
		}
		read = append(read, *e)
	}
	if wrong != nil {
		require.EqualError(t, failed, "line 1: "+wrong.Error())
		require.Empty(t, read)
		return
	}
	require.NoError(t, failed)
	whole := *want
	whole.Proc = "writer-1"
	require.Equal(t, []Event{whole}, read)
}
