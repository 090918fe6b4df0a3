package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

func (d *cut) Last(ctx context.Context, stream messagestore.StreamName, messageType string) (m *messagestore.Message, err error) {
	err = d.call("last", func() (err error) { m, err = d.Driver.Last(ctx, stream, messageType); return err })
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return m, err
}

func TestAStoredPolicyIsKeptWithWhoAndWhen(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		require.Equal(t, queue.StoredPolicy{Policy: queue.Policy{MaxFailures: 20}}, testkit.Do(q.Policy(t.Context()))(t), "the defaults")
		want := queue.Policy{MaxFailures: 3, WhenDead: queue.Hold, MaxOut: 7, Rate: 2.5}
		for range 2 { // the second writes nothing
			require.NoError(t, elsewhere(t, q, store).SetPolicy(t.Context(), "ann", want))
		}
		require.NoError(t, q.SetPolicy(t.Context(), "bob", queue.Policy{}))

		var by []string
		for m, err := range store.ReadStream(t.Context(), q.Category().WithType("policy").Stream(q.Name()), 0) {
			require.NoError(t, err)
			by = append(by, string(m.Data))
		}
		require.Equal(t, []string{
			`{"maxFailures":3,"hold":true,"maxOut":7,"rate":2.5,"burst":1,"by":"ann"}`,
			`{"maxFailures":20,"hold":false,"maxOut":0,"rate":0,"burst":0,"by":"bob"}`,
		}, compact(t, by))
		got := testkit.Do(q.Policy(t.Context()))(t)
		require.Equal(t, "bob", got.By)
		require.Equal(t, queue.Policy{MaxFailures: 20}, got.Policy)
		require.WithinDuration(t, testkit.Do(store.Now(t.Context()))(t), got.Time, time.Hour)
	})
}

// The processes whose Config says so use the stored policy, within five seconds of its change, and the others their own.
func TestAStoredPolicyAppliesToAllProcesses(t *testing.T) {
	bubble(t, &queue.Config{Stored: true, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		own := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", &queue.Config{MaxFailures: 9, Logger: logger.Silent()}))
		require.NoError(t, own.SetPolicy(t.Context(), "ann", queue.Policy{MaxFailures: 2}))
		fails := func(of *queue.Queue, at queue.Inserted) queue.State {
			job := receive(t, of, 1, nil)[0]
			require.NoError(t, job.Retry(t.Context(), 0, errors.New("no")))
			return item(t, of, at.Position).State
		}
		at := insert(t, q, Send{}, nil)
		require.Equal(t, queue.Later, fails(q, at))
		require.Equal(t, queue.Later, fails(own, at), "its own")
		require.Equal(t, queue.Dead, fails(q, at))

		require.NoError(t, own.SetPolicy(t.Context(), "ann", queue.Policy{MaxFailures: 1, MaxOut: 1}))
		time.Sleep(5 * time.Second)
		at = insert(t, q, Send{}, nil)
		insert(t, q, Send{}, nil)
		require.Len(t, testkit.Do(q.Receive(t.Context(), 9, &queue.ReceiveOpts{VisibilityTimeout: 10 * time.Millisecond}))(t), 1, "one is out at most")
		time.Sleep(time.Second)
		require.NotEmpty(t, testkit.Do(q.Receive(t.Context(), 9, nil))(t))
		require.Equal(t, queue.Dead, item(t, q, at.Position).State)

		insert(t, q, Send{}, nil)
		require.Empty(t, testkit.Do(q.Receive(t.Context(), 9, nil))(t), "one is out")
		require.NoError(t, q.SetPolicy(t.Context(), "ann", queue.Policy{MaxFailures: 1}))
		require.Len(t, testkit.Do(q.Receive(t.Context(), 9, nil))(t), 1, "at once in the process that sets it")
	})
}

// Whoever asks first has the policy read for all, also if it does not wait for that itself.
func TestAStoredPolicyIsReadForAllWhoWait(t *testing.T) {
	bubble(t, &queue.Config{Stored: true, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		insert(t, q, Send{}, nil)
		for range 2 { // the second time, the one that was read is old
			before := driver.calls("last")
			driver.delay("last", 100*time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Millisecond)
			defer cancel()
			_, err := q.Receive(ctx, 1, nil)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			began := time.Now()

			require.NoError(t, testkit.ErrorOf(q.Receive(t.Context(), 1, nil)))

			require.Equal(t, before+1, driver.calls("last"), "it goes on")
			require.LessOrEqual(t, time.Since(began), 60*time.Millisecond)
			time.Sleep(6 * time.Second)
		}
	})
}

