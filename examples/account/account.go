package account

import (
	"github.com/dibs-go/dibs/entity"
	"github.com/dibs-go/dibs/messagestore"
)

// An Account is the state that its events add up to.
type Account struct {
	Owner   string
	Balance Money
	Open    bool
	Closed  bool

	// Sequence is the global position of the last command that changed it.
	Sequence messagestore.GlobalPosition
}

// Processed reports whether the command at that global position was handled. Commands of
// one account are delivered in order, so every command before the last one was handled. A
// parked command would break this: redriven, it would be taken for an old one. So this
// component parks only commands that can never succeed, and its consumer stops at any other
// failure.
func (a Account) Processed(sequence messagestore.GlobalPosition) bool { return sequence <= a.Sequence }

// Projection folds an account's events into an [Account].
func Projection() *entity.Projection[Account] {
	p := entity.NewProjection[Account]()
	entity.On(p, func(a Account, e Opened) Account {
		a.Owner, a.Open = e.Owner, true
		return a
	})
	entity.On(p, func(a Account, e Deposited) Account {
		a.Balance += e.Amount
		a.Sequence = e.Sequence
		return a
	})
	entity.On(p, func(a Account, e Withdrawn) Account {
		a.Balance -= e.Amount
		a.Sequence = e.Sequence
		return a
	})
	entity.On(p, func(a Account, e WithdrawalRejected) Account {
		a.Sequence = e.Sequence
		return a
	})
	entity.On(p, func(a Account, _ Closed) Account {
		a.Closed = true
		return a
	})
	return p
}
