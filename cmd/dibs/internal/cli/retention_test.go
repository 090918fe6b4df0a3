package cli_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/consumer/operate"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
	"github.com/dibs-go/dibs/queue"
)

// newServer returns a shell whose store is a new database.
func newServer(t *testing.T) *shell {
	t.Helper()
	return &shell{env: map[string]string{"DIBS_STORE": pgtest.Migrated(t)}}
}

// newShellOnAFile is newShell, and in the long tier newServer: a command does the same on both.
func newShellOnAFile(t *testing.T) *shell {
	t.Helper()
	if testkit.Long() {
		return newServer(t)
	}
	return newShell(t)
}

func (s *shell) fill(t *testing.T, stream string, messages int) {
	t.Helper()
	var lines strings.Builder
	for n := range messages {
		lines.WriteString(`{"stream":"` + stream + `","type":"Opened","data":{"n":` + strconv.Itoa(n) + `}}` + "\n")
	}
	require.Equal(t, 0, s.feed(t, lines.String(), "write").code)
}

// A person is a terminal.
type person struct{ io.Reader }

func (person) Stat() (os.FileInfo, error) { return device{}, nil }

func TestTrimPrintsWhatWentAndWhatStays(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "trim", store, map[string]func(){"the reason is recorded": func() {
			require.Contains(t, dibs.ok(t, "category", "account:retention", "--json"), `"reason":"too many"`)
			require.Contains(t, dibs.ok(t, "verify"), "no violation")
			require.Contains(t, dibs.ok(t, "trim", "account-1", "--keep", "1"), "account-1  messages younger than 15m0s stay\n")
		}, "all is dropped": func() {
			drop := []string{"parked", "drop", "wallet", "wallets", "--reason", "void"}
			for _, item := range objects(t, dibs.ok(t, "parked", "--json")) {
				drop = append(drop, fmt.Sprint(item["position"]))
			}
			dibs.ok(t, drop...)
		}})
	})
}

// An entity is folded from its whole stream, or from a snapshot: without one, a trim would break it.
func TestTrimRefusesAnEntityThatNoSnapshotCovers(t *testing.T) {
	t.Parallel()
	dibs := newShellOnAFile(t)
	for _, stream := range []string{"account-1", "account-2", "account-3", "account:command-1", "account:ledger-1"} {
		dibs.fill(t, stream, 5)
	}
	forge := func(stream, entity string, version int, last any) {
		dibs.ok(t, "write", stream, "Snapshot", fmt.Sprintf(`{"entity":%s,"version":%d,"last":"%s","tag":""}`, entity, version, last))
	}
	snapshot := func(stream string, version int) {
		of := strings.Replace(strings.Replace(stream, "+snapshot", "", 1), ":snapshot", "", 1)
		forge(stream, "{}", version, objects(t, dibs.ok(t, "stream", of, "--json"))[version]["id"])
	}
	trim := func(args ...string) []string {
		return append([]string{"trim", "--keep", "2", "--min-age", "0"}, args...)
	}
	snapshot("account:snapshot-1", 2)
	snapshot("account:snapshot-2", 1)

	// Any writer may write a snapshot: without the message that it is behind it covers nothing.
	forge("account:snapshot-3", "{}", 2, uuid.Nil)
	forge("account:snapshot-3", "{}", 2, objects(t, dibs.ok(t, "stream", "account-3", "--json"))[1]["id"])
	require.Equal(t, 1, dibs.run(t, trim("account-3")...).code)
	forge("account:snapshot-3", "null", 2, objects(t, dibs.ok(t, "stream", "account-3", "--json"))[2]["id"])
	require.Equal(t, 1, dibs.run(t, trim("account-3")...).code)
	forge("account:snapshot-3", "{}", 1<<40, uuid.Nil)
	refused := dibs.run(t, trim("account-3")...)
	require.Equal(t, 1, refused.code)
	require.Equal(t, "dibs: no snapshot has the messages of account-3 that would go: an entity of that stream could not be loaded any more. "+
		"Nothing was removed. Have the service write snapshots first (entity.Config.Snapshot), or give --yes if no entity is folded from it\n", refused.stderr)
	refused = dibs.run(t, trim("--category", "account")...)
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "the messages of account-2 that would go, nor those of 1 stream more: an entity")
	dry := dibs.run(t, trim("--category", "account", "--dry-run")...)
	require.Equal(t, 0, dry.code)
	require.Contains(t, dry.stderr, "dibs: no snapshot has the messages of account-2 that would go")
	require.Equal(t, 15, strings.Count(dibs.ok(t, "category", "account"), "\n"), "nothing was removed")

	// A snapshot of position 2 has the three that go; commands are no entities; a category with
	// snapshots has entities, of any type.
	require.Contains(t, dibs.ok(t, trim("account-1")...), "removed 3, it begins at 3")
	require.Contains(t, dibs.ok(t, trim("account:command-1")...), "removed 3, it begins at 3")
	require.Contains(t, dibs.ok(t, trim("account:ledger-1", "--dry-run")...), "would remove 3, it begins at 3")
	forge("account:ledger+snapshot-2", "{}", 2, uuid.Nil)
	require.Equal(t, 1, dibs.run(t, trim("account:ledger-1")...).code)
	require.Contains(t, dibs.ok(t, trim("account-3", "--yes")...), "removed 3, it begins at 3")
}

