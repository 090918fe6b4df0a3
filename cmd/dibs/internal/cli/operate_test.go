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
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/internal/report"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// onAFile is [onEveryStore], on PostgreSQL in the long tier only: for commands that call what any driver
// has, as others do that run on each.
func onAFile(t *testing.T, test func(t *testing.T, dibs *shell, store *messagestore.Store)) {
	t.Helper()
	if testkit.Long() {
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
	return consumed(t, store, category, name, failure)
}

func TestReportCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, _ *messagestore.Store) { dibs.script(t, "report", nil, nil) })
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

// Streams of other clients may have any name; a terminal acts on none of it.
func TestHostileNamesAreShownAsTheyAreSpelt(t *testing.T) {
	t.Parallel()
	const bad = "evil\x1b[2J\r\n\u202e"
	file := filepath.Join(t.TempDir(), "dibs.db")
	driver, err := sqlite.Open(t.Context(), file, nil)
	require.NoError(t, err)
	store := testkit.Must(messagestore.New(driver, nil))
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

func TestConsumersAreListedPausedAndResumed(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "consumers", store, map[string]func(){"a paused consumer takes nothing": func() {
			c := testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), nil))
			require.ErrorIs(t, c.CatchUp(t.Context()), consumer.ErrPaused)
		}})
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
			c := testkit.Must(consumer.New(store, "account", "mail", handler.HandlerFunc(func(context.Context, *messagestore.Message) error { return nil }), &consumer.Config{Logger: logger.Silent()}))
			go func() { ended <- c.Run(ctx) }()
		}
		var lines []string
		testkit.Await(t, "two replicas, one with all slots", func() (bool, any) {
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
			require.NoError(t, testkit.Receive(t, "the end of a replica", ended))
		}
	})
}

// A lag that is not known is not a lag of none.
func TestAConsumerOfAnotherClientIsToldOfAndLeftAlone(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, _ *messagestore.Store) { dibs.script(t, "consumers-foreign", nil, nil) })
}

func TestAConsumerIsReset(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.script(t, "consumers-reset", store, map[string]func(){"it is reset to the time of the third": func() {
			third, err := store.Last(t.Context(), "account-2")
			require.NoError(t, err)
			require.Contains(t, dibs.ok(t, "consumers", "reset", "account", "mail", "--time", third.Time.Format(time.RFC3339Nano), "--yes"), "goes from 5 to 3, handling 2 messages again\n")
		}})
	})
}

func TestParkedMessagesAreListedShownAndRedriven(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) { dibs.script(t, "parked", store, nil) })
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
		return testkit.Must(messagestore.New(driver, nil)), nil
	}
	stderr := &signal{said: make(chan string, 100)}
	ended := make(chan int, 1)
	go func() {
		ended <- cli.RunPatiently(t.Context(), time.Millisecond, open, []string{"report", "streams", "--store", "memory:"}, &strings.Builder{}, stderr, func(string) string { return "" })
	}()
	require.Contains(t, testkit.Receive(t, "a note", stderr.said), "dibs: still reading every message of the store, for ")
	close(driver.release)
	require.Equal(t, 0, testkit.Receive(t, "the end of the report", ended))
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
