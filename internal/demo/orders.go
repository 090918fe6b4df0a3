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
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/dibs-go/dibs/examples/account"
)

// paymentOrders are the orders that the demo carries out: see testdata/README.md for
// their source.
//
//go:embed testdata/payment-orders.csv
var paymentOrders []byte

// The months of each standing order.
var months = []string{"1998-10", "1998-11", "1998-12"}

// An Order is a row of the file: an amount to pay each month.
type Order struct {
	ID      string
	Account string
	Amount  account.Money
	To      string
}

// OrderFlags are the flags of a demo of orders.
type OrderFlags struct {
	Orders string `placeholder:"FILE" help:"Payment orders, as CSV. Defaults to 4,334 orders of a Czech bank."`
	Seed   uint64 `placeholder:"N" help:"Draw copies and the like from this. Defaults to the time."`
}

// Read returns the orders and the seed.
func (f OrderFlags) Read() ([]Order, uint64, error) {
	orders, err := ReadOrders(f.Orders)
	return orders, cmp.Or(f.Seed, uint64(time.Now().UnixNano())), err //nolint:gosec // any bits will do
}

// ReadOrders reads standing payment orders from a file; "" means the built-in orders. Its error
// names the line.
func ReadOrders(path string) ([]Order, error) {
	raw := paymentOrders
	if path != "" {
		var err error
		if raw, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUsage, err)
		}
	}
	orders, err := parseOrders(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: orders %s: %w", ErrUsage, cmp.Or(path, "(built in)"), err)
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

// Hash returns a number that follows from a text.
func Hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s)) // a hash takes every write
	return h.Sum64()
}
