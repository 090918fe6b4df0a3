package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/messagestore/postgres/postgrestest"
)

// The service of the tutorial, on PostgreSQL, through its front door: a deposit that is sent
// three times is booked once, and the service ends when it is told to.
func TestTheServiceBooksADepositOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	service := "http://" + listener.Addr().String()
	database := postgrestest.URL(t, nil)
	done := make(chan error, 1)
	go func() { done <- serve(ctx, database, listener) }()

	for range 3 {
		require.Equal(t, http.StatusAccepted, request(t, http.MethodPut, service+"/deposits/d1", `{"account":"123","amount":1000}`, nil))
	}
	require.Equal(t, http.StatusAccepted, request(t, http.MethodPut, service+"/deposits/d2", `{"account":"123","amount":1}`, nil))

	var account Account
	testkit.Await(t, "both deposits, each once", func() (bool, any) {
		status := request(t, http.MethodGet, service+"/accounts/123", "", &account)
		return status == http.StatusOK && account.Balance == 1001, fmt.Sprint(status, " ", account)
	})
	require.Equal(t, http.StatusBadRequest, request(t, http.MethodPut, service+"/deposits/d3", `{"amount":"ten"}`, nil))
	require.Equal(t, http.StatusBadRequest, request(t, http.MethodPut, service+"/deposits/d3", `{"account":"","amount":1}`, nil))
	for _, id := range []string{"%ff", "%fe"} { // no UTF-8, so as texts they would be one key
		require.Equal(t, http.StatusBadRequest, request(t, http.MethodPut, service+"/deposits/"+id, `{"account":"123","amount":1}`, nil))
	}
	require.Equal(t, http.StatusOK, request(t, http.MethodGet, service+"/ready", "", nil))
	cancel()
	require.NoError(t, testkit.Receive(t, "the end of the service", done))
}

// The probe says why it fails, and the service does not start without the right to write.
func TestTheServiceChecksItsRights(t *testing.T) {
	t.Parallel()
	database := postgrestest.URL(t, nil)
	at, err := url.Parse(database)
	require.NoError(t, err)
	query := at.Query()
	query.Set("options", "-c role=dibs_reader")
	at.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	reader := at.String()
	listener, err := net.Listen("tcp", "localhost:0")
	require.NoError(t, err)
	defer listener.Close()
	require.ErrorIs(t, serve(t.Context(), reader, listener), messagestore.ErrNotPermitted)

	driver, err := postgres.Open(t.Context(), reader, nil)
	require.NoError(t, err)
	defer driver.Close()
	store, err := messagestore.New(driver, nil)
	require.NoError(t, err)
	mux, err := routes(store)
	require.NoError(t, err)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ready", nil))
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Contains(t, answer.Body.String(), "grant dibs_writer")
}

func request(t *testing.T, method, url, body string, into any) (status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	if into != nil && answer.StatusCode == http.StatusOK {
		require.NoError(t, json.NewDecoder(answer.Body).Decode(into))
	}
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	return answer.StatusCode
}
