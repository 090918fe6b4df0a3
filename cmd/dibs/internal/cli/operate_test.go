package cli_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/tier"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// onAFile is [onEveryStore], on PostgreSQL in the long tier only: for commands that call what any driver
// has, as others do that run on each.
func onAFile(t *testing.T, test func(t *testing.T, dibs *shell, store *messagestore.Store)) {
	t.Helper()
	if tier.Long() {
		onEveryStore(t, test)
		return
	}
	onStore(t, "sqlite:"+filepath.Join(t.TempDir(), "dibs.db"), test)
}

func onStore(t *testing.T, url string, test func(t *testing.T, dibs *shell, store *messagestore.Store)) {
	t.Helper()
	store, err := library.Open(t.Context(), url, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	test(t, &shell{env: map[string]string{"DIBS_STORE": url}}, store)
}

// onEveryStore runs a test with a shell of a new store of each kind that lasts, and
// with that store.
func onEveryStore(t *testing.T, test func(t *testing.T, dibs *shell, store *messagestore.Store)) {
	t.Helper()
	for name, open := range map[string]func(t *testing.T) string{
		"SQLite": func(t *testing.T) string {
			t.Helper()
			return "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
		},
		"Postgres": func(t *testing.T) string {
			t.Helper()
			return pgtest.Migrated(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onStore(t, open(t), test)
		})
	}
}

// errUnwanted has a message parked.
var errUnwanted = handler.Park(errors.New("nobody wants it"))

func catchUp(t *testing.T, store *messagestore.Store, category messagestore.Category, name string, failure error) (handled []string) {
	t.Helper()
	c := must.New(consumer.New(store, category, name, handler.HandlerFunc(func(_ context.Context, m *messagestore.Message) error {
		handled = append(handled, m.String())
		return failure
	}), &consumer.Config{Logger: logger.Silent()}))
	require.NoError(t, c.CatchUp(t.Context()))
	return handled
}

func TestReportCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, _ *messagestore.Store) {
		for _, stream := range []string{"account-1", "account-1", "account-2", "account:command-1"} {
			dibs.ok(t, "write", stream, "Opened", `{"name":"Ann"}`)
		}
		dibs.ok(t, "write", "account-1", "Closed", `{}`)

		lines := strings.Split(strings.TrimSpace(dibs.ok(t, "report", "streams", "--sort", "messages")), "\n")
		require.Len(t, lines, 4)
		require.Regexp(t, `^messages  percent  bytes  last +stream$`, lines[0])
		require.Regexp(t, `^ +3 +60\.00 +\d+  \S+Z  account-1$`, lines[1])
		require.Regexp(t, `^ +1 +20\.00 +\d+  \S+Z  account-2$`, lines[2])

		types := objects(t, dibs.ok(t, "report", "types", "--category", "account", "--json"))
		require.Len(t, types, 2)
		require.Equal(t, "Closed", types[0]["type"])
		require.InDelta(t, 25.0, types[0]["percent"], 0)
		require.InDelta(t, 3, types[1]["messages"], 0)
		require.NotContains(t, types[0], "lastPosition")
		streams := objects(t, dibs.ok(t, "report", "streams", "--like=-1", "--json"))
		require.Len(t, streams, 2)
		require.InDelta(t, 2, streams[0]["lastPosition"], 0)

		both := objects(t, dibs.ok(t, "report", "--by", "type,category", "--json"))
		require.Len(t, both, 3)
		require.Equal(t, []any{"Opened", "account:command"}, []any{both[2]["type"], both[2]["category"]})
		require.Len(t, objects(t, dibs.ok(t, "report", "categories", "--json")), 2)

		cut := dibs.run(t, "report", "streams", "--limit", "1")
		require.Equal(t, 0, cut.code)
		require.Equal(t, "dibs: 1 of 3 rows, of 5 messages in all; --limit 0 prints all\n", cut.stderr)
		cut = dibs.run(t, "report", "streams", "--limit", "1", "--json")
		require.InDelta(t, 3, objects(t, cut.stderr)[0]["of"], 0)
		require.Equal(t, noCategory("none"), dibs.run(t, "report", "streams", "--category", "none"))
		require.Equal(t, "no stream holds \"x\", of 5 messages in all\n", dibs.run(t, "report", "streams", "--like", "x").stderr)
	})
}

