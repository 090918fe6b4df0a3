package history_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/soak/history"
)

func TestAnyEventIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		proc := uuid.NewString()
		w, err := history.Create(dir, proc)
		require.NoError(t, err)
		events := rapid.SliceOfN(rapid.Custom(event), 0, 5).Draw(t, "events")
		for i := range events {
			op, err := w.Begin(&events[i])
			require.NoError(t, err)
			require.EqualValues(t, i+1, op)
		}
		require.NoError(t, w.Close())

		var read []history.Event
		for e, err := range history.Events(filepath.Join(dir, proc+history.Ending)) {
			require.NoError(t, err)
			require.Equal(t, proc, e.Proc)
			e.Proc = ""
			read = append(read, *e)
		}
		if len(events) == 0 {
			require.Empty(t, read)
			return
		}
		require.Equal(t, events, read)
	})
}

func event(t *rapid.T) history.Event {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a b", "%", "a,b=c\n", "\xff\x00", "ü", "%zz"}))
	number := rapid.IntRange(-3, 1<<40)
	message := rapid.Custom(func(t *rapid.T) history.Message {
		return history.Message{
			ID: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")), Value: rapid.Uint64().Draw(t, "value"),
			Hash: rapid.Uint64().Draw(t, "hash"), Position: messagestore.Version(number.Draw(t, "position")),
			Global: messagestore.GlobalPosition(number.Draw(t, "global")),
		}
	})
	one := rapid.Custom(func(t *rapid.T) history.Append {
		return history.Append{
			Stream: messagestore.StreamName(text.Draw(t, "stream")), Expected: messagestore.Version(number.Draw(t, "expected")),
			Version: messagestore.Version(number.Draw(t, "version")), Global: messagestore.GlobalPosition(number.Draw(t, "global")),
			Duplicate: rapid.Bool().Draw(t, "duplicate"), Messages: none(rapid.SliceOfN(message, 0, 60).Draw(t, "messages")),
		}
	})
	return history.Event{
		Func:    rapid.SampledFrom([]history.Func{history.Write, history.Handle, "other"}).Draw(t, "func"),
		Appends: none(rapid.SliceOfN(one, 0, 3).Draw(t, "appends")),
		Ref:     history.Ref{Proc: text.Draw(t, "ref"), Op: rapid.Uint64().Draw(t, "op")},
		Class:   text.Draw(t, "class"), Target: text.Draw(t, "target"), Note: text.Draw(t, "note"),
		Actual: messagestore.Version(number.Draw(t, "actual")), Consumer: text.Draw(t, "consumer"),
		Category: messagestore.Category(text.Draw(t, "category")), Alone: rapid.Bool().Draw(t, "alone"),
		Run: rapid.Uint64().Draw(t, "run"), Interval: number.Draw(t, "interval"),
		Batch: number.Draw(t, "batch"), Attempt: number.Draw(t, "attempt"),
		Position: messagestore.GlobalPosition(number.Draw(t, "position")), Key: text.Draw(t, "key"), Value: rapid.Uint64().Draw(t, "value"),
	}
}

func none[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func TestATornLastLineIsLeftOut(t *testing.T) {
	t.Parallel()
	whole := write(t, func(w *history.Writer) {
		begin(t, w, &history.Event{Func: history.Version, Appends: []history.Append{{Stream: "account-1"}}})
		begin(t, w, &history.Event{Func: history.Version, Appends: []history.Append{{Stream: "account-2"}}})
	})
	content, err := os.ReadFile(whole)
	require.NoError(t, err)
	second := bytes.IndexByte(content, '\n') + 1
	for end := second; end < len(content); end++ {
		torn := filepath.Join(t.TempDir(), "torn"+history.Ending)
		require.NoError(t, os.WriteFile(torn, content[:end], 0o600))
		var n int
		for _, err := range history.Events(torn) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 1, n)
	}
}

func TestALineThatIsNoEventIsAnError(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"", "x", "1 invoke write", "x invoke write 1", "1 begin write 1", "1 ok write x", "1 ok write 1 nothing", "1 ok write 1 other=1",
		"1 ok write 1 version=1", "1 ok write 1 id=a,1,1", "1 ok write 1 stream=a-1 id=a,1,1", "1 ok write 1 size=x", "1 ok write 1 class=%4",
		"1 ok write 1 class=%zz", "1 ok write 1 stream=a-1 id=" + uuid.NewString() + ",1", "1 ok write 1 stream=a-1 id=" + uuid.NewString() + ",1,1,1,1,1",
	} {
		path := filepath.Join(t.TempDir(), "p"+history.Ending)
		require.NoError(t, os.WriteFile(path, []byte(line+"\n"), 0o600))
		var failed error
		for _, err := range history.Events(path) {
			failed = err
		}
		require.ErrorContains(t, failed, "line 1", line)
	}
}

