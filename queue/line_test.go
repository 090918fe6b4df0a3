package queue_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/queue"
)

// A received is the answer to Receive.
type received struct {
	by   int
	jobs []*queue.Job
	err  error
}

// wait has n calls wait, one after the other.
func wait(ctx context.Context, q *queue.Queue, n int, opts queue.ReceiveOpts) <-chan received {
	answers := make(chan received, n)
	for i := range n {
		go func() {
			jobs, err := q.Receive(ctx, 1, &opts)
			answers <- received{i, jobs, err}
		}()
		synctest.Wait()
	}
	return answers
}

func TestWaitingCallsCostAsMuchAsOne(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		cost := func(n, items int) (takes, polls int) {
			takes, polls = driver.calls("take"), driver.calls("ready")
			answers := wait(t.Context(), q, n, queue.ReceiveOpts{Wait: 10 * time.Minute})
			time.Sleep(time.Minute)
			for i := range items {
				insert(t, q, Send{}, nil)
				a := <-answers
				require.Len(t, a.jobs, 1)
				require.Equal(t, i, a.by, "in the order in which they came")
				require.NoError(t, a.jobs[0].Complete(t.Context()))
			}
			for range n - items {
				a := <-answers
				require.NoError(t, a.err)
				require.Empty(t, a.jobs)
			}
			return driver.calls("take") - takes, driver.calls("ready") - polls
		}

		oneTakes, onePolls := cost(1, 0)
		manyTakes, manyPolls := cost(500, 100)

		require.Equal(t, 1, oneTakes)
		require.InDelta(t, 2400, onePolls, 10)
		require.LessOrEqual(t, manyTakes, 1+3*100, "an end and a take for each item, and one for each place in the queue's line")
		require.InDelta(t, onePolls, manyPolls, 250)
		require.LessOrEqual(t, driver.calls("leave"), 2, "the last gives up its place in the line")
	})
}

// Calls of several processes are served in the order in which their first came, and those of one
// process in the order in which they came. One call of the store may bring items for several.
func TestProcessesTakeTurns(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		other := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", &queue.Config{Logger: logger.Silent()}))
		opts := queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Hour}
		mine := wait(t.Context(), q, 5, opts)
		theirs := wait(t.Context(), other, 5, opts)
		for range 10 {
			insert(t, q, Send{}, nil)
		}
		for process, answers := range map[string]<-chan received{"mine": mine, "theirs": theirs} {
			positions := make([]messagestore.GlobalPosition, 5)
			for range positions {
				a := <-answers
				require.NoError(t, a.err)
				require.Len(t, a.jobs, 1, process)
				positions[a.by] = a.jobs[0].Message.GlobalPosition
			}
			require.IsIncreasing(t, positions, process)
			if process == "mine" {
				require.EqualValues(t, 1, positions[0], "it came first")
			}
		}
	})
}

func TestAWaitingCallLeavesAtOnce(t *testing.T) {
	for what, leaves := range map[string]int{"the first": 0, "one in the middle": 1, "the last": 2} {
		t.Run(what, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				var answers []<-chan received
				var hangUp []context.CancelFunc
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					hangUp, answers = append(hangUp, cancel), append(answers, wait(ctx, q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute}))
				}
				began := time.Now()
				hangUp[leaves]()
				require.ErrorIs(t, (<-answers[leaves]).err, context.Canceled)
				require.Zero(t, time.Since(began))
				for i, answer := range answers {
					if i != leaves {
						insert(t, q, Send{}, nil)
						require.Len(t, (<-answer).jobs, 1)
					}
				}
				for _, end := range hangUp {
					end()
				}
				require.Equal(t, 2, int(testkit.Do(q.Status(t.Context()))(t).Out))
			})
		})
	}
}

