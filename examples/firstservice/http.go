package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/messagestore"
)

// routes returns the service's HTTP handler: it takes deposits and shows balances.
func routes(store *messagestore.Store) (http.Handler, error) {
	balances, err := entity.New(store, accounts, projection(), nil)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()

	// A client that gets no answer sends the request again, under the same id.
	mux.HandleFunc("PUT /deposits/{id}", func(w http.ResponseWriter, r *http.Request) {
		d := Deposit{ID: r.PathValue("id")}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&d); err != nil || d.ID != r.PathValue("id") {
			http.Error(w, "a deposit is JSON with an account and an amount", http.StatusBadRequest)
			return
		}
		_, err := store.Write(r.Context(), commands.Stream(d.Account), messagestore.AnyVersion, d)
		switch {
		case errors.Is(err, messagestore.ErrInvalid): // an account that can be no stream's name, say
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})

	mux.HandleFunc("GET /accounts/{id}", func(w http.ResponseWriter, r *http.Request) {
		account, _, err := balances.Get(r.Context(), r.PathValue("id"))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(account)
	})

	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := store.Check(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux, nil
}
