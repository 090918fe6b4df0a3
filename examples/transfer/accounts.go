package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/saga"
)

// The events of an account. Each has the balance after it, so that a reader that has one event
// knows the account.
type (
	// Opened begins an account.
	Opened struct {
		Balance int64 `json:"balance"`
	}

	// Debited says that a transfer has taken money from the account.
	Debited struct {
		Transfer string `json:"transfer"`
		Amount   int64  `json:"amount"`
		Balance  int64  `json:"balance"`
	}

	// Returned says that a transfer was undone.
	Returned struct {
		Transfer string `json:"transfer"`
		Amount   int64  `json:"amount"`
		Balance  int64  `json:"balance"`
	}
)

// MessageType implements [messagestore.Body].
func (Opened) MessageType() string { return "Opened" }

// MessageType implements [messagestore.Body].
func (Debited) MessageType() string { return "Debited" }

// MessageType implements [messagestore.Body].
func (Returned) MessageType() string { return "Returned" }

// CreateTable creates the table of accounts, if it is not there.
func (s *Service[Tx]) CreateTable(ctx context.Context) error {
	return s.transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		_, err := s.sql(ctx, tx, `create table if not exists accounts (id text primary key, balance bigint not null check (balance >= 0))`, nil)
		return nil, err
	})
}

// OpenAccounts opens up to 100 accounts, each with a balance, in one transaction.
func (s *Service[Tx]) OpenAccounts(ctx context.Context, balances map[string]int64) error {
	return s.transact(ctx, func(ctx context.Context, tx Tx) (events []messagestore.StreamWrite, err error) {
		for id, balance := range balances {
			if _, err := s.sql(ctx, tx, `insert into accounts (id, balance) values ($1, $2)`, []any{id, balance}); err != nil {
				return nil, err
			}
			events = append(events, messagestore.To(Accounts.Stream(id), messagestore.NoStream, Opened{balance}))
		}
		return events, nil
	})
}

// Balance returns the balance of an account. The error matches [messagestore.ErrNotFound] if the
// account does not exist.
func (s *Service[Tx]) Balance(ctx context.Context, id string) (balance int64, err error) {
	return balance, s.transact(ctx, func(ctx context.Context, tx Tx) ([]messagestore.StreamWrite, error) {
		found, err := s.sql(ctx, tx, `select balance from accounts where id = $1`, []any{id}, &balance)
		if err == nil && !found {
			err = fmt.Errorf("account %q: %w", id, messagestore.ErrNotFound)
		}
		return nil, err
	})
}

// debit is committed once, with its event and the record that the step is done. So it needs no key.
// The row is changed first: its lock has the events of an account in the order of their balances.
func (s *Service[Tx]) debit(ctx context.Context, tx Tx, t Transfer) (balance int64, err error) {
	found, err := s.sql(ctx, tx, `update accounts set balance = balance - $2 where id = $1 and balance >= $2 returning balance`,
		[]any{t.From, t.Amount}, &balance)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return 0, handler.Refuse(errors.New("the account has not so much money"))
	}
	return balance, saga.Write(ctx, messagestore.To(Accounts.Stream(t.From), messagestore.AnyVersion, Debited{t.ID, t.Amount, balance}))
}

// giveBack is called only if debit was committed.
func (s *Service[Tx]) giveBack(ctx context.Context, tx Tx, t Transfer, _ *int64) error {
	var balance int64
	_, err := s.sql(ctx, tx, `update accounts set balance = balance + $2 where id = $1 returning balance`, []any{t.From, t.Amount}, &balance)
	if err != nil {
		return err
	}
	return saga.Write(ctx, messagestore.To(Accounts.Stream(t.From), messagestore.AnyVersion, Returned{t.ID, t.Amount, balance}))
}
