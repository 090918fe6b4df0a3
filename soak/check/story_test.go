package check_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/soak/check"
	"github.com/dibs-go/dibs/soak/history"
)

func TestAStoryIsOfThoseConcernedAndNobodyElse(t *testing.T) {
	t.Parallel()
	w := &world{}
	for n := range int64(50) {
		w.write(1_000_000*n+1, 1_000_000*n+20, stream, anyVersion, 1)
	}
	lost := w.try(60_000_000, 61_000_000, stream, anyVersion, 1, history.Info, "")
	lost.end.Note = "the connection was lost"
	w.do("harness", 60_500_000, 60_600_000, history.OK, history.Event{Func: history.Fault, Class: "kill-server"}, history.Event{})
	w.do("harness", 90_500_000, 90_600_000, history.OK, history.Event{Func: history.Fault, Class: "pause"}, history.Event{})
	w.resolve(62_000_000, 63_000_000, lost, history.Written)
	w.write(70_000_000, 70_000_001, "account-2", anyVersion, 1)
	v := w.verdict(t, nil)
	require.Len(t, v.Violations, 1, "%v", v)
	require.Equal(t, `message 01000000-0000-4000-0000-000000000065 of account-1 was acknowledged and is not there`, v.Violations[0].What)
	require.Equal(t, strings.Split(`    0.060000 s  writer-2 begins to write 1 to account-1 (01000000-0000-4000-0000-000000000065), at any version (102)
    0.060500 s  harness begins fault kill-server
    0.061000 s  writer-2 does not know the outcome: the connection was lost (102)
    0.062000 s  writer-3 resolves writer-2:102 (105)
    0.063000 s  writer-3 is told that it was written: account-1 is at version 0, global position 0 (105)
  in the end  message 01000000-0000-4000-0000-000000000065 is not there`, "\n"), v.Violations[0].Story)
}

func TestAStoryOfABatchNamesTheMessageThatItIsAbout(t *testing.T) {
	t.Parallel()
	w := &world{}
	a := w.write(10, 20, stream, anyVersion, 40)
	lost := w.row(a, 39)
	w.rows = w.rows[:39]
	v := w.verdict(t, &check.Config{Stories: 1})
	for _, x := range v.Violations {
		if x.Invariant != check.Lost {
			continue
		}
		require.Contains(t, x.Story[0], "begins to write 40 to account-1 ("+lost.ID.String()+"), at any version")
		return
	}
	t.Fatal("it was not found to be lost")
}

func TestViolationsAreCountedBeyondTheStories(t *testing.T) {
	t.Parallel()
	w := &world{}
	for range 10 {
		w.commit(stream, w.message())
	}
	w.write(10, 20, "account-2", anyVersion, 1)
	v := w.verdict(t, &check.Config{Stories: 2})
	require.EqualValues(t, 10, v.Broken[check.Phantom])
	require.Len(t, v.Violations, 2)
	require.Contains(t, v.String(), "FAILED: a promise was broken")
	require.Contains(t, v.String(), "2 phantom                   11         10")
}

func TestInputsThatCannotBeReadAreNoVerdict(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	none := func(func(*check.Row, error) bool) {}
	for name, c := range map[string]struct {
		text string
		rows iter.Seq2[*check.Row, error]
		want string
	}{
		"no histories":             {"", none, "no histories in"},
		"no table":                 {"1 ok effect 1 key=k\n", nil, "there is none"},
		"a table that breaks off":  {"1 ok effect 1 key=k\n", func(yield func(*check.Row, error) bool) { yield(nil, broken) }, "broken"},
		"a line that is no event":  {"1 ok effect\n", none, "p.history: line 1"},
		"an operation of no kind":  {"1 ok other 1\n", none, `unknown function "other"`},
		"a write of no stream":     {"1 ok write 1\n", none, "a write of no stream"},
		"a delivery of no message": {"1 ok handle 1 stream=a-1\n", none, "a handle is of one message"},
		"a reservation of no key":  {"1 ok reserve 1 stream=a-1\n", none, "a reservation names a key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if c.text != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "p"+history.Ending), []byte(c.text), 0o600))
			}
			_, err := check.Run(t.Context(), check.Inputs{Histories: dir, Rows: c.rows}, nil)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestACheckEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := &world{}
	w.write(10, 20, stream, anyVersion, 1)
	dir := t.TempDir()
	w.files(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := check.Run(ctx, check.Inputs{Histories: dir, Rows: w.table()}, nil)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDeliveriesOfARunThatIsNotInTheHistoryAreFound(t *testing.T) {
	t.Parallel()
	w := &world{}
	a := w.write(10, 20, stream, anyVersion, 1)
	l := w.consume("consumer-1", "audit", 5, 100, 10, 10)
	l.base.Run = 999
	l.handle(30, 40, w.row(a, 0))
	v := w.verdict(t, nil)
	require.Contains(t, v.String(), "a consumer's events name the run consumer-1:999, of which there is nothing")
}
