package cases

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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

const (
	insertCallers = 64

	// peerConns is how many connections River and watermill-sql have.
	peerConns = 32

	// riverBatch is how many jobs are inserted at once for a backlog.
	riverBatch = 5000

	// topicBatch is how many messages are published at once for a backlog, and read.
	topicBatch = 1000
	topicName  = "transfers"
)

// Insert returns the case of putting in one message, or one job, at a time.
func Insert() []measure.Case {
	return []measure.Case{{
		Name:  "insert/64-callers",
		Shows: "Put in one message or job at a time, 64 callers (three kinds of work)",
		Contenders: []measure.Contender{
			{Name: dibs, Run: insertMessages},
			{Name: river, Run: insertJobs},
			{Name: watermillSQL, Run: publish},
		},
	}}
}

// insertMessages is the reference: each message is the first of a stream.
func insertMessages(ctx context.Context, cell *measure.Cell) error {
	url, err := database(ctx, cell, server.Dibs)
	if err != nil {
		return err
	}
	s, err := openDibsStore(ctx, url)
	if err != nil {
		return err
	}
	defer s.close()
	done, err := cell.Callers(ctx, insertCallers, func(ctx context.Context, _ int) (int, error) {
		key := newKey()
		_, err := s.Write(ctx, key, messagestore.AnyVersion, command(key))
		return 1, err
	})
	if err != nil {
		return err
	}
	count, err := s.count(ctx)
	return errors.Join(err, cell.Check("messages in the table", count, done))
}

// A job is a message's data.
type job struct{ transferred }

// Kind is River's name for the type.
func (job) Kind() string { return messageType }

func newJob() job { return job{newItem()} }

// A worker counts jobs.
type worker struct {
	riverqueue.WorkerDefaults[job]
	worked atomic.Int64
	want   int64
	done   chan struct{}
}

// Work does nothing else.
func (w *worker) Work(context.Context, *riverqueue.Job[job]) error {
	if w.worked.Add(1) == w.want {
		close(w.done)
	}
	return nil
}

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

// insertJobs has River insert one job for each call.
func insertJobs(ctx context.Context, cell *measure.Cell) error {
	client, pool, err := openRiver(ctx, cell, &riverqueue.Config{})
	if err != nil {
		return err
	}
	done, err := cell.Callers(ctx, insertCallers, func(ctx context.Context, _ int) (int, error) {
		_, err := client.Insert(ctx, newJob(), nil)
		return 1, err
	})
	if err != nil {
		return err
	}
	count, err := countJobs(ctx, pool, "available")
	return errors.Join(err, cell.Check("jobs in the table", count, done))
}

func countJobs(ctx context.Context, pool *pgxpool.Pool, state string) (n int64, err error) {
	return n, pool.QueryRow(ctx, "select count(*) from river_job where state = $1", state).Scan(&n)
}

// workJobs has River work a backlog, with the settings of its own benchmark.
func workJobs(ctx context.Context, cell *measure.Cell) error {
	w := &worker{want: size[int64](cell, riverBatch, 20_000, 100_000), done: make(chan struct{})}
	workers := riverqueue.NewWorkers()
	riverqueue.AddWorker(workers, w)
	client, pool, err := openRiver(ctx, cell, riverConfig(workers))
	if err != nil {
		return err
	}
	for range w.want / riverBatch {
		batch := make([]riverqueue.InsertManyParams, riverBatch)
		for i := range batch {
			batch[i].Args = newJob()
		}
		if _, err := client.InsertManyFast(ctx, batch); err != nil {
			return err
		}
	}
	if _, err := pool.Exec(ctx, "vacuum (analyze) river_job"); err != nil {
		return err
	}
	err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
		if err := client.Start(ctx); err != nil {
			return 0, err
		}
		select {
		case <-w.done:
		case <-ctx.Done():
		}
		// A job is done when that is recorded.
		err := client.Stop(ctx)
		return w.worked.Load(), err
	})
	if err != nil {
		return err
	}
	count, err := countJobs(ctx, pool, "completed")
	return errors.Join(err, cell.Check("completed jobs", count, w.want))
}

// publish has watermill-sql publish one message for each call.
func publish(ctx context.Context, cell *measure.Cell) error {
	url, err := database(ctx, cell, server.Empty)
	if err != nil {
		return err
	}
	t := &topic{}
	if err := t.open(ctx, url); err != nil {
		return err
	}
	defer t.db.Close()
	done, err := cell.Callers(ctx, insertCallers, func(context.Context, int) (int, error) {
		return 1, t.publisher.Publish(topicName, newMessage())
	})
	if err != nil {
		return err
	}
	count, err := t.count(ctx)
	return errors.Join(err, cell.Check("messages in the topic", count, done))
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

// A topic is watermill-sql's. It is filled once in a run.
type topic struct {
	mu        sync.Mutex
	messages  int64
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

func (t *topic) count(ctx context.Context) (n int64, err error) {
	return n, t.db.QueryRowContext(ctx, "select count(*) from watermill_"+topicName).Scan(&n)
}

// setup fills the topic.
func (t *topic) setup(ctx context.Context, cell *measure.Cell) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.messages > 0 {
		return nil
	}
	url, err := database(ctx, cell, server.Empty)
	if err != nil {
		return err
	}
	if err := t.open(ctx, url); err != nil {
		return err
	}
	cell.Cleanup(func(context.Context) error {
		t.messages = 0
		return t.db.Close()
	})
	n := size[int64](cell, topicBatch, 100_000, 500_000)
	for range n / topicBatch {
		batch := make([]*watermillmessage.Message, topicBatch)
		for i := range batch {
			batch[i] = newMessage()
		}
		if err := t.publisher.Publish(topicName, batch...); err != nil {
			return err
		}
	}
	if _, err := t.db.ExecContext(ctx, "vacuum (analyze) watermill_"+topicName); err != nil {
		return err
	}
	t.messages = n
	return nil
}

// consume reads the topic with a subscriber that has not read anything yet.
func (t *topic) consume(ctx context.Context, cell *measure.Cell) (err error) {
	p, err := cell.Servers.Postgres(ctx)
	if err != nil {
		return err
	}
	if err := cell.MeasurePostgres(ctx, p); err != nil {
		return err
	}
	subscriber, err := watermillsql.NewSubscriber(t.db, watermillsql.SubscriberConfig{
		ConsumerGroup: "group" + newJob().TransferID, PollInterval: 10 * time.Millisecond,
		SchemaAdapter: topicSchema(), OffsetsAdapter: watermillsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, subscriber.Close()) }()
	seen := make(map[string]bool, t.messages)
	err = cell.Once(ctx, func(ctx context.Context) (int64, error) {
		messages, err := subscriber.Subscribe(ctx, topicName)
		if err != nil {
			return 0, err
		}
		for range t.messages {
			m, open := <-messages
			if !open {
				return 0, io.ErrUnexpectedEOF
			}
			seen[m.UUID] = true
			m.Ack()
		}
		return t.messages, nil
	})
	return errors.Join(err, cell.Check("messages of the topic", int64(len(seen)), t.messages))
}
