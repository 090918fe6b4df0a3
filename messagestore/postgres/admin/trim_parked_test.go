package admin_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/deadletter"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// park has a consumer park messages of one category.
func (a *archive) park(t *testing.T, name string, messages ...*messagestore.Message) (letters []*deadletter.Entry) {
	t.Helper()
	category := messages[0].Stream.Category()
	a.catchUp(t, category, name, func(m *messagestore.Message) error {
		if slices.ContainsFunc(messages, func(parked *messagestore.Message) bool { return parked.ID == m.ID }) {
			return errors.New("no")
		}
		return nil
	})
	for _, m := range messages {
		letter, err := deadletter.Of(a.Store, category, name).Get(t.Context(), m.ID)
		require.NoError(t, err)
		letters = append(letters, letter)
	}
	return letters
}

// redrive has a consumer deliver one parked message again.
func (a *archive) redrive(t *testing.T, name string, m *messagestore.Message, failure error) {
	t.Helper()
	_, err := deadletter.Of(a.Store, m.Stream.Category(), name).RequestRedrive(t.Context(), m.ID)
	require.NoError(t, err)
	var delivered []uuid.UUID
	a.catchUp(t, m.Stream.Category(), name, func(m *messagestore.Message) error {
		delivered = append(delivered, m.ID)
		return failure
	})
	require.Equal(t, []uuid.UUID{m.ID}, delivered)
}

func (a *archive) catchUp(t *testing.T, category messagestore.Category, name string, handle func(m *messagestore.Message) error) {
	t.Helper()
	c := must.New(consumer.New(a.Store, category, name, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error { return handle(m) }), &consumer.Config{
		Logger: logger.Silent(), Start: consumer.FromStart(),
		Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}, Then: consumer.ParkMessage},
	}))
	require.NoError(t, c.CatchUp(t.Context()))
}

func TestAMessageThatIsParkedIsNotTrimmed(t *testing.T) {
	t.Parallel()
	for _, types := range []string{"", "command"} {
		t.Run("type "+types, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			if types != "" {
				a.category = a.category.WithType(types)
			}
			stream := a.category.Stream("1")
			a.fill(t, stream, 6)
			messages := a.read(t, stream)
			low, high := a.park(t, "one", messages[2])[0], a.park(t, "other", messages[3])[0]
			dry := *anyAge
			dry.DryRun = true
			trim := func(want retention.Trimmed) {
				t.Helper()
				planned, err := a.admin.Trim(t.Context(), stream, &dry)
				require.NoError(t, err)
				require.Equal(t, want, planned, "dry run")
				trimmed, err := a.admin.Trim(t.Context(), stream, anyAge)
				require.NoError(t, err)
				require.Equal(t, want, trimmed)
			}

			trim(retention.Trimmed{Stream: stream, Removed: 2, First: 2, Version: 5, DeadLetter: low.DeadLetter})
			require.Equal(t, []int{2, 3, 4, 5}, a.positions(t, stream))
			a.redrive(t, "one", messages[2], errors.New("still no"))
			trim(retention.Trimmed{Stream: stream, First: 2, Version: 5, DeadLetter: low.DeadLetter})
			a.redrive(t, "one", messages[2], nil)
			trim(retention.Trimmed{Stream: stream, Removed: 1, First: 3, Version: 5, DeadLetter: high.DeadLetter})
			a.redrive(t, "other", messages[3], errors.New("no"))
			// The deletion has removed one of two messages, and goes on later.
			_, err := a.pool.Exec(t.Context(), "select dibs.delete_stream($1, max_messages => 1)", string(high.DeadLetter))
			require.NoError(t, err)
			trim(retention.Trimmed{Stream: stream, Removed: 1, First: 4, Version: 5})
			require.Equal(t, []int{4, 5}, a.positions(t, stream))
		})
	}
}

// Whichever consumer parked it, and however many it has parked.
func TestATrimEndsAtTheLowestParkedMessage(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 8)
	messages := a.read(t, stream)
	consumers := map[int]string{2: "other", 3: "other", 4: "one", 5: "one"}
	letters := append(a.park(t, "other", messages[2], messages[3]), a.park(t, "one", messages[4], messages[5])...)
	for at := 2; at <= 5; at++ {
		trimmed, err := a.admin.Trim(t.Context(), stream, anyAge)
		require.NoError(t, err)
		require.Equal(t, messagestore.Version(at), trimmed.First)
		require.Equal(t, letters[at-2].DeadLetter, trimmed.DeadLetter)
		a.redrive(t, consumers[at], messages[at], nil)
	}
}

func TestATrimOfACategoryPassesParkedMessages(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	for n := range 3 {
		a.fill(t, a.category.Stream(strconv.Itoa(n)), 5)
	}
	letter := a.park(t, "one", a.read(t, a.category.Stream("1"))[1])[0]

	var found []retention.Trimmed
	for trimmed, err := range a.admin.TrimCategory(t.Context(), a.category, anyAge) {
		require.NoError(t, err)
		found = append(found, trimmed)
	}

	require.Equal(t, []retention.Trimmed{
		{Stream: a.category.Stream("0"), Removed: 3, First: 3, Version: 4},
		{Stream: a.category.Stream("1"), Removed: 1, First: 1, Version: 4, DeadLetter: letter.DeadLetter},
		{Stream: a.category.Stream("2"), Removed: 3, First: 3, Version: 4},
	}, found)
}

// Letters of other messages, and streams that other clients wrote beside the letters, hold
// nothing back, and hide no letter; a trim in parts comes as far as one in one part.
func TestATrimLooksAtOpenLettersOfItsMessagesOnly(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream, letters := a.category.Stream("1"), a.category.WithType("deadLetter")
	a.fill(t, stream, 6)
	a.fill(t, a.category.Stream("2"), 2)
	messages := a.read(t, stream)
	a.park(t, "one", a.read(t, a.category.Stream("2"))[0], messages[5]) // the second stays for keep
	for _, name := range []messagestore.StreamName{letters.Stream("a"), letters.Stream("one"), letters.Stream("two").With("x"), letters.Stream("two!")} {
		a.fill(t, name, 1)
	}
	trimmed, err := a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 5, MinAge: retention.AnyAge})
	require.NoError(t, err)
	require.Equal(t, retention.Trimmed{Stream: stream, Removed: 1, First: 1, Version: 5}, trimmed)

	letter := a.park(t, "two", messages[3])[0]
	for _, want := range []struct {
		removed, first int64
		more           bool
	}{{1, 2, true}, {1, 3, true}, {0, 3, false}} {
		var removed, first int64
		var more bool
		var held *string
		err = a.pool.QueryRow(t.Context(), "select removed, first_position, more, dead_letter from dibs.trim($1, 1, min_age => '0', max_messages => 1)", string(stream)).
			Scan(&removed, &first, &more, &held)
		require.NoError(t, err)
		require.Equal(t, want.removed, removed)
		require.Equal(t, want.first, first)
		require.Equal(t, want.more, more)
		require.Equal(t, !more, held != nil && *held == string(letter.DeadLetter))
	}
}
