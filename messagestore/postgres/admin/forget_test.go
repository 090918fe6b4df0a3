package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/removal"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// promises is an archive of intents.
type promises struct {
	*archive
	intents *intent.Manager
}

// newPromises returns an archive with keys that live for a minute, or for ever.
func newPromises(t *testing.T, life time.Duration) *promises {
	t.Helper()
	return newArchive(t).promises(t, life)
}

func (a *archive) promises(t *testing.T, life time.Duration) *promises {
	t.Helper()
	m := testkit.Do(intent.New(a.Store, a.category, &intent.Config{KeyLife: life}))(t)
	return &promises{a, m}
}

func (p *promises) hold(t *testing.T, scope, key string) *intent.Lease {
	t.Helper()
	answer := testkit.Do(p.intents.Reserve(t.Context(), intent.Request{Scope: scope, Key: key, Content: key, TTL: 24 * time.Hour}))(t)
	require.Equal(t, intent.Reserved, answer.Outcome)
	return answer.Lease
}

// done makes an intent that was confirmed some time ago, with as many extensions.
func (p *promises) done(t *testing.T, scope, key string, extensions int, ago time.Duration) *intent.Lease {
	t.Helper()
	l := p.hold(t, scope, key)
	for range extensions {
		require.NoError(t, l.Extend(t.Context()))
	}
	require.NoError(t, l.Confirm(t.Context(), "done"))
	p.age(t, l.Stream(), 1000, ago)
	return l
}

func (p *promises) forget(t *testing.T, age time.Duration, options *retention.ForgetOptions) retention.Forgotten {
	t.Helper()
	return testkit.Do(p.admin.Forget(t.Context(), p.category, age, options))(t)
}

func (p *promises) records(t *testing.T) []*messagestore.Message {
	t.Helper()
	return p.read(t, p.category.WithType("forgotten").Stream("1"))
}

func TestFinishedIntentsAreForgottenKeyAndAll(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Minute)
	first := p.done(t, "", "first", 0, 2*time.Hour)
	trimmed := p.done(t, "acme", "trimmed", 3, 2*time.Hour)
	testkit.Do(p.admin.Trim(t.Context(), trimmed.Stream(), &retention.TrimOptions{Keep: 2, MinAge: retention.AnyAge}))(t)
	kept := map[messagestore.StreamName]int{p.done(t, "", "young", 0, 0).Stream(): 2}
	held := p.hold(t, "", "held")
	released := p.hold(t, "", "released")
	require.NoError(t, released.Release(t.Context(), ""))
	kept[held.Stream()], kept[released.Stream()] = 1, 2
	deleted := p.done(t, "", "deleted", 0, 2*time.Hour)
	testkit.Do(p.admin.Delete(t.Context(), deleted.Stream(), messagestore.AnyVersion, nil))(t)
	kept[deleted.Stream()] = 1
	for stream := range kept {
		p.age(t, stream, 1000, 2*time.Hour)
	}
	p.age(t, p.category.Stream("young"), 1000, -2*time.Hour)
	p.hold(t, "", "last")

	planned := p.forget(t, time.Hour, &retention.ForgetOptions{DryRun: true})
	require.Equal(t, retention.Forgotten{Keys: 2, Messages: 4}, planned)
	require.Empty(t, p.records(t))
	var removed []int64
	forgotten := p.forget(t, time.Hour, &retention.ForgetOptions{Reason: "ticket 1", OnProgress: func(n int64) { removed = append(removed, n) }})

	require.Equal(t, planned, forgotten)
	require.Equal(t, []int64{4}, removed)
	for stream, messages := range kept {
		require.Len(t, p.read(t, stream), messages, stream)
	}
	for _, l := range []*intent.Lease{first, trimmed} {
		require.Equal(t, messagestore.NoStream, testkit.Do(p.Version(t.Context(), l.Stream()))(t), "no tombstone")
	}
	names := pgtest.Value[int](t, p.pool, "select count(*) from dibs.messages where category like $1 || '%' and (stream_name || data::text) like '%trimmed%'",
		string(p.category))
	require.Zero(t, names, "nor a record of a trim")
	require.Len(t, p.records(t), 1)
	record := p.records(t)[0]
	require.Equal(t, "dibs:Forgotten", record.Type)
	for _, part := range []string{`"streams":2`, `"messages":4`, `"keyLifeSeconds":60`, `"reason":"ticket 1"`, `"by":"`, `"before":"2`} {
		require.Contains(t, strings.ReplaceAll(string(record.Data), " ", ""), strings.ReplaceAll(part, " ", ""))
	}
	require.Equal(t, retention.Forgotten{}, p.forget(t, time.Hour, nil))
	require.Len(t, p.records(t), 1, "of something that was done")

	again := p.hold(t, "", "first")
	require.Equal(t, 1, again.Attempt())
	require.Greater(t, again.Token(), first.Token())
	found := testkit.Do(p.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{p.category, p.category.WithType("life"), p.category.WithType("forgotten")}}))(t)
	require.Empty(t, found.Violations)
}

