package queuestate_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
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
	l.store = testkit.Must(messagestore.New(l.Driver, nil))
	return l
}

func (l *line) insert(t *testing.T, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if key == "" {
			key = uuid.NewString()
		}
		testkit.Do(l.store.Write(t.Context(), mail.Category.Stream(key), messagestore.AnyVersion, messagestore.Raw{Type: "Send", Data: []byte(`{}`)}))(t)
	}
}

func (l *line) take(t *testing.T, take queuing.Take) queuing.Taken {
	t.Helper()
	take.Queue, take.Lease = mail, time.Minute
	take.Session = max(take.Session, 1)
	take.MaxFailures = max(take.MaxFailures, 5)
	taken := testkit.Do(l.QueueTake(t.Context(), take))(t)
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
