package cli_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/queue"
)

// The line of its command, without more, is the first thing that an operator types.
func TestAGroupListsWithoutAVerb(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		nothing := map[string]string{
			"consumers": "no consumer has recorded a position\n", "parked": "nothing is parked\n", "intents": "there is no category of intents\n",
			"queue": "no queue was ever worked on\n", "cron": "no schedule is set\n", "saga": "there is no category of sagas\n",
		}
		for group, says := range nothing {
			require.Equal(t, result{0, "", says}, dibs.run(t, group))
			require.Equal(t, result{}, dibs.run(t, group, "--json"))
		}
		dibs.ok(t, "write", "account-1", "Opened")
		catchUp(t, store, "account", "ledger", errUnwanted)
		sagas(t, store)
		dibs.ok(t, "write", "other:saga+fast-1", "T") // a category that only looks like sagas'
		hold(t, manager(t, store, nil), intent.Request{Key: "a", Session: "A", TTL: time.Hour})
		_, err := testkit.Must(queue.New(store, "mail", nil)).Receive(t.Context(), 1, nil)
		require.NoError(t, err)
		dibs.ok(t, "cron", "set", "reports", "daily", "0 6 * * *", "Report")

		for group, verb := range map[string]string{
			"consumers": "consumers list", "parked": "parked list", "parked account": "parked list account", "parked account ledger": "parked list account ledger",
			"queue": "queue ls", "cron": "cron ls", "cron reports": "cron ls reports", "saga booking:saga": "saga ls booking:saga",
			"saga booking:saga --state ended": "saga ls booking:saga --state ended", "intents payment:intent --held": "intents list payment:intent --held",
			"migrate": "migrate status",
		} {
			bare := dibs.run(t, strings.Fields(group)...)
			require.Zero(t, bare.code, "%s: %s", group, bare.stderr)
			if group != "migrate" {
				require.NotEmpty(t, bare.stdout, group)
			}
			verbose := dibs.run(t, strings.Fields(verb)...)
			require.Equal(t, strings.Count(verbose.stdout, "\n"), strings.Count(bare.stdout, "\n"), group)
			require.Equal(t, strings.Fields(verbose.stdout + " x")[0], strings.Fields(bare.stdout + " x")[0], group)
		}
		require.Regexp(t, `^booking:saga\nstate +id +age +step *\n(\w+ +\d .*\n){3}$`, dibs.ok(t, "saga"))
		require.Len(t, objects(t, dibs.ok(t, "saga", "ls", "--json")), 3)
		require.Regexp(t, `^payment:intent\nstate .*\nheld +a .*\n$`, dibs.ok(t, "intents"))
		require.Len(t, objects(t, dibs.ok(t, "intents", "--json")), 1)
	})
}
