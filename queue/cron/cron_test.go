package cron_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/queue"
	"github.com/dibs-go/dibs/queue/cron"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type Report struct {
	Of string `json:"of"`
}

func (Report) MessageType() string { return "Report" }

func TestTicksWhereClocksAreChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec, zone, after string
		want              []string
	}{
		"a skipped hour of a fixed time":          {"30 2 * * *", "Europe/Prague", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		"two fixed times in a skipped hour":       {"15,45 2 * * *", "Europe/Prague", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:15:00Z"}},
		"a repeated hour of a fixed time":         {"30 2 * * *", "Europe/Prague", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"after the first of a repeated hour":      {"30 2 * * *", "Europe/Prague", "2026-10-25T00:30:00Z", []string{"2026-10-26T01:30:00Z"}},
		"every half an hour through a skip":       {"*/30 * * * *", "Europe/Prague", "2026-03-29T00:15:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"}},
		"every half an hour through a repeat":     {"*/30 * * * *", "Europe/Prague", "2026-10-25T00:15:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"}},
		"hours of a list with a star":             {"30 15,* * * *", "Europe/Prague", "2026-10-24T23:45:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
		"New York, which changes at two":          {"0 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"}},
		"Lord Howe, by half an hour":              {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		"UTC, where none is":                      {"@daily", "", "2026-03-28T12:00:00Z", []string{"2026-03-29T00:00:00Z"}},
		"the last of February in a leap year":     {"0 0 29 2 *", "", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z"}},
		"@every, from the tick before":            {"@every 90s", "", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"}},
		"29 February around 2100, which is none":  {"0 0 29 2 *", "", "2096-01-01T00:00:00Z", []string{"2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"}},
		"the same in a zone, each hour":           {"30 * 29 2 *", "Europe/Prague", "2096-02-29T22:00:00Z", []string{"2096-02-29T22:30:00Z", "2104-02-28T23:30:00Z"}},
		"Sunday as 7":                             {"0 9 * * 7", "", "2026-11-27T00:00:00Z", []string{"2026-11-29T09:00:00Z", "2026-12-06T09:00:00Z"}},
		"a range up to Sunday":                    {"0 9 * * Fri-7", "", "2026-11-27T10:00:00Z", []string{"2026-11-28T09:00:00Z", "2026-11-29T09:00:00Z", "2026-12-04T09:00:00Z"}},
		"each other day up to Sunday":             {"0 9 * * 1-7/2", "", "2026-11-27T10:00:00Z", []string{"2026-11-29T09:00:00Z", "2026-11-30T09:00:00Z", "2026-12-02T09:00:00Z", "2026-12-04T09:00:00Z"}},
		"all days, two of them Sunday":            {"0 9 * * 0-7", "", "2026-11-27T10:00:00Z", []string{"2026-11-28T09:00:00Z", "2026-11-29T09:00:00Z", "2026-11-30T09:00:00Z"}},
		"Sunday among others":                     {"0 9 * * 3,7", "", "2026-11-27T10:00:00Z", []string{"2026-11-29T09:00:00Z", "2026-12-02T09:00:00Z"}},
		"in the second of two repeated hours":     {"* 1-2 * * *", "Antarctica/Troll", "2026-10-25T01:00:00Z", []string{"2026-10-26T01:00:00Z", "2026-10-26T01:01:00Z"}},
		"29 February as a Sunday, in forty years": {"0 0 29 2 */7", "", "2089-01-01T00:00:00Z", []string{"2128-02-29T00:00:00Z"}},
		"the last day of a leap year, each hour":  {"30 * 31 12 *", "Europe/Prague", "2096-12-31T21:31:00Z", []string{"2096-12-31T22:30:00Z", "2097-12-30T23:30:00Z"}},
		"an odd day that is a Wednesday":          {"0 0 */2 * 3", "", "2026-11-01T00:00:00Z", []string{"2026-11-11T00:00:00Z", "2026-11-25T00:00:00Z", "2026-12-09T00:00:00Z"}},
		"the first Sunday of a month":             {"0 9 1-7 * */7", "", "2026-11-01T00:00:00Z", []string{"2026-11-01T09:00:00Z", "2026-12-06T09:00:00Z", "2027-01-03T09:00:00Z"}},
		"an odd day, or a Wednesday":              {"0 0 1-31/2 * 3", "", "2026-11-01T00:00:00Z", []string{"2026-11-03T00:00:00Z", "2026-11-04T00:00:00Z", "2026-11-05T00:00:00Z"}},
		"a star that begins no field":             {"0 0 5,* * 1", "", "2026-11-03T00:00:00Z", []string{"2026-11-04T00:00:00Z", "2026-11-05T00:00:00Z"}},
		"a star that begins a field":              {"0 0 *,5 * 1", "", "2026-11-03T00:00:00Z", []string{"2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"}},
		"a change at midnight, each hour":         {"30 * * * 0", "Asia/Gaza", "1990-03-24T12:00:00Z", []string{"1990-03-24T22:30:00Z"}},
		"a day of the month or one of the week":   {"0 0 13 * fri", "", "2026-02-12T00:00:00Z", []string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after, err := time.Parse(time.RFC3339, c.after)
			require.NoError(t, err)
			ticks, err := cron.Next(c.spec, c.zone, after, len(c.want))
			require.NoError(t, err)
			var got []string
			for _, at := range ticks {
				got = append(got, at.UTC().Format(time.RFC3339))
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestBadSchedulesAreRefused(t *testing.T) {
	t.Parallel()
	c := testkit.Must(cron.New(testkit.Must(messagestore.New(memory.New(), nil)), "reports", nil))
	for name, s := range map[string]cron.Schedule{
		"spec":          {Name: "x", Spec: "* * * *", Body: Report{}},
		"eighth day":    {Name: "x", Spec: "0 0 * * 8", Body: Report{}},
		"range of all":  {Name: "x", Spec: "*-5 * * * *", Body: Report{}},
		"empty element": {Name: "x", Spec: "1,,2 * * * *", Body: Report{}},
		"sign":          {Name: "x", Spec: "+5 * * * *", Body: Report{}},
		"step of none":  {Name: "x", Spec: "0 0 * * 1-7/0", Body: Report{}},
		"back in days":  {Name: "x", Spec: "0 0 * * 9-7", Body: Report{}},
		"minute":        {Name: "x", Spec: "60 * * * *", Body: Report{}},
		"never":         {Name: "x", Spec: "0 0 30 2 *", Body: Report{}},
		"never, both":   {Name: "x", Spec: "0 0 30 2 */2", Body: Report{}},
		"empty":         {Name: "x", Body: Report{}},
		"zone":          {Name: "x", Spec: "@daily", Zone: "Mars/X", Body: Report{}},
		"zone in spec":  {Name: "x", Spec: "CRON_TZ=UTC 0 0 * * *", Body: Report{}},
		"every":         {Name: "x", Spec: "@every 10ms", Body: Report{}},
		"every nothing": {Name: "x", Spec: "@every 0s", Body: Report{}},
		"name":          {Spec: "@daily", Body: Report{}},
		"long name":     {Name: fmt.Sprintf("%0300d", 1), Spec: "@daily", Body: Report{}},
		"body":          {Name: "x", Spec: "@daily"},
		"array":         {Name: "x", Spec: "@daily", Body: messagestore.Raw{Type: "Report", Data: []byte(`[1]`)}},
		"no JSON":       {Name: "x", Spec: "@daily", Body: messagestore.Raw{Type: "Report", Data: []byte(`{`)}},
		"no data":       {Name: "x", Spec: "@daily", Body: messagestore.Raw{Type: "Report"}},
		"catch-up":      {Name: "x", Spec: "@daily", Body: Report{}, CatchUp: 7},
	} {
		require.ErrorIs(t, c.Set(t.Context(), s), messagestore.ErrInvalid, name)
	}
	all, err := c.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	require.ErrorIs(t, c.Remove(t.Context(), "x"), messagestore.ErrNotFound)
	_, err = cron.New(nil, "a-b", &cron.Config{Workers: -1, PollInterval: -1})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
}

func TestNextTellsAllTicksOrNone(t *testing.T) {
	t.Parallel()
	after := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	for _, n := range []int{-1, 0, 1000 + 1} {
		ticks, err := cron.Next("@daily", "", after, n)
		require.ErrorIs(t, err, messagestore.ErrInvalid)
		require.ErrorContains(t, err, "must be between 1 and 1000")
		require.Empty(t, ticks)
	}
	_, err := cron.Next("0 0 * * 8", "", after, 1)
	require.ErrorContains(t, err, "above maximum (7)")
	_, err = cron.Next("0 0 * * 1-5,*-6", "", after, 1)
	require.ErrorContains(t, err, `must have fields like *, 5, MON, 1-5, */15 and 1-31/2, and has "*-6"`)
	_, err = cron.Next("x", "", after, 0)
	require.ErrorContains(t, err, "invalid spec")
	require.ErrorContains(t, err, "invalid n")
	ticks, err := cron.Next("@daily", "", after, 1000)
	require.NoError(t, err)
	require.Equal(t, after.AddDate(0, 0, 1000), ticks[1000-1])
}

// A clock is the time of a test, which the test puts forward.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	asked int
}

func (c *clock) Now(context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.now, nil
}

// awaitRound waits until the one process that runs has read all that was set before: it reads, then asks for the time.
func (c *clock) awaitRound(t *testing.T) {
	t.Helper()
	asked := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked
	}
	before := asked()
	testkit.AwaitTrue(t, "a whole round", func() bool { return asked() >= before+2 })
}

func (c *clock) put(to time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = to
}

func eachStore(t *testing.T, test func(t *testing.T, store *messagestore.Store)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) messagestore.Driver{
		"memory": func(*testing.T) messagestore.Driver { return memory.New() },
		"SQLite": func(t *testing.T) messagestore.Driver {
			driver := testkit.Must(sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), nil))
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			return driver
		},
		"PostgreSQL": func(t *testing.T) messagestore.Driver { return testkit.Must(postgres.New(pgtest.Pool(t), nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, testkit.Must(messagestore.New(open(t), nil)))
		})
	}
}

// run runs the schedules until the test ends.
func run(t *testing.T, c *cron.Cron) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, testkit.Receive(t, "Run returns", done))
	})
	t.Cleanup(stop)
	return stop
}

