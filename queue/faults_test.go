package queue_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/queue"
)

var errAway = errors.New("connection refused")

// A cut driver is one whose calls for queues fail, or whose answers are lost, as a test says.
type cut struct {
	*memory.Driver

	mu     sync.Mutex
	fails  func(call string) bool   // it is not made
	loses  func(call string) bool   // it is made, and its answer is lost
	late   map[string]time.Duration // the answers come so late
	called map[string]int
	notes  []queuing.Notes // of the extensions
}

func (d *cut) set(fails, loses func(call string) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails, d.loses = fails, loses
}

// delay has the answers to a call come so late.
func (d *cut) delay(call string, by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.late = map[string]time.Duration{call: by}
}

func (d *cut) calls(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.called[call]
}

func (d *cut) call(name string, do func() error) error {
	d.mu.Lock()
	d.called[name]++
	fails := d.fails != nil && d.fails(name)
	loses := !fails && d.loses != nil && d.loses(name)
	late := d.late[name]
	d.mu.Unlock()
	if fails {
		return errAway
	}
	err := do()
	time.Sleep(late)
	if err == nil && loses {
		return &messagestore.OutcomeUnknownError{Cause: errAway}
	}
	return err
}

func (d *cut) QueueTake(ctx context.Context, t queuing.Take) (taken queuing.Taken, err error) {
	if t.Session < 1 { // as PostgreSQL
		return taken, messagestore.NewInvalidError("session", t.Session, "must be more than 0")
	}
	err = d.call("take", func() (err error) { taken, err = d.Driver.QueueTake(ctx, t); return err })
	if err != nil {
		return queuing.Taken{}, err
	}
	return taken, nil
}

func (d *cut) QueueReady(ctx context.Context, q queuing.Queue) (ready queuing.Ready, err error) {
	err = d.call("ready", func() (err error) { ready, err = d.Driver.QueueReady(ctx, q); return err })
	return ready, err
}

func (d *cut) QueueExtend(ctx context.Context, e queuing.Extension) (lost []queuing.Delivery, err error) {
	if e.Notes != nil {
		d.mu.Lock()
		d.notes = append(d.notes, e.Notes)
		d.mu.Unlock()
	}
	err = d.call("extend", func() (err error) { lost, err = d.Driver.QueueExtend(ctx, e); return err })
	if err != nil {
		return nil, err
	}
	return lost, nil
}

func (d *cut) QueueLeave(ctx context.Context, l queuing.Leave) error {
	return d.call("leave", func() error { return d.Driver.QueueLeave(ctx, l) })
}

// is returns whether a call is one of some.
func is(calls ...string) func(string) bool {
	return func(call string) bool { return slices.Contains(calls, call) }
}

// first returns is for the first n of the calls.
func first(n int, calls ...string) func(string) bool {
	return func(call string) bool {
		if n == 0 || !slices.Contains(calls, call) {
			return false
		}
		n--
		return true
	}
}

// A lines has what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) logger() logger.Logger {
	return logger.Zerolog(zerolog.New(l).Level(zerolog.WarnLevel))
}

// said returns the messages of the lines since the last call.
func (l *lines) said(t *testing.T) (messages []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for d := json.NewDecoder(&l.text); d.More(); {
		var line struct{ Message string }
		require.NoError(t, d.Decode(&line))
		messages = append(messages, line.Message)
	}
	return messages
}

// bubble runs a test in a bubble, with a queue over a driver whose calls it may cut.
func bubble(t *testing.T, config *queue.Config, test func(t *testing.T, q *queue.Queue, driver *cut)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := &cut{Driver: memory.New(), called: map[string]int{}}
		c := queue.Config{Logger: logger.Silent()}
		if config != nil {
			c = *config
		}
		test(t, testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", &c)), driver)
	})
}

func item(t *testing.T, q *queue.Queue, at messagestore.GlobalPosition) queue.Item {
	t.Helper()
	found, err := q.Item(context.Background(), at)
	require.NoError(t, err)
	return found
}

