package cli

import (
	"context"
	"strings"

	"github.com/alecthomas/kong"
)

// Unknown parses a command line, without the program's name, and returns the error for an
// unknown command or flag. A missing argument is no error: documents leave some out.
func Unknown(args []string) error {
	var g grammar
	parser, err := kong.New(&g, kong.Name("dibs"), kong.Exit(func(int) {}), kong.BindTo(context.Background(), (*context.Context)(nil)))
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	if err != nil && (strings.HasPrefix(err.Error(), "expected ") || strings.HasPrefix(err.Error(), "missing ")) {
		return nil
	}
	return err
}