// ticksOf returns the times of the ticks of a schedule, in the order of the stream.
func ticksOf(t *testing.T, store *messagestore.Store, stream messagestore.StreamName) (ticks []string) {
	t.Helper()
	for m, err := range store.ReadStream(t.Context(), stream, 0) {
		require.NoError(t, err)
		at, is := cron.TickOf(m)
		require.True(t, is)
		ticks = append(ticks, at.Format(time.DateOnly))
	}
	return ticks
}

func TestEachTickComesOnceFromThreeProcesses(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		const schedules, days = 8, 10
		category := storetest.Category(t)
		begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		const poll = 10 * time.Millisecond
		clock := &clock{now: begin}
		var processes []*cron.Cron
		for range 3 {
			c := testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: poll, Logger: logger.Silent()}))
			processes = append(processes, c)
		}
		for i := range schedules {
			require.NoError(t, processes[0].Set(t.Context(), cron.Schedule{Name: fmt.Sprint(i), Spec: "0 6 * * *", Body: Report{fmt.Sprint(i)}}))
		}
		for _, c := range processes {
			run(t, c)
		}
		var want []string
		for day := 1; day <= days; day++ {
			at := begin.AddDate(0, 0, day)
			want = append(want, at.Format(time.DateOnly))
			clock.put(at)
			testkit.Await(t, "each schedule has ticked", func() (bool, any) {
				n := 0
				for i := range schedules {
					n += len(ticksOf(t, store, category.Stream(fmt.Sprint(i))))
				}
				return n >= day*schedules, n
			})
		}
		for i := range schedules {
			require.Equal(t, want, ticksOf(t, store, category.Stream(fmt.Sprint(i))))
		}
	})
}

