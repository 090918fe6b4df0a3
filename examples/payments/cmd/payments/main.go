// Payments runs the payments API and shows it at work.
//
//	payments demo               three servers, a bank, four impatient clients, kills, the books compared
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
	os.Exit(demo.RunPayments(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
