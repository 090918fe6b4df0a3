package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/internal/demo/stage"
)

var errBooksDiffer = errors.New("the books differ")

// An outcome is the result of a run, order by order.
type outcome struct {
	Started   int // sagas
	Completed map[string]int
	Undone    map[string]int
	Open      int // sagas that have not ended
	Strange   []string

	Received int // orders in the inbox
	Refused  int // requests whose key was used for another order

	Debits  map[string]int // by order
	Returns map[string]int

	Accounts int64 // money in the table
	AtBank   int64 // money at the bank
	OnTheWay int64 // money of open orders, from the one to the other

	PaidTwice  int // orders that the bank paid more than once
	Twice      int // orders that were debited, or given back, more than once
	Settled    int // paid once and debited once
	Neither    int // neither paid nor debited, or both given back
	Torn       int // all other orders
	Untrue     int // orders of another amount than the file's, or that are in no file
	Rows       int // accounts whose row differs from their last event
	Disagree   int // sagas that have completed unpaid, or were undone and are paid
	BankStates map[string]int

	Missing  int // events of accounts that are not in JetStream
	Foreign  int // messages in JetStream that no committed event is: they were rolled back
	Repeated int // ids that JetStream has again
	Disorder int // events that are not behind the one before
}

// ended returns the orders that have nothing under way: the saga has ended, and if it was undone the bank
// has its cancel, or has refused it.
func (b *books) ended() map[string]bool {
	ended, toBank := map[string]bool{}, map[string]bool{}
	for _, m := range b.Messages {
		switch category, _, _ := strings.Cut(m.Stream, "-"); {
		case category == "transfer:outgoing":
			toBank[m.id()] = true
		case category == "transfer:saga" && m.Type == "Completed":
			ended[m.id()] = true
		case category == "transfer:saga" && m.Type == "Compensated":
			payment, has := b.Payments[m.id()]
			ended[m.id()] = !toBank[m.id()] || has && payment.State != bank.Paid
		}
	}
	return ended
}

func (b *books) judge(p *plan) *outcome {
	o := &outcome{Completed: map[string]int{}, Undone: map[string]int{}, Debits: map[string]int{}, Returns: map[string]int{}, BankStates: map[string]int{}}
	events := map[uuid.UUID]row{}
	last := map[string]event{}
	started := map[string]bool{}
	for _, m := range b.Messages {
		category, _, _ := strings.Cut(m.Stream, "-")
		switch category {
		case "transfer:saga":
			switch m.Type {
			case "Started":
				o.Started++
				started[m.id()] = true
			case "Completed":
				o.Completed[m.id()]++
			case "Compensated":
				o.Undone[m.id()]++
			}
		case "transfer:inbox":
			if m.Type == "Received" {
				o.Received++
			}
		case "transfer:inbox+refused":
			o.Refused++
		case "account":
			events[m.ID] = m
			o.addEvent(p, m, last)
		}
	}
	for id := range started {
		ends := o.Completed[id] + o.Undone[id]
		if _, open, _ := p.find(id); ends != 1 && (!open || ends > 1) {
			o.Open++
		}
	}
	for id, balance := range b.Balances {
		o.Accounts += balance
		if e, has := last[id]; !has || e.Balance != balance {
			o.Rows++
		}
	}
	o.addBank(p, b)
	o.addStream(b.Stream, events)
	return o
}

// addEvent adds an event of an account. The balance after it follows from the one before.
func (o *outcome) addEvent(p *plan, m row, last map[string]event) {
	e, err := m.event()
	before, known := last[m.id()]
	last[m.id()] = e
	order, _, ok := p.find(e.Transfer)
	switch {
	case err != nil:
		o.Strange = append(o.Strange, err.Error())
	case m.Type == "Opened":
		if known || e.Balance != p.Balances[m.id()] {
			o.Strange = append(o.Strange, fmt.Sprintf("%s@%d opens the account", m.Stream, m.Position))
		}
		return
	case !ok || order.From != m.id() || order.Amount != e.Amount:
		o.Untrue++
	}
	switch {
	case m.Type == "Debited" && e.Balance == before.Balance-e.Amount:
		o.Debits[e.Transfer]++
	case m.Type == "Returned" && e.Balance == before.Balance+e.Amount:
		o.Returns[e.Transfer]++
	default:
		o.Strange = append(o.Strange, fmt.Sprintf("%s@%d, a %s of %d, leaves %d of %d", m.Stream, m.Position, m.Type, e.Amount, e.Balance, before.Balance))
	}
}

