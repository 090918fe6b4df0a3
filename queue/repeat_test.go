package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// A handler's goroutine that goes on after it returned ends the job as the handler did.
func TestAJobThatIsEndedAsItsHandlerEndedItIsDone(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		failed := errors.New("failed")
		jobs := make(chan *queue.Job, 4)
		results := map[string]error{"complete": nil, "retry": failed, "bury": handler.Park(failed), "defer": handler.RetryAfter(time.Hour, failed)}
		stop := working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			jobs <- queue.JobOf(ctx)
			return results[m.Body.To]
		}, &queue.WorkConfig{MinBackoff: time.Hour, MaxBackoff: time.Hour})
		for to := range results {
			_, err := q.Insert(t.Context(), Send{To: to}, nil)
			require.NoError(t, err)
		}
		all := map[string]*queue.Job{}
		for range results {
			job := await.Receive(t, "a job", jobs)
			all[must.New(messagestore.Decode[Send](job.Message)).To] = job
		}
		check := func(when string) {
			for result, job := range all {
				for end, f := range map[string]func() error{
					"complete": func() error { return job.Complete(t.Context()) },
					"retry":    func() error { return job.Retry(t.Context(), time.Minute, failed) },
					"bury":     func() error { return job.Bury(t.Context(), failed) },
					"defer":    func() error { return job.Defer(t.Context(), time.Minute) },
				} {
					// The handler may have not returned yet when the first call ends its job: then the call counts.
					if item, err := q.Item(t.Context(), job.Message.GlobalPosition); end != result && err == nil && item.State != queue.Out {
						require.ErrorIs(t, f(), queue.ErrLost, "%s of %s, %s", end, result, when)
					}
					if end == result {
						require.NoError(t, f(), "%s of %s, %s", end, result, when)
					}
				}
			}
		}
		check("while it works")
		require.NoError(t, stop())
		check("after its end")
	})
}
