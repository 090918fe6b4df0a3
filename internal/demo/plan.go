package demo

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

// paymentOrders are the orders that the demo carries out: see testdata/README.md for
// their source.
//
//go:embed testdata/payment-orders.csv
var paymentOrders []byte

// The months for which each standing order is carried out.
var months = []string{"1998-10", "1998-11", "1998-12"}

// An Order is a row of the file: pay so much, each month.
type Order struct {
	ID      string
	Account string
	Amount  account.Money
	To      string
}

// ReadOrders reads standing payment orders from a file, "" for the built-in orders. An error names the
// line.
func ReadOrders(path string) ([]Order, error) {
	raw := paymentOrders
	if path != "" {
		var err error
		if raw, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("%w: %w", stage.ErrUsage, err)
		}
	}
	orders, err := parseOrders(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: orders %s: %w", stage.ErrUsage, cmp.Or(path, "(built in)"), err)
	}
	return orders, nil
}

func parseOrders(r io.Reader) ([]Order, error) {
	rows := csv.NewReader(r)
	rows.FieldsPerRecord = -1
	header, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	column := map[string]int{}
	for i, name := range header {
		column[strings.TrimPrefix(strings.TrimSpace(name), "\ufeff")] = i
	}
	for _, name := range []string{"order_id", "account_id", "bank_to", "account_to", "amount"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("there is no column %s", name)
		}
	}
	var orders []Order
	seen := map[string]int{}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := rows.FieldPos(0)
		if len(row) != len(header) {
			return nil, fmt.Errorf("line %d: %d fields, not %d", line, len(row), len(header))
		}
		o := Order{
			ID: strings.TrimSpace(row[column["order_id"]]), Account: strings.TrimSpace(row[column["account_id"]]),
			To: row[column["bank_to"]] + "/" + row[column["account_to"]],
		}
		if o.Amount, err = parseMoney(row[column["amount"]]); err != nil {
			return nil, fmt.Errorf("line %d: amount: %w", line, err)
		}
		if err := account.Category.Stream(o.Account).Validate(); err != nil {
			return nil, fmt.Errorf("line %d: account_id: %w", line, err)
		}
		if o.ID == "" {
			return nil, fmt.Errorf("line %d: order_id is empty", line)
		}
		if first, twice := seen[o.ID]; twice {
			return nil, fmt.Errorf("line %d: order_id %q is on line %d too", line, o.ID, first)
		}
		seen[o.ID] = line
		orders = append(orders, o)
	}
	if len(orders) == 0 {
		return nil, errors.New("there is no order in it")
	}
	return orders, nil
}

// parseMoney reads crowns with up to two decimals, without going through floats.
func parseMoney(s string) (account.Money, error) {
	whole, fraction, _ := strings.Cut(strings.TrimSpace(s), ".")
	if len(fraction) > 2 {
		return 0, fmt.Errorf("%q has more than two decimals", s)
	}
	cents, err := strconv.ParseInt(whole+(fraction + "00")[:2], 10, 64)
	if err != nil || cents <= 0 || cents > 1e15 {
		return 0, fmt.Errorf("%q is not an amount above 0", s)
	}
	return account.Money(cents), nil
}

// A book is the expected end of one account, computed from the file alone.
type book struct {
	Funding  account.Money
	Paid     int
	Rejected int
	Balance  account.Money
}

// keepBooks folds the file: the funding of each account and the outcome of its orders.
// Senders deliver withdrawals in any order, so the funding makes the number of rejections
// the same in every order:
//
//   - with one order, there is money for two of its three months, and a half;
//   - with several, there is money for all, unless the largest alone is more than
//     all the others of the three months: then for those, and half of the rest.
func keepBooks(orders []Order) map[string]book {
	amounts := map[string][]account.Money{}
	for _, o := range orders {
		amounts[o.Account] = append(amounts[o.Account], o.Amount)
	}
	n := len(months)
	books := map[string]book{}
	for id, list := range amounts {
		var sum account.Money
		for _, amount := range list {
			sum += amount
		}
		largest := slices.Max(list)
		others := (sum - largest) * account.Money(n)
		switch {
		case len(list) == 1:
			left := largest / 2
			books[id] = book{Funding: largest*account.Money(n-1) + left, Paid: n - 1, Rejected: 1, Balance: left}
		case largest > others:
			left := (largest - others) / 2
			books[id] = book{Funding: others + left, Paid: n * (len(list) - 1), Rejected: n, Balance: left}
		default:
			left := account.Money(100_00)
			books[id] = book{Funding: sum*account.Money(n) + left, Paid: n * len(list), Balance: left}
		}
	}
	return books
}

// A plan lists the commands of each sender, their repeats and their order. It follows from
// the file and the seed, so every process computes the same plan.
type plan struct {
	Books    map[string]book
	Distinct int // commands, each however often it is sent
	Sent     int
	Deposits int
	Repeats  map[string]int      // by withdrawal: how often it is sent
	Open     map[string]struct{} // in a part of a plan: withdrawals that no consumer has come to

	phases [3][]sending
}

