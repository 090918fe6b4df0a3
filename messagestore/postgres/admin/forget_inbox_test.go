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
