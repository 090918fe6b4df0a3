package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

func TestADeadLetterRefersToItsMessage(t *testing.T) {
	t.Parallel()
	store := newStore()
	id := uuid.Must(uuid.NewV7())
	write(t, store, "account-1", Deposited{1}, messagestore.Envelope{
		ID:   id,
		Body: raw("Deposited", `{"note": "canary"}`),
		Metadata: messagestore.Metadata{
			CausationStream: "order-7", CausationPosition: 3, CausationGlobalPosition: 9,
			CorrelationStream: "transfer-5",
			Properties:        messagestore.Properties{"tenant": "canary"},
			Local:             messagestore.Properties{"key": "canary"},
		},
	})
	original, err := store.Last(t.Context(), "account-1")
	require.NoError(t, err)
	c := newConsumer(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.ID == id {
			return errBroken
		}
		return nil
	}), &consumer.Config{Errors: parkAtOnce})

	require.NoError(t, c.CatchUp(t.Context()))

	letter := messagestore.StreamName("account:deadLetter-ledger+" + id.String())
	m, err := store.Last(t.Context(), letter)
	require.NoError(t, err)
	require.Equal(t, "Parked", m.Type)
	require.Equal(t, messagestore.Version(0), m.Position)
	require.True(t, m.Metadata.Follows(original))
	require.Equal(t, original.Metadata.CorrelationStream, m.Metadata.CorrelationStream)
	metadata, err := json.Marshal(m.Metadata)
	require.NoError(t, err)
	require.NotContains(t, string(m.Data)+string(metadata), "canary", "it has no data, so it outlives no erasure")
	var fields map[string]any
	require.NoError(t, json.Unmarshal(m.Data, &fields))
	require.ElementsMatch(t, []string{
		"consumer", "messageId", "type", "stream", "position", "globalPosition", "error", "attempts", "firstFailedAt",
	}, slices.Collect(maps.Keys(fields)))

	parked := parkedOf(t, store, account, "ledger")
	require.Len(t, parked, 1)
	p := *parked[0]
	require.Equal(t, []any{id, "Deposited", original.Stream, original.Position, original.GlobalPosition}, []any{p.ID, p.Type, p.Stream, p.Position, p.GlobalPosition})
	require.Equal(t, []any{letter, "broken", 1, m.Time}, []any{p.DeadLetter, p.Error, p.Attempts, p.ParkedAt})
	require.False(t, p.FirstFailedAt.IsZero())
	read, err := deadletter.Of(store, account, "ledger").Message(t.Context(), &p)
	require.NoError(t, err)
	require.Equal(t, original, read)
}

func TestAnErrorThatAsksForItIsParkedAtOnceUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	c := newConsumer(t, store, always(fmt.Errorf("wrapped: %w", errHopeless)), nil)

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, int64(2), c.Stats().Parked)
	require.Equal(t, int64(2), c.Stats().Failed)
	require.Equal(t, "wrapped: hopeless", parkedOf(t, store, account, "ledger")[0].Error)
}

// The process is killed between parking a message and its checkpoint.
func TestAMessageIsParkedOnce(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	store.write = func(stream messagestore.StreamName) error {
		if stream.Category() == positions && stream.ID() != "ledger" {
			return errStore
		}
		return nil
	}
	config := &consumer.Config{Errors: parkAtOnce}
	c := newConsumer(t, store, always(errBroken), config)
	require.ErrorIs(t, c.CatchUp(t.Context()), errStore)
	require.Len(t, parkedOf(t, store, account, "ledger"), 1)
	store.write = nil

	require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

	version, err := store.Version(t.Context(), parkedOf(t, store, account, "ledger")[0].DeadLetter)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// The checkpoint is set back by hand, so a message that was redriven is redelivered, and
// fails again.
func TestAMessageThatFailsAfterItWasRedrivenIsParkedAgain(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	var log bytes.Buffer
	config := &consumer.Config{Errors: parkAtOnce, Logger: logger.Zerolog(zerolog.New(&log))}
	require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))
	first := parkedOf(t, store, account, "ledger")[0]
	for again := range 2 {
		require.Equal(t, 1, redrive(t, store, &journal{}))
		write(t, store, "account:position-ledger+0", raw("Recorded", `{"position": 0, "after": "0193a2b4-5c6d-7e8f-9a0b-1c2d3e4f5a6b"}`))
		log.Reset()

		require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

		parked := parkedOf(t, store, account, "ledger")
		require.Len(t, parked, 1)
		require.Equal(t, 3+2*again, parked[0].Attempts) // two failed and one succeeded, and so on
		require.Equal(t, first.FirstFailedAt, parked[0].FirstFailedAt)
		require.Equal(t, first.ID, parked[0].ID)
		require.Contains(t, log.String(), "message parked")
	}
	require.Equal(t, 1, redrive(t, store, &journal{}))
}