func TestAWorkerUsesTheStoredPolicy(t *testing.T) {
	bubble(t, &queue.Config{Stored: true, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		require.NoError(t, q.SetPolicy(t.Context(), "ann", queue.Policy{MaxFailures: 1}))
		stop := working(t, q, func(context.Context, handler.Message[Send]) error { return errors.New("no") }, &queue.WorkConfig{MinBackoff: time.Hour, MaxBackoff: time.Hour})
		for n := int64(1); n <= 2; n++ {
			at := insert(t, q, Send{}, nil)
			time.Sleep(time.Second)
			require.Equal(t, n == 1, item(t, q, at.Position).State == queue.Dead)
			require.EqualValues(t, 1, q.Counts().Buried)
			require.NoError(t, elsewhere(t, q, testkit.Must(messagestore.New(driver, nil))).SetPolicy(t.Context(), "ann", queue.Policy{MaxFailures: 5}))
			time.Sleep(6 * time.Second)
		}
		before := driver.calls("last")
		for range 600 {
			insert(t, q, Send{}, nil)
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, driver.calls("last")-before, 13, "it is read at most once in five seconds")

		driver.set(is("last"), nil)
		time.Sleep(6 * time.Second)
		at := insert(t, q, Send{}, nil)
		time.Sleep(time.Minute)
		require.Equal(t, queue.Waiting, item(t, q, at.Position).State, "it takes nothing without a policy")
		driver.set(nil, nil)
		time.Sleep(time.Minute)
		require.Equal(t, queue.Later, item(t, q, at.Position).State)
		require.NoError(t, stop())
	})
}

func TestHostilePoliciesAreRefused(t *testing.T) {
	bubble(t, &queue.Config{Stored: true, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, driver *cut) {
		for what, test := range map[string]struct {
			by          string
			p           queue.Policy
			field, rule string
		}{
			"nobody":       {"", queue.Policy{}, "by", "visible text"},
			"failures":     {"ann", queue.Policy{MaxFailures: -1}, "MaxFailures", "between 1 and"},
			"whenever":     {"ann", queue.Policy{WhenDead: 7}, "WhenDead", "GoOn or Hold"},
			"out":          {"ann", queue.Policy{MaxOut: -1}, "MaxOut", "at least 1"},
			"rate":         {"ann", queue.Policy{Rate: -1}, "Rate", "between 1e-6"},
			"burst":        {"ann", queue.Policy{Burst: 2}, "Burst", "needs a Rate"},
			"all together": {"", queue.Policy{MaxFailures: -1, Burst: -1}, "MaxFailures", "between 1 and"},
		} {
			requireInvalid(t, what, q.SetPolicy(t.Context(), test.by, test.p), test.field, test.rule)
		}
		require.ErrorIs(t, (*queue.Queue)(nil).SetPolicy(t.Context(), "ann", queue.Policy{}), messagestore.ErrInvalid)
		require.Empty(t, driver.called, "nothing was asked")
		store := testkit.Must(messagestore.New(driver, nil))
		_, err := queue.New(store, "mail", &queue.Config{Stored: true, MaxFailures: 3})
		requireInvalid(t, "both", err, "Stored", "together")

		_, err = store.Write(t.Context(), "mail:policy-mail", messagestore.AnyVersion, messagestore.Raw{Type: "QueuePolicySet", Data: []byte(`{"maxFailures":-1}`)})
		require.NoError(t, err)
		_, err = q.Receive(t.Context(), 1, nil)
		require.ErrorContains(t, err, "the stored policy is malformed")
		require.NoError(t, q.SetPolicy(t.Context(), "ann", queue.Policy{}), "that mends it")
		require.Empty(t, testkit.Do(q.Receive(t.Context(), 1, nil))(t))
		synctest.Wait()
	})
}

// compact returns JSON texts without white space.
func compact(t *testing.T, texts []string) (all []string) {
	t.Helper()
	for _, text := range texts {
		var b bytes.Buffer
		require.NoError(t, json.Compact(&b, []byte(text)))
		all = append(all, b.String())
	}
	return all
}