func TestKeysAreForgottenOnlyWhereAndWhenThatWasDeclared(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Hour)
	p.done(t, "", "k", 0, 30*time.Minute)
	p.hold(t, "", "last")
	ever := newPromises(t, 0)
	ever.done(t, "", "k", 0, 1000*time.Hour)
	ever.hold(t, "", "last")

	requireInvalid(t, testkit.ErrorOf(p.admin.Forget(t.Context(), p.category, 59*time.Minute, nil)), "age", "must be at least 1h0m0s, the life of the keys")
	_, err := ever.admin.Forget(t.Context(), ever.category, 999*time.Hour, nil)
	requireInvalid(t, err, "category", "must be an inbox, be read by a queue, or have had a KeyLife declared before its first key: the keys of others stay for ever")
	for _, forged := range []string{`{"seconds":0}`, `{"seconds":-1}`, `{"seconds":"x"}`, `{}`, `{"seconds":1e3}`} {
		testkit.Do(ever.Write(t.Context(), removal.KeyLifeStream(ever.category), messagestore.AnyVersion, messagestore.Raw{Type: "KeyLifeDeclared", Data: []byte(forged)}))(t)
		requireInvalid(t, testkit.ErrorOf(ever.admin.Forget(t.Context(), ever.category, 999*time.Hour, nil)), "category", "have had a KeyLife declared")
	}
	other := newPromises(t, 0)
	write(t, other.Store, removal.KeyLifeStream(other.category), messagestore.NoStream, messagestore.Raw{Type: "Opened", Data: []byte(`{"seconds":60}`)})
	requireInvalid(t, testkit.ErrorOf(other.admin.Forget(t.Context(), other.category, time.Hour, nil)), "category", "have had a KeyLife declared")
	late := newPromises(t, 0) // another manager's first intent came in before the life was written down
	late.done(t, "", "k", 0, 1000*time.Hour)
	late.hold(t, "", "last")
	write(t, late.Store, removal.KeyLifeStream(late.category), messagestore.NoStream, removal.KeyLifeDeclared{Seconds: 60})
	requireInvalid(t, testkit.ErrorOf(late.admin.Forget(t.Context(), late.category, 999*time.Hour, nil)), "category", "declared before its first key: the keys of others stay for ever")
	require.Len(t, late.read(t, late.category.Stream("k")), 2)
	require.Len(t, p.read(t, p.category.Stream("k")), 2)
	require.Len(t, ever.read(t, ever.category.Stream("k")), 2)
	require.Equal(t, retention.Forgotten{}, p.forget(t, time.Hour, nil), "confirmed 30 minutes ago")
}

func requireInvalid(t *testing.T, err error, field, rule string) {
	t.Helper()
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, "invalid "+field)
	require.ErrorContains(t, err, rule)
}

func TestBadArgumentsOfForgetAreNotSent(t *testing.T) {
	t.Parallel()
	a := testkit.Must(admin.New(unreachable{}, nil))
	for name, forget := range map[string]func() error{
		"category": func() error { return second(a.Forget(t.Context(), "a-1", time.Hour, nil)) },
		"empty":    func() error { return second(a.Forget(t.Context(), "", time.Hour, nil)) },
		"no age":   func() error { return second(a.Forget(t.Context(), "a", 0, nil)) },
		"negative": func() error { return second(a.Forget(t.Context(), "a", -time.Hour, nil)) },
		"too old":  func() error { return second(a.Forget(t.Context(), "a", 101*365*24*time.Hour, nil)) },
		"inbox":    func() error { return second(a.Forget(t.Context(), "a:inbox", 24*time.Hour-1, nil)) },
		"reason": func() error {
			return second(a.Forget(t.Context(), "a", time.Hour, &retention.ForgetOptions{Reason: "a\nb"}))
		},
	} {
		require.ErrorIs(t, forget(), messagestore.ErrInvalid, name)
	}
}

// A consumer that has read a category to its end is not ahead of it afterwards.
func TestTheLastMessageOfACategoryIsNotForgotten(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Minute)
	p.done(t, "", "a", 0, 2*time.Hour)
	p.done(t, "", "b", 0, 2*time.Hour)
	before := testkit.Do(p.End(t.Context(), p.category))(t)

	require.Equal(t, retention.Forgotten{Keys: 1, Messages: 2}, p.forget(t, time.Hour, nil))

	require.Equal(t, before, testkit.Do(p.End(t.Context(), p.category))(t))
	require.Len(t, p.read(t, p.category.Stream("b")), 2)
}

