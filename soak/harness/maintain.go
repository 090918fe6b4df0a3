package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/check"
)

// maintenance bounds how long one statement of an administrator may take.
const maintenance = 20 * time.Second

// killPgBouncer is the fault that there is only with a PgBouncer.
const killPgBouncer = "kill-pgbouncer"

func (n *nemesis) killPgBouncer(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	defer begin("PgBouncer")()
	n.bouncer.Kill()
	return n.bouncer.Start(context.WithoutCancel(ctx))
}

// migrate does what the roll-out of a release does.
func (n *nemesis) migrate(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	return n.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		defer begin("schema dibs")()
		if err := migrations.Up(ctx, conn, nil); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "select dibs.grant_rights()")
		return err
	})
}

func (n *nemesis) reindex(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return n.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		statements := [][]string{{"vacuum dibs.messages"}, {"analyze dibs.messages"}, nil, nil}[random.IntN(4)]
		if statements == nil {
			var err error
			if statements, err = reindexes(ctx, conn); err != nil {
				return err
			}
		}
		defer begin(strings.Join(statements, "; "))()
		for _, statement := range statements {
			if _, err := conn.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		return nil
	})
}

// reindexes returns the statements that make each index anew, after those that drop what
// such a statement has left that was killed.
func reindexes(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, `
		select format(case when indisvalid then 'reindex index concurrently %s' else 'drop index concurrently %s' end, indexrelid::regclass)
		from pg_index where indrelid = 'dibs.messages'::regclass
		order by indisvalid, indexrelid`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// maintain does something as an administrator, who may be killed as anybody. What fails
// otherwise is a fault that nobody meant.
func (n *nemesis) maintain(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, n.postgres.URL(database))
	if err != nil {
		return nil // another fault was first
	}
	defer conn.Close(context.WithoutCancel(ctx))
	limited, cancel := context.WithTimeout(ctx, maintenance)
	defer cancel()
	err = do(limited, conn)
	if limited.Err() != nil || conn.IsClosed() || allowed(err) {
		return nil
	}
	return err
}

// allowed reports whether a server under faults may say so.
func allowed(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.ContainsFunc(check.DefaultSQLStates(), func(state string) bool { return strings.HasPrefix(e.Code, state) })
}