// The steps of docs/dba.md after a restore.
func TestWhatARestoreLostComesBackFromTheOldStore(t *testing.T) {
	t.Parallel()
	old := newShell(t)
	for n := range 3 {
		old.ok(t, "write", "account-1", "Opened", fmt.Sprintf(`{"n":%d}`, n))
	}
	backup := old.ok(t, "category", "account", "--json")
	consume := func(dibs *shell) []string {
		store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, store.Close()) }()
		return catchUp(t, store, "account", "mail", nil)
	}
	id := uuid.NewString()
	old.ok(t, "write", "account-1", "Lost", `{"n":3}`)
	old.ok(t, "write", "account-2", "TriedAgain", `{"n":4}`, "--id", id)
	old.ok(t, "write", "account-3", "Lost", `{"n":5}`)
	require.Len(t, consume(old), 6)

	restored := newShell(t)
	require.Equal(t, 0, restored.feed(t, backup, "write").code)
	restored.ok(t, "write", "account-4", "Since", `{"n":6}`)
	restored.ok(t, "write", "account-2", "TriedAgain", `{"n":4}`, "--id", id)
	r := restored.feed(t, old.ok(t, "category", "account", "--from", "4", "--json"), "write")
	require.Equal(t, "2 written, 1 had been already\n", r.stdout, r.stderr)
	var types []string
	for _, m := range objects(t, restored.ok(t, "category", "account", "--from", "4", "--json")) {
		types = append(types, fmt.Sprint(m["type"]))
	}
	require.Equal(t, []string{"Since", "TriedAgain", "Lost", "Lost"}, types)
	require.Len(t, consume(restored), 7)
}

func TestReportRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	for _, args := range []string{
		"report", "report stream", "report streams --by type", "report --by type,type", "report --by size", "report streams --sort size", "report streams --limit -1", "report streams --category account-1",
	} {
		r := dibs.run(t, strings.Fields(args)...)
		require.Equal(t, 2, r.code, "%s: %s", args, r.stderr)
		require.Empty(t, r.stdout)
	}
	require.Equal(t, 2, dibs.run(t, "report", "streams", "--like", "a\x00b").code)
}

// Streams of other clients may have any name; a terminal acts on none of it.
func TestHostileNamesAreShownAsTheyAreSpelt(t *testing.T) {
	t.Parallel()
	const bad = "evil\x1b[2J\r\n\u202e"
	file := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	store := must.New(messagestore.New(driver, nil))
	_, err = store.Write(t.Context(), "account-1", messagestore.AnyVersion, messagestore.Raw{Type: "Opened", Data: []byte(`{}`)})
	require.NoError(t, err)
	catchUp(t, store, "account", "mail", errUnwanted)
	of := queuing.Queue{Name: "account:parked:mail", Category: "account"}
	_, err = driver.QueueChange(t.Context(), queuing.Change{Queue: of, Action: queuing.Drop, Positions: []messagestore.GlobalPosition{1}})
	require.NoError(t, err)
	_, err = driver.QueuePark(t.Context(), queuing.Parking{Queue: of, Position: 1, Error: "e\x1b[2J\u202e"})
	require.NoError(t, err)
	for stream, record := range map[messagestore.StreamName]messagestore.Encoded{
		bad + "-1":                {Type: bad, Data: []byte(`{}`)},
		"account:position-" + bad: {Type: "Recorded", Data: []byte(`{"position": 0}`)},
		"account:position-ours":   {Type: "Started", Data: []byte(`{"start":-1}`)},
		bad + ":position-x":       {Type: "Recorded", Data: []byte(`{"position": 0}`)},
	} {
		record.ID = uuid.New()
		_, err := driver.Append(t.Context(), messagestore.Append{Stream: stream, Expected: messagestore.AnyVersion, Records: []messagestore.Encoded{record}})
		require.NoError(t, err)
	}
	require.NoError(t, store.Close())
	dibs := &shell{env: map[string]string{"DIBS_STORE": "sqlite:" + file}}

	for _, command := range []string{
		"report streams", "report types", "report categories", "report --by stream,type", "consumers", "consumers list account", "parked list", "parked list account mail",
		"parked show account mail 1",
	} {
		for _, more := range []string{"", " --json"} {
			r := dibs.run(t, strings.Fields(command+more)...)
			require.Equal(t, 0, r.code, "%s: %s", command, r.stderr)
			require.NotEmpty(t, r.stdout, command)
			for _, raw := range []string{"\x1b", "\r", "\u202e"} {
				require.NotContains(t, r.stdout+r.stderr, raw, command)
			}
			require.NotContains(t, r.stdout, "\n[2J")
			if strings.HasPrefix(command, "report") || strings.HasPrefix(command, "consumers") || strings.HasPrefix(command, "parked") {
				require.Contains(t, r.stdout, `\u001b[2J`, command)
			}
		}
	}
	for _, args := range [][]string{{"consumers", "reset", "account", bad, "--start"}, {"parked", "list", "account", bad}, {"consumers", "list", bad}} {
		r := dibs.run(t, args...)
		require.NotZero(t, r.code)
		for _, raw := range []string{"\x1b", "\r", "\u202e"} {
			require.NotContains(t, r.stderr, raw)
		}
	}
}

