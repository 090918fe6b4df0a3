package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

var parkAtOnce = consumer.ErrorPolicy{Retries: -1, Then: consumer.Park}

// parkedNow returns what is parked.
func parkedNow(t *testing.T, c *consumer.Consumer) []*consumer.ParkedMessage {
	t.Helper()
	var all []*consumer.ParkedMessage
	for p, err := range c.Parked(t.Context()) {
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

func TestAParkedMessageKeepsWhatItWas(t *testing.T) {
	t.Parallel()
	store := newStore()
	id := uuid.Must(uuid.NewV7())
	write(t, store, "account-1", Deposited{1}, messagestore.Envelope{
		ID:   id,
		Body: raw("Deposited", `{"amount": 12345678901234567890.10, "note": "<&>"}`),
		Metadata: messagestore.Metadata{
			CausationStream: "order-7", CausationPosition: 3, CausationGlobalPosition: 9,
			CorrelationStream: "transfer-5",
			ReplyStream:       "reply-6",
			Properties:        messagestore.Properties{"tenant": "t1"},
			Local:             messagestore.Properties{"key": "k"},
			SchemaVersion:     "2",
			Extra:             map[string]json.RawMessage{"other": json.RawMessage(`[1]`)},
		},
	})
	original, err := store.Last(t.Context(), "account-1")
	require.NoError(t, err)
	c := newConsumer(t, store, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
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
	require.Equal(t, "t1", m.Metadata.Properties.Get("tenant"))
	var fields map[string]any
	require.NoError(t, json.Unmarshal(m.Data, &fields))
	require.ElementsMatch(t, []string{
		"consumer", "messageId", "type", "stream", "position", "globalPosition", "time", "data", "metadata", "error", "attempts", "firstFailedAt",
	}, slices.Collect(maps.Keys(fields)))
	require.Equal(t, "broken", fields["error"])
	require.Equal(t, "ledger", fields["consumer"])
	require.Contains(t, string(m.Data), "12345678901234567890.10")

	parked := parkedNow(t, c)
	require.Len(t, parked, 1)
	require.JSONEq(t, string(original.Data), string(parked[0].Data))
	require.Equal(t, original.Metadata, parked[0].Metadata)
	require.Equal(t, original.Time, parked[0].Time)
	require.Equal(t, original.String(), parked[0].String())
	require.Equal(t, original.GlobalPosition, parked[0].GlobalPosition)
	require.Equal(t, letter, parked[0].DeadLetter)
	require.Equal(t, 1, parked[0].Attempts)
	require.Equal(t, m.Time, parked[0].ParkedAt)
	require.False(t, parked[0].Omitted)
	require.False(t, parked[0].FirstFailedAt.IsZero())
}

func TestAnErrorThatAsksForItIsParkedAtOnceUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1}, Deposited{2})
	c := newConsumer(t, store, always(fmt.Errorf("wrapped: %w", parkError{})), nil)

	require.NoError(t, c.CatchUp(t.Context()))

	require.Equal(t, int64(2), c.Stats().Parked)
	require.Equal(t, int64(2), c.Stats().Failed)
	require.Equal(t, "wrapped: hopeless", parkedNow(t, c)[0].Error)
}

// The process is killed between parking a message and recording the position.
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
	require.Len(t, parkedNow(t, c), 1)
	store.write = nil

	require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

	version, err := store.Version(t.Context(), parkedNow(t, c)[0].DeadLetter)
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}

// The position is put back by hand, so a message that was redriven is handed over
// again, and fails again.
func TestAMessageThatFailsAfterItWasRedrivenIsParkedAgain(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	var log bytes.Buffer
	config := &consumer.Config{Errors: parkAtOnce, Logger: logger.Zerolog(zerolog.New(&log))}
	broken := newConsumer(t, store, always(errBroken), config)
	require.NoError(t, broken.CatchUp(t.Context()))
	first := parkedNow(t, broken)[0]
	for again := range 2 {
		n, err := newConsumer(t, store, &journal{}, nil).Redrive(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Empty(t, parkedNow(t, broken))
		write(t, store, "account:position-ledger+0+0", raw("Recorded", `{"position": 0}`))
		log.Reset()

		require.NoError(t, newConsumer(t, store, always(errBroken), config).CatchUp(t.Context()))

		parked := parkedNow(t, broken)
		require.Len(t, parked, 1)
		require.Equal(t, 3+2*again, parked[0].Attempts) // two failed and one succeeded, and so on
		require.Equal(t, first.FirstFailedAt, parked[0].FirstFailedAt)
		require.Equal(t, first.String(), parked[0].String())
		require.Contains(t, log.String(), "message parked")
	}

	n, err := newConsumer(t, store, &journal{}, nil).Redrive(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// What a consumer gives up on that was told to go on from elsewhere is for who does.
func TestAConsumerThatWasResetParksNothing(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	c := newConsumer(t, store, consumer.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
		_, err := consumer.Reset(ctx, store, account, "ledger", 0)
		return errors.Join(err, parkError{})
	}), nil)

	require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrConsumerFenced)

	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedNow(t, c))
}

