package natsbroker_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	natsbroker "github.com/dibs-go/dibs/brokers/nats"
	"github.com/dibs-go/dibs/inbox"
	"github.com/dibs-go/dibs/internal/testkit"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/sqlite"
	"github.com/dibs-go/dibs/reservation"
)

// A sender publishes a request twice, under one idempotence key, and it is paid once.
func ExampleReceiver() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dir, err := os.MkdirTemp("", "")
	check(err)
	defer os.RemoveAll(dir)
	js, shutDown := jetStream(dir)
	defer shutDown()
	requests, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "REQUESTS", Subjects: []string{"payments.*"}})
	check(err)
	for sequence := range 2 {
		m := &nats.Msg{Subject: "payments.ann", Data: []byte(`{"amount":10}`), Header: nats.Header{"dibs-id": {"order-17"}}}
		_, err := js.PublishMsg(ctx, m)
		check(err)
		fmt.Println("published", sequence+1)
	}
	c, err := requests.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	check(err)
	payments, store, err := openInbox(ctx, filepath.Join(dir, "bank.db"))
	check(err)
	defer store.Close()
	received := 0
	pay := func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
		_, err := tx.ExecContext(ctx, "insert into payments values (10)")
		return []messagestore.StreamWrite{reservation.Answer("accepted")}, err
	}

	receiver, err := natsbroker.NewReceiver(c, func(ctx context.Context, m jetstream.Msg) error {
		request, err := natsbroker.Request(m, "")
		if err != nil {
			return err
		}
		result, err := payments.Receive(ctx, request, pay)
		if err != nil {
			return err
		}
		fmt.Println(result.Outcome, string(result.Answer))
		if received++; received == 2 {
			stop()
		}
		return nil
	}, func(ctx context.Context, m jetstream.Msg, reason error) error {
		request, _ := natsbroker.Request(m, "") // what there is of it
		return payments.Refuse(ctx, request, reason)
	}, nil)
	check(err)
	check(receiver.Run(ctx))

	// Output:
	// published 1
	// published 2
	// reserved "accepted"
	// duplicate "accepted"
}

// jetStream starts a server.
func jetStream(dir string) (js jetstream.JetStream, shutDown func()) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	check(err)
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		panic("the server is not ready")
	}
	conn, err := nats.Connect(s.ClientURL())
	check(err)
	js, err = jetstream.New(conn)
	check(err)
	return js, func() {
		conn.Close()
		s.Shutdown()
		s.WaitForShutdown()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// openInbox opens the store at a path, with a table of payments.
func openInbox(ctx context.Context, path string) (*inbox.Inbox[*sql.Tx], *sqlite.Driver, error) {
	driver, err := sqlite.Open(ctx, path, nil)
	if err != nil {
		return nil, nil, err
	}
	txs, err := messagestore.Transactional[*sql.Tx](testkit.Must(messagestore.New(driver, nil)))
	if err == nil {
		_, err = txs.Transact(ctx, func(ctx context.Context, tx *sql.Tx) ([]messagestore.StreamWrite, error) {
			_, err := tx.ExecContext(ctx, "create table if not exists payments (amount int)")
			return nil, err
		})
	}
	if err != nil {
		return nil, nil, errors.Join(err, driver.Close())
	}
	u, err := inbox.New(txs, "payments", nil)
	return u, driver, err
}
