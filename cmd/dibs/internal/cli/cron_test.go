package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue/cron"
)

func TestSchedulesAreSetListedShownAndRemoved(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "cron", store, map[string]func(){"the hour that is skipped is among the next ticks": func() {
			require.Regexp(t, `(?m)^next +\S+T0\d:30:00.000000Z +\w{3} \S+ 02:30:00 CES?T$`, dibs.ok(t, "cron", "show", "reports", "spring"))
			shown := objects(t, dibs.ok(t, "cron", "show", "reports", "spring", "--next", "400", "--json"))[0]
			next, is := shown["next"].([]any)
			require.True(t, is)
			require.Len(t, next, 400)
			require.True(t, slices.ContainsFunc(next, func(at any) bool {
				return strings.Contains(fmt.Sprint(at), "-03-") && strings.Contains(fmt.Sprint(at), "T01:00:00")
			}))
		}})
	})
}

func TestAScheduleThatNoProcessRunsIsLate(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		yesterday := func(context.Context) (time.Time, error) { return time.Now().Add(-24 * time.Hour), nil }
		c := testkit.Must(cron.New(store, "reports", &cron.Config{Now: yesterday}))
		require.NoError(t, c.Set(t.Context(), cron.Schedule{Name: "hourly", Spec: "0 * * * *", Body: messagestore.Raw{Type: "Report", Data: []byte(`{}`)}}))

		require.Regexp(t, `(?m)  Report  late$`, dibs.ok(t, "cron", "ls"))
		require.Equal(t, true, objects(t, dibs.ok(t, "cron", "ls", "--json"))[0]["late"])
		require.Regexp(t, `(?m)^next .*  late$`, dibs.ok(t, "cron", "show", "reports", "hourly"))
	})
}

func TestSkippedTicksAreListedAndShown(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		wrong := dibs.run(t, "cron", "set", "reports", "hourly", "@hourly", "Report", "--queue", "slow")
		require.Equal(t, 2, wrong.code)
		require.Contains(t, wrong.stderr, "must be empty unless Overlap is Skip")
		set := dibs.ok(t, "cron", "set", "reports", "hourly", "0 * * * *", "Report", "--overlap", "skip", "--queue", "slow", "--catch-up", "all")
		require.Regexp(t, `(?m)^overlap +skip, while an item of queue slow is not finished$`, set)
		later := testkit.Must(cron.New(store, "reports", &cron.Config{Now: func(context.Context) (time.Time, error) { return time.Now().Add(5 * time.Hour), nil }}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- later.Run(ctx) }()
		testkit.Await(t, "four are skipped", func() (bool, any) {
			all, err := later.Status(t.Context())
			return err == nil && all[0].Skips == 4, all
		})
		cancel()
		require.NoError(t, testkit.Receive(t, "Run returns", done))

		require.Regexp(t, `(?m)  Report  4 skipped$`, dibs.ok(t, "cron", "ls"))
		shown := dibs.ok(t, "cron", "show", "reports", "hourly")
		require.Regexp(t, `(?m)^skipped +4, the last \S+:00:00.000000Z$`, shown)
		require.Regexp(t, `(?m)^behind +item \d+: dibs queue show slow \d+$`, shown)
		line := objects(t, dibs.ok(t, "cron", "ls", "--json"))[0]
		require.Equal(t, []any{"skip", "slow", 4.0}, []any{line["overlap"], line["queue"], line["skips"]})
	})
}

// background runs dibs until stop is called, which returns its result.
func (s *shell) background(t *testing.T, args ...string) (stop func() result) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan result, 1)
	go func() { done <- s.runContext(ctx, args...) }()
	var r result
	stop = func() result {
		if ctx.Err() == nil {
			cancel()
			r = testkit.Receive(t, "dibs ends", done)
		}
		return r
	}
	t.Cleanup(func() { stop() })
	return stop
}

func TestSchedulesAreRunBySeveralProcesses(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "cron", "set", "reports", "often", "@every 1s", "Report", `{"of":"all"}`)
		var stops []func() result
		for _, args := range [][]string{{"cron", "run"}, {"cron", "run", "reports"}, {"cron", "run", "mail", "reports", "--json"}} {
			stops = append(stops, dibs.background(t, args...))
		}
		// It is set while they run: the first finds its category, the third was told.
		dibs.ok(t, "cron", "set", "mail", "digest", "@every 1s", "Digest")
		for _, stream := range []messagestore.StreamName{"reports-often", "mail-digest"} {
			testkit.Await(t, "three ticks of "+string(stream), func() (bool, any) {
				version, err := store.Version(t.Context(), stream)
				return version >= 2, fmt.Sprint(version, err)
			})
		}
		var said []string
		for _, stop := range stops {
			r := stop()
			require.Zero(t, r.code, r.stderr)
			require.Empty(t, r.stderr)
			said = append(said, r.stdout)
		}
		require.Contains(t, said[0], "runs the schedules of reports\n")
		require.Equal(t, "runs the schedules of reports\n", said[1])
		require.Len(t, objects(t, said[2]), 2)
		require.Contains(t, dibs.ok(t, "queue", "insert", "reports", "Report"), "position")

		var last time.Time
		for m, err := range store.ReadStream(t.Context(), "reports-often", 0) {
			require.NoError(t, err)
			at, is := cron.TickOf(m)
			require.True(t, is)
			require.Greater(t, at, last, "each tick once, in order")
			require.JSONEq(t, `{"of":"all"}`, string(m.Data))
			last = at
		}
		status := objects(t, dibs.ok(t, "cron", "ls", "reports", "--json"))[0]
		require.Equal(t, last.Format("2006-01-02T15:04:05.000000Z"), status["last"])
	})
}

