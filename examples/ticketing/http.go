package ticketing

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// routes returns the service's HTTP handler: it takes requests for seats and shows their answers.
func routes(store *messagestore.TxStore[pgx.Tx]) (http.Handler, error) {
	once, err := reservation.New(store, "seats", nil) // it only looks
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()

	// A client that gets no response sends the request again, with the same key.
	mux.HandleFunc("POST /seats/{seat}/holds", func(w http.ResponseWriter, r *http.Request) {
		var c HoldSeat
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&c); err != nil || c.Email == "" {
			http.Error(w, "a hold is JSON with an email", http.StatusBadRequest)
			return
		}
		key, err := idempotency.KeyOf(r.Header)
		if err == nil {
			c.Key, c.Seat = key, r.PathValue("seat") // and not the body's
			_, err = once.Stream(commands.Stream(c.Seat), c.Key)
		}
		if err == nil {
			_, err = store.Write(r.Context(), commands.Stream(c.Seat), messagestore.AnyVersion, c)
		}
		switch {
		case errors.Is(err, messagestore.ErrInvalid): // a key or a seat that can be no name
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil: // also if the outcome is unknown: the key makes the next attempt harmless
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.Header().Set("Location", "/seats/"+url.PathEscape(c.Seat)+"/holds/"+url.PathEscape(c.Key))
			w.WriteHeader(http.StatusAccepted)
		}
	})

	mux.HandleFunc("GET /seats/{seat}/holds/{key}", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second) // and then the client asks again
		defer cancel()
		effect, err := once.Await(ctx, commands.Stream(r.PathValue("seat")), r.PathValue("key"))
		switch {
		case errors.Is(err, messagestore.ErrInvalid):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case errors.Is(err, context.DeadlineExceeded): // not decided yet, or never asked for
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusAccepted)
		case err != nil:
			http.Error(w, "try again", http.StatusServiceUnavailable)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(effect.Answer)
		}
	})
	return mux, nil
}
