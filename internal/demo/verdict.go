package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/messagestore"
)

// errBooksDiffer is returned by a run whose store does not agree with the file.
var errBooksDiffer = errors.New("the store and the file do not agree")

// A ledger is the result by the store. It is added up from the stored messages, not by the
// component's own code.
type ledger struct {
	Accounts map[string]*book
	Opened   map[string]int // by account
	Deposits map[string]int // by deposit
	Effects  map[string]int // by withdrawal: paid or rejected
	Sum      account.Money

	Sent     map[string]int                         // by the effect asked for
	Asked    []sentCommand                          // the first command for each effect, in their order
	Recorded int                                    // commands from senders
	Reserved map[string]int                         // by deposit or withdrawal: messages in its reservation stream
	Copied   map[string]messagestore.GlobalPosition // by withdrawal
	Strange  []string                               // messages that should not exist
}

func readLedger(ctx context.Context, store *messagestore.Store) (*ledger, error) {
	l := &ledger{
		Accounts: map[string]*book{}, Opened: map[string]int{}, Deposits: map[string]int{}, Effects: map[string]int{},
		Sent: map[string]int{}, Reserved: map[string]int{}, Copied: map[string]messagestore.GlobalPosition{},
	}
	for category, add := range map[messagestore.Category]func(*messagestore.Message, fields){
		account.Category: l.addEvent, account.Commands: l.addCommand, account.Copies: l.addReservation,
	} {
		for m, err := range store.ReadCategory(ctx, category, 0, messagestore.Filter{}) {
			if err != nil {
				return nil, err
			}
			var f fields
			if err := json.Unmarshal(m.Data, &f); err != nil {
				return nil, fmt.Errorf("%s: %w", m, err)
			}
			add(m, f)
		}
	}
	for _, b := range l.Accounts {
		l.Sum += b.Balance
	}
	return l, nil
}

// fields are all fields that any of the messages has.
type fields struct {
	DepositID    string        `json:"depositId"`
	WithdrawalID string        `json:"withdrawalId"`
	Amount       account.Money `json:"amount"`
}

func (l *ledger) addEvent(m *messagestore.Message, f fields) {
	b := l.Accounts[m.Stream.ID()]
	if b == nil {
		b = &book{}
		l.Accounts[m.Stream.ID()] = b
	}
	switch m.Type {
	case "Opened":
		l.Opened[m.Stream.ID()]++
	case "Deposited":
		l.Deposits[f.DepositID]++
		b.Funding += f.Amount
		b.Balance += f.Amount
	case "Withdrawn":
		l.Effects[f.WithdrawalID]++
		b.Paid++
		b.Balance -= f.Amount
	case "WithdrawalRejected":
		l.Effects[f.WithdrawalID]++
		b.Rejected++
	default:
		l.Strange = append(l.Strange, m.String())
	}
}

func (l *ledger) addCommand(m *messagestore.Message, f fields) {
	l.Recorded++
	a := sentCommand{effect(m.Type, m.Stream.ID(), f.DepositID, f.WithdrawalID), m.Stream.ID(), f, m.GlobalPosition}
	if l.Sent[a.effect]++; l.Sent[a.effect] == 1 {
		l.Asked = append(l.Asked, a)
	}
}

func (l *ledger) addReservation(m *messagestore.Message, f fields) {
	l.Reserved[f.DepositID+f.WithdrawalID]++
	if f.WithdrawalID != "" {
		l.Copied[f.WithdrawalID] = m.GlobalPosition
	}
	if m.Position != 0 {
		l.Strange = append(l.Strange, m.String())
	}
}

// A sentCommand is a command, the first that asks for its effect.
type sentCommand struct {
	effect, account string
	fields
	at messagestore.GlobalPosition
}

func effect(kind, account, deposit, withdrawal string) string {
	return kind + " " + account + " " + deposit + withdrawal
}

// open reports whether a command without an effect is due to none: a consumer was not there yet.
func (l *ledger) open(a sentCommand, passed passed) bool {
	switch {
	case a.WithdrawalID != "":
		if l.Effects[a.WithdrawalID] > 0 {
			return false
		}
		if at, is := l.Copied[a.WithdrawalID]; is {
			return at >= passed.copies
		}
	case a.DepositID != "":
		if l.Deposits[a.DepositID] > 0 {
			return false
		}
	case l.Opened[a.account] > 0:
		return false
	}
	return a.at >= passed.commands
}

// once counts the keys that were counted exactly once.
func once(counts map[string]int) (n int) {
	for _, c := range counts {
		if c == 1 {
			n++
		}
	}
	return n
}

