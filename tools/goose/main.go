// Command goose applies the SQL migrations in a folder to a database with the goose
// library, as a service that has goose already would:
//
//	dibs migrate print --goose > migrations/00001_dibs.sql
//	go run ./goose postgres://localhost/app migrations
//
// It is here for the test that holds that this leaves the same database as
// dibs migrate up.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: goose URL FOLDER")
		os.Exit(2)
	}
	if err := up(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "goose:", err)
		os.Exit(1)
	}
}

func up(ctx context.Context, url, folder string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS(folder))
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