// addBank compares the bank's ledger with the accounts, order by order.
func (o *outcome) addBank(p *plan, b *books) {
	for id, entries := range b.Entries {
		order, _, ok := p.find(id)
		paid := 0
		for _, amount := range entries {
			o.AtBank += amount
			if amount > 0 {
				paid++
			}
			if !ok || amount != order.Amount && amount != -order.Amount {
				o.Untrue++
			}
		}
		if paid > 1 {
			o.PaidTwice++
		}
	}
	for _, payment := range b.Payments {
		o.BankStates[payment.State]++
	}
	add := func(id string) (atBank int64, debits int) {
		for _, amount := range b.Entries[id] {
			atBank += amount
		}
		if o.Debits[id] > 1 || o.Returns[id] > 1 {
			o.Twice++
		}
		return atBank, o.Debits[id] - o.Returns[id]
	}
	for id, order := range p.Open {
		atBank, debits := add(id)
		way := int64(debits)*order.Amount - atBank
		o.OnTheWay += way
		back := way == -order.Amount && o.Undone[id] == 1 // the bank has its cancel yet to come
		if way != 0 && way != order.Amount && !back {
			o.Torn++
		}
	}
	for id, order := range p.Orders {
		atBank, debits := add(id)
		switch {
		case atBank == order.Amount && debits == 1:
			o.Settled++
		case atBank == 0 && debits == 0:
			o.Neither++
		default:
			o.Torn++
		}
		if (o.Completed[id] == 1) != (atBank == order.Amount) {
			o.Disagree++
		}
	}
}

// addStream compares JetStream with the events that were committed.
func (o *outcome) addStream(stream []row, events map[uuid.UUID]row) {
	seen := map[uuid.UUID]bool{}
	positions := map[string]int64{} // of the next event
	for _, m := range stream {
		if seen[m.ID] {
			o.Repeated++
			continue
		}
		seen[m.ID] = true
		if e, is := events[m.ID]; !is || e.Stream != m.Stream || e.Position != m.Position || !sameJSON(e.Data, m.Data) {
			o.Foreign++
			continue
		}
		if m.Position != positions[m.Stream] { // so the balances follow from each other as in the store
			o.Disorder++
		}
		positions[m.Stream] = m.Position + 1
	}
	for id := range events {
		if !seen[id] {
			o.Missing++
		}
	}
}

