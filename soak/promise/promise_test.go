package promise_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/soak/promise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder promises that each call is answered, and that none is of a process that has failed.
var folder = fstest.MapFS{
	"schema.sql":  {Data: []byte("create table if not exists failed (process text, since integer)")},
	"tables.sql":  {Data: []byte("drop table if exists open; create table open as select * from calls where ended = 4611686018427387903")},
	"figures.sql": {Data: []byte("select 'calls', 'calls made', count(*) from calls union all select 'ok', '  answered', count(*) from calls where answer = 'ok'")},
	"A1.sql":      {Data: []byte("-- each call is answered\nselect 'call ' || op || ' of ' || process from open")},
	"A2.sql":      {Data: []byte("-- who has failed calls no more\nselect c.process from calls c join failed f on f.process = c.process and c.at > f.since")},
}

func open(t *testing.T, dir string) *promise.History {
	t.Helper()
	h, err := promise.Open(t.Context(), dir, folder)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

const two = `{"op":1,"at":10,"call":"take"}
{"op":1,"at":12,"call":"take","is":"ok","items":[7]}
{"op":2,"at":20,"call":"take"}
`

func TestATornLineIsLeftOutAndAnotherIsNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "worker-1"+promise.Ending)
	require.NoError(t, os.WriteFile(path, []byte(two+`{"op":2,"at"`), 0o600))
	h := open(t, dir)
	require.NoError(t, h.Gather(t.Context()))
	counted, err := h.Figures(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, counted.Of("calls"))
	require.Equal(t, 1, counted.Of("ok"))

	// The rest of it comes later.
	require.NoError(t, os.WriteFile(path, []byte(two+`{"op":2,"at":21,"call":"take","is":"ok"}`+"\n"), 0o600))
	require.NoError(t, h.Gather(t.Context()))
	counted, err = h.Figures(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, counted.Of("ok"))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "worker-2"+promise.Ending), []byte("{\n"), 0o600))
	require.ErrorContains(t, h.Gather(t.Context()), "worker-2")
}

// rows are the rows of a query of the store.
type rows struct{ left [][]any }

func (r *rows) Next() bool { return len(r.left) > 0 }

func (r *rows) Values() ([]any, error) {
	values := r.left[0]
	r.left = r.left[1:]
	return values, nil
}

func (r *rows) Err() error { return nil }

func TestAHistoryIsHeldAgainstEachPromise(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "worker-1"+promise.Ending), []byte(two), 0o600))
	h := open(t, dir)
	require.NoError(t, h.Gather(t.Context()))

	v, err := h.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[promise.Rule]int{"A1": 1}, v.Broken)
	require.Regexp(t, `(?m)^A1 each call is answered +a promise was broken 1 times$`, v.String())
	require.Regexp(t, `(?m)^A2 who has failed calls no more +holds$`, v.String())
	require.Contains(t, v.String(), "A1: call 2 of worker-1")

	require.NoError(t, h.Fill(t.Context(), "failed", &rows{[][]any{{"worker-1", 11}, {"worker-2", 0}}}))
	v, err = h.Check(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[promise.Rule]int{"A1": 1, "A2": 1}, v.Broken)

	// The file is all that a check needs.
	require.NoError(t, os.Remove(filepath.Join(dir, "worker-1"+promise.Ending)))
	again, err := promise.Check(t.Context(), dir, folder)
	require.NoError(t, err)
	require.Equal(t, v, again)
}

func TestGoalsThatAreMissedAreNamed(t *testing.T) {
	t.Parallel()
	counted := promise.Figures{{Key: "calls", Name: "calls made", N: 2}, {Key: "ok", Name: "  answered", N: 1}}
	require.Equal(t, []string{"other: 0 of 1"}, counted.Missed(promise.Goals{"other": 1, "none": 0}))
	goals := promise.Goals{"calls": 2, "ok": 3}
	require.Equal(t, []string{"answered: 1 of 3"}, counted.Missed(goals))
	require.Regexp(t, `answered +3 +1   missed`, counted.Table(goals))
	require.Equal(t, "after 1s: answered: 1 of 3", counted.Progress(goals, time.Second))
	require.Equal(t, "after 1s: all goals are reached", counted.Progress(goals.With(promise.Goals{"ok": 1}), time.Second))
	require.Equal(t, promise.Goals{"calls": 0, "ok": 2}, counted.Left(goals))
	require.Equal(t, promise.Goals{"calls": 20, "ok": 30}, goals.Times(10))
	require.Equal(t, 3, goals["ok"], "Times and With change nothing")
	require.Equal(t, 2, counted.Plus(counted).Of("ok"))
	require.Equal(t, counted, promise.Figures(nil).Plus(counted))
}
