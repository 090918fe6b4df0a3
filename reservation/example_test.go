package reservation_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/handler"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/memory"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

const commands messagestore.Category = "account:command"

type Deposit struct {
	DepositID string `json:"depositId"`
	Amount    int    `json:"amount"`
}

func (Deposit) MessageType() string { return "Deposit" }
func (d Deposit) Key() string       { return d.DepositID }

type Deposited struct {
	Amount int `json:"amount"`
}

func (Deposited) MessageType() string { return "Deposited" }

// issue writes the command several times, as a sender does that gets no answer.
func issue(ctx context.Context, store *messagestore.Store, times int, body messagestore.Body) {
	for range times {
		if _, err := store.Write(ctx, commands.Stream("123"), messagestore.AnyVersion, body); err != nil {
			fmt.Println(err)
		}
	}
}

// consume has one consumer handle all commands.
func consume(ctx context.Context, store *messagestore.Store, mux *handler.Mux) {
	c, err := consumer.New(store, commands, "accounts", mux, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.CatchUp(ctx); err != nil {
		fmt.Println(err)
	}
}

// A transaction of the caller's own has the reservation and the row. A redelivery, after a crash or a
// restart, adds no second row.
func ExampleReserver_Reserve_transaction() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	check(err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "dibs.db")
	driver, err := sqlite.Open(ctx, file, nil)
	check(err)
	store, err := messagestore.New(driver, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate")
	check(err)
	defer db.Close()
	_, err = db.ExecContext(ctx, "create table deposits (key text)")
	check(err)

	deposit := func(ctx context.Context, m handler.Message[Deposit]) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
		driver, err := sqlite.New(tx)
		if err != nil {
			return err
		}
		store, err := messagestore.New(driver, nil)
		if err != nil {
			return err
		}
		once, err := reservation.New(store, "accounts", nil)
		if err != nil {
			return err
		}
		result, err := once.Reserve(ctx, m.Message, m.Body.Key())
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", m, result.Outcome)
		if result.Outcome != reservation.Reserved {
			return result.Err()
		}
		if _, err := tx.ExecContext(ctx, "insert into deposits values (?)", m.Body.Key()); err != nil {
			return err
		}
		return tx.Commit()
	}
	mux := handler.New()
	handler.On(mux, deposit)

	issue(ctx, store, 2, Deposit{"AAA", 10})
	for range 2 {
		for m, err := range store.ReadStream(ctx, commands.Stream("123"), 0) {
			check(err)
			check(mux.Handle(ctx, m))
		}
	}

	var rows int
	check(db.QueryRowContext(ctx, "select count(*) from deposits").Scan(&rows))
	fmt.Println(rows, "row")
	// Output:
	// Deposit account:command-123@0: reserved
	// Deposit account:command-123@1: duplicate
	// Deposit account:command-123@0: redelivered
	// Deposit account:command-123@1: duplicate
	// 1 row
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func ExampleCopy() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	once := testkit.Must(reservation.New(store, "accounts", &reservation.Config{
		OnOutcome: func(_ context.Context, source *messagestore.Message, result reservation.Result) {
			fmt.Printf("%s: %s, by %s\n", source, result.Outcome, result.Winner)
		},
	}))
	deposit := func(_ context.Context, m handler.Message[Deposit]) error {
		fmt.Printf("%s: handled\n", m)
		return nil
	}

	mux := handler.New()
	handler.Register(mux, reservation.Copy(once, Deposit.Key, deposit))
	issue(ctx, store, 3, Deposit{"AAA", 10})
	// A service runs both consumers with Run, each in a goroutine.
	for _, category := range []messagestore.Category{once.Category(commands), commands, once.Category(commands)} {
		check(testkit.Must(consumer.New(store, category, "accounts", mux, nil)).CatchUp(ctx))
	}
	// Output:
	// Deposit account:command-123@0: reserved, by Deposit account:command+reservation+accounts-123+AAA@0
	// Deposit account:command-123@1: duplicate, by Deposit account:command+reservation+accounts-123+AAA@0
	// Deposit account:command-123@2: duplicate, by Deposit account:command+reservation+accounts-123+AAA@0
	// Deposit account:command+reservation+accounts-123+AAA@0: handled
}