// Nor is anything parked in a store that does not have it.
func TestAMessageThatTheStoreHasLostIsNotParked(t *testing.T) {
	t.Parallel()
	d := &replaced{now: newHistory()}
	store := messagestore.New(d, nil)
	write(t, store, "account-1", Deposited{1})
	c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
		d.by(d.restore(t, 1))
		return parkError{}
	}), nil)

	require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPositionAhead)

	require.Zero(t, c.Stats().Parked)
	require.Empty(t, parkedNow(t, c))
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
		c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
			calls++
			return errBroken
		}), &consumer.Config{Errors: parkAtOnce})
		stop := running(t, c)
		time.Sleep(time.Hour)
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

// What does not fit into a dead letter is left where it is.
func TestWhatIsTooLargeOrTooDeepIsReferredTo(t *testing.T) {
	t.Parallel()
	properties := messagestore.Properties{"large": strings.Repeat("p", messagestore.MaxMessageBytes/2)}
	for name, message := range map[string]messagestore.Envelope{
		"LargeData":     {Body: raw("Deposited", `{"large": "`+strings.Repeat("d", messagestore.MaxMessageBytes-20)+`"}`)},
		"LargeMetadata": {Body: Deposited{1}, Metadata: messagestore.Metadata{Properties: properties}},
		"LargestMetadata": {Body: Deposited{1}, Metadata: messagestore.Metadata{Properties: messagestore.Properties{
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
			var given *messagestore.Message
			failing := true
			c := newConsumer(t, store, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
				given = m
				if failing {
					return errBroken
				}
				return nil
			}), &consumer.Config{Errors: parkAtOnce})
			require.NoError(t, c.CatchUp(t.Context()))

			parked := parkedNow(t, c)
			require.Len(t, parked, 1)
			require.True(t, parked[0].Omitted)
			require.Empty(t, parked[0].Data)
			require.Equal(t, original.String(), parked[0].String())
			letter, err := store.Last(t.Context(), parked[0].DeadLetter)
			require.NoError(t, err)
			require.Equal(t, messagestore.StreamName("account-1"), letter.Metadata.CausationStream)

			failing = false
			n, err := c.Redrive(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, original, given)
		})
	}
}

// A message that fits into its dead letter with a short error does not with a long one.
func TestWhatWasParkedWithItsDataKeepsThemWhenItFailsAgain(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	var c *consumer.Consumer
	var given []*messagestore.Message
	failure := errors.New("no")
	for size := messagestore.MaxMessageBytes - 500; ; size -= 100 { // the largest that fits, or nearly
		store.Store = newStore()
		write(t, store.Store, "account-1", raw("Deposited", `{"large":"`+strings.Repeat("d", size)+`"}`))
		c = newConsumer(t, store, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
			given = append(given, m)
			return failure
		}), &consumer.Config{Errors: parkAtOnce})
		require.NoError(t, c.CatchUp(t.Context()))
		parked := parkedNow(t, c)
		require.Len(t, parked, 1)
		if !parked[0].Omitted {
			break
		}
		require.Greater(t, size, messagestore.MaxMessageBytes/2)
	}
	original, err := store.Last(t.Context(), "account-1")
	require.NoError(t, err)
	failure = errors.New(strings.Repeat("e", 1024))
	n, err := c.Redrive(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	letter := parkedNow(t, c)[0]
	last, err := store.Last(t.Context(), letter.DeadLetter)
	require.NoError(t, err)
	require.Contains(t, string(last.Data), `"omitted":true`)

	require.Equal(t, failure.Error(), letter.Error)
	require.Equal(t, 2, letter.Attempts)
	require.False(t, letter.Omitted)
	require.Equal(t, original.Data, letter.Data)
	require.Equal(t, original.Metadata, letter.Metadata)
	store.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) { // its stream was trimmed
		if q.Category == account {
			return &messagestore.CategoryPage{Next: q.From}, nil
		}
		return nil, nil
	}
	failure, given = nil, nil
	n, err = c.Redrive(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []*messagestore.Message{original}, given)
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
		require.Equal(t, want, parkedNow(t, c)[0].Error)
	}
}