func TestConsumersAreListed(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		require.Equal(t, result{0, "", "no consumer has recorded a position\n"}, dibs.run(t, "consumers"))
		for _, stream := range []string{"account:command-1", "account:command-2", "account-1"} {
			dibs.ok(t, "write", stream, "T")
		}
		catchUp(t, store, "account:command", "accounts", errUnwanted)
		catchUp(t, store, "account", "mail", nil)
		dibs.ok(t, "write", "account:command-3", "T")

		require.Equal(t, noCategory("wallet"), dibs.run(t, "consumers", "wallet"))
		require.Equal(t, noCategory("wallet"), dibs.run(t, "top", "wallet", "--times", "1"))
		dibs.ok(t, "write", "wallet-1", "T")
		require.Equal(t, result{0, "", "no consumer of wallet has recorded a position\n"}, dibs.run(t, "consumers", "wallet"))
		require.Contains(t, dibs.ok(t, "top", "wallet", "--times", "1"), "0 consumers")
		lines := strings.Split(strings.TrimSpace(dibs.ok(t, "consumers")), "\n")
		require.Len(t, lines, 3)
		require.Regexp(t, `^category +consumer +replica +position +lag +behind +recorded +parked$`, lines[0])
		require.Regexp(t, `^account +mail +- +\d+ +0 +0s  \S+Z +0$`, lines[1])
		require.Regexp(t, `^account:command +accounts +- +\d+ +1 +\S+s  \S+Z +2$`, lines[2])

		all := objects(t, dibs.ok(t, "consumers", "account:command", "--json"))
		require.Len(t, all, 1)
		require.Equal(t, "accounts", all[0]["consumer"])
		require.InDelta(t, 2, all[0]["parked"], 0)
		require.InDelta(t, 1, all[0]["lag"], 0)
		require.Contains(t, all[0], "lagSeconds")
		require.Contains(t, all[0], "oldest")
	})
}

func TestReplicasOfAConsumerAreListed(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "account-1", "T")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 2)
		for range 2 {
			c := must.New(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), &consumer.Config{Logger: logger.Silent()}))
			go func() { ended <- c.Run(ctx) }()
		}
		var lines []string
		await.That(t, "two replicas, one with all slots", func() (bool, any) {
			lines = strings.Split(strings.TrimSpace(dibs.ok(t, "consumers")), "\n")
			return len(lines) == 4 && strings.Contains(lines[2]+lines[3], "32 of 32 slots"), lines
		})

		require.Regexp(t, `^account +mail +- +`, lines[1])
		require.Regexp(t, `^account +mail +\S+/\d+ +\d+ +\d+ +- +- +- +32 of 32 slots, silent for \S+s$`, lines[2])
		require.Regexp(t, `^account +mail +\S+/\d+ +- +- +- +- +- +stands by, silent for \S+s$`, lines[3])
		replicas, ok := objects(t, dibs.ok(t, "consumers", "--json"))[0]["replicas"].([]any)
		require.True(t, ok)
		require.Len(t, replicas, 2)
		cancel()
		for range cap(ended) {
			require.NoError(t, await.Receive(t, "the end of a replica", ended))
		}
	})
}

