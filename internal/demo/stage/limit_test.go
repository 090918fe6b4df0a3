package stage

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// standsStill is work that no time is enough for.
func standsStill(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func done(context.Context) error { return nil }

func TestALimitThatEndsHasWhatWasSentSettledAndJudged(t *testing.T) {
	differ := errors.New("the books differ")
	fell := errors.New("a process fell")
	for name, test := range map[string]struct {
		do, settle func(context.Context) error
		stop       error
		verdict    error
		calls      []string
		late, want string
		notDone    bool
	}{
		"all is done":           {do: done, calls: []string{"stop", "verdict"}},
		"not done":              {do: standsStill, settle: done, calls: []string{"settle", "stop", "verdict"}, late: "not done after 1m0s", want: "not done after 1m0s", notDone: true},
		"nor settled":           {do: standsStill, settle: standsStill, calls: []string{"settle", "stop", "verdict"}, late: "not done after 1m0s, nor settled 1s later", want: "not done after 1m0s, nor settled 1s later", notDone: true},
		"not done and wrong":    {do: standsStill, settle: done, verdict: differ, calls: []string{"settle", "stop", "verdict"}, late: "not done after 1m0s", want: "the books differ"},
		"done and wrong":        {do: done, verdict: differ, calls: []string{"stop", "verdict"}, want: "the books differ"},
		"the work fails":        {do: func(context.Context) error { return fell }, want: "a process fell"},
		"the settling fails":    {do: standsStill, settle: func(context.Context) error { return fell }, calls: []string{"settle"}, want: "a process fell"},
		"a process does not":    {do: done, stop: fell, calls: []string{"stop"}, want: "a process fell"},
		"nor when it is a part": {do: standsStill, settle: done, stop: fell, calls: []string{"settle", "stop", "verdict"}, late: "not done after 1m0s", want: "not done after 1m0s\na process fell", notDone: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls []string
				var said error
				l := Limit{Limit: time.Minute, Settle: time.Second}

				err := l.Run(t.Context(), NewScreen(&bytes.Buffer{}), Work{
					Do:     test.do,
					Settle: func(ctx context.Context) error { calls = append(calls, "settle"); return test.settle(ctx) },
					Stop:   func() error { calls = append(calls, "stop"); return test.stop },
					Verdict: func(_ context.Context, late error) error {
						calls, said = append(calls, "verdict"), late
						return test.verdict
					},
				})

				require.Equal(t, test.calls, calls)
				require.Equal(t, test.notDone, errors.Is(err, ErrNotDone))
				if test.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, test.want)
				}
				if test.late == "" {
					require.NoError(t, said)
				} else {
					require.EqualError(t, said, test.late)
				}
			})
		})
	}
}

func TestWhatWasBegunHasItsTimeToSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("told to end")
		ctx, end := context.WithCancelCause(t.Context())
		settling, cut := Settling(ctx, time.Minute)
		defer cut()
		time.Sleep(time.Hour)
		require.NoError(t, settling.Err(), "before ctx has ended it has all the time")

		end(why)

		time.Sleep(time.Minute - 1)
		require.NoError(t, settling.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(settling), why)
	})
}