// Batches are bounded by their messages, a longer intent is a batch of its own, and each has a
// record.
func TestIntentsAreForgottenInBatches(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Minute)
	for _, key := range []string{"a", "b", "c"} {
		p.done(t, "", key, 0, 2*time.Hour)
	}
	p.done(t, "", "long", 10, 2*time.Hour)
	p.done(t, "", "d", 0, 2*time.Hour)
	p.hold(t, "", "last")

	var next int64
	var batches []string
	for more := true; more; {
		var outcome string
		var intents, messages int64
		err := p.pool.QueryRow(t.Context(), "select outcome, streams, messages, next_position, more from dibs.forget($1, '1 h', null, $2, 5)", string(p.category), next).
			Scan(&outcome, &intents, &messages, &next, &more)
		require.NoError(t, err)
		if messages > 0 {
			batches = append(batches, fmt.Sprintf("%d of %d", messages, intents))
		}
		require.Less(t, len(batches), 10)
	}

	require.Contains(t, batches, "12 of 1")
	require.Len(t, p.records(t), len(batches))
	for _, key := range []string{"a", "b", "c", "long", "d"} {
		require.Empty(t, p.read(t, p.category.Stream(key)), key)
	}
	require.Len(t, p.read(t, p.category.Stream("last")), 1)
}

// A client that appends to a result, as none should, keeps the intent.
func TestAnIntentWithAMessageAfterItsResultStays(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Minute)
	l := p.done(t, "", "a", 0, 2*time.Hour)
	write(t, p.Store, l.Stream(), messagestore.AnyVersion, opened())
	p.age(t, l.Stream(), 1000, 2*time.Hour)
	p.hold(t, "", "last")

	require.Equal(t, retention.Forgotten{}, p.forget(t, time.Hour, nil))
	require.Len(t, p.read(t, l.Stream()), 3)
}

// While intents are forgotten, each key has one winner at a time, and every answer was really
// given.
func TestKeysAreReservedWhileTheyAreForgotten(t *testing.T) {
	t.Parallel()
	p := newOwnArchive(t).promises(t, time.Minute)
	const keys = 30
	tokens := map[string]int64{}
	for n := range keys {
		key := fmt.Sprint(n)
		tokens[key] = p.done(t, "", key, 0, 2*time.Hour).Token()
	}
	p.hold(t, "", "last")
	done := testkit.Go(func() error { return testkit.ErrorOf(p.admin.Forget(t.Context(), p.category, time.Hour, nil)) })
	for n := range keys {
		key := fmt.Sprint(n)
		testkit.Await(t, "the key is free", func() (bool, any) {
			answer := testkit.Do(p.intents.Reserve(t.Context(), intent.Request{Key: key, Content: key}))(t)
			if answer.Outcome == intent.Done {
				return false, answer.Outcome
			}
			require.Equal(t, intent.Reserved, answer.Outcome)
			require.Greater(t, answer.Lease.Token(), tokens[key])
			return true, nil
		})
	}
	require.NoError(t, testkit.Receive(t, "the end of the removal", done))
}

func TestOnlyAnAdminForgets(t *testing.T) {
	t.Parallel()
	p := newPromises(t, time.Minute)
	p.done(t, "", "a", 0, 2*time.Hour)
	p.hold(t, "", "last")
	for _, role := range []string{"dibs_writer", "dibs_reader"} {
		_, err := testkit.Must(admin.New(pgtest.PoolAs(t, role), &postgres.Config{})).Forget(t.Context(), p.category, time.Hour, nil)
		require.ErrorContains(t, err, "permission denied", role)
	}
	require.Equal(t, int64(1), testkit.Do(testkit.Must(admin.New(pgtest.PoolAs(t, "dibs_admin"), nil)).Forget(t.Context(), p.category, time.Hour, nil))(t).Keys)
}

// inboxed returns an archive with an inbox as its category, and requests of some ages.
func inboxed(t *testing.T, ages map[string]time.Duration) *archive {
	t.Helper()
	return newArchive(t).inbox(t, ages)
}

