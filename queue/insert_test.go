package queue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
)

// More items than one step has streams are inserted in order per key, and once.
func TestManyItemsAreInsertedOnce(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		var items []queue.Entry
		for n := range 250 {
			opts := &queue.InsertOpts{ID: uuid.New()}
			if n%2 == 0 {
				opts.Key = fmt.Sprint(n % 10)
			}
			items = append(items, queue.Entry{Body: Send{To: opts.Key, N: n}, Opts: opts})
		}
		inserted, err := q.InsertMany(t.Context(), items...)
		require.NoError(t, err)
		again, err := q.InsertMany(t.Context(), items...)
		require.NoError(t, err)
		require.Len(t, inserted, len(items))
		for i := range items {
			require.Equal(t, items[i].Opts.ID, inserted[i].ID)
			require.False(t, inserted[i].Duplicate)
			require.True(t, again[i].Duplicate)
			require.Equal(t, inserted[i].Stream, again[i].Stream)
			require.Equal(t, inserted[i].Position, again[i].Position)
			require.Equal(t, inserted[i].ID, item(t, q, again[i].Position).Message.ID)
		}
		last, n := map[string]int{}, 0
		for {
			jobs, err := q.Receive(t.Context(), 100, nil)
			require.NoError(t, err)
			if len(jobs) == 0 {
				break
			}
			for _, job := range jobs {
				body, err := messagestore.Decode[Send](job.Message)
				require.NoError(t, err)
				if body.To != "" {
					require.GreaterOrEqual(t, body.N, last[body.To])
					last[body.To] = body.N
				}
				n++
				require.NoError(t, job.Complete(t.Context()))
			}
		}
		require.Equal(t, len(items), n)
	})
}

// What is refused or there already keeps nothing else out.
func TestABatchTellsWhatBecameOfEachItem(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New(), uuid.New()}
		a := insert(t, q, Send{To: "a"}, &queue.InsertOpts{ID: ids[0], ScheduledAt: time.Now().Add(-time.Hour)})
		k := insert(t, q, Send{To: "k"}, &queue.InsertOpts{ID: ids[1], Key: "k"})
		insert(t, q, Send{To: "k", N: 1}, &queue.InsertOpts{ID: ids[3], Key: "k"})
		u := insert(t, q, Send{To: "u"}, &queue.InsertOpts{Unique: "u"})
		v := insert(t, q, Send{To: "v"}, &queue.InsertOpts{Unique: "v", UniqueUntil: queue.UntilFinished})
		testkit.Do(q.Cancel(t.Context(), "", v.Position))(t)
		batch := []struct {
			body    Send
			opts    *queue.InsertOpts
			outcome string
			at      messagestore.GlobalPosition
		}{
			{Send{To: "new"}, nil, "written", 0},
			{Send{To: "a"}, &queue.InsertOpts{ID: ids[0]}, "duplicate", a.Position}, // without its date
			{Send{To: "k", N: 7}, &queue.InsertOpts{ID: ids[2], Key: "k"}, "written", 0},
			{Send{To: "k"}, &queue.InsertOpts{ID: ids[1], Key: "k"}, "duplicate", k.Position},
			{Send{To: "k", N: 8}, &queue.InsertOpts{Key: "k"}, "written", 0},
			{Send{To: "u"}, &queue.InsertOpts{Unique: "u"}, "duplicate", u.Position},
			{Send{To: "u", N: 2}, &queue.InsertOpts{Unique: "u"}, "reused", 0},
			{Send{To: "v"}, &queue.InsertOpts{Unique: "v", UniqueUntil: queue.UntilFinished}, "written", 0}, // the name is free again
			{Send{To: "w"}, &queue.InsertOpts{Unique: "w"}, "written", 0},
			{Send{To: "w"}, &queue.InsertOpts{Unique: "w"}, "duplicate", 0}, // of the one before
			{Send{To: "w", N: 2}, &queue.InsertOpts{Unique: "w"}, "reused", 0},
			{Send{To: "x"}, &queue.InsertOpts{ID: v.ID, Key: "other"}, "conflict", 0},
			{Send{To: "k", N: 9}, &queue.InsertOpts{ID: ids[3], Key: "k"}, "conflict", 0},
			{Send{To: "new too"}, nil, "written", 0},
		}
		var entries []queue.Entry
		for _, one := range batch {
			entries = append(entries, queue.Entry{Body: one.body, Opts: one.opts})
		}

		all, err := q.InsertMany(t.Context(), entries...)

		require.Error(t, err, "the first that was refused")
		require.Len(t, all, len(batch))
		met := map[messagestore.GlobalPosition]int{}
		for i, one := range batch {
			got := all[i]
			switch one.outcome {
			case "written", "duplicate":
				require.NoError(t, got.Err, "%d", i)
				require.Equal(t, one.outcome == "duplicate", got.Duplicate, "%d", i)
				body := testkit.Must(messagestore.Decode[Send](item(t, q, got.Position).Message))
				require.Equal(t, one.body, body, "%d", i)
				met[got.Position]++
			case "reused":
				require.Positive(t, testkit.As[*queue.KeyReusedError](t, got.Err).Met.GlobalPosition)
			case "conflict":
				require.ErrorIs(t, got.Err, messagestore.ErrIDConflict)
			}
			if one.at != 0 {
				require.Equal(t, one.at, got.Position, "%d", i)
			}
		}
		require.Equal(t, 2, met[all[8].Position], "the item of the name w and its duplicate")
		require.Less(t, all[2].Position, all[4].Position, "in the order of their key")
	})
}

