package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/messagestore"
)

// story tells, from the store alone, which sender won a withdrawal that was sent more than
// once. "dibs explain" tells it for any reservation.
func (d *demo) story(ctx context.Context) error {
	o, id := d.often()
	if id == "" {
		return nil
	}
	fmt.Fprintf(d.out, "\nWho won withdrawal %s, of %s from account %s?\n", id, o.Amount, o.Account)
	commands := account.Commands.Stream(o.Account)
	var reserved *messagestore.Message
	for m, err := range d.store.ReadCategory(ctx, account.Copies, 0, messagestore.Filter{Types: []string{"Withdraw"}}) {
		if err != nil {
			return err
		}
		if m.Stream.CardinalID() != o.Account {
			continue
		}
		if body, err := messagestore.Decode[account.Withdraw](m); err == nil && body.WithdrawalID == id {
			reserved = m
			break
		}
	}
	if reserved == nil {
		fmt.Fprintln(d.out, "  nobody")
		return nil
	}
	lines := []line{{reserved.Time, fmt.Sprintf("copied to the first message of %s", reserved.Stream)}}
	for m, err := range d.store.ReadStream(ctx, commands, 0) {
		if err != nil {
			return err
		}
		body, err := messagestore.Decode[account.Withdraw](m)
		if err != nil || body.WithdrawalID != id {
			continue // another command
		}
		what := "refused"
		if reserved.Metadata.Follows(m) {
			what = "won"
		}
		lines = append(lines, line{m.Time, fmt.Sprintf("%s sent it, %s@%d: %s", m.Metadata.Local.Get("sender"), m.Stream, m.Position, what)})
	}
	for m, err := range d.store.ReadStream(ctx, account.Category.Stream(o.Account), 0) {
		if err != nil {
			return err
		}
		if m.Metadata.Follows(reserved) {
			lines = append(lines, line{m.Time, fmt.Sprintf("%s, %s@%d", m.Type, m.Stream, m.Position)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	for _, l := range lines {
		fmt.Fprintf(d.out, "  %s  %s\n", l.at.Format("15:04:05.000000"), l.text)
	}
	return nil
}

// A line of the story, with its time.
type line struct {
	at   time.Time
	text string
}

// often returns a withdrawal that is sent most often, the first of the file.
func (d *demo) often() (Order, string) {
	var best Order
	var bestID string
	for _, o := range d.orders {
		for _, month := range months {
			if id := o.ID + "/" + month; d.plan.Repeats[id] > max(1, d.plan.Repeats[bestID]) {
				best, bestID = o, id
			}
		}
	}
	return best, bestID
}
