package cli_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/intentlog"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
)

const payments messagestore.Category = "payment:intent"

// noCategory is the result of a command for a category that no stream is of.
func noCategory(category string) result {
	return result{1, "", "dibs: there is no category " + category + " in this store: no stream is of it\n      is the name right? See those that there are with: dibs report categories\n"}
}

// manager returns a manager of payments.
func manager(t *testing.T, store *messagestore.Store, config *intent.Config) *intent.Manager {
	t.Helper()
	m, err := intent.New(store, payments, config)
	require.NoError(t, err)
	return m
}

func hold(t *testing.T, m *intent.Manager, r intent.Request) *intent.Lease {
	t.Helper()
	if r.Content == nil {
		r.Content = r.Key
	}
	a, err := m.Reserve(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, intent.Reserved, a.Outcome)
	return a.Lease
}

// lapse waits until the intent is held no more, by the store's clock.
func lapse(t *testing.T, m *intent.Manager, scope, key string) {
	t.Helper()
	_, err := m.Await(t.Context(), scope, key)
	require.NoError(t, err)
}

func TestListPrintsTheHoldersOfIntents(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		m := manager(t, store, nil)
		hold(t, m, intent.Request{Key: "a+1", Scope: "acme", Session: "A", TTL: time.Hour})
		hold(t, m, intent.Request{Key: "b", Session: "B", TTL: 100 * time.Millisecond})
		require.NoError(t, hold(t, m, intent.Request{Key: "c", Session: "C"}).Release(t.Context(), "no money"))
		require.NoError(t, hold(t, m, intent.Request{Key: "d", Session: "D"}).Confirm(t.Context(), map[string]int{"n": 1}))
		lapse(t, m, "", "b")
		dibs.script(t, "intents", store, map[string]func(){"a+1 is done": func() {
			require.NoError(t, hold(t, m, intent.Request{Key: "a+1", Scope: "acme", Session: "A"}).Confirm(t.Context(), nil))
		}})
	})
}

// More than a store returns at once.
func TestListHasNoBound(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(memory.New(), nil))
	m := manager(t, store, nil)
	const many = messagestore.MaxReadMessages + 1
	var writes []messagestore.StreamWrite
	for i := range many {
		stream, err := m.Stream("", fmt.Sprint(i))
		require.NoError(t, err)
		writes = append(writes, messagestore.To(stream, messagestore.NoStream, intentlog.Reserved{Grant: intentlog.Grant{Session: "A", Attempt: 1, TTL: 3600_000, Content: "c"}}))
	}
	for part := range slices.Chunk(writes, messagestore.MaxWriteStreams) {
		_, err := store.WriteStreams(t.Context(), part...)
		require.NoError(t, err)
	}

	require.Len(t, objects(t, over(t, store, "intents", "list", "payment:intent", "--json", "--limit", fmt.Sprint(many))), many)
}

// over runs dibs over a store.
func over(t *testing.T, store *messagestore.Store, args ...string) string {
	t.Helper()
	open := func(context.Context, string, *messagestore.Config) (*messagestore.Store, error) { return store, nil }
	var stdout, stderr strings.Builder
	require.Equal(t, 0, cli.RunOver(t.Context(), open, append(args, "--store", "memory:"), &stdout, &stderr, func(string) string { return "" }), &stderr)
	return stdout.String()
}

// story is an intent with all that may happen to one, and a payment that followed.
func story(t *testing.T, store *messagestore.Store) {
	t.Helper()
	m := manager(t, store, &intent.Config{TTL: 100 * time.Millisecond, Turn: 10 * time.Millisecond})
	r := intent.Request{Key: "29401/1998-12", Scope: "acme", Content: "pay"}
	order := messagestore.Follow(&messagestore.Message{Stream: "order-1", Position: 3, GlobalPosition: 9}, messagestore.Raw{Type: "T"})
	r.Session, r.Metadata = "A", order.Metadata
	first := hold(t, m, r)
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, first.Extend(t.Context()))
	lapse(t, m, r.Scope, r.Key)
	r.Session, r.TTL = "B", time.Hour
	second := hold(t, m, r)
	waits, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	w := r
	w.Session, w.Wait = "C", time.Hour
	go func() {
		_, err := m.Reserve(waits, w)
		waited <- err
	}()
	testkit.AwaitEqual(t, "a line of one", 1, func() int {
		i, err := m.Lookup(t.Context(), r.Scope, r.Key)
		require.NoError(t, err)
		return len(i.Line)
	})
	cancel()
	require.ErrorIs(t, testkit.Receive(t, "the end of the wait", waited), context.Canceled)
	require.NoError(t, second.Extend(t.Context()))
	_, err := store.Write(t.Context(), "payment-acme", messagestore.AnyVersion, messagestore.Follow(second.Cause(), messagestore.Raw{Type: "Paid", Data: []byte(`{"amount":100}`)}))
	require.NoError(t, err)
	operator := manager(t, store, &intent.Config{Name: "ann"})
	require.NoError(t, operator.ForceRelease(t.Context(), r.Scope, r.Key, "the server is gone"))
	r.Session = "C"
	require.NoError(t, hold(t, m, r).Confirm(t.Context(), map[string]string{"receipt": "R1"}))
}