// What was reserved for a caller that has gone meanwhile is offered to the next, without a failure.
func TestItemsOfACallerThatHasGoneAreGivenBackAtOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		ctx, hangUp := context.WithCancel(t.Context())
		gone := wait(ctx, q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Hour})
		next := wait(t.Context(), q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute})
		driver.delay("take", time.Second)
		at := insert(t, q, Send{}, nil)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, queue.Out, item(t, q, at.Position).State)
		hangUp()

		require.ErrorIs(t, (<-gone).err, context.Canceled)
		jobs := (<-next).jobs
		require.Len(t, jobs, 1)
		require.Zero(t, jobs[0].Failures)
		require.Equal(t, "u", whats(item(t, q, at.Position)))
	})
}

// A process that ends with its calls has nothing out, unless the store takes long.
func TestACallWhoseCallerHasGoneEndsWhenItsItemsAreGivenBack(t *testing.T) {
	t.Parallel()
	for _, takes := range []time.Duration{200 * time.Millisecond, 5 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				ctx, hangUp := context.WithCancel(t.Context())
				gone := wait(ctx, q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Hour})
				driver.delay("take", takes)
				at := insert(t, q, Send{}, nil)
				time.Sleep(100 * time.Millisecond)
				hangUp()
				began := time.Now()
				require.ErrorIs(t, (<-gone).err, context.Canceled)
				waited, state := time.Since(began), item(t, q, at.Position).State
				time.Sleep(takes) // all ends in its time
				require.LessOrEqual(t, waited, 500*time.Millisecond)
				require.Equal(t, takes > time.Second, state == queue.Out)
				require.Equal(t, "u", whats(item(t, q, at.Position)))
			})
		})
	}
}

func TestAFailureOfTheStoreEndsAllThatWait(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		answers := wait(t.Context(), q, 100, queue.ReceiveOpts{Wait: 10 * time.Minute})
		driver.set(is("take", "ready", "leave"), nil)
		before := driver.calls("take")
		for range 100 {
			require.ErrorIs(t, (<-answers).err, errAway)
		}
		require.Equal(t, before+1, driver.calls("take"), "one call finds out for all")

		driver.set(nil, nil)
		answers = wait(t.Context(), q, 2, queue.ReceiveOpts{Wait: 10 * time.Minute})
		for range 2 {
			insert(t, q, Send{}, nil)
			require.Len(t, (<-answers).jobs, 1)
		}
	})
}

// A repeated call looks for its items at once, whoever waits.
func TestARepeatedReceiveDoesNotWaitForItsOwnItems(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		at := insert(t, q, Send{}, nil)
		id := uuid.New()
		receive(t, q, 1, &queue.ReceiveOpts{ID: id, VisibilityTimeout: time.Hour})
		others := wait(t.Context(), q, 2, queue.ReceiveOpts{Wait: 10 * time.Minute})
		began := time.Now()

		jobs := receive(t, q, 1, &queue.ReceiveOpts{ID: id, Attempt: 1, Wait: time.Minute})

		require.Zero(t, time.Since(began))
		require.Equal(t, at.Position, jobs[0].Message.GlobalPosition)
		require.NoError(t, jobs[0].Complete(t.Context()))
		for range 2 {
			require.Empty(t, (<-others).jobs)
		}
	})
}

func TestWaitingCallsEndWithTheirStore(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil)), nil))
	q := testkit.Must(queue.New(store, "mail", &queue.Config{Logger: logger.Silent()}))
	ended := make(chan error, 20)
	for range cap(ended) {
		go func() {
			ended <- failure(q.Receive(context.Background(), 1, &queue.ReceiveOpts{Wait: 15 * time.Minute}))
		}()
	}
	require.NoError(t, store.Close())

	for range cap(ended) {
		require.ErrorIs(t, testkit.Receive(t, "the end of a call", ended), messagestore.ErrClosed)
	}
}

// inserted inserts n items at once.
func inserted(t *testing.T, q *queue.Queue, n int) (at []messagestore.GlobalPosition) {
	t.Helper()
	for _, in := range testkit.Do(q.InsertMany(t.Context(), slices.Repeat([]queue.Entry{{Body: Send{}}}, n)...))(t) {
		at = append(at, in.Position)
	}
	return at
}