// whats are the kinds of an item's entries.
func whats(of queue.Item) string {
	letters := map[string]string{
		"failed": "r", "deferred": "f", "given back": "u", "buried": "x", "session over": "e", "retried": "R", "dropped": "D", "cancelled": "C", "message removed": "M",
	}
	var all strings.Builder
	for _, e := range of.Log {
		all.WriteString(cmp.Or(letters[e.What], "?"))
	}
	return all.String()
}

// What a lost take reserved is given back by the next call, and counts no failure; what it ended is ended.
func TestLostAnswersOfTakesCostNoFailureAndNoDelivery(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		const items = 30
		n := 0
		driver.set(nil, func(call string) bool {
			if call == "take" {
				n++
			}
			return call == "take" && n%2 == 0
		})
		var handled seen
		working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			time.Sleep(time.Millisecond)
			return nil
		}, &queue.WorkConfig{MaxWorkers: 3})
		for n := range items {
			insert(t, q, Send{To: fmt.Sprint(n)}, &queue.InsertOpts{Key: fmt.Sprint(n % 7)})
		}
		time.Sleep(9 * time.Second) // less than a lease

		all := handled.list()
		require.Len(t, all, items)
		slices.Sort(all)
		require.Len(t, slices.Compact(all), items)
		given := 0
		for at := range items {
			of := item(t, q, messagestore.GlobalPosition(at+1))
			require.Equal(t, queue.Finished, of.State)
			require.Regexp(t, "^u*$", whats(of))
			given += len(of.Log)
		}
		require.Positive(t, given)
		require.EqualValues(t, items, q.Counts().Completed)
		require.Zero(t, q.Counts().Lost)
	})
}

// A handler goes on while nobody knows in which of two sessions its item is.
func TestLostAnswersOfLeavesTakeNoItemFromItsHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			if m.Body.To == "slow" {
				select {
				case <-time.After(25 * time.Second):
				case <-ctx.Done():
					handled.add(fmt.Sprint("cut off: ", context.Cause(ctx)))
				}
			}
			return nil
		}, nil)
		slow := insert(t, q, Send{To: "slow"}, nil)
		time.Sleep(time.Second)
		lost := time.Now()
		driver.set(nil, func(call string) bool {
			return (call == "take" || call == "leave") && time.Since(lost) < 3*time.Second
		})
		insert(t, q, Send{To: "other"}, nil)
		time.Sleep(time.Minute)

		require.Equal(t, []string{"slow", "other"}, handled.list())
		require.Equal(t, queue.Finished, item(t, q, slow.Position).State)
		require.Empty(t, item(t, q, slow.Position).Log)
		require.GreaterOrEqual(t, driver.calls("leave"), 3)
	})
}

// A worker whose session ends while it is being left goes on with another.
func TestALeaseIsLostWhileItsSessionIsLeft(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		var handled seen
		stop := working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			if m.Body.To == "slow" && queue.JobOf(ctx).Deliveries == 0 {
				<-ctx.Done()
				handled.add(fmt.Sprint(errors.Is(context.Cause(ctx), queue.ErrLost)))
				return nil
			}
			handled.add(m.Body.To)
			return nil
		}, nil)
		slow := insert(t, q, Send{To: "slow"}, nil)
		time.Sleep(time.Second)
		driver.delay("leave", 14*time.Second)
		driver.set(nil, first(1, "take"))
		insert(t, q, Send{To: "other"}, nil)
		time.Sleep(2 * time.Minute)

		require.ElementsMatch(t, []string{"true", "other", "slow"}, handled.list())
		require.Equal(t, queue.Finished, item(t, q, slow.Position).State)
		require.Equal(t, "e", whats(item(t, q, slow.Position)))
		require.NoError(t, stop())
	})
}

