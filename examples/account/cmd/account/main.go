// Account runs the account component and shows it at work.
//
//	account run --store URL     handles commands until it is stopped
//	account demo                four senders, two consumers, a kill -9, the books compared
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/dibs-go/dibs/internal/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(demo.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
