// Account runs the account component and shows it at work.
//
//	account run --store URL     handles commands until it is stopped
//	account demo                four senders, two consumers, a kill -9, the books compared
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `account keeps accounts by handling commands, each once, however often it is sent.

usage:
  account demo [--store URL] [--orders FILE]   run the component under fire and compare the books
  account run --store URL [flags]              handle commands until interrupted

A store is postgres://... or sqlite:FILE; the default is $DIBS_STORE. "account COMMAND -h" lists the flags.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0 if all is well, 1 if not, 2 for a wrong call.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	commands := map[string]func(context.Context, []string, io.Writer, io.Writer) error{
		"run": runComponent, "demo": runDemo, "send": runSender,
	}
	if len(args) == 0 || args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(stdout, usage)
		return 0
	}
	command, ok := commands[args[0]]
	if !ok {
		fmt.Fprintf(stderr, "account: no command %q\n\n%s", args[0], usage)
		return 2
	}
	err := command(ctx, args[1:], stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "account %s: %v\n", args[0], err)
		return 2
	}
	fmt.Fprintf(stderr, "account %s: %v\n", args[0], err)
	return 1
}

// storeVariable is the environment variable that names the store where --store
// does not.
const storeVariable = "DIBS_STORE"

// errUsage is matched by the error of a call that cannot be carried out as it is.
var errUsage = errors.New("wrong call")

// parse parses flags that take no further arguments.
func parse(flags *flag.FlagSet, args []string, stderr io.Writer) error {
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%w: unexpected argument %q", errUsage, flags.Arg(0))
	}
	return nil
}
