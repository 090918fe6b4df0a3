package inbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A transfer over HTTP: the row, the event and the answer are one transaction.
func ExampleInbox_Receive() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "inbox")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	driver, err := sqlite.Open(ctx, filepath.Join(dir, "bank.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer driver.Close()
	store, err := messagestore.New(driver, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	txs, err := messagestore.Transactional[*sql.Tx](store)
	if err != nil {
		fmt.Println(err)
		return
	}
	u, err := inbox.New(txs, "payments", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, "create table transfers (id text primary key, amount int)")
		return nil, err
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	transfer := func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Amount int `json:"amount"`
		}
		var data json.RawMessage
		if json.NewDecoder(r.Body).Decode(&data) != nil || json.Unmarshal(data, &body) != nil {
			http.Error(w, "a transfer is JSON with an amount", http.StatusBadRequest)
			return
		}
		key, err := idempotency.KeyOf(r.Header)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := u.Receive(r.Context(), inbox.Request{ID: key, Source: "POST /transfers", Data: data},
			func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
				_, err := tx.ExecContext(ctx, "insert into transfers values (?, ?)", key, body.Amount)
				return []messagestore.StreamWrite{
					reservation.Answer(map[string]string{"transfer": key}),
					messagestore.To(messagestore.Category("payment").Stream(key), messagestore.NoStream, Deposited{body.Amount}),
				}, err
			})
		switch {
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		case result.Outcome == reservation.KeyReused:
			http.Error(w, "the key is another transfer's", http.StatusUnprocessableEntity)
		default:
			fmt.Fprintln(w, string(result.Answer))
		}
	}
	for _, amount := range []int{10, 10, 11} {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/transfers", strings.NewReader(fmt.Sprintf(`{"amount":%d}`, amount)))
		r.Header.Set("Idempotency-Key", "k1")
		w := httptest.NewRecorder()
		transfer(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 {"transfer":"k1"}
	// 200 {"transfer":"k1"}
	// 422 the key is another transfer's
}
