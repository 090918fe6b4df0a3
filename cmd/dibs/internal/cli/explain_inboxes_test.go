package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// A request from outside is told with the messages of its transaction, which name no cause, with what followed them,
// with its undo, and with the requests that reused its key.
func TestStoryOfARequestInAnInbox(t *testing.T) {
	t.Parallel()
	dibs := newShell(t)
	store, err := library.Open(t.Context(), dibs.env["DIBS_STORE"], nil)
	require.NoError(t, err)
	defer store.Close()
	txs, err := messagestore.Transactional[*sql.Tx](store)
	require.NoError(t, err)
	payments, err := inbox.New(txs, "payments", &inbox.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	write := func(amount int) func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
		return func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{
				reservation.Answer(map[string]int{"paid": amount}),
				messagestore.To("account-7", messagestore.AnyVersion, deposited{amount}),
				messagestore.To("account-6", messagestore.AnyVersion, deposited{amount}),
			}, nil
		}
	}
	receive := func(id string, amount int) {
		t.Helper()
		_, err := payments.Receive(t.Context(), inbox.Request{ID: id, Source: "POST /payments", Data: json.RawMessage(fmt.Sprintf(`{"amount":%d}`, amount))}, write(amount))
		require.NoError(t, err)
	}
	receive("order 17", 10)
	receive("order 18", 20)
	receive("order 17", 10)
	receive("order 17", 11)
	_, err = payments.Undo(t.Context(), inbox.Request{ID: "order 17", Source: "DELETE /payments"}, write(-10))
	require.NoError(t, err)
	event, err := store.Last(t.Context(), "account-7")
	require.NoError(t, err)
	_, err = store.Write(t.Context(), "mail-1", messagestore.NoStream, messagestore.Follow(event, notified{}))
	require.NoError(t, err)
	fails := handler.New()
	handler.On(fails, func(_ context.Context, m handler.Message[deposited]) error {
		if m.Stream == "account-7" && m.Position == 0 {
			return handler.Park(errors.New("the ledger is closed"))
		}
		return nil
	})
	require.NoError(t, testkit.Must(consumer.New(store, account, "ledger", fails, &consumer.Config{Logger: logger.Silent()})).CatchUp(t.Context()))
	dibs.script(t, "explain-inbox", store, nil)
}
