package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Intents is the category of the requests' intents. Payments of one category are committed side by
// side: their transactions share its lock.
const Intents messagestore.Category = "payment:intent"

// A Payment is the body of POST /accounts/ACCOUNT/payments. Its ID is the request's idempotence key
// too.
type Payment struct {
	ID      string `json:"id"`
	Account string `json:"account"`
	To      string `json:"to"`
	Amount  int64  `json:"amount"` // in hundredths
}

// A Receipt is the response.
type Receipt struct {
	ID     string `json:"id"`
	Number int64  `json:"number"` // the bank's, of its order
}

// Config changes how the API works.
type Config struct {
	// Table is the name of the payments table, in SQL.
	//
	// Defaults to payments.
	Table string

	// Bank is the URL of the bank. It is required.
	Bank string

	// Name begins the sessions of this server. See [intent.Config].
	Name string

	// Review looks at a payment before it is ordered, under the lease of its request. An error is
	// answered with 502, and the next request with the key tries again.
	//
	// Defaults to no look.
	Review func(ctx context.Context, p Payment) error

	// TTL is how long a lease lasts without an extension.
	//
	// Defaults to 15 seconds.
	TTL time.Duration

	// Logger receives the events of intents and requests.
	Logger logger.Logger
}

// API is the handler of POST /accounts/ACCOUNT/payments. The account stands for the client, and is
// the scope of its keys; another API asks the client's credentials. Tx is the type of the store's
// transactions.
type API[Tx any] struct {
	txs    *messagestore.TxStore[Tx]
	exec   Exec[Tx]
	config Config
	bank   *http.Client
	once   http.Handler
}

// An Exec executes a statement of SQL in a transaction.
type Exec[Tx any] func(ctx context.Context, tx Tx, statement string, args ...any) error

// New returns the API over a store and the bank of config.
func New[Tx any](txs *messagestore.TxStore[Tx], exec Exec[Tx], config Config) (*API[Tx], error) {
	if config.Table == "" {
		config.Table = "payments"
	}
	a := &API[Tx]{txs: txs, exec: exec, config: config, bank: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxConnsPerHost: bankConnections, MaxIdleConnsPerHost: bankConnections},
	}}
	intents, err := intent.New(txs.Store, Intents, &intent.Config{Name: config.Name, TTL: config.TTL, Logger: config.Logger})
	if err != nil {
		return nil, err
	}
	once, err := idempotency.New(intents, &idempotency.Config{
		Scope:  func(r *http.Request) (string, error) { return r.PathValue("account"), nil },
		Logger: config.Logger,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{account}/payments", once.Handler(http.HandlerFunc(a.pay)))
	a.once = mux
	return a, nil
}

// CreateTable creates the payments table.
func (a *API[Tx]) CreateTable(ctx context.Context) error {
	_, err := a.txs.Transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		return nil, a.exec(ctx, tx, "create table "+a.config.Table+" (id text primary key, account text not null, amount bigint not null, receipt bigint not null, fencing_token bigint not null)")
	})
	return err
}

// ServeHTTP serves the API.
func (a *API[Tx]) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.once.ServeHTTP(w, r) }

// pay handles a request that is not done yet, and that no other server has at the same time, as
// far as clocks go.
func (a *API[Tx]) pay(w http.ResponseWriter, r *http.Request) {
	var p Payment
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.ID == "" || p.Amount <= 0 || p.Account != r.PathValue("account") {
		http.Error(w, "no payment", http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	lease := idempotency.Lease(ctx)
	if err := lease.Err(); err != nil { // before each effect outside
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	// Between the look at the lease and the order there is always some time, in which a process may
	// be stopped: the token is for that.
	if a.config.Review != nil {
		if err := a.config.Review(ctx, p); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
	}
	number, err := a.order(ctx, Order{p.ID, p.Account, p.To, p.Amount, lease.Token(), lease.Session()})
	if err != nil { // not stored: the next request with the key tries again
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	_, err = a.txs.Transact(ctx, func(_ context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		err := a.exec(ctx, tx, "insert into "+a.config.Table+" (id, account, amount, receipt, fencing_token) values ($1, $2, $3, $4, $5)",
			p.ID, p.Account, p.Amount, number, lease.Token())
		if err != nil {
			return nil, err
		}
		body, err := json.Marshal(Receipt{p.ID, number})
		if err != nil {
			return nil, err
		}
		return idempotency.Response{
			Status: http.StatusCreated,
			Header: http.Header{"Content-Type": {"application/json"}, "Location": {"/accounts/" + p.Account + "/payments/" + p.ID}},
			Body:   body,
		}.Write(ctx)
	})
	if err != nil { // sent only if nothing was committed
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// bankConnections is how many orders the bank takes at once from one server: more wait.
const bankConnections = 8

// order has the bank pay. An order is not cancelled when the lease is lost, because it may have
// arrived: the token tells the bank that it is late.
func (a *API[Tx]) order(ctx context.Context, o Order) (number int64, err error) {
	ctx = context.WithoutCancel(ctx)
	body, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.config.Bank+"/orders", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := a.bank.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the bank answers %s", response.Status)
	}
	var answer struct{ Number int64 }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Number < 1 {
		return 0, errors.New("the bank gives no number")
	}
	return answer.Number, nil
}
