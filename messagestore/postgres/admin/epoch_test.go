package admin_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/await"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
)

func TestAnEpochThatIsRaisedIsAnotherThanAllBefore(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store, adm := must.New(messagestore.New(must.New(postgres.New(pool, config)), nil)), must.New(admin.New(pool, config))
	seen := map[string]bool{}
	epoch := func() string {
		t.Helper()
		return must.Do(store.Epoch(t.Context()))(t)
	}
	seen[epoch()] = true
	raise := func() string {
		t.Helper()
		return must.Do(adm.RaiseEpoch(t.Context()))(t)
	}
	for range 3 {
		raised := raise()
		require.Equal(t, raised, epoch())
		require.False(t, seen[raised])
		seen[raised] = true
	}

	// A backup has the number that was given out since, and not the id.
	must.Do(pool.Exec(t.Context(), "update "+schema+".epochs set number = 1, id = gen_random_uuid()"))(t)
	require.False(t, seen[raise()])

	// Somebody has removed the row.
	must.Do(pool.Exec(t.Context(), "delete from "+schema+".epochs"))(t)
	without := epoch()
	require.NotEqual(t, without, raise())

	pgtest.WaitForLocks(t, pool.Config().ConnString(), schema)
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { _, errs[i] = adm.RaiseEpoch(t.Context()) })
	}
	await.Receive(t, "the end of all calls", over(&all))
	require.NoError(t, errors.Join(errs...))
	require.Regexp(t, `/9\.[^/]+$`, epoch())
}

// By the same id it is raised once, so a caller that lost the answer may repeat the call.
func TestAnEpochIsRaisedOnceByOneID(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	raise := func(id *uuid.UUID) (epoch string) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), "select "+schema+".raise_epoch($1)", id).Scan(&epoch))
		return epoch
	}
	id := uuid.New()
	first := raise(&id)
	require.Contains(t, first, "/1."+id.String())
	require.Equal(t, first, raise(&id))
	require.Regexp(t, `/2\.`, raise(nil))
}

func TestWhoMayNotRaiseTheEpochIsTold(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"dibs_reader", "dibs_writer"} {
		_, err := must.New(admin.New(pgtest.PoolAs(t, role), nil)).RaiseEpoch(t.Context())
		require.ErrorContains(t, err, "raise epoch: ")
		require.ErrorContains(t, err, "permission denied for function raise_epoch")
	}
	var none *pgxpool.Pool
	_, err := admin.New(none, &postgres.Config{Schema: "no-schema"})
	require.ErrorIs(t, err, messagestore.ErrInvalid)
	require.ErrorContains(t, err, `invalid schema "no-schema": `)
	require.ErrorContains(t, err, "invalid database: it is nil")
}
