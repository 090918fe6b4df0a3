package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/messagestore/storetest"
)

// A writer removes checkpoints and nothing else, what it removed is recorded in one message, and
// the store verifies.
func TestWriterTrimsCheckpointsAndNothingElse(t *testing.T) {
	t.Parallel()
	url := pgtest.Migrated(t)
	owner := pgtest.Connect(t, url)
	writer := pgtest.Connect(t, url+"&options=-c%20role%3Ddibs_writer")
	store := must.New(messagestore.New(must.New(postgres.New(writer, nil)), nil))
	category := storetest.Category(t)
	must.Do(store.Write(t.Context(), category.Stream("1"), messagestore.NoStream, messagestore.Raw{Type: "T", Data: []byte(`{}`)}))(t)
	positions := category.WithType("position")
	must.Do(store.Write(t.Context(), positions.Stream("accounts"), messagestore.NoStream, messagestore.Raw{Type: "Started", Data: []byte(`{"start":0}`)}))(t)
	stream := positions.Stream("accounts").With("0")
	for range 3 {
		bodies := make([]messagestore.Body, 150)
		for i := range bodies {
			bodies[i] = messagestore.Raw{Type: "Recorded", Data: []byte(`{"position":1}`)}
		}
		must.Do(store.Write(t.Context(), stream, messagestore.AnyVersion, bodies...))(t)
		must.Do(store.TrimCheckpoints(t.Context(), stream, 100))(t)
	}
	var first, records, upTo int64
	require.NoError(t, owner.QueryRow(t.Context(), "select min(position) from dibs.messages where stream_name = $1", string(stream)).Scan(&first))
	require.Equal(t, int64(350), first)
	require.NoError(t, owner.QueryRow(t.Context(), "select count(*), max((data ->> 'upTo')::bigint) from dibs.messages where stream_name = $1",
		string(category)+":position+retention-accounts+0").Scan(&records, &upTo))
	require.Equal(t, int64(1), records)
	require.Equal(t, int64(349), upTo)

	require.Empty(t, must.Do(must.New(admin.New(owner, nil)).Verify(t.Context(), nil))(t).Violations)

	for name, refused := range map[string]string{
		string(category.Stream("1")):                  "DB001",
		string(positions.Stream("accounts")):          "DB001",
		string(positions.Stream("accounts")) + "+a":   "DB001",
		string(category) + ":positions-accounts+0":    "DB001",
		string(category) + "-a:position-accounts+0":   "DB001",
		string(category) + ":position-acc-ounts+0":    "DB001",
		string(category) + ":position-accounts+0\n":   "DB001",
		string(category) + ":position-accounts+0+0":   "DB001",
		string(category) + ":position-accounts+0+key": "DB001",
	} {
		require.ErrorContains(t, must.ErrorOf(writer.Exec(t.Context(), "select dibs.trim_checkpoints($1, 100)", name)), refused, "%q", name)
	}
	for _, keep := range []string{"99", "0", "-1", "null"} {
		require.ErrorContains(t, must.ErrorOf(writer.Exec(t.Context(), "select dibs.trim_checkpoints($1, "+keep+")", string(stream))), "invalid keep")
	}
	require.ErrorContains(t, must.ErrorOf(writer.Exec(t.Context(), "select from dibs.trim($1, 1)", string(stream))), "42501")
	reader := must.New(messagestore.New(must.New(postgres.New(pgtest.Connect(t, url+"&options=-c%20role%3Ddibs_reader"), nil)), nil))
	_, err := reader.TrimCheckpoints(t.Context(), stream, 100)
	require.ErrorIs(t, err, messagestore.ErrNotPermitted)
	require.ErrorContains(t, err, "grant dibs_writer")
}

// Streams that hold no checkpoints are refused before anything is sent.
func TestTrimCheckpointsOfAnotherStreamIsRefused(t *testing.T) {
	t.Parallel()
	store := must.New(messagestore.New(must.New(postgres.New(pgtest.Pool(t), nil)), nil))
	for _, stream := range []messagestore.StreamName{"account-1", "account:position-a", "account:position-a+x", "account:position-a-b+0", "account:position-a+0+0", "account:position-a+1234567890123456789"} {
		_, err := store.TrimCheckpoints(t.Context(), stream, 100)
		require.ErrorIs(t, err, messagestore.ErrInvalid, stream)
		require.ErrorContains(t, err, "it is not one of a consumer's checkpoints, as account:position-accounts+0")
	}
	require.ErrorContains(t, must.ErrorOf(store.TrimCheckpoints(t.Context(), "account:position-a+0", 99)), "invalid keep 99: it is at least 100")
}
