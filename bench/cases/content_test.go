package cases

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestContentIsOfTheSizeThatIsSaid(t *testing.T) {
	for n := range int64(1000) {
		m := message(uuid.NewString(), n*1_000_003)
		r, err := encode("account-1", 4, m)
		require.NoError(t, err)
		require.InDelta(t, 200, len(r.data), 12, string(r.data))
		require.InDelta(t, 150, len(r.metadata), 12, string(r.metadata))
		require.EqualValues(t, 5, r.position)
	}
}

// The others store the same bytes as Dibs.
func TestOthersSendWhatDibsStores(t *testing.T) {
	store := testkit.Must(messagestore.New(memory.New(), nil))
	w := newWriter("account")
	m := w.next()
	_, err := store.Write(t.Context(), w.stream, w.version, m)
	require.NoError(t, err)
	stored, err := store.Last(t.Context(), w.stream)
	require.NoError(t, err)

	r, err := encode(w.stream, w.version, m)

	require.NoError(t, err)
	require.Equal(t, string(stored.Data), string(r.data))
	require.Equal(t, stored.ID, r.id)
	require.EqualValues(t, stored.Position, r.position)
	require.Equal(t, m.Metadata, stored.Metadata)
	require.Equal(t, messageType, stored.Type)
}

// A listed is a store that remembers the writes it was asked for.
type listed struct {
	store
	streams  map[messagestore.StreamName][]messagestore.Version
	messages map[uuid.UUID]bool
}

func (s *listed) write(_ context.Context, stream messagestore.StreamName, expected messagestore.Version, m messagestore.Envelope) (bool, error) {
	s.streams[stream] = append(s.streams[stream], expected)
	s.messages[m.ID] = true
	return true, nil
}

func TestWriterFillsOneStreamAfterTheOther(t *testing.T) {
	s := &listed{streams: map[messagestore.StreamName][]messagestore.Version{}, messages: map[uuid.UUID]bool{}}
	w := newWriter("account")
	for range 2*perStream + 1 {
		require.NoError(t, w.write(t.Context(), s))
	}

	require.Len(t, s.streams, 3)
	require.Len(t, s.messages, 2*perStream+1)
	whole := 0
	for stream, expected := range s.streams {
		require.Equal(t, messagestore.Category("account"), stream.Category())
		require.Equal(t, messagestore.NoStream, expected[0])
		for i, version := range expected {
			require.EqualValues(t, i-1, version)
		}
		if len(expected) == perStream {
			whole++
		}
	}
	require.Equal(t, 2, whole)
}

func TestAWriterThatIsRefusedSaysSo(t *testing.T) {
	w := newWriter("account")
	require.ErrorContains(t, w.write(t.Context(), refusing{}), "a conflict without another writer")
}

type refusing struct{ store }

func (refusing) write(context.Context, messagestore.StreamName, messagestore.Version, messagestore.Envelope) (bool, error) {
	return false, nil
}