func (a *archive) inbox(t *testing.T, ages map[string]time.Duration) *archive {
	t.Helper()
	a.category = a.category.WithType("inbox")
	for key, age := range ages {
		write(t, a.Store, a.category.Stream(key), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{"digest":"x"}`)})
		a.age(t, a.category.Stream(key), 1000, age)
	}
	return a
}

func TestOnlyAnInboxIsForgottenAndNothingOfTheLastDay(t *testing.T) {
	t.Parallel()
	a := inboxed(t, map[string]time.Duration{"old": 100 * time.Hour})
	write(t, a.Store, a.category.Stream("last"), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{}`)})
	for _, category := range []messagestore.Category{"payments", "payments:command", "payments:inbox+refused", "payments:inbox+forgotten", "inbox", "paymentsinbox"} {
		_, err := a.admin.Forget(t.Context(), category, 48*time.Hour, nil)
		requireInvalid(t, err, "category", "must be an inbox, be read by a queue, or have had a KeyLife declared before its first key: the keys of others stay for ever")
	}
	for _, age := range []time.Duration{0, -time.Hour, 24*time.Hour - 1, 101 * 365 * 24 * time.Hour} {
		_, err := a.admin.Forget(t.Context(), a.category, age, nil)
		invalid := (*messagestore.InvalidError)(nil)
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "age", invalid.Field)
	}
	require.Equal(t, "inside_key_life", pgtest.Value[string](t, a.pool, "select outcome from dibs.forget($1, '23:59:59')", string(a.category)))
	for _, role := range []string{"dibs_writer", "dibs_reader"} {
		_, err := testkit.Must(admin.New(pgtest.PoolAs(t, role), &postgres.Config{})).Forget(t.Context(), a.category, 48*time.Hour, nil)
		require.ErrorContains(t, err, "permission denied", role)
	}
	require.Len(t, a.read(t, a.category.Stream("old")), 1)
	require.Equal(t, int64(1), testkit.Do(testkit.Must(admin.New(pgtest.PoolAs(t, "dibs_admin"), nil)).Forget(t.Context(), a.category, 48*time.Hour, nil))(t).Keys)
}

// If the answer to a call was lost, its repetition returns the same answer.
func TestAnInboxIsForgottenInBatchesThatMayBeRepeated(t *testing.T) {
	t.Parallel()
	ages := map[string]time.Duration{}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		ages[key] = 48 * time.Hour
	}
	a := inboxed(t, ages)
	write(t, a.Store, a.category.Stream("last"), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{}`)})
	var next int64
	var requests []int64
	for more := true; more; {
		id := uuid.New()
		for call := range 2 {
			var n, messages, at int64
			var outcome string
			require.NoError(t, a.pool.QueryRow(t.Context(), "select outcome, streams, messages, next_position, more from dibs.forget($1, '1 day', null, $2, 2, false, $3)", string(a.category), next, id).Scan(&outcome, &n, &messages, &at, &more))
			require.Equal(t, n, messages)
			if call == 1 {
				requests, next = append(requests, n), at
			}
		}
		require.Less(t, len(requests), 9)
	}

	require.Equal(t, []int64{2, 2, 1, 0}, append(requests, 0)[:4])
	require.Len(t, a.read(t, a.category.WithType("forgotten").Stream("1")), 3)
	for key := range ages {
		require.Empty(t, a.read(t, a.category.Stream(key)))
	}
}

// A message that is committed while the removal waits for the category keeps its request.
func TestARequestThatIsUndoneMeanwhileStays(t *testing.T) {
	t.Parallel()
	a := newOwnArchive(t).inbox(t, map[string]time.Duration{"old": 48 * time.Hour, "older": 72 * time.Hour})
	write(t, a.Store, a.category.Stream("last"), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{}`)})
	tx := begin(t, a.pool.Config().ConnString(), pgx.ReadCommitted)
	testkit.Do(tx.Exec(t.Context(), `select * from dibs.append(array[$1], '{0}', '{1}', array[gen_random_uuid()], '{Undone}', '{"{}"}', '{null}')`, string(a.category.Stream("old"))))(t)
	forget := "select requests from (select streams as requests from dibs.forget('" + string(a.category) + "', '1 day')) f"
	done := testkit.Go(func() int64 {
		var requests int64
		if err := a.pool.QueryRow(t.Context(), forget).Scan(&requests); err != nil {
			t.Error(err)
		}
		return requests
	})
	testkit.AwaitEqual(t, "the removal waits for the category", "advisory", func() (event string) {
		require.NoError(t, a.pool.QueryRow(t.Context(), "select coalesce(max(wait_event), '') from pg_stat_activity where query = $1", forget).Scan(&event))
		return event
	})

	require.NoError(t, tx.Commit(t.Context()))

	require.Equal(t, int64(1), testkit.Receive(t, "the end of the removal", done))
	require.Len(t, a.read(t, a.category.Stream("old")), 2)
	require.Empty(t, a.read(t, a.category.Stream("older")))
}