func TestAnOperationIsItsInvokeAndItsEnd(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	path := write(t, func(w *history.Writer) {
		one := begin(t, w, &history.Event{Func: history.Write, Appends: []history.Append{
			{Stream: "account-1", Expected: 3, Messages: []history.Message{{ID: id, Value: 7, Hash: 8}}},
		}})
		two := begin(t, w, &history.Event{Func: history.Write, Appends: []history.Append{{Stream: "account-2"}}})
		begin(t, w, &history.Event{Func: history.Version, Appends: []history.Append{{Stream: "account-3"}}})
		require.NoError(t, w.End(two, history.Fail, &history.Event{
			Func: history.Write, Class: history.Conflict, Actual: 5, Appends: []history.Append{{Stream: "account-2"}},
		}))
		require.NoError(t, w.End(one, history.OK, &history.Event{
			Func: history.Write, Appends: []history.Append{{Stream: "account-1", Version: 4, Global: 99, Duplicate: true}},
		}))
		require.NoError(t, w.Note(&history.Event{Func: history.Effect, Key: "k"}))
	})
	var ops []*history.Operation
	for o, err := range history.Operations(path) {
		require.NoError(t, err)
		ops = append(ops, o)
	}
	require.Len(t, ops, 4)

	require.Equal(t, history.Fail, ops[0].Kind)
	require.Equal(t, history.Conflict, ops[0].Class)
	require.EqualValues(t, 5, ops[0].Actual)
	require.EqualValues(t, "account-2", ops[0].Answer[0].Stream)

	require.Equal(t, history.OK, ops[1].Kind)
	require.Less(t, ops[1].Time, ops[1].End)
	require.Equal(t, []history.Append{{
		Stream: "account-1", Expected: 3, Messages: []history.Message{{ID: id, Value: 7, Hash: 8}}, Version: 4, Global: 99, Duplicate: true,
	}}, ops[1].Appends)

	require.Equal(t, history.Effect, ops[2].Func)
	require.Equal(t, ops[2].Time, ops[2].End)

	require.Equal(t, history.Info, ops[3].Kind, "an invoke without an end is of unknown outcome")
	require.EqualValues(t, history.Never, ops[3].End)
}

func TestEndsThatDoNotFitTheirBeginningsAreErrors(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string]string{
		"begins twice":    "1 invoke write 1\n2 invoke write 1\n",
		"ends as version": "1 invoke write 1\n2 ok version 1\n",
		"is answered for": "1 invoke write 1 stream=a-1\n2 ok write 1 stream=a-2\n",
		"to 1 streams":    "1 invoke write 1 stream=a-1\n2 ok write 1 stream=a-1 stream=a-2\n",
	} {
		path := filepath.Join(t.TempDir(), "p"+history.Ending)
		require.NoError(t, os.WriteFile(path, []byte(lines), 0o600))
		var failed error
		for _, err := range history.Operations(path) {
			failed = err
		}
		require.ErrorContains(t, failed, name)
	}
}

func TestGoroutinesWriteWholeLinesInTheOrderOfTheirTimes(t *testing.T) {
	t.Parallel()
	const goroutines, each = 8, 200
	path := write(t, func(w *history.Writer) {
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for range each {
					op, err := w.Begin(&history.Event{Func: history.Version})
					if err == nil {
						err = w.End(op, history.OK, &history.Event{Func: history.Version})
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
	var last int64
	var n int
	for e, err := range history.Events(path) {
		require.NoError(t, err)
		require.GreaterOrEqual(t, e.Time, last)
		last = e.Time
		n++
	}
	require.Equal(t, 2*goroutines*each, n)
}

func TestAProcessHasAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := history.Create(dir, "writer-1")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = history.Create(dir, "writer-1")
	require.ErrorIs(t, err, os.ErrExist)
	for _, bad := range []string{"", "a/b"} {
		_, err = history.Create(dir, bad)
		require.Error(t, err)
	}
	files, err := history.Files(dir)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "writer-1.history")}, files)
}

func TestAfterAWriteThatFailedNothingMoreIsWritten(t *testing.T) {
	t.Parallel()
	w, err := history.Create(t.TempDir(), "writer-1")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, first := w.Begin(&history.Event{Func: history.Version})
	require.ErrorIs(t, first, os.ErrClosed)
	require.Equal(t, first, w.Note(&history.Event{Func: history.Effect}))
}

func TestEqualContentHasEqualHashes(t *testing.T) {
	t.Parallel()
	hash := func(messageType, data, metadata string) uint64 {
		h, err := history.Hash(messageType, json.RawMessage(data), json.RawMessage(metadata))
		require.NoError(t, err)
		return h
	}
	one := hash("Deposit", `{"a":1.0,"b":"\u00e9"}`, `{}`)
	require.Equal(t, one, hash("Deposit", `{"a":1.0,"b":"\u00e9"}`, `{ }`))
	require.Equal(t, hash("Deposit", ``, `{"a":1.0,"b":"\u00e9"}`), hash("Deposit", ``, `{ "b":"é", "a":1 }`))
	require.NotEqual(t, one, hash("Deposit", `{"a":1.0,"b":"é"}`, `{}`)) // data are kept byte for byte
	require.NotEqual(t, one, hash("Deposited", `{"a":1.0,"b":"\u00e9"}`, `{}`))
	require.NotEqual(t, one, hash("Deposit", `{"a":1.0,"b":"\u00e9"}`, ``))
	_, err := history.Hash("Deposit", nil, json.RawMessage(`{`))
	require.Error(t, err)
}

func write(t *testing.T, fill func(*history.Writer)) (path string) {
	t.Helper()
	dir := t.TempDir()
	w, err := history.Create(dir, "p")
	require.NoError(t, err)
	fill(w)
	require.NoError(t, w.Close())
	return filepath.Join(dir, "p"+history.Ending)
}

func begin(t *testing.T, w *history.Writer, e *history.Event) uint64 {
	t.Helper()
	op, err := w.Begin(e)
	require.NoError(t, err)
	return op
}