// Whether a tick came meanwhile, and whether the process that saw it runs on.
func TestASchedulesTicksGoOnWhereTheClockWasAhead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, 10 * 24 * time.Hour, 73 * 365 * 24 * time.Hour} {
		for _, runsOn := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, the process runs on: %v", ahead, runsOn), func(t *testing.T) {
				t.Parallel()
				eachStore(t, func(t *testing.T, store *messagestore.Store) {
					category := storetest.Category(t)
					begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
					clock := &clock{now: begin}
					newCron := func() *cron.Cron {
						return testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
					}
					c := newCron()
					require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "a", Spec: "0 6 * * *", Body: Report{"a"}}))
					stop := run(t, c)
					clock.awaitRound(t)
					clock.put(begin.Add(ahead))
					clock.awaitRound(t)
					require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "b", Spec: "0 6 * * *", Body: Report{"b"}}))
					clock.awaitRound(t)
					if !runsOn {
						stop()
						c = newCron()
					}

					clock.put(begin)
					if !runsOn {
						run(t, c)
					}

					clock.awaitRound(t)
					for day := 1; day <= 3; day++ {
						at := begin.AddDate(0, 0, day)
						clock.put(at)
						for _, name := range []string{"a", "b"} {
							testkit.Await(t, "it has ticked", func() (bool, any) {
								ticks := ticksOf(t, store, category.Stream(name))
								return slices.Contains(ticks, at.Format(time.DateOnly)), ticks
							})
						}
						clock.awaitRound(t)
					}
					for _, name := range []string{"a", "b"} {
						ticks := ticksOf(t, store, category.Stream(name))
						slices.Sort(ticks)
						require.Equal(t, slices.Compact(slices.Clone(ticks)), ticks, "each comes once")
					}
				})
			})
		}
	}
}

