package cron_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

// atOnce calls f n times, and returns the errors.
func atOnce(n int, f func(i int) error) []error {
	errs := make([]error, n)
	begin := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			<-begin
			errs[i] = f(i)
		})
	}
	close(begin)
	group.Wait()
	return errs
}

func raw(data string) messagestore.Raw { return messagestore.Raw{Type: "Report", Data: []byte(data)} }

func TestReplicasThatSetTheSameScheduleAtOnceAllSucceed(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		spellings := []string{`{"of":"all","n":1}`, `{ "n": 1.0, "of": "all" }`, `{"n":1,"of":"\u0061ll"}`, `{"of":"all","n":1e0}`}
		for round := range 10 {
			name := fmt.Sprint(round)

			set := atOnce(8, func(i int) error {
				c := testkit.Must(cron.New(store, category, nil))
				put := c.Set
				if i%2 == 1 {
					put = c.Add
				}
				return put(t.Context(), cron.Schedule{Name: name, Spec: "@daily", Body: raw(spellings[i%len(spellings)])})
			})

			require.NoError(t, errors.Join(set...))
			version, err := store.Version(t.Context(), category.WithType("schedule").Stream(name))
			require.NoError(t, err)
			require.EqualValues(t, 0, version, "one has written it")
		}
	})
}

func TestOfDifferentSchedulesThatAreSetAtOnceOneStands(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		c := testkit.Must(cron.New(store, category, nil))
		for round := range 5 {
			name := fmt.Sprint(round)

			set := atOnce(6, func(i int) error {
				return c.Set(t.Context(), cron.Schedule{Name: name, Spec: "@daily", Body: Report{fmt.Sprint(i)}})
			})

			require.NoError(t, errors.Join(set...))
			version, err := store.Version(t.Context(), category.WithType("schedule").Stream(name))
			require.NoError(t, err)
			require.EqualValues(t, 5, version, "each was written, and the last stands")
		}
	})
}

func TestRemovalsBesideSetsAndRemovalsDoNotFail(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		c := testkit.Must(cron.New(store, category, nil))
		for round := range 5 {
			name := fmt.Sprint(round)
			set := func(of string) error {
				return c.Set(t.Context(), cron.Schedule{Name: name, Spec: "@daily", Body: Report{of}})
			}
			require.NoError(t, set("first"))

			errs := atOnce(8, func(i int) error {
				if i < 4 {
					return set(fmt.Sprint(i))
				}
				if err := c.Remove(t.Context(), name); !errors.Is(err, messagestore.ErrNotFound) { // it began after another had ended
					return err
				}
				return nil
			})

			require.NoError(t, errors.Join(errs...))
		}
	})
}

// A racingDriver does something else before the first write.
type racingDriver struct {
	*memory.Driver
	once   sync.Once
	before func()
}

func (d *racingDriver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	d.once.Do(d.before)
	return d.Driver.Append(ctx, a)
}

func TestARemovalThatAnotherOvertakesIsDone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		other func(c *cron.Cron) error
		left  int
	}{
		"by a removal": {func(c *cron.Cron) error { return c.Remove(t.Context(), "daily") }, 0},
		"by a set": {func(c *cron.Cron) error {
			return c.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "@daily", Body: Report{"another"}})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := memory.New()
			other := testkit.Must(cron.New(testkit.Must(messagestore.New(driver, nil)), "reports", nil))
			require.NoError(t, other.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "@daily", Body: Report{}}))
			racing := &racingDriver{Driver: driver, before: func() { require.NoError(t, c.other(other)) }}

			require.NoError(t, testkit.Must(cron.New(testkit.Must(messagestore.New(racing, nil)), "reports", nil)).Remove(t.Context(), "daily"))

			all, err := other.List(t.Context())
			require.NoError(t, err)
			require.Len(t, all, c.left)
			require.ErrorIs(t, other.Remove(t.Context(), "daily"), messagestore.ErrNotFound)
		})
	}
}

func TestAddMeetsAnotherThatWasAddedMeanwhile(t *testing.T) {
	t.Parallel()
	driver := memory.New()
	other := testkit.Must(cron.New(testkit.Must(messagestore.New(driver, nil)), "reports", nil))
	racing := &racingDriver{Driver: driver, before: func() {
		require.NoError(t, other.Add(t.Context(), cron.Schedule{Name: "daily", Spec: "@daily", Body: Report{"first"}}))
	}}

	err := testkit.Must(cron.New(testkit.Must(messagestore.New(racing, nil)), "reports", nil)).Add(t.Context(), cron.Schedule{Name: "daily", Spec: "@daily", Body: Report{"second"}})

	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
}

