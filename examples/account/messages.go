package account

import (
	"fmt"
	"time"

	"github.com/dibs-go/dibs/messagestore"
)

// The categories of the component. Commands come in by one, events go out by the
// other; each account is a stream in both.
const (
	Category messagestore.Category = "account"
	Commands messagestore.Category = "account:command"

	// Copies is the category in which the keys of deposits and withdrawals are reserved. The second
	// consumer handles the copies of withdrawals there.
	Copies messagestore.Category = "account:command+reservation+" + name
)

// name is the name of both consumers and of the reserver.
const name = "accounts"

// Money is an amount in hundredths of a crown, so that sums are exact.
type Money int64

// String returns the amount in crowns, with two decimals.
func (m Money) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	return fmt.Sprintf("%s%d.%02d", sign, m/100, m%100)
}

// Open asks for an account to be opened. Asking again changes nothing: the account's stream
// has begun.
type Open struct {
	AccountID string `json:"accountId"`
	Owner     string `json:"owner"`
}

// Deposit asks for money to be paid in. A sender that gets no answer may repeat the write with the
// same message id, which the store keeps once, or send another message: the deposit's id is the key
// by which it is handled once.
type Deposit struct {
	AccountID string `json:"accountId"`
	DepositID string `json:"depositId"`
	Amount    Money  `json:"amount"`
}

// Withdraw asks for money to be paid out. A sender may send it again as another message:
// the withdrawal's id is the key by which it is handled once.
type Withdraw struct {
	AccountID    string `json:"accountId"`
	WithdrawalID string `json:"withdrawalId"`
	Amount       Money  `json:"amount"`
	To           string `json:"to,omitempty"`
}

// Close asks for an account to be closed.
type Close struct {
	AccountID string `json:"accountId"`
}

// Opened says that an account was opened.
type Opened struct {
	AccountID string    `json:"accountId"`
	Owner     string    `json:"owner"`
	Processed time.Time `json:"processedTime"`
}

// Deposited says that money was paid in.
type Deposited struct {
	AccountID string    `json:"accountId"`
	DepositID string    `json:"depositId"`
	Amount    Money     `json:"amount"`
	Processed time.Time `json:"processedTime"`
}

// Withdrawn says that money was paid out. Its sequence is the global position of the command's
// copy.
type Withdrawn struct {
	AccountID    string                      `json:"accountId"`
	WithdrawalID string                      `json:"withdrawalId"`
	Amount       Money                       `json:"amount"`
	Processed    time.Time                   `json:"processedTime"`
	Sequence     messagestore.GlobalPosition `json:"sequence"`
}

// WithdrawalRejected says that money was not paid out, and why.
type WithdrawalRejected struct {
	AccountID    string                      `json:"accountId"`
	WithdrawalID string                      `json:"withdrawalId"`
	Amount       Money                       `json:"amount"`
	Reason       string                      `json:"reason"`
	Processed    time.Time                   `json:"processedTime"`
	Sequence     messagestore.GlobalPosition `json:"sequence"`
}

// Closed says that an account was closed.
type Closed struct {
	AccountID string    `json:"accountId"`
	Processed time.Time `json:"processedTime"`
}

// The names under which the messages are stored. They stay when a Go type is
// renamed.

// MessageType implements [messagestore.Body].
func (Open) MessageType() string { return "Open" }

// MessageType implements [messagestore.Body].
func (Deposit) MessageType() string { return "Deposit" }

// MessageType implements [messagestore.Body].
func (Withdraw) MessageType() string { return "Withdraw" }

// MessageType implements [messagestore.Body].
func (Close) MessageType() string { return "Close" }

// MessageType implements [messagestore.Body].
func (Opened) MessageType() string { return "Opened" }

// MessageType implements [messagestore.Body].
func (Deposited) MessageType() string { return "Deposited" }

// MessageType implements [messagestore.Body].
func (Withdrawn) MessageType() string { return "Withdrawn" }

// MessageType implements [messagestore.Body].
func (WithdrawalRejected) MessageType() string { return "WithdrawalRejected" }

// MessageType implements [messagestore.Body].
func (Closed) MessageType() string { return "Closed" }

// Key is the idempotence key: of all deposits with it, one is handled.
func (d Deposit) Key() string { return d.DepositID }

// Key is the idempotence key: of all withdrawals with it, one is handled.
func (w Withdraw) Key() string { return w.WithdrawalID }
