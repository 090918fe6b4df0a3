package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

func TestProgressOfAHandlerIsShownWhileItRuns(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		goOn := make(chan struct{})
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			for n := range 9 {
				if err := queue.JobOf(ctx).Progress(fmt.Sprintf("%d of 9 to %s", n+1, m.Body.To)); err != nil {
					return err
				}
			}
			<-goOn
			return nil
		}, &queue.WorkConfig{Lease: 3 * time.Second}) // whose third is how often notes are stored
		ann, bob := insert(t, q, Send{To: "ann"}, nil), insert(t, q, Send{To: "bob"}, nil)
		testkit.Await(t, "both have a note", func() (bool, any) {
			items := testkit.Must(q.Items(t.Context(), queue.Out, 0, 9))
			return len(items) == 2 && items[0].Note == "9 of 9 to ann" && items[1].Note == "9 of 9 to bob", items
		})

		close(goOn)

		for _, at := range []messagestore.GlobalPosition{ann.Position, bob.Position} {
			require.Empty(t, awaitState(t, q, at, queue.Finished).Note)
		}
	})
}

func (d *cut) noted() (all []queuing.Notes) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.notes
}

func TestProgressIsStoredOnceASecondAndMakesNoCall(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, d *cut) {
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			for n := 0; m.Body.To == "ann" && ctx.Err() == nil && n < 6000; n++ {
				if err := queue.JobOf(ctx).Progress(fmt.Sprint(n)); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
			}
			time.Sleep(6 * time.Second)
			return nil
		}, &queue.WorkConfig{Lease: 300 * time.Millisecond})
		at := insert(t, q, Send{To: "ann"}, nil)
		insert(t, q, Send{To: "bob"}, nil)
		time.Sleep(11 * time.Second)
		synctest.Wait()

		require.Equal(t, "5999", item(t, q, at.Position).Note, "the last wins")
		notes := d.noted()
		require.GreaterOrEqual(t, len(notes), 5)
		require.LessOrEqual(t, len(notes), 8, "of six seconds")
		require.Greater(t, d.calls("extend"), 50, "the others had none")
		for _, n := range notes {
			require.Len(t, n, 1)
		}
	})
}

func TestProgressMovesToTheNextSession(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, d *cut) {
		working(t, q, func(ctx context.Context, m handler.Message[Send]) (err error) {
			if m.Body.To == "ann" {
				err = queue.JobOf(ctx).Progress("half of it")
			}
			<-ctx.Done()
			return err
		}, nil)
		at := insert(t, q, Send{To: "ann"}, nil)
		time.Sleep(5 * time.Second)
		require.Equal(t, "half of it", item(t, q, at.Position).Note)
		session := item(t, q, at.Position).Session

		d.set(nil, first(1, "take"))
		insert(t, q, Send{}, nil)
		time.Sleep(5 * time.Second)

		require.NotEqual(t, session, item(t, q, at.Position).Session)
		require.Equal(t, "half of it", item(t, q, at.Position).Note)
	})
}

func TestProgressOfADeliveryThatHasEndedIsLost(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		late := make(chan error, 1)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			<-ctx.Done()
			late <- queue.JobOf(ctx).Progress("half of it")
			return nil
		}, nil)
		at := insert(t, q, Send{}, nil)
		synctest.Wait()
		testkit.Must(q.Cancel(t.Context(), "sent twice", at.Position))
		require.ErrorIs(t, <-late, queue.ErrLost)
	})
}

func TestProgressOfAReceivedJobGoesWithItsExtension(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, d *cut) {
		at, next := insert(t, q, Send{}, nil), insert(t, q, Send{}, nil)
		jobs := testkit.Must(q.Receive(t.Context(), 2, nil))
		for _, job := range jobs {
			require.NoError(t, job.Progress("half of it"))
		}
		require.Empty(t, item(t, q, at.Position).Note)

		require.NoError(t, jobs[0].Extend(t.Context(), time.Minute))

		require.Equal(t, "half of it", item(t, q, at.Position).Note)
		require.Equal(t, "half of it", item(t, q, next.Position).Note, "of the same call")
		require.NoError(t, jobs[0].Progress("all of it"))
		require.NoError(t, jobs[0].Extend(t.Context(), time.Minute))
		require.Equal(t, "half of it", item(t, q, at.Position).Note, "within a second")
		time.Sleep(time.Second)
		d.set(first(1, "extend"), nil)
		require.ErrorIs(t, jobs[0].Extend(t.Context(), time.Minute), errAway)
		time.Sleep(time.Second)
		require.NoError(t, jobs[1].Extend(t.Context(), time.Minute))
		require.Equal(t, "all of it", item(t, q, at.Position).Note, "what was not stored is stored by the next")

		require.NoError(t, jobs[0].Progress(strings.Repeat("x", 1024)))
		require.NoError(t, jobs[0].Progress(""))
		for _, note := range []string{strings.Repeat("x", 1025), "a\x00b", "a\nb", "\xff"} {
			require.ErrorIs(t, jobs[0].Progress(note), messagestore.ErrInvalid)
		}
		require.NoError(t, jobs[0].Complete(t.Context()))
		require.ErrorIs(t, jobs[0].Progress("late"), queue.ErrLost)
	})
}