// A sending is one time that one sender sends one command.
type sending struct {
	Sender int
	Stream messagestore.StreamName
	Body   messagestore.Body
	ID     uuid.UUID // set where repeating means repeating the same write
	Origin messagestore.StreamName
}

// newPlan sends every command one to five times, each time from any sender. The first phase
// opens the accounts, and the second funds them. The third has the withdrawals, and among them the
// remaining repeats of openings and deposits.
func newPlan(orders []Order, seed uint64, senders int) *plan {
	p := &plan{Books: keepBooks(orders), Repeats: map[string]int{}}
	add := func(key string, first int, s sending) int {
		random := rand.New(rand.NewPCG(seed, hash(key))) // it has to be repeatable, not secret
		times := 1 + random.IntN(5)
		for i := range times {
			phase := first
			if i > 0 && random.IntN(2) == 0 {
				phase = len(p.phases) - 1
			}
			s.Sender = random.IntN(senders)
			p.phases[phase] = append(p.phases[phase], s)
		}
		p.Distinct++
		p.Sent += times
		return times
	}
	p.Deposits = len(p.Books)
	for id, b := range p.Books {
		add("open "+id, 0, sending{Stream: account.Commands.Stream(id), Body: account.Open{AccountID: id, Owner: "owner of " + id}})
		deposit := account.Deposit{AccountID: id, DepositID: "funding-" + id, Amount: b.Funding}
		add("deposit "+id, 1, sending{
			Stream: account.Commands.Stream(id), Body: deposit,
			ID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%d %s", seed, deposit.DepositID)),
		})
	}
	for _, o := range orders {
		for _, month := range months {
			w := account.Withdraw{AccountID: o.Account, WithdrawalID: o.ID + "/" + month, Amount: o.Amount, To: o.To}
			p.Repeats[w.WithdrawalID] = add("withdraw "+w.WithdrawalID, 2, sending{
				Stream: account.Commands.Stream(o.Account), Body: w, Origin: messagestore.Category("paymentOrder").Stream(o.ID),
			})
		}
	}
	return p
}

// part returns the plan of the commands that the store has, if the limit ended before all were sent, and how many of
// them are open: those at which no consumer was, by the position that all have passed. The amounts are the file's, and
// what becomes of a withdrawal follows from the commands before it.
func (p *plan) part(l *ledger, passed passed) (part *plan, open int) {
	bodies := map[string]messagestore.Body{}
	for _, phase := range p.phases {
		for _, s := range phase {
			bodies[effectOf(s)] = s.Body
		}
	}
	part = &plan{Books: map[string]book{}, Repeats: map[string]int{}, Open: map[string]struct{}{}}
	for _, asked := range l.Asked {
		body, ok := bodies[asked.effect]
		if !ok {
			continue // there is one more than planned
		}
		if l.open(asked, passed) {
			open++
			if w, is := body.(account.Withdraw); is {
				part.Open[w.WithdrawalID] = struct{}{}
			}
			continue
		}
		part.Distinct++
		b := part.Books[asked.account]
		switch body := body.(type) {
		case account.Deposit:
			part.Deposits++
			b.Funding += body.Amount
			b.Balance += body.Amount
		case account.Withdraw:
			part.Repeats[body.WithdrawalID] = l.Sent[asked.effect]
			if b.Balance < body.Amount {
				b.Rejected++
				break
			}
			b.Paid++
			b.Balance -= body.Amount
		}
		part.Books[asked.account] = b
	}
	return part, open
}

// closed returns the counts of the withdrawals that are not open.
func (p *plan) closed(counts map[string]int) map[string]int {
	counts = maps.Clone(counts)
	for id := range p.Open {
		delete(counts, id)
	}
	return counts
}

// effectOf names the effect that a command asks for, as a ledger does.
func effectOf(s sending) string {
	deposit, withdrawal := "", ""
	switch body := s.Body.(type) {
	case account.Deposit:
		deposit = body.DepositID
	case account.Withdraw:
		withdrawal = body.WithdrawalID
	}
	return effect(s.Body.MessageType(), s.Stream.ID(), deposit, withdrawal)
}

// of returns the commands of a sender in a phase, in an order of its own.
func (p *plan) of(sender, phase int, seed uint64) []sending {
	var mine []sending
	for _, s := range p.phases[phase] {
		if s.Sender == sender {
			mine = append(mine, s)
		}
	}
	// Maps have no order: give it one first, so that the seed decides.
	slices.SortStableFunc(mine, func(a, b sending) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(fmt.Sprint(a.Body), fmt.Sprint(b.Body)))
	})
	random := rand.New(rand.NewPCG(seed, uint64(sender*len(p.phases)+phase)))
	random.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
	return mine
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
