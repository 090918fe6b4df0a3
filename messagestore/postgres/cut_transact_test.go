package postgres_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/dibs-go/dibs/internal/must"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

const (
	cutTableSQL = "create table if not exists public.cut_transactions (id uuid primary key)"
	cutRowSQL   = "insert into public.cut_transactions values ($1)"
)

// A transactCall calls Transact with a function that inserts a row and returns an append.
type transactCall func(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error

func overPgx(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	_, err := c.driver.Transact(ctx, first, func(ctx context.Context, tx pgx.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		_, err := tx.Exec(ctx, cutRowSQL, row)
		return []messagestore.Append{a}, err
	})
	return err
}

// unlooked has BEGIN travel with the function's statement.
func unlooked(ctx context.Context, c *attempt, _ messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	return overPgx(ctx, c, "", row, a)
}

func overSQL(ctx context.Context, c *attempt, first messagestore.StreamName, row uuid.UUID, a messagestore.Append) error {
	db := stdlib.OpenDBFromPool(c.pool)
	defer db.Close()
	_, err := must.New(postgres.NewSQL(db, nil)).Transact(ctx, first, func(ctx context.Context, tx *sql.Tx, _ *messagestore.Message) ([]messagestore.Append, error) {
		_, err := tx.ExecContext(ctx, cutRowSQL, row.String())
		return []messagestore.Append{a}, err
	})
	return err
}

// transacts is a scene of Transact: the caller's row and the message are there, or neither is.
func transacts(name string, w way, conflicts bool, call transactCall) scene {
	rows := func(c *attempt) uuid.UUID {
		return uuid.NewSHA1(uuid.NameSpaceOID, []byte("row of "+string(c.category)))
	}
	expected := messagestore.NoStream
	if conflicts {
		expected = 7
	}
	s := writes(name, w, func(ctx context.Context, c *attempt, key string) []ended {
		a, row := messages(c, key, expected, 1), rows(c)
		if key != "cut" {
			row = uuid.New()
		}
		return []ended{{appends: []messagestore.Append{a}, refused: conflicts, err: call(ctx, c, c.category.Stream("none"), row, a)}}
	})
	s.judge = func(ctx context.Context, c *attempt) error {
		var there, messages int
		err := c.direct.QueryRow(ctx, `select
			(select count(*) from public.cut_transactions where id = $1),
			(select count(*) from dibs.messages where stream_name = $2)`, rows(c), string(c.category.Stream("cut"))).Scan(&there, &messages)
		if err == nil && there != messages {
			err = fmt.Errorf("%d rows of the caller's and %d messages are there", there, messages)
		}
		return err
	}
	return s
}
