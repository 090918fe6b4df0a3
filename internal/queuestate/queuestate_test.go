package queuestate_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/queuing"
)

// A line is a queue whose clock the test moves.
type line struct {
	*memory.Driver
	store *messagestore.Store
	now   time.Time
}

var mail = queuing.Queue{Name: "mail", Category: "mail"}

func newLine() *line {
	l := &line{now: time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)}
	l.Driver = memory.NewWithClock(func() time.Time { return l.now })
	l.store = must.New(messagestore.New(l.Driver, nil))
	return l
}

func (l *line) insert(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if key == "" {
			key = uuid.NewString()
		}
		_, err := l.store.Write(t.Context(), mail.Category.Stream(key), messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
}

func (l *line) take(t *testing.T, take queuing.Take) queuing.Taken {
	t.Helper()
	take.Queue, take.Lease = mail, time.Minute
	take.Session = max(take.Session, 1)
	take.MaxFailures = max(take.MaxFailures, 5)
	taken, err := l.QueueTake(t.Context(), take)
	require.NoError(t, err)
	return taken
}

func completion(item queuing.Taking) queuing.Take {
	return queuing.Take{Finishes: []queuing.Finish{{Delivery: item.Delivery(), Kind: queuing.Complete}}}
}

// A take that only finishes changes the head, and so the time from which tokens are counted.
func TestATakeThatReservesNothingSpendsNoTokens(t *testing.T) {
	t.Parallel()
	l := newLine()
	l.insert(t, "", "", "")
	limited := func(take queuing.Take) queuing.Taken {
		take.Rate, take.Burst = 1, 1
		return l.take(t, take)
	}
	first := limited(queuing.Take{Want: 1})
	require.Len(t, first.Items, 1)
	second := limited(queuing.Take{Want: 1})
	require.Empty(t, second.Items)
	require.Equal(t, time.Second, second.Wake)

	l.now = l.now.Add(900 * time.Millisecond)
	limited(completion(first.Items[0]))
	l.now = l.now.Add(100 * time.Millisecond)
	require.Len(t, limited(queuing.Take{Want: 1}).Items, 1)
}

// A caller that has gone leaves its ticket behind. The next one drops it.
func TestTicketsThatAreOverAreDropped(t *testing.T) {
	t.Parallel()
	l := newLine()
	for session := range int64(100) {
		require.NotZero(t, l.take(t, queuing.Take{Session: session + 1, Want: 10, Wait: time.Second}).Ticket)
	}
	l.now = l.now.Add(2 * time.Second)
	waiting := l.take(t, queuing.Take{Session: 200, Want: 1, Wait: time.Minute})
	l.insert(t, "")
	require.Empty(t, l.take(t, queuing.Take{Session: 201, Want: 1}).Items, "behind the caller who waits, though a hundred tickets that are over are before it")
	require.Len(t, l.take(t, queuing.Take{Session: 200, Want: 1, Ticket: waiting.Ticket}).Items, 1)
}

// An item whose completion no take was told of lets go what is behind it, however many others are held.
func TestItemsBehindAnUnreportedCompletionAreLetGo(t *testing.T) {
	t.Parallel()
	l := newLine()
	l.insert(t, "busy", "busy", "busy", "done", "done")
	items := l.take(t, queuing.Take{Want: 5}).Items
	require.Len(t, items, 2)
	endings, err := l.QueueFinish(t.Context(), mail, []queuing.Delivery{items[1].Delivery()})
	require.NoError(t, err)
	require.Equal(t, []queuing.Ending{queuing.Done}, endings)
	require.Empty(t, l.take(t, queuing.Take{Want: 5}).Items)
	ready, err := l.QueueReady(t.Context(), mail)
	require.NoError(t, err)
	require.False(t, ready.Ready)
	require.Equal(t, queuing.OrphanInterval, ready.Wake)

	l.now = l.now.Add(ready.Wake)
	let := l.take(t, queuing.Take{Want: 5}).Items
	require.Len(t, let, 1)
	require.Equal(t, mail.Category.Stream("done"), let[0].Message.Stream)
	require.Equal(t, messagestore.Version(1), let[0].Message.Position)
}

func TestWhatBreaksTheStateIsRefused(t *testing.T) {
	t.Parallel()
	l := newLine()
	for field, spoil := range map[string]func(*queuing.Take){
		"queue":        func(t *queuing.Take) { t.Name = "a-b" },
		"category":     func(t *queuing.Take) { t.Category = "a-b" },
		"session":      func(t *queuing.Take) { t.Session = 0 },
		"lease":        func(t *queuing.Take) { t.Lease = queuing.MinLease - 1 },
		"want":         func(t *queuing.Take) { t.Want = queuing.MaxItems + 1 },
		"wait":         func(t *queuing.Take) { t.Wait = queuing.MaxWait + 1 },
		"max failures": func(t *queuing.Take) { t.MaxFailures = 0 },
		"max out":      func(t *queuing.Take) { t.MaxOut = -1 },
		"rate":         func(t *queuing.Take) { t.Rate = -1 },
		"burst":        func(t *queuing.Take) { t.Rate = 1 },
		"finishes":     func(t *queuing.Take) { t.Finishes = make([]queuing.Finish, queuing.MaxItems+1) },
		"kind":         func(t *queuing.Take) { t.Finishes = make([]queuing.Finish, 1) },
	} {
		t.Run(field, func(t *testing.T) {
			take := queuing.Take{Queue: mail, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Minute}
			spoil(&take)
			_, err := l.QueueTake(t.Context(), take)
			var invalid *messagestore.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.Equal(t, field, invalid.Field)
		})
	}
	session := queuing.Leave{Queue: mail, Session: 1, Next: 1, Lease: time.Minute}
	require.ErrorIs(t, l.QueueLeave(t.Context(), session), messagestore.ErrInvalid)
	_, err := l.QueueExtend(t.Context(), queuing.Extension{Queue: mail, Session: 1})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = l.QueueFinish(t.Context(), mail, nil)
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = l.QueueChange(t.Context(), queuing.Change{Queue: mail, Action: "stop"})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	_, err = l.QueueItems(t.Context(), queuing.List{Queue: mail, State: queuing.Finished, Limit: 1})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	all, err := l.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, all, "no queue was made for a call that was refused")
}