func TestDeleteLeavesATombstone(t *testing.T) {
	t.Parallel()
	dibs := newServer(t)
	dibs.script(t, "delete", nil, map[string]func(){"a tombstone of an erased name is kept": func() {
		for _, m := range objects(t, dibs.ok(t, "category", "account", "--json")) {
			if stream := fmt.Sprint(m["stream"]); stream != "account-1" {
				held := dibs.run(t, "delete", stream, "--yes", "--erase-name")
				require.Equal(t, 2, held.code)
				require.Contains(t, held.stderr, "must not be the tombstone of a stream that was deleted with its name")
			}
		}
	}})
}

func TestWhoHasNotReadWhatIsToBeRemovedIsNamed(t *testing.T) {
	t.Parallel()
	dibs := newShellOnAFile(t)
	dibs.fill(t, "account-1", 5)
	dibs.ok(t, "write", "account:position-quick", "Started", `{"start":0}`)
	dibs.ok(t, "write", "account:position-quick+0", "Recorded", `{"position":6}`)
	require.Empty(t, dibs.run(t, "trim", "account-1", "--yes", "--keep", "4", "--min-age", "0").stderr)
	dibs.ok(t, "write", "account:position-slow", "Started", `{"start":0}`)
	dibs.ok(t, "write", "account:position-slow+0", "Recorded", `{"position":3}`)
	const slow = "dibs: consumer slow of account has not read 3 messages yet, from 3 on, and misses messages removed before it reads them\n"

	for _, args := range []string{
		"trim account-1 --keep 3", "trim --category account --keep 3 --dry-run", "delete account-1 --dry-run", "delete account-1 --yes",
	} {
		r := dibs.run(t, strings.Fields(args)...)
		require.Equal(t, 0, r.code)
		require.Equal(t, slow, r.stderr, args)
	}
	require.Empty(t, dibs.run(t, "delete", "account-1", "--yes").stderr, "there is nothing left to be warned of")
	require.Empty(t, dibs.run(t, "trim", "account-1", "--yes", "--keep", "3", "--json").stderr)
}

func TestAPersonIsAskedBeforeAStreamIsDeleted(t *testing.T) {
	t.Parallel()
	dibs := newShellOnAFile(t)
	dibs.fill(t, "account-1", 2)
	for typed, deletes := range map[string]bool{"": false, "\n": false, "y\n": false, "no\n": false, "yes": true} {
		asked := (&shell{env: dibs.env, stdin: person{strings.NewReader(typed)}}).run(t, "delete", "account-1")
		require.Equal(t, deletes, asked.code == 0, asked.stderr)
		require.Contains(t, asked.stderr, "delete account-1 with 2 messages?")
		require.Equal(t, deletes, strings.Contains(asked.stdout, "deleted 2 messages"), "%q", typed)
		require.Equal(t, !deletes, strings.Contains(asked.stderr, "nothing was deleted"), "%q", typed)
		if deletes {
			dibs.ok(t, "write", "account-1", "Opened", "--expected", "2")
			dibs.ok(t, "write", "account-1", "Opened", "--expected", "3")
		}
	}
}

func TestForgetRemovesOldRequestsOfAnInbox(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, _ *messagestore.Store) { dibs.script(t, "forget", nil, nil) })
}

type sinkFunc func(ctx context.Context, m *outbox.Message) error

func (f sinkFunc) Send(ctx context.Context, m *outbox.Message) error { return f(ctx, m) }

