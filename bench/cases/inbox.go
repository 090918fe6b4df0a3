package cases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
	"github.com/dibs-go/dibs/reservation"
)

// The sizes and categories of the cases of requests from outside, each carried out once.
const (
	inboxCallers = 64

	// transactionConns is how many transactions there are at once.
	transactionConns = 32

	// inboxAccounts is how many accounts the requests change, each drawn.
	inboxAccounts = 10_000

	requestsInbox  messagestore.Category = "payments:inbox"
	requestsOutbox messagestore.Category = "payments:outgoing"
)

// The names of the ways to receive a request.
const (
	inboxWithSQL   = "Dibs, an Inbox"
	inTransact     = "Dibs, Transact"
	plainTables    = "Tables for inbox and outbox"
	tablesAtOnce   = "Tables, sent with COMMIT"
	inboxWrites    = "Dibs, messages alone"
	inboxDuplicate = "Dibs, an Inbox, a request that came before"
)

// Inbox returns the cases of requests from outside that are carried out once.
func Inbox() []measure.Case {
	withSQL := func(callers int, ofPlain, ofAtOnce float64, more ...measure.Goal) measure.Case {
		name, shows := fmt.Sprintf("%d-callers", callers), fmt.Sprintf("%d callers over %d connections", callers, min(callers, transactionConns))
		if callers == 1 {
			name, shows = "1-caller", "one caller"
		}
		return measure.Case{
			Name:  "inbox/sql/" + name,
			Shows: "Receive a request: reserve its key, change one of 10,000 accounts, and send a message, " + shows,
			Contenders: []measure.Contender{
				{Name: inboxWithSQL, Run: receive(callers, true, (*requests).inbox)},
				{Name: inTransact, Run: receive(callers, true, (*requests).transact)},
				{Name: plainTables, Run: receive(callers, true, (*requests).tables)},
				{Name: tablesAtOnce, Run: receive(callers, true, (*requests).tablesAtOnce)},
			},
			Goals: append([]measure.Goal{
				{Metric: measure.Rate, Of: inTransact, To: plainTables, AtLeast: ofPlain},
				{Metric: measure.Rate, Of: inTransact, To: tablesAtOnce, AtLeast: ofAtOnce},
			}, more...),
		}
	}
	return []measure.Case{
		withSQL(inboxCallers, 0.7, 0.55,
			measure.Goal{Metric: measure.Rate, Of: inboxWithSQL, To: plainTables, AtLeast: 0.7},
			measure.Goal{Metric: measure.ServerCPU, Of: inboxWithSQL, To: plainTables, AtMost: 2}),
		withSQL(16, 0.75, 0.65),
		withSQL(1, 0.85, 0.7, measure.Goal{Metric: measure.P50, Of: inboxWithSQL, To: plainTables, AtMost: 1.1}),
		{
			Name:  "inbox/messages/64-callers",
			Shows: "Receive a request that changes no row: reserve its key, and send a message, 64 callers",
			Contenders: []measure.Contender{
				{Name: inboxWrites, Run: receive(inboxCallers, false, (*requests).messages)},
				{Name: inboxWithSQL, Run: receive(inboxCallers, false, (*requests).inbox)},
				{Name: plainTables, Run: receive(inboxCallers, false, (*requests).tables)},
				{Name: inboxDuplicate, Run: receiveAgain},
			},
			Goals: []measure.Goal{
				{Metric: measure.Rate, Of: inboxWrites, To: plainTables, AtLeast: 2},
				{Metric: measure.Rate, Of: inboxDuplicate, To: inboxWithSQL, AtLeast: 2},
			},
		},
	}
}

// requests are the requests to a service that has accounts in its own table.
type requests struct {
	pool     *pgxpool.Pool
	store    *messagestore.Store
	txs      *messagestore.TxStore[pgx.Tx]
	received *inbox.Inbox[pgx.Tx]
	changes  bool // an account each
}

// A request pays into an account.
type request struct {
	key     string
	account int
}

// paid is the message that a request sends.
type paid struct {
	Account int `json:"account"`
	Amount  int `json:"amount"`
}

// MessageType returns "Paid".
func (paid) MessageType() string { return "Paid" }

