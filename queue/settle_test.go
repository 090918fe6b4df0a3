package queue_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// receive returns jobs, of which there must be n.
func receive(t *testing.T, q *queue.Queue, n int, opts *queue.ReceiveOpts) []*queue.Job {
	t.Helper()
	jobs, err := q.Receive(t.Context(), n, opts)
	require.NoError(t, err)
	require.Len(t, jobs, n)
	return jobs
}

// elsewhere returns the queue as another process has it.
func elsewhere(t *testing.T, q *queue.Queue, store *messagestore.Store) *queue.Queue {
	t.Helper()
	return testkit.Must(queue.New(store, q.Category(), &queue.Config{Logger: logger.Silent()}))
}

func TestDeliveriesOfManyCallsAreSettledInOneByAnotherProcess(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		var settlements []queue.Settlement
		for _, action := range []queue.Settlement{
			{Action: queue.Complete},
			{Action: queue.Retry, Delay: time.Hour, Error: "no answer\x00"},
			{Action: queue.Defer, Delay: time.Hour},
			{Action: queue.Bury, Error: "no such address"},
			{Action: queue.Complete},
		} {
			insert(t, q, Send{}, nil)
			action.Delivery = receive(t, q, 1, nil)[0].Delivery()
			settlements = append(settlements, action)
		}
		settlements[4].Delivery.Session++ // of nobody
		want := []error{nil, nil, nil, nil, queue.ErrLost}
		other := elsewhere(t, q, store)

		for range 2 { // to settle again is no mistake
			require.Equal(t, want, testkit.Do(other.Settle(t.Context(), settlements...))(t))

			for i, state := range []string{"finished ", "later r", "later f", "dead x", "out "} {
				of := item(t, q, settlements[i].Delivery.Position)
				require.Equal(t, state, string(of.State)+" "+whats(of))
			}
		}
		require.Equal(t, "no answer ", item(t, q, settlements[1].Delivery.Position).Error)
		require.Equal(t, "no such address", item(t, q, settlements[3].Delivery.Position).Error)
		settlements[1].Action, settlements[1].Delay, settlements[1].Error = queue.Complete, 0, ""
		require.Equal(t, want[4:], testkit.Do(other.Settle(t.Context(), settlements[1]))(t), "it has ended otherwise")
	})
}

// The settlements of one item are done in their order, and each has an outcome.
func TestSettlementsOfOneItemAreDoneInTheirOrder(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		at := insert(t, q, Send{}, nil)
		late := receive(t, q, 1, nil)[0]
		require.NoError(t, late.Defer(t.Context(), 0))
		d := receive(t, q, 1, nil)[0].Delivery()

		outcomes, jobs, err := q.SettleAndReceive(t.Context(), []queue.Settlement{
			{Delivery: late.Delivery(), Action: queue.Complete},
			{Delivery: d, Action: queue.Retry, Error: "no"},
			{Delivery: d, Action: queue.Complete},
			{Delivery: d, Action: queue.Retry},
		}, 1, nil)

		require.NoError(t, err)
		require.Equal(t, []error{queue.ErrLost, nil, queue.ErrLost, nil}, outcomes)
		require.Len(t, jobs, 1)
		require.Equal(t, "fr", whats(item(t, q, at.Position)))
		require.Equal(t, []error{queue.ErrLost, nil}, testkit.Do(q.Settle(t.Context(),
			queue.Settlement{Delivery: d, Action: queue.Complete},
			queue.Settlement{Delivery: jobs[0].Delivery(), Action: queue.Complete},
		))(t))
	})
}

func TestDeliveriesOfManyCallsAreExtendedInOne(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		var all []queue.Delivery
		for range 3 {
			insert(t, q, Send{}, nil)
			all = append(all, receive(t, q, 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})[0].Delivery())
		}
		stranger := all[2]
		stranger.Session++
		require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), queue.Settlement{Delivery: all[1], Action: queue.Complete}))(t))

		outcomes := testkit.Do(elsewhere(t, q, store).ExtendAll(t.Context(), 10*time.Hour, append(all, stranger, all[0])...))(t)

		require.Equal(t, []error{nil, queue.ErrLost, nil, queue.ErrLost, nil}, outcomes)
		for _, i := range []int{0, 2} {
			require.Greater(t, time.Until(item(t, q, all[i].Position).Until), 9*time.Hour)
		}
	})
}

// A worker that settles its last items with the call for the next makes one call of the store.
func TestSettlingAndReceivingIsOneCallOfTheStore(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		for range 30 {
			insert(t, q, Send{}, nil)
		}
		var settlements []queue.Settlement
		handled := 0
		for {
			before := driver.calls("take")
			outcomes, jobs, err := q.SettleAndReceive(t.Context(), settlements, 10, nil)
			require.NoError(t, err)
			require.Equal(t, before+1, driver.calls("take"))
			require.Len(t, outcomes, len(settlements))
			require.NotContains(t, outcomes, queue.ErrLost)
			settlements = nil
			for _, job := range jobs {
				settlements = append(settlements, queue.Settlement{Delivery: job.Delivery(), Action: queue.Complete})
			}
			if handled += len(jobs); len(jobs) == 0 {
				break
			}
		}
		require.Equal(t, 30, handled)
		require.EqualValues(t, 30, testkit.Do(q.Status(t.Context()))(t).Finished)
	})
}

