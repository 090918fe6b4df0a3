package history

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line is no event, or one that is written as it was read, and has no part in the line.
func FuzzALineIsAnEventOrRefused(f *testing.F) {
	f.Add([]byte("1 ok \xff=\x00%20, 1 class=%00%0A%FF%25%2C%7f== target=\xed\xa0\x80 ref=%2C,0 note=")) // bytes of all kinds
	// conflict
	f.Add([]byte("812345698902 fail write 2 class=conflict actual=5 stream=account-2 note=write%20account-2:%20version%20conflict"))
	// handled
	f.Add([]byte("812345798901 ok handle 19 consumer=ledger category=account size=2 member=1 generation=3 run=4 attempt=1 key=a%2Cb value=18446744073709551615 stream=account-1 id=0198C6B1-4B4C-7000-8000-000000000001,7,ffffffffffffffff,3,99"))
	f.Add([]byte("1 ok write 1 stream=a-1 id=0198c6b1-4b4c-7000-8000-000000000001,1,1,1")) // message of four parts
	// numbers in other spellings
	f.Add([]byte("-0 ok read 01 stream= version=+7 global=-9223372036854775808 id={0198c6b1-4b4c-7000-8000-000000000001},007,0A,0,0 id=urn:uuid:0198c6b1-4b4c-7000-8000-000000000002,0,0"))
	// resolved
	f.Add([]byte("812345798902 info resolve 20 ref=writer-3.1,17 stream=account-1 id=0198c6b1-4b4c-7000-8000-000000000001,0,0 id=0198c6b1-4b4c-7000-8000-000000000002,0,0"))
	f.Add([]byte("1 ok write 1 class=won  ")) // spaces at the end
	f.Add([]byte("1 ok write 1 class=a%4"))   // torn escape
	// write
	f.Add([]byte("812345678901 invoke write 1 stream=account-1 expected=-1 id=0198c6b1-4b4c-7000-8000-000000000001,7,a1b2c3d4e5f60718"))
	// written
	f.Add([]byte("812345698901 ok write 1 stream=account-1 version=4 global=99 duplicate=1 stream=account-2 version=0 global=100"))
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
