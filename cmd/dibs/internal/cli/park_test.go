package cli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// stuck runs a consumer until it has handled everything, or stops at a message that it cannot handle.
func stuck(t *testing.T, store *messagestore.Store, config consumer.Config, panics messagestore.Version) (handled []string, err error) {
	t.Helper()
	config.Logger = logger.Silent()
	config.Errors.Retry.For = consumer.NoRetry
	err = must.New(consumer.New(store, "account", "mail", handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		if m.Position == panics {
			panic("no such seat")
		}
		handled = append(handled, m.Stream.ID())
		return nil
	}), &config)).CatchUp(t.Context())
	return handled, err
}

func TestAnOperatorParksAndDrops(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for range 3 {
			dibs.ok(t, "write", "account-1", "Opened", `{"secret":"canary"}`)
		}
		_, err := stuck(t, store, consumer.Config{}, 1)
		require.Error(t, err)

		for _, args := range []string{"", "--reason=", "--reason why --position 99", "--reason why --position -1", "--reason " + strings.Repeat("x", 256)} {
			r := dibs.run(t, append([]string{"consumers", "park", "account", "mail"}, strings.Fields(args)...)...)
			require.Equal(t, 2, r.code, "%s: %s", args, r.stderr)
		}
		require.Contains(t, dibs.run(t, "consumers", "park", "account", "male", "--reason", "why").stderr, "there is mail")
		dry := dibs.ok(t, "consumers", "park", "account", "mail", "--reason", "the seat was sold", "--dry-run")
		require.Regexp(t, `^would ask mail to park Opened account-1@1, \S{36}, at \d+ of account\n$`, dry)
		asked := objects(t, dibs.ok(t, "consumers", "park", "account", "mail", "--reason", "the seat was sold", "--json"))[0]
		require.Equal(t, true, asked["requested"])
		require.NotContains(t, dibs.ok(t, "consumers", "park", "account", "mail", "--reason", "x", "--dry-run", "--json"), "canary")

		handled, err := stuck(t, store, consumer.Config{}, 1)
		require.NoError(t, err)
		require.Equal(t, []string{"1"}, handled)
		message, ok := asked["message"].(map[string]any)
		require.True(t, ok)
		position := fmt.Sprint(message["globalPosition"])
		shown := dibs.ok(t, "parked", "show", "account", "mail", position)
		require.Regexp(t, `(?m)^error +parked by an operator: the seat was sold$`, shown)
		require.NotContains(t, shown, "canary")
		require.Contains(t, dibs.ok(t, "parked", "show", "account", "mail", position, "--data"), "canary")
		require.Contains(t, dibs.run(t, "consumers", "park", "account", "mail", "--reason", "why").stderr, "mail of account has handled every message")

		// It panics when it is redriven, and the stack is below the error.
		require.Equal(t, "retried 1 item\n", dibs.ok(t, "parked", "redrive", "account", "mail"))
		_, err = stuck(t, store, consumer.Config{}, 1)
		require.NoError(t, err)
		shown = dibs.ok(t, "parked", "show", "account", "mail", position)
		require.Regexp(t, `(?m)^error +panic: no such seat\n +github.com/dibs-go/dibs/cmd/dibs/internal/cli_test.stuck`, shown)
		require.Regexp(t, `(?m)^ +\S*park_test.go:\d+`, shown)

		require.Equal(t, 2, dibs.run(t, "parked", "drop", "account", "mail", position).code)
		require.Equal(t, 2, dibs.run(t, "parked", "drop", "account", "mail", "--reason", "why").code)
		require.Contains(t, dibs.ok(t, "parked", "list", "account", "mail"), "no such seat")
		require.Equal(t, "dropped 1 item\n", dibs.ok(t, "parked", "drop", "account", "mail", position, "--reason", "refunded"))
		require.Empty(t, dibs.ok(t, "parked", "list", "account", "mail"))
		again := dibs.run(t, "parked", "drop", "account", "mail", position, "--reason", "refunded")
		require.Equal(t, 1, again.code)
		require.Contains(t, again.stderr, "not dropped: no item that is parked is at position "+position)
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
			replica := must.New(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("no such seat") }), &consumer.Config{
				Concurrency: 2, RedriveInterval: time.Millisecond, Logger: logger.Silent(), Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever, MaxBackoff: time.Millisecond}},
			}))
			running.Go(func() { _ = replica.Run(ctx) })
		}
		await.That(t, "each replica has a half", func() (bool, any) {
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
		await.Equal(t, "parked messages", 2, func() int { return strings.Count(dibs.ok(t, "parked", "list", "account", "mail"), " dead ") })
	})
}

// The story of a message tells that it was parked, and that it was dropped.
func TestTheStoryTellsWhatWasDropped(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	catchUp(t, store, "account", "mail", errUnwanted)
	require.NotContains(t, dibs.ok(t, "explain", "account-1"), "dropped")

	dibs.ok(t, "parked", "drop", "account", "mail", "1", "--reason", "refunded")

	story := dibs.ok(t, "explain", "account-1")
	require.Regexp(t, `(?m)^parked by mail +\S+Z  account-1@0  buried +nobody wants it$`, story)
	require.Regexp(t, `(?m)^parked by mail +\S+Z  account-1@0  dropped +refunded$`, story)
}

// What was dropped holds up no trim.
func TestATrimGoesPastWhatWasDropped(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.fill(t, "account-1", 4)
		catchUp(t, store, "account", "mail", errUnwanted)
		trim := []string{"trim", "account-1", "--keep", "1", "--dry-run", "--min-age", "0"}
		require.Contains(t, dibs.ok(t, trim...), "queue account:parked:mail has not finished that one")
		dibs.ok(t, "parked", "drop", "account", "mail", "1", "2", "3", "4", "--reason", "all of them are void")
		require.Contains(t, dibs.ok(t, trim...), "would remove 3")
	})
}

func TestAConsumerThatNeverStartedBeginsWhereItIsTold(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "account-1", "Opened")
		dibs.ok(t, "write", "account-2", "Opened")
		unknown := dibs.run(t, "consumers", "reset", "account", "mail", "--end")
		require.Equal(t, 1, unknown.code)
		require.Contains(t, unknown.stderr, "--new")
		dry := dibs.run(t, "consumers", "reset", "account", "mail", "--end", "--new")
		require.Equal(t, 2, dry.code)
		require.Contains(t, dry.stdout, "passing over 2 messages")
		require.NotContains(t, dibs.run(t, "consumers").stdout, "mail")

		dibs.ok(t, "consumers", "reset", "account", "mail", "--end", "--new", "--yes")

		dibs.ok(t, "write", "account-3", "Opened")
		handled, err := stuck(t, store, consumer.Config{}, 99)
		require.NoError(t, err)
		require.Equal(t, []string{"3"}, handled)
		known := dibs.run(t, "consumers", "reset", "account", "mail", "--end", "--new", "--yes")
		require.NotZero(t, known.code)
		require.Contains(t, known.stderr, "has started before")
		again := dibs.run(t, "consumers", "reset", "account", "mail", "--end", "--new", "--dry-run")
		require.Equal(t, 1, again.code)
		require.Contains(t, again.stderr, "has started before")
	})
}