// O7: what a relay has not sent stays, however far the others are.
func TestATrimStopsBehindEachRelay(t *testing.T) {
	t.Parallel()
	const category messagestore.Category = "payments:outgoing"
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		relay := func(name string, refused ...string) *outbox.Relay {
			return testkit.Must(outbox.New(store, category, name, sinkFunc(func(_ context.Context, m *outbox.Message) error {
				if slices.Contains(refused, string(m.Stream)+"@"+m.Position.String()) {
					return errUnwanted
				}
				return nil
			}), &outbox.Config{Logger: logger.Silent()}))
		}
		trim := func(args ...string) []string {
			return append([]string{"trim", "--category", string(category), "--keep", "1", "--min-age", "0"}, args...)
		}
		for range 3 {
			for _, key := range []string{"ann", "bob"} {
				_, err := store.Write(t.Context(), category.Stream(key), messagestore.AnyVersion, messagestore.Raw{Type: "Paid", Data: []byte("{}")})
				require.NoError(t, err)
			}
		}
		require.NoError(t, relay("tobank").CatchUp(t.Context()))
		late := relay("tolate")
		require.NoError(t, late.Queue().Pause(t.Context()))

		require.Contains(t, dibs.ok(t, trim()...), "queue tolate has not finished that one", "it has met no message yet")
		require.Equal(t, 6, strings.Count(dibs.ok(t, "category", string(category)), "\n"))
		require.NoError(t, late.Queue().Resume(t.Context()))
		require.NoError(t, late.CatchUp(t.Context()))
		require.NoError(t, relay("tonats", "payments:outgoing-bob@1").CatchUp(t.Context()))

		require.Contains(t, dibs.ok(t, trim()...), "payments:outgoing-bob  removed 1, it begins at 1; messages from 1 on stay: queue tonats has not finished that one")
		require.Equal(t, 3, strings.Count(dibs.ok(t, "category", string(category)), "\n"), "one of ann, two of bob")
		kept := dibs.run(t, "delete", "payments:outgoing-bob", "--yes")
		require.NotEqual(t, 0, kept.code)
		require.Contains(t, kept.stderr, "is an open item of a queue")
		dead, err := relay("tonats").Queue().Items(t.Context(), queue.Dead, 0, 10)
		require.NoError(t, err)
		require.Len(t, dead, 1)
		dibs.ok(t, "queue", "drop", "tonats", strconv.FormatInt(int64(dead[0].Position), 10), "--reason", "paid by hand")
		require.NoError(t, relay("tonats").CatchUp(t.Context()))

		dibs.ok(t, trim()...)
		require.Equal(t, 2, strings.Count(dibs.ok(t, "category", string(category)), "\n"))
		behind := dibs.run(t, trim("--behind", "tobank")...)
		require.Equal(t, 1, behind.code)
		require.Contains(t, behind.stderr, "tobank is a queue or a relay: leave it out")
	})
}

// A consumer that has passed nothing holds all messages, and of several the one that is behind.
func TestATrimStopsBehindTheConsumersThatItNames(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		require.NoError(t, operate.Consumer(store, "payments:outgoing", "view").Create(t.Context(), 0))
		dibs.fill(t, "payments:outgoing-ann", 3)
		require.Equal(t, "view has passed no message yet: nothing was removed\n",
			dibs.ok(t, "trim", "--category", "payments:outgoing", "--min-age", "0", "--behind", "view"))
		require.Empty(t, dibs.ok(t, "trim", "payments:outgoing-ann", "--min-age", "0", "--behind", "view", "--json"))
		require.Equal(t, 3, strings.Count(dibs.ok(t, "stream", "payments:outgoing-ann"), "\n"))
		last, err := store.Last(t.Context(), "payments:outgoing-ann")
		require.NoError(t, err)
		require.NoError(t, operate.Consumer(store, "payments:outgoing", "ahead").Create(t.Context(), last.GlobalPosition+1))
		require.NoError(t, operate.Consumer(store, "payments:outgoing", "half").Create(t.Context(), last.GlobalPosition))

		before := dibs.run(t, "trim", "--category", "payments:outgoing", "--min-age", "0", "--behind", "ahead,half", "--dry-run")

		require.Equal(t, "payments:outgoing-ann  would remove 2, it begins at 2\nwould remove 2 messages of 1 stream\n", before.stdout)
		require.NotContains(t, before.stderr, "half", "it misses nothing")
		unknown := dibs.run(t, "trim", "--category", "payments:outgoing", "--behind", "hlaf")
		require.Equal(t, 1, unknown.code)
		require.Contains(t, unknown.stderr, "there are")
		require.Contains(t, unknown.stderr, "half")
	})
}

// Nobody answers at the null device, though it is a character device as a terminal is.
func TestTheNullDeviceIsNoTerminal(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	dibs := newShell(t)
	dibs.ok(t, "write", "account-1", "Opened")
	dibs.stdin = null

	r := dibs.run(t, "delete", "account-1")

	require.Equal(t, result{2, "", "dibs: there is no terminal to confirm on: give --yes to delete account-1, or --dry-run\n"}, r)
	require.Contains(t, dibs.ok(t, "stream", "account-1"), "Opened")
}