// tickLines returns the day and hour of each tick, and its body.
func tickLines(t *testing.T, store *messagestore.Store, stream messagestore.StreamName) (lines []string) {
	t.Helper()
	for m, err := range store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		at, is := cron.TickOf(m)
		require.True(t, is)
		body := testkit.Must(messagestore.Decode[Report](m))
		lines = append(lines, at.Format("02 15h ")+body.Of)
	}
	return lines
}

// A deploy at 06:00 changes what a schedule is, and no process has written the tick yet.
func TestWhatIsDueWhenAScheduleChangesComesFirst(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		for name, c := range map[string]struct {
			catchUp cron.CatchUp
			at      time.Time // of the change
			changed cron.Schedule
			want    []string
		}{
			"the body":                   {cron.Last, time.Date(2026, 3, 2, 6, 0, 30, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *"}, []string{"02 06h old", "05 06h new"}},
			"the body, all come":         {cron.All, time.Date(2026, 3, 4, 6, 0, 0, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *", CatchUp: cron.All}, []string{"02 06h old", "03 06h old", "04 06h old", "05 06h new"}},
			"the body, none come":        {cron.None, time.Date(2026, 3, 2, 6, 0, 30, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *", CatchUp: cron.None}, []string{"02 06h old"}},
			"the body, late, none come":  {cron.None, time.Date(2026, 3, 2, 6, 2, 0, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *", CatchUp: cron.None}, nil},
			"the times":                  {cron.Last, time.Date(2026, 3, 4, 6, 0, 1, 0, time.UTC), cron.Schedule{Spec: "0 9 * * *"}, []string{"04 06h old", "05 09h new"}},
			"which ticks come, from now": {cron.None, time.Date(2026, 3, 4, 6, 2, 0, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *", CatchUp: cron.All}, []string{"05 06h new"}},
			"before anything is due":     {cron.All, time.Date(2026, 3, 2, 5, 59, 59, 0, time.UTC), cron.Schedule{Spec: "0 6 * * *"}, []string{"05 06h new"}},
		} {
			category := storetest.Category(t)
			clock := &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
			kept := testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
			require.NoError(t, kept.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "0 6 * * *", CatchUp: c.catchUp, Body: Report{"old"}}))
			clock.put(c.at)

			c.changed.Name, c.changed.Body = "daily", Report{"new"}
			require.NoError(t, kept.Set(t.Context(), c.changed))

			clock.put(time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC))
			stop := run(t, kept)
			testkit.Await(t, name, func() (bool, any) {
				lines := tickLines(t, store, category.Stream("daily"))
				return len(lines) >= len(c.want), lines
			})
			clock.awaitRound(t)
			stop()
			require.Equal(t, c.want, tickLines(t, store, category.Stream("daily")), name)
		}
	})
}

// A schedule that is changed more often than it ticks has all its ticks.
func TestAnIntervalGoesOnThroughChangesOfItsBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Minute, Logger: logger.Silent()}))
		begin := time.Now().UTC().Round(0)
		for i := range 10 {
			require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "often", Spec: "@every 24h", Body: Report{fmt.Sprint(i)}, CatchUp: cron.All}))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Hour)
			require.NoError(t, c.Run(ctx))
			cancel()
		}
		require.Equal(t, []time.Time{begin.Add(24 * time.Hour), begin.Add(48 * time.Hour), begin.Add(72 * time.Hour), begin.Add(96 * time.Hour)}, timesOf(t, store, "reports", "often"))

		changed := time.Now().UTC().Round(0)
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "often", Spec: "@every 23h", Body: Report{}}))
		all, err := c.Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, changed.Add(23*time.Hour), all[0].Next, "another interval begins anew")
	})
}

