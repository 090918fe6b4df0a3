package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

// A slow driver's next take is carried out when the test says so, even if its context has ended by
// then: a database learns late, or never, that nobody waits for an answer.
type slow struct {
	*memory.Driver

	taking, goOn, taken chan struct{}
}

func (d *slow) QueueTake(ctx context.Context, t queuing.Take) (queuing.Taken, error) {
	type answer struct {
		taken queuing.Taken
		err   error
	}
	answered := make(chan answer, 1)
	select {
	case d.taking <- struct{}{}:
	default: // another take than the first
		return d.Driver.QueueTake(ctx, t)
	}
	go func() {
		<-d.goOn
		taken, err := d.Driver.QueueTake(context.WithoutCancel(ctx), t)
		close(d.taken)
		answered <- answer{taken, err}
	}()
	select {
	case <-ctx.Done():
		return queuing.Taken{}, &messagestore.OutcomeUnknownError{Cause: ctx.Err()}
	case got := <-answered:
		return got.taken, got.err
	}
}

// An item that a take reserves after its caller has gone is given back, without a failure.
func TestWhatATakeReservesForACallerWhoHasGoneIsGivenBack(t *testing.T) {
	t.Parallel()
	d := &slow{Driver: memory.New(), taking: make(chan struct{}, 1), goOn: make(chan struct{}), taken: make(chan struct{})}
	store, err := messagestore.New(d, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	q, err := queue.New(store, "mail", &queue.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	_, err = q.Insert(t.Context(), messagestore.Raw{Type: "Send", Data: []byte(`{}`)}, nil)
	require.NoError(t, err)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := q.Receive(ctx, 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})
		gone <- err
	}()
	testkit.AwaitTrue(t, "the take has begun", func() bool { return len(d.taking) == 1 })
	hangUp()
	require.ErrorIs(t, testkit.Receive(t, "the end of the call", gone), context.Canceled)
	close(d.goOn)
	<-d.taken
	testkit.AwaitTrue(t, "another caller gets the item", func() bool {
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		if len(jobs) == 1 {
			require.Zero(t, jobs[0].Failures)
		}
		return len(jobs) == 1
	})
}
