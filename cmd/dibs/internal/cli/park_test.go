package cli_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// stuck runs a consumer until it has handled everything, or stops at a message that it cannot handle.
func stuck(t *testing.T, store *messagestore.Store, config consumer.Config, panics messagestore.Version) (handled []string, err error) {
	t.Helper()
	config.Logger = logger.Silent()
	config.Errors.Retry.For = consumer.NoRetry
	err = testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.Position == panics {
			panic("no such seat")
		}
		handled = append(handled, m.Stream.ID())
		return nil
	}), &config)).CatchUp(t.Context())
	return handled, err
}

// The story tells that a message was parked, and that it was dropped, and what was dropped holds up no trim.
func TestAnOperatorParksAndDrops(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "consumers-park", store, map[string]func(){
			"it panics": func() {
				_, err := stuck(t, store, consumer.Config{}, 1)
				require.Error(t, err)
			},
			"the rest is handled": func() {
				handled, err := stuck(t, store, consumer.Config{}, 1)
				require.NoError(t, err)
				require.Equal(t, []string{"1"}, handled)
			},
			"it panics when it is redriven": func() { // and the stack is below the error
				_, err := stuck(t, store, consumer.Config{}, 1)
				require.NoError(t, err)
				shown := dibs.ok(t, "parked", "show", "account", "mail", "2")
				require.Regexp(t, `(?m)^error +panic: no such seat\n +github.com/dibs-go/dibs/cmd/dibs/internal/cli_test.stuck`, shown)
				require.Regexp(t, `(?m)^ +\S*park_test.go:\d+`, shown)
			},
		})
	})
}

func TestAnOperatorSaysWhichOfSeveralMessagesIsParked(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		streams := []string{"account-1", "account-2", "account-3", "account-4", "account-5", "account-6"}
		for _, stream := range streams {
			dibs.ok(t, "write", stream, "Opened")
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		for range 2 {
			replica := testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("no such seat") }), &consumer.Config{
				Concurrency: 2, RedriveInterval: time.Millisecond, Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: time.Millisecond}},
			}))
			running.Go(func() { _ = replica.Run(ctx) })
		}
		testkit.Await(t, "each replica has a half", func() (bool, any) {
			all, err := operate.Consumers(ctx, store, "account")
			return err == nil && len(all) == 1 && len(all[0].Replicas) == 2 && all[0].Free == 0 && all[0].Replicas[0].Slots == all[0].Replicas[1].Slots, all
		})

		r := dibs.run(t, "consumers", "park", "account", "mail", "--reason", "why")

		require.Equal(t, 2, r.code)
		require.Contains(t, r.stderr, "mail of account is at 2 messages: give the --position of one")
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		require.Len(t, lines, 2)
		for _, line := range lines {
			position, _, _ := strings.Cut(line, " ")
			require.Contains(t, dibs.ok(t, "consumers", "park", "account", "mail", "--reason", "why", "--position", position), "asked mail to park Opened account-")
		}
		testkit.AwaitEqual(t, "parked messages", 2, func() int { return strings.Count(dibs.ok(t, "parked", "list", "account", "mail"), " dead ") })
	})
}
