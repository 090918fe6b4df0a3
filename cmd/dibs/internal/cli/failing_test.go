package cli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// A consumer stops at what fails here, so that the attempts are the same each time.
func TestFailingMessagesArePrinted(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "account-1", "Opened", `{"name":"canary"}`)
		fails := errors.New("the bank \x1b[2J is closed, and " + strings.Repeat("it stays so, ", 20) + "for ever")
		run := func() error {
			return testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return fails }),
				&consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}, Logger: logger.Silent()})).Run(t.Context())
		}
		require.NotContains(t, dibs.ok(t, "consumers")+dibs.ok(t, "top", "--times", "1"), "fails at")
		for range 2 {
			require.Error(t, run())
		}

		printed := ""
		for line := range strings.Lines(dibs.ok(t, "consumers") + dibs.ok(t, "top", "--times", "1")) {
			if strings.Contains(line, "fails at") {
				printed += line
			}
		}
		for _, command := range []string{"consumers --json", "top --times 1 --json"} {
			object := objects(t, dibs.ok(t, strings.Fields(command)...))[0]
			all, ok := object["failing"].([]any)
			require.True(t, ok, object)
			require.Len(t, all, 1)
			fields, ok := all[0].(map[string]any)
			require.True(t, ok, all)
			for _, name := range []string{"id", "type", "stream", "position", "globalPosition", "attempts", "firstFailedAt", "error"} {
				printed += fmt.Sprintf("%s of %s: %v\n", name, command, fields[name])
			}
			require.NotContains(t, object, "moreFailing")
		}
		require.NotContains(t, printed, "canary")
		golden(t, "failing", steady(printed))

		fails = nil
		catchUp(t, store, "account", "mail", nil)
		require.NotContains(t, dibs.ok(t, "consumers")+dibs.ok(t, "consumers", "--json")+dibs.ok(t, "top", "--times", "1", "--json"), "fail")
	})
}

// The lines of a consumer are bounded, however many messages fail.
func TestFurtherFailingMessagesAreCounted(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for i := range 13 {
			dibs.ok(t, "write", fmt.Sprintf("account-%d", i), "Opened")
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		c := testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return errors.New("no mail") }),
			&consumer.Config{Concurrency: 16, Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.Forever}}, Logger: logger.Silent()}))
		go func() { ended <- c.Run(ctx) }()

		listed := ""
		testkit.Await(t, "13 messages that fail", func() (bool, any) {
			listed = dibs.ok(t, "consumers")
			return strings.Contains(listed, "and 3 more messages that fail"), listed
		})
		require.Equal(t, 10, strings.Count(listed, "fails at"))
		top := dibs.ok(t, "top", "--times", "1")
		require.Regexp(t, `1 consumer, 0 messages parked, 13 failing\n`, top)
		require.Equal(t, 1, strings.Count(top, "fails at"))
		require.InDelta(t, 3, objects(t, dibs.ok(t, "consumers", "--json"))[0]["moreFailing"], 0)
		cancel()
		require.NoError(t, testkit.Receive(t, "the end of the consumer", ended))
	})
}
