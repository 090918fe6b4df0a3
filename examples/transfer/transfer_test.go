package transfer_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// A fakeBank is the bank's API without a bank: it keeps each order once, remembers one that was
// cancelled first, and tells by a webhook.
type fakeBank struct {
	webhook func(n transfer.Notice)

	mu       sync.Mutex
	states   map[string]string // by order
	payments int               // also those that were taken back
	commands []string          // as they came
	away     int               // calls that are answered with 503
	dropped  int               // calls that are carried out, and not answered
	refuses  bool
	silent   bool // it pays, and does not tell
	asleep   bool // it takes orders to pay, and forgets them
}

func (b *fakeBank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var c transfer.PayOrder
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commands = append(b.commands, c.Do)
	if b.away > 0 {
		b.away--
		http.Error(w, "come back later", http.StatusServiceUnavailable)
		return
	}
	if n, is := b.carryOut(c); is && !b.silent {
		go func() { // twice, as a bank does that missed the first answer
			b.webhook(n)
			b.webhook(n)
		}()
	}
	if b.dropped > 0 {
		b.dropped--
		panic(http.ErrAbortHandler) // net/http closes the connection
	}
}

func (b *fakeBank) carryOut(c transfer.PayOrder) (n transfer.Notice, is bool) {
	n = transfer.Notice{Order: c.Order}
	switch state := b.states[c.Order]; {
	case c.Do == "pay" && state == "" && b.asleep:
		return n, false
	case c.Do == "pay" && state == "" && b.refuses:
		n.Outcome, n.Reason = "refused", "no such receiver"
	case c.Do == "pay" && state == "":
		b.payments++
		n.Outcome, n.Number = "paid", int64(b.payments)
	case c.Do == "cancel" && (state == "" || state == "paid"):
		n.Outcome = "cancelled"
	default:
		return n, false
	}
	b.states[c.Order] = n.Outcome
	n.ID = n.Outcome + "/" + c.Order
	return n, true
}

// state returns how the bank has an order, "" for not at all.
func (b *fakeBank) state(order string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.states[order]
}

// A direct calls a server without a network: a goroutine that waits for the network would keep the
// clock of a bubble from going on.
type direct struct{ server http.Handler }

func (d direct) RoundTrip(r *http.Request) (response *http.Response, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("the connection was closed")
		}
	}()
	w := httptest.NewRecorder()
	d.server.ServeHTTP(w, r)
	return w.Result(), nil
}

// A world is the service, its relays and a bank.
type world struct {
	service service
	store   *messagestore.Store
	bank    *fakeBank
	events  *events
}

// A service is a transfer.Service over either database.
type service interface {
	CreateTable(ctx context.Context) error
	OpenAccounts(ctx context.Context, balances map[string]int64) error
	Balance(ctx context.Context, id string) (int64, error)
	Handler() http.Handler
	Run(ctx context.Context) error
	ToBank(url string, config *outbox.HTTPConfig) (*outbox.Relay, error)
	ToSink(name string, sink outbox.Sink) (*outbox.Relay, error)
}

// events are a sink: a broker that keeps all messages.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) Send(_ context.Context, m *outbox.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s %s %s", m.Key(), m.Type, m.Data))
	return nil
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.all, "\n")
}

func newWorld(t *testing.T, database string, config transfer.Config) *world {
	t.Helper()
	store, err := dibs.Open(t.Context(), database, &messagestore.Config{Logger: logger.Silent()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w := &world{store: store, bank: &fakeBank{states: map[string]string{}}, events: &events{}}
	w.service = newService(t, store, database, config)
	w.bank.webhook = func(n transfer.Notice) { w.post("/webhooks/bank", "", n) }
	require.NoError(t, w.service.CreateTable(t.Context()))
	require.NoError(t, w.service.OpenAccounts(t.Context(), map[string]int64{"1": 100}))
	return w
}

// newService returns a replica of the service.
func newService(t *testing.T, store *messagestore.Store, database string, config transfer.Config) (s service) {
	t.Helper()
	config.Logger = logger.Silent()
	if strings.HasPrefix(database, "sqlite:") {
		txs, err := messagestore.Transactional[*sql.Tx](store)
		require.NoError(t, err)
		s, err = transfer.New(txs, transfer.OnSQLite, &config)
		require.NoError(t, err)
		return s
	}
	txs, err := messagestore.Transactional[pgx.Tx](store)
	require.NoError(t, err)
	s, err = transfer.New(txs, transfer.OnPostgres, &config)
	require.NoError(t, err)
	return s
}

// inBubble runs a test with a service that runs, on SQLite. Its clock goes on when all goroutines
// wait.
func inBubble(t *testing.T, config transfer.Config, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	database := "sqlite:" + filepath.Join(t.TempDir(), "accounts.db")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, database, config)
		defer w.run(t)()
		test(t, w)
	})
}