// redrive requests the redrive of all that ledger has parked, has a consumer with h catch
// up, and returns how many messages are no longer parked.
func redrive(t *testing.T, store consumer.Store, h consumer.Handler) int {
	t.Helper()
	before := len(parkedOf(t, store, account, "ledger"))
	request(t, store, account, "ledger")
	require.NoError(t, newConsumer(t, store, h, nil).CatchUp(t.Context()))
	return before - len(parkedOf(t, store, account, "ledger"))
}

// A consumer that was reset leaves a failing message to the new generation.
func TestAConsumerThatWasResetParksNothing(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	deliveries := 0
	c := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		if deliveries++; deliveries > 1 {
			return nil
		}
		_, err := operate.Consumer(store, account, "ledger").Reset(ctx, 0)
		return errors.Join(err, errHopeless)
	}), &consumer.Config{Errors: parkAtOnce})

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, 2, deliveries)
	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// Nor is anything parked in a store that does not have it.
func TestAMessageThatTheStoreHasLostIsNotParked(t *testing.T) {
	t.Parallel()
	d := newReplaced()
	store := must.New(messagestore.New(d, nil))
	write(t, store, "account-1", Deposited{1})
	c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
		d.by(d.restore(t, 1))
		return errHopeless
	}), nil)

	require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPositionAhead)

	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
}

// The version that the store answers is no higher than the one expected, so nothing
// says that the message is parked.
func TestAConflictWithoutADeadLetterIsNotParked(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	store.write = func(stream messagestore.StreamName) error {
		if stream.Category() == deadLetters {
			return &messagestore.VersionConflictError{Stream: stream, Expected: messagestore.NoStream, Actual: 0}
		}
		return nil
	}

	c := newConsumer(t, store, always(errBroken), &consumer.Config{Errors: parkAtOnce})

	require.ErrorIs(t, c.CatchUp(t.Context()), messagestore.ErrVersionConflict)
	require.Zero(t, c.Stats().Parked)
}

func TestAMessageThatCannotBeParkedIsNotPassed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &tap{Store: newStore()}
		write(t, store.Store, "account-1", Deposited{1}, Deposited{2})
		store.write = func(stream messagestore.StreamName) error {
			if stream.Category() == deadLetters {
				return errStore
			}
			return nil
		}
		calls := 0
		c := newConsumer(t, store, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			return errBroken
		}), &consumer.Config{Errors: parkAtOnce})
		stop := running(t, c)
		time.Sleep(10 * time.Minute)
		require.Equal(t, 1, calls) // it is not handled again, only parked
		require.Zero(t, c.Stats().Position)
		require.NotZero(t, c.Stats().StoreErrors)

		store.set(func(s *tap) { s.write = nil })
		time.Sleep(10 * time.Second)

		require.Equal(t, int64(2), c.Stats().Parked)
		require.NoError(t, stop())
		require.ErrorIs(t, func() error {
			spoiled := &tap{Store: newStore(), write: func(stream messagestore.StreamName) error {
				if stream.Category() == deadLetters {
					return errStore
				}
				return nil
			}}
			write(t, spoiled.Store, "account-1", Deposited{1})
			return newConsumer(t, spoiled, always(errBroken), &consumer.Config{Errors: parkAtOnce}).CatchUp(t.Context())
		}(), errStore)
	})
}

// However large or deep a message is, its dead letter is small.
func TestALargeMessageIsParkedAndRedriven(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]messagestore.Envelope{
		"LargeData": {Body: raw("Deposited", `{"large": "`+strings.Repeat("d", messagestore.MaxMessageBytes-20)+`"}`)},
		"LargeMetadata": {Body: Deposited{1}, Metadata: messagestore.Metadata{Properties: messagestore.Properties{
			"large": strings.Repeat("p", messagestore.MaxMessageBytes-100),
		}}},
		"DeepData": {Body: raw("Deposited", strings.Repeat(`{"a":`, 512)+"1"+strings.Repeat("}", 512))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			write(t, store, "account-1", message)
			original, err := store.Last(t.Context(), "account-1")
			require.NoError(t, err)
			require.NoError(t, newConsumer(t, store, always(errHopeless), nil).CatchUp(t.Context()))
			letter, err := store.Last(t.Context(), parkedOf(t, store, account, "ledger")[0].DeadLetter)
			require.NoError(t, err)
			require.Less(t, len(letter.Data), 1000)
			require.Equal(t, messagestore.StreamName("account-1"), letter.Metadata.CausationStream)

			var given *messagestore.Message
			n := redrive(t, store, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
				given = m
				return nil
			}))

			require.Equal(t, 1, n)
			require.Equal(t, original, given)
		})
	}
}

func TestTheTextOfAnErrorIsBoundedAndClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\x00b\nc":                     "a b c",
		"\xff":                          "\uFFFD",
		strings.Repeat("e", 2000):       strings.Repeat("e", 1024) + "…",
		strings.Repeat("é", 1000):       strings.Repeat("é", 512) + "…",
		"x" + strings.Repeat("é", 1000): "x" + strings.Repeat("é", 511) + "\uFFFD…",
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		c := newConsumer(t, store, always(errors.New(text)), &consumer.Config{Errors: parkAtOnce})
		require.NoError(t, c.CatchUp(t.Context()))
		require.Equal(t, want, parkedOf(t, store, account, "ledger")[0].Error)
	}
}