func TestLostAnswersOfExtensionsTakeNoItemFromItsHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		n := 0
		driver.set(nil, func(call string) bool {
			if call == "extend" {
				n++
			}
			return call == "extend" && n%2 == 1
		})
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			select {
			case <-time.After(50 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}, nil)
		at := insert(t, q, Send{}, nil)
		time.Sleep(51 * time.Second)

		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
		require.Empty(t, item(t, q, at.Position).Log)
	})
}

// What a handler returned is kept until the store is back, and an outage is a line at its beginning and one at its end.
func TestAnOutageKeepsWhatHandlersReturned(t *testing.T) {
	var log lines
	bubble(t, &queue.Config{Logger: log.logger()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		working(t, q, func(context.Context, handler.Message[Send]) error {
			time.Sleep(2 * time.Second)
			return nil
		}, &queue.WorkConfig{Lease: time.Minute})
		at := insert(t, q, Send{}, nil)
		time.Sleep(time.Second)
		driver.set(is("take", "ready", "extend", "leave"), nil)
		time.Sleep(20 * time.Second)
		require.Equal(t, queue.Out, item(t, q, at.Position).State)
		driver.set(nil, nil)
		time.Sleep(2 * time.Second)

		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
		require.Empty(t, item(t, q, at.Position).Log)
		require.Equal(t, []string{"store failed: trying again", "store is back"}, log.said(t))
	})
}

func TestAHandlerEndsBeforeALeaseThatCannotBeExtended(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		ended := make(chan error, 1)
		var took time.Duration
		var state queue.State
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			if queue.JobOf(ctx).Deliveries > 0 {
				return nil
			}
			began := time.Now()
			<-ctx.Done()
			took, state = time.Since(began), item(t, q, m.GlobalPosition).State
			ended <- context.Cause(ctx)
			return ctx.Err()
		}, nil)
		driver.set(is("extend"), nil)
		at := insert(t, q, Send{}, nil)

		require.ErrorIs(t, <-ended, queue.ErrLost)
		require.Equal(t, queue.Out, state, "and nobody else has it")
		require.LessOrEqual(t, took, 9*time.Second)
		require.GreaterOrEqual(t, took, 5*time.Second)
		time.Sleep(20 * time.Second)
		of := item(t, q, at.Position)
		require.Equal(t, queue.Finished, of.State)
		require.Equal(t, "e", whats(of))
		require.EqualValues(t, 1, q.Counts().Lost)
		require.Zero(t, q.Counts().Failed, "what the handler returned does not count")
	})
}

// A lease is counted from before the request that extended it.
func TestALeaseWhoseExtensionIsToldLateIsNotTakenForLonger(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		ended := make(chan time.Time, 1)
		driver.delay("extend", 2500*time.Millisecond)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			<-ctx.Done()
			ended <- time.Now()
			return nil
		}, &queue.WorkConfig{MaxWorkers: 1})
		insert(t, q, Send{}, nil)
		time.Sleep(5 * time.Second) // the session was extended once
		require.Equal(t, 1, driver.calls("extend"))
		driver.set(is("extend"), nil)
		other := testkit.Must(queue.New(testkit.Must(messagestore.New(driver.Driver, nil)), "mail", nil))
		given, completed := make(chan time.Time, 1), make(chan error, 1)
		go func() {
			jobs, err := other.Receive(context.Background(), 1, &queue.ReceiveOpts{Wait: time.Minute})
			given <- time.Now()
			for _, job := range jobs {
				err = errors.Join(err, job.Complete(context.Background()))
			}
			completed <- err
		}()

		require.True(t, (<-ended).Before(<-given))
		require.NoError(t, <-completed)
	})
}

