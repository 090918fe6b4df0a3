package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/queue"
)

// Whatever a handler returns once the stop has ended its context, the item is given back: but nil and a disposition are its decision
// about the item, as ever.
func TestNoErrorBehindAStopIsAFailure(t *testing.T) {
	killed := errors.New("signal: killed")
	for name, test := range map[string]struct {
		returns func(ctx context.Context) error
		state   queue.State
		what    string
	}{
		"an error of another process": {func(context.Context) error { return killed }, queue.Later, "u"},
		"a text of the error":         {func(ctx context.Context) error { return fmt.Errorf("call: %v", ctx.Err()) }, queue.Later, "u"}, //nolint:errorlint // that is it
		"the error":                   {func(ctx context.Context) error { return ctx.Err() }, queue.Later, "u"},
		"a deadline of its own":       {func(context.Context) error { return context.DeadlineExceeded }, queue.Later, "u"},
		"a panic":                     {func(context.Context) error { panic(killed) }, queue.Later, "u"},
		"Goexit":                      {func(context.Context) error { runtime.Goexit(); return nil }, queue.Later, "u"},
		"nil":                         {func(context.Context) error { return nil }, queue.Finished, ""},
		"a skip":                      {func(context.Context) error { return handler.Skip("not for us") }, queue.Finished, ""},
		"a park":                      {func(context.Context) error { return handler.Park(killed) }, queue.Dead, "x"},
		"a refusal":                   {func(context.Context) error { return handler.Refuse(killed) }, queue.Dead, "x"},
		"a time":                      {func(context.Context) error { return handler.RetryAfter(time.Hour, killed) }, queue.Later, "f"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
				stop := working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
					<-ctx.Done()
					return test.returns(ctx)
				}, &queue.WorkConfig{Timeout: time.Hour})
				at := insert(t, q, Send{}, nil)
				time.Sleep(time.Second)
				synctest.Wait()

				require.NoError(t, stop())

				of := item(t, q, at.Position)
				require.Equal(t, test.state, of.State)
				require.Equal(t, test.what, whats(of))
				require.Equal(t, test.state == queue.Dead, of.Failures == 1, "%d failures", of.Failures)
			})
		})
	}
}

// What a handler returns before the stop has ended its context is its own, and so is what it returns after its time-out.
func TestAFailureWhileAWorkerStopsCounts(t *testing.T) {
	const grace = 10 * time.Second
	for name, test := range map[string]struct {
		timeout time.Duration
		returns func(ctx context.Context)
	}{
		"in the grace":        {time.Hour, func(context.Context) { time.Sleep(grace / 2) }},
		"before the end":      {grace / 2, func(ctx context.Context) { <-ctx.Done() }},
		"before, and so late": {grace / 2, func(ctx context.Context) { <-ctx.Done(); time.Sleep(grace * 3 / 4) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, q *queue.Queue, _ *cut) {
				stop := working(t, q, func(ctx context.Context, _ handler.Message[Send]) error {
					test.returns(ctx)
					return errors.New("it does not work")
				}, &queue.WorkConfig{Timeout: test.timeout, Grace: grace})
				at := insert(t, q, Send{}, nil)
				synctest.Wait()

				require.NoError(t, stop())

				of := item(t, q, at.Position)
				require.Equal(t, "r", whats(of))
				require.Equal(t, 1, of.Failures)
			})
		})
	}
}
