package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/migrations"
)

// prepareStore returns the URL of a store of the run's own, and a function that removes it.
func prepareStore(ctx context.Context, url, dir string) (string, func() error, error) {
	none := func() error { return nil }
	switch {
	case url == "":
		return "sqlite:" + filepath.Join(dir, "demo.db"), none, nil
	case strings.HasPrefix(url, "postgres://"), strings.HasPrefix(url, "postgresql://"):
		return preparePostgres(ctx, url)
	case strings.HasPrefix(url, "memory:"):
		return "", none, fmt.Errorf("%w: processes cannot share a store in memory", ErrUsage)
	}
	return url, none, nil
}

// OnSQLite reports whether the store is a file.
func (r *Run) OnSQLite() bool { return strings.HasPrefix(r.URL, "sqlite:") }

// Set sets a parameter of the URL of a store on PostgreSQL, before a process is started.
func (r *Run) Set(name, value string) {
	if !r.OnSQLite() {
		r.URL += "&" + name + "=" + url.QueryEscape(value) // behind the schema
	}
}

// InSearchPath puts the tables of the run's own programs into the schema of the run too.
func (r *Run) InSearchPath() { r.Set("search_path", strings.Trim(Schema(r.URL), `".`)) }

// preparePostgres makes a schema for the run, so that it neither meets nor leaves
// anything in a database that is used for something else.
func preparePostgres(ctx context.Context, where string) (string, func() error, error) {
	target, err := url.Parse(where)
	if err != nil {
		return "", nil, fmt.Errorf("%w: the store's URL cannot be read", ErrUsage) // the error would show the password
	}
	conn, err := connect(ctx, where)
	if err != nil {
		return "", nil, fmt.Errorf("connect to %s: %w", target.Host, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	schema := fmt.Sprintf("dibs_demo_%d", time.Now().UnixNano())
	if err := migrations.Up(ctx, conn, &migrations.Config{Schema: schema}); err != nil {
		return "", nil, err
	}
	query := target.Query()
	query.Set("schema", schema)
	own := *target
	own.RawQuery = query.Encode()
	return own.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := removeSchema(ctx, where, schema); err != nil {
			return fmt.Errorf("remove schema %s: %w", schema, err)
		}
		return nil
	}, nil
}

const deadlockDetected = "40P01"

// removeSchema tries again after a deadlock with a statement of a process that was killed, which
// its session finishes.
func removeSchema(ctx context.Context, where, schema string) error {
	conn, err := connect(ctx, where)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		_, err := conn.Exec(ctx, "drop schema "+pgx.Identifier{schema}.Sanitize()+" cascade")
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Code != deadlockDetected {
			return err
		}
	}
}

// connect prepares nothing by name, so that it works through PgBouncer too.
func connect(ctx context.Context, where string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(where)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	return pgx.ConnectConfig(ctx, config)
}