func TestMissedTicksComeAsTheScheduleSays(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		clock := &clock{now: begin}
		newCron := func() *cron.Cron {
			return testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
		}
		for name, catchUp := range map[string]cron.CatchUp{"last": cron.Last, "none": cron.None, "all": cron.All} {
			require.NoError(t, newCron().Set(t.Context(), cron.Schedule{Name: name, Spec: "0 6 * * *", Body: Report{}, CatchUp: catchUp}))
		}
		ticked := func(stream string, n int) []string {
			testkit.Await(t, stream+" has ticked", func() (bool, any) {
				ticks := ticksOf(t, store, category.Stream(stream))
				return len(ticks) >= n, ticks
			})
			return ticksOf(t, store, category.Stream(stream))
		}
		stop := run(t, newCron())
		clock.put(time.Date(2026, 3, 2, 6, 0, 0, 0, time.UTC))
		for _, name := range []string{"last", "none", "all"} {
			require.Equal(t, []string{"2026-03-02"}, ticked(name, 1))
		}
		stop()
		clock.put(time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)) // three are missed
		run(t, newCron())
		require.Equal(t, []string{"2026-03-02", "2026-03-03", "2026-03-04", "2026-03-05"}, ticked("all", 4))
		require.Equal(t, []string{"2026-03-02", "2026-03-05"}, ticked("last", 2))
		clock.put(time.Date(2026, 3, 6, 6, 0, 0, 0, time.UTC))
		require.Equal(t, []string{"2026-03-02", "2026-03-06"}, ticked("none", 2))
		require.Equal(t, []string{"2026-03-02", "2026-03-05", "2026-03-06"}, ticked("last", 3))
	})
}

func TestASleepOfThreeYearsIsNoFlood(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	clock := &clock{now: time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)}
	c := testkit.Must(cron.New(store, "reports", &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
	require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "all", Spec: "@every 1s", Body: Report{}, CatchUp: cron.All}))
	require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "last", Spec: "* * * * *", Body: Report{}}))
	run(t, c)
	count := func(stream messagestore.StreamName) func() int {
		return func() int { return len(ticksOf(t, store, stream)) }
	}
	clock.put(time.Date(2023, 1, 1, 0, 1, 0, 0, time.UTC))
	testkit.AwaitEqual(t, "a minute of ticks", 60, count("reports-all"))
	clock.put(time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC))
	testkit.AwaitEqual(t, "the last thousand", 1060, count("reports-all"))
	testkit.AwaitEqual(t, "one for three years", 2, count("reports-last"))
}

// 2100 is no leap year, and eight years are more than the parser looks ahead.
func TestAScheduleGoesOnOverYearsWithoutATick(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	clock := &clock{now: time.Date(2096, 2, 28, 0, 0, 0, 0, time.UTC)}
	c := testkit.Must(cron.New(store, "reports", &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
	for name, spec := range map[string]string{"fixed": "0 6 29 2 *", "hourly": "0 * 29 2 *"} {
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: name, Spec: spec, Zone: "Europe/Prague", Body: Report{}}))
	}
	run(t, c)
	for n, year := range []int{2096, 2104, 2108} {
		clock.put(time.Date(year, 2, 29, 12, 0, 0, 0, time.UTC))
		for _, stream := range []messagestore.StreamName{"reports-fixed", "reports-hourly"} {
			testkit.AwaitEqual(t, "a tick in "+strconv.Itoa(year), n+1, func() int { return len(ticksOf(t, store, stream)) })
		}
	}
}

func TestAScheduleIsChangedAndRemovedByAnyProcess(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		clock := &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
		c := testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
		run(t, c)
		other := testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now}))
		set := func(spec string, of string) {
			require.NoError(t, other.Set(t.Context(), cron.Schedule{Name: "daily", Spec: spec, Body: Report{of}}))
		}
		set("0 6 * * *", "one")
		set("0 6 * * *", "one")
		version, err := store.Version(t.Context(), category.WithType("schedule").Stream("daily"))
		require.NoError(t, err)
		require.EqualValues(t, 0, version, "the same again")
		clock.awaitRound(t)
		clock.put(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))
		ticks := func() int { return len(ticksOf(t, store, category.Stream("daily"))) }
		testkit.AwaitEqual(t, "a tick", 1, ticks)
		set("0 7 * * *", "two")
		clock.awaitRound(t)
		clock.put(time.Date(2026, 3, 3, 12, 0, 0, 0, time.UTC))
		testkit.AwaitEqual(t, "a tick of the changed one", 2, ticks)
		last, err := store.Last(t.Context(), category.Stream("daily"))
		require.NoError(t, err)
		require.JSONEq(t, `{"of":"two"}`, string(last.Data))
		at, _ := cron.TickOf(last)
		require.Equal(t, 7, at.Hour())
		require.NoError(t, other.Remove(t.Context(), "daily"))
		all, err := c.List(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
		require.NoError(t, other.Set(t.Context(), cron.Schedule{Name: "second", Spec: "0 6 * * *", Body: Report{}}))
		clock.awaitRound(t)
		clock.put(time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC))
		testkit.AwaitEqual(t, "a tick of another", 1, func() int { return len(ticksOf(t, store, category.Stream("second"))) })
		require.Equal(t, 2, ticks(), "a removed schedule has no tick")
	})
}

