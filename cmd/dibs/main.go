// Command dibs writes, reads and explains the messages of a store.
//
//	dibs write account:command-123 Deposit '{"amount":10,"depositId":"AAA"}'
//	dibs explain account:command+reservation+accounts-123+AAA
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // dibs cron runs where no zones are installed

	"github.com/dibs-go/dibs/cmd/dibs/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)   // a second Ctrl-C ends the process at once
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is an error of the write, which ends the command in order
	os.Exit(cli.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}