func TestAnItemThatIsCancelledEndsItsHandler(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		ended := make(chan error, 2)
		var took time.Duration
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			began := time.Now()
			<-ctx.Done()
			took = time.Since(began)
			ended <- context.Cause(ctx)
			ended <- queue.JobOf(ctx).Complete(context.Background())
			return nil
		}, nil)
		at := insert(t, q, Send{}, nil)
		synctest.Wait()
		changed, err := q.Cancel(t.Context(), "sent twice", at.Position)
		require.NoError(t, err)
		require.Equal(t, []messagestore.GlobalPosition{at.Position}, changed)

		require.ErrorIs(t, <-ended, queue.ErrLost)
		require.ErrorIs(t, <-ended, queue.ErrLost)
		require.LessOrEqual(t, took, 10*time.Second/3, "a third of the lease")
		of := item(t, q, at.Position)
		require.Equal(t, queue.Finished, of.State)
		require.Equal(t, "C", whats(of))
		require.Equal(t, "sent twice", of.Log[0].Text)
	})
}

// First handlers go on, then their contexts end, then what has not returned is given back; none of it is a failure.
func TestAStopHasTwoSteps(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		const grace = 10 * time.Second
		end := make(chan struct{})
		var handled seen
		mux := handler.New()
		handler.On(mux, func(ctx context.Context, m handler.Message[Send]) error {
			switch m.Body.To {
			case "returns":
				time.Sleep(grace / 2)
				handled.add(fmt.Sprint("returns ", ctx.Err()))
			case "heeds":
				<-ctx.Done()
				handled.add("heeds")
				return ctx.Err()
			case "hangs":
				<-end
				handled.add("hangs")
			default:
				handled.add("late")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Work(ctx, mux, &queue.WorkConfig{Grace: grace, Timeout: time.Hour}) }()
		at := map[string]queue.Inserted{}
		for _, to := range []string{"returns", "heeds", "hangs"} {
			at[to] = insert(t, q, Send{To: to}, nil)
		}
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		at["late"] = insert(t, q, Send{To: "late"}, nil)
		stopped := time.Now()

		time.Sleep(grace - time.Second)
		require.Equal(t, []string{"returns <nil>"}, handled.list())
		err := <-done
		require.ErrorIs(t, err, queue.ErrAbandoned)
		require.ErrorContains(t, err, string(at["hangs"].Stream))
		require.NotContains(t, err.Error(), string(at["heeds"].Stream))
		require.Equal(t, 2*grace, time.Since(stopped))
		require.Equal(t, []string{"returns <nil>", "heeds"}, handled.list())
		require.Equal(t, queue.Finished, item(t, q, at["returns"].Position).State)
		for _, to := range []string{"heeds", "hangs"} {
			of := item(t, q, at[to].Position)
			require.Equal(t, queue.Later, of.State, to)
			require.Equal(t, "u", whats(of), to)
			require.Zero(t, of.Failures, to)
		}
		require.Equal(t, queue.Waiting, item(t, q, at["late"].Position).State)
		close(end)
		synctest.Wait()
		require.Equal(t, "u", whats(item(t, q, at["hangs"].Position)))
	})
}

// A process that dies tells nobody.
func TestWhatADeadProcessHadIsOutAgainWhenItsLeaseIsOver(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		insert(t, q, Send{}, nil)
		jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: 10 * time.Second})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		died := time.Now()
		handled := make(chan *queue.Job, 1)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			handled <- queue.JobOf(ctx)
			return nil
		}, nil)

		job := <-handled
		require.GreaterOrEqual(t, time.Since(died), 10*time.Second)
		require.LessOrEqual(t, time.Since(died), 11*time.Second)
		require.Equal(t, 1, job.Failures)
		require.Equal(t, 1, job.Deliveries)
		require.ErrorIs(t, jobs[0].Complete(t.Context()), queue.ErrLost)
	})
}

