// Package bank is the other company of the demo: a bank with a ledger in SQLite, an HTTP API and
// bad days. It does not use Dibs.
//
// It pays an order once, however often the order comes, and remembers an order that was cancelled
// before it was paid. When it has paid, refused or cancelled, it calls a webhook, one to three
// times.
package bank

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the driver sqlite of database/sql
)

// The states of a payment.
const (
	Paid      = "paid"
	Refused   = "refused"
	Cancelled = "cancelled" // before it was paid
	Reversed  = "reversed"  // after it was paid
)

const schema = `
create table if not exists payments (
  number integer primary key autoincrement,
  order_id text not null unique,
  state text not null,
  at integer not null,
  ended integer not null
);
create table if not exists entries (
  id integer primary key autoincrement,
  order_id text not null,
  amount integer not null,
  at integer not null
);
create table if not exists webhooks (
  id text primary key,
  order_id text not null,
  body text not null,
  copies integer not null,
  sent integer not null default 0
);
create index if not exists webhooks_unsent on webhooks (copies) where copies > 0;
create index if not exists entries_order on entries (order_id);
`

// Open opens a ledger in a file, and makes its tables.
func Open(ctx context.Context, path string) (*sql.DB, error) {
	pragmas := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(wal)", "synchronous(full)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+path+"?"+pragmas.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// A Bank serves POST /orders. It is safe for concurrent use.
type Bank struct {
	ledger  *sql.DB
	webhook string
	seed    uint64
	client  *http.Client

	mu     sync.Mutex
	visits map[string]int  // of a command, since the process started
	asleep map[string]bool // orders with which a clerk has gone to sleep
	late   sync.WaitGroup
}

// New returns a bank that keeps its accounts in a ledger, and posts webhooks to a URL. The seed
// determines the bank's mood for each order.
func New(ledger *sql.DB, webhook string, seed uint64) *Bank {
	return &Bank{
		ledger: ledger, webhook: webhook, seed: seed,
		client: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders}},
		visits: map[string]int{}, asleep: map[string]bool{},
	}
}

// A command is the body of POST /orders.
type command struct {
	Do     string `json:"do"`
	Order  string `json:"order"`
	From   string `json:"from"`
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

// A Mood is how the bank treats a command.
type Mood int

// The moods of the bank.
const (
	Prompt Mood = iota
	Refuses
	Fails   // fails with 503, one to three times, and then does it
	Hangs   // does it some seconds later, though the client has hung up meanwhile
	Drops   // does it, and closes the connection in place of an answer
	Delays  // answers 202, and does it some seconds later unless it is killed first
	Absents // answers 202, and does it only when the client has stopped waiting: after a cancel, or much later
)

// draw returns a number below n that follows from the seed and a text.
func (b *Bank) draw(n uint64, text string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", b.seed, text)
	x := h.Sum64()
	x ^= x >> 31 // the low bits of FNV depend on the last letter alone
	x *= 0x9e3779b97f4a7c15
	return (x >> 33) % n
}

// MoodOf returns how the bank treats an order.
func (b *Bank) MoodOf(order string) Mood {
	switch p := b.draw(100, "mood "+order); {
	case p < 8:
		return Refuses
	case p < 16:
		return Fails
	case p < 19:
		return Hangs
	case p < 27:
		return Drops
	case p < 37:
		return Delays
	case p < 39:
		return Absents
	}
	return Prompt
}

// ServeHTTP implements [http.Handler].
func (b *Bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c command
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&c)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/orders" || c.Order == "" || c.Do != "pay" && c.Do != "cancel" {
		http.Error(w, "no order", http.StatusBadRequest)
		return
	}
	visit := b.visit(c)
	mood := b.MoodOf(c.Order)
	if c.Do == "cancel" && mood != Fails && mood != Drops {
		mood = Prompt
	}
	ctx := context.WithoutCancel(r.Context()) // a client that hangs up changes nothing
	switch {
	case mood == Fails && visit <= 1+int(b.draw(3, "fails "+c.Order)): //nolint:gosec // below 3
		http.Error(w, "the bank has a bad day", http.StatusServiceUnavailable)
		return
	case mood == Hangs && b.sleeps(c.Order, visit):
		w.WriteHeader(http.StatusAccepted) // a colleague sees that a clerk has it already
		return
	case mood == Hangs && visit == 1:
		b.dawdle(c.Order, 1500, 4000)
	case mood == Delays:
		b.later(ctx, c, func() error { b.dawdle(c.Order, 100, 2000); return nil })
		w.WriteHeader(http.StatusAccepted)
		return
	case mood == Absents:
		b.later(ctx, c, func() error { return b.awaitCancel(ctx, c.Order) })
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if err := b.carryOut(ctx, c); err != nil {
		http.Error(w, "the ledger is closed", http.StatusInternalServerError)
		return
	}
	if mood == Drops && visit == 1 {
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
	w.WriteHeader(http.StatusOK)
}

// dawdle takes some milliseconds of an order's own.
func (b *Bank) dawdle(order string, from, to uint64) {
	<-time.After(time.Duration(from+b.draw(to-from, "span "+order)) * time.Millisecond) //nolint:gosec // some seconds
}

func (b *Bank) visit(c command) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := c.Do + " " + c.Order
	b.visits[key]++
	return b.visits[key]
}

// sleeps reports whether a clerk has gone to sleep with an order before.
func (b *Bank) sleeps(order string, visit int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.asleep[order]
	b.asleep[order] = before || visit == 1
	return before
}