// A lag that is not known is not a lag of none.
func TestAConsumerOfAnotherClientIsToldOfAndLeftAlone(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, _ *messagestore.Store) {
		dibs.ok(t, "write", "account-1", "T")
		dibs.ok(t, "write", "account:position-theirs", "Recorded", `{"position": 1}`)
		dibs.ok(t, "write", "account:position-lost", "Recorded", `{"position": 4711}`)
		dibs.ok(t, "write", "account:position-wrong", "Recorded", `{"position": "1"}`)

		lines := strings.Split(dibs.ok(t, "consumers"), "\n")
		require.Regexp(t, `^account +lost +- +4712 +- +- +\S+Z +-  foreign: position 4712 in account:position-lost is ahead of the store, which has lost messages$`, lines[1])
		require.Regexp(t, `^account +theirs +- +2 +0 +0s +\S+Z +-  foreign$`, lines[2])
		require.Regexp(t, `^account +wrong +- +- +- +- +\S+Z +-  foreign: position is corrupt: account:position-wrong@0: it is not like \{"position": 3\}$`, lines[3])
		for i, line := range objects(t, dibs.ok(t, "consumers", "--json")) {
			_, known := line["lag"]
			require.Equal(t, i == 1, known)
			_, known = line["lagSeconds"]
			require.Equal(t, i == 1, known)
			_, known = line["position"]
			require.Equal(t, i < 2, known)
		}
		reset := dibs.run(t, "consumers", "reset", "account", "theirs", "--start", "--yes")
		require.Equal(t, 2, reset.code)
		require.Contains(t, reset.stderr, "is another client's")
	})
}

func TestAConsumerIsReset(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		for n := range 4 {
			dibs.ok(t, "write", fmt.Sprintf("account-%d", n), "T")
		}
		require.Len(t, catchUp(t, store, "account", "mail", nil), 4)
		reset := func(args ...string) result {
			return dibs.run(t, append([]string{"consumers", "reset", "account", "mail"}, args...)...)
		}
		third, err := store.Last(t.Context(), "account-2")
		require.NoError(t, err)
		end, err := store.End(t.Context(), "account")
		require.NoError(t, err)

		for _, args := range [][]string{
			nil, {"--start", "--end"}, {"--position", "-1"}, {"--time", "yesterday"}, {"--position=1", "--time", "2026-11-21T10:00:00Z"},
		} {
			require.Equal(t, 2, reset(args...).code, args)
		}
		unsure := reset("--start")
		require.Equal(t, 2, unsure.code)
		require.Equal(t, fmt.Sprintf("mail of account would go from %d to 0, handling 4 messages again\n", end), unsure.stdout)
		require.Contains(t, unsure.stderr, "nothing was changed: say --yes to do it")
		require.Equal(t, 0, reset("--start", "--dry-run", "--yes").code)
		require.Empty(t, catchUp(t, store, "account", "mail", nil))

		require.Contains(t, reset("--time", third.Time.Format(time.RFC3339Nano), "--yes").stdout, fmt.Sprintf("goes from %d to %d, handling 2 messages again\n", end, third.GlobalPosition))
		require.Len(t, catchUp(t, store, "account", "mail", nil), 2)
		require.Equal(t, 0, reset("--start", "--yes").code)
		require.Contains(t, reset("--end", "--yes").stdout, fmt.Sprintf("goes from 0 to %d, passing over 4 messages\n", end))
		require.Empty(t, catchUp(t, store, "account", "mail", nil))
		at := objects(t, reset("--position", fmt.Sprint(third.GlobalPosition+1), "--yes", "--json").stdout)[0]
		require.InDelta(t, 4, at["generation"], 0)
		require.Len(t, catchUp(t, store, "account", "mail", nil), 1)

		beyond := reset("--position", fmt.Sprint(end+1), "--yes", "--json")
		require.Equal(t, 1, beyond.code)
		require.Equal(t, "positionAhead", objects(t, beyond.stderr)[0]["kind"])
		unknown := dibs.run(t, "consumers", "reset", "account", "nobody", "--start", "--yes", "--json")
		require.Equal(t, 1, unknown.code)
		require.Equal(t, "unknownConsumer", objects(t, unknown.stderr)[0]["kind"])
		require.Contains(t, unknown.stderr, "there is mail")
		dry := reset("--position", fmt.Sprint(end+1), "--dry-run")
		require.Equal(t, 1, dry.code, "it would be refused")
		require.Contains(t, dry.stderr, fmt.Sprintf("position %d is ahead of the store: category account ends before %d", end+1, end))
	})
}

