package messagedb_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
)

func TestDatabaseHasMessageDB(t *testing.T) {
	t.Parallel()
	database := pgtest.MessageDB(t)
	conn := testkit.Do(pgx.Connect(t.Context(), pgtest.As(t, database, "message_store")))(t)
	defer conn.Close(t.Context())

	var version string
	var position int64
	require.NoError(t, conn.QueryRow(t.Context(), "select message_store_version(), write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')").Scan(&version, &position))

	require.Equal(t, "1.3.0", version)
	require.Zero(t, position)
}
