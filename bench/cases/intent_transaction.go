package cases

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// transactionConns is how many transactions there are at once.
const transactionConns = 32

// The ways to write a row of one's own and to confirm its intent.
const (
	rowAlone     = "The row alone"
	confirmInEnd = "Dibs, Confirmation in the COMMIT"
	confirmEarly = "Dibs, Confirm early in it"
	confirmAfter = "Dibs, Confirm after it"
)

// intentTransaction returns the case of an intent that is confirmed with a row of the caller's.
func intentTransaction() measure.Case {
	message := writers(fast, 1, intentCallers, openMessageDB)[0]
	return measure.Case{
		Name:  "intent/transaction/64-callers",
		Shows: "Reserve an intent, insert a row in a transaction, and confirm, 64 callers (the row alone, and message-db's write, have no intent)",
		Contenders: []measure.Contender{
			{Name: rowAlone, Run: pay(nil)},
			{Name: confirmInEnd, Run: pay((*payments).confirmInEnd)},
			{Name: confirmEarly, Run: pay((*payments).confirmEarly)},
			{Name: confirmAfter, Run: pay((*payments).confirmAfter)},
			message,
		},
		Goals: []measure.Goal{
			{Metric: measure.Rate, Of: confirmInEnd, To: messageDB, AtLeast: 1},
			{Metric: measure.Rate, Of: confirmInEnd, To: confirmEarly, AtLeast: 1.5},
			{Metric: measure.Rate, Of: confirmAfter, To: rowAlone, AtLeast: 0.45},
		},
	}
}

// A payments has a table of the caller's beside the store.
type payments struct {
	*dibsIntents
	pool *pgxpool.Pool
	txs  *messagestore.TxStore[pgx.Tx]
}

// pay measures payments that are written in a transaction each, with their intents confirmed in
// one way, or without intents.
func pay(confirm func(p *payments, ctx context.Context, l *intent.Lease, key string) error) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		p, err := openPayments(ctx, cell)
		if err != nil {
			return err
		}
		defer p.close()
		done, err := cell.Callers(ctx, intentCallers, func(ctx context.Context, _ int) (int, error) {
			key := newID().String()
			if confirm == nil {
				return 1, p.transact(ctx, func(tx pgx.Tx) error { return insertPayment(ctx, tx, key, 0) })
			}
			granted, err := p.reserve(ctx, key, "")
			if err != nil {
				return 1, err
			}
			return 1, confirm(p, ctx, leaseOf(granted), key)
		})
		if err != nil {
			return err
		}
		var rows int64
		err = p.pool.QueryRow(ctx, "select count(*) from payments").Scan(&rows)
		err = errors.Join(err, cell.Check("payments", rows, done))
		if confirm != nil {
			confirmed, countErr := p.intents(ctx, true)
			err = errors.Join(err, countErr, cell.Check("confirmed intents", confirmed, done))
		}
		return err
	}
}

func openPayments(ctx context.Context, cell *measure.Cell) (*payments, error) {
	opened, err := openDibsIntents(ctx, cell)
	if err != nil {
		return nil, err
	}
	p := &payments{dibsIntents: opened.(*dibsIntents)} //nolint:errcheck,forcetypeassert // it is one
	config := p.dibsStore.pool.Config().Copy()
	config.MaxConns = transactionConns
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		p.dibsStore.close()
		return nil, err
	}
	p.txs, err = messagestore.Transactional[pgx.Tx](must.New(messagestore.New(must.New(postgres.New(p.pool, nil)), nil)))
	if err == nil {
		_, err = p.pool.Exec(ctx, "create table payments (intent text primary key, amount bigint not null, status text not null, last_fencing_token bigint not null)")
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *payments) close() {
	p.pool.Close()
	p.dibsStore.close()
}

func (p *payments) transact(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, p.pool, f)
}

func insertPayment(ctx context.Context, tx pgx.Tx, key string, token int64) error {
	_, err := tx.Exec(ctx, "insert into payments values ($1, 245200, 'paid', $2)", key, token)
	return err
}

func (p *payments) confirmInEnd(ctx context.Context, l *intent.Lease, key string) error {
	_, err := p.txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		return l.Confirmation(storedResponse), insertPayment(ctx, tx, key, l.Token())
	})
	return err
}

func (p *payments) confirmEarly(ctx context.Context, l *intent.Lease, key string) error {
	return p.transact(ctx, func(tx pgx.Tx) error {
		in, err := l.In(ctx, must.New(messagestore.New(must.New(postgres.New(tx, nil)), nil)))
		if err != nil {
			return err
		}
		return errors.Join(in.Confirm(ctx, storedResponse), insertPayment(ctx, tx, key, l.Token()))
	})
}

func (p *payments) confirmAfter(ctx context.Context, l *intent.Lease, key string) error {
	if err := p.transact(ctx, func(tx pgx.Tx) error { return insertPayment(ctx, tx, key, l.Token()) }); err != nil {
		return err
	}
	return l.Confirm(ctx, storedResponse)
}
