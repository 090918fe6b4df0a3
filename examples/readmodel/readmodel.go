// Package readmodel keeps tables in SQL that show the present state of accounts, for lists and sums
// that no single stream answers. docs/read-models.md goes through it.
package readmodel

import (
	"context"
	"database/sql"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/messagestore"
)

const accounts messagestore.Category = "account"

// Deposited is an event: money was booked.
type Deposited struct {
	Amount int64  `json:"amount"`
	Branch string `json:"branch"`
}

// MessageType returns the name that is stored.
func (Deposited) MessageType() string { return "Deposited" }

// Schema has the tables. Each row has the position of the last event that it includes.
const Schema = `
create table balances (account text primary key, balance bigint not null, position bigint not null);
create table branches (branch text primary key, total bigint not null);
create table branches_seen (stream text primary key, position bigint not null);
`

// View is a read model without a consumer, for PostgreSQL: each query reads all events of the
// category.
const View = `
create view balances_now as
select stream_name as account, sum((data->>'amount')::bigint) as balance
from message_store.messages
where message_store.category(stream_name) = 'account' and type = 'Deposited'
group by stream_name
`

func readModels(txs *messagestore.TxStore[*sql.Tx]) (*consumer.Consumer, error) {
	mux := handler.New()
	handler.On(mux, func(ctx context.Context, m handler.Message[Deposited]) error {
		_, err := txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			if err := balance(ctx, tx, m); err != nil {
				return nil, err
			}
			return nil, branch(ctx, tx, m)
		})
		return err
	})
	return consumer.New(txs.Store, accounts, "readmodels", mux, &consumer.Config{
		Start: consumer.FromStart(), OnlyKnown: true, Concurrency: 8,
	})
}

// balance updates a row that one stream has for itself. An event that comes again changes nothing.
func balance(ctx context.Context, tx *sql.Tx, m handler.Message[Deposited]) error {
	_, err := tx.ExecContext(ctx, `
		insert into balances (account, balance, position) values ($1, $2, $3)
		on conflict (account) do update set balance = balances.balance + excluded.balance, position = excluded.position
		where balances.position < excluded.position`,
		m.Stream.CardinalID(), m.Body.Amount, int64(m.Position))
	return err
}

// branch updates a row that many streams add to, so the position of each stream is in another
// table.
func branch(ctx context.Context, tx *sql.Tx, m handler.Message[Deposited]) error {
	seen, err := tx.ExecContext(ctx, `
		insert into branches_seen (stream, position) values ($1, $2)
		on conflict (stream) do update set position = excluded.position
		where branches_seen.position < excluded.position`,
		string(m.Stream), int64(m.Position))
	if err != nil {
		return err
	}
	if n, err := seen.RowsAffected(); err != nil || n == 0 {
		return err // the event came before
	}
	_, err = tx.ExecContext(ctx, `
		insert into branches (branch, total) values ($1, $2)
		on conflict (branch) do update set total = branches.total + excluded.total`,
		m.Body.Branch, m.Body.Amount)
	return err
}
