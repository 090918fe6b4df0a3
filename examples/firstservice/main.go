// Command firstservice takes deposits over HTTP and books each of them once. The tutorial
// docs/first-service.md builds it step by step.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
	"github.com/dibs-go/dibs/messagestore/postgres"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", "localhost:8080") //nolint:noctx // it returns at once
	if err != nil {
		log.Fatal(err)
	}
	if err := serve(ctx, os.Getenv("DATABASE_URL"), listener); err != nil {
		log.Fatal(err)
	}
}

// serve runs the service until ctx is done: HTTP writes commands, and a consumer books them.
func serve(ctx context.Context, url string, listener net.Listener) error {
	events := logger.Zerolog(zerolog.New(os.Stderr).Level(zerolog.InfoLevel).With().Timestamp().Logger())
	driver, err := postgres.Open(ctx, url, &postgres.Config{Logger: events})
	if err != nil {
		return err
	}
	store, err := messagestore.New(driver, &messagestore.Config{Logger: events})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.Check(ctx); err != nil {
		return err
	}

	mux, err := routes(store)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	defer server.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	go func() { cancel(<-failed) }()
	config := &consumer.Config{Concurrency: 16, Logger: events}
	booking, err := handlers(store)
	if err != nil {
		return err
	}
	accounts, err := consumer.New(store, commands, "accounts", booking, config)
	if err != nil {
		return err
	}
	err = again(ctx, accounts.Run)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause // the server ended the service
	}
	return err
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
