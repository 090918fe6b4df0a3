package admin

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dibs-go/dibs/internal/pglink"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/retention"
)

// The statements of [Admin.Verify].
var (
	//go:embed sql/verify_table.sql
	verifyTableSQL string
	//go:embed sql/verify_store.sql
	verifyStoreSQL string
	//go:embed sql/verify_category.sql
	verifyCategorySQL string
	//go:embed sql/verify_queues.sql
	verifyQueuesSQL string
	//go:embed sql/verify_estimate.sql
	verifyEstimateSQL string
	//go:embed sql/verify_amcheck.sql
	verifyAmcheckSQL string
)

// errNoAmcheck matches ErrNotSupported.
var errNoAmcheck = fmt.Errorf("amcheck is not installed in this database, or not granted to this user: %w", messagestore.ErrNotSupported)

// Verify checks the whole store and reports violations. You can run it while the store is in use:
// it sees one moment, takes no lock that a writer waits for, and concurrent writes cause no false
// alarms. It works on a replica too. It reads the whole table three to four times, and sorts on
// disk if there are many streams. It holds its snapshot meanwhile, so vacuum cannot remove rows
// deleted since.
//
// It needs a pool or a connection of a member of dibs_admin, not in a transaction. If a category
// has no message, the error matches [messagestore.ErrNotFound].
func (a *Admin) Verify(ctx context.Context, config *retention.VerifyConfig) (*retention.Verification, error) {
	v := verifier{admin: a, max: 100}
	if config != nil {
		v.config = *config
	}
	if err := v.validate(); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	err := a.link.AsIs(ctx, func(db pglink.DB) error {
		options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
		b, ok := db.(interface {
			BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
		})
		if !ok || a.link.InTransaction(db) {
			return messagestore.NewInvalidError("database", nil, "must not be in a transaction: this call begins its own")
		}
		tx, err := b.BeginTx(ctx, options)
		if err != nil {
			return err
		}
		defer pglink.RollBack(ctx, tx)
		return v.run(ctx, tx)
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", failed(err))
	}
	return &v.found, nil
}

type verifier struct {
	admin  *Admin
	config retention.VerifyConfig
	max    int
	found  retention.Verification

	categories  []counted
	done, total int64 // the messages checked, and all messages to check
}

// counted is a category and its number of messages in the table.
type counted struct {
	name     messagestore.Category
	messages int64
}

func (v *verifier) validate() error {
	v.max = v.config.Most()
	return v.config.Validate()
}

func (v *verifier) run(ctx context.Context, tx pgx.Tx) error {
	err := v.query(ctx, tx, verifyEstimateSQL, nil, func(rows pgx.Rows) error { return rows.Scan(&v.total) })
	if err != nil {
		return err
	}
	v.total *= 2
	v.tell("")

	var names []string // nil: all categories
	for _, category := range v.config.Categories {
		names = append(names, string(category))
	}
	if err := v.rows(ctx, tx, verifyTableSQL, names, v.max); err != nil {
		return err
	}
	for _, category := range v.config.Categories {
		if !v.has(category) {
			return fmt.Errorf("category %s: %w", category, messagestore.ErrNotFound)
		}
	}
	v.done, v.total = v.found.Checked.Messages, 2*v.found.Checked.Messages

	for _, category := range v.categories {
		v.tell(category.name)
		if err := v.rows(ctx, tx, verifyCategorySQL, string(category.name), category.messages, v.max); err != nil {
			return fmt.Errorf("category %s: %w", category.name, err)
		}
		v.done += category.messages
	}

	if err := v.rows(ctx, tx, verifyQueuesSQL, names, v.max); err != nil {
		return fmt.Errorf("queues: %w", err)
	}

	var messages *int64
	if names == nil {
		messages = &v.found.Checked.Messages
	} else {
		v.found.NotChecked = append(v.found.NotChecked, "ids and global positions were compared within the named categories only")
	}
	if err := v.rows(ctx, tx, verifyStoreSQL, messages, v.max); err != nil {
		return err
	}
	if v.config.Amcheck {
		if err := v.amcheck(ctx, tx); err != nil {
			return err
		}
	} else {
		v.found.NotChecked = append(v.found.NotChecked, "the indexes' inner order: that takes amcheck")
	}
	v.found.NotChecked = append(v.found.NotChecked,
		"what was removed by hand from the end of a stream, or all of one: what is left looks whole",
		"in what order transactions were committed: it cannot be seen afterwards",
		"effects that should have been written once under one id, and were written under two")
	return nil
}

func (v *verifier) tell(category messagestore.Category) {
	if v.config.OnProgress != nil {
		v.config.OnProgress(category, v.done, v.total)
	}
}

func (v *verifier) has(category messagestore.Category) bool {
	for _, c := range v.categories {
		if c.name == category {
			return true
		}
	}
	return false
}

// rows reads the answer of a function.
func (v *verifier) rows(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	listed := map[string]int{}
	return v.query(ctx, tx, sql, args, func(rows pgx.Rows) error {
		var rule string
		var category, stream, expected, found pgtype.Text
		var position, globalPosition, checked pgtype.Int8
		if err := rows.Scan(&rule, &category, &stream, &position, &globalPosition, &expected, &found, &checked); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		if checked.Valid {
			v.count(rule, messagestore.Category(category.String), checked.Int64)
			return nil
		}
		v.found.Violations = append(v.found.Violations, retention.Violation{
			Rule: rule, Category: messagestore.Category(category.String), Stream: messagestore.StreamName(stream.String),
			Position: messagestore.Version(position.Int64), GlobalPosition: messagestore.GlobalPosition(globalPosition.Int64),
			Expected: expected.String, Found: found.String,
		})
		if listed[rule]++; listed[rule] >= v.max {
			v.found.More = true
		}
		return nil
	})
}

func (v *verifier) count(what string, category messagestore.Category, n int64) {
	c := &v.found.Checked
	switch what {
	case "messages":
		v.categories = append(v.categories, counted{category, n})
		c.Categories++
		c.Messages += n
	case "streams":
		c.Streams += n
	case "consumers":
		c.Consumers += n
	case "positions":
		c.Positions += n
	case "reservations":
		c.Reservations += n
	case "queues":
		c.Queues += n
	case "erased":
		c.Erased += n
	}
}

// amcheck runs as the user, not as the owner of the schema: the user needs the right to execute the
// extension's functions.
func (v *verifier) amcheck(ctx context.Context, tx pgx.Tx) error {
	type index struct {
		check, name string
		oid         int64
	}
	var indexes []index
	err := v.query(ctx, tx, verifyAmcheckSQL, nil, func(rows pgx.Rows) error {
		var i index
		err := rows.Scan(&i.check, &i.name, &i.oid)
		indexes = append(indexes, i)
		return err
	})
	if err != nil {
		return err
	}
	if len(indexes) == 0 {
		return errNoAmcheck
	}
	for _, i := range indexes {
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			// PostgreSQL has quoted the name in check.
			return v.query(ctx, tx, "select "+i.check+"($1::oid::regclass, true)", []any{i.oid}, func(pgx.Rows) error { return nil })
		})
		e, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case ok && strings.HasPrefix(e.Code, "XX"):
			v.found.Violations = append(v.found.Violations, retention.Violation{Rule: "indexes", Expected: "an index " + i.name + " as amcheck wants it", Found: e.Message})
		case ok && e.Code == "42501":
			return errNoAmcheck
		case err != nil:
			return fmt.Errorf("index %s: %w", i.name, err)
		}
	}
	return nil
}

// query prepares no statements: there may be a pooler in between, so the server may serve another
// client next.
func (v *verifier) query(ctx context.Context, tx pgx.Tx, sql string, args []any, each func(pgx.Rows) error) error {
	return pglink.EachRow(ctx, tx, pglink.InSchema(sql, v.admin.schema), append([]any{pgx.QueryExecModeExec}, args...), each)
}
