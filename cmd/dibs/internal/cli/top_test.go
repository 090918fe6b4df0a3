package cli_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
)

func TestTopShowsTheConsumersThatAreFurthestBehindFirst(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for range 3 {
			dibs.ok(t, "write", "account-1", "Opened", `{}`)
		}
		dibs.ok(t, "write", "payment-1", "Paid", `{}`)
		catchUp(t, store, "payment", "books", errUnwanted)
		stuck := testkit.Must(consumer.New(store, "account", "mailer", handler.HandlerFunc(func(context.Context, *messagestore.Message) error {
			return errors.New("no mail")
		}), &consumer.Config{Errors: consumer.ErrorPolicy{Retry: consumer.Retry{For: consumer.NoRetry}}}))
		require.Error(t, stuck.CatchUp(t.Context()))

		lines := strings.Split(strings.TrimSpace(dibs.ok(t, "top", "--times", "1")), "\n")
		require.Len(t, lines, 5)
		require.Regexp(t, `^\S+Z  2 consumers, 1 message parked, 1 failing$`, lines[0])
		require.Regexp(t, `^category  consumer  lag  change/s +behind  parked  failing  processes$`, lines[1])
		require.Regexp(t, `^account   mailer      3         - +\S+s       0        1  none$`, lines[2])
		require.Regexp(t, `^account   mailer    fails at \d+, Opened account-1@0: attempt 1 since \S+Z: no mail$`, lines[3])
		require.Regexp(t, `^payment   books       0         - +0s       1        0  none$`, lines[4])

		dibs.ok(t, "write", "account-1", "Opened", `{}`)
		looks := objects(t, dibs.ok(t, "top", "account", "--times", "2", "--every", "100ms", "--json"))
		require.Len(t, looks, 2)
		require.InDelta(t, 4, looks[1]["lag"], 0)
		require.NotContains(t, looks[0], "lagChangePerSecond")
		require.InDelta(t, 0, looks[1]["lagChangePerSecond"], 0)
		require.Contains(t, dibs.ok(t, "top", "--times", "1", "--lines", "1"), "and 1 more")
	})
}

func TestTopRefusesWrongCalls(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for _, args := range [][]string{{"--every", "1ms"}, {"--times", "-1"}, {"--lines", "0"}, {"a-b"}} {
		require.Equal(t, 2, dibs.run(t, append([]string{"top"}, args...)...).code, args)
	}
}
