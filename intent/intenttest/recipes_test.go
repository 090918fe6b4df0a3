package intenttest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dibs-go/dibs/intent"
	"github.com/dibs-go/dibs/internal/pgtest"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// The programs of docs/intents.md, which shows the middle of each word for word.

type Order struct {
	Account string `json:"account"`
	Month   string `json:"month"`
	Amount  int64  `json:"amount"`
}

type Receipt struct {
	Number int64 `json:"number"`
}

type told func(receipt Receipt, answer intent.Answer)

func reserves(ctx context.Context, store *messagestore.Store, order Order, tell told) error {
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		return err
	}
	answer, err := intents.Reserve(ctx, intent.Request{Key: "29401/1998-12", Content: order})
	if err != nil {
		return err
	}
	tell(Receipt{}, answer)
	return nil
}

func paysExactlyOnce(ctx context.Context, pool *pgxpool.Pool, request intent.Request, order Order, tell told) error {
	driver, err := postgres.New(pool, nil)
	if err != nil {
		return err
	}
	store, err := messagestore.New(driver, nil)
	if err != nil {
		return err
	}
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		return err
	}
	intents, err := intent.New(store, "payment:intent", nil)
	if err != nil {
		return err
	}

	receipt, answer, err := intent.Do(ctx, intents, request, func(ctx context.Context, lease *intent.Lease) (Receipt, error) {
		receipt := Receipt{Number: 17}
		_, err := txs.Transact(ctx, func(ctx context.Context, tx pgx.Tx) ([]messagestore.StreamWrite, error) {
			_, err := tx.Exec(ctx, "insert into payments values ($1, $2, $3)", receipt.Number, order.Account, order.Amount)
			return lease.Confirmation(receipt), err
		})
		return receipt, err
	})
	if err != nil {
		return err
	}
	tell(receipt, answer)
	return nil
}

// A bank pays elsewhere.
type bank struct {
	paid  map[string]Receipt
	calls int
}

func (b *bank) Find(_ context.Context, key string) (Receipt, bool) {
	receipt, ok := b.paid[key]
	return receipt, ok
}

func (b *bank) Pay(_ context.Context, order Order, token int64) (Receipt, error) {
	if token == 0 {
		return Receipt{}, errors.New("an order without a token")
	}
	b.calls++
	receipt := Receipt{Number: int64(b.calls)}
	b.paid[order.Account+"/"+order.Month] = receipt
	return receipt, nil
}

func paysElsewhere(ctx context.Context, intents *intent.Manager, bank *bank, request intent.Request, order Order, tell told) error {
	receipt, answer, err := intent.Do(ctx, intents, request, func(ctx context.Context, lease *intent.Lease) (Receipt, error) {
		if lease.Attempt() > 1 {
			if receipt, ok := bank.Find(ctx, request.Key); ok {
				return receipt, nil
			}
		}
		if err := lease.Err(); err != nil {
			return Receipt{}, err
		}
		return bank.Pay(ctx, order, lease.Token())
	})
	if err != nil {
		return err
	}
	tell(receipt, answer)
	return nil
}

var (
	anOrder   = Order{"29401", "1998-12", 2452}
	itsIntent = intent.Request{Key: "29401/1998-12", Content: anOrder}
)

// tells keeps the answers of a recipe.
func tells(receipts *[]Receipt, outcomes *[]intent.Outcome) told {
	return func(receipt Receipt, answer intent.Answer) {
		*receipts, *outcomes = append(*receipts, receipt), append(*outcomes, answer.Outcome)
	}
}

func TestTheExactRecipePaysOnce(t *testing.T) {
	t.Parallel()
	pool := pgtest.Connect(t, pgtest.Migrated(t))
	var receipts []Receipt
	var outcomes []intent.Outcome
	pay := func() error {
		return paysExactlyOnce(t.Context(), pool, itsIntent, anOrder, tells(&receipts, &outcomes))
	}
	require.ErrorContains(t, pay(), `relation "payments" does not exist`)
	_, err := pool.Exec(t.Context(), "create table payments (receipt bigint, account text, amount bigint)")
	require.NoError(t, err)

	require.NoError(t, pay(), "an attempt that failed is free again")
	require.NoError(t, pay())

	require.Equal(t, []intent.Outcome{intent.Reserved, intent.Done}, outcomes)
	require.Equal(t, []Receipt{{17}, {17}}, receipts)
	var rows, together int
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from payments").Scan(&rows))
	require.Equal(t, 1, rows)
	require.NoError(t, pool.QueryRow(t.Context(), "select count(*) from payments p join dibs.messages m on m.xmin = p.xmin where m.type = 'Confirmed'").Scan(&together))
	require.Equal(t, 1, together, "the row and the confirmation are of one transaction")
}

func TestTheFastRecipeLooksBeforeItPaysAgain(t *testing.T) {
	t.Parallel()
	store := testkit.Must(messagestore.New(testkit.Must(postgres.New(pgtest.Connect(t, pgtest.Migrated(t)), nil)), nil))
	var receipts []Receipt
	var outcomes []intent.Outcome
	tell := tells(&receipts, &outcomes)
	elsewhere := &bank{paid: map[string]Receipt{}}
	require.NoError(t, reserves(t.Context(), store, anOrder, func(_ Receipt, answer intent.Answer) {
		_, err := elsewhere.Pay(t.Context(), anOrder, answer.Lease.Token()) // and the process dies
		require.NoError(t, err)
	}))
	intents, err := intent.New(store, "payment:intent", nil)
	require.NoError(t, err)
	require.NoError(t, intents.ForceRelease(t.Context(), "", itsIntent.Key, "it died"))

	for range 2 {
		require.NoError(t, paysElsewhere(t.Context(), intents, elsewhere, itsIntent, anOrder, tell))
	}

	require.Equal(t, []intent.Outcome{intent.Reserved, intent.Done}, outcomes)
	require.Equal(t, []Receipt{{1}, {1}}, receipts)
	require.Equal(t, 1, elsewhere.calls)
}