func TestACategoryWithAFirstScheduleIsFoundByARunningProcess(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		stop := dibs.background(t, "cron", "run")
		dibs.ok(t, "cron", "set", "reports", "often", "@every 1s", "Report")
		testkit.Await(t, "a tick", func() (bool, any) {
			version, err := store.Version(t.Context(), "reports-often")
			return version >= 0, fmt.Sprint(version, err)
		})
		require.Equal(t, "runs the schedules of reports\n", stop().stdout)
	})
}

// An error that lasts ends the process.
func TestSchedulesOfAStoreThatMayNotBeWrittenEndTheProcess(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "cron", "set", "reports", "often", "@every 1s", "Report")
		driver := testkit.Must(store.Driver())
		readOnly := func(context.Context, string, *messagestore.Config) (*messagestore.Store, error) {
			return messagestore.New(readOnlyDriver{driver}, nil)
		}
		var stdout, stderr bytes.Buffer

		code := cli.RunOver(t.Context(), readOnly, []string{"cron", "run", "reports"}, &stdout, &stderr, dibs.getenv)

		require.Equal(t, 1, code)
		require.Contains(t, stderr.String(), "dibs: cron reports:")
	})
}

type readOnlyDriver struct{ messagestore.Driver }

func (readOnlyDriver) Append(context.Context, messagestore.Append) (messagestore.Written, error) {
	return messagestore.Written{}, messagestore.ErrNotPermitted
}

func TestACorruptScheduleIsNamedAndTheOthersAreListed(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "cron", "set", "reports", "good", "@daily", "Report")
		dibs.ok(t, "cron", "set", "reports", "bad", "@daily", "Report")
		for _, forged := range []messagestore.Raw{{Type: "Scheduled", Data: []byte(`{"name":"bad","spec":7}`)}, {Type: "Scheduled", Data: []byte(`{}`)}, {Type: "Other", Data: []byte(`{}`)}} {
			_, err := store.Write(t.Context(), "reports:schedule-bad", messagestore.AnyVersion, forged)
			require.NoError(t, err)

			r := dibs.run(t, "cron", "ls")

			require.Equal(t, 1, r.code, r.stderr)
			require.Contains(t, r.stdout, "good")
			require.Contains(t, r.stderr, "corrupt schedule: reports:schedule-bad@")
			require.Equal(t, 1, dibs.run(t, "cron", "show", "reports", "bad").code)
			dibs.ok(t, "cron", "show", "reports", "good")
		}
		dibs.ok(t, "cron", "set", "reports", "bad", "@hourly", "Report")
		dibs.ok(t, "cron", "ls")
	})
}

// Whoever asks for one schedule is told nothing of others, of which any writer may have made any number that cannot be read.
func TestACommandForOneScheduleSaysNothingOfCorruptOnes(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "cron", "set", "reports", "good", "@daily", "Report")
		for i := range 25 {
			for _, forged := range []messagestore.Raw{{Type: "Scheduled", Data: []byte(`{"name":"bad","spec":7}`)}, {Type: "Scheduled", Data: []byte(`{}`)}, {Type: "Other", Data: []byte(`{}`)}} {
				_, err := store.Write(t.Context(), messagestore.Category("reports:schedule").Stream(fmt.Sprint("bad", i)), messagestore.AnyVersion, forged)
				require.NoError(t, err)
			}
		}

		for _, args := range [][]string{
			{"cron", "show", "reports", "good"}, {"cron", "show", "reports", "good", "--json"}, {"cron", "set", "reports", "good", "@hourly", "Report"}, {"cron", "remove", "reports", "good"},
		} {
			r := dibs.run(t, args...)
			require.Zero(t, r.code, r.stderr)
			require.Empty(t, r.stderr, args)
			require.NotContains(t, r.stdout, "bad")
		}

		bad := dibs.run(t, "cron", "show", "reports", "bad7")
		require.Equal(t, 1, bad.code)
		require.Equal(t, 1, strings.Count(bad.stderr, "reports:schedule-"), bad.stderr)
		require.Contains(t, bad.stderr, "reports:schedule-bad7@2")
		listed := dibs.run(t, "cron", "ls")
		require.Equal(t, 1, listed.code)
		require.Equal(t, 10, strings.Count(listed.stderr, "reports:schedule-"), listed.stderr)
		require.Contains(t, listed.stderr, "and 15 more")
	})
}