// verdict compares the store with the file, prints the table and, for one withdrawal that
// was sent often, the story of its winner. If the limit has ended it does so for the commands that were sent by then.
func (d *demo) verdict(ctx context.Context, late error) error {
	l, err := readLedger(ctx, d.store)
	if err != nil {
		return err
	}
	sent, _ := d.senderState(0)
	open := 0
	if late != nil {
		w, all := newWatcher(d.store), d.plan.Distinct
		if err := w.look(ctx); err != nil {
			return err
		}
		d.plan, open = d.plan.part(l, w.passed)
		stage.PrintPart(d.out, late, d.plan.Distinct, all, "commands")
	}
	rows := d.table(l, sent, late, open)
	same := stage.PrintTable(d.out, "the file says", "the store says", rows)
	for _, strange := range l.Strange[:min(len(l.Strange), 5)] {
		fmt.Fprintln(d.out, "should not be there:", strange)
	}
	if err := d.story(ctx); err != nil {
		return err
	}
	elapsed := time.Since(d.started)
	if !same || len(l.Strange) > 0 {
		fmt.Fprintf(d.out, "\nThe books differ (%.1f s, seed %d).\n", elapsed.Seconds(), d.seed)
		return errBooksDiffer
	}
	end := "Every command was handled exactly once, through a kill -9"
	if late != nil {
		end = "Every command that a consumer came to was handled exactly once; the others were not done in time"
	}
	fmt.Fprintf(d.out, "\n%s (%.1f s, seed %d).\n", end, elapsed.Seconds(), d.seed)
	return nil
}

func (d *demo) table(l *ledger, sent report, late error, open int) []stage.Row {
	var paid, rejected, storePaid, storeRejected, differ int
	var sum account.Money
	for id, want := range d.plan.Books {
		paid += want.Paid
		rejected += want.Rejected
		sum += want.Balance
		if got := l.Accounts[id]; got == nil || *got != want {
			differ++
		}
	}
	for _, got := range l.Accounts {
		storePaid += got.Paid
		storeRejected += got.Rejected
	}
	accounts, reservations := len(d.plan.Books), len(d.plan.Repeats)+d.plan.Deposits
	reserved := d.plan.closed(l.Reserved)
	effects := once(l.Opened) + once(l.Deposits) + once(l.Effects)
	opens := 0
	for what, n := range l.Sent {
		if strings.HasPrefix(what, "Open ") {
			opens += n
		}
	}
	withdraws := l.Recorded - opens - len(l.Deposits)
	byID, byStream, byKey := int(sent.Refused), opens-len(l.Opened), withdraws-len(l.Copied)
	kills := 0
	if d.killed {
		kills = 1
	}
	commands := stage.Compare("commands sent", d.plan.Sent, l.Recorded+byID)
	duplicates := stage.Compare("duplicates refused", d.plan.Sent-d.plan.Distinct, byID+byStream+byKey)
	killed := stage.Compare("consumers killed and started again", 1, kills)
	if late != nil { // then these are as far as the run came
		commands = stage.Between(commands.Name, int(sent.Sent), int(sent.Begun), l.Recorded+byID)
		duplicates = stage.Compare(duplicates.Name, int(sent.Sent)-d.plan.Distinct, byID+byStream+byKey)
		killed = stage.Detail(killed.Name, kills)
	}
	if errors.Is(late, stage.ErrNotSettled) { // what was not handled was not refused either
		duplicates = stage.Detail(duplicates.Name, byID+byStream+byKey)
	}
	rows := []stage.Row{
		commands,
		stage.Compare("distinct commands", d.plan.Distinct+open, len(l.Sent)),
		duplicates,
		stage.Detail("by message id: the same write again", byID),
		stage.Detail("by initiating: the account has begun", byStream),
		stage.Detail("by reservation: the key is taken", byKey),
		stage.Compare("reservations with exactly one winner", reservations, once(reserved)),
		stage.Compare("effects that happened exactly once", d.plan.Distinct, effects),
		stage.Compare("withdrawals paid", paid, storePaid),
		stage.Compare("withdrawals rejected", rejected, storeRejected),
		stage.Compare("accounts", accounts, len(l.Accounts)),
		stage.Compare("accounts with another balance", 0, differ),
		{Name: "sum of all balances", File: sum.String(), Store: l.Sum.String(), Same: sum == l.Sum},
		killed,
	}
	if late != nil {
		rows = append(rows, stage.Detail("commands that no consumer came to", open))
	}
	return rows
}
