package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/reservation"
)

// An Accepted is the answer to an order, the same to each copy of it.
type Accepted struct {
	Transfer string `json:"transfer"`
}

// A Progress is the answer to GET /transfers/ID.
type Progress struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why it is undone
	Number int64  `json:"number,omitempty"` // of the bank's payment
}

// Handler returns the handler of POST /transfers, GET /transfers/ID, and POST /webhooks/bank.
func (s *Service[Tx]) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /transfers", s.order)
	mux.HandleFunc("GET /transfers/{id}", s.progress)
	mux.HandleFunc("POST /webhooks/bank", s.webhook)
	return mux
}

// maxBody bounds the bodies of requests.
const maxBody = 64 << 10

// order takes an order, once for its key, and starts its saga in the same transaction. An answer of
// 2xx and 4xx is for good; after any other, and after none, the customer sends the order again.
func (s *Service[Tx]) order(w http.ResponseWriter, r *http.Request) {
	var t Transfer
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil || json.Unmarshal(body, &t) != nil || t.From == "" || t.To == "" || t.Amount <= 0 {
		http.Error(w, "no transfer", http.StatusBadRequest)
		return
	}
	if t.ID, err = idempotency.KeyOf(r.Header); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result, err := s.orders.Receive(r.Context(), inbox.Request{ID: t.ID, Source: "POST /transfers", Data: body},
		func(context.Context, Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{reservation.Answer(Accepted{t.ID}), s.Transfers.Start(t.ID, t)}, nil
		})
	answer(w, result, err, http.StatusAccepted)
}

// webhook takes a notice of the bank, once for its id, and replies to the saga in the same
// transaction.
func (s *Service[Tx]) webhook(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil && s.config.Verify != nil {
		if s.config.Verify(r.Header, body) != nil {
			http.Error(w, "not signed by the bank", http.StatusUnauthorized)
			return
		}
	}
	var n Notice
	if err != nil || json.Unmarshal(body, &n) != nil {
		http.Error(w, "no notice", http.StatusBadRequest)
		return
	}
	result, err := s.webhooks.Receive(r.Context(), inbox.Request{ID: n.ID, Source: "POST /webhooks/bank", Data: body},
		func(context.Context, Tx) ([]messagestore.StreamWrite, error) { return s.reply(n), nil })
	if errors.Is(err, messagestore.ErrVersionConflict) {
		http.Error(w, "no such order", http.StatusNotFound)
		return
	}
	answer(w, result, err, http.StatusOK)
}

// answer answers a request that was received. The customer does not see the text of an error.
func answer(w http.ResponseWriter, result reservation.Result, err error, status int) {
	switch {
	case errors.Is(err, messagestore.ErrInvalid), errors.Is(err, reservation.ErrInvalidKey):
		http.Error(w, "no valid request", http.StatusBadRequest)
	case err != nil: // it may have been carried out: the next copy tells
		http.Error(w, "try again", http.StatusServiceUnavailable)
	case result.Outcome == reservation.KeyReused:
		http.Error(w, "the key was used for another request", http.StatusUnprocessableEntity)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(result.Answer) // a client that is gone asks again
	}
}

func (s *Service[Tx]) progress(w http.ResponseWriter, r *http.Request) {
	status, err := s.Transfers.Status(r.Context(), r.PathValue("id"))
	switch {
	case errors.Is(err, messagestore.ErrNotFound), errors.Is(err, messagestore.ErrInvalid):
		http.Error(w, "no such transfer", http.StatusNotFound)
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Progress{string(status.State), status.Reason, status.Out.Number})
	}
}