// A store that fails does not end Run, and no tick is lost or doubled by it.
func TestTicksOutliveAnOutage(t *testing.T) {
	t.Parallel()
	failing := &failingDriver{Driver: memory.New()}
	store := testkit.Must(messagestore.New(failing, &messagestore.Config{Logger: logger.Silent()}))
	clock := &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	c := testkit.Must(cron.New(store, "reports", &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
	require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "daily", Spec: "0 6 * * *", Body: Report{}}))
	run(t, c)
	failing.set(true)
	clock.put(time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC))
	testkit.Await(t, "writes fail", func() (bool, any) { n := failing.count(); return n > 2, n })
	failing.set(false)
	testkit.AwaitEqual(t, "the tick", 1, func() int { return len(ticksOf(t, store, "reports-daily")) })
}

type failingDriver struct {
	*memory.Driver
	mu     sync.Mutex
	fails  bool
	failed int
}

func (d *failingDriver) set(fails bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = fails
}

func (d *failingDriver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

func (d *failingDriver) Append(ctx context.Context, a messagestore.Append) (messagestore.Written, error) {
	d.mu.Lock()
	if d.fails {
		d.failed++
		d.mu.Unlock()
		return messagestore.Written{}, errors.New("the store is away")
	}
	d.mu.Unlock()
	return d.Driver.Append(ctx, a)
}

func TestAStatusHasTheLastTickAndTheNext(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store *messagestore.Store) {
		category := storetest.Category(t)
		begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		clock := &clock{now: begin}
		c := testkit.Must(cron.New(store, category, &cron.Config{Now: clock.Now, PollInterval: 10 * time.Millisecond, Logger: logger.Silent()}))
		for name, s := range map[string]cron.Schedule{"all": {Spec: "0 6 * * *", CatchUp: cron.All}, "last": {Spec: "0 6 * * *"}, "none": {Spec: "@every 24h", CatchUp: cron.None}} {
			s.Name, s.Body = name, Report{}
			require.NoError(t, c.Add(t.Context(), s))
		}
		status := func(names ...string) (lines []string) {
			all, err := c.Status(t.Context(), names...)
			require.NoError(t, err)
			for _, s := range all {
				last := "-"
				if !s.Last.IsZero() {
					last = s.Last.Format("02 15h")
				}
				require.Equal(t, begin, s.From)
				lines = append(lines, fmt.Sprint(s.Name, ": ", last, ", ", s.Next.Format("02 15h")))
			}
			return lines
		}
		require.Equal(t, []string{"all: -, 02 06h", "last: -, 02 06h", "none: -, 02 12h"}, status())
		require.Equal(t, []string{"last: -, 02 06h"}, status("last", "nobody"))

		clock.put(time.Date(2026, 3, 4, 18, 0, 0, 0, time.UTC))

		require.Equal(t, []string{"all: -, 02 06h", "last: -, 04 06h", "none: -, 05 12h"}, status(), "nobody has run them")
		run(t, c)
		testkit.AwaitEqual(t, "three ticks", 3, func() int { return len(ticksOf(t, store, category.Stream("all"))) })
		testkit.AwaitEqual(t, "the last tick", 1, func() int { return len(ticksOf(t, store, category.Stream("last"))) })
		require.Equal(t, []string{"all: 04 06h, 05 06h", "last: 04 06h, 05 06h", "none: -, 05 12h"}, status())
	})
}

func TestASecondScheduleOfANameIsNotAdded(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	c := testkit.Must(cron.New(store, "reports", nil))
	daily := cron.Schedule{Name: "daily", Spec: "@daily", Body: Report{}}
	require.NoError(t, c.Add(t.Context(), daily))
	require.NoError(t, c.Add(t.Context(), daily), "the same again")

	err := c.Add(t.Context(), cron.Schedule{Name: "daily", Spec: "@hourly", Body: Report{}})

	require.ErrorIs(t, err, messagestore.ErrVersionConflict)
	all, err := c.List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "@daily", all[0].Spec)
	require.NoError(t, c.Remove(t.Context(), "daily"))
	require.NoError(t, c.Add(t.Context(), cron.Schedule{Name: "daily", Spec: "@hourly", Body: Report{}}), "the name is free")
}

