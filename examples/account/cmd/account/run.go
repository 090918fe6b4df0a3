package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/messagestore/storeurl"
)

// runComponent is what a service's main function comes to: open the store,
// register the handlers, run the consumer until told to stop.
func runComponent(ctx context.Context, args []string, _, stderr io.Writer) error {
	flags := flag.NewFlagSet("account run", flag.ContinueOnError)
	url := flags.String("store", os.Getenv(storeVariable), "the store's `URL`")
	name := flags.String("name", "accounts", "the consumer's name")
	size := flags.Int("group-size", 1, "how many consumers share the category")
	member := flags.Int("group-member", 0, "which of them this is, from 0")
	concurrency := flags.Int("concurrency", 64, "how many accounts are worked on at once: their writes are committed together")
	verbose := flags.Bool("v", false, "log to standard error")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	logger := zerolog.Nop()
	if *verbose {
		logger = zerolog.New(stderr).With().Timestamp().Logger()
	}

	store, err := storeurl.Open(ctx, *url, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()

	mux, err := account.Handlers(store, &account.Config{Logger: logger})
	if err != nil {
		return err
	}
	c, err := consumer.New(store, account.Commands, *name, mux, &consumer.Config{
		Concurrency: *concurrency,
		GroupSize:   *size,
		GroupMember: *member,
		// A version conflict means that another consumer handled the account in
		// the meantime, as may be while one takes over: read again, decide again.
		Errors: consumer.ErrorPolicy{Retries: 5, MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second},
		Logger: logger,
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}
