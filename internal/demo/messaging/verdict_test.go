package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

// A ledger makes books that agree, message by message.
type ledger struct {
	books
	versions map[string]int64
}

func (l *ledger) message(stream, kind, data string) row {
	l.versions[stream]++
	m := row{ID: uuid.New(), Stream: stream, Position: l.versions[stream] - 1, Type: kind, Data: []byte(data), At: time.Unix(int64(len(l.Messages)), 0)}
	l.Messages = append(l.Messages, m)
	return m
}

// event adds an event of an account, which JetStream has too.
func (l *ledger) event(account, kind, order string, amount, balance int64) {
	m := l.message("account-"+account, kind, fmt.Sprintf(`{"transfer":%q,"amount":%d,"balance":%d}`, order, amount, balance))
	l.Balances[account] = balance
	l.Stream = append(l.Stream, m)
}

// right returns a run that agrees: of three transfers of one account the first is paid, the second is undone after the bank
// has paid, and the third finds no money.
func right() (*messagingDemo, *ledger) {
	d := &messagingDemo{gone: true, out: &bytes.Buffer{}, begun: map[string]bool{"a": true, "b": true, "c": true}, accepted: 3, plan: &plan{
		Balances: map[string]int64{"1": 100}, Money: 100, Orders: map[string]transfer.Transfer{}, Planted: 1,
	}}
	d.turned.Store(1)
	d.planted.Store(1)
	for id, amount := range map[string]int64{"a": 30, "b": 20, "c": 900} {
		d.plan.Orders[id] = transfer.Transfer{ID: id, From: "1", Amount: amount}
	}
	l := &ledger{versions: map[string]int64{}, books: books{Balances: map[string]int64{}, Payments: map[string]payment{}, Entries: map[string][]int64{}}}
	l.event("1", "Opened", "", 0, 100)
	for _, id := range []string{"a", "b", "c"} {
		l.message("transfer:inbox-"+id, "Received", "{}")
		l.message("transfer:saga-"+id, "Started", "{}")
	}
	l.message("transfer:inbox+refused-a", "Refused", "{}")
	l.event("1", "Debited", "a", 30, 70)
	l.event("1", "Debited", "b", 20, 50)
	l.message("transfer:saga-a", "Completed", "{}")
	l.event("1", "Returned", "b", 20, 70)
	l.message("transfer:saga-b", "Compensated", "{}")
	l.message("transfer:saga-c", "Compensated", "{}")
	l.Payments["a"], l.Entries["a"] = payment{Number: 1, State: bank.Paid}, []int64{30}
	l.Payments["b"], l.Entries["b"] = payment{Number: 2, State: bank.Reversed}, []int64{20, -20}
	return d, l
}

func (d *messagingDemo) judge(l *ledger, late error) (table string, same bool, strange []string) {
	whole := d.plan
	defer func() { d.plan = whole }()
	d.part(&l.books, late)
	o := l.judge(d.plan)
	var out bytes.Buffer
	same = stage.PrintTable(&out, "", "", d.table(o, &l.books, late))
	return out.String(), same, o.Strange
}

func TestTheVerdictSeesAllThatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		row string // that differs; "" for a strange message
		do  func(d *messagingDemo, l *ledger)
	}{
		"a hundredth is lost":       {"money before and after", func(_ *messagingDemo, l *ledger) { l.Balances["1"]-- }},
		"a row changed alone":       {"rows that differ from the last event", func(_ *messagingDemo, l *ledger) { l.Balances["1"]-- }},
		"an account is gone":        {"accounts", func(_ *messagingDemo, l *ledger) { delete(l.Balances, "1") }},
		"an account without events": {"rows that differ from the last event", func(_ *messagingDemo, l *ledger) { l.Balances["2"] = 0 }},
		"an order is lost":          {"orders received, each once", func(d *messagingDemo, _ *ledger) { d.plan.Orders["d"] = transfer.Transfer{} }},
		"a saga is not started":     {"sagas started", func(d *messagingDemo, _ *ledger) { d.plan.Orders["d"] = transfer.Transfer{} }},
		"a saga is open":            {"sagas open", func(_ *messagingDemo, l *ledger) { l.message("transfer:saga-d", "Started", "{}") }},
		"a saga has two ends":       {"sagas open", func(_ *messagingDemo, l *ledger) { l.message("transfer:saga-b", "Completed", "{}") }},
		"paid and not debited": {"orders torn", func(_ *messagingDemo, l *ledger) {
			l.Entries["c"] = []int64{900}
		}},
		"debited and not paid": {"orders torn", func(_ *messagingDemo, l *ledger) { delete(l.Entries, "a") }},
		"undone and still paid": {"orders paid once and debited once, or neither", func(_ *messagingDemo, l *ledger) {
			l.Entries["b"] = []int64{20}
		}},
		"paid twice": {"orders that the bank paid twice", func(_ *messagingDemo, l *ledger) { l.Entries["b"] = []int64{20, -20, 20, -20} }},
		"debited twice, and given back twice": {"orders debited or given back twice", func(_ *messagingDemo, l *ledger) {
			l.event("1", "Debited", "b", 20, 50)
			l.event("1", "Returned", "b", 20, 70)
		}},
		"completed and not paid": {"sagas whose end the bank denies", func(_ *messagingDemo, l *ledger) {
			l.event("1", "Returned", "a", 30, 100)
			l.Entries["a"] = []int64{30, -30}
		}},
		"another amount is debited": {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) {
			l.event("1", "Debited", "c", 10, 60)
		}},
		"another amount is paid": {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) { l.Entries["c"] = []int64{5, -5} }},
		"another account is debited": {"amounts that differ from the file", func(d *messagingDemo, _ *ledger) {
			d.plan.Orders["a"] = transfer.Transfer{From: "2", Amount: 30}
		}},
		"an order of no file": {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) { l.Entries["z"] = []int64{5, -5} }},
		"a balance that does not follow": {"", func(_ *messagingDemo, l *ledger) {
			l.event("1", "Debited", "c", 900, 70)
		}},
		"opened twice":          {"", func(_ *messagingDemo, l *ledger) { l.event("1", "Opened", "", 0, 100) }},
		"an event of no kind":   {"", func(_ *messagingDemo, l *ledger) { l.event("1", "Closed", "a", 30, 70) }},
		"an event that is none": {"", func(_ *messagingDemo, l *ledger) { l.message("account-1", "Debited", "[]") }},
		"an event is not sent":  {"events missing in JetStream", func(_ *messagingDemo, l *ledger) { l.Stream = l.Stream[:3] }},
		"an event is left out":  {"events there out of order", func(_ *messagingDemo, l *ledger) { l.Stream = append(l.Stream[:1], l.Stream[2:]...) }},
		"two that cancel out are left out": {"events there out of order", func(_ *messagingDemo, l *ledger) {
			l.event("1", "Debited", "c", 5, 65)
			l.Stream = slices.Concat(l.Stream[:2], l.Stream[4:])
		}},
		"the first is left out":  {"events there out of order", func(_ *messagingDemo, l *ledger) { l.Stream = l.Stream[1:] }},
		"two are in wrong order": {"events there out of order", func(_ *messagingDemo, l *ledger) { l.Stream[1], l.Stream[2] = l.Stream[2], l.Stream[1] }},
		"an event is sent twice": {"events there twice", func(_ *messagingDemo, l *ledger) { l.Stream = append(l.Stream, l.Stream[1]) }},
		"one was rolled back": {"events there that were rolled back", func(_ *messagingDemo, l *ledger) {
			m := l.Stream[3]
			m.ID = uuid.New()
			l.Stream = append(l.Stream, m)
		}},
		"one has other data": {"events there that were rolled back", func(_ *messagingDemo, l *ledger) { l.Stream[3].Data = []byte(`{"balance":7}`) }},
		"a webhook waits":    {"webhooks unsent", func(_ *messagingDemo, l *ledger) { l.Unsent = 1 }},
		"a reuse is taken":   {"reused keys refused with 422", func(d *messagingDemo, _ *ledger) { d.turned.Store(0) }},
		"a reuse is forgotten": {"and recorded as refused", func(_ *messagingDemo, l *ledger) {
			l.Messages[7].Stream = "other-1"
		}},
		"a wrong answer":       {"answers of another kind", func(d *messagingDemo, _ *ledger) { d.wrong.Store(1) }},
		"JetStream was there":  {"times that JetStream was gone", func(d *messagingDemo, _ *ledger) { d.gone = false }},
		"an order taken twice": {"orders received, each once", func(_ *messagingDemo, l *ledger) { l.message("transfer:inbox-a2", "Received", "{}") }},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := right()
			table, same, strange := d.judge(l, nil)
			require.True(t, same, "before anything is wrong:\n%s", table)
			require.Empty(t, strange)

			test.do(d, l)

			table, same, strange = d.judge(l, nil)
			requireWrong(t, test.row, table, same, strange)
		})
	}
}

// requireWrong requires that a row differs, or with "" that there is a strange message.
func requireWrong(t *testing.T, row, table string, same bool, strange []string) {
	t.Helper()
	if row == "" {
		require.NotEmpty(t, strange)
		return
	}
	require.False(t, same)
	require.Regexp(t, `(?m)^`+row+` .*DIFFERS$`, table)
}

var errNotSettled = errors.Join(stage.ErrNotDone, stage.ErrNotSettled)

