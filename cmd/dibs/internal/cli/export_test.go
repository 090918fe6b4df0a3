package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/dibs-go/dibs/logger"
	"github.com/dibs-go/dibs/messagestore"
)

// EndOf is the read that tail begins with, to count its reads.
var EndOf = (*messagestore.Store).End

// RunOver is Run with another way to open a store.
func RunOver(
	ctx context.Context, open func(context.Context, string, *messagestore.Config) (*messagestore.Store, error),
	args []string, stdout, stderr io.Writer, getenv func(string) string,
) int {
	a := &app{stdin: strings.NewReader(""), stderr: stderr, getenv: getenv, open: open}
	return a.run(ctx, args, stdout)
}

// RunPatiently is RunOver with another time between two notes that a report goes on.
func RunPatiently(
	ctx context.Context, patience time.Duration, open func(context.Context, string, *messagestore.Config) (*messagestore.Store, error),
	args []string, stdout, stderr io.Writer, getenv func(string) string,
) int {
	a := &app{stdin: strings.NewReader(""), stderr: stderr, getenv: getenv, open: open, patience: patience}
	return a.run(ctx, args, stdout)
}

// Reading opens a store as a page does that only reads.
func Reading(ctx context.Context, open func(context.Context, string, *messagestore.Config) (*messagestore.Store, error), url string, stderr io.Writer) (*messagestore.Store, error) {
	a := &app{stderr: stderr, getenv: func(string) string { return "" }, open: open}
	a.Store = url
	return a.reading(ctx, url, &messagestore.Config{Logger: logger.Silent()})
}
