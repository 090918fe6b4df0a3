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
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/queue"
)

// park has a consumer park messages of one category, and returns its queue of them.
func (a *archive) park(t *testing.T, name string, messages ...*messagestore.Message) *queue.Queue {
	t.Helper()
	category := messages[0].Stream.Category()
	a.catchUp(t, category, name, func(m *messagestore.Message) error {
		if slices.ContainsFunc(messages, func(parked *messagestore.Message) bool { return parked.ID == m.ID }) {
			return errors.New("no")
		}
		return nil
	})
	parked := must.New(operate.Consumer(a.Store, category, name).Parked())
	for _, m := range messages {
		require.Equal(t, queue.Dead, must.Do(parked.Item(t.Context(), m.GlobalPosition))(t).State)
	}
	return parked
}

// redrive has a consumer deliver one parked message again.
func (a *archive) redrive(t *testing.T, name string, m *messagestore.Message, failure error) {
	t.Helper()
	must.Do(must.New(operate.Consumer(a.Store, m.Stream.Category(), name).Parked()).Retry(t.Context(), "", m.GlobalPosition))(t)
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
			low, high := a.park(t, "one", messages[2]), a.park(t, "other", messages[3])
			dry := *anyAge
			dry.DryRun = true
			trim := func(want retention.Trimmed) {
				t.Helper()
				require.Equal(t, want, must.Do(a.admin.Trim(t.Context(), stream, &dry))(t), "dry run")
				require.Equal(t, want, must.Do(a.admin.Trim(t.Context(), stream, anyAge))(t))
			}

			trim(retention.Trimmed{Stream: stream, Removed: 2, First: 2, Version: 5, Queue: low.Name()})
			require.Equal(t, []int{2, 3, 4, 5}, a.positions(t, stream))
			a.redrive(t, "one", messages[2], errors.New("still no"))
			trim(retention.Trimmed{Stream: stream, First: 2, Version: 5, Queue: low.Name()})
			a.redrive(t, "one", messages[2], nil)
			trim(retention.Trimmed{Stream: stream, Removed: 1, First: 3, Version: 5, Queue: high.Name()})
			a.redrive(t, "other", messages[3], errors.New("no"))
			must.Do(high.Drop(t.Context(), "void", messages[3].GlobalPosition))(t)
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
	queues := map[string]string{
		"other": a.park(t, "other", messages[2], messages[3]).Name(),
		"one":   a.park(t, "one", messages[4], messages[5]).Name(),
	}
	for at := 2; at <= 5; at++ {
		trimmed := must.Do(a.admin.Trim(t.Context(), stream, anyAge))(t)
		require.Equal(t, messagestore.Version(at), trimmed.First)
		require.Equal(t, queues[consumers[at]], trimmed.Queue)
		a.redrive(t, consumers[at], messages[at], nil)
	}
}

func TestATrimOfACategoryPassesParkedMessages(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	for n := range 3 {
		a.fill(t, a.category.Stream(strconv.Itoa(n)), 5)
	}
	parked := a.park(t, "one", a.read(t, a.category.Stream("1"))[1])

	var found []retention.Trimmed
	for trimmed, err := range a.admin.TrimCategory(t.Context(), a.category, anyAge) {
		require.NoError(t, err)
		found = append(found, trimmed)
	}

	require.Equal(t, []retention.Trimmed{
		{Stream: a.category.Stream("0"), Removed: 3, First: 3, Version: 4},
		{Stream: a.category.Stream("1"), Removed: 1, First: 1, Version: 4, Queue: parked.Name()},
		{Stream: a.category.Stream("2"), Removed: 3, First: 3, Version: 4},
	}, found)
}

// Other messages that are parked hold nothing back; a trim in parts comes as far as one in one
// part.
func TestATrimLooksAtParkedMessagesOfItsStreamOnly(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	stream := a.category.Stream("1")
	a.fill(t, stream, 6)
	a.fill(t, a.category.Stream("2"), 2)
	messages := a.read(t, stream)
	a.park(t, "one", a.read(t, a.category.Stream("2"))[0], messages[5]) // the second stays for keep
	trimmed := must.Do(a.admin.Trim(t.Context(), stream, &retention.TrimOptions{Keep: 5, MinAge: retention.AnyAge}))(t)
	require.Equal(t, retention.Trimmed{Stream: stream, Removed: 1, First: 1, Version: 5}, trimmed)

	parked := a.park(t, "two", messages[3])
	for _, want := range []struct {
		removed, first int64
		more           bool
	}{{1, 2, true}, {1, 3, true}, {0, 3, false}} {
		var removed, first int64
		var more bool
		var held *string
		err := a.pool.QueryRow(t.Context(), "select removed, first_position, more, queue from dibs.trim($1, 1, min_age => '0', max_messages => 1)", string(stream)).
			Scan(&removed, &first, &more, &held)
		require.NoError(t, err)
		require.Equal(t, want.removed, removed)
		require.Equal(t, want.first, first)
		require.Equal(t, want.more, more)
		require.Equal(t, !more, held != nil && *held == parked.Name())
	}
}