func ExampleInitiate() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		log.Fatal(err)
	}

	mux := handler.New()
	handler.Register(mux, reservation.Initiate(once, func(m handler.Message[Deposit]) (messagestore.StreamName, messagestore.Body) {
		return transaction.Stream(m.Stream.CardinalID()).With(m.Body.DepositID), Initiated{Amount: m.Body.Amount}
	}))
	issue(ctx, store, 3, Deposit{"AAA", 10})
	consume(ctx, store, mux)

	for m, err := range store.ReadCategory(ctx, transaction, 0, messagestore.Filter{}) {
		fmt.Println(m, "follows", m.Metadata.CausationStream, m.Metadata.CausationPosition, err)
	}
	// Output:
	// Initiated accountTransaction-123+AAA@0 follows account:command-123 0 <nil>
}

func ExampleInline() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		log.Fatal(err)
	}
	deposit := func(ctx context.Context, m handler.Message[Deposit]) ([]messagestore.StreamWrite, error) {
		account := messagestore.Category("account").Stream(m.Stream.CardinalID())
		version, err := store.Version(ctx, account)
		return []messagestore.StreamWrite{{
			Stream:   account,
			Expected: version,
			Bodies:   []messagestore.Body{messagestore.Follow(m.Message, Deposited{m.Body.Amount})},
		}}, err
	}

	mux := handler.New()
	handler.Register(mux, reservation.Inline(once, Deposit.Key, deposit))
	issue(ctx, store, 3, Deposit{"AAA", 10})
	issue(ctx, store, 1, Deposit{"BBB", 5})
	consume(ctx, store, mux)

	for m, err := range store.ReadStream(ctx, "account-123", 0) {
		fmt.Println(m, string(m.Data), err)
	}
	// Output:
	// Deposited account-123@0 {"amount":10} <nil>
	// Deposited account-123@1 {"amount":5} <nil>
}

func ExampleReserver_Reserve() {
	ctx := context.Background()
	store, err := messagestore.New(memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	once, err := reservation.New(store, "accounts", nil)
	if err != nil {
		log.Fatal(err)
	}
	issue(ctx, store, 2, Deposit{"AAA", 10})
	issue(ctx, store, 1, Deposit{"AAA", 99})

	for m, err := range store.ReadStream(ctx, "account:command-123", 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		result, err := once.Reserve(ctx, m, "AAA")
		fmt.Println(m.Position, result.Outcome, err)
	}
	who, err := once.Lookup(ctx, "account:command-123", "AAA")
	fmt.Println("message", who.Winner.Metadata.CausationPosition, "won", who.Stream, err)
	// Output:
	// 0 reserved <nil>
	// 1 duplicate <nil>
	// 2 key reused <nil>
	// message 0 won account:command+reservation+accounts-123+AAA <nil>
}

func ExampleContentKey() {
	fmt.Println(reservation.ContentKey(Deposit{"AAA", 10}))
	fmt.Println(reservation.ContentKey(Deposit{"AAA", 10}) == reservation.ContentKey(Deposit{"AAA", 11}))

	// When it was sent does not count: see Transfer.ReservationContent.
	fmt.Println(reservation.ContentKey(Transfer{"Bob", 10, "09:00"}) == reservation.ContentKey(Transfer{"Bob", 10, "09:01"}))
	// Output:
	// CoWWHXMzY0mwzhR5k_P-gHST6i_BuI68BQ5m-VyNqTc
	// false
	// true
}

func ExampleKeyOf() {
	stream := messagestore.StreamName("account:command+reservation+accounts-123+a%2Bb")
	fmt.Println(reservation.KeyOf(stream))
	// Output:
	// a+b true
}