// part returns a run of which a part was done: beside the three transfers of [right], which have ended, d is received,
// debited and told to the bank, e is undone, of which the bank has not heard, f was sent without an answer, and g was not
// sent.
func part() (*messagingDemo, *ledger) {
	d, l := right()
	d.gone = false
	d.plan.Money += 200
	d.plan.Planted += 3
	d.planted.Add(1)
	d.begun["d"], d.begun["e"], d.begun["f"], d.accepted = true, true, false, 5
	for _, id := range []string{"d", "e", "f", "g"} {
		d.plan.Orders[id] = transfer.Transfer{ID: id, From: "2", Amount: 50}
	}
	d.plan.Balances["2"] = 200
	l.event("2", "Opened", "", 0, 200)
	for _, id := range []string{"d", "e"} {
		l.message("transfer:inbox-"+id, "Received", "{}")
		l.message("transfer:saga-"+id, "Started", "{}")
		l.message("transfer:outgoing-"+id, "PayOrder", "{}")
	}
	l.event("2", "Debited", "d", 50, 150)
	l.event("2", "Debited", "e", 50, 100)
	l.Payments["e"], l.Entries["e"] = payment{Number: 3, State: bank.Paid}, []int64{50}
	l.message("account-2", "Returned", `{"transfer":"e","amount":50,"balance":150}`) // which no relay has sent yet
	l.Balances["2"] = 150
	l.message("transfer:outgoing-e", "CancelOrder", "{}")
	l.message("transfer:saga-e", "Compensated", "{}")
	l.Unsent = 1
	return d, l
}

func TestAVerdictOnAPartIsOnTheOrdersOfWhichNothingIsUnderWay(t *testing.T) {
	d, l := part()
	table, same, strange := d.judge(l, errNotSettled)
	require.True(t, same, table)
	require.Empty(t, strange)
	require.Regexp(t, `(?m)^orders paid once and debited once, or neither +3 +3  ok$`, table)
	require.Regexp(t, `(?m)^  orders sent that have not ended +3$`, table)

	for _, row := range []string{"sagas open", "orders torn", "events missing in JetStream", "webhooks unsent"} {
		table, same, strange = d.judge(l, stage.ErrNotDone)
		requireWrong(t, row, table, same, strange) // they had their time
	}
}

func TestAVerdictOnAPartSeesAllThatIsWrong(t *testing.T) {
	for name, test := range map[string]struct {
		row string // as above
		do  func(d *messagingDemo, l *ledger)
	}{
		"a hundredth is lost": {"money before and after", func(_ *messagingDemo, l *ledger) { l.Balances["2"]-- }},
		"an order is lost":    {"orders received, each once", func(d *messagingDemo, _ *ledger) { d.accepted = 6 }},
		"an order is received twice": {"orders received, each once", func(_ *messagingDemo, l *ledger) {
			l.message("transfer:inbox-f1", "Received", "{}")
			l.message("transfer:inbox-f2", "Received", "{}")
		}},
		"an order that was not sent":      {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) { l.event("2", "Debited", "g", 50, 100) }},
		"and one that the bank pays":      {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) { l.Entries["g"] = []int64{50} }},
		"an open order of another amount": {"amounts that differ from the file", func(_ *messagingDemo, l *ledger) { l.Entries["d"] = []int64{5} }},
		"paid and not debited":            {"orders torn", func(_ *messagingDemo, l *ledger) { l.Entries["f"] = []int64{50} }},
		"paid twice":                      {"orders that the bank paid twice", func(_ *messagingDemo, l *ledger) { l.Entries["d"] = []int64{50, 50} }},
		"debited twice":                   {"orders debited or given back twice", func(_ *messagingDemo, l *ledger) { l.event("2", "Debited", "d", 50, 100) }},
		"one that ended is torn":          {"orders torn", func(_ *messagingDemo, l *ledger) { delete(l.Entries, "a") }},
		"an open saga has two ends": {"sagas open", func(_ *messagingDemo, l *ledger) {
			l.message("transfer:saga-e", "Compensated", "{}")
		}},
		"an event is left out": {"events there out of order", func(_ *messagingDemo, l *ledger) { l.Stream = append(l.Stream[:4], l.Stream[5:]...) }},
		"a reuse is taken":     {"and recorded as refused", func(d *messagingDemo, _ *ledger) { d.turned.Store(2) }},
		"a reuse too many": {"and recorded as refused", func(_ *messagingDemo, l *ledger) {
			l.message("transfer:inbox+refused-x", "Refused", "{}")
			l.message("transfer:inbox+refused-y", "Refused", "{}")
		}},
		"a balance that is not": {"", func(_ *messagingDemo, l *ledger) { l.event("2", "Debited", "f", 50, 120) }},
	} {
		t.Run(name, func(t *testing.T) {
			d, l := part()

			test.do(d, l)

			table, same, strange := d.judge(l, errNotSettled)
			requireWrong(t, test.row, table, same, strange)
		})
	}
}

func TestTheStoryIsOfATransferThatTheBankTookBack(t *testing.T) {
	d, l := right()
	var out bytes.Buffer
	d.out = &out

	d.story(l.judge(d.plan), &l.books)

	require.Contains(t, out.String(), "What became of order b")
	require.Contains(t, out.String(), "debited, and 0.50 left, account-1@2")
	require.Contains(t, out.String(), "the bank takes the payment back")
	require.Contains(t, out.String(), "JetStream has the Returned")
	require.Contains(t, out.String(), "the saga: Compensated, transfer:saga-b@1")
}
