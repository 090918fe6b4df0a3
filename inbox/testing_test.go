package inbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// book is the function of the inbox: a row, an event and an answer.
func book(id string, amount int) func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
	return func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, "insert into transfers values (?, ?)", id, amount)
		return []messagestore.StreamWrite{
			reservation.Answer(map[string]int{"booked": amount}),
			messagestore.To(messagestore.Category("payment").Stream(id), messagestore.NoStream, Deposited{amount}),
		}, err
	}
}

func TestATransferThatIsSentAgainIsBookedOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	driver, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "bank.db"), nil)
	require.NoError(t, err)
	defer driver.Close()
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	txs, err := messagestore.Transactional[*sql.Tx](store)
	require.NoError(t, err)
	transfers, err := inbox.New(txs, "transfers", nil)
	require.NoError(t, err)
	_, err = txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, "create table transfers (id text primary key, amount int)")
		return nil, err
	})
	require.NoError(t, err)
	request := inbox.Request{ID: "k1", Source: "POST /transfers", Data: []byte(`{"amount":10}`)}

	first, err := transfers.Receive(ctx, request, book("k1", 10))
	require.NoError(t, err)
	again, err := transfers.Receive(ctx, request, book("k1", 10)) // the row's key would be refused
	require.NoError(t, err)
	request.Data = []byte(`{"amount":11}`)
	other, err := transfers.Receive(ctx, request, book("k1", 11))
	require.NoError(t, err)

	require.Equal(t, reservation.Reserved, first.Outcome)
	require.Equal(t, reservation.Duplicate, again.Outcome)
	require.JSONEq(t, `{"booked":10}`, string(again.Answer))
	require.Equal(t, reservation.KeyReused, other.Outcome)
	version, err := store.Version(ctx, "payment-k1")
	require.NoError(t, err)
	require.Equal(t, messagestore.Version(0), version)
}
