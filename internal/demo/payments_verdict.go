package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/examples/payments"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

// verdict compares the file with the payments table, the bank's log, the intents and the answers,
// prints the table and the story of one payment. If the limit has ended it does so for the payments that were answered;
// the others may have been made once, or not at all.
func (d *paymentsDemo) verdict(ctx context.Context, late error) error {
	d.late = late
	all := len(d.plan.Payments)
	o, err := d.readOutcome(ctx)
	if err != nil {
		return err
	}
	sent, _ := d.clientState()
	stage.PrintPart(d.out, late, len(d.plan.Payments), all, "payments")
	same := stage.PrintTable(d.out, "the file says", "the books say", d.table(o, sent))
	for _, strange := range o.Strange[:min(len(o.Strange), 5)] {
		fmt.Fprintln(d.out, "should not be there:", strange)
	}
	if err := d.story(ctx, o); err != nil {
		return err
	}
	elapsed := time.Since(d.started)
	if !same || len(o.Strange) > 0 {
		fmt.Fprintf(d.out, "\nThe books differ (%.1f s, seed %d).\n", elapsed.Seconds(), d.seed)
		return errBooksDiffer
	}
	end := fmt.Sprintf("Every payment was made once, and all its requests got one response, through %d kills and a stop", d.kills)
	if d.late != nil {
		end = fmt.Sprintf("Every payment that was answered was made once, and all its requests got one response, through %d kills; the others were not done in time", d.kills)
	}
	fmt.Fprintf(d.out, "\n%s (%.1f s, seed %d).\n", end, elapsed.Seconds(), d.seed)
	return nil
}

func (d *paymentsDemo) table(o *outcome, sent clientReport) []stage.Row {
	all := len(d.plan.Payments)
	sum := account.Money(d.plan.Sum)
	repeated, beyond := o.repeated()
	late := stage.Row{Name: "late calls that the bank refused", File: ">= " + stage.Count(len(d.held)), Store: stage.Count(o.TooLate), Same: o.TooLate >= len(d.held)}
	planted := stage.Compare("reused keys refused with 422", d.plan.Planted, o.Refused)
	stopped := stage.Compare("servers stopped, and gone on too late", 1, min(len(d.held), 1))
	if d.late != nil { // then these are as far as the run came
		late = stage.Detail(late.Name, o.TooLate)
		planted = stage.Detail(planted.Name, o.Refused)
		stopped = stage.Detail("servers stopped, and gone on", min(len(d.held), 1))
	}
	rows := []stage.Row{
		stage.Compare("payments in the table", all, o.Rows),
		stage.Compare("rows that differ from the file", 0, o.Wrong),
		{Name: "sum of the table", File: sum.String(), Store: o.Sum.String(), Same: sum == o.Sum},
		stage.Compare("keys with exactly one Confirmed", all, once(d.plan.closed(o.Confirmed))),
		stage.Compare("keys of the bank's transfers", all, len(d.plan.closed(o.Calls))),
		{Name: "sum of the bank's transfers, each once", File: sum.String(), Store: o.BankPaid.String(), Same: sum == o.BankPaid},
		stage.Compare("transfers with a token that fell", 0, o.Fell),
		stage.Compare("calls that the bank was wrong about", 0, o.Untrue),
		stage.Compare("keys with more transfers than attempts", 0, beyond),
		late,
		stage.Detail("leases that servers found lost", d.lost),
		{Name: "transfers repeated, at most takeovers", File: "<= " + stage.Count(o.Takeovers), Store: stage.Count(repeated), Same: repeated <= o.Takeovers},
		stage.Compare("payments without one response for all", 0, o.differing(d.plan)),
		planted,
		stage.Compare("answers of another kind", 0, o.Mistaken),
		stage.Compare("leases held in the end", 0, o.Held),
		stage.Detail("requests sent", sent.Sent),
		stage.Detail("replays among the answers", sent.Replayed),
		stage.Detail("requests cut off by the client", sent.Cut),
		stage.Detail("told that it is in progress, 409", sent.Busy),
		stage.Detail("failed, or the server was killed", sent.Failed),
		stage.Detail("servers killed and started again", d.kills),
		stopped,
	}
	if d.late != nil {
		rows = append(rows, stage.Detail("payments without an answer", len(d.plan.Open)),
			stage.Compare("of them half made: a row or a Confirmed", 0, o.halves(d.plan)))
	}
	return rows
}

