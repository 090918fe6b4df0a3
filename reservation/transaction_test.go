package reservation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation"
)

// An inbox: a reservation and a table of the caller's own, in one transaction.
func TestAReservationIsMadeInTheCallersTransaction(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store := messagestore.New(postgres.New(pool, config), nil)
	_, err := pool.Exec(t.Context(), "create table "+schema+".deposits (key text, amount int)")
	require.NoError(t, err)
	deposits := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from "+schema+".deposits").Scan(&n))
		return n
	}
	handle := func(m *messagestore.Message, fails error) (outcome reservation.Outcome, err error) {
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			once := reservation.New(messagestore.New(postgres.New(tx, config), nil), "accounts", nil)
			result, err := once.Reserve(t.Context(), m, "AAA")
			if outcome = result.Outcome; err != nil {
				return err
			}
			if outcome == reservation.Reserved {
				_, err = tx.Exec(t.Context(), "insert into "+schema+".deposits values ('AAA', 10)")
			} else { // the transaction is usable after a duplicate
				_, err = tx.Exec(t.Context(), "select 1")
			}
			return errors.Join(err, fails)
		})
		return outcome, err
	}
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	other := send(t, store, command, Deposit{"AAA", 11})

	boom := errors.New("boom")
	_, err = handle(first, boom)
	require.ErrorIs(t, err, boom)
	require.Zero(t, deposits())
	require.Empty(t, all(t, store, command.With("accounts").With("AAA")))

	outcome, err := handle(first, nil)
	require.NoError(t, err)
	require.Equal(t, reservation.Reserved, outcome)
	outcome, err = handle(again, nil)
	require.NoError(t, err)
	require.Equal(t, reservation.Duplicate, outcome)
	outcome, err = handle(other, nil)
	require.NoError(t, err)
	require.Equal(t, reservation.KeyReused, outcome)
	require.Equal(t, 1, deposits())
	require.Len(t, all(t, store, command.With("accounts").With("AAA")), 1)
}

// R2: a snapshot that is older than the winner meets the conflict, but cannot show the
// winner, so that there is no answer.
func TestAWinnerOutsideOfTheSnapshotIsNoAnswer(t *testing.T) {
	t.Parallel()
	pool, schema := pgtest.Schema(t)
	config := &postgres.Config{Schema: schema}
	store := messagestore.New(postgres.New(pool, config), nil)
	first, again := send(t, store, command, Deposit{"AAA", 10}), send(t, store, command, Deposit{"AAA", 10})
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	_, err = tx.Exec(t.Context(), "select 1") // takes the snapshot
	require.NoError(t, err)
	_, err = newReserver(t, store, nil).Reserve(t.Context(), first, "AAA")
	require.NoError(t, err)

	_, err = newReserver(t, messagestore.New(postgres.New(tx, config), nil), nil).Reserve(t.Context(), again, "AAA")

	require.ErrorIs(t, err, reservation.ErrWinnerUnseen)
}
