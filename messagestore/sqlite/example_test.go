package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
)

type Paid struct {
	Amount int `json:"amount"`
}

func (Paid) MessageType() string { return "Paid" }

func ExampleOpen() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "dibs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)

	driver, err := sqlite.Open(ctx, filepath.Join(folder, "messages.db"), nil)
	if err != nil {
		log.Fatal(err)
	}
	store, err := messagestore.New(driver, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	for range 2 {
		first, err := store.WriteInitial(ctx, "invoice-17", Paid{Amount: 10})
		fmt.Println(first, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleNew() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "dibs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(folder, "app.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	// transaction commits all effects of f, or none.
	transaction := func(f func(tx *sql.Tx) error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }() // does nothing after Commit
		if err := f(tx); err != nil {
			fmt.Println(err)
			return
		}
		if err := tx.Commit(); err != nil {
			log.Fatal(err)
		}
	}

	transaction(func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE invoices (id TEXT PRIMARY KEY, payments INTEGER NOT NULL)"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO invoices VALUES ('17', 0)"); err != nil {
			return err
		}
		return sqlite.Schema(ctx, tx)
	})
	for range 2 {
		transaction(func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE invoices SET payments = payments + 1 WHERE id = '17'"); err != nil {
				return err
			}
			driver, err := sqlite.New(tx)
			if err != nil {
				return err
			}
			store, err := messagestore.New(driver, nil)
			if err != nil {
				return err
			}
			_, err = store.Write(ctx, "invoice-17", messagestore.NoStream, Paid{Amount: 10})
			return err
		})
	}

	var payments int
	if err := db.QueryRowContext(ctx, "SELECT payments FROM invoices").Scan(&payments); err != nil {
		log.Fatal(err)
	}
	fmt.Println("payments:", payments)
	// Output:
	// write invoice-17: version conflict: expected no stream, found 0
	// payments: 1
}
