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

	// Sequence is the global position of the last copy of a withdrawal that was handled.
	Sequence messagestore.GlobalPosition
}

// Processed reports whether the copy at that global position was handled. Copies for one account
// are delivered in order, so every copy before the last one was handled. A parked copy would break
// this: redriven, it would be taken for an old one. So its handler parks none, and its consumer
// stops at a failure.
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
