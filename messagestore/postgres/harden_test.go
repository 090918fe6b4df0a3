package postgres_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/queuing"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/retention"
	"github.com/dibs-go/dibs/messagestore/storetest"
	"github.com/dibs-go/dibs/migrations"
)

// harden runs the statement by which docs/dba.md takes advisory locks from the public, as the page
// has it.
func harden(t *testing.T, superuser *pgx.Conn) {
	t.Helper()
	page := must.Do(os.ReadFile("../../docs/dba.md"))(t)
	var found []string
	for _, part := range strings.Split(string(page), "```sql\n")[1:] {
		if block, _, _ := strings.Cut(part, "```"); strings.Contains(block, "revoke execute") {
			found = append(found, block)
		}
	}
	require.Len(t, found, 1)
	exec(t, superuser, found[0])
}

func TestHardeningOfThePageTakesLocksFromStrangersAndStopsNoService(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	superuser := connect(t, url)
	harden(t, superuser)

	stranger := connect(t, with(t, url, "user", loginIn(t, url, "dibs_worker")))
	rows, err := superuser.Query(t.Context(), `
		select distinct l.name
		from pg_proc p
		cross join lateral regexp_matches(p.prosrc, '(pg_(?:try_)?advisory_\w*lock\w*)\(', 'g') m
		cross join lateral (select m[1] as name) l
		where p.pronamespace in ('dibs'::regnamespace, 'message_store'::regnamespace)`)
	require.NoError(t, err)
	called := must.Do(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	require.Greater(t, len(called), 5)
	for _, name := range called {
		require.True(t, pgtest.Value[bool](t, superuser, "select has_function_privilege('dibs_owner', $1 || '(int, int)', 'execute')", name), name)
	}
	for _, name := range []string{"lock", "lock_shared", "xact_lock", "xact_lock_shared"} {
		for _, try := range []string{"", "try_"} {
			requireDenied(t, must.ErrorOf(stranger.Exec(t.Context(), "select pg_"+try+"advisory_"+name+"(1684628083, 1)")), name)
		}
	}

	pool := pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "dibs_worker")))
	driver := must.New(postgres.New(pool, nil))
	store := must.New(messagestore.New(driver, nil))
	category := storetest.Category(t)
	bell, stop := store.Watch(category, time.Hour)
	defer stop()
	write(t, store, category.Stream("1"), messagestore.NoStream, opened())
	select {
	case <-bell:
	case <-time.After(time.Minute):
		t.Fatal("no wake-up")
	}
	must.Do(store.WriteStreams(t.Context(), messagestore.To(category.Stream("2"), messagestore.AnyVersion, opened()), messagestore.To(category.Stream("3"), messagestore.AnyVersion, opened())))(t)
	_, err = store.Resolve(t.Context(), &messagestore.OutcomeUnknownError{Writes: []messagestore.Append{{Stream: category.Stream("1"), Records: []messagestore.Encoded{{ID: uuid.New()}}}}})
	require.ErrorIs(t, err, messagestore.ErrNotWritten)
	for range 3 { // the first transaction that writes to a category makes it shared, and later ones take other locks
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			within := storeOver(tx)
			if _, err := within.Write(t.Context(), category.Stream("4"), messagestore.AnyVersion, opened()); err != nil {
				return err
			}
			return within.Stage(t.Context(), category.Stream("5"), messagestore.AnyVersion, opened())
		}))
		must.Do(must.New(messagestore.Transactional[pgx.Tx](store)).Transact(t.Context(), func(context.Context, pgx.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{messagestore.To(category.Stream("6"), messagestore.AnyVersion, opened())}, nil
		}))(t)
	}
	of := queuing.Queue{Name: string(category), Category: category}
	taken := must.Do(driver.QueueTake(t.Context(), queuing.Take{Queue: of, Policy: queuing.Policy{MaxFailures: 5}, Session: 1, Lease: time.Hour, Want: 100}))(t)
	require.NotEmpty(t, taken.Items)
	require.NoError(t, driver.QueueLeave(t.Context(), queuing.Leave{Queue: of, Session: 1}))

	client := pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "message_store")))
	must.Do(client.Exec(t.Context(), "select message_store.write_message(gen_random_uuid()::text, $1, 'T', '{}')", string(category.Stream("7"))))(t)

	adm := must.New(admin.New(pgtest.Connect(t, with(t, url, "user", loginIn(t, url, "dibs_admin"))), nil))
	other := storetest.Category(t) + "x"
	write(t, store, other.Stream("1"), messagestore.NoStream, opened(), opened())
	must.Do(adm.Trim(t.Context(), other.Stream("1"), &retention.TrimOptions{Keep: 1, MinAge: retention.AnyAge}))(t)
	must.Do(adm.Delete(t.Context(), other.Stream("1"), messagestore.AnyVersion, nil))(t)
	require.NoError(t, migrations.Up(t.Context(), superuser, nil))
}