// A call that waits has settled before, and says so although it ends with an error.
func TestSettlementsAreDoneBeforeTheWait(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		for _, others := range []int{0, 3} {
			at := insert(t, q, Send{}, nil)
			d := receive(t, q, 1, nil)[0].Delivery()
			for range others {
				go func() { _, _ = q.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute}) }()
			}
			synctest.Wait()
			ctx, end := context.WithTimeout(t.Context(), 10*time.Second)
			type answer struct {
				outcomes []error
				err      error
			}
			answers := testkit.Go(func() answer {
				outcomes, _, err := q.SettleAndReceive(ctx, []queue.Settlement{{Delivery: d, Action: queue.Complete}}, 1, &queue.ReceiveOpts{Wait: time.Hour / 4})
				return answer{outcomes, err}
			})
			time.Sleep(time.Second)
			require.Equal(t, queue.Finished, item(t, q, at.Position).State)
			a := <-answers
			require.ErrorIs(t, a.err, context.DeadlineExceeded)
			require.Equal(t, []error{nil}, a.outcomes)
			end()
			time.Sleep(time.Minute)
		}
	})
}

func TestALostAnswerToSettlementsIsAskedForAgain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		insert(t, q, Send{}, nil)
		s := queue.Settlement{Delivery: receive(t, q, 1, nil)[0].Delivery(), Action: queue.Retry, Delay: time.Hour}
		driver.set(nil, first(1, "take"))
		require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), s))(t))

		driver.set(nil, is("take"))
		outcomes, err := q.Settle(t.Context(), s)
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Nil(t, outcomes)
		outcomes, _, err = q.SettleAndReceive(t.Context(), []queue.Settlement{s}, 1, nil)
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.Nil(t, outcomes, "nobody knows")
	})
}

func TestHostileSettlementsAreRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		good := queue.Delivery{Position: 1, Session: 1}
		for what, test := range map[string]struct {
			s           queue.Settlement
			field, rule string
		}{
			"no delivery":      {queue.Settlement{Action: queue.Complete}, "settlements[1].Delivery.Position", "at least 1"},
			"no session":       {queue.Settlement{Delivery: queue.Delivery{Position: 1}, Action: queue.Complete}, "settlements[1].Delivery.Session", "at least 1"},
			"a low version":    {queue.Settlement{Delivery: queue.Delivery{Position: 1, Session: 1, Version: -1}, Action: queue.Bury}, "settlements[1].Delivery.Version", "between 0"},
			"a large version":  {queue.Settlement{Delivery: queue.Delivery{Position: 1, Session: 1, Version: math.MaxInt32 + 1}, Action: queue.Bury}, "settlements[1].Delivery.Version", "between 0"},
			"no action":        {queue.Settlement{Delivery: good}, "settlements[1].Action", "Complete, Retry"},
			"another action":   {queue.Settlement{Delivery: good, Action: "drop"}, "settlements[1].Action", "Complete, Retry"},
			"a negative delay": {queue.Settlement{Delivery: good, Action: queue.Retry, Delay: -1}, "settlements[1].Delay", "0s and"},
			"101 years":        {queue.Settlement{Delivery: good, Action: queue.Defer, Delay: 101 * 365 * 24 * time.Hour}, "settlements[1].Delay", "0s and"},
			"a late end":       {queue.Settlement{Delivery: good, Action: queue.Complete, Delay: 1}, "settlements[1].Delay", "0 unless"},
			"a late burial":    {queue.Settlement{Delivery: good, Action: queue.Bury, Delay: 1}, "settlements[1].Delay", "0 unless"},
			"a failed end":     {queue.Settlement{Delivery: good, Action: queue.Complete, Error: "no"}, "settlements[1].Error", "empty"},
		} {
			_, err := q.Settle(t.Context(), queue.Settlement{Delivery: good, Action: queue.Complete}, test.s)
			requireInvalid(t, what, err, test.field, test.rule)
			_, _, err = q.SettleAndReceive(t.Context(), []queue.Settlement{{Delivery: good, Action: queue.Complete}, test.s}, 1, nil)
			requireInvalid(t, what, err, test.field, test.rule)
		}
		for what, err := range map[string]error{
			"none":     failure(q.Settle(t.Context())),
			"too many": failure(q.Settle(t.Context(), make([]queue.Settlement, 1001)...)),
			"too many at once": func() error {
				_, _, err := q.SettleAndReceive(t.Context(), make([]queue.Settlement, 1001), 1, nil)
				return err
			}(),
			"no queue":          failure((*queue.Queue)(nil).Settle(t.Context(), queue.Settlement{})),
			"none to extend":    failure(q.ExtendAll(t.Context(), time.Hour)),
			"many to extend":    failure(q.ExtendAll(t.Context(), time.Hour, make([]queue.Delivery, 1001)...)),
			"no time":           failure(q.ExtendAll(t.Context(), 0, good)),
			"a long time":       failure(q.ExtendAll(t.Context(), 25*time.Hour, good)),
			"nothing to extend": failure(q.ExtendAll(t.Context(), time.Hour, queue.Delivery{})),
			"an attempt":        failure(q.Receive(t.Context(), 1, &queue.ReceiveOpts{Attempt: 1})),
			"attempt -1":        failure(q.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: uuid.New(), Attempt: -1})),
			"nothing to repeat": failure(q.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: uuid.New(), RepeatOnly: true})),
			"a repeat waits":    failure(q.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: uuid.New(), Attempt: 1, RepeatOnly: true, Wait: time.Second})),
			"attempt 101":       failure(q.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: uuid.New(), Attempt: 101})),
		} {
			require.ErrorIs(t, err, messagestore.ErrInvalid, what)
			require.Less(t, len(err.Error()), 1000)
		}
		require.Empty(t, driver.called, "nothing was asked")

		insert(t, q, Send{}, nil)
		d := receive(t, q, 1, nil)[0].Delivery()
		require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), queue.Settlement{Delivery: d, Action: queue.Bury, Error: strings.Repeat("x\x00\xff", 10<<20)}))(t))
		require.Less(t, len(item(t, q, d.Position).Error), 4096)
		require.Equal(t, queue.Delivery{}, queue.JobOf(t.Context()).Delivery())
	})
}