// Of a schedule whose missed ticks do not come, the next one is waited for.
func TestAMissedTickThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		begin := time.Now()
		rounds := 0
		passed := 90 * time.Minute
		set := testkit.Must(cron.New(store, "reports", &cron.Config{Now: func(context.Context) (time.Time, error) { return begin, nil }}))
		require.NoError(t, set.Set(t.Context(), cron.Schedule{Name: "hourly", Spec: "@every 1h", Body: Report{}, CatchUp: cron.None}))
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Second, Logger: logger.Silent(), Now: func(context.Context) (time.Time, error) {
			rounds++
			return begin.Add(passed), nil
		}}))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()

		require.NoError(t, c.Run(ctx))

		require.Less(t, rounds, 20)
	})
}

// An interval may be longer than a day, than a process runs, and than the time for which a tick is not forgotten.
func TestIntervalsOfDaysTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		begin := time.Now().UTC().Round(0)
		newCron := func() *cron.Cron {
			return testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Minute, Logger: logger.Silent()}))
		}
		want := map[string][]time.Time{}
		for _, every := range []time.Duration{25 * time.Hour, 48 * time.Hour, 366 * 24 * time.Hour} {
			name := every.String()
			require.NoError(t, newCron().Set(t.Context(), cron.Schedule{Name: name, Spec: "@every " + name, Body: Report{}, CatchUp: cron.All}))
			for at := begin.Add(every); at.Before(begin.AddDate(1, 0, 10)); at = at.Add(every) {
				want[name] = append(want[name], at)
			}
		}
		runFor := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			require.NoError(t, newCron().Run(ctx))
		}
		for time.Since(begin) < 6*24*time.Hour {
			runFor(7*time.Hour + 11*time.Millisecond)
		}
		time.Sleep(time.Until(begin.AddDate(1, 0, 10).Add(-time.Hour)))
		runFor(time.Minute)
		for name, ticks := range want {
			require.Equal(t, ticks, timesOf(t, store, "reports", name), name)
		}
	})
}

// timesOf returns the times of the ticks of a schedule.
func timesOf(t *testing.T, store *messagestore.Store, category messagestore.Category, name string) (ticks []time.Time) {
	t.Helper()
	for m, err := range store.ReadStream(t.Context(), category.Stream(name), 0) {
		require.NoError(t, err)
		if at, is := cron.TickOf(m); is {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

// Processes that come late, at different moments, make one tick of an interval, at a multiple of it.
func TestALateTickOfAnIntervalComesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		begin := time.Now().UTC().Round(0)
		newCron := func(now func(context.Context) (time.Time, error)) *cron.Cron {
			return testkit.Must(cron.New(store, "reports", &cron.Config{Now: now, PollInterval: time.Minute, Logger: logger.Silent()}))
		}
		require.NoError(t, newCron(nil).Set(t.Context(), cron.Schedule{Name: "six", Spec: "@every 6h", Body: Report{}}))
		time.Sleep(30*time.Hour + 1234*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var group sync.WaitGroup
		var failed [3]error
		for i := range failed {
			slow := time.Duration(i) * 100 * time.Millisecond
			group.Go(func() {
				failed[i] = newCron(func(ctx context.Context) (time.Time, error) {
					now, err := store.Now(ctx)
					return now.Add(slow), err
				}).Run(ctx)
			})
		}
		group.Wait()
		require.NoError(t, errors.Join(failed[:]...))
		require.Equal(t, []time.Time{begin.Add(30 * time.Hour)}, timesOf(t, store, "reports", "six"))
	})
}

// The first tick of a schedule comes late if no process was there for days, as any later one does.
func TestAFirstTickThatNoProcessWasThereForComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Minute, Logger: logger.Silent()}))
		due := time.Now().Add(30 * time.Hour).UTC().Round(0)
		spec := due.Format("4 15 2 1 *")
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "yearly", Spec: spec, Body: Report{}}))
		_, err := store.Write(t.Context(), "reports-yearly", messagestore.NoStream, Report{"another item of the key"})
		require.NoError(t, err)
		time.Sleep(5 * 24 * time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		require.Equal(t, []time.Time{due}, timesOf(t, store, "reports", "yearly"))
	})
}

