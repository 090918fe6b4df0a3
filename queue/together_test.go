package queue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// A settled is the answer to Settle.
type settled struct {
	outcomes []error
	err      error
}

// settle has a call of Settle begin, and returns when it waits for its answer.
func settle(ctx context.Context, q *queue.Queue, s ...queue.Settlement) <-chan settled {
	answer := testkit.Go(func() settled {
		outcomes, err := q.Settle(ctx, s...)
		return settled{outcomes, err}
	})
	synctest.Wait()
	return answer
}

// complete returns n settlements, each of an item that is out.
func complete(t *testing.T, q *queue.Queue, n int) []queue.Settlement {
	t.Helper()
	for range n {
		insert(t, q, Send{}, nil)
	}
	var all []queue.Settlement
	for _, job := range receive(t, q, n, &queue.ReceiveOpts{VisibilityTimeout: time.Hour}) {
		all = append(all, queue.Settlement{Delivery: job.Delivery(), Action: queue.Complete})
	}
	return all
}

func TestEndsThatComeAtOnceGoTogether(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 65)
		before := driver.calls("take")
		require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), all[0]))(t))
		require.Equal(t, before+1, driver.calls("take"), "a lone call goes alone")

		driver.delay("take", time.Second)
		began := time.Now()
		answers := make([]<-chan settled, 64)
		for i, s := range all[1:] {
			if i%3 == 1 {
				s.Delivery.Session++ // of nobody
			}
			answers[i] = settle(t.Context(), q, s)
		}

		for i, answer := range answers {
			a := <-answer
			require.NoError(t, a.err)
			require.Equal(t, i%3 == 1, a.outcomes[0] != nil, "its own")
			require.Len(t, a.outcomes, 1)
		}
		require.Equal(t, before+3, driver.calls("take"), "the first alone, and then all")
		require.Equal(t, 2*time.Second, time.Since(began))
		require.EqualValues(t, 1+43, testkit.Do(q.Status(t.Context()))(t).Finished)
	})
}

// Ends that come while a call is under way go with the next take of items.
func TestATakeBringsTheEndsOfOthersAlong(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 6)
		insert(t, q, Send{}, nil)
		insert(t, q, Send{}, nil)
		before := driver.calls("take")
		driver.delay("take", time.Second)
		first := settle(t.Context(), q, all[0])
		second := settle(t.Context(), q, all[1:3]...)
		opts := &queue.ReceiveOpts{VisibilityTimeout: 10 * time.Millisecond}
		jobs := testkit.Go(func() []*queue.Job {
			outcomes, jobs, err := q.SettleAndReceive(t.Context(), all[3:4], 1, opts)
			require.NoError(t, err)
			require.Equal(t, []error{nil}, outcomes)
			return jobs
		})
		synctest.Wait()
		third := settle(t.Context(), q, all[4:]...)

		require.Equal(t, settled{outcomes: []error{nil}}, <-first)
		require.Equal(t, settled{outcomes: []error{nil, nil}}, <-second)
		require.Equal(t, settled{outcomes: []error{nil, nil}}, <-third)
		require.Empty(t, <-jobs, "the answer came too late for them")
		require.Equal(t, before+2, driver.calls("take"))
		require.EqualValues(t, 6, testkit.Do(q.Status(t.Context()))(t).Finished)

		driver.delay("take", 0)
		require.Equal(t, []error{queue.ErrLost}, testkit.Do(q.Settle(t.Context(), queue.Settlement{
			Delivery: queue.Delivery{Position: 7, Session: 1}, Action: queue.Complete,
		}))(t))
	})
}

// A caller who hangs up is told what became of the settlements, or that it is not known.
func TestSettlementsOfACallerWhoHangsUpAreToldOrUnknown(t *testing.T) {
	for what, answered := range map[string]time.Duration{"told": 300 * time.Millisecond, "unknown": 2 * time.Second} {
		t.Run(what, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				all := complete(t, q, 1)
				insert(t, q, Send{}, nil)
				driver.delay("take", answered)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()

				outcomes, jobs, err := q.SettleAndReceive(ctx, all, 1, nil)

				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Empty(t, jobs)
				require.Equal(t, what == "unknown", errors.Is(err, messagestore.ErrOutcomeUnknown))
				require.Equal(t, what == "told", outcomes != nil)
				time.Sleep(5 * time.Second)
				require.EqualValues(t, 0, testkit.Do(q.Status(t.Context()))(t).Out)
			})
		})
	}
}

