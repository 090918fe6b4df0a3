package admin_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// inboxed returns an archive whose category is an inbox, with requests of some ages.
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

func TestOldRequestsAreForgottenKeyAndAll(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	a := inboxed(t, map[string]time.Duration{"old": 2 * day, "undone": 3 * day, "undone just now": 3 * day, "young": day - 12*time.Hour, "deleted": 3 * day, "other": 3 * day})
	undone := messagestore.Raw{Type: "Undone", Data: []byte(`{}`)}
	for stream, body := range map[string]messagestore.Body{"undone": undone, "undone just now": undone, "other": messagestore.Raw{Type: "Other", Data: []byte(`{}`)}} {
		write(t, a.Store, a.category.Stream(stream), 0, body)
	}
	a.age(t, a.category.Stream("undone"), 1000, 2*day)
	a.age(t, a.category.Stream("other"), 1000, 2*day)
	must.Do(a.admin.Delete(t.Context(), a.category.Stream("deleted"), messagestore.AnyVersion, nil))(t)
	a.age(t, a.category.Stream("deleted"), 1000, 2*day)
	write(t, a.Store, a.category.Stream("last"), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{}`)})
	a.age(t, a.category.Stream("last"), 1000, 2*day)
	records := a.category.WithType("forgotten").Stream("1")

	planned := must.Do(a.admin.Forget(t.Context(), a.category, day, &retention.ForgetOptions{DryRun: true}))(t)
	require.Empty(t, a.read(t, records))
	var removed []int64
	forgotten := must.Do(a.admin.Forget(t.Context(), a.category, day, &retention.ForgetOptions{Reason: "ticket 1", OnProgress: func(n int64) { removed = append(removed, n) }}))(t)

	require.Equal(t, retention.Forgotten{Keys: 2, Messages: 3}, forgotten)
	require.Equal(t, forgotten, planned)
	require.Equal(t, []int64{3}, removed)
	for key, messages := range map[string]int{"old": 0, "undone": 0, "undone just now": 2, "young": 1, "deleted": 1, "other": 2, "last": 1} {
		require.Len(t, a.read(t, a.category.Stream(key)), messages, key)
	}
	record := a.read(t, records)
	require.Len(t, record, 1)
	require.Equal(t, "dibs:Forgotten", record[0].Type)
	require.Regexp(t, `"streams": ?2`, string(record[0].Data))
	require.Contains(t, string(record[0].Data), "ticket 1")
	require.NotContains(t, string(record[0].Data), "old")
	require.Zero(t, must.Do(a.admin.Forget(t.Context(), a.category, day, nil))(t))
	require.Len(t, a.read(t, records), 1, "of something that was done")
	require.True(t, must.Do(a.WriteInitial(t.Context(), a.category.Stream("old"), messagestore.Raw{Type: "Received", Data: []byte(`{}`)}))(t), "the key is free")
	found := must.Do(a.admin.Verify(t.Context(), &retention.VerifyConfig{Categories: []messagestore.Category{a.category, a.category.WithType("forgotten")}}))(t)
	require.Empty(t, found.Violations)
}

func TestOnlyAnInboxIsForgottenAndNothingOfTheLastDay(t *testing.T) {
	t.Parallel()
	a := inboxed(t, map[string]time.Duration{"old": 100 * time.Hour})
	write(t, a.Store, a.category.Stream("last"), messagestore.AnyVersion, messagestore.Raw{Type: "Received", Data: []byte(`{}`)})
	for _, category := range []messagestore.Category{"payments", "payments:command", "payments:inbox+refused", "payments:inbox+forgotten", "inbox", "paymentsinbox"} {
		_, err := a.admin.Forget(t.Context(), category, 48*time.Hour, nil)
		requireInvalid(t, err, "category", "it is no inbox, no queue reads it, and no KeyLife was declared in it before its first key, so its keys stay for ever")
	}
	for _, age := range []time.Duration{0, -time.Hour, 24*time.Hour - 1, 101 * 365 * 24 * time.Hour} {
		_, err := a.admin.Forget(t.Context(), a.category, age, nil)
		invalid := (*messagestore.InvalidError)(nil)
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, "age", invalid.Field)
	}
	for call, column := range map[string]string{
		"null, '2 days'":                                         "stream",
		"'a-b:inbox', '2 days'":                                  "category",
		"'a:inbox', null":                                        "older_than",
		"'a:inbox', '0'":                                         "older_than",
		"'a:inbox', '-2 days'":                                   "older_than",
		"'a:inbox', '101 years'":                                 "older_than",
		"'a:inbox', '2 days', ''":                                "reason",
		"'a:inbox', '2 days', null, -1":                          "from_position",
		"'a:inbox', '2 days', max_messages => 0":                 "max_messages",
		"'a:inbox', '2 days', dry_run => null":                   "dry_run",
		"'a:inbox', '2 days', id => '" + uuid.Nil.String() + "'": "id",
	} {
		requireRefused(t, must.ErrorOf(a.pool.Exec(t.Context(), "select dibs.forget("+call+")")), column)
	}
	require.Equal(t, "inside_key_life", pgtest.Value[string](t, a.pool, "select outcome from dibs.forget($1, '23:59:59')", string(a.category)))
	for _, role := range []string{"dibs_writer", "dibs_reader"} {
		_, err := must.New(admin.New(pgtest.PoolAs(t, role), &postgres.Config{})).Forget(t.Context(), a.category, 48*time.Hour, nil)
		require.ErrorContains(t, err, "permission denied", role)
	}
	require.Len(t, a.read(t, a.category.Stream("old")), 1)
	require.Equal(t, int64(1), must.Do(must.New(admin.New(pgtest.PoolAs(t, "dibs_admin"), nil)).Forget(t.Context(), a.category, 48*time.Hour, nil))(t).Keys)
}

// A repetition of a call, whose answer was lost, answers as it did.
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
	must.Do(tx.Exec(t.Context(), `select * from dibs.append(array[$1], '{0}', '{1}', array[gen_random_uuid()], '{Undone}', '{"{}"}', '{null}')`, string(a.category.Stream("old"))))(t)
	forget := "select requests from (select streams as requests from dibs.forget('" + string(a.category) + "', '1 day')) f"
	done := await.Go(func() int64 {
		var requests int64
		if err := a.pool.QueryRow(t.Context(), forget).Scan(&requests); err != nil {
			t.Error(err)
		}
		return requests
	})
	await.Equal(t, "the removal waits for the category", "advisory", func() (event string) {
		require.NoError(t, a.pool.QueryRow(t.Context(), "select coalesce(max(wait_event), '') from pg_stat_activity where query = $1", forget).Scan(&event))
		return event
	})

	require.NoError(t, tx.Commit(t.Context()))

	require.Equal(t, int64(1), await.Receive(t, "the end of the removal", done))
	require.Len(t, a.read(t, a.category.Stream("old")), 2)
	require.Empty(t, a.read(t, a.category.Stream("older")))
}