func TestRedriveHandsTheOriginalOverAgainInOrder(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 6 {
		write(t, store, account.Stream(fmt.Sprint(i%2)), Deposited{i})
	}
	var seen []messagestore.Message
	broken := true
	c := newConsumer(t, store, consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if broken {
			return errBroken
		}
		seen = append(seen, *m)
		return nil
	}), &consumer.Config{Errors: parkAtOnce})
	require.NoError(t, c.CatchUp(t.Context()))
	require.Len(t, parkedNow(t, c), 6)

	n, err := c.Redrive(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	parked := parkedNow(t, c)
	require.Len(t, parked, 6)
	require.Equal(t, 2, parked[0].Attempts)

	broken = false
	n, err = c.Redrive(t.Context())
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.Empty(t, parkedNow(t, c))
	i := 0
	for m, err := range store.ReadCategory(t.Context(), account, 0, messagestore.Filter{}) {
		require.NoError(t, err)
		require.Equal(t, *m, seen[i])
		i++
	}
	n, err = c.Redrive(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	require.Len(t, seen, 6)

	last, err := store.Last(t.Context(), parked[0].DeadLetter)
	require.NoError(t, err)
	require.Equal(t, "Redriven", last.Type)
	require.True(t, last.Metadata.Follows(parked[0].Message))
}

func TestDeadLettersOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	other, err := consumer.New(store, account, "other", always(errBroken), &consumer.Config{Errors: parkAtOnce})
	require.NoError(t, err)
	require.NoError(t, other.CatchUp(t.Context()))
	j := &journal{}
	c := newConsumer(t, store, j, nil)

	n, err := c.Redrive(t.Context())

	require.NoError(t, err)
	require.Zero(t, n)
	require.Empty(t, j.all())
	require.Empty(t, parkedNow(t, c))
	require.Len(t, parkedNow(t, other), 1)
}

func TestOfTwoRedrivesAtOnceOneHandlesTheMessage(t *testing.T) {
	t.Parallel()
	store := newStore()
	for i := range 20 {
		write(t, store, "account-1", Deposited{i})
	}
	require.NoError(t, newConsumer(t, store, always(errBroken), &consumer.Config{Errors: parkAtOnce}).CatchUp(t.Context()))
	var mu sync.Mutex
	handled := map[messagestore.Version]int{}
	h := consumer.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		mu.Lock()
		defer mu.Unlock()
		handled[m.Position]++
		return nil
	})
	var wg sync.WaitGroup
	counts, errs := make([]int, 4), make([]error, 4)
	for i := range counts {
		c := newConsumer(t, store, h, nil)
		wg.Go(func() { counts[i], errs[i] = c.Redrive(context.WithoutCancel(t.Context())) })
	}
	wg.Wait()

	require.NoError(t, errors.Join(errs...))
	require.Equal(t, 20, counts[0]+counts[1]+counts[2]+counts[3])
	require.Len(t, handled, 20)
	for position, n := range handled {
		require.Equal(t, 1, n, position)
	}
}

// A redrive that was killed leaves a claim behind, which ends.
func TestAClaimEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		c := newConsumer(t, store, always(parkError{}), nil)
		require.NoError(t, c.CatchUp(t.Context()))
		letter := parkedNow(t, c)[0].DeadLetter
		write(t, store, letter, raw("Redriving", `{"attempts": 2}`))
		j := &journal{}
		c = newConsumer(t, store, j, nil)

		time.Sleep(59 * time.Second)
		n, err := c.Redrive(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
		require.Len(t, parkedNow(t, c), 1)

		time.Sleep(time.Second)
		n, err = c.Redrive(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Len(t, j.all(), 1)
	})
}

// A skewed driver's clock differs from this process'.
type skewed struct {
	messagestore.Driver
	by time.Duration
}

func (d skewed) ReadStream(ctx context.Context, q messagestore.StreamQuery) ([]*messagestore.Message, error) {
	messages, err := d.Driver.ReadStream(ctx, q)
	for _, m := range messages {
		m.Time = m.Time.Add(d.by)
	}
	return messages, err
}

