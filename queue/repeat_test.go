package queue_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
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
			job := testkit.Receive(t, "a job", jobs)
			all[testkit.Must(messagestore.Decode[Send](job.Message)).To] = job
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

// The store is away when the worker ends, so nobody can tell.
func TestTheEndOfAJobWhoseWorkerHasEndedUnansweredIsUnknown(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		jobs := make(chan *queue.Job, 1)
		mux := handler.New()
		handler.On(mux, func(ctx context.Context, _ handler.Message[Send]) error {
			driver.set(is("take", "leave", "extend", "ready"), nil)
			jobs <- queue.JobOf(ctx)
			return nil
		})
		_, err := q.Insert(t.Context(), Send{}, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Work(ctx, mux, nil) }()
		job := <-jobs
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, messagestore.ErrOutcomeUnknown)

		require.ErrorIs(t, job.Complete(context.Background()), messagestore.ErrOutcomeUnknown)
	})
}

func TestAnInsertThatIsRepeatedWithAnotherDateIsTheFirst(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		date := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
		for name, opts := range map[string]queue.InsertOpts{"alone": {}, "of a key": {Key: "ann"}, "unique": {Unique: "ann"}, "until finished": {Unique: "bob", UniqueUntil: queue.UntilFinished}} {
			opts.ID, opts.ScheduledAt = uuid.Must(uuid.NewV7()), date
			first, err := q.Insert(t.Context(), Send{To: name}, &opts)
			require.NoError(t, err)
			_, err = q.Insert(t.Context(), Send{To: "behind"}, &queue.InsertOpts{Key: "ann"})
			require.NoError(t, err)

			for what, change := range map[string]func(o *queue.InsertOpts){
				"the same":       func(*queue.InsertOpts) {},
				"another date":   func(o *queue.InsertOpts) { o.ScheduledAt = date.Add(time.Hour) },
				"no date":        func(o *queue.InsertOpts) { o.ScheduledAt = time.Time{} },
				"other metadata": func(o *queue.InsertOpts) { o.Metadata.CorrelationStream = "a-1" },
			} {
				again := opts
				change(&again)
				repeated, err := q.Insert(t.Context(), Send{To: name}, &again)
				require.NoError(t, err, "%s, %s", name, what)
				require.Equal(t, queue.Inserted{ID: first.ID, Stream: first.Stream, Position: first.Position, Duplicate: true}, repeated, "%s, %s", name, what)
				if opts.Unique != "" {
					continue
				}
				many, err := q.InsertMany(t.Context(), queue.Entry{Body: Send{To: name}, Opts: &again})
				require.NoError(t, err, "%s, %s, in a batch", name, what)
				require.True(t, many[0].Duplicate)
			}
			item, err := q.Item(t.Context(), first.Position)
			require.NoError(t, err)
			require.True(t, date.Equal(item.Due), "the first date stands")

			_, err = q.Insert(t.Context(), Send{To: "other data"}, &queue.InsertOpts{ID: opts.ID, Key: opts.Key})
			require.ErrorIs(t, err, messagestore.ErrIDConflict, name)
			_, err = q.Insert(t.Context(), Send{To: name}, &queue.InsertOpts{ID: opts.ID, Key: "another"})
			require.ErrorIs(t, err, messagestore.ErrIDConflict, name)
		}
	})
}

func TestAUniqueNameThatNobodyFreesIsWarnedOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lines
		store := testkit.Must(messagestore.New(memory.New(), nil))
		worker := testkit.Must(queue.New(store, "mail", &queue.Config{Name: "mailer", Logger: logger.Silent()}))
		producer := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: log.logger()}))
		unique := &queue.InsertOpts{Unique: "ann", UniqueUntil: queue.UntilFinished}
		_, err := producer.Insert(t.Context(), Send{}, unique)
		require.NoError(t, err)
		require.Empty(t, log.said(t), "its workers may come yet")
		jobs, err := worker.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.NoError(t, jobs[0].Complete(t.Context()))

		for range 3 {
			time.Sleep(time.Minute)
			for range 10 {
				again, err := producer.Insert(t.Context(), Send{}, unique)
				require.NoError(t, err)
				require.True(t, again.Duplicate)
			}
		}

		said := log.said(t)
		require.Len(t, said, 3)
		require.Contains(t, said[0], "its unique names are not freed")
		jobs, err = producer.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.NoError(t, jobs[0].Complete(t.Context()))
		time.Sleep(time.Hour)
		freed, err := producer.Insert(t.Context(), Send{}, unique)
		require.NoError(t, err)
		require.False(t, freed.Duplicate)
		require.Empty(t, log.said(t))
	})
}