// failing fails the write of the item z.
type failing struct{ *memory.Driver }

func (d failing) AppendAll(ctx context.Context, appends []messagestore.Append) ([]messagestore.Written, error) {
	for _, a := range appends {
		if string(a.Records[0].Data) == `{"to":"z"}` {
			return nil, errAway
		}
	}
	return d.Driver.AppendAll(ctx, appends)
}

// What a failure of the store kept out is told, and so is what is inserted.
func TestABatchThatFailsTellsWhatIsInserted(t *testing.T) {
	t.Parallel()
	q := testkit.Must(queue.New(testkit.Must(messagestore.New(failing{memory.New()}, nil)), "mail", nil))
	var entries []queue.Entry
	for n := range 300 {
		to := "ann"
		if n == 150 {
			to = "z"
		}
		entries = append(entries, queue.Entry{Body: Send{To: to}})
	}

	all, err := q.InsertMany(t.Context(), entries...)

	require.ErrorIs(t, err, errAway)
	for i, one := range all {
		require.Equal(t, i < 100, one.Err == nil, "%d", i)
		require.Equal(t, i < 100, one.Position > 0, "%d", i)
	}
}

// An item goes beside other writes: all, or nothing.
func TestAnItemIsWrittenBesideOthers(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		ordered := storetest.Category(t).Stream("1")
		item := testkit.Must(q.Write(Send{To: "ann"}, &queue.InsertOpts{Unique: "1"}))
		_, err := store.WriteStreams(t.Context(), item, messagestore.To(ordered, messagestore.AnyVersion, Send{To: "ann"}))
		require.NoError(t, err)
		item = testkit.Must(q.Write(Send{To: "bob"}, &queue.InsertOpts{Unique: "1"}))
		_, err = store.WriteStreams(t.Context(), item, messagestore.To(ordered, messagestore.AnyVersion, Send{To: "bob"}))
		require.ErrorIs(t, err, messagestore.ErrVersionConflict)

		version, err := store.Version(t.Context(), ordered)
		require.NoError(t, err)
		require.EqualValues(t, 0, version)
		jobs, err := q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 1)
		require.JSONEq(t, `{"to":"ann"}`, string(jobs[0].Message.Data))
	})
}

