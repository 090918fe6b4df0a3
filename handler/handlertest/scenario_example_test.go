package handlertest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/handler/handlertest"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// printer stands for the *testing.T of a test, and prints its failures.
type printer struct{ testing.TB }

func (printer) Helper()                      {}
func (printer) Context() context.Context     { return context.Background() }
func (printer) Cleanup(func())               {}
func (printer) Errorf(text string, a ...any) { fmt.Printf(text+"\n", a...) }
func (printer) Fatalf(text string, a ...any) { panic(fmt.Sprintf(text, a...)) }

// Given these events, when this command, then these events. The handlers are those of the
// service.
func ExampleScenario() {
	t := printer{}

	handlertest.New(t, handlers).
		Given(book.Stream("123"), deposited{Amount: 1000}).
		When(commands.Stream("123"), withdraw{ID: "w1", Amount: 300}).
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		Redelivered(). // as after a crash: nothing is added
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		When(commands.Stream("123"), withdraw{ID: "w2", Amount: 800}).
		ThenError(errPoor)

	// A test that does not hold says so:
	handlertest.New(t, handlers).
		Given(book.Stream("123"), deposited{Amount: 1000}).
		When(commands.Stream("123"), withdraw{ID: "w1", Amount: 300}).
		Then(book.Stream("123"), withdrawn{Amount: 299})
	// Output:
	// then: account-123 has not the expected events
	// want:
	// 	Withdrawn {"amount":299}
	// got:
	// 	Withdrawn {"amount":300}
}

// withdrawals are handlers with SQL: the reservation of the key, the row and the event are one transaction.
func withdrawals(store *messagestore.TxStore[*sql.Tx]) (*handler.Mux, error) {
	mux := handler.New()
	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		return nil, err
	}
	handler.Register(mux, reservation.Transact(store, once, withdraw.Key,
		func(ctx context.Context, tx *sql.Tx, m handler.Message[withdraw]) ([]messagestore.StreamWrite, error) {
			_, err := tx.ExecContext(ctx, "insert into withdrawals (id, amount) values ($1, $2)", m.Body.ID, m.Body.Amount)
			return []messagestore.StreamWrite{
				messagestore.To(book.Stream(m.Stream.CardinalID()), messagestore.AnyVersion, messagestore.Follow(m.Message, withdrawn{m.Body.Amount})),
			}, err
		}))
	return mux, nil
}

// Handlers with SQL, over a database. On PostgreSQL the database is a pool of package postgrestest, and the transaction
// a pgx.Tx.
func ExampleOver() {
	t, ctx := printer{}, context.Background()
	folder, err := os.MkdirTemp("", "dibs") // t.TempDir() in a test
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, "app.db"))
	if err != nil {
		panic(err)
	}
	defer db.Close()
	driver, err := sqlite.Open(ctx, filepath.Join(folder, "app.db"), nil)
	if err != nil {
		panic(err)
	}
	defer driver.Close()
	messages, err := messagestore.New(driver, nil)
	if err != nil {
		panic(err)
	}
	store, err := messagestore.Transactional[*sql.Tx](messages)
	if err != nil {
		panic(err)
	}
	if _, err := db.ExecContext(ctx, "create table withdrawals (id text primary key, amount integer check (amount > 0))"); err != nil {
		panic(err)
	}

	mux, err := withdrawals(store)
	if err != nil {
		panic(err)
	}
	handlertest.Over(t, store.Store, mux).
		When(commands.Stream("123"), withdraw{ID: "w1", Amount: 300}).
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		Redelivered(). // neither a row nor an event is added
		Then(book.Stream("123"), withdrawn{Amount: 300}).
		When(commands.Stream("123"), withdraw{ID: "w2", Amount: -1}). // the table refuses it
		ThenError(nil).
		ThenNothing()

	var rows, sum int
	if err := db.QueryRowContext(ctx, "select count(*), sum(amount) from withdrawals").Scan(&rows, &sum); err != nil {
		panic(err)
	}
	fmt.Println(rows, "row, of", sum)
	// Output: 1 row, of 300
}
