package demo

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

// errNotEmpty is the cause of a usage error.
var errNotEmpty = errors.New("the store holds payments already, and the demo counts on an empty one")

// books are the store and the payments table of a run.
type books struct {
	store *messagestore.Store
	url   string
}

func openBooks(ctx context.Context, storeURL string) (books, error) {
	store, err := dibs.Open(ctx, storeURL, nil)
	if err != nil {
		return books{}, fmt.Errorf("open store: %w", err)
	}
	return books{store, storeURL}, nil
}

func (b books) close() error { return b.store.Close() }

// prepare creates the payments table.
func (b books) prepare(ctx context.Context) error {
	page, err := b.store.ReadCategoryPage(ctx, messagestore.CategoryQuery{Category: payments.Intents, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Messages) > 0 {
		return fmt.Errorf("%w: %w", stage.ErrUsage, errNotEmpty)
	}
	api, err := newAPI(b.store, b.url, payments.Config{})
	if err != nil {
		return err
	}
	return api.CreateTable(ctx)
}

// A tableRow is one of the payments table.
type tableRow struct {
	ID, Account     string
	Amount, Receipt int64
	Token           int64
}

const selectRows = "select id, account, amount, receipt, fencing_token from "

// alone calls f while no process writes to a store in a file: a process that is stopped then does
// not keep the others from writing. In PostgreSQL no transaction does.
func (b books) alone(ctx context.Context, f func() error) error {
	txs, err := messagestore.Transactional[*sql.Tx](b.store)
	if err != nil {
		return f()
	}
	_, err = txs.Transact(ctx, func(context.Context, *sql.Tx) ([]messagestore.StreamWrite, error) {
		return nil, f()
	})
	return err
}

// rows reads the payments table.
func (b books) rows(ctx context.Context) (all []tableRow, err error) {
	var r tableRow
	fields := []any{&r.ID, &r.Account, &r.Amount, &r.Receipt, &r.Token}
	if txs, unsupported := messagestore.Transactional[*sql.Tx](b.store); unsupported == nil {
		_, err = txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			found, err := tx.QueryContext(ctx, selectRows+paymentsTable(b.url))
			if err != nil {
				return nil, err
			}
			defer found.Close()
			for found.Next() {
				if err := found.Scan(fields...); err != nil {
					return nil, err
				}
				all = append(all, r)
			}
			return nil, found.Err()
		})
		return all, err
	}
	txs, err := messagestore.Transactional[pgx.Tx](b.store)
	if err != nil {
		return nil, err
	}
	_, err = txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		found, err := tx.Query(ctx, selectRows+paymentsTable(b.url)) //nolint:rowserrcheck // ForEachRow checks
		if err != nil {
			return nil, err
		}
		_, err = pgx.ForEachRow(found, fields, func() error {
			all = append(all, r)
			return nil
		})
		return nil, err
	})
	return all, err
}

// confirmed reports whether payments have been made.
func (b books) confirmed(ctx context.Context, all []payments.Payment) (bool, error) {
	manager, err := intent.New(b.store, payments.Intents, nil)
	if err != nil {
		return false, err
	}
	for _, p := range all {
		stream, err := manager.Stream(p.Account, p.ID)
		if err != nil {
			return false, err
		}
		last, err := b.store.Last(ctx, stream)
		if err != nil || last == nil || last.Type != intent.TypeConfirmed {
			return false, err
		}
	}
	return true, nil
}

// An outcome is the result of a run. It is added up from the records, not by the component's own
// code.
type outcome struct {
	// The payments table.
	Rows  int
	Wrong int // rows that differ from the file, or are there twice
	Sum   account.Money

	OpenRows map[string]int // of payments without an answer, by key

	// The bank's log.
	Calls    map[string]int // transfers, by payment
	Tokens   map[string]int64
	Fell     int             // transfers with a smaller token than one before
	TooLate  int             // orders refused
	Late     map[string]bool // the payments that had a late order
	Untrue   int             // refused though no greater token was seen, or to an order that is in no file
	BankPaid account.Money

	// The intents.
	Confirmed map[string]int // by key
	Attempts  map[string]int
	Takeovers int // grants after the first
	Held      int
	Strange   []string

	// The clients' answers.
	Answers  map[string]map[string]int // sums of the answers by key, and how often
	Refused  int                       // requests with another amount, 422
	Mistaken int                       // answers with another status than expected
}