func TestADateInThePastIsNow(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		for _, at := range []time.Time{time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC), time.Unix(0, 0), time.Now().Add(-time.Hour)} {
			insert(t, q, Send{}, &queue.InsertOpts{ScheduledAt: at})
		}
		far := insert(t, q, Send{}, &queue.InsertOpts{ScheduledAt: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)})
		jobs, err := q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Len(t, jobs, 3)
		require.Equal(t, 9999, awaitState(t, q, far.Position, queue.Later).Due.Year())
	})
}

// Two processes may have other settings: that of the process that gives an item back holds.
func TestTheProcessThatGivesAnItemBackSaysWhenItIsDead(t *testing.T) {
	t.Parallel()
	each(t, &queue.Config{MaxFailures: 2, Logger: logger.Silent()}, func(t *testing.T, q *queue.Queue, store *messagestore.Store) {
		patient := testkit.Must(queue.New(store, q.Category(), &queue.Config{MaxFailures: 9, Logger: logger.Silent()}))
		at := insert(t, q, Send{}, nil)
		fails := func(of *queue.Queue) queue.State {
			jobs, err := of.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute})
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			require.NoError(t, jobs[0].Retry(t.Context(), 0, nil))
			return item(t, q, at.Position).State
		}
		require.Equal(t, queue.Later, fails(patient))
		require.Equal(t, queue.Later, fails(patient))
		require.Equal(t, queue.Dead, fails(q))
	})
}

// A name is free again when its item is finished or dead, or a worker has it: as the caller says.
func TestAUniqueNameIsFreeAgain(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, q *queue.Queue, _ *messagestore.Store) {
		until := func(until queue.UniqueUntil) *queue.InsertOpts {
			return &queue.InsertOpts{Unique: fmt.Sprint("sync", int(until)), UniqueUntil: until}
		}
		receive := func() *queue.Job {
			jobs, err := q.Receive(t.Context(), 9, nil)
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			return jobs[0]
		}
		inserted := func(of queue.UniqueUntil, want bool) queue.Inserted {
			t.Helper()
			got := insert(t, q, Send{To: "ann"}, until(of))
			require.Equal(t, want, !got.Duplicate)
			return got
		}

		first := inserted(queue.UntilFinished, true)
		require.Equal(t, first.Position, inserted(queue.UntilFinished, false).Position, "it waits")
		job := receive()
		inserted(queue.UntilFinished, false) // it is out
		require.NoError(t, job.Defer(t.Context(), time.Hour))
		inserted(queue.UntilFinished, false) // it is put off
		_, err := q.Retry(t.Context(), "", first.Position)
		require.NoError(t, err)
		_, err = q.Insert(t.Context(), Send{To: "bob"}, until(queue.UntilFinished))
		reused, is := errors.AsType[*queue.KeyReusedError](err)
		require.True(t, is, err)
		require.Equal(t, first.ID, reused.Met.ID)
		require.NoError(t, receive().Complete(t.Context()))
		second := inserted(queue.UntilFinished, true)
		require.Greater(t, second.Position, first.Position)
		require.Equal(t, first.Stream, second.Stream)
		require.NoError(t, receive().Bury(t.Context(), nil))
		third := inserted(queue.UntilFinished, true)
		again := insert(t, q, Send{To: "ann"}, &queue.InsertOpts{ID: third.ID, Unique: "sync1", UniqueUntil: queue.UntilFinished})
		require.Equal(t, third.Position, again.Position)
		require.NoError(t, receive().Complete(t.Context()))
		again = insert(t, q, Send{To: "ann"}, &queue.InsertOpts{ID: third.ID, Unique: "sync1", UniqueUntil: queue.UntilFinished})
		require.True(t, again.Duplicate, "an item that is inserted again with its ID is the same item, finished or not")

		inserted(queue.UntilDelivered, true)
		inserted(queue.UntilDelivered, false)
		job = receive()
		inserted(queue.UntilDelivered, true) // the first is out
		inserted(queue.UntilDelivered, false)
		jobs, err := q.Receive(t.Context(), 9, nil)
		require.NoError(t, err)
		require.Empty(t, jobs, "the second waits for the first, as one of its key")
		inserted(queue.UntilDelivered, false) // the second is held
		require.NoError(t, job.Complete(t.Context()))
		job = receive()
		require.NoError(t, job.Defer(t.Context(), time.Hour))
		inserted(queue.UntilDelivered, false) // the second is put off
		_, err = q.Retry(t.Context(), "", job.Message.GlobalPosition)
		require.NoError(t, err)
		require.NoError(t, receive().Complete(t.Context()))
	})
}

