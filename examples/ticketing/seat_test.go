package ticketing

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
)

func TestASeatIsHeldOnceWithItsRow(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Pool(t, nil)
	_, err := pool.Exec(t.Context(), Schema)
	require.NoError(t, err)
	driver, err := postgres.New(pool, nil)
	require.NoError(t, err)
	messages, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	store, err := messagestore.Transactional[pgx.Tx](messages)
	require.NoError(t, err)
	holds, err := boxOffice(store)
	require.NoError(t, err)

	handlertest.Over(t, store.Store, holds).
		When(commands.Stream("12A"), HoldSeat{"k1", "12A", "ann@example.com"}).
		Then(seats.Stream("12A"), SeatHeld{"12A", "ann@example.com"}).
		Redelivered(). // neither a row nor an event is added
		Then(seats.Stream("12A"), SeatHeld{"12A", "ann@example.com"}).
		When(commands.Stream("12A"), HoldSeat{"k2", "12A", "bob@example.com"}).
		Then(seats.Stream("12A"), HoldRefused{"12A", "bob@example.com"}).
		When(commands.Stream("12A"), HoldSeat{"k1", "12A", "eve@example.com"}).
		ThenError(nil). // the key is that of another request
		ThenNothing()

	var rows, held int
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*), count(*) filter (where held) from holds").Scan(&rows, &held))
	require.Equal(t, []int{2, 1}, []int{rows, held})
}
