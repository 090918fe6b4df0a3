package store

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

	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore/postgres/admin"
	"github.com/dibs-go/dibs/migrations"
	"github.com/dibs-go/dibs/soak/crew"
)

// maintenance bounds how long one statement of an administrator may take.
const maintenance = 20 * time.Second

// killPgBouncer is the fault that there is only with a PgBouncer.
const killPgBouncer = "kill-pgbouncer"

func (r *run) killPgBouncer(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	defer begin("PgBouncer")()
	r.bouncer.Kill()
	return r.bouncer.Start(context.WithoutCancel(ctx))
}

// older has the schema as a release left it that had no schema message_store, and another
// body of dibs.append.
var older = []string{
	"drop schema if exists message_store cascade", // a migration that was killed may have left it so
	"drop table if exists dibs.settings",
	"drop function if exists dibs.refuse_removed, dibs.refuse_unlike_append, dibs.insert_message",
	"delete from dibs.migrations where name like 'message_store/%'",
	"update dibs.migrations set sha256 = 'older' where name = 'functions/append.sql'",
}

// The faults of a roll-out.
const (
	migrate = "migrate"
	release = "release"
	reindex = "reindex"

	raiseEpoch = "raise-epoch"
)

// migrate does the roll-out of this release, from the version before.
func (r *run) migrate(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	return r.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := together(ctx, conn, older); err != nil {
			return err
		}
		defer begin("the schema")()
		if err := migrations.Up(ctx, conn, nil); err != nil {
			return err
		}
		r.did(migrate)
		return migrations.Up(ctx, conn, nil) // once more, when there is nothing to do
	})
}

// release does the work of a later release: it installs each function again, under the plans of all
// its callers, and changes the table, which no other session may use meanwhile.
func (r *run) release(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	return r.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'dibs'::regnamespace and prokind = 'f' order by oid")
		if err != nil {
			return err
		}
		functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		defer begin(fmt.Sprintf("%d functions and the table", len(functions)))()
		err = together(ctx, conn, slices.Concat([]string{"set local lock_timeout = '10s'"}, functions, []string{
			"alter table dibs.messages add constraint of_a_release check (position >= 0) not valid",
			"alter table dibs.messages drop constraint of_a_release",
		}))
		if err == nil {
			r.did(release)
		}
		return err
	})
}

// did records that a fault had its effect, from which others may keep it.
func (r *run) did(name string) { r.Nemesis.Begin(crew.Event{Call: "did", Name: name}) }

// together runs statements in one transaction.
func together(ctx context.Context, conn *pgx.Conn, statements []string) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%.60s: %w", statement, err)
			}
		}
		return nil
	})
}

// raiseEpoch does so though nothing is lost.
func (r *run) raiseEpoch(ctx context.Context, _ *rand.Rand, begin func(string) func()) error {
	return r.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		defer begin("the store")()
		_, err := testkit.Must(admin.New(conn, nil)).RaiseEpoch(ctx)
		if err == nil {
			r.did(raiseEpoch)
		}
		return err
	})
}

// asMigrated brings a schema up to date that a killed migration may have left, and returns the
// differences from the migrations.
func asMigrated(ctx context.Context, url string) (complaints []string, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := keepNoMore(ctx, conn); err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, conn, nil); err != nil {
		return nil, err
	}
	drift, err := migrations.Drift(ctx, conn, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range drift.Differences {
		complaints = append(complaints, "the schema is not as it was migrated: "+d.String())
	}
	for _, m := range drift.NotApplied {
		complaints = append(complaints, m.Name+" was not applied")
	}
	return complaints, nil
}

func (r *run) reindex(ctx context.Context, random *rand.Rand, begin func(string) func()) error {
	return r.maintain(ctx, func(ctx context.Context, conn *pgx.Conn) error {
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
		r.did(reindex)
		return nil
	})
}

// reindexes returns the statements that drop the remains of a killed reindex, and then the
// statements that rebuild each index.
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

// maintain does something as an administrator, which may be killed as any client. Any
// other failure is a fault that was not meant.
func (r *run) maintain(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, r.Postgres.URL(database))
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
	return ok && slices.ContainsFunc([]string{
		"DB",                                                                            // what our functions answer
		"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "25P03", "25P02", // ended, or asked to try again
		"08", "53", "58030", // connections, resources, the disk
	}, func(state string) bool { return strings.HasPrefix(e.Code, state) })
}
