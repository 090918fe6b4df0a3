// Request books a deposit over HTTP with SQL of its own, once for each Idempotency-Key. The
// database of DATABASE_URL has the schema of Dibs: dibs migrate up.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation"
)

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	mux, err := routes(context.Background(), pool)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}

func routes(ctx context.Context, pool *pgxpool.Pool) (http.Handler, error) {
	if _, err := pool.Exec(ctx, "create table if not exists deposits (id text primary key, amount int not null)"); err != nil {
		return nil, err
	}
	driver, err := postgres.New(pool, nil)
	if err != nil {
		return nil, err
	}
	messages, err := messagestore.New(driver, nil)
	if err != nil {
		return nil, err
	}
	store, err := messagestore.Transactional[pgx.Tx](messages)
	if err != nil {
		return nil, err
	}
	deposits, err := inbox.New(store, "deposit", nil)
	if err != nil {
		return nil, err
	}

	mux := http.NewServeMux()
	mux.HandleFunc("POST /deposits", func(w http.ResponseWriter, r *http.Request) {
		id, amount, body, err := read(w, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		request := inbox.Request{ID: id, Source: "POST /deposits", Data: body}
		result, err := deposits.Receive(r.Context(), request, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
			_, err := tx.Exec(ctx, "insert into deposits values ($1, $2)", id, amount)
			return []messagestore.StreamWrite{reservation.Answer(Booked{id, amount})}, err // committed together, or nothing is
		})
		if err == nil {
			err = result.Err() // the key was used for another deposit: nothing was booked, and there is no answer
		}
		answer(w, result.Answer, err) // the same to each copy of the request
	})
	return mux, nil
}

// Booked is the answer to a deposit.
type Booked struct {
	Deposit string `json:"deposit"`
	Amount  int    `json:"amount"`
}

// read returns the key, the amount and the body of a request.
func read(w http.ResponseWriter, r *http.Request) (id string, amount int, body json.RawMessage, err error) {
	var d struct {
		Amount int `json:"amount"`
	}
	body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
	if err != nil || json.Unmarshal(body, &d) != nil || d.Amount <= 0 {
		return "", 0, nil, errors.New("a deposit is JSON with an amount above 0")
	}
	id, err = idempotency.KeyOf(r.Header)
	return id, d.Amount, body, err
}

func answer(w http.ResponseWriter, booked json.RawMessage, err error) {
	_, reused := errors.AsType[*reservation.KeyReusedError](err)
	switch {
	case reused:
		http.Error(w, "the key was used for another deposit", http.StatusUnprocessableEntity)
	case errors.Is(err, messagestore.ErrInvalid), errors.Is(err, reservation.ErrInvalidKey):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil: // it may be booked: the next copy of the request tells
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(booked, '\n'))
	}
}