// run runs the parts of the service until stop is called.
func (w *world) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	for _, part := range []func(context.Context) error{
		w.service.Run,
		testkit.Must(w.service.ToBank("http://bank", &outbox.HTTPConfig{Transport: direct{w.bank}})).Run,
		testkit.Must(w.service.ToSink("events", w.events)).Run,
	} {
		running.Go(func() {
			if err := part(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// post sends a request to the service, and returns the status and the body of its answer.
func (w *world) post(path, key string, body any) (int, string) {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(data)))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	answer := httptest.NewRecorder()
	w.service.Handler().ServeHTTP(answer, r)
	return answer.Code, strings.TrimSpace(answer.Body.String())
}

func (w *world) order(t *testing.T, key string, amount int64) {
	t.Helper()
	status, body := w.post("/transfers", key, transfer.Transfer{From: "1", To: "elsewhere", Amount: amount})
	require.Equal(t, http.StatusAccepted, status, body)
	require.Equal(t, `{"transfer":"`+key+`"}`, body)
}

// end waits for the end of a transfer.
func (w *world) end(t *testing.T, key string) (p transfer.Progress) {
	t.Helper()
	testkit.Await(t, "the end of transfer "+key, func() (bool, any) {
		answer := httptest.NewRecorder()
		w.service.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/transfers/"+key, http.NoBody))
		require.Equal(t, http.StatusOK, answer.Code)
		p = transfer.Progress{}
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &p))
		return p.State == "completed" || p.State == "compensated" || p.State == "parked", p
	})
	return p
}

// endInBubble waits for the end of a transfer, and until the relays have sent all.
func (w *world) endInBubble(t *testing.T, key string) transfer.Progress {
	t.Helper()
	defer time.Sleep(time.Second)
	return w.end(t, key)
}

func (w *world) balance(t *testing.T) int64 {
	t.Helper()
	balance, err := w.service.Balance(t.Context(), "1")
	require.NoError(t, err)
	return balance
}

// A customer clicks three times, and the bank tells twice: one payment, one debit, and one event of
// each.
func TestAnOrderIsCarriedOutOnce(t *testing.T) {
	inBubble(t, transfer.Config{}, func(t *testing.T, w *world) {
		for range 3 {
			w.order(t, "7", 30)
		}
		progress := w.endInBubble(t, "7")
		w.order(t, "7", 30)

		require.Equal(t, transfer.Progress{State: "completed", Number: 1}, progress)
		require.Equal(t, int64(70), w.balance(t))
		require.Equal(t, []string{"pay"}, w.bank.commands)
		require.Equal(t, `1 Opened {"balance":100}
1 Debited {"transfer":"7","amount":30,"balance":70}`, w.events.String())
	})
}

// A key that comes with another amount is refused, and changes nothing.
func TestAKeyIsForOneOrder(t *testing.T) {
	inBubble(t, transfer.Config{}, func(t *testing.T, w *world) {
		w.order(t, "7", 30)
		status, _ := w.post("/transfers", "7", transfer.Transfer{From: "1", To: "elsewhere", Amount: 31})
		w.endInBubble(t, "7")

		require.Equal(t, http.StatusUnprocessableEntity, status)
		require.Equal(t, int64(70), w.balance(t))
	})
}

// The bank refuses: the money is back, and the events have both.
func TestARefusalGivesTheMoneyBack(t *testing.T) {
	inBubble(t, transfer.Config{}, func(t *testing.T, w *world) {
		w.bank.refuses = true
		w.order(t, "7", 30)
		progress := w.endInBubble(t, "7")

		require.Equal(t, transfer.Progress{State: "compensated", Reason: "paid: no such receiver"}, progress)
		require.Equal(t, int64(100), w.balance(t))
		require.Equal(t, "refused", w.bank.state("7"))
		require.Equal(t, `1 Opened {"balance":100}
1 Debited {"transfer":"7","amount":30,"balance":70}
1 Returned {"transfer":"7","amount":30,"balance":100}`, w.events.String())
	})
}

// An order without money never reaches the bank, and publishes no event.
func TestAnAccountWithoutMoneyIsNotDebited(t *testing.T) {
	inBubble(t, transfer.Config{}, func(t *testing.T, w *world) {
		w.order(t, "7", 101)
		progress := w.endInBubble(t, "7")

		require.Equal(t, transfer.Progress{State: "compensated", Reason: "debited: the account has not so much money"}, progress)
		require.Equal(t, int64(100), w.balance(t))
		require.Empty(t, w.bank.commands)
		require.Equal(t, `1 Opened {"balance":100}`, w.events.String())
	})
}

// The bank is away, or does it and drops the answer: the relay posts the command until the bank has
// it, and there is one payment.
func TestABankWithABadDayPaysOnce(t *testing.T) {
	for name, bad := range map[string]func(b *fakeBank){
		"away":           func(b *fakeBank) { b.away = 5 },
		"answer dropped": func(b *fakeBank) { b.dropped = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, transfer.Config{}, func(t *testing.T, w *world) {
				bad(w.bank)
				w.order(t, "7", 30)
				progress := w.endInBubble(t, "7")
				time.Sleep(10 * time.Second)

				require.Equal(t, "completed", progress.State)
				require.Equal(t, 1, w.bank.payments)
				require.Equal(t, int64(70), w.balance(t))
				require.Greater(t, len(w.bank.commands), 4)
			})
		})
	}
}