// While the item of a tick waits or runs, the ticks behind it are skipped: once, whichever of three processes sees it.
func TestTicksAreSkippedWhileOneWaitsOrRuns(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		clock := &clock{now: begin}
		newCron := func() *cron.Cron {
			return testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
		}
		reports := testkit.Must(queue.New(store, category, &queue.Config{Name: "slow", MaxFailures: 2, Logger: logger.Silent()}))
		c := newCron()
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "0 6 * * *", CatchUp: cron.All, Overlap: cron.Skip, Queue: "slow", Body: Report{}}))
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "piled", Spec: "0 6 * * *", CatchUp: cron.All, Body: Report{}}))
		for range 3 {
			run(t, newCron())
		}
		status := func() cron.Status {
			all, err := c.Status(t.Context(), "daily")
			require.NoError(t, err)
			return all[0]
		}
		ticks := func() []string { return ticksOf(t, store, category.Stream("daily")) }
		day := func(n int) time.Time { return begin.AddDate(0, 0, n) }
		skipped := func(what string, n int, at time.Time) {
			t.Helper()
			clock.put(at)
			testkit.Await(t, what, func() (bool, any) { s := status(); return s.Skips >= int64(n), s })
			require.EqualValues(t, n, status().Skips)
			require.Equal(t, at.Truncate(24*time.Hour).Add(6*time.Hour), status().Skipped)
		}
		ticked := func(what string, want ...string) {
			t.Helper()
			testkit.Await(t, what, func() (bool, any) { got := ticks(); return len(got) >= len(want), got })
			require.Equal(t, want, ticks())
		}
		receive := func() *queue.Job {
			t.Helper()
			for {
				jobs, err := reports.Receive(t.Context(), 1, &queue.ReceiveOpts{Wait: time.Minute, VisibilityTimeout: time.Hour})
				require.NoError(t, err)
				require.Len(t, jobs, 1)
				if jobs[0].Message.Stream.ID() == "daily" {
					return jobs[0]
				}
				require.NoError(t, jobs[0].Complete(t.Context()))
			}
		}
		clock.put(day(1))
		ticked("the first", "2026-03-02")
		skipped("while it waits", 2, day(3))
		job := receive()
		skipped("while it runs", 3, day(4))
		require.NoError(t, job.Retry(t.Context(), time.Hour, errors.New("not yet")))
		skipped("while it is to be tried again", 4, day(5))
		item, err := reports.Item(t.Context(), status().Item)
		require.NoError(t, err)
		require.Equal(t, queue.Later, item.State)
		_, err = reports.Retry(t.Context(), "", status().Item)
		require.NoError(t, err)
		require.NoError(t, receive().Complete(t.Context()))
		clock.awaitRound(t)
		require.Equal(t, day(6).Truncate(24*time.Hour).Add(6*time.Hour), status().Next, "what was skipped does not come")
		clock.put(day(6))
		ticked("the next", "2026-03-02", "2026-03-07")
		require.NoError(t, receive().Bury(t.Context(), errors.New("never")))
		clock.put(day(7))
		ticked("behind a dead one", "2026-03-02", "2026-03-07", "2026-03-08")
		skipped("while the third waits", 5, day(8))
		testkit.AwaitEqual(t, "the others pile up", 8, func() int { return len(ticksOf(t, store, category.Stream("piled"))) })
		require.NoError(t, receive().Complete(t.Context()))
		run(t, newCron()) // one that has seen nothing of it
		clock.put(day(9))
		ticked("the last", "2026-03-02", "2026-03-07", "2026-03-08", "2026-03-10")
		for m, err := range store.ReadStream(t.Context(), category.WithType("skipped").Stream("daily"), 0) {
			require.NoError(t, err)
			require.NotZero(t, testkit.Must(messagestore.Decode[cron.Skipped](m)).Behind)
		}
	})
}

// noQueues is a driver that keeps none.
type noQueues struct{ messagestore.Driver }

func TestAnOverlapThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	driver := memory.New()
	c := testkit.Must(cron.New(testkit.Must(messagestore.New(driver, nil)), "reports", nil))
	for name, s := range map[string]cron.Schedule{
		"another value":        {Overlap: 2},
		"a queue for nothing":  {Queue: "slow"},
		"a queue of bad name":  {Overlap: cron.Skip, Queue: "a-b"},
		"a queue without name": {Overlap: cron.Skip, Queue: " "},
	} {
		s.Name, s.Spec, s.Body = "x", "@daily", Report{}
		require.ErrorIs(t, c.Set(t.Context(), s), messagestore.ErrInvalid, name)
	}
	without := testkit.Must(cron.New(testkit.Must(messagestore.New(noQueues{driver}, nil)), "reports", nil))
	require.ErrorIs(t, without.Set(t.Context(), cron.Schedule{Name: "x", Spec: "@daily", Overlap: cron.Skip, Body: Report{}}), messagestore.ErrNotSupported)
	require.NoError(t, without.Set(t.Context(), cron.Schedule{Name: "x", Spec: "@daily", Body: Report{}}))
}
