package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

// Two requests with one key, of which the second is the client's retry.
func ExampleNew() {
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(intents, &idempotency.Config{Scope: func(r *http.Request) (string, error) {
		user, _, ok := r.BasicAuth()
		if !ok {
			return "", errors.New("no credentials")
		}
		return user, nil
	}})
	if err != nil {
		log.Fatal(err)
	}
	payments := 0
	pay := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	}))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount": 10}`))
		r.SetBasicAuth("alice", "secret")
		r.Header.Set("Idempotency-Key", "29401/1998-12")
		w := httptest.NewRecorder()
		pay.ServeHTTP(w, r)
		fmt.Printf("%d %s, replayed: %q\n", w.Code, w.Body, w.Header().Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 payment 1, replayed: ""
	// 201 payment 1, replayed: "true"
}

// The payment and the response to its request are committed together.
func ExampleResponse_Write() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "payments")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	driver, err := sqlite.Open(ctx, filepath.Join(folder, "payments.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer driver.Close()
	store, err := messagestore.New(driver, nil)
	if err != nil {
		log.Fatal(err)
	}
	txs, err := messagestore.Transactional[*sql.Tx](store)
	if err != nil {
		log.Fatal(err)
	}
	intents, err := intent.New(txs.Store, "payment:intent", nil)
	if err != nil {
		log.Fatal(err)
	}
	once, err := idempotency.New(intents, &idempotency.Config{Scope: idempotency.Public})
	if err != nil {
		log.Fatal(err)
	}

	pay := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context() // it has the lease
		_, err := txs.Transact(ctx, func(_ context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			if _, err := tx.ExecContext(ctx, "create table payments (amount integer)"); err != nil { // an effect that happens once
				return nil, err
			}
			return idempotency.Response{Status: http.StatusCreated, Body: []byte("paid")}.Write(ctx)
		})
		if err != nil { // sent only if nothing was committed
			http.Error(w, "not paid", http.StatusInternalServerError)
		}
	}))

	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", "29401/1998-12")
		w := httptest.NewRecorder()
		pay.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 201 paid
	// 201 paid
}