func TestParkedMessagesAreListedShownAndRedriven(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		require.Equal(t, result{0, "", "nothing is parked\n"}, dibs.run(t, "parked", "list"))
		dibs.ok(t, "write", "account:command-1", "Deposit", `{"secret":"canary"}`)
		dibs.ok(t, "write", "account:command-2", "Deposit", `{"secret":"canary"}`)
		catchUp(t, store, "account:command", "accounts", errUnwanted)
		catchUp(t, store, "account:command", "audit", errUnwanted)

		require.Equal(t, 5, strings.Count(dibs.ok(t, "parked", "list"), "\n"), "with a header")
		require.Equal(t, 5, strings.Count(dibs.ok(t, "parked", "list", "account:command"), "\n"))
		list := dibs.ok(t, "parked", "list", "account:command", "accounts")
		require.Regexp(t, `(?m)^accounts +1  dead +1 +1  - +Deposit  account:command-1  nobody wants it$`, list)
		all := objects(t, dibs.ok(t, "parked", "list", "account:command", "accounts", "--json"))
		require.Len(t, all, 2)
		require.Equal(t, []any{"account:command", "accounts", "dead", "nobody wants it"}, []any{all[0]["category"], all[0]["consumer"], all[0]["state"], all[0]["error"]})
		require.NotContains(t, list+fmt.Sprint(all), "canary")

		shown := dibs.ok(t, "parked", "show", "account:command", "accounts", "1")
		for _, part := range []string{"account:command-1@0", "Deposit", "nobody wants it", "buried"} {
			require.Contains(t, shown, part)
		}
		require.NotContains(t, shown, "canary")
		require.NotContains(t, dibs.ok(t, "parked", "show", "account:command", "accounts", "1", "--json"), "canary")
		require.Contains(t, dibs.ok(t, "parked", "show", "account:command", "accounts", "1", "--data"), `{"secret":"canary"}`)
		require.Contains(t, dibs.ok(t, "parked", "show", "account:command", "accounts", "1", "--data", "--json"), "canary")
		require.Equal(t, 1, dibs.run(t, "parked", "show", "account:command", "accounts", "3").code)

		redrive := []string{"parked", "redrive", "account:command", "accounts"}
		require.Equal(t, "retried 1 item\n", dibs.ok(t, append(redrive, "1")...))
		require.Contains(t, dibs.ok(t, "parked", "list"), " later ")
		again := objects(t, dibs.ok(t, append(redrive, "--json")...))
		require.Len(t, again, 1)
		require.Equal(t, []any{2.0}, again[0]["changed"])

		require.ElementsMatch(t, []string{"Deposit account:command-1@0", "Deposit account:command-2@0"}, typeAndPlace(catchUp(t, store, "account:command", "accounts", nil)))
		nothing := result{0, "", "nothing is parked by accounts of account:command\n"}
		require.Equal(t, nothing, dibs.run(t, "parked", "list", "account:command", "accounts"))
		require.Equal(t, 3, strings.Count(dibs.ok(t, "parked", "list"), "\n"), "another consumer's stay")
		gone := dibs.run(t, append(redrive, "1", "--json")...)
		require.Equal(t, 1, gone.code)
		require.Equal(t, "notFound", objects(t, gone.stderr)[0]["kind"])
		require.Equal(t, 2, dibs.run(t, "parked", "show", "account:command", "accounts", "x").code)
		require.Equal(t, "retried 0 items\n", dibs.ok(t, redrive...))
		require.Equal(t, noCategory("account"), dibs.run(t, "parked", "list", "account"))
		dibs.ok(t, "write", "account-1", "T")
		require.Equal(t, result{0, "", "nothing is parked by consumers of account\n"}, dibs.run(t, "parked", "list", "account"))
		for _, args := range [][]string{{"parked", "list", "account:command", "acounts"}, {"parked", "redrive", "account:command", "acounts", "--json"}} {
			misspelt := dibs.run(t, args...)
			require.Equal(t, 1, misspelt.code, args)
			require.Contains(t, misspelt.stderr, "unknown consumer acounts of account:command: there are accounts, audit")
		}
	})
}

// typeAndPlace returns messages' texts up to the place.
func typeAndPlace(texts []string) []string {
	for i, text := range texts {
		words := strings.Fields(text)
		texts[i] = strings.Join(words[:min(2, len(words))], " ")
	}
	return texts
}

// A driver that cannot count says so.
type plainDriver struct{ messagestore.Driver }

func TestAStoreThatCannotCountSaysSo(t *testing.T) {
	t.Parallel()
	open := func(context.Context, string, *messagestore.Config) (*messagestore.Store, error) {
		return must.New(messagestore.New(plainDriver{memory.New()}, nil)), nil
	}
	var stdout, stderr strings.Builder
	code := cli.RunOver(t.Context(), open, []string{"report", "streams", "--store", "memory:"}, &stdout, &stderr, func(string) string { return "" })
	require.Equal(t, 1, code)
	require.Contains(t, stderr.String(), messagestore.ErrNotSupported.Error())
}

