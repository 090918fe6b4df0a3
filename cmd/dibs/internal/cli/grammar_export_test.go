package cli

import (
	"context"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/dibs-go/dibs/messagestore"
)

// Unknown parses a command line, without the program's name, and returns the error for an
// unknown command or flag. A missing argument is no error, nor is one that stands for
// others: documents leave some out.
func Unknown(args []string) error {
	var g grammar
	parser, err := kong.New(&g, kong.Name("dibs"), kong.Exit(func(int) {}), kong.BindTo(context.Background(), (*context.Context)(nil)))
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	if is[*messagestore.InvalidError](err) || is[*valueError](err) || err != nil && (strings.HasPrefix(err.Error(), "expected ") || strings.HasPrefix(err.Error(), "missing ")) {
		return nil
	}
	return err
}