// Where no process was there, the ticks are the last of those that came one by one.
func TestTheMissedTicksAreTheLastOfAll(t *testing.T) {
	t.Parallel()
	after := time.Date(2026, 3, 27, 0, 7, 0, 0, time.UTC)
	for _, spec := range []string{"* * * * *", "*/7 2 * * *", "30 1-3 * * *", "0 0 1 1 *", "* * * 1 *", "0 12 * * 1", "@every 90s", "@every 49h"} {
		for _, days := range []int{0, 1, 3, 40, 400} {
			now := after.AddDate(0, 0, days).Add(41 * time.Minute)
			var all []time.Time
			for at := after; !at.After(now); at = all[len(all)-1] {
				ticks, err := cron.Next(spec, "Europe/Berlin", at, 1000)
				require.NoError(t, err)
				all = append(all, ticks...)
			}
			all = slices.DeleteFunc(all, func(at time.Time) bool { return at.After(now) })
			last := func(n int) []time.Time { return all[max(0, len(all)-n):] }
			minute := slices.DeleteFunc(slices.Clone(all), func(at time.Time) bool { return at.Before(now.Add(-time.Minute)) })
			for catchUp, want := range map[cron.CatchUp][]time.Time{cron.Last: last(1), cron.All: last(1000), cron.None: minute} {
				ticks := cron.Due(t, spec, "Europe/Berlin", after, now, catchUp)
				require.Len(t, ticks, len(want), "%s %d days %s", spec, days, catchUp)
				for i, at := range ticks {
					require.True(t, at.Equal(want[i]), "%s %d days %s: tick %d is %s and not %s", spec, days, catchUp, i, at, want[i])
				}
			}
		}
	}
}

// A schedule that was written by other means, and whose items the store would refuse, stops no other.
func TestAScheduleThatCannotBeStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Second, Logger: logger.Silent()}))
		now := time.Now()
		good := cron.Scheduled{Name: "good", Spec: "@every 10s", From: now, Type: "Report", Data: []byte(`{}`)}
		for stream, change := range map[messagestore.StreamName]func(s *cron.Scheduled){
			"reports:schedule-type":  func(s *cron.Scheduled) { s.Type = "" },
			"reports:schedule-store": func(s *cron.Scheduled) { s.Type = "dibs:Tombstone" },
			"reports:schedule-data":  func(s *cron.Scheduled) { s.Data = nil },
			"reports:schedule-array": func(s *cron.Scheduled) { s.Data = []byte(`[]`) },
			"reports:schedule-from":  func(s *cron.Scheduled) { s.From = time.Time{} },
			"reports:schedule-zone":  func(s *cron.Scheduled) { s.Zone = "Mars/X" },
			"reports:schedule-other": func(s *cron.Scheduled) { s.Name = "another" },
			"reports:schedule-good":  func(*cron.Scheduled) {},
		} {
			s := good
			s.Name = stream.ID()
			change(&s)
			_, err := store.Write(t.Context(), stream, messagestore.NoStream, s)
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 65*time.Second)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		all, err := c.List(t.Context())
		require.ErrorIs(t, err, cron.ErrCorrupt)
		require.ErrorContains(t, err, "reports:schedule-other@0")
		require.Len(t, all, 1)
		status, err := c.Status(t.Context())
		require.ErrorIs(t, err, cron.ErrCorrupt)
		require.Len(t, status, 1)
		status, err = c.Status(t.Context(), "good")
		require.NoError(t, err, "another is nothing to it")
		require.Len(t, status, 1)
		_, err = c.Status(t.Context(), "zone")
		require.ErrorIs(t, err, cron.ErrCorrupt)
		require.Len(t, timesOf(t, store, "reports", "good"), 6)
		n := 0
		for _, err := range store.ReadCategory(t.Context(), "reports", 0, messagestore.Filter{}) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, 6, n)
	})
}

// Run names ten schedules that cannot be read, and the number of the others, each once; List and Status tell them by their errors alone.
func TestManyCorruptSchedulesAreAFewLinesOfTheLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		var log bytes.Buffer
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Second, Logger: logger.Zerolog(zerolog.New(&log))}))
		forge := func(name string) {
			_, err := store.Write(t.Context(), messagestore.Category("reports:schedule").Stream(name), messagestore.AnyVersion, messagestore.Raw{Type: "Scheduled", Data: []byte(`{}`)})
			require.NoError(t, err)
		}
		run := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			require.NoError(t, c.Run(ctx))
		}
		for i := range 125 {
			forge(fmt.Sprint("bad", i))
			forge(fmt.Sprint("bad", i))
		}
		forge("good")
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "good", Spec: "@daily", Body: Report{}}))

		_, err := c.List(t.Context())
		require.ErrorIs(t, err, cron.ErrCorrupt)
		_, err = c.Status(t.Context(), "good")
		require.NoError(t, err)
		require.Empty(t, log.String())

		time.AfterFunc(5*time.Second, func() { forge("late") })
		run()
		require.Equal(t, 11, strings.Count(log.String(), `"schedule cannot be read"`), log.String())
		require.Equal(t, 1, strings.Count(log.String(), "schedules cannot be read"), log.String())
		require.Contains(t, log.String(), `"schedules":115,`)
		require.Equal(t, 1, strings.Count(log.String(), "reports:schedule-late"))
		require.NotContains(t, log.String(), "reports:schedule-good")
	})
}