// later carries out a command after something else. If the bank is killed meanwhile, the command is
// lost.
func (b *Bank) later(ctx context.Context, c command, after func() error) {
	b.late.Go(func() {
		if after() == nil {
			_ = b.carryOut(ctx, c) // a clerk of this bank does not try twice
		}
	})
}

// awaitCancel returns when an order has been cancelled, or after minutes.
func (b *Bank) awaitCancel(ctx context.Context, order string) error {
	const interval, most = 200 * time.Millisecond, 5 * time.Minute
	for begun := time.Now(); time.Since(begun) < most; <-time.After(interval) {
		var has bool
		err := b.ledger.QueryRowContext(ctx, "select exists (select 1 from payments where order_id = $1)", order).Scan(&has)
		if err != nil || has {
			return err
		}
	}
	return nil
}

// carryOut pays or refuses an order, or cancels it, once.
func (b *Bank) carryOut(ctx context.Context, c command) error {
	tx, err := b.ledger.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	var state string
	err = tx.QueryRowContext(ctx, "select state from payments where order_id = $1", c.Order).Scan(&state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	switch next := b.next(c, state); next {
	case "":
		return nil
	case Reversed:
		err = b.reverse(ctx, tx, c)
	default:
		err = b.enter(ctx, tx, c, next)
	}
	if err != nil {
		return err
	}
	return tx.Commit()
}

// next returns the state in which a command leaves an order, "" if it changes nothing.
func (b *Bank) next(c command, state string) string {
	switch {
	case c.Do == "pay" && state == "" && b.MoodOf(c.Order) == Refuses:
		return Refused
	case c.Do == "pay" && state == "":
		return Paid
	case c.Do == "cancel" && state == "":
		return Cancelled
	case c.Do == "cancel" && state == Paid:
		return Reversed
	}
	return ""
}

// enter enters an order that the ledger does not have.
func (b *Bank) enter(ctx context.Context, tx *sql.Tx, c command, state string) error {
	now := time.Now().UnixMicro()
	var number int64
	err := tx.QueryRowContext(ctx, "insert into payments (order_id, state, at, ended) values ($1, $2, $3, $3) returning number", c.Order, state, now).Scan(&number)
	if err == nil && state == Paid {
		_, err = tx.ExecContext(ctx, "insert into entries (order_id, amount, at) values ($1, $2, $3)", c.Order, c.Amount, now)
	}
	if err != nil {
		return err
	}
	return b.tell(ctx, tx, c.Order, state, number)
}

// reverse takes a payment back.
func (b *Bank) reverse(ctx context.Context, tx *sql.Tx, c command) error {
	now := time.Now().UnixMicro()
	_, err := tx.ExecContext(ctx, "insert into entries (order_id, amount, at) select order_id, -amount, $2 from entries where order_id = $1", c.Order, now)
	if err == nil {
		_, err = tx.ExecContext(ctx, "update payments set state = $2, ended = $3 where order_id = $1", c.Order, Reversed, now)
	}
	if err != nil {
		return err
	}
	return b.tell(ctx, tx, c.Order, Cancelled, 0)
}

// A notice is the body of a webhook.
type notice struct {
	ID      string `json:"id"`
	Order   string `json:"order"`
	Outcome string `json:"outcome"`
	Number  int64  `json:"number,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// tell enters a webhook to be sent one to three times.
func (b *Bank) tell(ctx context.Context, tx *sql.Tx, order, outcome string, number int64) error {
	n := notice{ID: outcome + "/" + order, Order: order, Outcome: outcome}
	switch outcome {
	case Paid:
		n.Number = number
	case Refused:
		n.Reason = "the bank does not know the receiver"
	}
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "insert into webhooks (id, order_id, body, copies) values ($1, $2, $3, $4)", n.ID, order, string(body), 1+b.draw(3, "copies "+n.ID))
	return err
}

// senders is how many webhooks are under way at a time.
const senders = 8

// Run sends webhooks until ctx is done. It sends each as often as planned, or more often if the
// bank was killed.
func (b *Bank) Run(ctx context.Context) error {
	for {
		sent, err := b.send(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return err
		case sent > 0:
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// send sends a copy of each pending webhook, and returns how many were taken.
func (b *Bank) send(ctx context.Context) (taken int, err error) {
	rows, err := b.ledger.QueryContext(ctx, "select id, body from webhooks where copies > 0 order by sent limit 256")
	if err != nil {
		return 0, err
	}
	all := map[string]string{}
	for rows.Next() {
		var id, body string
		if err := rows.Scan(&id, &body); err != nil {
			return 0, errors.Join(err, rows.Close())
		}
		all[id] = body
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, err
	}
	var sending errgroup.Group
	sending.SetLimit(senders)
	var mu sync.Mutex
	var sent []any
	for id, body := range all {
		sending.Go(func() error {
			if b.post(ctx, body) {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, id)
			}
			return nil // one that was not taken is sent again
		})
	}
	_ = sending.Wait() // none fails
	if len(sent) == 0 {
		return 0, nil
	}
	_, err = b.ledger.ExecContext(ctx, "update webhooks set copies = copies - 1, sent = sent + 1 where id in (?"+strings.Repeat(", ?", len(sent)-1)+")", sent...)
	return len(sent), err
}

// post sends a webhook, and reports whether it was taken.
func (b *Bank) post(ctx context.Context, body string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, b.webhook, bytes.NewReader([]byte(body)))
	if err != nil {
		return false
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := b.client.Do(r)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode/100 == 2
}
