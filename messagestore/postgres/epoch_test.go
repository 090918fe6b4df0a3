package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

func TestAnEpochIsOfTheServerAndItsTimeline(t *testing.T) {
	t.Parallel()
	admin, writer := postgres.New(pgtest.Pool(t), nil), postgres.New(poolAs(t, "dibs_writer"), nil)

	epoch, err := admin.Epoch(t.Context())
	require.NoError(t, err)
	require.Regexp(t, `^[0-9]+/[0-9A-F]{8}$`, epoch)
	for range 2 {
		same, err := writer.Epoch(t.Context())
		require.NoError(t, err)
		require.Equal(t, epoch, same)
	}
}

// A server that does not let everybody ask has no epoch, and the consumers of it go without.
func TestWhoMayNotAskHasNoEpoch(t *testing.T) {
	t.Parallel()
	for _, revoke := range []string{
		"revoke execute on function pg_catalog.pg_control_system() from public",
		"revoke execute on function pg_catalog.pg_walfile_name(pg_catalog.pg_lsn) from public",
	} {
		tx, err := pgtest.Pool(t).Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // there is nothing to undo
		_, err = tx.Exec(t.Context(), revoke+"; set local role dibs_writer")
		require.NoError(t, err)
		driver := postgres.New(tx, nil)

		_, err = driver.Epoch(t.Context())
		require.ErrorIs(t, err, messagestore.ErrNotSupported)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	epoch, err := messagestore.New(postgres.New(pgtest.Pool(t), nil), nil).Epoch(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, epoch)
}
