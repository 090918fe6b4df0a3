package postgres

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pgschema"
	"github.com/dibs-go/dibs/messagestore"
)

// ErrInvalidRemoval is matched by the error for a trim or a deletion that cannot be
// asked for. Nothing was sent.
var ErrInvalidRemoval = errors.New("invalid removal")

// Admin does what members of the role dibs_admin may do beside reading: trim and
// delete streams, raise the epoch, and look into the state of the store. It is safe for
// concurrent use if db is; over a connection, its calls take turns, and over a transaction
// what it does is the transaction's, which is at READ COMMITTED.
type Admin struct {
	driver  *Driver
	queries adminQueries
}

var (
	//go:embed sql/trim.sql
	trimSQL string
	//go:embed sql/delete.sql
	deleteSQL string
	//go:embed sql/category_streams.sql
	categoryStreamsSQL string
	//go:embed sql/raise_epoch.sql
	raiseEpochSQL string
)

type adminQueries struct {
	trim, delete, categoryStreams, raiseEpoch string
}

// NewAdmin returns an administrator of the store in db, which the caller keeps and
// closes. A schema that is no schema's name is the error of every call.
func NewAdmin(db DB, config *Config) *Admin {
	a := &Admin{driver: New(db, config)}
	if a.driver.invalid == nil {
		schema := pgschema.Default
		if config != nil {
			schema = config.Schema
		}
		a.queries = adminQueries{
			trim:            pgschema.Rename(trimSQL, schema),
			delete:          pgschema.Rename(deleteSQL, schema),
			categoryStreams: pgschema.Rename(categoryStreamsSQL, schema),
			raiseEpoch:      pgschema.Rename(raiseEpochSQL, schema),
		}
	}
	return a
}

const (
	// maxRemoved bounds what one transaction removes, and so how long it lasts.
	maxRemoved = 10_000

	// maxReasonBytes bounds a reason.
	maxReasonBytes = 255
)

// change calls a function that changes something in a transaction of its own, if it is
// not in its caller's, and puts the row that it answers with into row. If the session is
// lost it calls again in another: the arguments end with an id by which the function
// knows that it did it before, and answers as it did.
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
		err := a.driver.with(ctx, func(db DB) error {
			if own = !a.driver.inTransaction(db); !own {
				return a.driver.failed(a.one(ctx, db, sql, args, row))
			}
			err := a.commit(ctx, db, sql, args, row)
			lost = err != nil && !definite(err)
			return a.driver.failed(err)
		})
		if err == nil {
			return nil
		}
		if cause == nil || !lost {
			cause = err // and not that the session, which was lost then, is closed
		}
		if !own || ctx.Err() != nil || attempt == attempts || !lost && !retryable(err) {
			return cause
		}
		a.driver.log.Warn().Err(err).Int("attempt", attempt).Msg("change again")
		if err := pause(ctx, attempt); err != nil {
			return err
		}
	}
}

// commit calls the function in a transaction of its own.
func (a *Admin) commit(ctx context.Context, db DB, sql string, args, row []any) error {
	tx, err := begin(ctx, db)
	if err != nil {
		return err
	}
	defer rollBack(ctx, tx)
	if err := a.one(ctx, tx, sql, args, row); err != nil {
		return err
	}
	return replicated(db, func() error { return tx.Commit(ctx) })
}

func (a *Admin) one(ctx context.Context, db DB, sql string, args, row []any) error {
	found := false
	err := a.driver.read(ctx, db, sql, args, func(rows pgx.Rows) error {
		found = true
		return rows.Scan(row...)
	})
	if err == nil && !found {
		return errors.New("the database answered with no row")
	}
	return err
}

// checkName refuses what can be no stream. It lets through what other clients may have
// written and [messagestore.StreamName.Validate] does not.
func checkName(stream messagestore.StreamName) error {
	var rule string
	switch {
	case stream == "":
		rule = "it is empty"
	case strings.HasPrefix(string(stream), "-"):
		rule = "the category is empty"
	case !utf8.ValidString(string(stream)) || strings.ContainsRune(string(stream), 0):
		rule = "not valid UTF-8, or with a character U+0000"
	default:
		return nil
	}
	return messagestore.NewInvalidError(messagestore.ErrInvalidStreamName, "stream name", string(stream), rule)
}

func checkReason(reason string) error {
	if reason != "" && messagestore.ValidateType("x"+reason+"x") != nil || len(reason) > maxReasonBytes ||
		strings.TrimSpace(reason) != reason {
		return messagestore.NewInvalidError(ErrInvalidRemoval, "reason", reason, "it is at most 255 bytes of visible text, without white space at either end")
	}
	return nil
}
