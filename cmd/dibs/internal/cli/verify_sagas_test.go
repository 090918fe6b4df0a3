package cli_test

import (
	"database/sql"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // database/sql
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/messagestore"
)

// damage changes the tables of queues as no client does.
func damage(t *testing.T, dibs *shell, statement string, args ...any) {
	t.Helper()
	kind, where := "pgx", dibs.env["DIBS_STORE"]
	if path, isFile := strings.CutPrefix(where, "sqlite:"); isFile {
		kind, where = "sqlite", path
		statement = strings.ReplaceAll(statement, "dibs.", "dibs_")
	}
	db, err := sql.Open(kind, where)
	require.NoError(t, err)
	defer db.Close()
	result, err := db.ExecContext(t.Context(), statement, args...)
	require.NoError(t, err)
	n, err := result.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

func TestVerifyFindsSagasThatHaveNoOtherTurn(t *testing.T) {
	t.Parallel()
	onEveryStore(t, func(t *testing.T, dibs *shell, store *messagestore.Store) {
		sagas(t, store)
		dibs.ok(t, "write", "booking:saga-1", "Began", `{"step":"paid","attempt":1,"kind":"ask"}`)
		turns(t, store)
		dibs.ok(t, "write", "account-1", "Opened")
		whole := dibs.ok(t, "verify")
		require.Contains(t, whole, ", 1 queue, 4 sagas, ")
		require.Contains(t, whole, "no violation")
		first := objects(t, dibs.ok(t, "stream", "booking:saga-1", "--json"))[0]["globalPosition"]

		damage(t, dibs, "DELETE FROM dibs.queue_open WHERE position = $1", first)

		for _, args := range [][]string{{"verify"}, {"verify", "booking:saga"}} {
			found := dibs.run(t, args...)
			require.Equal(t, 1, found.code)
			require.Regexp(t, `(?m)^saga +\d+ +booking:saga-1@0 +expected an open item, since the saga is running, found an item that is finished$`, found.stdout)
		}
		lines := objects(t, dibs.run(t, "verify", "--json").stdout)
		require.Len(t, lines, 2)
		require.Equal(t, []any{"saga", "booking:saga", "booking:saga-1", 0.0, first}, []any{lines[0]["violation"], lines[0]["category"], lines[0]["stream"], lines[0]["position"], lines[0]["globalPosition"]})
		require.InDelta(t, 4, field(t, lines[1], "checked")["sagas"], 0)
		require.Contains(t, dibs.ok(t, "verify", "account"), ", 0 sagas, ")
	})
}