// meanwhile does something between the look at an item and what its caller makes of it.
type meanwhile struct {
	*memory.Driver
	do  func()
	err error // of the next look
}

func (m *meanwhile) QueueItem(ctx context.Context, q queuing.Queue, position messagestore.GlobalPosition) (queuing.Item, error) {
	item, err := m.Driver.QueueItem(ctx, q, position)
	if do := m.do; do != nil {
		m.do = nil
		do()
	}
	if m.err != nil {
		item, err, m.err = queuing.Item{}, m.err, nil
	}
	return item, err
}

// Of two callers that see a name free, one has it.
func TestAUniqueNameIsOfOneCallerAtATime(t *testing.T) {
	t.Parallel()
	driver := &meanwhile{memory.New(), nil, nil}
	q := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", nil))
	opts := &queue.InsertOpts{Unique: "sync", UniqueUntil: queue.UntilFinished}
	insert(t, q, Send{To: "ann"}, opts)
	jobs, err := q.Receive(t.Context(), 1, nil)
	require.NoError(t, err)
	require.NoError(t, jobs[0].Complete(t.Context()))
	var other queue.Inserted
	driver.do = func() { other = insert(t, q, Send{To: "ann"}, opts) }

	got := insert(t, q, Send{To: "ann"}, opts)

	require.False(t, other.Duplicate)
	require.True(t, got.Duplicate)
	require.Equal(t, other.Position, got.Position)
}

// The message of an item may be removed between the conflict and the look at the item.
func TestAUniqueNameIsFreeWhenItsItemIsRemoved(t *testing.T) {
	t.Parallel()
	driver := &meanwhile{memory.New(), nil, nil}
	q := testkit.Must(queue.New(testkit.Must(messagestore.New(driver, nil)), "mail", nil))
	opts := &queue.InsertOpts{Unique: "sync", UniqueUntil: queue.UntilFinished}
	first := insert(t, q, Send{To: "ann"}, opts)
	driver.err = fmt.Errorf("position %d: %w", first.Position, messagestore.ErrNotFound)

	got := insert(t, q, Send{To: "ann"}, opts) // it asks again, and the memory has it still

	require.True(t, got.Duplicate)
	require.NoError(t, driver.err)
	driver.err = messagestore.ErrClosed
	_, err := q.Insert(t.Context(), Send{To: "ann"}, opts)
	require.ErrorIs(t, err, messagestore.ErrClosed)
}

func TestAUniqueUntilNamesItself(t *testing.T) {
	t.Parallel()
	for until, want := range map[queue.UniqueUntil]string{queue.UntilForgotten: "forgotten", queue.UntilFinished: "finished", queue.UntilDelivered: "delivered", 9: "UniqueUntil(9)"} {
		require.Equal(t, want, until.String())
	}
	q := testkit.Must(queue.New(testkit.Must(messagestore.New(memory.New(), nil)), "mail", nil))
	_, err := q.Insert(t.Context(), Send{}, &queue.InsertOpts{UniqueUntil: queue.UntilDelivered})
	require.ErrorContains(t, err, `invalid UniqueUntil "delivered": must not be set without Unique`)
}