// It does not take one process after the other at once, and not for ever.
func TestAnItemThatKillsItsProcessIsDeadInTheEnd(t *testing.T) {
	bubble(t, &queue.Config{MaxFailures: 4, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *cut) {
		at := insert(t, q, Send{}, nil)
		began := time.Now()
		var after []time.Duration
		for {
			jobs, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute, VisibilityTimeout: 10 * time.Second})
			require.NoError(t, err)
			if len(jobs) == 0 {
				break
			}
			after = append(after, time.Since(began).Round(time.Second))
		}
		require.Equal(t, []time.Duration{0, 10 * time.Second, 22 * time.Second, 36 * time.Second}, after)
		of := item(t, q, at.Position)
		require.Equal(t, queue.Dead, of.State)
		require.Equal(t, "eeee", whats(of))
	})
}

// A process that is idle asks, and takes and writes nothing.
func TestAnIdleProcessTakesNothing(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		working(t, q, func(context.Context, handler.Message[Send]) error { return nil }, nil)
		insert(t, q, Send{}, nil)
		time.Sleep(time.Minute)
		before := driver.calls("take")
		time.Sleep(time.Hour)
		require.LessOrEqual(t, driver.calls("take")-before, 1)
		require.Zero(t, driver.calls("extend"))
	})
}

// A stop does not wait for a store that is away longer than its steps, and says what could not be told.
func TestAStopWithoutAStoreEnds(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		mux := handler.New()
		handler.On(mux, func(context.Context, handler.Message[Send]) error {
			driver.set(is("take", "ready", "extend", "leave"), nil)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- q.Work(ctx, mux, &queue.WorkConfig{Grace: time.Second}) }()
		insert(t, q, Send{}, nil)
		time.Sleep(time.Second)
		cancel()
		stopped := time.Now()

		err := <-done
		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.ErrorContains(t, err, "the ends of 1 deliveries were not reported")
		require.LessOrEqual(t, time.Since(stopped), 10*time.Second)
	})
}

func TestAHandlerIsAbandonedAfterItsTimeAndAGrace(t *testing.T) {
	var log lines
	bubble(t, &queue.Config{Logger: log.logger()}, func(t *testing.T, q *queue.Queue, _ *cut) {
		end := make(chan struct{})
		late := make(chan error, 1)
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			if m.Body.To == "hangs" && queue.JobOf(ctx).Failures == 0 {
				<-end
				late <- queue.JobOf(ctx).Complete(t.Context())
				return errors.New("at last")
			}
			return nil
		}, &queue.WorkConfig{MaxWorkers: 1, Timeout: time.Minute, Grace: 5 * time.Second, MinBackoff: time.Hour})
		at := insert(t, q, Send{To: "hangs"}, nil)
		insert(t, q, Send{To: "other"}, nil)

		time.Sleep(65*time.Second - time.Millisecond)
		require.Equal(t, []string{"hangs"}, handled.list())
		time.Sleep(time.Second)
		require.Equal(t, []string{"hangs", "other"}, handled.list(), "its place is filled")
		of := item(t, q, at.Position)
		require.Equal(t, queue.Later, of.State)
		require.Equal(t, 1, of.Failures)
		require.Equal(t, "abandoned: its handler did not return within 1m5s", of.Log[0].Text)
		require.EqualValues(t, 1, q.Counts().Abandoned)
		require.Equal(t, []string{"handler failed", "handler abandoned: it goes on without its item"}, log.said(t))
		close(end)
		require.ErrorIs(t, <-late, queue.ErrLost)
		synctest.Wait()
		require.Equal(t, []string{"handler failed after the end of its delivery"}, log.said(t))
		time.Sleep(2 * time.Hour)
		require.Equal(t, []string{"hangs", "other", "hangs"}, handled.list())
	})
}

func TestAnEarlyCompletionWhoseAnswerIsLostStands(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		answers := make(chan error, 5)
		var handled seen
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			handled.add(m.Body.To)
			job := queue.JobOf(ctx)
			driver.set(nil, first(1, "take"))
			answers <- job.Complete(ctx)
			answers <- job.Complete(ctx)
			answers <- job.Retry(ctx, 0, errors.New("no"))
			return errors.New("no space left on device")
		}, nil)
		at := insert(t, q, Send{To: "ann"}, nil)

		require.NoError(t, <-answers)
		require.NoError(t, <-answers, "again")
		require.ErrorIs(t, <-answers, queue.ErrLost, "as something else")
		time.Sleep(time.Minute)
		require.Equal(t, []string{"ann"}, handled.list())
		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
		require.Equal(t, queue.Counts{Completed: 1}, q.Counts())
	})
}