func TestTheEpochIsShownAndRaised(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DATABASE_URL": pgtest.Database(t)}}
	require.Contains(t, dibs.run(t, "epoch").stderr, "dibs migrate up")
	dibs.ok(t, "migrate", "up")

	first := dibs.ok(t, "epoch")
	require.Regexp(t, `^[0-9]+/[0-9A-F]{8}/0\.[0-9a-f-]{36}\n$`, first)
	require.Equal(t, first, dibs.ok(t, "epoch", "show"))
	raised := objects(t, dibs.ok(t, "epoch", "raise", "--json"))[0]["epoch"]
	require.Regexp(t, `/1\.[0-9a-f-]{36}$`, raised)
	require.Equal(t, raised, objects(t, dibs.ok(t, "epoch", "--json"))[0]["epoch"])

	embedded := &shell{env: map[string]string{"DIBS_STORE": "memory:"}}
	require.Equal(t, "dibs: the store of $DIBS_STORE has no epoch: it cannot tell a rollback\n", embedded.run(t, "epoch").stderr)
	require.Contains(t, embedded.run(t, "epoch", "raise").stderr, "dibs: epoch raise needs a store in PostgreSQL")
}

// A report that takes long says that it goes on.
func TestALongReportSaysSo(t *testing.T) {
	t.Parallel()
	driver := slowReport{memory.New(), make(chan struct{})}
	open := func(context.Context, string, *messagestore.Config) (*messagestore.Store, error) { //nolint:unparam // as the function has it
		return must.New(messagestore.New(driver, nil)), nil
	}
	stderr := &signal{said: make(chan string, 100)}
	ended := make(chan int, 1)
	go func() {
		ended <- cli.RunPatiently(t.Context(), time.Millisecond, open, []string{"report", "streams", "--store", "memory:"}, &strings.Builder{}, stderr, func(string) string { return "" })
	}()
	require.Contains(t, await.Receive(t, "a note", stderr.said), "dibs: still reading every message of the store, for ")
	close(driver.release)
	require.Equal(t, 0, await.Receive(t, "the end of the report", ended))
}

type slowReport struct {
	*memory.Driver
	release chan struct{}
}

func (d slowReport) Report(ctx context.Context, _ report.Query) (report.Report, error) {
	select {
	case <-d.release:
		return report.Report{}, nil
	case <-ctx.Done():
		return report.Report{}, errors.New("it was not released")
	}
}

// A signal is a writer that sends its text on a channel.
type signal struct{ said chan string }

func (s *signal) Write(text []byte) (int, error) {
	select {
	case s.said <- string(text):
	default:
	}
	return len(text), nil
}

func TestAConsumerIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "account-1", "T")
		unknown := dibs.run(t, "consumers", "pause", "account", "mail", "--json")
		require.Equal(t, 1, unknown.code)
		require.Equal(t, "unknownConsumer", objects(t, unknown.stderr)[0]["kind"])
		require.Len(t, catchUp(t, store, "account", "mail", nil), 1)

		require.Equal(t, "mail of account was not paused: nothing was changed\n", dibs.ok(t, "consumers", "resume", "account", "mail"))
		require.NotContains(t, objects(t, dibs.ok(t, "consumers", "--json"))[0], "pausedAt")
		require.Equal(t, "mail of account is paused: members that run find out within 10 s\n", dibs.ok(t, "consumers", "pause", "account", "mail"))
		dibs.ok(t, "write", "account-1", "T")
		c := must.New(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
		require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPaused)
		require.Contains(t, dibs.ok(t, "consumers"), "paused since 20")
		require.Contains(t, dibs.ok(t, "top", "--times", "1"), "none, paused")
		again := objects(t, dibs.ok(t, "consumers", "pause", "account", "mail", "--json"))[0]
		require.Equal(t, false, again["changed"])
		require.NotEmpty(t, again["pausedAt"])
		require.Equal(t, again["pausedAt"], objects(t, dibs.ok(t, "top", "--times", "1", "--json"))[0]["pausedAt"])
		require.Equal(t, again["pausedAt"], objects(t, dibs.ok(t, "consumers", "--json"))[0]["pausedAt"])

		resumed := objects(t, dibs.ok(t, "consumers", "resume", "account", "mail", "--json"))[0]
		require.Equal(t, map[string]any{"category": "account", "consumer": "mail", "changed": true}, resumed)
		require.Len(t, catchUp(t, store, "account", "mail", nil), 1)
	})
}
