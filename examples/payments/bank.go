package payments

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// An Order asks the bank to pay.
type Order struct {
	Payment string `json:"payment"`
	Account string `json:"account"`
	To      string `json:"to"`
	Amount  int64  `json:"amount"`
	Token   int64  `json:"token"` // fencing token of the lease on the payment
	Session string `json:"session"`
}

// A Call is a line of the bank's log: an order, and its answer.
type Call struct {
	Order
	At     time.Time `json:"at"`
	Number int64     `json:"number,omitempty"` // of the transfer; 0 for an order that was refused
}

// A Bank carries out every order that it gets, as often as it gets it, without deduplication. It
// keeps, for each payment, the greatest fencing token that it has seen, and refuses orders with a
// smaller token. It logs each call. It is safe for concurrent use.
type Bank struct {
	delay time.Duration

	mu     sync.Mutex
	log    *json.Encoder
	tokens map[string]int64
	number int64
}

// NewBank returns a bank that logs to w, and takes its time for each order.
func NewBank(w io.Writer, delay time.Duration) *Bank {
	return &Bank{delay: delay, log: json.NewEncoder(w), tokens: map[string]int64{}}
}

// ServeHTTP serves POST /orders. An order that comes too late is answered with 409.
func (b *Bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o Order
	if r.Method != http.MethodPost || r.URL.Path != "/orders" || json.NewDecoder(r.Body).Decode(&o) != nil {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	number, err := b.pay(o)
	time.Sleep(b.delay)
	switch {
	case err != nil:
		http.Error(w, "the log cannot be written", http.StatusInternalServerError)
	case number == 0:
		http.Error(w, "a later holder was here", http.StatusConflict)
	default:
		fmt.Fprintf(w, `{"number":%d}`, number)
	}
}

// pay returns the number of the transfer, or 0 for an order that comes too late.
func (b *Bank) pay(o Order) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	call := Call{Order: o, At: time.Now().UTC()}
	if o.Token >= b.tokens[o.Payment] {
		b.tokens[o.Payment] = o.Token
		b.number++
		call.Number = b.number
	}
	return call.Number, b.log.Encode(call)
}