func openRequests(ctx context.Context, cell *measure.Cell, changes bool) (*requests, error) {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = transactionConns
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	r := &requests{pool: pool, store: testkit.Must(messagestore.New(testkit.Must(postgres.New(pool, nil)), nil)), changes: changes}
	r.txs, err = messagestore.Transactional[pgx.Tx](r.store)
	if err == nil {
		r.received, err = inbox.New(r.txs, "payments", nil)
	}
	if err == nil {
		_, err = pool.Exec(ctx, `
			create table accounts (id int primary key, balance bigint not null);
			insert into accounts select n, 0 from generate_series(0, 9999) n;
			create table inbox (key text primary key, source text not null, digest text not null, answer jsonb);
			create table outbox (id uuid primary key, position bigint generated always as identity, account int not null, data jsonb not null)`)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *requests) close() { r.pool.Close() }

// receive measures callers with new requests only.
func receive(callers int, changes bool, way func(r *requests, ctx context.Context, one request) error) func(context.Context, *measure.Cell) error {
	return func(ctx context.Context, cell *measure.Cell) error {
		r, err := openRequests(ctx, cell, changes)
		if err != nil {
			return err
		}
		defer r.close()
		random := randoms(cell, callers)
		done, err := cell.Callers(ctx, callers, func(ctx context.Context, caller int) (int, error) {
			return 1, way(r, ctx, request{newID().String(), random[caller].IntN(inboxAccounts)})
		})
		return errors.Join(err, r.check(ctx, cell, done))
	}
}

// check compares the rows and messages in the database with the requests that were done.
func (r *requests) check(ctx context.Context, cell *measure.Cell, done int64) error {
	var keys, sent, balances int64
	err := r.pool.QueryRow(ctx, `select
		(select count(*) from inbox) + (select count(*) from dibs.messages where category = $1),
		(select count(*) from outbox) + (select count(*) from dibs.messages where category = $2),
		(select sum(balance) from accounts)`, string(requestsInbox), string(requestsOutbox)).Scan(&keys, &sent, &balances)
	if err != nil {
		return err
	}
	errs := []error{cell.Check("keys", keys, done), cell.Check("messages to send", sent, done)}
	if r.changes {
		errs = append(errs, cell.Check("changes of accounts", balances, done))
	}
	return errors.Join(errs...)
}

// receiveAgain measures requests that were carried out before the time begins.
func receiveAgain(ctx context.Context, cell *measure.Cell) error {
	r, err := openRequests(ctx, cell, false)
	if err != nil {
		return err
	}
	defer r.close()
	all := make([]request, size(cell, 100, 1000, 1000))
	for i := range all {
		all[i] = request{newID().String(), i}
		if err := r.inbox(ctx, all[i]); err != nil {
			return err
		}
	}
	random := randoms(cell, inboxCallers)
	_, err = cell.Callers(ctx, inboxCallers, func(ctx context.Context, caller int) (int, error) {
		result, err := r.receive(ctx, all[random[caller].IntN(len(all))])
		if err == nil && result.Outcome != reservation.Duplicate {
			err = fmt.Errorf("a request that came before is %s", result.Outcome)
		}
		return 1, err
	})
	return errors.Join(err, r.check(ctx, cell, int64(len(all))))
}

const answer = `{"accepted":true}`

func (r *requests) data(one request) json.RawMessage {
	return fmt.Appendf(nil, `{"account":%d,"amount":1}`, one.account)
}

func (r *requests) receive(ctx context.Context, one request) (reservation.Result, error) {
	return r.received.Receive(ctx, inbox.Request{ID: one.key, Source: "POST /payments", Data: r.data(one)},
		func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
			return []messagestore.StreamWrite{
				reservation.Answer(json.RawMessage(answer)),
				messagestore.To(newKeyOf(requestsOutbox), messagestore.NoStream, paid{one.account, 1}),
			}, r.change(ctx, tx, one)
		})
}

func (r *requests) change(ctx context.Context, tx pgx.Tx, one request) error {
	if !r.changes {
		return nil
	}
	_, err := tx.Exec(ctx, "update accounts set balance = balance + 1 where id = $1", one.account)
	return err
}

// inbox carries a request out by an Inbox.
func (r *requests) inbox(ctx context.Context, one request) error {
	result, err := r.receive(ctx, one)
	if err == nil && result.Outcome != reservation.Reserved {
		err = fmt.Errorf("a new request is %s", result.Outcome)
	}
	return err
}

// tables carries a request out like services without Dibs, with a round trip for each statement.
func (r *requests) tables(ctx context.Context, one request) error {
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		data := r.data(one)
		took, err := tx.Exec(ctx, "insert into inbox values ($1, 'POST /payments', $2, $3) on conflict do nothing", one.key, digest(data), answer)
		if err != nil {
			return err
		}
		if took.RowsAffected() == 0 {
			return fmt.Errorf("request %s came before", one.key)
		}
		if err := r.change(ctx, tx, one); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "insert into outbox (id, account, data) values ($1, $2, $3)", newID(), one.account, data)
		return err
	})
}

// transact carries a request out in a transaction that reads nothing first: COMMIT refuses a
// request that came before.
func (r *requests) transact(ctx context.Context, one request) error {
	data := r.data(one)
	_, err := r.txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
		return []messagestore.StreamWrite{
			messagestore.To(requestsInbox.Stream(one.key), messagestore.NoStream,
				inbox.Received{Source: "POST /payments", Digest: digest(data), Answer: json.RawMessage(answer)}),
			messagestore.To(newKeyOf(requestsOutbox), messagestore.NoStream, paid{one.account, 1}),
		}, r.change(ctx, tx, one)
	})
	return err
}

// tablesAtOnce is tables with its two INSERTs in the round trip of COMMIT, like Dibs: three round
// trips in all.
func (r *requests) tablesAtOnce(ctx context.Context, one request) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "update accounts set balance = balance + 1 where id = $1", one.account); err != nil {
		return err
	}
	data := r.data(one)
	batch := &pgx.Batch{}
	batch.Queue("insert into inbox values ($1, 'POST /payments', $2, $3)", one.key, digest(data), answer)
	batch.Queue("insert into outbox (id, account, data) values ($1, $2, $3)", newID(), one.account, data)
	batch.Queue("commit")
	return conn.SendBatch(ctx, batch).Close()
}

// messages carries a request out that changes no row, in one write of two streams.
func (r *requests) messages(ctx context.Context, one request) error {
	data := r.data(one)
	_, err := r.store.WriteStreams(ctx,
		messagestore.To(requestsInbox.Stream(one.key), messagestore.NoStream,
			inbox.Received{Source: "POST /payments", Digest: digest(data), Answer: json.RawMessage(answer)}),
		messagestore.To(newKeyOf(requestsOutbox), messagestore.NoStream, paid{one.account, 1}))
	return err
}
