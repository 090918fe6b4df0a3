package payments_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// order has the bank pay, and returns the answer's status.
func order(t *testing.T, bank http.Handler, token int64) int {
	t.Helper()
	body, err := json.Marshal(payments.Order{Payment: "1", Amount: 10, Token: token})
	require.NoError(t, err)
	w := httptest.NewRecorder()
	bank.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", bytes.NewReader(body)))
	return w.Code
}

func TestTheBankRefusesATokenThatFell(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	bank := payments.NewBank(&log, 0)

	require.Equal(t, 200, order(t, bank, 10))
	require.Equal(t, 200, order(t, bank, 10), "it dedupes nothing")
	require.Equal(t, 200, order(t, bank, 11))
	require.Equal(t, 409, order(t, bank, 10))

	var numbers []int64
	for lines := json.NewDecoder(&log); lines.More(); {
		var c payments.Call
		require.NoError(t, lines.Decode(&c))
		numbers = append(numbers, c.Number)
	}
	require.Equal(t, []int64{1, 2, 3, 0}, numbers)
}

func newAPI(t *testing.T, bank http.Handler) http.Handler {
	t.Helper()
	driver, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "payments.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = driver.Close() })
	txs, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil)))
	require.NoError(t, err)
	outside := httptest.NewServer(bank)
	t.Cleanup(outside.Close)
	api, err := payments.New(txs, func(ctx context.Context, tx *sql.Tx, statement string, args ...any) error {
		_, err := tx.ExecContext(ctx, statement, args...)
		return err
	}, payments.Config{Bank: outside.URL})
	require.NoError(t, err)
	require.NoError(t, api.CreateTable(t.Context()))
	return api
}

func pay(t *testing.T, api http.Handler, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/accounts/1/payments", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", "29401/1998-12")
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return w
}

const payment = `{"id":"29401/1998-12","account":"1","to":"YZ/87144583","amount":245200}`

func TestAPaymentIsMadeOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	api := newAPI(t, payments.NewBank(&log, 0))

	first, second := pay(t, api, payment), pay(t, api, payment)
	other := pay(t, api, strings.Replace(payment, "245200", "245201", 1))

	require.Equal(t, 201, first.Code, first.Body)
	require.JSONEq(t, `{"id":"29401/1998-12","number":1}`, first.Body.String())
	require.Equal(t, "/accounts/1/payments/29401/1998-12", first.Header().Get("Location"))
	require.Equal(t, first.Body.String(), second.Body.String())
	require.Equal(t, 422, other.Code)
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
}

func TestAPaymentThatTheBankDoesNotMakeIsTriedAgain(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	bank, closed := payments.NewBank(&log, 0), true
	api := newAPI(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if closed {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		bank.ServeHTTP(w, r)
	}))

	require.Equal(t, 502, pay(t, api, payment).Code)
	closed = false
	require.Equal(t, 201, pay(t, api, payment).Code)
}

func TestABodyThatIsNoPaymentIsRefusedForGood(t *testing.T) {
	t.Parallel()
	api := newAPI(t, http.NotFoundHandler())

	require.Equal(t, 400, pay(t, api, `{"id":""}`).Code)
	require.Equal(t, "true", pay(t, api, `{"id":""}`).Header().Get("Idempotent-Replayed"))
}
