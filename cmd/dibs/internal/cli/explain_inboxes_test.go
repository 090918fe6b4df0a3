package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	library "github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/must"
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
	require.NoError(t, must.New(consumer.New(store, account, "ledger", fails, &consumer.Config{Logger: logger.Silent()})).CatchUp(t.Context()))
	inbox, err := payments.Stream("order 17")
	require.NoError(t, err)
	stream := string(inbox)

	story := steady(dibs.ok(t, "explain", stream, "--in", "mail"))

	golden(t, "explain-inbox", story)
	require.Equal(t, story, steady(dibs.ok(t, "explain", "order 17", "--category", "payments:inbox", "--in", "mail")))
	var events []string
	for _, object := range objects(t, dibs.ok(t, "explain", stream, "--in", "mail", "--json")) {
		require.Equal(t, "order 17", object["key"])
		if object["queue"] != nil {
			events = append(events, fmt.Sprint(object["event"], " ", object["queue"]))
			continue
		}
		events = append(events, fmt.Sprint(object["event"], " ", field(t, object, "message")["stream"]))
	}
	require.Len(t, events, 10)
	require.Equal(t, []string{
		"received " + stream, "wrote account-6", "wrote account-7", "undone " + stream, "wrote account-6", "wrote account-7",
		"sameKey " + strings.Replace(stream, "inbox", "inbox+refused", 1),
	}, events[:7])
	require.Equal(t, []string{"delivery account:parked:ledger", "item account:parked:ledger", "followed mail-1"}, events[7:])
	require.Regexp(t, `(?m)^followed +nothing yet +in payments-order 17, account-[67], account-[67]; look`, dibs.ok(t, "explain", stream), "each stream once")

	unknown := dibs.run(t, "explain", "order 19", "--category", "payments:inbox")
	require.Equal(t, 1, unknown.code)
	require.Contains(t, unknown.stderr, `payments:inbox has no request with the key "order 19"`)
	misspelt := dibs.run(t, "explain", "order 17", "--category", "payment:inbox")
	require.Equal(t, 1, misspelt.code)
	require.Contains(t, misspelt.stderr, "payment:inbox")
}