// The bank has paid and does not tell: after its time the order is cancelled, and the payment taken
// back.
func TestABankThatDoesNotTellIsCancelled(t *testing.T) {
	inBubble(t, transfer.Config{Answer: 20 * time.Second}, func(t *testing.T, w *world) {
		w.bank.silent = true
		w.order(t, "7", 30)
		progress := w.endInBubble(t, "7")

		require.Equal(t, transfer.Progress{State: "compensated", Reason: "paid: no reply came in time"}, progress)
		require.Equal(t, "cancelled", w.bank.state("7"))
		require.Equal(t, int64(100), w.balance(t))
		require.Equal(t, []string{"pay", "cancel"}, w.bank.commands)
	})
}

// The bank has forgotten the order, and remembers that it was cancelled. A webhook that comes too
// late changes nothing.
func TestAnAnswerAfterTheEndChangesNothing(t *testing.T) {
	inBubble(t, transfer.Config{Answer: time.Second}, func(t *testing.T, w *world) {
		w.bank.asleep = true
		w.order(t, "7", 30)
		progress := w.endInBubble(t, "7")
		status, _ := w.post("/webhooks/bank", "", transfer.Notice{ID: "late", Order: "7", Outcome: "paid", Number: 9})
		time.Sleep(10 * time.Second)

		require.Equal(t, "compensated", progress.State)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "compensated", w.endInBubble(t, "7").State)
		require.Equal(t, "cancelled", w.bank.state("7"))
		require.Equal(t, int64(100), w.balance(t))
	})
}

// The bank is away for longer than the deadline: the transfer is undone at once, and the bank
// cancels when it is back.
func TestATransferIsUndoneAfterItsDeadline(t *testing.T) {
	inBubble(t, transfer.Config{Deadline: 3 * time.Second}, func(t *testing.T, w *world) {
		w.bank.mu.Lock()
		w.bank.away = 7
		w.bank.mu.Unlock()
		w.order(t, "7", 30)
		progress := w.endInBubble(t, "7")

		require.Equal(t, "compensated", progress.State)
		require.Equal(t, int64(100), w.balance(t))
		require.Empty(t, w.bank.state("7"))
		time.Sleep(20 * time.Second)
		require.Equal(t, "cancelled", w.bank.state("7"))
		require.Equal(t, int64(100), w.balance(t))
	})
}

func TestRequestsThatAreNoneAreRefused(t *testing.T) {
	inBubble(t, transfer.Config{Verify: func(_ map[string][]string, body []byte) error {
		if strings.Contains(string(body), "forged") {
			return errors.New("not signed")
		}
		return nil
	}}, func(t *testing.T, w *world) {
		good := transfer.Transfer{From: "1", To: "elsewhere", Amount: 30}
		for _, test := range []struct {
			path, key string
			body      any
			status    int
		}{
			{"/transfers", "", good, http.StatusBadRequest},
			{"/transfers", strings.Repeat("x", 5000), good, http.StatusBadRequest},
			{"/transfers", "7", transfer.Transfer{From: "1", To: "elsewhere"}, http.StatusBadRequest},
			{"/transfers", "7", "text", http.StatusBadRequest},
			{"/transfers", "7", transfer.Transfer{From: strings.Repeat("x", 100_000), To: "elsewhere", Amount: 1}, http.StatusBadRequest},
			{"/webhooks/bank", "", transfer.Notice{ID: "1", Order: "none", Outcome: "paid"}, http.StatusNotFound},
			{"/webhooks/bank", "", transfer.Notice{Order: "none", Outcome: "paid"}, http.StatusBadRequest},
			{"/webhooks/bank", "", transfer.Notice{ID: "forged", Order: "7", Outcome: "paid"}, http.StatusUnauthorized},
		} {
			status, body := w.post(test.path, test.key, test.body)
			require.Equal(t, test.status, status, "%s %.100v: %s", test.path, test.body, body)
		}
		require.Equal(t, int64(100), w.balance(t))
	})
}

// Two replicas of each part, on each database, one of which stops in the middle.
func TestReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func(t *testing.T) string{
		"SQLite":     func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "accounts.db") },
		"PostgreSQL": func(t *testing.T) string { return pgtest.Migrated(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where, config := database(t), transfer.Config{Lease: time.Second}
			w := newWorld(t, where, config)
			defer w.run(t)()
			other := *w
			other.service = newService(t, w.store, where, config)
			stop := other.run(t)

			var ordering sync.WaitGroup
			for i := range 20 {
				ordering.Go(func() { w.order(t, fmt.Sprint("o", i/2), 15) })
			}
			ordering.Wait()
			stop()
			count := map[string]int{}
			for i := range 10 {
				count[w.end(t, fmt.Sprint("o", i)).State]++
			}

			require.Equal(t, map[string]int{"completed": 6, "compensated": 4}, count)
			require.Equal(t, int64(10), w.balance(t))
			w.bank.mu.Lock()
			defer w.bank.mu.Unlock()
			require.Equal(t, 6, w.bank.payments)
		})
	}
}
