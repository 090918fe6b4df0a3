package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// Paid is a body of an example.
type Paid struct {
	Amount int `json:"amount"`
}

// MessageType names the type.
func (Paid) MessageType() string { return "Paid" }

func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	driver, err := postgres.New(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := messagestore.New(driver, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = store.Write(ctx, "invoice-7", messagestore.NoStream, Paid{Amount: 40})
	fmt.Println(err)
}

// In a transaction of the caller's, messages commit and roll back with the caller's own SQL.
func ExampleNew_transaction() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "update invoices set paid = true where id = 7"); err != nil {
			return err
		}
		driver, err := postgres.New(tx, nil)
		if err != nil {
			return err
		}
		store, err := messagestore.New(driver, nil)
		if err != nil {
			return err
		}
		_, err = store.Write(ctx, "invoice-7", messagestore.AnyVersion, Paid{Amount: 40})
		return err
	})
	fmt.Println(err)
}

// In a transaction of the store's, a COMMIT whose answer is lost is resolved.
func ExampleDriver_Transact() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	driver, err := postgres.New(pool, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := messagestore.New(driver, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = txs.TransactFrom(ctx, "invoice-7", func(ctx context.Context, tx pgx.Tx, begun *messagestore.Message) ([]messagestore.StreamWrite, error) {
		if begun != nil {
			return nil, nil // it was paid before
		}
		_, err := tx.Exec(ctx, "update invoices set paid = true where id = 7")
		return []messagestore.StreamWrite{messagestore.To("invoice-7", messagestore.NoStream, Paid{Amount: 40})}, err
	})
	fmt.Println(err)
}

func ExampleNewSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	driver, err := postgres.NewSQL(db, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := messagestore.New(driver, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	txs, err := messagestore.Transactional[*sql.Tx](store)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, "update invoices set paid = true where id = 7")
		return []messagestore.StreamWrite{messagestore.To("invoice-7", messagestore.AnyVersion, Paid{Amount: 40})}, err
	})
	fmt.Println(err)
}