func (d *messagingDemo) table(o *outcome, b *books, late error) []stage.Row {
	all := len(d.plan.Orders)
	planted, turned := d.plan.Planted, int(d.turned.Load())
	received := stage.Compare("orders received, each once", all, o.Received)
	started := stage.Compare("sagas started", all, o.Started)
	refused := stage.Compare("reused keys refused with 422", planted, turned)
	recorded := stage.Compare("and recorded as refused", planted, o.Refused)
	missing := stage.Compare("events missing in JetStream", 0, o.Missing)
	unsent := stage.Compare("webhooks unsent", 0, b.Unsent)
	gone := 0
	if d.gone {
		gone = 1
	}
	money := account.Money(d.plan.Money)
	after := account.Money(o.Accounts + o.AtBank + o.OnTheWay)
	was := stage.Compare("times that JetStream was gone", 1, gone)
	if late != nil { // then these are as far as the run came
		received = stage.Between(received.Name, d.accepted, len(d.begun), o.Received)
		started = stage.Between(started.Name, d.accepted, len(d.begun), o.Started)
		refused = stage.Between(refused.Name, turned, int(d.planted.Load()), turned)
		recorded = stage.Between(recorded.Name, turned, int(d.planted.Load()), o.Refused)
		was = stage.Detail(was.Name, gone)
	}
	if errors.Is(late, stage.ErrNotSettled) {
		missing = stage.Detail(missing.Name, o.Missing)
		unsent = stage.Detail(unsent.Name, b.Unsent)
	}
	rows := []stage.Row{
		{Name: "money before and after", File: money.String(), Store: after.String(), Same: money == after},
		{Name: "  in the accounts", Store: account.Money(o.Accounts).String(), Same: true},
		{Name: "  at the bank", Store: account.Money(o.AtBank).String(), Same: true},
		received,
		started,
		stage.Compare("sagas open", 0, o.Open),
		stage.Compare("orders paid once and debited once, or neither", all, o.Settled+o.Neither),
		stage.Detail("paid and debited", o.Settled),
		stage.Detail("neither", o.Neither),
		stage.Compare("orders torn", 0, o.Torn),
		stage.Compare("orders that the bank paid twice", 0, o.PaidTwice),
		stage.Compare("orders debited or given back twice", 0, o.Twice),
		stage.Compare("sagas whose end the bank denies", 0, o.Disagree),
		stage.Compare("amounts that differ from the file", 0, o.Untrue),
		stage.Compare("rows that differ from the last event", 0, o.Rows),
		stage.Compare("accounts", len(d.plan.Balances), len(b.Balances)),
		missing,
		stage.Compare("events there that were rolled back", 0, o.Foreign),
		stage.Compare("events there twice", 0, o.Repeated),
		stage.Compare("events there out of order", 0, o.Disorder),
		stage.Detail("events there", len(b.Stream)),
		unsent,
		refused,
		recorded,
		stage.Compare("answers of another kind", 0, int(d.wrong.Load())),
		was,
		stage.Detail("refused by the bank", o.BankStates[bank.Refused]),
		stage.Detail("cancelled before the bank had paid", o.BankStates[bank.Cancelled]),
		stage.Detail("cancelled when the bank had paid", o.BankStates[bank.Reversed]),
		stage.Detail("webhooks sent", b.Copies),
		stage.Detail("requests sent", int(d.sent.Load())),
		stage.Detail("sent again, after a kill", int(d.again.Load())),
		stage.Detail("processes killed and started again", d.kills),
	}
	if late != nil {
		rows = append(rows, stage.Detail("orders sent that have not ended", len(d.plan.Open)),
			stage.Row{Name: "  their money on the way", Store: account.Money(o.OnTheWay).String(), Same: true})
	}
	return rows
}

// part cuts the plan to the orders that have come to their end, if the limit ended before all were sent.
// After their time to settle all that were accepted have to.
func (d *messagingDemo) part(b *books, late error) {
	if late == nil {
		return
	}
	done := maps.Clone(d.begun)
	if errors.Is(late, stage.ErrNotSettled) {
		ended := b.ended()
		for id, accepted := range done {
			done[id] = accepted && ended[id]
		}
	}
	all := len(d.plan.Orders)
	d.plan = d.plan.part(done)
	stage.PrintPart(d.out, late, len(d.plan.Orders), all, "orders")
}

// verdict reads the books, prints the table, and tells the story of a transfer that was undone. If the limit has ended
// it does so for the orders that were sent by then.
func (d *messagingDemo) verdict(ctx context.Context, late error) error {
	b, err := readBooks(ctx, d.url, d.ledger(), d.brokerURL())
	if err != nil {
		return err
	}
	d.part(b, late)
	o := b.judge(d.plan)
	same := stage.PrintTable(d.out, "expected", "found", d.table(o, b, late))
	slices.Sort(o.Strange)
	for _, strange := range append(d.odd, o.Strange...)[:min(len(d.odd)+len(o.Strange), 5)] {
		fmt.Fprintln(d.out, "should not be there:", strange)
	}
	d.story(o, b)
	elapsed := time.Since(d.started)
	if !same || len(o.Strange) > 0 {
		fmt.Fprintf(d.out, "\nThe books differ (%.1f s, seed %d).\n", elapsed.Seconds(), d.seed)
		return errBooksDiffer
	}
	end := fmt.Sprintf("Every order was carried out once or undone, through %d kills and a broker that was gone", d.kills)
	if late != nil {
		end = fmt.Sprintf("Every order that has ended was carried out once or undone, through %d kills; the others were not done in time", d.kills)
	}
	fmt.Fprintf(d.out, "\n%s (%.1f s, seed %d).\n", end, elapsed.Seconds(), d.seed)
	return nil
}
