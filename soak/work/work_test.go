package work

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/soak/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newContent(most int) *content {
	return &content{random: rand.New(rand.NewPCG(1, 2)), prefix: 7 << 40, max: most}
}

func TestEveryContentIsTakenAndReadBackTheSame(t *testing.T) {
	t.Parallel()
	store := must.New(messagestore.New(memory.New(), nil))
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

// operations has a process do its work and returns the history of it.
func operations(t *testing.T, driver messagestore.Driver, do func(r *recorder)) (all []*history.Operation) {
	t.Helper()
	dir := t.TempDir()
	w, err := history.Create(dir, "writer-1")
	require.NoError(t, err)
	do(newRecorder(must.New(messagestore.New(driver, nil)), driver, journal{w}, "writer-1"))
	require.NoError(t, w.Close())

	files, err := history.Files(dir)
	require.NoError(t, err)
	for o, err := range history.Operations(files[0]) {
		require.NoError(t, err)
		all = append(all, o)
	}
	return all
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
			require.Equal(t, history.Write, all[0].Func)
			require.Equal(t, history.Info, all[0].Kind)
			require.Equal(t, history.Resolve, all[1].Func)
			require.Equal(t, history.Written, all[1].Class)
			require.Equal(t, history.Ref{Proc: "writer-1", Op: all[0].Op}, all[1].Ref)
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
	require.Equal(t, history.OK, all[0].Kind)
	require.Equal(t, history.Write, all[1].Func)
	require.Equal(t, history.Fail, all[1].Kind)
	require.Equal(t, history.Conflict, all[1].Class)
	require.Equal(t, messagestore.Version(1), all[1].Actual)
	require.Equal(t, messagestore.StreamName("account0-1"), all[1].Answer[0].Stream)
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