func TestAClaimEndsByTheStoresClock(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := messagestore.New(skewed{newDriver(), by}, nil)
				write(t, store, "account-1", Deposited{1})
				c := newConsumer(t, store, always(parkError{}), nil)
				require.NoError(t, c.CatchUp(t.Context()))
				write(t, store, parkedNow(t, c)[0].DeadLetter, raw("Redriving", `{"attempts": 2}`))
				j := &journal{}
				c = newConsumer(t, store, j, nil)

				time.Sleep(59 * time.Second)
				n, err := c.Redrive(t.Context())
				require.NoError(t, err)
				require.Zero(t, n)

				time.Sleep(time.Second)
				n, err = c.Redrive(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Len(t, j.all(), 1)
			})
		})
	}
}

func TestARedriveThatIsStoppedGivesItsClaimBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1}, Deposited{2})
		require.NoError(t, newConsumer(t, store, always(parkError{}), nil).CatchUp(t.Context()))
		c := newConsumer(t, store, consumer.HandlerFunc(func(ctx context.Context, _ *messagestore.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		_, err := c.Redrive(ctx)

		require.ErrorIs(t, err, context.DeadlineExceeded)
		parked := parkedNow(t, c)
		require.Len(t, parked, 2)
		require.Equal(t, 1, parked[0].Attempts)
		require.Equal(t, "hopeless", parked[0].Error)
		n, err := newConsumer(t, store, &journal{}, nil).Redrive(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})
}

func TestARedriveOutlivesNoHandlerThatWillNotStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore()
		write(t, store, "account-1", Deposited{1})
		require.NoError(t, newConsumer(t, store, always(parkError{}), nil).CatchUp(t.Context()))
		release := make(chan struct{})
		c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error {
			<-release
			return nil
		}), nil)
		start := time.Now()

		_, err := c.Redrive(t.Context())

		require.ErrorIs(t, err, consumer.ErrGraceExceeded)
		require.Equal(t, 70*time.Second, time.Since(start))
		require.Len(t, parkedNow(t, c), 1)
		close(release)
	})
}

func TestRedriveFailsAsTheConsumerDoes(t *testing.T) {
	t.Parallel()
	store := newStore()
	write(t, store, "account-1", Deposited{1})
	require.NoError(t, newConsumer(t, store, always(parkError{}), nil).CatchUp(t.Context()))
	c := newConsumer(t, store, consumer.HandlerFunc(func(context.Context, *messagestore.Message) error { panic("poison") }), nil)

	n, err := c.Redrive(t.Context())

	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, "panic: poison", parkedNow(t, c)[0].Error)
	require.Equal(t, int64(1), c.Stats().Failed)
}

// The message was too large to be parked with its data, and is gone from its stream.
func TestAnOriginalThatIsGoneStaysParkedAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", messagestore.Envelope{Body: raw("Deposited", `{"large": "`+strings.Repeat("d", messagestore.MaxMessageBytes-20)+`"}`)}, Deposited{2})
	require.NoError(t, newConsumer(t, store, always(parkError{}), nil).CatchUp(t.Context()))
	store.read = func(q messagestore.CategoryQuery) (*messagestore.CategoryPage, error) {
		if q.Category == account && q.From == 1 {
			q.From = 2
			page, err := store.Store.ReadCategoryPage(t.Context(), q)
			return &page, err
		}
		return nil, nil
	}
	j := &journal{}
	c := newConsumer(t, store, j, nil)

	n, err := c.Redrive(t.Context())

	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"account-1@1"}, j.all())
	parked := parkedNow(t, c)
	require.Len(t, parked, 1)
	require.Contains(t, parked[0].Error, "no such message")
	require.True(t, parked[0].Omitted)
}

// Between the look of one redrive and its claim, another does the whole.
func TestARedriveThatComesSecondLeavesTheMessageAlone(t *testing.T) {
	t.Parallel()
	store := &tap{Store: newStore()}
	write(t, store.Store, "account-1", Deposited{1})
	require.NoError(t, newConsumer(t, store, always(parkError{}), nil).CatchUp(t.Context()))
	j := &journal{}
	other := newConsumer(t, store.Store, j, nil)
	first := -1
	store.write = func(messagestore.StreamName) error {
		if first >= 0 {
			return nil
		}
		var err error
		first, err = other.Redrive(t.Context())
		return err
	}

	second, err := newConsumer(t, store, j, nil).Redrive(t.Context())

	require.NoError(t, err)
	require.Equal(t, 1, first)
	require.Zero(t, second)
	require.Len(t, j.all(), 1)
}
