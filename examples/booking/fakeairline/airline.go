// Package fakeairline is an airline for tests and the demo: it books each Idempotency-Key once, and
// has bad days.
package fakeairline

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// An Airline serves POST /bookings and DELETE /bookings/KEY. The zero Airline is ready to use, by
// several goroutines.
type Airline struct {
	mu       sync.Mutex
	bookings map[string]string // references by key, "" for a cancelled booking
	issued   int
	away     int
	dropped  int
}

// Away has the airline answer the next n calls with 503.
func (a *Airline) Away(n int) { a.set(&a.away, n) }

// Drop has the airline carry out the next n calls, and drop the answers.
func (a *Airline) Drop(n int) { a.set(&a.dropped, n) }

func (a *Airline) set(field *int, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*field = n
}

// Tickets returns how many tickets were issued, and how many of these were not cancelled.
func (a *Airline) Tickets() (issued, valid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, reference := range a.bookings {
		if reference != "" {
			valid++
		}
	}
	return a.issued, valid
}

// ServeHTTP implements [http.Handler].
func (a *Airline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bookings == nil {
		a.bookings = map[string]string{}
	}
	if a.away > 0 {
		a.away--
		http.Error(w, "come back later", http.StatusServiceUnavailable)
		return
	}
	var answer string
	if key, is := strings.CutPrefix(r.URL.Path, "/bookings/"); is && r.Method == http.MethodDelete {
		a.bookings[key] = ""
	} else if answer = a.book(r); answer == "" {
		http.Error(w, "no seat", http.StatusConflict)
		return
	}
	if a.dropped > 0 {
		a.dropped--
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"reference": answer})
}

// book returns a reference, or "" without a free seat.
func (a *Airline) book(r *http.Request) string {
	key := r.Header.Get("Idempotency-Key")
	var wanted struct {
		City string `json:"city"`
	}
	if reference, known := a.bookings[key]; known {
		return reference // "" if the cancel came first
	}
	if json.NewDecoder(r.Body).Decode(&wanted) != nil || wanted.City == "Atlantis" {
		return ""
	}
	a.issued++
	a.bookings[key] = fmt.Sprintf("F%03d", a.issued)
	return a.bookings[key]
}
