package work

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/soak/history"
	"github.com/dibs-go/dibs/soak/promise"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newContent(most int) *content {
	return &content{random: rand.New(rand.NewPCG(1, 2)), prefix: 7 << 40, max: most}
}

func TestEveryContentIsTakenAndReadBackTheSame(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	c := newContent(messagestore.MaxMessageBytes)
	values := map[uint64]bool{}
	for i := range uint64(300) {
		body := c.body()
		if i == 0 {
			body.Data = c.data(c.value(), c.max) // the largest there may be
		}
		written, err := store.Write(t.Context(), name(Events(0), i), messagestore.NoStream, messagestore.Envelope{ID: newID(), Body: body})
		require.NoError(t, err)
		read, err := store.Last(t.Context(), written.Stream)
		require.NoError(t, err)

		known, err := recordedOf(read)
		require.NoError(t, err)
		sent, err := messageOf(messagestore.Envelope{ID: read.ID, Body: body})
		require.NoError(t, err)
		require.Equal(t, sent.Hash, known.Hash)
		require.Equal(t, sent.Value, known.Value)
		require.False(t, values[known.Value], "%d comes twice", known.Value)
		values[known.Value] = true
	}
}

// lossy is a driver that loses the replies to its writes.
type lossy struct{ messagestore.Driver }

func (d lossy) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	if _, err := d.Driver.Append(ctx, a); err != nil {
		return messagestore.Written{}, err
	}
	err := &messagestore.OutcomeUnknownError{Cause: context.DeadlineExceeded}
	noteLost(ctx, err)
	return messagestore.Written{}, err
}

func (d lossy) TryAppend(ctx context.Context, all []messagestore.Append) ([]messagestore.Written, *messagestore.Conflict, error) {
	_, met, err := d.Driver.TryAppend(ctx, all)
	if err != nil || met != nil {
		return nil, met, err
	}
	err = &messagestore.OutcomeUnknownError{Cause: context.DeadlineExceeded}
	noteLost(ctx, err)
	return nil, nil, err
}

// A call is one of a history with its answer.
type call struct{ asked, told history.Event }

// callsIn returns the calls in the file of a process, by their numbers.
func callsIn(t *testing.T, dir, process string) (all []call) {
	t.Helper()
	lines, err := os.ReadFile(filepath.Join(dir, process+promise.Ending))
	require.NoError(t, err)
	for line := range bytes.Lines(lines) {
		var e history.Event
		require.NoError(t, json.Unmarshal(line, &e))
		if e.Answer == "" {
			require.EqualValues(t, len(all)+1, e.Op)
			all = append(all, call{asked: e})
			continue
		}
		require.Equal(t, all[e.Op-1].asked.Call, e.Call)
		all[e.Op-1].told = e
	}
	return all
}

// operations has a process do its work and returns the history of it.
func operations(t *testing.T, driver messagestore.Driver, do func(r *recorder)) []call {
	t.Helper()
	dir := t.TempDir()
	do(newRecorded(t, dir, "writer-1", driver))
	return callsIn(t, dir, "writer-1")
}

func happened() messagestore.Body {
	return messagestore.Raw{Type: "Happened", Data: []byte(`{"value":5}`)}
}

func TestAnAnswerThatWasLostIsNoAnswerInTheHistory(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(r *recorder) error{
		"Write": func(r *recorder) error {
			_, err := r.Write(t.Context(), "account0-1", messagestore.NoStream, happened())
			return err
		},
		"TryWriteStreams": func(r *recorder) error {
			_, met, err := r.TryWriteStreams(t.Context(), messagestore.To("account0-1", messagestore.NoStream, happened()))
			require.Nil(t, met)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := operations(t, lossy{memory.New()}, func(r *recorder) { require.NoError(t, write(r)) })

			require.Len(t, all, 2)
			require.Equal(t, history.Write, all[0].asked.Call)
			require.Equal(t, history.Unknown, all[0].told.Answer)
			require.Equal(t, history.Resolve, all[1].asked.Call)
			require.Equal(t, history.Written, all[1].told.Answer)
			require.Equal(t, &history.Ref{Process: "writer-1", Op: 1}, all[1].asked.Ref)
		})
	}
}

func TestAMeetingIsAConflictInTheHistory(t *testing.T) {
	t.Parallel()
	all := operations(t, memory.New(), func(r *recorder) {
		for range 2 {
			_, _, err := r.TryWriteStreams(t.Context(),
				messagestore.To("account0-2", messagestore.NoStream), messagestore.To("account0-1", messagestore.NoStream, happened(), happened()))
			require.NoError(t, err)
		}
	})

	require.Len(t, all, 2)
	require.Equal(t, history.OK, all[0].told.Answer)
	require.Equal(t, history.Write, all[1].asked.Call)
	require.Equal(t, history.Conflict, all[1].told.Answer)
	require.Equal(t, messagestore.Version(1), all[1].told.Actual)
	require.Equal(t, messagestore.StreamName("account0-1"), all[1].told.Appends[0].Stream)
}

func TestEffectsAreKnownByTheirKey(t *testing.T) {
	t.Parallel()
	data, err := dataOf(effect{Of: uuid.New(), Key: "a"})
	require.NoError(t, err)
	require.Equal(t, "a", EffectOf(&messagestore.Message{Type: effectType, Data: data}))
	require.Empty(t, EffectOf(&messagestore.Message{Type: commandType, Data: newCommand(1, "a", 2).Data}))
}

func TestAMixHasSomeOfEachKind(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[Mix]bool{}
	for range 100 {
		m := Usual.Draw(random)
		seen[m] = true
		for _, part := range []int{m.Ask, m.Read, m.Send, m.Repeat, m.ReuseID, m.Streams, m.Tx, m.Write} {
			require.Positive(t, part)
		}
	}
	require.Greater(t, len(seen), 90)
}
