// Standing shows a queue and its schedules at work.
//
//	standing demo     three processes with schedules, four workers, kills, the books compared
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
	os.Exit(demo.RunStanding(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