// The caller of a lost answer gets its items by calling again, under the same versions, and no failure is counted.
func TestARepeatedReceiveGetsItsItemsBack(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		for range 4 {
			insert(t, q, Send{}, nil)
		}
		id := uuid.New()
		lost := receive(t, q, 2, &queue.ReceiveOpts{ID: id})
		other := elsewhere(t, q, store)

		again := receive(t, other, 2, &queue.ReceiveOpts{ID: id, Attempt: 1, RepeatOnly: true})

		for i, job := range again {
			require.Equal(t, lost[i].Message.GlobalPosition, job.Message.GlobalPosition)
			require.Zero(t, job.Deliveries+job.Failures)
			require.NotEqual(t, lost[i].Delivery(), job.Delivery())
			require.ErrorIs(t, lost[i].Retry(t.Context(), 0, nil), queue.ErrLost, "whoever worked on it is late")
			require.ErrorIs(t, lost[i].Extend(t.Context(), time.Hour), queue.ErrLost)
			require.Empty(t, item(t, q, job.Message.GlobalPosition).Log)
		}
		one := receive(t, q, 1, &queue.ReceiveOpts{ID: id, Attempt: 100})
		require.Equal(t, again[0].Message.GlobalPosition, one[0].Message.GlobalPosition)
		require.Equal(t, "later u", func() string {
			of := item(t, q, again[1].Message.GlobalPosition)
			return string(of.State) + " " + whats(of)
		}(), "more than it wants are offered again")
		require.NoError(t, one[0].Complete(t.Context()))
		require.Empty(t, testkit.Must(other.Receive(t.Context(), 1, &queue.ReceiveOpts{ID: id, Attempt: 100, RepeatOnly: true})), "what the call had was ended or given back, and others are left alone")
		next := receive(t, q, 1, &queue.ReceiveOpts{ID: uuid.New(), Attempt: 7})
		require.Equal(t, again[1].Message.GlobalPosition, next[0].Message.GlobalPosition, "another call has none, so it takes")
	})
}

// A process that sees that its caller has gone gives nothing back that the caller has got since.
func TestAnEarlierAttemptGivesNothingBackThatALaterOneHas(t *testing.T) {
	for _, waits := range []time.Duration{0, time.Minute} {
		t.Run(waits.String(), func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				at := insert(t, q, Send{}, nil)
				id := uuid.New()
				ctx, hangUp := context.WithCancel(t.Context())
				driver.delay("take", 10*time.Second)
				gone := testkit.Go(func() error { return failure(q.Receive(ctx, 1, &queue.ReceiveOpts{ID: id, Wait: waits})) })
				time.Sleep(time.Second)
				hangUp()
				driver.delay("take", 0)

				job := receive(t, q, 1, &queue.ReceiveOpts{ID: id, Attempt: 1, Wait: waits})[0]

				require.ErrorIs(t, <-gone, context.Canceled)
				require.Equal(t, queue.Out, item(t, q, at.Position).State)
				require.NoError(t, job.Complete(t.Context()))
				time.Sleep(10 * time.Second) // the first has its answer
				require.Empty(t, item(t, q, at.Position).Log)
				require.Equal(t, 1, driver.calls("leave"))
			})
		})
	}
}

// An attempt whose time has passed has nothing: that it was over is a failure, as ever.
func TestARepeatedReceiveGetsNothingThatIsOver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		at := insert(t, q, Send{}, nil)
		id := uuid.New()
		receive(t, q, 1, &queue.ReceiveOpts{ID: id, VisibilityTimeout: time.Second})
		time.Sleep(2 * time.Second)

		job := receive(t, q, 1, &queue.ReceiveOpts{ID: id, Attempt: 1})[0]

		require.Equal(t, 1, job.Failures)
		require.Equal(t, "e", whats(item(t, q, at.Position)))
	})
}