func (d *paymentsDemo) readOutcome(ctx context.Context) (*outcome, error) {
	o := &outcome{
		Calls: map[string]int{}, Tokens: map[string]int64{}, Confirmed: map[string]int{}, Attempts: map[string]int{},
		Answers: map[string]map[string]int{}, Late: map[string]bool{}, OpenRows: map[string]int{},
	}
	for i := range d.clients {
		if err := readLines(d.answers(i), o.addAnswer); err != nil && (d.late == nil || !errors.Is(err, fs.ErrNotExist)) {
			return nil, err // but of a client that the limit has ended before it began
		}
	}
	if d.late != nil {
		d.plan = d.plan.part(o.Answers)
	}
	rows, err := d.books.rows(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the payments table: %w", err)
	}
	o.addRows(d.plan, rows)
	if err := readLines(d.bankLog(), func(c payments.Call) { o.addCall(d.plan, c) }); err != nil && (d.late == nil || !errors.Is(err, fs.ErrNotExist)) {
		return nil, err
	}
	for m, err := range d.books.store.ReadCategory(ctx, payments.Intents, 0, messagestore.Filter{}) {
		if err != nil {
			return nil, err
		}
		o.addMessage(m)
	}
	manager, err := intent.New(d.books.store, payments.Intents, nil)
	if err != nil {
		return nil, err
	}
	held, err := manager.List(ctx, intent.Filter{})
	if err != nil {
		return nil, err
	}
	for _, i := range held {
		if _, open := d.plan.Open[i.Key]; !open {
			o.Held++
		}
	}
	return o, nil
}

func readLines[T any](path string, add func(T)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := json.NewDecoder(bufio.NewReader(file))
	for {
		var line T
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		add(line)
	}
}

func (o *outcome) addRows(p *paymentPlan, rows []tableRow) {
	seen := map[string]bool{}
	for _, r := range rows {
		want, open, ok := p.find(r.ID)
		if !ok || seen[r.ID] || want.Amount != r.Amount || want.Account != r.Account {
			o.Wrong++
		}
		seen[r.ID] = true
		if open {
			o.OpenRows[r.ID]++
			continue
		}
		o.Rows++
		o.Sum += account.Money(r.Amount)
	}
}

func (o *outcome) addCall(p *paymentPlan, c payments.Call) {
	highest := o.Tokens[c.Payment]
	want, open, ok := p.find(c.Payment)
	switch {
	case !ok || want.Amount != c.Amount || want.Account != c.Account:
		o.Untrue++
	case c.Number == 0 && c.Token >= highest:
		o.Untrue++
	case c.Number == 0:
		o.TooLate++
		o.Late[c.Payment] = true
	case c.Token < highest:
		o.Fell++
	}
	if c.Number == 0 {
		return
	}
	o.Tokens[c.Payment] = max(highest, c.Token)
	if o.Calls[c.Payment]++; o.Calls[c.Payment] == 1 && !open {
		o.BankPaid += account.Money(c.Amount)
	}
}

func (o *outcome) addAnswer(a answer) {
	switch {
	case a.Planted && a.Status == 422:
		o.Refused++
	case a.Planted, a.Status != 201:
		o.Mistaken++
	default:
		if o.Answers[a.Key] == nil {
			o.Answers[a.Key] = map[string]int{}
		}
		o.Answers[a.Key][a.Sum]++
	}
}

// addMessage adds one message of the intents. A key's stream is the last part of its name.
func (o *outcome) addMessage(m *messagestore.Message) {
	ids := m.Stream.IDs()
	key := ids[len(ids)-1]
	if o.Confirmed[key] > 0 {
		o.Strange = append(o.Strange, fmt.Sprintf("%s after a Confirmed", m))
	}
	var fields struct {
		Attempt int `json:"attempt"`
	}
	if err := json.Unmarshal(m.Data, &fields); err != nil {
		o.Strange = append(o.Strange, fmt.Sprintf("%s: %v", m, err))
	}
	switch m.Type {
	case intent.TypeReserved:
		if fields.Attempt != o.Attempts[key]+1 {
			o.Strange = append(o.Strange, fmt.Sprintf("%s is attempt %d after %d", m, fields.Attempt, o.Attempts[key]))
		}
		o.Attempts[key] = fields.Attempt
		if fields.Attempt > 1 {
			o.Takeovers++
		}
	case intent.TypeConfirmed:
		o.Confirmed[key]++
	case intent.TypeExtended, intent.TypeReleased, intent.TypeWaiting:
	default:
		o.Strange = append(o.Strange, m.String())
	}
}

// differing counts the payments whose answers are not all the same, and those without one.
func (o *outcome) differing(p *paymentPlan) (n int) {
	for key := range p.Payments {
		if len(o.Answers[key]) != 1 {
			n++
		}
	}
	return n
}

// repeated counts the bank's transfers but for the first of each payment, and the payments that
// have more of them than attempts.
func (o *outcome) repeated() (transfers, beyond int) {
	for key, n := range o.Calls {
		transfers += n - 1
		if n > o.Attempts[key] {
			beyond++
		}
	}
	return transfers, beyond
}

// halves counts the payments without an answer that have a row and are not confirmed, or the reverse.
func (o *outcome) halves(p *paymentPlan) (n int) {
	for key := range p.Open {
		if o.OpenRows[key] != o.Confirmed[key] {
			n++
		}
	}
	return n
}