// steadyTokens replaces times, ids and tokens.
func steadyTokens(output string) string {
	return aToken.ReplaceAllString(steady(output), "1136214245000000")
}

func TestStoryOfAnIntent(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		story(t, store)

		dibs.script(t, "explain-intent", store, nil)
		for _, length := range []string{"attempt 1, TTL 100ms\n", ", 100ms after its last sign of life\n", "attempt 2, TTL 1h0m0s\n"} {
			require.Contains(t, dibs.ok(t, "explain", "payment:intent-acme+29401/1998-12"), length)
		}
	})
}

func TestShowPrintsStateAndHistoryOfAnIntent(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		story(t, store)
		m := manager(t, store, nil)
		hold(t, m, intent.Request{Key: "k", Session: "A", TTL: time.Hour})

		dibs.script(t, "show-intent", store, nil)
	})
}

func TestOperatorReleasesALeaseAndNoResult(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		m := manager(t, store, nil)
		l := hold(t, m, intent.Request{Key: "k", Session: "A", TTL: time.Hour})
		hold(t, m, intent.Request{Key: "old", Session: "A", TTL: 100 * time.Millisecond})
		require.NoError(t, hold(t, m, intent.Request{Key: "done"}).Confirm(t.Context(), nil))
		lapse(t, m, "", "old")
		dibs.script(t, "intents-release", store, map[string]func(){
			"the lease is lost": func() { require.ErrorIs(t, l.Extend(t.Context()), intent.ErrLeaseLost) },
			"B takes it":        func() { hold(t, m, intent.Request{Key: "k", Session: "B", TTL: time.Hour}) },
		})
	})
}

// A bad argument is found before a connection is made: at this address no server answers.
func TestBadIntentArgumentsAreRefusedWithoutAConnection(t *testing.T) {
	t.Parallel()
	dibs := &shell{env: map[string]string{"DIBS_STORE": "postgres://ann@" + closedPort(t) + "/bank"}}
	dibs.script(t, "intents-invalid", nil, nil)
	for _, args := range [][]string{{"explain", "", "--category", "payment:intent", "--scope", "x"}, {"explain", "payment:intent-k", "--scope", "x"}} {
		require.Equal(t, 2, dibs.run(t, args...).code, args)
	}
	require.Equal(t, 1, dibs.run(t, "intents", "list", "payment:intent").code, "and this one is right")
}

func TestVerifyFindsIntentsThatBreakARule(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		story(t, store)
		dibs.script(t, "intents-verify", store, nil)
	})
}