// The time of items is counted from the call that reserves them, and not from before it waited for another.
func TestATakeThatHasWaitedHasItsTime(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 1)
		insert(t, q, Send{}, nil)
		driver.delay("take", 600*time.Millisecond)
		settle(t.Context(), q, all...)

		receive(t, q, 1, &queue.ReceiveOpts{VisibilityTimeout: time.Second})
	})
}

func TestAnErrorOfTheStoreReachesEachCaller(t *testing.T) {
	for what, unknown := range map[string]bool{"not made": false, "its answer is lost": true} {
		t.Run(what, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				all := complete(t, q, 20)
				before := driver.calls("take")
				driver.delay("take", time.Second)
				first := settle(t.Context(), q, all[0])
				var answers []<-chan settled
				for _, s := range all[1:] {
					answers = append(answers, settle(t.Context(), q, s))
				}
				require.NoError(t, (<-first).err)
				if unknown {
					driver.set(nil, is("take"))
				} else {
					driver.set(is("take"), nil)
				}
				for _, answer := range answers {
					a := <-answer
					require.ErrorIs(t, a.err, errAway)
					require.Equal(t, unknown, errors.Is(a.err, messagestore.ErrOutcomeUnknown))
					require.Nil(t, a.outcomes)
				}
				calls := 2
				if unknown {
					calls = 5 // each asks once more, the first of them alone
				}
				require.LessOrEqual(t, driver.calls("take"), before+calls)

				driver.set(nil, nil)
				require.Len(t, testkit.Do(q.Settle(t.Context(), all...))(t), 20)
				require.EqualValues(t, 20, testkit.Do(q.Status(t.Context()))(t).Finished)
			})
		})
	}
}

// A caller that goes before its call has ended nothing, and one that goes meanwhile does not know.
func TestACallerThatGoesHarmsNoOther(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 5)
		driver.delay("take", time.Second)
		first := settle(t.Context(), q, all[0])
		before, leaveBefore := context.WithCancel(t.Context())
		during, leaveDuring := context.WithCancel(t.Context())
		gone := settle(before, q, all[1])
		second, third := settle(during, q, all[2]), settle(t.Context(), q, all[3])
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		over := settle(ctx, q, all[4])
		require.ErrorIs(t, (<-over).err, context.Canceled)
		leaveBefore()
		a := <-gone
		require.ErrorIs(t, a.err, context.Canceled)
		require.NotErrorIs(t, a.err, messagestore.ErrOutcomeUnknown)
		require.NoError(t, (<-first).err)
		time.Sleep(time.Second / 2)
		leaveDuring()
		a = <-second
		require.ErrorIs(t, a.err, context.Canceled)
		require.ErrorIs(t, a.err, messagestore.ErrOutcomeUnknown)
		require.Equal(t, settled{outcomes: []error{nil}}, <-third)

		for i, state := range []queue.State{queue.Finished, queue.Out, queue.Finished, queue.Finished, queue.Out} {
			require.Equal(t, state, item(t, q, all[i].Delivery.Position).State, i)
		}
	})
}

// Two ends of one item go one after the other, each with its outcome.
func TestEndsOfOneItemGoInTheirOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 3)
		before := driver.calls("take")
		driver.delay("take", time.Second)
		first := settle(t.Context(), q, all[0])
		retry := queue.Settlement{Delivery: all[1].Delivery, Action: queue.Retry}
		second, third := settle(t.Context(), q, retry), settle(t.Context(), q, all[1], all[2])
		fourth := settle(t.Context(), q, all[2])

		require.NoError(t, (<-first).err)
		require.Equal(t, settled{outcomes: []error{nil}}, <-second)
		require.Equal(t, settled{outcomes: []error{queue.ErrLost, nil}}, <-third)
		require.Equal(t, settled{outcomes: []error{nil}}, <-fourth)
		require.Equal(t, before+4, driver.calls("take"), "no call has two, and none goes before an earlier one")
		require.Equal(t, "r", whats(item(t, q, all[1].Delivery.Position)))
	})
}

// Takes that do not wait share a call too, in the order in which they came.
func TestTakesThatDoNotWaitKeepTheirOrder(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 1)
		at := inserted(t, q, 3)
		driver.delay("take", time.Second)
		settle(t.Context(), q, all...)
		before := driver.calls("take")
		var answers []<-chan received
		for _, lasts := range []time.Duration{time.Hour, time.Hour, 2 * time.Hour, time.Hour} {
			answers = append(answers, wait(t.Context(), q, 1, queue.ReceiveOpts{VisibilityTimeout: lasts}))
		}
		for i, answer := range answers[:3] {
			require.Equal(t, at[i], (<-answer).jobs[0].Message.GlobalPosition)
		}
		require.Empty(t, (<-answers[3]).jobs)
		require.Equal(t, before+3, driver.calls("take"))
	})
}

