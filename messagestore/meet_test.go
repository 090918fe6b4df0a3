package messagestore_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

func TestAConflictIsAnsweredWithTheLastMessageAndTheTime(t *testing.T) {
	clock := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	var log bytes.Buffer
	store := must.New(messagestore.New(memory.NewWithClock(func() time.Time { return clock }), &messagestore.Config{Logger: logger.Zerolog(zerolog.New(&log))}))
	first, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"secret"})
	require.NoError(t, err)
	require.Nil(t, met)
	require.Equal(t, clock, first.Time)
	clock = clock.Add(time.Minute)

	written, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"second"})

	require.NoError(t, err)
	require.Zero(t, written)
	require.Equal(t, clock, met.Time)
	require.Len(t, met.Last, 1)
	require.Equal(t, first.IDs[0], met.Last[0].ID)
	require.Equal(t, first.Time, met.Last[0].Time)
	require.Contains(t, log.String(), `"stream":"account-1","message":"write met another version"`)
	require.NotContains(t, log.String(), "secret")
	requireMessages(t, store, stream, 1)
}

func TestLostAnswerOfAWriteThatHappenedIsNoMeeting(t *testing.T) {
	driver, store := script(step{true, nil}, step{true, errLost})
	must.Do(store.Write(t.Context(), stream, messagestore.NoStream, opened{"before"}))(t)

	written, met, err := store.TryWrite(t.Context(), stream, 0, opened{"a"}, opened{"b"})

	require.NoError(t, err)
	require.Nil(t, met)
	require.Equal(t, messagestore.Version(2), written.Version)
	require.Len(t, written.IDs, 2)
	require.Equal(t, must.Do(store.Last(t.Context(), stream))(t).Time, written.Time)
	require.Equal(t, 2, driver.appends, "it is not written again")
	requireMessages(t, store, stream, 3)
}

func TestLostWriteThatDidNotHappenCanMeetAnotherWhenItIsWrittenOnceMore(t *testing.T) {
	driver, store := script(step{false, errLost}, step{true, nil})
	other := uuid.New()
	driver.find = func() error { // somebody else is first
		_, err := driver.Driver.Append(t.Context(), messagestore.Append{Stream: stream, Expected: messagestore.NoStream, Records: []messagestore.Encoded{{ID: other, Type: "Other", Data: []byte(`{}`)}}})
		return err
	}

	written, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.NoError(t, err)
	require.Zero(t, written)
	require.Equal(t, other, met.Last[0].ID)
	require.Equal(t, 2, driver.appends)
	requireMessages(t, store, stream, 1)
}

// The loser's messages are not found, and it meets the winner at the second attempt.
func TestLostMeetingIsMetOnceMore(t *testing.T) {
	driver, store := script(step{true, nil}, step{true, errLost}, step{true, nil})
	winner := must.Do(store.Write(t.Context(), "account-2", messagestore.NoStream, opened{"winner"}))(t)

	written, met, err := store.TryWriteStreams(t.Context(), messagestore.To("account-1", messagestore.NoStream, opened{"a"}), messagestore.To("account-2", messagestore.NoStream, opened{"b"}))

	require.NoError(t, err)
	require.Nil(t, written)
	require.Len(t, met.Last, 2)
	require.Nil(t, met.Last[0])
	require.Equal(t, winner.IDs[0], met.Last[1].ID)
	require.Equal(t, 3, driver.appends)
	requireMessages(t, store, "account-1", 0)
}

func TestWriteOrLastThatIsLostAgainAndAgainIsNotWritten(t *testing.T) {
	driver, store := script(step{false, errLost}, step{false, errLost}, step{false, errLost})

	_, met, err := store.TryWrite(t.Context(), stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	require.EqualError(t, err, "try to write: not written after 3 attempts: connection reset")
	require.Nil(t, met)
	require.Equal(t, 3, driver.appends)
}

func TestOutcomeOfAWriteOrLastIsUnknownWhenTheContextIsDone(t *testing.T) {
	_, store := script(step{true, errLost})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, met, err := store.TryWrite(ctx, stream, messagestore.NoStream, opened{"a"})

	require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
	require.Nil(t, met)
	written := must.Do(store.Resolve(t.Context(), err))(t)
	require.Equal(t, messagestore.Version(0), written[0].Version)
	require.NotZero(t, written[0].Time)
}

// A driver that cannot see the winner returns the conflict.
func TestAConflictThatShowsNothingIsAnError(t *testing.T) {
	_, store := script(step{false, &messagestore.VersionConflictError{Stream: stream, Expected: 3, Actual: 4}})

	_, met, err := store.TryWrite(t.Context(), stream, 3, opened{"a"})

	require.EqualError(t, err, "try to write: account-1: version conflict: expected 3, found 4")
	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	require.Nil(t, met)
}

func TestAWriteOrLastOfInvalidInputIsRefused(t *testing.T) {
	store := untouchedStore(t)

	_, _, err := store.TryWrite(t.Context(), stream, messagestore.NoStream)
	requireInvalid(t, err, messagestore.ErrInvalid, "batch", "", "there is no message in it")
	_, _, err = store.TryWrite(t.Context(), stream, -3, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, _, err = store.TryWrite(t.Context(), "account-", messagestore.NoStream, opened{})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, _, err = store.TryWrite(t.Context(), stream, messagestore.NoStream, raw(`[]`))
	requireInvalid(t, err, messagestore.ErrInvalid, "data", `"[]"`, "it is not a JSON object")
}