// A process that is stopped after it has asked for the time brings no tick that is more than a minute late.
func TestAStoppedProcessBringsNoTickThatIsTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := testkit.Must(messagestore.New(memory.New(), nil))
		stopped := time.Duration(0)
		c := testkit.Must(cron.New(store, "reports", &cron.Config{PollInterval: time.Second, Logger: logger.Silent(), Now: func(ctx context.Context) (time.Time, error) {
			now, err := store.Now(ctx)
			time.Sleep(stopped)
			return now, err
		}}))
		for name, catchUp := range map[string]cron.CatchUp{"none": cron.None, "last": cron.Last} {
			require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: name, Spec: "@every 1h", Body: Report{}, CatchUp: catchUp}))
		}
		begin := time.Now().UTC().Round(0)
		time.Sleep(time.Hour)
		stopped = 5 * time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
		defer cancel()
		require.NoError(t, c.Run(ctx))
		require.Empty(t, timesOf(t, store, "reports", "none"))
		require.Equal(t, []time.Time{begin.Add(time.Hour)}, timesOf(t, store, "reports", "last"))
	})
}

// What was removed of a schedule's stream never comes again.
func TestTicksThatWereRemovedDoNotComeAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	driver := testkit.Must(sqlite.Open(t.Context(), path, nil))
	t.Cleanup(func() { require.NoError(t, driver.Close()) })
	store := testkit.Must(messagestore.New(driver, nil))
	db := testkit.Must(sql.Open("sqlite", path))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	begin := time.Now().Add(-11 * 24 * time.Hour).UTC().Truncate(time.Second)
	for _, name := range []string{"forgotten", "deleted", "trimmed"} {
		_, err := store.Write(t.Context(), messagestore.Category(name).WithType("schedule").Stream("x"), messagestore.NoStream,
			cron.Scheduled{Name: "x", Spec: "@every 72h", CatchUp: "all", From: begin, Type: "Report", Data: []byte(`{}`)})
		require.NoError(t, err)
	}
	backdate := func() {
		t.Helper()
		_, err := db.ExecContext(t.Context(), `update dibs_messages set time = coalesce(json_extract(metadata, '$.tickAt'), ?)`, begin.UnixMicro())
		require.NoError(t, err)
	}
	backdate()
	status := func(name string) cron.Status {
		t.Helper()
		all, err := testkit.Must(cron.New(store, messagestore.Category(name), nil)).Status(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	for _, name := range []string{"forgotten", "deleted", "trimmed"} {
		require.Equal(t, begin.Add(72*time.Hour), status(name).Next, "three are due")
		stop := run(t, testkit.Must(cron.New(store, messagestore.Category(name), &cron.Config{PollInterval: 10 * time.Millisecond})))
		testkit.AwaitEqual(t, "three ticks", 3, func() int { return len(timesOf(t, store, messagestore.Category(name), "x")) })
		stop()
	}
	backdate()

	q := testkit.Must(queue.New(store, "forgotten", nil))
	_, err := q.Insert(t.Context(), Report{"the last of the category is not forgotten"}, nil)
	require.NoError(t, err)
	for done := 0; done < 4; {
		jobs, err := q.Receive(t.Context(), 10, nil)
		require.NoError(t, err)
		for _, job := range jobs {
			require.NoError(t, job.Complete(t.Context()))
			done++
		}
	}
	forgotten, err := driver.Forget(t.Context(), "forgotten", 24*time.Hour, nil)
	require.NoError(t, err)
	require.EqualValues(t, 3, forgotten.Messages)
	_, err = driver.Delete(t.Context(), "deleted-x", messagestore.AnyVersion, nil)
	require.NoError(t, err)
	_, err = store.Write(t.Context(), "trimmed-x", messagestore.AnyVersion, Report{"another item of the key"})
	require.NoError(t, err)
	_, err = driver.Trim(t.Context(), "trimmed-x", &retention.TrimOptions{Keep: 1})
	require.NoError(t, err)

	for _, name := range []string{"forgotten", "deleted", "trimmed"} {
		require.Empty(t, timesOf(t, store, messagestore.Category(name), "x"))
		require.Equal(t, begin.Add(4*72*time.Hour), status(name).Next, name)
	}
}
