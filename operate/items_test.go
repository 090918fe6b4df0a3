package operate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/operate"
	"github.com/dibs-go/dibs/queue"
)

// mail returns a queue with dead items of two errors, one later item, and one that waits.
func mail(t *testing.T) *queue.Queue {
	t.Helper()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	q := testkit.Must(queue.New(store, "mail", &queue.Config{MaxFailures: 1, Logger: logger.Silent()}))
	for n := range 6 {
		name := "Send"
		if n == 0 {
			name = "Bounce"
		}
		testkit.Do(q.Insert(t.Context(), messagestore.Raw{Type: name, Data: []byte(`{}`)}, &queue.InsertOpts{Key: fmt.Sprint("k", n)}))(t)
	}
	jobs := testkit.Do(q.Receive(t.Context(), 5, nil))(t)
	for n, job := range jobs[:3] {
		require.NoError(t, job.Bury(t.Context(), fmt.Errorf("dial tcp 10.0.0.%d: connection refused", n)))
	}
	require.NoError(t, jobs[3].Bury(t.Context(), errors.New("no such mailbox")))
	require.NoError(t, jobs[4].Defer(t.Context(), time.Hour))
	return q
}

func matched(t *testing.T, q *queue.Queue, action operate.Action, f operate.Filter) []messagestore.GlobalPosition {
	t.Helper()
	positions := []messagestore.GlobalPosition{}
	for item, err := range operate.Items(t.Context(), q, action, f) {
		require.NoError(t, err)
		positions = append(positions, item.Position)
	}
	return positions
}

func TestAFilterChoosesItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := mail(t)
		time.Sleep(time.Minute)
		testkit.Do(q.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte(`{}`)}, nil))(t)
		for _, c := range []struct {
			action operate.Action
			filter operate.Filter
			want   []messagestore.GlobalPosition
		}{
			{operate.Retry, operate.Filter{}, []messagestore.GlobalPosition{5, 1, 2, 3, 4}},
			{operate.Retry, operate.Filter{State: queue.Dead}, []messagestore.GlobalPosition{1, 2, 3, 4}},
			{operate.Drop, operate.Filter{Error: "refused"}, []messagestore.GlobalPosition{1, 2, 3}},
			{operate.Drop, operate.Filter{Error: "refused", Type: "Bounce"}, []messagestore.GlobalPosition{1}},
			{operate.Cancel, operate.Filter{}, []messagestore.GlobalPosition{6, 7, 5, 1, 2, 3, 4}},
			{operate.Cancel, operate.Filter{Key: "k5"}, []messagestore.GlobalPosition{6}},
			{operate.Cancel, operate.Filter{OlderThan: time.Minute, State: queue.Waiting}, []messagestore.GlobalPosition{6}},
			{operate.Cancel, operate.Filter{OlderThan: time.Hour}, []messagestore.GlobalPosition{}},
		} {
			require.Equal(t, c.want, matched(t, q, c.action, c.filter), "%s %+v", c.action, c.filter)
		}
	})
}

func TestErrorsAreGroupedButForTheirNumbers(t *testing.T) {
	t.Parallel()
	groups := testkit.Do(operate.Groups(operate.Items(t.Context(), mail(t), operate.Retry, operate.Filter{State: queue.Dead})))(t)
	require.Len(t, groups, 2)
	require.Equal(t, 3, groups[0].Count)
	require.Equal(t, "dial tcp 10.0.0.2: connection refused", groups[0].Error)
	require.EqualValues(t, 3, groups[0].Position)
	require.False(t, groups[0].Newest.Before(groups[0].Oldest))
	require.Equal(t, "no such mailbox", groups[1].Error)
}

func TestManyItemsAreChangedOnceEach(t *testing.T) {
	t.Parallel()
	q := mail(t)
	n, err := operate.Change(t.Context(), q, operate.Retry, operate.Filter{Error: "refused"}, &operate.ChangeOpts{Reason: "it is back"})
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, "it is back", testkit.Do(q.Item(t.Context(), 2))(t).Log[1].Text)
	require.Empty(t, matched(t, q, operate.Retry, operate.Filter{State: queue.Dead, Error: "refused"}))
	n, err = operate.Change(t.Context(), q, operate.Cancel, operate.Filter{}, nil)
	require.NoError(t, err)
	require.Equal(t, 6, n)
	require.Zero(t, testkit.Do(operate.Change(t.Context(), q, operate.Cancel, operate.Filter{}, nil))(t))
}

func TestARateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, began := mail(t), time.Now()
		var after []time.Duration
		n, err := operate.Change(t.Context(), q, operate.Drop, operate.Filter{State: queue.Dead}, &operate.ChangeOpts{Rate: 0.5, Progress: func(int) { after = append(after, time.Since(began)) }})
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, []time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second}, after)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err = operate.Change(ctx, q, operate.Cancel, operate.Filter{}, &operate.ChangeOpts{Rate: 0.5})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 1, n, "what was done is told")
	})
}

func TestWrongChangesAreRefused(t *testing.T) {
	t.Parallel()
	q := mail(t)
	for what, c := range map[string]struct {
		action operate.Action
		filter operate.Filter
		rate   float64
		field  string
	}{
		"an action":    {action: "bury", field: "action"},
		"a state":      {action: operate.Retry, filter: operate.Filter{State: queue.Out}, field: "State"},
		"no state":     {action: operate.Drop, filter: operate.Filter{State: "asleep"}, field: "State"},
		"an age":       {action: operate.Drop, filter: operate.Filter{OlderThan: -1}, field: "OlderThan"},
		"a rate":       {action: operate.Drop, rate: -1, field: "Rate"},
		"not a number": {action: operate.Drop, rate: math.NaN(), field: "Rate"},
	} {
		_, err := operate.Change(t.Context(), q, c.action, c.filter, &operate.ChangeOpts{Rate: c.rate})
		var invalid *messagestore.InvalidError
		require.ErrorAs(t, err, &invalid, what)
		require.Equal(t, c.field, invalid.Field, what)
	}
}
