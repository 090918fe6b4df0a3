package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

func TestAnEpochIsOfTheServerAndItsTimeline(t *testing.T) {
	t.Parallel()
	adm, writer := must.New(postgres.New(pgtest.Pool(t), nil)), must.New(postgres.New(pgtest.PoolAs(t, "dibs_writer"), nil))

	epoch := must.Do(adm.Epoch(t.Context()))(t)
	require.Regexp(t, `^[0-9]+/[0-9A-F]{8}/0\.[0-9a-f-]{36}$`, epoch)
	for range 2 {
		require.Equal(t, epoch, must.Do(writer.Epoch(t.Context()))(t))
	}
}

// A server that refuses the question has the number alone as its epoch.
func TestWhoMayNotAskTheServerHasTheEpochThatWasRaised(t *testing.T) {
	t.Parallel()
	url := ownDatabase(t)
	for _, revoke := range []string{
		"revoke execute on function pg_catalog.pg_control_system() from public",
		"revoke execute on function pg_catalog.pg_walfile_name(pg_catalog.pg_lsn) from public",
	} {
		tx := must.Do(connect(t, url).Begin(t.Context()))(t)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
		must.Do(tx.Exec(t.Context(), revoke+"; set local role dibs_writer"))(t)
		driver := must.New(postgres.New(tx, nil))

		require.Regexp(t, `^//0\.[0-9a-f-]{36}$`, must.Do(driver.Epoch(t.Context()))(t))
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// A role with single grants works without the epoch.
func TestWhoMayNotAskForTheEpochHasNone(t *testing.T) {
	t.Parallel()
	tx := must.Do(connect(t, ownDatabase(t)).Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
	must.Do(tx.Exec(t.Context(), "revoke execute on function dibs.epoch() from dibs_writer; set local role dibs_writer"))(t)

	require.Empty(t, must.Do(must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)).Epoch(t.Context()))(t))
}