func TestForgetRemovesFinishedIntentsWhereKeysHaveALife(t *testing.T) {
	t.Parallel()
	dibs := newServer(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m := manager(t, store, &intent.Config{KeyLife: time.Minute})
	for _, key := range []string{"a", "b"} {
		require.NoError(t, hold(t, m, intent.Request{Key: key}).Confirm(t.Context(), key))
	}
	hold(t, m, intent.Request{Key: "c", TTL: time.Hour})
	agedBy(t, dibs, "2 hours")
	hours := []string{"--older-than", "1h"}
	forget := func(args ...string) result {
		return dibs.run(t, append([]string{"forget", "payment:intent"}, args...)...)
	}

	require.Equal(t, result{0, "would forget 2 keys of payment:intent, with 4 messages\n", ""}, forget(append(hours, "--dry-run")...))
	asked := (&shell{env: dibs.env, stdin: person{strings.NewReader("no\n")}}).run(t, append([]string{"forget", "payment:intent"}, hours...)...)
	require.Equal(t, result{1, "", "forget 2 keys of payment:intent, with answers and results? They do not come back. Type yes: dibs: nothing was removed\n"}, asked)
	require.Contains(t, dibs.ok(t, "intents", "show", "payment:intent", "a"), "result")
	asked = (&shell{env: dibs.env, stdin: person{strings.NewReader("yes\n")}}).run(t, append([]string{"forget", "payment:intent", "--reason", "a year"}, hours...)...)
	require.Equal(t, "forgot 2 keys of payment:intent, with 4 messages\n", asked.stdout)
	require.Equal(t, 1, dibs.run(t, "intents", "show", "payment:intent", "a").code)
	require.Contains(t, dibs.ok(t, "category", "payment:intent+forgotten", "--json"), `"reason":"a year"`)
	require.Equal(t, map[string]any{"category": "payment:intent", "keys": 0.0, "messages": 0.0}, objects(t, forget(append(hours, "--yes", "--json")...).stdout)[0])
	require.Contains(t, dibs.ok(t, "intents", "verify", "payment:intent"), "no violation")

	early := forget("--older-than", "59s", "--yes")
	require.Equal(t, 2, early.code)
	require.Contains(t, early.stderr, "must be at least 1m0s, the life of the keys")
	dibs.ok(t, "write", "refund:intent-1", "T")
	ever := dibs.run(t, "forget", "refund:intent", "--older-than", "1h", "--yes")
	require.Equal(t, 2, ever.code)
	require.Contains(t, ever.stderr, "must be an inbox, be read by a queue, or have had a KeyLife declared before its first key: the keys of others stay for ever")
}

// An operator is told why keys stay that are old enough.
func TestForgetTellsOfCommandsThatAreNotHandled(t *testing.T) {
	t.Parallel()
	dibs := newServer(t)
	const category = "account:command+reservation+accounts"
	for _, m := range [][]string{
		{"account:command-1", "Deposit", `{}`},
		{"account:command+position-accounts", "Started", `{"start":0}`},
		{category + "-0+A", "Deposit", `{}`},
	} {
		dibs.ok(t, "write", m[0], m[1], m[2])
	}
	dibs.ok(t, "write", "account:command+reservation+accounts+life-1", "KeyLifeDeclared", `{"seconds":60}`)
	r := dibs.run(t, "forget", category, "--older-than", "1h", "--dry-run")
	require.Equal(t, 2, r.code, "a key was there before: %v", r)

	other := strings.ReplaceAll(category, "accounts", "other")
	dibs.ok(t, "write", "account:command+reservation+other+life-1", "KeyLifeDeclared", `{"seconds":60}`)
	dibs.ok(t, "write", other+"-0+A", "Deposit", `{}`)
	r = dibs.run(t, "forget", other, "--older-than", "1h", "--dry-run")
	require.Equal(t, 0, r.code)
	require.Equal(t, "would forget 0 keys of "+other+", with 0 messages\n", r.stdout)
	require.Regexp(t, `^dibs: a consumer has yet to pass a command of 20[-0-9]+T[:0-9]+Z: keys that are younger than 1h0m0s before then stay\n$`, r.stderr)
}

// A misspelt category does not look like a good answer.
func TestACategoryOfIntentsThatIsNotThereIsAnError(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		hold(t, manager(t, store, nil), intent.Request{Key: "k", TTL: time.Hour})
		commands := []string{"intents list CATEGORY", "intents show CATEGORY k", "intents release CATEGORY k --reason x", "intents verify CATEGORY", "explain k --category CATEGORY", "forget CATEGORY --older-than 24h --yes", "forget CATEGORY --older-than 24h --dry-run"}

		for _, command := range commands {
			args := strings.Fields(strings.ReplaceAll(command, "CATEGORY", "payments:intent"))
			require.Equal(t, noCategory("payments:intent"), dibs.run(t, args...), command)
			r := dibs.run(t, append(args, "--json")...)
			require.Equal(t, result{1, "", r.stderr}, r, command)
			require.Equal(t, "notFound", objects(t, r.stderr)[0]["kind"], command)
		}

		require.Equal(t, result{}, dibs.run(t, "intents", "list", "payment:intent", "--done", "--json"), "an empty list is none")
		require.Equal(t, noCategory("account:command"), dibs.run(t, "explain", "k", "--category", "account:command"))
	})
}

// agedBy makes all messages older. No client can do this.
func agedBy(t *testing.T, dibs *shell, by string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dibs.env["DIBS_STORE"])
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	for _, statement := range []string{"set session_replication_role = replica", "update dibs.messages set time = time - interval '" + by + "'"} {
		_, err = conn.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
}

func TestAnIntentThatIsNotFoundWithoutAScopeHintsAtTheScope(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		hold(t, manager(t, store, nil), intent.Request{Key: "k", Scope: "acme", TTL: time.Hour})

		none := dibs.run(t, "intents", "show", "payment:intent", "k")

		require.Equal(t, result{1, "", "dibs: payment:intent has no intent with the key k without a scope; if its request has one, give --scope\n"}, none)
		require.Contains(t, dibs.ok(t, "intents", "show", "payment:intent", "k", "--scope", "acme"), "acme")
	})
}

// A category that does not say in its name what it has is known by its messages, also behind one that is none of an intent's.
func TestExplainFindsIntentsBehindAForgedMessage(t *testing.T) {
	t.Parallel()
	onAFile(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		dibs.ok(t, "write", "payment:lease-x", "Opened", `{}`)
		m := testkit.Must(intent.New(store, "payment:lease", nil))
		hold(t, m, intent.Request{Key: "k", Session: "A", TTL: time.Hour})

		require.Contains(t, dibs.ok(t, "explain", "k", "--category", "payment:lease"), "session A")
	})
}
