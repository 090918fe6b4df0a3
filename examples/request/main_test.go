package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/pgtest"
)

func TestADepositThatIsSentTwiceIsBookedOnce(t *testing.T) {
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	mux, err := routes(t.Context(), pool)
	require.NoError(t, err)
	send := func(key, body string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/deposits", strings.NewReader(body))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code, strings.TrimSpace(w.Body.String())
	}

	for _, c := range []struct {
		key, body string
		code      int
		answer    string
	}{
		{"d1", `{"amount":10}`, http.StatusOK, `{"deposit":"d1","amount":10}`},
		{"d1", `{"amount":10}`, http.StatusOK, `{"deposit":"d1","amount":10}`},
		{`"d1"`, `{"amount":10}`, http.StatusOK, `{"deposit":"d1","amount":10}`}, // as RFC 8941 writes it
		{"d1", `{"amount":11}`, http.StatusUnprocessableEntity, "the key was used for another deposit"},
		{"d2", `{"amount":-1}`, http.StatusBadRequest, ""},
		{"", `{"amount":10}`, http.StatusBadRequest, ""},
	} {
		code, answer := send(c.key, c.body)
		require.Equal(t, c.code, code, answer)
		if c.answer != "" {
			require.Equal(t, c.answer, answer)
		}
	}

	var count, sum int
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*), sum(amount) from deposits").Scan(&count, &sum))
	require.Equal(t, []int{1, 10}, []int{count, sum})
}
