package work

import (
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/soak/crew"
	"github.com/dibs-go/dibs/soak/history"
)

func newRecorded(t *testing.T, dir, process string, driver messagestore.Driver) *recorder {
	t.Helper()
	w, err := crew.NewRecorder[history.Event](dir, process)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	r := newRecorder(testkit.Must(messagestore.New(driver, nil)), driver, journal{w}, process)
	return r
}

func TestAProcessFindsOutWhatTheOneBeforeItLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := memory.New()
	before := newRecorded(t, dir, "writer-1-1", store)
	raw := func(data string) messagestore.Envelope {
		return messagestore.Envelope{ID: uuid.New(), Body: messagestore.Raw{Type: "Happened", Data: []byte(data)}}
	}
	left := func(m messagestore.Envelope, ofIt func(write messagestore.StreamWrite)) history.Event {
		write := messagestore.StreamWrite{Stream: "account0-1", Expected: messagestore.AnyVersion, Bodies: []messagestore.Body{m}}
		op, err := before.begin(history.Write, write)
		require.NoError(t, err)
		ofIt(write)
		return op
	}
	write := func(w messagestore.StreamWrite) {
		_, err := testkit.Must(messagestore.New(store, nil)).Write(t.Context(), w.Stream, w.Expected, w.Bodies...)
		require.NoError(t, err)
	}
	nothing := func(messagestore.StreamWrite) {}

	// Two ended, one by an answer and one by a question. Three did not.
	answered := left(raw(`{"value":1}`), write)
	before.history.end(answered, history.OK, &history.Event{})
	asked := left(raw(`{"value":2}`), nothing)
	before.history.end(asked, history.Unknown, &history.Event{})
	question := before.history.begin(&history.Event{Call: history.Resolve, Ref: &history.Ref{Process: "writer-1-1", Op: asked.Op}})
	before.history.end(question, history.NotWritten, &history.Event{})
	taken := raw(`{"value":3}`)
	written := left(taken, write)
	never := left(raw(`{"value":4}`), nothing)
	other := left(messagestore.Envelope{ID: taken.ID, Body: raw(`{"value":5}`).Body}, nothing)

	after := newRecorded(t, dir, "writer-1-2", store)
	w := &caller{
		client:   &client{task: Task{Before: "writer-1-1", History: dir}, history: after.history, store: after},
		random:   rand.New(rand.NewPCG(1, 2)),
		versions: map[messagestore.StreamName]messagestore.Version{},
	}
	require.NoError(t, w.inherit())

	said := map[int64]string{}
	for _, c := range callsIn(t, dir, "writer-1-2") {
		require.Equal(t, history.Resolve, c.asked.Call)
		require.Equal(t, "writer-1-1", c.asked.Ref.Process)
		said[c.asked.Ref.Op] = c.told.Answer
	}
	require.Equal(t, map[int64]string{written.Op: history.Written, never.Op: history.NotWritten, other.Op: history.IDConflict}, said)
}

func TestAProcessWithoutOneBeforeItAsksNothing(t *testing.T) {
	t.Parallel()
	require.NoError(t, (&caller{client: &client{}}).inherit())
}