// story tells, from the store and the bank's log, of one payment that was taken over.
func (d *paymentsDemo) story(ctx context.Context, o *outcome) error {
	key := d.interesting(o)
	if key == "" {
		return nil
	}
	p := d.plan.Payments[key]
	manager, err := intent.New(d.books.store, payments.Intents, nil)
	if err != nil {
		return err
	}
	stream, err := manager.Stream(p.Account, key)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\nWhat became of payment %s, of %s from account %s?\n", key, account.Money(p.Amount), p.Account)
	var lines []line
	var token int64
	for m, err := range d.books.store.ReadStream(ctx, stream, 0) {
		if err != nil {
			return err
		}
		var text string
		if text, token, err = told(m, token); err != nil {
			return err
		}
		lines = append(lines, line{m.Time, text})
	}
	err = readLines(d.bankLog(), func(c payments.Call) {
		switch {
		case c.Payment != key:
		case c.Number == 0:
			lines = append(lines, line{c.At, fmt.Sprintf("the bank refuses the order of %s: token %d is too late", c.Session, c.Token)})
		default:
			lines = append(lines, line{c.At, fmt.Sprintf("the bank makes transfer %d, for token %d", c.Number, c.Token)})
		}
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	for _, l := range lines {
		fmt.Fprintf(d.out, "  %s  %s\n", l.at.Format("15:04:05.000000"), l.text)
	}
	answers := 0
	for _, n := range o.Answers[key] {
		answers += n
	}
	fmt.Fprintf(d.out, "  %d requests got that response, byte for byte\n", answers)
	return nil
}

// told returns a message of an intent in words, and the token of its lease.
func told(m *messagestore.Message, before int64) (text string, token int64, err error) {
	var f struct {
		Session string          `json:"session"`
		Attempt int             `json:"attempt"`
		TTL     int64           `json:"ttl"`
		Token   int64           `json:"token"`
		Reason  string          `json:"reason"`
		Result  json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(m.Data, &f); err != nil {
		return "", 0, fmt.Errorf("%s: %w", m, err)
	}
	session := f.Session
	if name, id, ok := strings.Cut(session, "/"); ok {
		session = name + "/…" + id[max(0, len(id)-4):]
	}
	at := fmt.Sprintf("%s@%d", m.Stream, m.Position)
	switch m.Type {
	case intent.TypeReserved:
		reserved, err := messagestore.Decode[intent.ReservedMessage](m)
		if err != nil {
			return "", 0, err
		}
		token = reserved.Token(m.Time)
		doing := "reserved"
		if f.Attempt > 1 {
			doing = fmt.Sprintf("taken over, attempt %d,", f.Attempt)
		}
		return fmt.Sprintf("%s by %s with token %d, for %v, %s", doing, session, token, time.Duration(f.TTL)*time.Millisecond, at), token, nil
	case intent.TypeReleased:
		return fmt.Sprintf("released by %s: %s, %s", session, f.Reason, at), f.Token, nil
	case intent.TypeConfirmed:
		return fmt.Sprintf("confirmed by %s with its response, %s", session, at), f.Token, nil
	case intent.TypeExtended:
		return fmt.Sprintf("extended by %s, %s", session, at), f.Token, nil
	}
	return fmt.Sprintf("%s by %s, %s", strings.ToLower(m.Type), session, at), before, nil
}

// interesting returns a key that had a late order refused by the bank, or that was taken over and paid
// for twice, or else the nearest to it.
func (d *paymentsDemo) interesting(o *outcome) (best string) {
	most := -1
	for _, key := range d.plan.order {
		rank := min(o.Calls[key], 2)*4 + min(o.Attempts[key], 2)*2
		if len(o.Answers[key]) == 1 {
			rank++
		}
		if o.Late[key] {
			rank += 100
		}
		if rank > most {
			best, most = key, rank
		}
	}
	return best
}