func TestRedriveDeliversTheOriginalsInOrder(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 6 {
		write(t, store, account.Stream(fmt.Sprint(i%2)), Deposited{i})
	}
	var seen []messagestore.Message
	broken := true
	h := handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if broken {
			return errBroken
		}
		seen = append(seen, *m)
		return nil
	})
	require.NoError(t, newConsumer(t, store, h, &consumer.Config{Errors: parkAtOnce}).CatchUp(t.Context()))
	require.Len(t, parkedOf(t, store, account, "ledger"), 6)

	require.Zero(t, redrive(t, store, h))
	parked := parkedOf(t, store, account, "ledger")
	require.Len(t, parked, 6)
	require.Equal(t, 2, parked[0].Attempts)

	broken = false
	require.Equal(t, 6, redrive(t, store, h))
	i := 0
	for m, err := range store.ReadCategory(t.Context(), account, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, *m, seen[i])
		i++
	}
	require.Zero(t, redrive(t, store, h))
	require.Len(t, seen, 6)

	last, err := store.Last(t.Context(), parked[0].DeadLetter)
	require.NoError(t, err)
	require.Equal(t, "Redriven", last.Type)
	require.Equal(t, parked[0].Stream, last.Metadata.CausationStream)
}

func TestDeadLettersOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "other")
	j := &journal{}
	request(t, store, account, "other")

	require.NoError(t, newConsumer(t, store, j, nil).CatchUp(t.Context()))

	require.Len(t, j.all(), 1, "its own delivery")
	require.Empty(t, parkedOf(t, store, account, "ledger"))
	require.Len(t, parkedOf(t, store, account, "other"), 1)
}

func TestARedriveFailsAsADeliveryDoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		handler handler.HandlerFunc
		text    string
	}{
		{func(context.Context, *messagestore.Message) error { panic("poison") }, "panic: poison"},
		{func(context.Context, *messagestore.Message) error { runtime.Goexit(); return nil }, "the function ended its goroutine"},
		{func(context.Context, *messagestore.Message) error { return handler.RetryAfter(time.Hour, errBroken) }, "broken"},
		{func(context.Context, *messagestore.Message) error { return handler.Park(errBroken) }, "broken"},
	} {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		park(t, store, account, "ledger")
		request(t, store, account, "ledger")
		c := newConsumer(t, store, test.handler, nil)

		require.NoError(t, c.CatchUp(t.Context()))

		require.Equal(t, test.text, parkedOf(t, store, account, "ledger")[0].Error)
		require.Equal(t, int64(1), c.Stats().Failed)
	}
}

func TestARedriveThatIsSkippedClosesItsLetter(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	letter := parkedOf(t, store, account, "ledger")[0].DeadLetter
	require.Equal(t, 1, redrive(t, store, always(handler.Skip("a test account"))))

	last, err := store.Last(t.Context(), letter)
	require.NoError(t, err)
	require.JSONEq(t, `{"attempts": 2, "skipped": "a test account"}`, string(last.Data))
}

// Something other than Dibs has removed the message, without a tombstone.
func TestAParkedMessageThatIsGoneStaysParkedAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1}, Deposited{2})
	park(t, store.Store, account, "ledger")
	store.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
		if q.Category == account && q.From == 1 {
			q.From = 2
			page, err := store.Store.ReadCategoryPage(t.Context(), q)
			return &page, err
		}
		return nil, nil
	}
	j := &journal{}

	var log logbook
	request(t, store.Store, account, "ledger")
	require.NoError(t, newConsumer(t, store, j, &consumer.Config{Logger: log.logger()}).CatchUp(t.Context()))

	require.Equal(t, []string{"account-1@1"}, j.all())
	parked := parkedOf(t, store, account, "ledger")
	require.Len(t, parked, 1)
	require.Contains(t, parked[0].Error, "no such message")
	failed := log.of(t, "redrive failed")
	require.Len(t, failed, 1)
	require.Contains(t, failed[0]["error"], "no such message")
}

// A process with the same identity settles the request while the handler runs: the message
// is handled twice, and the first outcome stands.
func TestTheFirstOutcomeOfARedriveStands(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	park(t, store, account, "ledger")
	letter := parkedOf(t, store, account, "ledger")[0].DeadLetter
	request(t, store, account, "ledger")
	twin := newConsumer(t, store, &journal{}, nil)

	err := newConsumer(t, store, handler.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		require.NoError(t, twin.CatchUp(ctx))
		return errBroken
	}), nil).CatchUp(t.Context())

	require.NoError(t, err)
	require.Empty(t, parkedOf(t, store, account, "ledger"))
	version, err := store.Version(t.Context(), letter)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(1), version)
}
