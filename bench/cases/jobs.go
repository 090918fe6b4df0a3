package cases

import (
	"context"
	"database/sql"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	watermillmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // watermill-sql works with database/sql
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/dibs-go/dibs/bench/measure"
	"github.com/dibs-go/dibs/bench/server"
	"github.com/dibs-go/dibs/messagestore"
)

// The sizes of River's jobs and watermill-sql's topics, with which the cases compare queues and
// relays.
const (
	// peerConns is how many connections River and watermill-sql have.
	peerConns = 32

	// topicBatch is how many messages are read at once.
	topicBatch = 1000
	topicName  = "transfers"
)

// A job is a message's data.
type job struct{ transferred }

// Kind is River's name for the type.
func (job) Kind() string { return messageType }

func newJob() job { return job{newItem()} }

// openRiver makes River's tables in a database of the cell's.
func openRiver(ctx context.Context, cell *measure.Cell, config *riverqueue.Config) (*riverqueue.Client[pgx.Tx], *pgxpool.Pool, error) {
	url, err := database(ctx, cell, server.Empty)
	if err != nil {
		return nil, nil, err
	}
	pool, err := openPool(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	cell.Cleanup(func(context.Context) error {
		pool.Close()
		return nil
	})
	driver := riverpgxv5.New(pool)
	config.Logger = slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: config.Logger})
	if err != nil {
		return nil, nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, nil, err
	}
	client, err := riverqueue.NewClient(driver, config)
	return client, pool, err
}

func openPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = peerConns
	return pgxpool.NewWithConfig(ctx, config)
}

func countJobs(ctx context.Context, pool *pgxpool.Pool, state string) (n int64, err error) {
	return n, pool.QueryRow(ctx, "select count(*) from river_job where state = $1", state).Scan(&n)
}

func newMessage() *watermillmessage.Message {
	key := newKey()
	r, err := encode(key, messagestore.AnyVersion, command(key))
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	m := watermillmessage.NewMessage(r.id.String(), r.data)
	m.Metadata.Set("causation", string(key))
	return m
}

// A topic is watermill-sql's.
type topic struct {
	db        *sql.DB
	publisher *watermillsql.Publisher
}

func (t *topic) open(ctx context.Context, url string) (err error) {
	if t.db, err = sql.Open("pgx", url); err != nil {
		return err
	}
	t.db.SetMaxOpenConns(peerConns)
	t.db.SetMaxIdleConns(peerConns)
	t.publisher, err = watermillsql.NewPublisher(t.db, watermillsql.PublisherConfig{SchemaAdapter: topicSchema(), AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	// The table is made now, and not by 64 callers at once.
	if err := t.publisher.Publish(topicName, newMessage()); err != nil {
		return err
	}
	_, err = t.db.ExecContext(ctx, "truncate watermill_"+topicName+" restart identity")
	return err
}

func topicSchema() watermillsql.DefaultPostgreSQLSchema {
	return watermillsql.DefaultPostgreSQLSchema{SubscribeBatchSize: topicBatch}
}
