package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/examples/transfer"
	"github.com/dibs-go/dibs/internal/demo"
	"github.com/dibs-go/dibs/internal/demo/messaging/bank"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/outbox"
)

// The times that the processes of the demo work with, and the name of their stream in NATS.
const (
	// lease is short, so that the work of a process that was killed does not wait for long.
	lease = time.Second

	// patience is how long the bank may take. It is longer than a takeover, and shorter than the
	// bank's worst.
	patience = 4 * time.Second

	// deadline is the deadline of a transfer. On a busy machine one may wait for long until it
	// comes to the bank.
	deadline = 10 * time.Minute

	// bankTimeout is how long one post to the bank may take.
	bankTimeout = time.Second

	// stream is the one of JetStream that has the events of accounts.
	stream = "ACCOUNTS"
)

// A service is a [transfer.Service] over either database.
type service interface {
	CreateTable(ctx context.Context) error
	OpenAccounts(ctx context.Context, balances map[string]int64) error
	Handler() http.Handler
	Run(ctx context.Context) error
	ToBank(url string, config *outbox.HTTPConfig) (*outbox.Relay, error)
	ToSink(name string, sink outbox.Sink) (*outbox.Relay, error)
}

// open returns the service over the store of a URL. The caller closes the store.
func open(ctx context.Context, storeURL string, log io.Writer) (service, *messagestore.Store, error) {
	to := logger.Zerolog(zerolog.New(log).With().Timestamp().Logger().Level(zerolog.WarnLevel))
	store, err := dibs.Open(ctx, storeURL, &messagestore.Config{Logger: to})
	if err != nil {
		return nil, nil, err
	}
	config := &transfer.Config{Answer: patience, Deadline: deadline, Lease: lease, Logger: to}
	var s service
	if txs, none := messagestore.Transactional[*sql.Tx](store); none == nil {
		s, err = transfer.New(txs, transfer.OnSQLite, config)
	} else if txs, none := messagestore.Transactional[pgx.Tx](store); none == nil {
		s, err = transfer.New(txs, transfer.OnPostgres, config)
	}
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return s, store, nil
}

type serveCommand struct {
	Store string `env:"DIBS_STORE"`
}

// Run is the receiver: it takes orders and webhooks on the socket that it was started with.
func (c *serveCommand) Run(ctx context.Context, o *demo.Output) error {
	s, store, err := open(ctx, c.Store, o.Stderr)
	if err != nil {
		return err
	}
	return errors.Join(demo.Serve(ctx, s.Handler()), store.Close())
}

type goCommand struct {
	Store string `env:"DIBS_STORE"`
}

// Run is a runner of sagas.
func (c *goCommand) Run(ctx context.Context, o *demo.Output) error {
	s, store, err := open(ctx, c.Store, o.Stderr)
	if err != nil {
		return err
	}
	return errors.Join(s.Run(ctx), store.Close())
}

type relayCommand struct {
	Store  string `env:"DIBS_STORE"`
	Bank   string
	Broker string
}

// Run runs the two relays: of the commands to the bank, and of the events of accounts to JetStream.
func (c *relayCommand) Run(ctx context.Context, o *demo.Output) (err error) {
	s, store, err := open(ctx, c.Store, o.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	conn, err := connect(c.Broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	toBank, err := s.ToBank(c.Bank+"/orders", &outbox.HTTPConfig{Timeout: bankTimeout})
	if err != nil {
		return err
	}
	sink, err := natsbroker.NewSink(js, &natsbroker.SinkConfig{Stream: stream, Timeout: time.Second})
	if err != nil {
		return err
	}
	toNATS, err := s.ToSink("tonats", sink)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return toBank.Run(ctx) })
	group.Go(func() error { return toNATS.Run(ctx) })
	return group.Wait()
}

// connect returns a connection that waits for a server that is gone.
func connect(url string) (*nats.Conn, error) {
	return nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true))
}

type bankCommand struct {
	Ledger  string
	Webhook string
	Seed    uint64
}

// Run is the bank, on the socket that it was started with.
func (c *bankCommand) Run(ctx context.Context) error {
	ledger, err := bank.Open(ctx, c.Ledger)
	if err != nil {
		return err
	}
	b := bank.New(ledger, c.Webhook, c.Seed)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return b.Run(ctx) })
	group.Go(func() error { return demo.Serve(ctx, b) })
	return errors.Join(group.Wait(), ledger.Close())
}

type brokerCommand struct {
	Dir  string
	Port int
}

// Run is a server of NATS with JetStream on disk.
func (c *brokerCommand) Run(ctx context.Context) error {
	s, err := server.NewServer(&server.Options{
		ServerName: "demo", Host: "127.0.0.1", Port: c.Port, JetStream: true, StoreDir: c.Dir, NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	const starting = 2 * time.Minute
	if !s.ReadyForConnections(starting) {
		return fmt.Errorf("JetStream is not ready after %v", starting)
	}
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
