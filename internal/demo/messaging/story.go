package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
)

// story tells of a transfer that was undone, from all three stores.
func (d *messagingDemo) story(o *outcome, b *books) {
	id := interesting(o, b)
	if id == "" {
		return
	}
	t := d.plan.Orders[id]
	fmt.Fprintf(d.out, "\nWhat became of order %s, to transfer %s from account %s to %s?\n", id, account.Money(t.Amount), t.From, t.To)
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	add := func(at time.Time, format string, args ...any) {
		lines = append(lines, line{at, fmt.Sprintf(format, args...)})
	}
	for _, m := range b.Messages {
		if text := told(m, id); text != "" {
			add(m.At, "%s, %s@%d", text, m.Stream, m.Position)
		}
	}
	for _, m := range b.Stream {
		if e, err := m.event(); err == nil && e.Transfer == id {
			add(m.At, "JetStream has the %s", m.Type)
		}
	}
	if p, has := b.Payments[id]; has {
		switch p.State {
		case bank.Reversed:
			add(p.At, "the bank pays, with number %d", p.Number)
			add(p.Ended, "the bank takes the payment back")
		case bank.Cancelled:
			add(p.At, "the bank cancels the order, which it has not paid")
		default:
			add(p.At, "the bank has it %s", p.State)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	for _, l := range lines {
		fmt.Fprintf(d.out, "  %s  %s\n", l.at.Format("15:04:05.000"), l.text)
	}
}

// told returns a message about an order in words, "" if it is not about it.
func told(m row, id string) string {
	category, _, _ := strings.Cut(m.Stream, "-")
	var f struct {
		Step, For, Reason, Error, Transfer string
		Balance                            int64
		Attempt                            int
	}
	if json.Unmarshal(m.Data, &f) != nil {
		return ""
	}
	is := m.id() == id
	switch {
	case category == "transfer:inbox" && is:
		return "the order is received"
	case category == "transfer:outgoing" && is:
		return "to the bank: " + m.Type
	case category == "bank:inbox" && strings.HasSuffix(m.Stream, "/"+id):
		outcome, _, _ := strings.Cut(m.id(), "/")
		return "the bank says: " + outcome
	case category == "account" && f.Transfer == id:
		return fmt.Sprintf("%s, and %s left", strings.ToLower(m.Type), account.Money(f.Balance))
	case category == "transfer:saga" && is:
		parts := []string{"the saga:", m.Type, f.For, f.Step, f.Reason, f.Error}
		return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
	}
	return ""
}

// interesting returns an order that was undone and has the longest story: the bank had paid it.
func interesting(o *outcome, b *books) (best string) {
	most := -1
	for _, id := range slices.Sorted(maps.Keys(o.Undone)) {
		rank := o.Returns[id]
		switch b.Payments[id].State {
		case bank.Reversed:
			rank += 6
		case bank.Cancelled:
			rank += 4
		case bank.Refused:
			rank += 2
		}
		if rank > most {
			best, most = id, rank
		}
	}
	return best
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