// A call that was made twice at once, by mistake, harms no other.
func TestCallsOfOneIDShareNoTake(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 1)
		inserted(t, q, 4)
		driver.delay("take", time.Second)
		settle(t.Context(), q, all...)
		id := uuid.New()
		twice := wait(t.Context(), q, 2, queue.ReceiveOpts{ID: id})
		other := wait(t.Context(), q, 1, queue.ReceiveOpts{})
		for _, answers := range []<-chan received{twice, twice, other} {
			a := <-answers
			require.NoError(t, a.err)
			require.Len(t, a.jobs, 1)
		}
	})
}

func TestACallHasAtMostAThousandEnds(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 1)
		before := driver.calls("take")
		driver.delay("take", time.Second)
		settle(t.Context(), q, all...)
		var answers []<-chan settled
		for i := range 5 {
			some := make([]queue.Settlement, 400)
			for j := range some {
				some[j] = queue.Settlement{Delivery: queue.Delivery{Position: messagestore.GlobalPosition(2 + 400*i + j), Session: 1}, Action: queue.Complete}
			}
			answers = append(answers, settle(t.Context(), q, some...))
		}
		for _, answer := range answers {
			a := <-answer
			require.NoError(t, a.err)
			require.Len(t, a.outcomes, 400)
		}
		require.Equal(t, before+1+3, driver.calls("take"))
		require.Equal(t, 1000, queuing.MaxItems)
	})
}

func TestACallThatHangsKeepsNoLaterOneWaiting(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 2)
		driver.delay("take", time.Hour)
		hangs := settle(t.Context(), q, all[0])
		time.Sleep(2 * time.Second)
		driver.delay("take", 0)
		began := time.Now()
		require.Equal(t, []error{nil}, testkit.Do(q.Settle(t.Context(), all[1]))(t))
		require.Zero(t, time.Since(began))
		require.Equal(t, settled{outcomes: []error{nil}}, <-hangs)
	})
}

// On each store callers that settle and receive at once have their own items and outcomes.
func TestCallersAtOnceHaveTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		const callers, rounds = 16, 10
		failed := make(chan error, callers)
		for range callers {
			go func() {
				failed <- func() error {
					var mine []queue.Settlement
					for range rounds {
						if _, err := q.Insert(t.Context(), Send{}, nil); err != nil {
							return err
						}
						outcomes, jobs, err := q.SettleAndReceive(t.Context(), mine, 1, &queue.ReceiveOpts{Wait: time.Minute})
						if err = errors.Join(append(outcomes, err)...); err != nil || len(outcomes) != len(mine) {
							return fmt.Errorf("%d outcomes of %d: %w", len(outcomes), len(mine), err)
						}
						mine = nil
						for _, job := range jobs {
							stranger := job.Delivery()
							stranger.Session++
							outcomes, err := q.Settle(t.Context(), queue.Settlement{Delivery: stranger, Action: queue.Bury})
							if err != nil || len(outcomes) != 1 || !errors.Is(outcomes[0], queue.ErrLost) {
								return fmt.Errorf("of a stranger: %v, %w", outcomes, err)
							}
							mine = append(mine, queue.Settlement{Delivery: job.Delivery(), Action: queue.Complete})
						}
					}
					if len(mine) == 0 {
						return nil
					}
					outcomes, err := q.Settle(t.Context(), mine...)
					return errors.Join(append(outcomes, err)...)
				}()
			}()
		}
		for range callers {
			require.NoError(t, testkit.Receive(t, "the end of a caller", failed))
		}
		status := testkit.Do(q.Status(t.Context()))(t)
		require.Zero(t, status.Out+status.Later+status.Dead)
	})
}

// A call that the store has refused reserved nothing, so there is nothing to give back.
func TestACallThatTheStoreRefusesReturnsAtOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		all := complete(t, q, 1)
		driver.set(func(string) bool { return true }, nil)
		began := time.Now()

		_, _, err := q.SettleAndReceive(t.Context(), all, 1, nil)

		require.ErrorIs(t, err, errAway)
		require.Zero(t, time.Since(began))
		require.Zero(t, driver.calls("leave"))
	})
}
