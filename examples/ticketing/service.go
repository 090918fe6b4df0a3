package ticketing

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// Schema makes the box office's table.
const Schema = `create table if not exists holds (
	seat text, key text, email text not null, held boolean not null, primary key (seat, key)
)`

// Config configures a replica.
type Config struct {
	Database string        // URL
	Mail     string        // URL of the mail service
	Lease    time.Duration // of the consumers: see consumer.Config
	Logger   logger.Logger
}

// Run serves on listener and runs both consumers until ctx ends: then it takes no more requests,
// finishes those in flight, and hands its share of the messages over to the other replicas. If one
// consumer stops at a message, the other one and the HTTP server go on.
func Run(ctx context.Context, listener net.Listener, config Config) error {
	store, err := dibs.Open(ctx, config.Database, &messagestore.Config{Logger: config.Logger})
	if err != nil {
		return err
	}
	defer store.Close()
	txs, err := messagestore.Transactional[pgx.Tx](store)
	if err != nil {
		return err
	}
	holds, err := boxOffice(txs)
	if err != nil {
		return err
	}
	settings := &consumer.Config{Concurrency: 8, Lease: config.Lease, Logger: config.Logger}

	seller, err := consumer.New(store, commands, "seats", holds, settings)
	if err != nil {
		return err
	}
	mails, err := consumer.New(store, seats, "mailer", mailer(config.Mail), settings)
	if err != nil {
		return err
	}

	handler, err := routes(txs)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return again(ctx, seller.Run) })
	group.Go(func() error { return again(ctx, mails.Run) })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ending), group.Wait())
}

// again runs a part of the service until ctx is done. A part that ends before, such as a consumer
// that has stopped at a message, has logged why: it begins again after a pause, and the other parts
// go on.
func again(ctx context.Context, run func(context.Context) error) error {
	for {
		if err := run(ctx); ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
}
