// Package admin trims and deletes streams of a store on PostgreSQL, forgets old keys, raises its
// epoch and verifies it. The database user must be a member of the role dibs_admin.
//
//	a, err := admin.New(pool, nil)
//	trimmed, err := a.Trim(ctx, "account-123", &admin.TrimOptions{Keep: 1})
package admin

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/internal/text"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

// Admin works on the store in one database. It is safe for concurrent use if its database handle
// is. Over a connection its calls take turns. Over a transaction, which must be at READ COMMITTED,
// its changes commit with the transaction.
type Admin struct {
	link    *pglink.Link
	schema  string
	queries queries
	log     logger.Logger
}

var (
	//go:embed sql/trim.sql
	trimSQL string
	//go:embed sql/delete.sql
	deleteSQL string
	//go:embed sql/forget.sql
	forgetSQL string
	//go:embed sql/category_streams.sql
	categoryStreamsSQL string
	//go:embed sql/raise_epoch.sql
	raiseEpochSQL string
)

type queries struct {
	trim, delete, forget, categoryStreams, raiseEpoch string
}

// schemaVersion is the schema version that this package needs.
const schemaVersion = 9

// New returns an administrator of the store in db, which you keep and close. It ignores
// Config.NoNotify. The error matches [messagestore.ErrInvalid] and names each mistake: an invalid
// schema name, a nil db.
func New(db postgres.DB, config *postgres.Config) (*Admin, error) {
	if config == nil {
		config = &postgres.Config{}
	}
	a := &Admin{schema: cmp.Or(config.Schema, pglink.DefaultSchema), log: config.Logger}
	var wrong []error
	if rule := pglink.CheckSchema(a.schema); rule != "" {
		wrong = append(wrong, messagestore.NewInvalidError("schema", a.schema, rule))
	}
	if pglink.IsNil(db) {
		wrong = append(wrong, messagestore.NewInvalidError("database", nil, "must not be nil: give a pool, a connection or a transaction"))
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("admin: %w", errors.Join(wrong...))
	}
	a.link = pglink.New(db, pglink.Config{Schema: a.schema, Version: schemaVersion, Logger: a.log})
	a.queries = queries{
		trim:            pglink.InSchema(trimSQL, a.schema),
		delete:          pglink.InSchema(deleteSQL, a.schema),
		forget:          pglink.InSchema(forgetSQL, a.schema),
		categoryStreams: pglink.InSchema(categoryStreamsSQL, a.schema),
		raiseEpoch:      pglink.InSchema(raiseEpochSQL, a.schema),
	}
	return a, nil
}

func (a *Admin) with(ctx context.Context, f func(db pglink.DB) error) error {
	if ctx == nil {
		return messagestore.NewInvalidError("context", nil, "must not be nil")
	}
	return a.link.With(ctx, f)
}

func (a *Admin) query(ctx context.Context, sql string, args []any, each func(pgx.Rows) error) error {
	return a.with(ctx, func(db pglink.DB) error { return failed(a.link.Read(ctx, db, sql, args, each)) })
}

// failed returns err so that callers can match it and a log may show it.
func failed(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "DB001" {
		return messagestore.NewInvalidError(strings.TrimPrefix(e.Message, "invalid "), nil, "the database refused it")
	}
	return pglink.Failed(err)
}

const (
	// maxRemoved is how many messages one transaction removes at most, which bounds its duration.
	maxRemoved = 10_000
)

// change calls an SQL function that changes the store and scans its single row into row, in the
// caller's transaction or else in a new one. If the session is lost, it repeats the call in
// another: the last argument is an id by which the function recognizes the repetition and returns
// the same answer.
func (a *Admin) change(ctx context.Context, sql string, args []any, row ...any) error {
	const attempts = 5

	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	args = append(args, pgtype.UUID{Bytes: id, Valid: true})
	var cause error
	for attempt := 1; ; attempt++ {
		own, lost := false, false
		err := a.with(ctx, func(db pglink.DB) error {
			if own = !a.link.InTransaction(db); !own {
				return failed(a.one(ctx, db, sql, args, row))
			}
			err := a.commit(ctx, db, sql, args, row)
			lost = err != nil && !pglink.Definite(err)
			return failed(err)
		})
		if err == nil {
			return nil
		}
		if cause == nil || !lost {
			cause = err // an attempt on a closed session does not replace the error that closed it
		}
		if !own || ctx.Err() != nil || attempt == attempts || !lost && !pglink.Retryable(err) {
			return cause
		}
		a.log.Warn().Str("error", text.Log(err)).Int("attempt", attempt).Msg("change again")
		if err := pglink.Pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// commit calls the function in a new transaction.
func (a *Admin) commit(ctx context.Context, db pglink.DB, sql string, args, row []any) error {
	tx, err := pglink.Begin(ctx, db)
	if err != nil {
		return err
	}
	defer pglink.RollBack(ctx, tx)
	if err := a.one(ctx, tx, sql, args, row); err != nil {
		return err
	}
	return pglink.Replicated(db, func() error { return tx.Commit(ctx) })
}

func (a *Admin) one(ctx context.Context, db pglink.DB, sql string, args, row []any) error {
	found := false
	err := a.link.Read(ctx, db, sql, args, func(rows pgx.Rows) error {
		found = true
		return rows.Scan(row...)
	})
	if err == nil && !found {
		return errors.New("the database answered with no row")
	}
	return err
}