// One call of the store serves all that wait, each in its turn and in a session of its own.
func TestOneCallServesAllThatWait(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		answers := wait(t.Context(), q, 60, queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Minute})
		before := driver.calls("take")
		at := inserted(t, q, 50)
		sessions := map[int64]bool{}
		var first *queue.Job
		for range 50 {
			a := <-answers
			require.NoError(t, a.err)
			require.Len(t, a.jobs, 1)
			require.Equal(t, at[a.by], a.jobs[0].Message.GlobalPosition, "in the order in which they came")
			sessions[a.jobs[0].Delivery().Session] = true
			if a.by == 1 {
				first = a.jobs[0]
			}
		}
		require.Len(t, sessions, 50)
		require.LessOrEqual(t, driver.calls("take"), before+2, "and one for the place of the next in the queue's line")
		require.NoError(t, first.Extend(t.Context(), time.Hour))
		time.Sleep(2 * time.Minute)
		next := <-answers
		require.Len(t, next.jobs, 1)
		require.Equal(t, 1, next.jobs[0].Failures, "each was alone in its session")
		require.Equal(t, queue.Out, item(t, q, at[1]).State, "an extension is of one session")
	})
}

func TestWhoGoesWhileACallServesManyHarmsNoOther(t *testing.T) {
	for what, goes := range map[string]int{"the first": 0, "one behind it": 1} {
		t.Run(what, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
				var answers []<-chan received
				var hangUp []context.CancelFunc
				for range 3 {
					ctx, cancel := context.WithCancel(t.Context())
					hangUp, answers = append(hangUp, cancel), append(answers, wait(ctx, q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Hour}))
				}
				driver.delay("take", time.Second)
				at := inserted(t, q, 3)
				time.Sleep(300 * time.Millisecond)
				began := time.Now()
				hangUp[goes]()
				require.ErrorIs(t, (<-answers[goes]).err, context.Canceled)
				require.LessOrEqual(t, time.Since(began), 500*time.Millisecond)
				for i, answer := range answers {
					if i != goes {
						require.Equal(t, at[i], (<-answer).jobs[0].Message.GlobalPosition)
					}
				}
				time.Sleep(time.Second)
				require.Equal(t, "u", whats(item(t, q, at[goes])), "given back without a failure")
				require.Equal(t, 2, int(testkit.Do(q.Status(t.Context()))(t).Out))
				for _, end := range hangUp {
					end()
				}
			})
		})
	}
}

// A call whose time ends while another's call of the store asks for it too has what that brings.
func TestWhatComesWithTheEndOfTheWaitIsNotLost(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		first := wait(t.Context(), q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute})
		second := wait(t.Context(), q, 1, queue.ReceiveOpts{Wait: time.Minute})
		time.Sleep(time.Minute - time.Second)
		driver.delay("take", 5*time.Second)
		at := inserted(t, q, 2)
		require.Equal(t, at[0], (<-first).jobs[0].Message.GlobalPosition)
		require.Equal(t, at[1], (<-second).jobs[0].Message.GlobalPosition)
	})
}

// Calls for other times are asked for apart, and nobody behind them goes before them.
func TestCallsForOtherTimesKeepTheirPlaces(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		var answers []<-chan received
		for i := range 6 {
			answers = append(answers, wait(t.Context(), q, 1, queue.ReceiveOpts{Wait: 10 * time.Minute, VisibilityTimeout: time.Duration(1+i%2) * time.Hour}))
		}
		at := inserted(t, q, 6)
		for i, answer := range answers {
			require.Equal(t, at[i], (<-answer).jobs[0].Message.GlobalPosition)
		}
	})
}

// When the store fails, each caller of the call gets its error, and no item stays reserved.
func TestALostAnswerForManyLeavesNothingOut(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		answers := wait(t.Context(), q, 5, queue.ReceiveOpts{Wait: 10 * time.Minute})
		driver.set(nil, first(1, "take"))
		at := inserted(t, q, 5)
		for range 5 {
			require.ErrorIs(t, (<-answers).err, messagestore.ErrOutcomeUnknown)
		}
		for _, p := range at {
			require.Equal(t, "u", whats(item(t, q, p)))
		}
		receive(t, q, 5, nil)
	})
}
