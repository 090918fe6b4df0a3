// Package demo is the program of examples/account: it runs the account component, and
// shows it under fire. The demo starts consumers and senders as processes, kills one, and
// compares the store with the orders that were sent.
package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rs/zerolog"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/consumer"
	"github.com/dibs-go/dibs/examples/account"
	"github.com/dibs-go/dibs/internal/demo/stage"
	"github.com/dibs-go/dibs/logger"
)

type grammar struct {
	Demo demoCommand `cmd:"" help:"Run the component under fire and compare the books."`
	Run  runCommand  `cmd:"" help:"Handle commands until interrupted."`
	Send sendCommand `cmd:"" hidden:""`
}

// Run runs the command of args and returns the exit code: 0 for success, 1 for a failure,
// 2 for a wrong call.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return stage.Run(ctx, &grammar{}, "account",
		"The account component, which keeps accounts by handling commands, each once, however often it is sent. A store is postgres://... or sqlite:FILE.",
		args, stdout, stderr)
}

type runCommand struct {
	Store       string        `env:"DIBS_STORE" placeholder:"URL" help:"The store."`
	Lease       time.Duration `default:"10s" placeholder:"TIME" help:"How long another process of the consumer waits for a silent one before it takes over. Defaults to ${default}."`
	Concurrency int           `default:"64" placeholder:"N" help:"The number of accounts in work at once. Defaults to ${default}."`
	Verbose     bool          `short:"v" help:"Log to standard error."`
}

// Run handles commands.
func (c *runCommand) Run(ctx context.Context, o *stage.Output) error {
	log := logger.Silent()
	if c.Verbose {
		log = logger.Zerolog(zerolog.New(o.Stderr).With().Timestamp().Logger())
	}
	store, err := dibs.Open(ctx, c.Store, nil)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer store.Close()
	return account.Serve(ctx, store, &account.Config{Consumer: consumer.Config{
		Concurrency: c.Concurrency, Lease: c.Lease, Logger: log,
	}})
}
