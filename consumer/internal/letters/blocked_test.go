package letters_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/dibs-go/dibs/consumer/internal/letters"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

type paid struct{}

func (paid) MessageType() string { return "Paid" }

var errRefused = errors.New("refused")

// The run parks a message; before it notes that, an operator drops the letter, and the run reads of both. The
// note comes too late to block the key.
func TestALetterThatWasClosedMeanwhileDoesNotBlock(t *testing.T) {
	t.Parallel()
	store := must.New(messagestore.New(memory.New(), nil))
	_, err := store.Write(t.Context(), "account-1", messagestore.NoStream, paid{})
	require.NoError(t, err)
	m, err := store.Last(t.Context(), "account-1")
	require.NoError(t, err)
	own := letters.Of(store, "account", "ledger")
	blocked := own.Blocked()

	end := blocked.Writing(m.ID)
	letter, err := own.Park(t.Context(), letters.Failure{Message: m, Err: errRefused})
	require.NoError(t, err)
	_, err = own.Drop(t.Context(), m.ID, "by hand")
	require.NoError(t, err)
	_, err = blocked.Read(t.Context())
	require.NoError(t, err)
	blocked.Add(letter)
	end()

	require.False(t, blocked.Any())
}

// The run writes letters and reads of them, and others write, in any order: a Blocked that has read all knows the
// open ones.
func TestBlockedKnowsTheOpenLetters(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		store := must.New(messagestore.New(memory.New(), nil))
		own := letters.Of(store, "account", "ledger")
		other := letters.Of(store, "account", "other")
		var all []*messagestore.Message
		for range 6 {
			stream := messagestore.Category("account").Stream(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "key"))
			_, err := store.Write(ctx, stream, messagestore.AnyVersion, paid{})
			require.NoError(t, err)
			m, err := store.Last(ctx, stream)
			require.NoError(t, err)
			all = append(all, m)
		}
		blocked := own.Blocked()
		message := func() *messagestore.Message { return rapid.SampledFrom(all).Draw(t, "message") }
		t.Repeat(map[string]func(*rapid.T){
			"the run parks": func(*rapid.T) {
				m := message()
				defer blocked.Writing(m.ID)()
				letter, err := own.Park(ctx, letters.Failure{Message: m, Err: errRefused})
				require.NoError(t, err)
				if letter != nil {
					blocked.Add(letter)
				} else {
					require.NoError(t, blocked.Refresh(ctx, m.ID))
				}
				_, parked := blocked.By(m)
				require.True(t, parked)
			},
			"the run redrives": func(t *rapid.T) {
				m := message()
				first := blocked.First(m.Stream.CardinalID())
				if first == nil {
					t.Skip()
				}
				defer blocked.Writing(first.ID)()
				redrive, err := own.Begin(ctx, first.Request())
				require.NoError(t, err)
				if redrive != nil {
					redrive.Succeeded()
					require.NoError(t, redrive.Settle(ctx))
				}
				require.NoError(t, blocked.Refresh(ctx, first.ID))
			},
			"another parks": func(*rapid.T) {
				_, err := own.Park(ctx, letters.Failure{Message: message(), Err: errRefused})
				require.NoError(t, err)
			},
			"another consumer parks": func(*rapid.T) {
				_, err := other.Park(ctx, letters.Failure{Message: message(), Err: errRefused})
				require.NoError(t, err)
			},
			"an operator drops": func(*rapid.T) {
				_, err := own.Drop(ctx, message().ID, "by hand")
				if _, is := errors.AsType[*letters.NotParkedError](err); !is {
					require.NoError(t, err)
				}
			},
			"the run reads": func(*rapid.T) {
				_, err := blocked.Read(ctx)
				require.NoError(t, err)
			},
			"": func(t *rapid.T) {
				_, err := blocked.Read(ctx)
				require.NoError(t, err)
				first := map[string]uuid.UUID{}
				open := map[uuid.UUID]bool{}
				for p, err := range own.All(ctx) {
					require.NoError(t, err)
					open[p.ID] = true
					if key := p.Stream.CardinalID(); first[key] == uuid.Nil {
						first[key] = p.ID
					}
				}
				for _, key := range []string{"1", "2"} {
					if p := blocked.First(key); p != nil {
						require.Equal(t, first[key], p.ID)
					} else {
						require.Equal(t, uuid.Nil, first[key])
					}
				}
				for _, m := range all {
					_, parked := blocked.By(m)
					require.Equal(t, open[m.ID], parked)
				}
				require.Equal(t, len(open) > 0, blocked.Any())
			},
		})
	})
}