func TestAnEarlyCompletionThatIsNotAnsweredMayBeAskedForAgain(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		answers := make(chan error, 2)
		working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
			job := queue.JobOf(ctx)
			driver.set(is("take"), nil)
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			answers <- job.Complete(short)
			driver.set(nil, nil)
			answers <- job.Complete(ctx)
			return nil
		}, nil)
		at := insert(t, q, Send{}, nil)

		require.ErrorIs(t, <-answers, messagestore.ErrOutcomeUnknown)
		require.NoError(t, <-answers)
		require.Equal(t, queue.Finished, item(t, q, at.Position).State)
		require.EqualValues(t, 1, q.Counts().Completed)
	})
}

func TestAJobEndsEarlyInEachWay(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
		answers := make(chan error, 3)
		working(t, q, func(ctx context.Context, m handler.Message[Send]) error {
			job := queue.JobOf(ctx)
			if job.Deliveries > 0 {
				return nil
			}
			switch m.Body.To {
			case "retries":
				answers <- job.Retry(ctx, time.Hour, errors.New("no answer"))
			case "defers":
				answers <- job.Defer(ctx, time.Hour)
			case "buries":
				answers <- job.Bury(ctx, errors.New("no such address"))
			}
			return nil
		}, nil)
		at := map[string]messagestore.GlobalPosition{}
		for _, to := range []string{"retries", "defers", "buries"} {
			at[to] = insert(t, q, Send{To: to}, nil).Position
		}
		time.Sleep(time.Second)
		for range 3 {
			require.NoError(t, <-answers)
		}
		retried, deferred, buried := item(t, q, at["retries"]), item(t, q, at["defers"]), item(t, q, at["buries"])
		require.Equal(t, queue.Later, retried.State)
		require.Equal(t, 1, retried.Failures)
		require.Equal(t, "no answer", retried.Error)
		require.Equal(t, queue.Later, deferred.State)
		require.Zero(t, deferred.Failures)
		require.Equal(t, queue.Dead, buried.State)
		require.Equal(t, queue.Counts{Failed: 2, Buried: 1}, q.Counts())
	})
}

// What a Receive has reserved whose answer was lost is given back when the store is back, and not at the end of its time.
func TestItemsOfALostReceiveAreGivenBackWhenTheStoreIsBack(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		insert(t, q, Send{To: "a"}, nil)
		driver.set(first(3, "leave"), first(1, "take"))

		_, err := q.Receive(t.Context(), 1, &queue.ReceiveOpts{VisibilityTimeout: time.Hour})

		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.Zero(t, jobs[0].Failures)
		require.Equal(t, 4, driver.calls("leave"))
	})
}

// Where the answer to the end of a job is lost, a call after it that fails definitely does not make it one that was not made.
func TestAnEndThatMayHaveHappenedIsTold(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		insert(t, q, Send{To: "a"}, nil)
		jobs, err := q.Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		takes := 0
		driver.set(func(call string) bool {
			if call == "take" {
				takes++
			}
			return call == "take" && takes == 2
		}, first(1, "take"))

		err = jobs[0].Complete(t.Context())

		require.ErrorIs(t, err, messagestore.ErrOutcomeUnknown)
		require.ErrorIs(t, err, errAway)
		require.NoError(t, jobs[0].Complete(t.Context()))
	})
}

// wild is an error whose methods panic.
type wild struct{}

func (wild) Error() string { return "wild" }
func (wild) Is(error) bool { panic("Is") }
func (wild) As(any) bool   { panic("As") }
func (wild) Unwrap() error { panic("Unwrap") }

