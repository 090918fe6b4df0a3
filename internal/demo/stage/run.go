// Package stage has the parts that the demos share: their processes, sockets, stores and tables.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// StoreVariable is the environment variable with the store's URL.
const StoreVariable = "DIBS_STORE"

// ErrUsage is matched by the error of a call that cannot be carried out as it is.
var ErrUsage = errors.New("wrong call")

// Output is where a command prints.
type Output struct{ Stdout, Stderr io.Writer }

// interrupted is the exit code of a command that was told to end before its work was done, as
// shells have it for Ctrl-C.
const interrupted = 130

// notDone is the exit code of a run whose limit ended before its work was done, and whose books agree on the part
// that was.
const notDone = 3

// Run runs the command of args and returns the exit code: 0 for success, 1 for a failure, 2 for a
// wrong call, 3 for a run whose limit ended before its work was done, 130 for a command that failed because ctx ended.
func Run(ctx context.Context, commands any, name, description string, args []string, stdout, stderr io.Writer) int {
	helped := false
	parser, err := kong.New(commands,
		kong.Name(name), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}),
		kong.Writers(stdout, stderr), kong.Exit(func(int) { helped = true }),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(&Output{stdout, stderr}))
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if helped {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	if err := command.Run(); err != nil {
		fmt.Fprintf(stderr, "%s %s: %v\n", name, command.Command(), err)
		switch {
		case errors.Is(err, ErrUsage):
			return 2
		case errors.Is(err, ErrNotDone):
			return notDone
		case ctx.Err() != nil && errors.Is(err, context.Canceled):
			return interrupted
		}
		return 1
	}
	return 0
}
