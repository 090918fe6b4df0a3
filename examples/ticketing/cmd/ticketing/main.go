// Ticketing runs the ticketing service in replicas and shows it at work.
//
//	ticketing demo               three replicas under a rolling restart, a kill and a stop
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
	os.Exit(demo.RunTicketing(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