// A handler for messages of every type: its error may be anything, and is a failure.
func TestAnErrorWhoseMethodsPanicIsAFailure(t *testing.T) {
	bubble(t, &queue.Config{MaxFailures: 2, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, _ *cut) {
		at, err := q.Insert(t.Context(), messagestore.Raw{Type: "Whatever", Data: []byte("{}")}, nil)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Work(ctx, handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return wild{} }), nil)
		}()

		time.Sleep(time.Minute)

		require.Equal(t, queue.Dead, item(t, q, at.Position).State)
		stop()
		require.NoError(t, <-ended)
	})
}

// An item that ends lets go the next of its key, and a worker has that by the same call: nobody waits for a poll.
func TestItemsOfAKeyFollowEachOtherWithoutAPoll(t *testing.T) {
	bubble(t, nil, func(t *testing.T, q *queue.Queue, driver *cut) {
		for range 50 {
			_, err := q.Insert(t.Context(), messagestore.Raw{Type: "Whatever", Data: []byte("{}")}, &queue.InsertOpts{Key: "ann"})
			require.NoError(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Work(ctx, handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
				time.Sleep(time.Millisecond)
				return nil
			}), &queue.WorkConfig{PollInterval: time.Hour})
		}()

		time.Sleep(time.Second)

		require.EqualValues(t, 50, q.Counts().Completed)
		require.Less(t, driver.calls("take"), 60)
		stop()
		require.NoError(t, <-ended)
	})
}

// What a handler ended waits to be reported through an outage of five minutes, and another handler heeds no context.
func TestAnOutageIsLoggedOnceByAQueueAndOnceWhenItIsOver(t *testing.T) {
	var log lines
	bubble(t, &queue.Config{Logger: log.logger()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		release := make(chan struct{})
		stop := working(t, q, func(_ context.Context, m handler.Message[Send]) error {
			if m.Body.N == 1 {
				<-release
			}
			time.Sleep(time.Second)
			return nil
		}, &queue.WorkConfig{Lease: 3 * time.Second, Timeout: time.Hour})
		for n := range 2 {
			_, err := q.Insert(t.Context(), Send{N: n}, nil)
			require.NoError(t, err)
		}
		time.Sleep(500 * time.Millisecond)

		driver.set(is("take", "ready", "extend", "leave"), nil)
		time.Sleep(5 * time.Minute)
		driver.set(nil, nil)
		time.Sleep(10 * time.Second)
		close(release)
		require.NoError(t, stop())

		counts := map[string]int{}
		for _, message := range log.said(t) {
			counts[message]++
		}
		require.Equal(t, 1, counts["session could not be extended: its items are lost"], counts)
		require.Equal(t, 1, counts["the store answers again: items are taken"], counts)
		require.Equal(t, 1, counts["store failed: trying again"], counts)
		require.Equal(t, 1, counts["store is back"], counts)
	})
}

func TestDurationsInTheLogOfAQueueHaveUnits(t *testing.T) {
	var log lines
	bubble(t, &queue.Config{Logger: log.logger()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		failed := false
		stop := working(t, q, func(context.Context, handler.Message[Send]) error {
			if failed {
				return nil
			}
			failed = true
			return errors.New("not yet")
		}, nil)
		_, err := q.Insert(t.Context(), Send{}, nil)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		driver.set(first(3, "take"), nil)
		_, err = q.Insert(t.Context(), Send{}, nil)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.NoError(t, stop())

		log.mu.Lock()
		defer log.mu.Unlock()
		waits := 0
		for d := json.NewDecoder(&log.text); d.More(); {
			var line map[string]any
			require.NoError(t, d.Decode(&line))
			if wait, is := line["wait"]; is {
				text, is := wait.(string)
				require.True(t, is, "%v", line)
				_, err := time.ParseDuration(text)
				require.NoError(t, err)
				waits++
			}
		}
		require.GreaterOrEqual(t, waits, 2, "of a failure, and of an outage")
	})
}
